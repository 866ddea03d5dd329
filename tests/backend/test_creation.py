"""Tensors made from nothing: the same values, dtypes and refusals as PyTorch's."""

import itertools

import numpy as np
import pytest
import torch

import weft

pytestmark = pytest.mark.usefixtures("on_each_device")

FLOATS = ("float32", "float64", "float16", "bfloat16")


def check(made, expected, ulps=4.0):
    assert made.dtype.name == str(expected.dtype).removeprefix("torch.") and made.shape == tuple(expected.shape)
    exact = expected.to(torch.float64).numpy()
    spacing = torch.finfo(expected.dtype).eps if expected.dtype.is_floating_point else 0.0
    values = made.numpy().astype(np.float64)
    np.testing.assert_allclose(values, exact, rtol=ulps * spacing, atol=ulps * spacing * 0.25)


# ---- spaces ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 50])
def test_spaces(steps, dtype):
    kind = getattr(torch, dtype)
    for start, end in ((0, 1), (-4.3, 5.7), (3, -2), (2, 2)):
        check(weft.linspace(start, end, steps, dtype=dtype), torch.linspace(start, end, steps, dtype=kind), 16)
        if steps == 1 and dtype[0] == "i" and start != int(start):
            continue  # one step alone PyTorch does not cut to a whole number
        for base in (10, 2.0, 0.5, 1):
            made = weft.logspace(start, end, steps, base, dtype=dtype)
            exact = torch.logspace(start, end, steps, base, dtype=torch.float64 if dtype[0] == "f" else kind)
            check(made, exact.to(kind), 16)
    assert weft.linspace(0.1, 0.7, 5, dtype=dtype).numpy()[-1] == np.array(0.7).astype(made.dtype.numpy)


def test_spaces_between_tensors():
    low, high = weft.tensor(1), weft.tensor(3.0, requires_grad=True)
    made = weft.linspace(low, high, 5)
    assert made.tolist() == [1.0, 1.5, 2.0, 2.5, 3.0] and not made.requires_grad
    assert weft.linspace(low, 2.9, 3, dtype=weft.int64).tolist() == [1, 1, 2]
    assert weft.logspace(0, high, 4, base=2).tolist() == [1.0, 2.0, 4.0, 8.0]
    step = weft.compile(lambda a, b: (weft.linspace(a, b, 4), weft.logspace(a, b, 3, 10.0)))
    for a, b in ((0.0, 3.0), (2.0, -1.0)):
        line, powers = step(weft.tensor(a), weft.tensor(b))
        np.testing.assert_allclose(line.numpy(), np.linspace(a, b, 4), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(powers.numpy(), np.logspace(a, b, 3), rtol=1e-6)


def test_ranges():
    for args in ((5,), (2, 5), (0, 2.5, 0.5), (5, 0, -2), (0.0, 1.0, 0.1), (True,), (3, 3)):
        check(weft.arange(*args), torch.arange(*args))
    assert weft.arange(end=3).tolist() == weft.arange(start=0, end=3).tolist() == [0, 1, 2]
    assert weft.arange(weft.tensor(3)).dtype is weft.int64
    check(weft.arange(weft.tensor(1.0), weft.tensor(2.0), 0.5), torch.arange(1.0, 2.0, 0.5))
    assert weft.arange(3.0, requires_grad=True).requires_grad


# ---- one number, or none --------------------------------------------------------------------------------------------


def test_full_has_the_dtype_of_its_number():
    for value in (True, 3, 2.5):
        check(weft.full((2, 3), value), torch.full((2, 3), value))
    assert weft.full(size=(2,), fill_value=1).tolist() == [1, 1] and weft.full((), 2).shape == ()
    assert weft.full((2,), weft.tensor(3)).dtype is weft.int64
    assert weft.full((2,), weft.tensor(3.5), dtype=weft.int32).tolist() == [3, 3]
    assert weft.compile(lambda x: weft.full((2,), x.sum()))(weft.ones(3)).tolist() == [3.0, 3.0]
    assert not weft.full((2,), weft.tensor(1.0, requires_grad=True)).requires_grad
    for number in (True, 2, 2.5):
        check(weft.scalar_tensor(number), torch.scalar_tensor(number))


def test_sizes_by_name():
    for name in ("zeros", "ones", "empty"):
        make = getattr(weft, name)
        for made in (make(2, 3), make((2, 3)), make([2, 3]), make(size=(2, 3))):
            assert made.shape == (2, 3) and made.dtype is weft.float32
        assert make(()).shape == make(size=()).shape == () and make(0).shape == (0,)
        assert make(2, dtype=weft.int8, requires_grad=False).dtype is weft.int8


def test_indices_and_identities():
    for row, col, offset in itertools.product((0, 1, 4), (0, 3), (-2, 0, 1, 9)):
        check(weft.tril_indices(row, col, offset), torch.tril_indices(row, col, offset))
        check(weft.triu_indices(row, col, offset), torch.triu_indices(row, col, offset))
        check(weft.eye(row, col), torch.eye(row, col))
    assert weft.eye(2, requires_grad=True).requires_grad


# ---- windows --------------------------------------------------------------------------------------------------------

WINDOWS = {
    "hann_window": [{}], "bartlett_window": [{}], "blackman_window": [{}],
    "hamming_window": [{}, {"alpha": 0.5, "beta": 0.4}], "kaiser_window": [{}, {"beta": 3.0}, {"beta": 0.0}],
}  # fmt: skip
SIGNAL = {
    "bartlett": [{}], "blackman": [{}], "cosine": [{}], "hamming": [{}], "hann": [{}], "nuttall": [{}],
    "exponential": [{}, {"tau": 2.5}], "gaussian": [{}, {"std": 0.4}], "general_cosine": [{"a": [0.46, 0.23, 0.31]}],
    "general_hamming": [{}, {"alpha": 0.7}], "kaiser": [{}, {"beta": 5.0}],
}  # fmt: skip


@pytest.mark.parametrize("length", [0, 1, 2, 5, 64])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, length):
    for options, periodic in itertools.product(WINDOWS[name], (True, False)):
        args = (length, periodic, *options.values())
        exact = getattr(torch, name)(*args, dtype=torch.float64)
        for dtype in FLOATS:
            check(
                getattr(weft, name)(*args, dtype=dtype),
                exact.to(getattr(torch, dtype)),
                64 if dtype == "float64" else 4,
            )
    assert getattr(weft, name)(length).dtype is weft.float32


