"""The operations of the kernel language on NumPy arrays, for the emulated GPU (see `lockstep`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.base import dtypes
from weft.base.dtypes import DType


def operation(name: str, args: list[Any], dtype: DType) -> Any:
    """One operation of the kernel language on arrays."""
    kind = dtype.numpy
    if name == "fma":
        return fused(*args, kind)
    if name in LARGE:
        needed, common, *given = args
        with np.errstate(all="ignore"):
            return np.where(needed, LARGE[name](*[np.asarray(one) for one in given]), common).astype(kind)
    if name in FUNCTIONS:
        return FUNCTIONS[name](np.asarray(args[0])).astype(kind)
    if name == "mulhi":
        return (np.asarray(args[0], np.uint64) * np.asarray(args[1], np.uint64) >> np.uint64(32)).astype(np.uint32)
    if name == "select":
        return np.where(*args).astype(kind)
    if name == "bitcast":
        return np.asarray(args[0]).view(kind)
    if name == "cast":
        given = np.asarray(args[0])
        if dtype is dtypes.bool_:
            return given != 0
        if given.dtype.kind == "f" and dtype.kind in "iu":
            low, high = dtypes.integer_bounds(dtype)
            whole = np.where(np.isnan(given), 0, np.trunc(given)).astype(np.longdouble)
            return np.where(whole >= high, high, np.where(whole <= low, low, np.clip(whole, low, high))).astype(kind)
        return given.astype(kind)
    if name in ("div", "mod") and dtype.kind in "iu":
        safe = np.where(np.asarray(args[1]) == 0, 1, args[1]).astype(kind)
        found = args[0] // safe if name == "div" else args[0] % safe
        return np.where(np.asarray(args[1]) == 0, 0, found).astype(kind)
    return np.asarray(UFUNCS[name](*args)).astype(kind)


def fused(a: Any, b: Any, c: Any, kind: np.dtype) -> np.ndarray:
    """a * b + c, rounded once: the product of float64 in two parts, of which the upper cancels against c exactly."""
    a, b, c = (np.asarray(arg, np.float64) for arg in (a, b, c))
    with np.errstate(all="ignore"):
        product = a * b
        if kind == np.float32:
            return (product + c).astype(kind)
        parts = []
        for x in (a, b):
            high = x * 134217729.0 - (x * 134217729.0 - x)
            parts += [high, x - high]
        low = parts[0] * parts[2] - product + parts[0] * parts[3] + parts[1] * parts[2] + parts[1] * parts[3]
        return np.where(np.isfinite(low), product.astype(np.longdouble) + c + low, product + c).astype(kind)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


LARGE = {
    "sin_large": lambda a: np.sin(a.astype(np.longdouble)), "cos_large": lambda a: np.cos(a.astype(np.longdouble)),
    "mod_large": _remainder, "floor_divide_large": np.floor_divide,
}  # fmt: skip
FUNCTIONS = {
    "exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "exp_rounded": lambda a: np.exp2(a * np.float32(1.442695041)),
    "logistic": lambda a: 1 / (1 + np.exp(-a.astype(np.float64))),
    "round_bfloat16": lambda a: a.astype(dtypes.bfloat16.numpy), "widen": lambda a: a, "narrow": lambda a: a,
}  # fmt: skip
REDUCTIONS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
UFUNCS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "floor": np.floor,
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "not": np.invert, "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
