"""Numbers beside tensors: comparison with numbers that a dtype does not hold, promotion of tensors without axes, the
default dtype, states of the random generator, threads."""

import itertools
import operator

import numpy as np
import pytest
import torch

import weft

pytestmark = pytest.mark.usefixtures("on_each_device")
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
WRAPPING = [operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor]
NUMBERS = [0, 1, -1, 127, 128, 300, 1000, -1000, 0xFF00, 2**31, -(2**63), 2**63 - 1, 2**63, 2**64 - 1]


def integers(name):
    info = torch.iinfo(getattr(torch, name))
    return [info.min, info.max, 1, 0, info.max // 2]


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "int32", "int64", "uint16", "uint32"])
def test_integers_are_compared_by_value(name):
    """PyTorch wraps the number around first (`int8 < 1000` compares with -24): Weft answers as Python does."""
    values = integers(name)
    x = weft.tensor(values, dtype=getattr(weft, name))
    for number, compare in itertools.product([*NUMBERS, 2**70, -(2**70)], COMPARISONS):
        assert compare(x, number).tolist() == [compare(value, number) for value in values], (number, compare)
        assert compare(number, x).tolist() == [compare(number, value) for value in values], (number, compare)
    low, high = min(values), max(values)
    inside = [number for number in NUMBERS if low <= number <= high]
    theirs = torch.tensor(values, dtype=getattr(torch, name)) if name[:4] != "uint" or name == "uint8" else None
    for number, compare in itertools.product(inside if theirs is not None else [], COMPARISONS):
        assert compare(x, number).tolist() == compare(theirs, number).tolist()


def test_comparison_inside_compile_and_with_tensors_without_axes():
    x = weft.tensor([1, -128, 127], dtype=weft.int8)
    step = weft.compile(lambda x, number: x < number)
    for number in (5, 6, 1000, 7, -1000):
        assert step(x, number).tolist() == [value < number for value in (1, -128, 127)]
    for number in (1000, -1000, 5):
        assert (x < weft.tensor(number)).tolist() == [value < number for value in (1, -128, 127)]
        assert (weft.tensor(number) == x).tolist() == [value == number for value in (1, -128, 127)]
    assert 1000 not in x and (x.eq(1000) | x.ne(1000)).all()
    assert weft.ones(2, 0, dtype=weft.int8).lt(1000).shape == (2, 0)


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "int32", "int64"])
def test_arithmetic_wraps_as_in_pytorch(name):
    values = integers(name)
    ours, theirs = (m.tensor(values, dtype=getattr(m, name)) for m in (weft, torch))
    for number, apply in itertools.product(NUMBERS, WRAPPING):
        try:
            expected = apply(theirs, number), apply(number, theirs)
        except (OverflowError, RuntimeError):
            continue
        assert [one.tolist() for one in expected] == [apply(ours, number).tolist(), apply(number, ours).tolist()]
    if name == "int8":
        for call in (lambda: ours // 1000, lambda: ours % 1000, lambda: ours + 2**64, lambda: ours.clamp(-1000, 1000)):
            with pytest.raises(weft.DTypeError, match="expected one that fits int8"):
                call()


DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("second", DTYPES)
def test_promotion_of_tensors_without_axes(first, second):
    for shapes in [((2,), ()), ((), (2,)), ((), ()), ((2,), (2,)), ((0,), ())]:
        found = []
        for m in (weft, torch):
            a, b = (m.ones(shape, dtype=getattr(m, name)) for shape, name in zip(shapes, (first, second), strict=True))
            results = [a + b, m.where(m.ones(shapes[0]).bool(), a, b), m.maximum(a, b), a == b, a / b]
            found.append([str(result.dtype).split(".")[1] for result in results])
        assert found[0] == found[1], shapes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [True, 2, 1.5])
def test_promotion_with_numbers(dtype, number):
    for shape in ((2,), ()):
        found = []
        for m in (weft, torch):
            x = m.ones(shape, dtype=getattr(m, dtype))
            results = [x + number, number * x, x / 2, x == number]
            found.append([str(result.dtype).split(".")[1] for result in results])
        assert found[0] == found[1]


# ---- the default dtype ----------------------------------------------------------------------------------------------