@pytest.mark.parametrize("length", [0, 1, 2, 5, 64])
@pytest.mark.parametrize("name", SIGNAL)
def test_signal_windows(name, length):
    theirs, ours = getattr(torch.signal.windows, name), getattr(weft.signal.windows, name)
    for options, sym in itertools.product(SIGNAL[name], (True, False)):
        exact = theirs(length, **options, sym=sym, dtype=torch.float64)
        for dtype in ("float32", "float64"):
            check(
                ours(length, **options, sym=sym, dtype=dtype),
                exact.to(getattr(torch, dtype)),
                64 if dtype == "float64" else 4,
            )
    if name == "exponential":
        check(ours(length, center=1.0, sym=False), theirs(length, center=1.0, sym=False))


def test_windows_inside_compile():
    step = weft.compile(lambda x: x * weft.hann_window(5) + weft.signal.windows.cosine(5))
    expected = torch.hann_window(5, dtype=torch.float64) + torch.signal.windows.cosine(5, dtype=torch.float64)
    check(step(weft.ones(5)), expected.float())
    assert weft.hann_window(3, requires_grad=True).requires_grad


# ---- what is refused ------------------------------------------------------------------------------------------------

WRONG = {
    "arange step": lambda m: m.arange(0, 5, 0),
    "arange sign": lambda m: m.arange(5, 0),
    "arange nan": lambda m: m.arange(float("nan")),
    "arange inf": lambda m: m.arange(0, float("inf")),
    "arange bool": lambda m: m.arange(3, dtype=m.bool),
    "arange text": lambda m: m.arange("a"),
    "arange nothing": lambda m: m.arange(),
    "linspace steps": lambda m: m.linspace(0, 1, -1),
    "linspace float": lambda m: m.linspace(0, 1, 2.5),
    "linspace bool": lambda m: m.linspace(0, 1, 3, dtype=m.bool),
    "linspace vector": lambda m: m.linspace(m.ones(1), 1, 3),
    "logspace steps": lambda m: m.logspace(0, 1, -1),
    "logspace bool": lambda m: m.logspace(0, 1, 3, dtype=m.bool),
    "logspace vector": lambda m: m.logspace(0, m.ones(1), 3),
    "eye": lambda m: m.eye(-1),
    "eye columns": lambda m: m.eye(1, -1),
    "eye float": lambda m: m.eye(2.0),
    "tril": lambda m: m.tril_indices(-1, 2),
    "triu": lambda m: m.triu_indices(2, -1),
    "tril dtype": lambda m: m.tril_indices(2, 2, dtype=m.float32),
    "full vector": lambda m: m.full((2,), m.ones(1)),
    "full text": lambda m: m.full((2,), "a"),
    "full fit": lambda m: m.full((2,), 300, dtype=m.uint8),
    "full shape": lambda m: m.full((2, -1), 1),
    "zeros shape": lambda m: m.zeros(-1),
    "zeros float": lambda m: m.zeros(2.0),
    "zeros twice": lambda m: m.zeros(2, size=(3,)),
    "meshgrid word": lambda m: m.meshgrid(m.ones(2), indexing="yx"),
    "window length": lambda m: m.hann_window(-1),
    "window dtype": lambda m: m.kaiser_window(3, dtype=m.int64),
    "window float": lambda m: m.hamming_window(2.5),
    "signal length": lambda m: m.signal.windows.hann(-1),
    "signal dtype": lambda m: m.signal.windows.gaussian(3, dtype=m.float16),
    "signal std": lambda m: m.signal.windows.gaussian(3, std=0.0),
    "signal tau": lambda m: m.signal.windows.exponential(3, tau=0.0),
    "signal center": lambda m: m.signal.windows.exponential(3, center=1.0),
    "signal beta": lambda m: m.signal.windows.kaiser(3, beta=-1.0),
    "signal weights": lambda m: m.signal.windows.general_cosine(3, a=[]),
    "signal list": lambda m: m.signal.windows.general_cosine(3, a=0.5),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_refused(call):
    with pytest.raises((RuntimeError, TypeError, ValueError, NotImplementedError)):
        call(torch)
    with pytest.raises(weft.WeftError, match="given"):
        call(weft)
