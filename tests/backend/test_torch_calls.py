"""Calls as users of torch write them: reductions, movement, indexing, sorting, matrices. Every line of torch_calls.txt
is run in both: equal values, shapes and dtypes, or an error where torch raises one.

`m` is the framework; X [3, 4], Y [2, 3, 4] and V [5] are floats, S one without axes, E [0, 3] an empty one, I [3, 4]
integers, B [3, 4] bools, IX [3] indices.
"""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import weft

LINES = (Path(__file__).parent / "torch_calls.txt").read_text().splitlines()
GROUPS = 12  # lines are spread over so many tests, whose results are computed together


def arguments():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, generator=generator)
    return {
        "X": x,
        "Y": torch.randn(2, 3, 4, generator=generator),
        "V": torch.randn(5, generator=generator),
        "I": torch.randint(-5, 5, (3, 4), generator=generator),
        "B": x > 0,
        "S": torch.tensor(2.5),
        "E": torch.empty(0, 3),
        "IX": torch.tensor([2, 0, 2]),
    }


def flat(result):
    if isinstance(result, (tuple, list)) and not (result and isinstance(result[0], int)):
        return [one for part in result for one in flat(part)]
    return [result]


def run(line, module, names):
    """The results of a line, or the error that it raises."""
    try:
        return flat(eval(line, {"m": module, **names}))
    except Exception as error:
        return error


def check(line, theirs, ours):
    if isinstance(theirs, Exception):
        assert isinstance(ours, weft.WeftError), f"{line}: torch raises {theirs}, Weft gives {ours!r}"
        return
    assert isinstance(ours, list), f"{line}: {ours!r}"
    assert len(ours) == len(theirs), line
    for one, other in zip(ours, theirs, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other, line
            continue
        assert (one.shape, one.dtype.name) == (tuple(other.shape), str(other.dtype).removeprefix("torch.")), line
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5, err_msg=line)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", range(GROUPS))
def test_call(group):
    names = arguments()
    ours = {name: weft.tensor(value.numpy()) for name, value in names.items()}
    lines = LINES[group::GROUPS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [run(line, torch, names) for line in lines]
    found = [run(line, weft, ours) for line in lines]
    for place, results in enumerate(found):
        if isinstance(results, list) and isinstance(expected[place], Exception):
            try:  # an error that shows when the value is computed
                weft.eval(*[one for one in results if isinstance(one, weft.Tensor)])
            except weft.WeftError as error:
                found[place] = error
    weft.eval(
        *[one for results in found if isinstance(results, list) for one in results if isinstance(one, weft.Tensor)]
    )
    for line, theirs, mine in zip(lines, expected, found, strict=True):
        check(line, theirs, mine)
