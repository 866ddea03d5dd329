"""Tensors as text: the same letters as torch's."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from weft.base.dtypes import ALL

pytestmark = pytest.mark.unit

INF, NAN = float("inf"), float("nan")
RNG = np.random.default_rng(0)

FLOATS = [
    0.0, -0.0, 1.0, -1.5, 3.14159, 1e-3, 1e-5, 1e8, 2e8, 123456.0, 1e20, -1e-20, NAN, INF, -INF, 0.1, 100.25, 7.0,
]  # fmt: skip

CASES = {
    **{f"scalar {value}": value for value in FLOATS},
    **{f"pair {a} {b}": [a, b] for a, b in itertools.combinations(FLOATS, 2)},
    "integers": [1, 2, -300],
    "one": 7,
    "flags": [[True, False], [False, False]],
    "flag": True,
    "whole floats": [[1.0, 2.0], [3.0, 4.0]],
    "mixed scale": [1e-10, 1.0, 1e10],
    "whole and large": [1.0, 5e8],
    "all nan": [NAN, NAN],
    "zeros": [0.0, 0.0],
    "infinite and whole": [INF, 1.0, -2.0],
    "infinite and not": [-INF, 1.5, NAN],
    "wide": RNG.normal(size=(3, 20)).tolist(),
    "long lines": RNG.integers(-(10**6), 10**6, 50).tolist(),
    "deep": RNG.normal(size=(2, 2, 2, 3)).tolist(),
    "one of everything": [[[[1.0]]]],
}


def ours(x):
    return repr(x).replace("weft.", "torch.")


def both(data, dtype=None, **options):
    """The texts of a tensor in Weft and in torch."""
    kinds = (getattr(weft, dtype), getattr(torch, dtype)) if dtype else (None, None)
    return ours(weft.tensor(data, dtype=kinds[0], **options)), repr(torch.tensor(data, dtype=kinds[1], **options))


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    one, two = both(CASES[name])
    assert one == two


@pytest.mark.parametrize("dtype", [dtype.name for dtype in ALL])
def test_dtypes(dtype):
    for data in ([0, 1, 2], 1, [], [[3, 4], [5, 6]]):
        one, two = both(data, dtype)
        assert one == two
    if weft.base.dtypes.by_name(dtype).kind == "f":
        for data in ([0.1, 0.25], [1.0, 2.0], [1e-3, 5.0], [NAN, INF], 0.3):
            one, two = both(data, dtype)
            assert one == two


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (3, 0, 2)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float64"])
def test_empty(shape, dtype):
    assert ours(weft.zeros(shape, dtype=getattr(weft, dtype))) == repr(torch.zeros(shape, dtype=getattr(torch, dtype)))


@pytest.mark.parametrize(
    "shape", [(1001,), (40, 30), (7, 7, 30), (2, 2000), (3, 4, 5, 20), (6, 200), (1000,), (1200, 1)]
)
@pytest.mark.parametrize("kind", ["normal", "integers", "scaled"])
def test_large_ones_are_summarised(shape, kind):
    array = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    array = {"normal": array, "integers": (array * 100).astype(np.int64), "scaled": array**9}[kind]
    assert ours(weft.tensor(array)) == repr(torch.tensor(array))


def test_gradients_and_suffixes():
    for data, dtype in (([1.5, 2.5], "float32"), ([1.5], "float64"), (np.zeros((0, 2)).tolist(), "float32")):
        one, two = both(data, dtype, requires_grad=True)
        assert one == two
    wide = RNG.normal(size=8).tolist()
    for count in range(1, 9):
        one, two = both(wide[:count], "float64", requires_grad=True)
        assert one == two  # the suffix goes to a line of its own where it does not fit
    x = weft.tensor([1.5], requires_grad=True)
    assert repr(x * 2) == "tensor([3.], requires_grad=True)"


def test_devices():
    x = weft.tensor([1.0], device="reference")
    assert repr(x) == "tensor([1.], device='reference')"
    with weft.device("reference"):
        assert repr(x) == "tensor([1.])"


def test_inside_compile_nothing_is_computed():
    seen = []
    weft.compile(lambda x: seen.append(repr(x)) or x + 1)(weft.ones(2))
    assert seen == ["tensor(<traced>, shape=(2,), dtype=weft.float32)"]


OPTIONS = [
    {"precision": 2}, {"precision": 0}, {"precision": 8}, {"threshold": 5}, {"threshold": 5, "edgeitems": 1},
    {"threshold": 5, "edgeitems": 0}, {"linewidth": 40}, {"sci_mode": True}, {"sci_mode": False}, {"profile": "short"},
    {"profile": "full"}, {"profile": "short", "precision": 5},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(options):
    samples = [RNG.normal(size=(4, 9)), np.arange(30.0), np.arange(12).reshape(3, 4), [1e-9, 1.0, 1e9], 2.5, [True], []]
    with weft.printoptions(**options), torch._tensor_str.printoptions(**options):
        assert weft.get_printoptions() == torch._tensor_str.get_printoptions()
        for data in samples:
            one, two = both(data)
            assert one == two
    assert weft.get_printoptions() == torch._tensor_str.get_printoptions()


def test_options_that_are_none():
    with pytest.raises(weft.RangeError, match="set_printoptions: given the profile 'long'"):
        weft.set_printoptions(profile="long")


numbers = st.one_of(
    st.floats(width=32), st.integers(-1000, 1000).map(float), st.floats(-10, 10, width=32), st.sampled_from(FLOATS)
)


@settings(max_examples=150, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(numbers, min_size=1, max_size=30), st.sampled_from(["float32", "float64", "float16", "bfloat16"]))
def test_any_floats(values, dtype):
    one, two = both(values, dtype)
    assert one == two
