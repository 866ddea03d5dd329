"""Initial values of parameters, after `torch.nn.init`: each function writes to its tensor and returns it.

Nothing is computed when a function is called: what was recorded for all parameters of a model becomes one plan when the
first value is needed. Draws come from `weft.random`, so values follow from the seed.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

from weft.autograd import no_grad
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import arange
from weft.core.tensor import Tensor
from weft.random.distributions import fill_orthogonal, fill_sparse, fill_truncated_normal
from weft.random.generator import Generator

_CONVOLUTIONS = [f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)]
_GAINS = {
    **dict.fromkeys(["linear", *_CONVOLUTIONS, "sigmoid"], 1.0),
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor on the standard deviation of weights that keeps the variance through a nonlinearity: 1 for linear
    functions and sigmoid, 5/3 for tanh, sqrt(2) for relu, sqrt(2 / (1 + slope^2)) for leaky_relu with the slope `param`
    (0.01), 3/4 for selu.

    >>> weft.nn.init.calculate_gain("leaky_relu", 1.0)
    1.0
    """
    if nonlinearity in _GAINS:
        return _GAINS[nonlinearity]
    if nonlinearity != "leaky_relu":
        expected = ", ".join([*_GAINS, "leaky_relu"])
        raise problem(RangeError, "calculate_gain", f"nonlinearity={nonlinearity!r}", f"one of {expected}")
    slope = 0.01 if param is None else param
    if isinstance(slope, bool) or not isinstance(slope, (int, float)):
        raise problem(RangeError, "calculate_gain", f"the slope {slope!r}", "a number")
    return math.sqrt(2.0 / (1.0 + slope**2))


