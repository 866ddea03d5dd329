"""Special functions to the last digits, against mpmath; aliases; functions that return bools; arguments refused."""

import math

import mpmath as mp
import numpy as np
import pytest
import torch

import weft

CENTRAL = [-0.999, -0.5, -0.3, -1e-3, -1e-12, 1e-20, 1e-6, 0.2, 0.41, 0.42, 0.7, 0.99, 0.9999]
POSITIVE = [
    1e-20,
    1e-3,
    0.3,
    0.499,
    0.501,
    0.9999,
    1.0001,
    1.4,
    1.6,
    1.9999,
    2.0001,
    2.9,
    3.1,
    5.5,
    7.9,
    8.1,
    30.0,
    1e4,
]
REAL = [*[-number for number in POSITIVE], *POSITIVE]

# name: our function, mpmath's, arguments, and by how many units in the last place it may be off
ACCURACY = {
    "asin": (weft.asin, mp.asin, CENTRAL, 3),
    "acos": (weft.acos, mp.acos, CENTRAL, 3),
    "atan": (weft.atan, mp.atan, REAL, 3),
    "sinh": (weft.sinh, mp.sinh, [x for x in REAL if abs(x) < 80], 4),
    "cosh": (weft.cosh, mp.cosh, [x for x in REAL if abs(x) < 80], 4),
    "asinh": (weft.asinh, mp.asinh, REAL, 3),
    "acosh": (weft.acosh, mp.acosh, [1 + x for x in POSITIVE], 3),
    "atanh": (weft.atanh, mp.atanh, CENTRAL, 3),
    "erfc": (weft.erfc, mp.erfc, [x for x in REAL if abs(x) < 8], 4),
    "erfinv": (weft.erfinv, mp.erfinv, CENTRAL, 4),
    "lgamma": (weft.lgamma, mp.loggamma, POSITIVE, 5),
    "digamma": (weft.digamma, mp.digamma, [x for x in POSITIVE if abs(x - 1.46) > 0.2], 10),
    "trigamma": (lambda x: weft.polygamma(1, x), lambda x: mp.polygamma(1, x), POSITIVE[1:], 6),
    "i0": (weft.i0, lambda x: mp.besseli(0, x), [x for x in REAL if abs(x) < 80], 6),
    "i1": (weft.special.i1, lambda x: mp.besseli(1, x), [x for x in REAL if abs(x) < 80], 8),
    "exp2": (weft.exp2, lambda x: mp.mpf(2) ** x, [-100.3, -3.7, 0.1, 50.2, 120.9], 2),
}