MADE = [
    "m.tensor(1.5)", "m.tensor([1.5])", "m.tensor([])", "m.zeros(1)", "m.ones(1)", "m.empty(1)", "m.full((1,), 1.5)",
    "m.full((1,), 1)", "m.rand(1)", "m.randn(1)", "m.linspace(0, 1, 2)", "m.arange(0, 1, 0.5)", "m.arange(3)",
    "m.eye(1)",
    "m.tensor([1]) + 1.5", "m.tensor([1]) / 2", "m.tensor([True]) * 1.5", "m.tensor(2) * 1.5", "m.tensor([1]).sin()",
    "m.tensor([1]).sqrt()", "m.tensor([1]).sigmoid()", "m.tensor([1]).float()", "m.tensor([1.5], dtype=m.float32)",
    "m.from_numpy(np.ones(1, np.float32))", "m.tensor(np.ones(1, np.float32))", "m.as_tensor([1.5])",
    "m.tensor([1]).exp()",
    "m.zeros_like(m.ones(1, dtype=m.float16))", "m.where(m.tensor([True]), 1.5, 2.5)", "m.tensor([3]).float() * 1.5",
]  # fmt: skip


@pytest.mark.parametrize("name", ["float64", "float16", "bfloat16", "float32"])
def test_default_dtype(name):
    try:
        for m in (weft, torch):
            m.set_default_dtype(getattr(m, name))
        assert weft.get_default_dtype() is getattr(weft, name)
        for text in MADE:
            found = [eval(text, {"m": m, "np": np}) for m in (weft, torch)]
            assert len({str(one.dtype).split(".")[1] for one in found}) == 1, text
            if "empty" not in text and "rand" not in text:
                assert str(found[0]).replace("weft", "torch") == str(found[1]), text
    finally:
        for m in (weft, torch):
            m.set_default_dtype(m.float32)


def test_compiled_functions_follow_the_default_dtype():
    step = weft.compile(lambda x: x / 2 + weft.zeros(2))
    x = weft.tensor([1, 2])
    try:
        for dtype in (weft.float32, weft.float64, weft.float32):
            weft.set_default_dtype(dtype)
            assert step(x).dtype is dtype
    finally:
        weft.set_default_dtype(weft.float32)
    assert len(step.retraces) == 1 and "the default dtype was float32" in step.retraces[0]
    for call, message in [
        (lambda: weft.set_default_dtype(weft.int32), "expected a float dtype"),
        (lambda: weft.compile(lambda x: (weft.set_default_dtype("float64"), x)[1])(x), "inside weft.compile"),
    ]:
        with pytest.raises(weft.WeftError, match=message):
            call()
    assert weft.get_default_dtype() is weft.float32


# ---- random states and threads --------------------------------------------------------------------------------------


def test_states_of_the_generator():
    weft.manual_seed(7)
    assert weft.initial_seed() == 7
    weft.rand(3)
    state = weft.get_rng_state()
    assert state.dtype is weft.uint8 and state.device.kind == "cpu"
    first = weft.rand(3).tolist(), weft.randn(2).tolist()
    weft.set_rng_state(state.clone())
    assert (weft.rand(3).tolist(), weft.randn(2).tolist()) == first
    seed = weft.seed()
    assert weft.initial_seed() == seed != weft.seed()
    generator = weft.Generator(3)
    assert generator.initial_seed() == 3 and generator.seed() == generator.initial_seed()
    weft.manual_seed(2**64 - 1)
    state = weft.get_rng_state()
    weft.manual_seed(0)
    weft.set_rng_state(state)
    assert weft.initial_seed() == 2**64 - 1
    for wrong in ((1, 2), weft.ones(16), weft.ones(3, dtype=weft.uint8)):
        with pytest.raises(weft.DTypeError, match="what get_rng_state returned"):
            weft.set_rng_state(wrong)


def test_threads():
    before = weft.get_num_threads()
    x = weft.rand(300, 300)
    results = []
    try:
        for count in (1, 2, 3):
            weft.set_num_threads(count)
            assert weft.get_num_threads() == count
            results.append((x @ x).sum(0).numpy())
    finally:
        weft.set_num_threads(before)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    with pytest.raises(weft.RangeError, match="set_num_threads: given 0"):
        weft.set_num_threads(0)
