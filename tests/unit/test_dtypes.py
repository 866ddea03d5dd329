"""The promotion table against the Array API, torch and the page that prints it; limits; what casts do at the ends."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import weft
from weft.base import dtypes
from weft.base.dtypes import ALL, FLOATS, SIGNED, UNSIGNED, DType, promote

PAGE = Path(weft.__file__).parents[1] / "docs" / "dtypes.md"

# The Array API's table of mixed integers: rows are signed, columns uint8, uint16, uint32, uint64; None is undefined.
MIXED_INTEGERS = {
    "int8": ("int16", "int32", "int64", None),
    "int16": ("int16", "int32", "int64", None),
    "int32": ("int32", "int32", "int64", None),
    "int64": ("int64", "int64", "int64", None),
}


def name(dtype: DType | None) -> str | None:
    return dtype.name if dtype else None


def torch_dtype(dtype: DType) -> torch.dtype:
    return getattr(torch, dtype.name)


@pytest.mark.parametrize("signed", SIGNED, ids=repr)
def test_mixed_integers_as_the_array_api_says(signed):
    assert [name(promote(signed, unsigned)) for unsigned in UNSIGNED] == list(MIXED_INTEGERS[signed.name])


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED, FLOATS[2:]])
def test_dtypes_of_one_kind_meet_in_the_larger(kind):
    for a, b in itertools.product(kind, kind):
        assert promote(a, b) is max(a, b, key=lambda dtype: dtype.itemsize)


def test_as_torch_where_torch_has_a_promotion():
    compared = 0
    for a, b in itertools.product(ALL, ALL):
        try:
            theirs = torch.promote_types(torch_dtype(a), torch_dtype(b))
        except RuntimeError:  # unsigned integers above 8 bits
            continue
        compared += 1
        assert torch_dtype(promote(a, b)) is theirs, (a, b)
    assert compared > 100


def test_the_table_is_symmetric_and_has_gaps_only_for_uint64():
    for a, b in itertools.product(ALL, ALL):
        assert promote(a, b) is promote(b, a)
        gap = {a.kind, b.kind} == {"i", "u"} and dtypes.uint64 in (a, b)
        assert (promote(a, b) is None) == gap


@pytest.mark.parametrize("dtype", ALL, ids=repr)
@pytest.mark.parametrize("number", [True, 2, 1.5])
def test_python_numbers_are_weak_as_in_torch(dtype, number):
    ours = weft.add(weft.ones(1, dtype=dtype), number).dtype
    assert torch_dtype(ours) is torch.result_type(torch.ones(1).to(torch_dtype(dtype)), number)


def table() -> str:
    """The promotion table as the page has it."""
    lines = ["| | " + " | ".join(_short(dtype) for dtype in ALL) + " |", "|---" * (len(ALL) + 1) + "|"]
    for a in ALL:
        cells = [_short(promote(a, b)) for b in ALL]
        lines.append(f"| **{_short(a)}** | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _short(dtype: DType | None) -> str:
    if dtype is None:
        return "-"
    return (
        dtype.name
        if dtype.name == "bool"
        else dtype.name.replace("bfloat", "bf").replace("float", "f").replace("uint", "u").replace("int", "i")
    )


def test_the_page_prints_the_table():
    assert table() in PAGE.read_text()


@pytest.mark.parametrize("dtype", FLOATS, ids=repr)
def test_float_limits_as_torch(dtype):
    ours, theirs = weft.finfo(dtype), torch.finfo(torch_dtype(dtype))
    for field in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution", "dtype"):
        assert getattr(ours, field) == getattr(theirs, field), field


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED], ids=repr)
def test_integer_limits_as_torch(dtype):
    ours, theirs = weft.iinfo(dtype), torch.iinfo(torch_dtype(dtype))
    for field in ("bits", "max", "min", "dtype"):
        assert getattr(ours, field) == getattr(theirs, field), field


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weft.finfo(weft.int8), "finfo: given int8; expected a float dtype"),
        (lambda: weft.iinfo(weft.float16), "iinfo: given float16; expected an integer dtype"),
        (lambda: weft.ones(1, dtype=weft.uint64) + weft.ones(1, dtype=weft.int8), "add: given uint64 and int8 tensors"),
        (
            lambda: weft.ones(1, dtype=weft.int8) // 200,
            "floor_divide: given the number 200; expected one that fits int8",
        ),
        (lambda: weft.tensor([1, 300], dtype=weft.uint8), "tensor: given the number 300; expected one that fits uint8"),
        (lambda: weft.ones(1, dtype=weft.int8).add_(0.5), "add_: given a result of float32 for a int8 tensor"),
    ],
)
def test_errors(call, message):
    with pytest.raises(weft.DTypeError, match=message):
        call()


def test_in_place_keeps_the_dtype_within_its_kind():
    x = weft.tensor([100, 1], dtype=weft.int8)
    x += weft.tensor([100, 1])  # int64, wrapped
    assert x.dtype is weft.int8 and x.tolist() == [-56, 2]
    y = weft.ones(1, dtype=weft.float16)
    y *= weft.tensor([3.0])
    assert y.dtype is weft.float16 and y.item() == 3.0


@pytest.mark.parametrize("dtype", ALL, ids=repr)
def test_numpy_in_and_out(dtype):
    array = np.array([0, 1, 3]).astype(dtype.numpy)
    for tensor in (
        weft.tensor(array),
        weft.from_numpy(array),
        weft.tensor([0, 1, 3 if dtype.kind != "b" else 1]).to(dtype),
    ):
        assert tensor.dtype is dtype and tensor.numpy().dtype == dtype.numpy
        assert tensor.numpy().tobytes() == array.tobytes()
        assert tensor.tolist() == array.tolist() and type(tensor[1].item()) is type(array.tolist()[1])


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        ("half", weft.float16), ("bfloat16", weft.bfloat16), ("float", weft.float32), ("double", weft.float64),
        ("char", weft.int8), ("short", weft.int16), ("int", weft.int32), ("long", weft.int64), ("byte", weft.uint8),
        ("bool", weft.bool),
    ],
)  # fmt: skip
def test_methods_that_cast(method, dtype):
    assert getattr(weft.tensor([1.0, 0.0]), method)().dtype is dtype


def test_bits_of_constants():
    for dtype in (weft.float16, weft.bfloat16):
        for number in (0.0, 1.0, -2.5, 0.1, 1e30, float("-inf")):
            assert dtypes.bits_of(number, dtype) == weft.tensor([number]).to(dtype).numpy().view(np.uint16)[0]


def test_printing():
    assert repr(weft.tensor([1.25, -3.0e-5]).bfloat16()) == "tensor([ 1.2500e+00, -3.0041e-05], dtype=weft.bfloat16)"
    assert repr(weft.tensor([1, 2], dtype=weft.uint8)) == "tensor([1, 2], dtype=weft.uint8)"
