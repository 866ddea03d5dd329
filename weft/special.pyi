"""Written by `make stubs` from the table of operations; not to be edited."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, overload

from weft.base.dtypes import DTypeLike
from weft.random.generator import Generator
from weft.core.tensor import Tensor
from weft.plan.device import Device

__all__ = [
    'digamma',
    'entr',
    'erf',
    'erfc',
    'erfcx',
    'erfinv',
    'exp2',
    'expit',
    'expm1',
    'gammaln',
    'i0',
    'i0e',
    'i1',
    'i1e',
    'log1p',
    'log_ndtr',
    'log_softmax',
    'logit',
    'logsumexp',
    'multigammaln',
    'ndtr',
    'ndtri',
    'polygamma',
    'psi',
    'round',
    'sinc',
    'softmax',
    'xlog1py',
    'xlogy',
]

def digamma(input: Tensor) -> Tensor:
    """The derivative of `lgamma`. At 0 it is infinite, with the sign of -x; NaN at -1, -2, ..."""
    ...

def entr(input: Tensor) -> Tensor:
    """-x log(x), 0 at 0 and -inf below."""
    ...

def erf(input: Tensor) -> Tensor:
    """The error function."""
    ...

def erfc(input: Tensor) -> Tensor:
    """1 - erf(x), precise where it is small."""
    ...

def erfcx(input: Tensor) -> Tensor:
    """exp(x^2) erfc(x)."""
    ...

def erfinv(input: Tensor) -> Tensor:
    """The number whose error function is x; infinite at 1, NaN beyond."""
    ...

def exp2(input: Tensor) -> Tensor:
    """2 to the power x."""
    ...

def expit(input: Tensor) -> Tensor:
    """1 / (1 + e^-x), from e^-|x| so that nothing overflows."""
    ...

def expm1(input: Tensor) -> Tensor:
    """exp(x) - 1, precise near 0."""
    ...

def gammaln(input: Tensor) -> Tensor:
    """The logarithm of |gamma(x)|; infinite at 0, -1, -2, ..."""
    ...

def i0(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, of order 0."""
    ...

def i0e(input: Tensor) -> Tensor:
    """exp(-|x|) `i0`(x)."""
    ...

def i1(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, of order 1."""
    ...

def i1e(input: Tensor) -> Tensor:
    """exp(-|x|) `i1`(x)."""
    ...

def log1p(input: Tensor) -> Tensor:
    """log(1 + x), precise near 0."""
    ...

def log_ndtr(input: Tensor) -> Tensor:
    """log(ndtr(x)) without underflow."""
    ...

def log_softmax(input: Tensor, dim: int, dtype: DTypeLike | None = None) -> Tensor:
    """log(softmax(x)) without overflow."""
    ...

def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), the inverse of `sigmoid`; NaN outside of [0, 1]. With `eps`, of x clamped to [eps, 1 - eps]."""
    ...

def logsumexp(input: Tensor, dim: int | Sequence[int] | None, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over `dim`, shifted by the maximum; -inf over nothing but -inf, with gradient 0 there."""
    ...

def multigammaln(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension `p`."""
    ...

def ndtr(input: Tensor) -> Tensor:
    """The distribution function of the standard normal distribution."""
    ...

def ndtri(input: Tensor) -> Tensor:
    """The inverse of `ndtr`: the quantiles of the standard normal distribution; NaN outside of [0, 1]."""
    ...

def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of `digamma`."""
    ...

def psi(input: Tensor) -> Tensor:
    """The derivative of `lgamma`. At 0 it is infinite, with the sign of -x; NaN at -1, -2, ..."""
    ...

def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest whole number, ties to even; the gradient is 0. With `decimals`, the nearest with so many digits after
    the point, or with so many zeros before it if negative."""
    ...

def sinc(input: Tensor) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0."""
    ...

def softmax(input: Tensor, dim: int, dtype: DTypeLike | None = None) -> Tensor:
    """e^x over its sum along `dim`, shifted by the maximum. Multiplies by 1/sum: one division a row."""
    ...

def xlog1py(input: Tensor | float, other: Tensor | float) -> Tensor:
    """x log(1 + y), and 0 where x is 0 and y is not NaN."""
    ...

def xlogy(input: Tensor | float, other: Tensor | float) -> Tensor:
    """x log(y), and 0 where x is 0 and y is not NaN."""
    ...
