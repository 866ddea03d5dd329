"""Programs that make every kind of kernel, on the GPU: right, and the same bits again."""

from __future__ import annotations

import pytest

from tests.unit.programs import PROGRAMS, assert_equal_results, expected_results, results


@pytest.mark.parametrize("small", [True, False], ids=["small", "large"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees_with_the_reference(name, small, gpu):
    assert_equal_results(results(PROGRAMS[name], gpu, small), expected_results(name, small))


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_bits_again(name, gpu):
    first, second = results(PROGRAMS[name], gpu), results(PROGRAMS[name], gpu)
    for a, b in zip(first, second, strict=True):
        assert a.tobytes() == b.tobytes()