# --- distributions ---------------------------------------------------------------------------------------------------


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform in [a, b).

    >>> w = weft.nn.init.uniform_(weft.empty(3, 5), -1.0, 1.0)
    >>> bool((w.abs() <= 1).all())
    True
    """
    with no_grad():
        return tensor.uniform_(a, b, generator=generator)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with this mean and standard deviation."""
    with no_grad():
        return tensor.normal_(mean, std, generator=generator)


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Normal with this mean and standard deviation, given that the value is in [a, b].

    >>> w = weft.nn.init.trunc_normal_(weft.empty(100), std=5.0)
    >>> bool((w.abs() <= 2).all())
    True
    """
    if not std > 0 or not a < b:
        raise problem(RangeError, "trunc_normal_", f"std={std}, a={a} and b={b}", "std > 0 and a < b")
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn("trunc_normal_: the mean is more than 2 std from [a, b]", stacklevel=2)
    with no_grad():
        return fill_truncated_normal(tensor, "trunc_normal_", generator, mean, std, a, b)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """`val` everywhere.

    >>> weft.nn.init.constant_(weft.empty(2), 0.3)
    tensor([0.3000, 0.3000])
    """
    with no_grad():
        return tensor.fill_(val)


def ones_(tensor: Tensor) -> Tensor:
    """1 everywhere."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """0 everywhere."""
    return constant_(tensor, 0.0)


# --- weights by the number of inputs and outputs ---------------------------------------------------------------------


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """How many inputs an output of a weight [out, in, *kernel] has, and how many outputs an input."""
    if tensor.ndim < 2:
        given = f"a tensor of shape {tensor.shape}"
        raise problem(ShapeError, "fan in and fan out", given, "at least two axes", "use uniform_ or normal_")
    outputs, inputs, *kernel = tensor.shape
    return inputs * math.prod(kernel), outputs * math.prod(kernel)


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    """The fan that `mode` names."""
    fans = dict(zip(("fan_in", "fan_out"), _calculate_fan_in_and_fan_out(tensor), strict=True))
    if mode.lower() not in fans:
        raise problem(RangeError, "kaiming", f"mode={mode!r}", "'fan_in' or 'fan_out'")
    return fans[mode.lower()]


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform with the variance gain^2 * 2 / (fan_in + fan_out) (Glorot and Bengio 2010): bounds sqrt(3) of its root.

    >>> w = weft.nn.init.xavier_uniform_(weft.empty(2, 4))
    >>> bool((w.abs() <= 1).all())
    True
    """
    bound = math.sqrt(3.0) * _xavier_std(tensor, gain)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with the variance gain^2 * 2 / (fan_in + fan_out)."""
    return normal_(tensor, 0.0, _xavier_std(tensor, gain), generator)


def _xavier_std(tensor: Tensor, gain: float) -> float:
    fans = sum(_calculate_fan_in_and_fan_out(tensor))
    if not fans:
        raise problem(ShapeError, "xavier", f"a tensor of shape {tensor.shape}", "at least one element")
    return gain * math.sqrt(2.0 / fans)


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Uniform with the variance gain^2 / fan (He et al. 2015), where `a` is the slope of leaky_relu: bounds sqrt(3) of
    its root. `mode` 'fan_in' keeps the variance forward, 'fan_out' backward.

    >>> w = weft.nn.init.kaiming_uniform_(weft.empty(2, 6), nonlinearity="relu")
    >>> bool((w.abs() <= 1).all())
    True
    """
    std = _kaiming_std(tensor, a, mode, nonlinearity)
    return tensor if std is None else uniform_(tensor, -math.sqrt(3.0) * std, math.sqrt(3.0) * std, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Normal with the variance gain^2 / fan; see `kaiming_uniform_`."""
    std = _kaiming_std(tensor, a, mode, nonlinearity)
    return tensor if std is None else normal_(tensor, 0.0, std, generator)


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float | None:
    """The standard deviation, None where there is nothing to initialise."""
    if 0 in tensor.shape:
        warnings.warn(f"kaiming: a tensor of shape {tensor.shape} has nothing to initialise", stacklevel=3)
        return None
    return calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))


# --- matrices of a form ----------------------------------------------------------------------------------------------


def eye_(tensor: Tensor) -> Tensor:
    """1 on the diagonal of a matrix, else 0: a linear layer that keeps its inputs.

    >>> weft.nn.init.eye_(weft.empty(2, 3))
    tensor([[1., 0., 0.],
            [0., 1., 0.]])
    """
    if tensor.ndim != 2:
        raise problem(ShapeError, "eye_", f"shape {tensor.shape}", "a matrix")
    with no_grad():
        return tensor.copy_(_diagonal(tensor, tensor.shape[0]))


def _diagonal(tensor: Tensor, period: int) -> Tensor:
    """True where the second index equals the first, which begins again after `period`: [out, in]."""
    outputs, inputs = (arange(extent, device=tensor.device) for extent in tensor.shape[:2])
    return outputs.unsqueeze(1) % max(period, 1) == inputs


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """1 in the middle of the kernel from input channel i to output channel i of every group, else 0: a convolution
    [out, in, *kernel] that keeps its inputs, as many channels as there are.

    >>> weft.nn.init.dirac_(weft.empty(1, 1, 3))
    tensor([[[0., 1., 0.]]])
    """
    if tensor.ndim not in (3, 4, 5):
        raise problem(ShapeError, "dirac_", f"shape {tensor.shape}", "3, 4 or 5 axes")
    outputs, _, *kernel = tensor.shape
    if groups < 1 or outputs % groups:
        raise problem(ShapeError, "dirac_", f"{outputs} output channels", f"a multiple of groups={groups}")
    middle = tuple(extent // 2 for extent in kernel)
    with no_grad():
        tensor.zero_()
        tensor[(slice(None), slice(None), *middle)] = _diagonal(tensor, outputs // groups)
    return tensor


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """`gain` times a matrix with orthonormal rows or columns, whichever are fewer, uniform among all such matrices
    (Saxe et al. 2013). Axes from the second on count as columns.

    >>> w = weft.nn.init.orthogonal_(weft.empty(3, 5))
    >>> bool(((w @ w.T - weft.eye(3)).abs() < 1e-5).all())
    True
    """
    if tensor.ndim < 2:
        raise problem(ShapeError, "orthogonal_", f"shape {tensor.shape}", "at least two axes")
    if 0 in tensor.shape:
        return tensor
    with no_grad():
        return fill_orthogonal(tensor, "orthogonal_", generator, float(gain))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Normal, and the fraction `sparsity` of every column of the matrix, rounded up, 0 (Martens 2010).

    >>> w = weft.nn.init.sparse_(weft.empty(10, 4), 0.35)
    >>> (w == 0).sum(0)
    tensor([4, 4, 4, 4])
    """
    if tensor.ndim != 2:
        raise problem(ShapeError, "sparse_", f"shape {tensor.shape}", "a matrix")
    with no_grad():
        return fill_sparse(tensor, "sparse_", generator, std, math.ceil(sparsity * tensor.shape[0]))


# --- names that PyTorch had before -----------------------------------------------------------------------------------


def _make_deprecated(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function under its older name, without the underscore."""
    new = function.__name__
    old = new[:-1]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        warnings.warn(f"nn.init.{old} is deprecated: use nn.init.{new}", FutureWarning, stacklevel=2)
        return function(*args, **kwargs)

    call.__name__, call.__doc__ = old, f"`{new}` under its older name."
    return call


uniform = _make_deprecated(uniform_)
normal = _make_deprecated(normal_)
constant = _make_deprecated(constant_)
eye = _make_deprecated(eye_)
dirac = _make_deprecated(dirac_)
xavier_uniform = _make_deprecated(xavier_uniform_)
xavier_normal = _make_deprecated(xavier_normal_)
kaiming_uniform = _make_deprecated(kaiming_uniform_)
kaiming_normal = _make_deprecated(kaiming_normal_)
orthogonal = _make_deprecated(orthogonal_)
sparse = _make_deprecated(sparse_)