@pytest.mark.unit
@pytest.mark.parametrize("name", ACCURACY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_functions_are_exact_to_a_few_units(name, dtype):
    ours, exact, arguments, units = ACCURACY[name]
    x = np.array(arguments, dtype)
    with mp.workdps(40):
        for at, actual in zip(x, ours(weft.tensor(x)).numpy(), strict=True):
            expected = exact(mp.mpf(float(at)))
            assert abs(mp.mpf(float(actual)) - expected) <= units * np.finfo(dtype).eps * abs(expected), (at, actual)


ALIASES = {
    "abs": "absolute", "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
    "atan2": "arctan2", "atanh": "arctanh", "clamp": "clip", "div": "divide", "ge": "greater_equal", "gt": "greater",
    "le": "less_equal", "lt": "less", "mul": "multiply", "ne": "not_equal", "neg": "negative", "sub": "subtract",
    "trunc": "fix",
}  # fmt: skip


@pytest.mark.unit
def test_torchs_aliases():
    x, y = weft.tensor([0.25, 0.5]), weft.tensor([0.75, 0.125])
    for name, alias in ALIASES.items():
        takes_two = name in ("atan2", "clamp", "div", "ge", "gt", "le", "lt", "mul", "ne", "sub")
        args = (y,) if takes_two else ()
        expected = getattr(weft, name)(x, *args).numpy()
        assert getattr(weft, alias) is not None and hasattr(torch, alias)
        np.testing.assert_array_equal(getattr(weft, alias)(x, *args).numpy(), expected)
        np.testing.assert_array_equal(getattr(x, alias)(*args).numpy(), expected)
        changed = x.clone()
        getattr(changed, alias + "_")(*args)
        np.testing.assert_array_equal(changed.numpy(), expected.astype(np.float32))


@pytest.mark.unit
def test_special_has_torchs_names_only():
    assert set(weft.special.__all__) <= set(dir(torch.special))
    assert {"expit", "gammaln", "psi", "multigammaln", "logit", "xlog1py", "log_softmax"} <= set(weft.special.__all__)
    x = weft.tensor([0.25, 3.0])
    for name, other in {"expit": "sigmoid", "gammaln": "lgamma", "psi": "digamma"}.items():
        np.testing.assert_array_equal(getattr(weft.special, name)(x).numpy(), getattr(weft, other)(x).numpy())


@pytest.mark.unit
def test_equal_and_allclose_return_bools():
    x = weft.tensor([1.0, math.nan])
    assert weft.equal(weft.tensor([1, 2]), weft.tensor([1.0, 2.0])) is True
    assert weft.equal(x, x) is False and weft.equal(x, x[:1]) is False
    assert weft.allclose(x, x) is False and x.allclose(x, equal_nan=True) is True
    assert weft.allclose(weft.tensor([1.0]), weft.tensor([1.1]), rtol=0.2) is True
    for call in (weft.equal, weft.allclose):
        with pytest.raises(weft.GraphError, match=f"{call.__name__} inside weft.compile"):
            weft.compile(lambda x, call=call: call(x, x))(weft.ones(2))
        with pytest.raises(weft.DTypeError, match=f"{call.__name__}: given a float; expected two tensors"):
            call(x, 1.0)


@pytest.mark.unit
def test_where_with_a_condition_alone():
    (rows, columns) = weft.where(weft.tensor([[True, False], [False, True]]))
    assert rows.tolist() == [0, 1] and columns.tolist() == [0, 1]
    with pytest.raises(weft.GraphError, match=r"inside weft\.compile"):
        weft.compile(lambda c: weft.where(c)[0])(weft.tensor([True]))
    with pytest.raises(weft.DTypeError, match="where: given one of input and other"):
        weft.where(weft.tensor([True]), weft.ones(1))


INTEGERS, BOOLS, FLOATS = weft.tensor([1, 2]), weft.tensor([True, False]), weft.tensor([1.0, 2.0])
REFUSED = {
    "floor of bool": lambda: weft.floor(BOOLS),
    "ceil of bool": lambda: weft.ceil(BOOLS),
    "trunc of bool": lambda: weft.trunc(BOOLS),
    "round of bool": lambda: weft.round(BOOLS),
    "abs of bool": lambda: weft.abs(BOOLS),
    "frac of int": lambda: weft.frac(INTEGERS),
    "div trunc of bool": lambda: weft.div(BOOLS, BOOLS, rounding_mode="trunc"),
    "shift of bool": lambda: BOOLS << BOOLS,
    "addcdiv of int": lambda: weft.addcdiv(FLOATS, INTEGERS, INTEGERS),
    "lerp of int": lambda: weft.lerp(INTEGERS, INTEGERS, 1),
    "lerp of two dtypes": lambda: weft.lerp(FLOATS, FLOATS.double(), 0.5),
    "float alpha for int": lambda: weft.add(INTEGERS, INTEGERS, alpha=1.5),
    "bool alpha for float": lambda: weft.add(FLOATS, FLOATS, alpha=True),
    "number first": lambda: weft.lt(2, INTEGERS),
    "logical with a number": lambda: weft.logical_and(INTEGERS, 2),
    "softmax of int": lambda: weft.softmax(INTEGERS, 0),
    "gcd of float": lambda: weft.gcd(FLOATS, FLOATS),
    "hypot of int": lambda: weft.hypot(INTEGERS, INTEGERS),
}


@pytest.mark.unit
@pytest.mark.parametrize("what", REFUSED)
def test_refused_as_in_torch(what):
    with pytest.raises(weft.DTypeError, match=r"given .*; expected"):
        REFUSED[what]()


@pytest.mark.unit
def test_masked_fill_takes_one_value():
    with pytest.raises(weft.ShapeError, match="masked_fill: given a value of shape"):
        weft.masked_fill(FLOATS, BOOLS, FLOATS)


@pytest.mark.unit
def test_clamp_between_tensors():
    """NaN in a bound is the result; where the bounds cross, or are equal, the upper one counts."""
    x, low, high = [0.0, 5.0, -5.0, 2.0, 1.0], [1.0, 1.0, 3.0, math.nan, 1.0], [2.0, 2.0, 1.0, 4.0, 1.0]
    ours = [weft.tensor(part).requires_grad_() for part in (x, low, high)]
    theirs = [torch.tensor(part, requires_grad=True) for part in (x, low, high)]
    (y, z) = weft.clamp(*ours), torch.clamp(*theirs)
    np.testing.assert_array_equal(y.detach().numpy(), z.detach().numpy())
    y.sum().backward()
    z.sum().backward()
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one.grad.numpy()[[0, 1, 2, 4]], two.grad.numpy()[[0, 1, 2, 4]])
