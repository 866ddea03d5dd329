"""Activations: functions of one element each, as layers.

Shape of all but GLU: input [*], output the same. They have torch's arguments; `inplace=True` writes the result into the
input. NaN stays NaN.
"""

from __future__ import annotations

from typing import Any

from weft.base.errors import RangeError, problem
from weft.core.creation import full
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer


class _InPlace(Module):
    """Base of activations whose only argument is `inplace`."""

    def __init__(self, inplace: bool = False):
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class _Numbers(Module):
    """Base of activations with numbers: `repr` shows the attributes that `_shown` names."""

    _shown: tuple[str, ...] = ()
    inplace = False

    def extra_repr(self) -> str:
        shown = [f"{name}={getattr(self, name)!r}" for name in self._shown]
        return ", ".join([*shown, "inplace=True"] if self.inplace else shown)


@layer(learns="-")
class ReLU(_InPlace):
    """y = max(x, 0), with slope 0 at 0 (Nair & Hinton 2010).

    >>> weft.nn.ReLU()(weft.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 0., 2.])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(input, inplace=self.inplace)


@layer(learns="-")
class ReLU6(_InPlace):
    """y = min(max(x, 0), 6) (Howard et al. 2017).

    >>> weft.nn.ReLU6()(weft.tensor([-1.0, 2.0, 8.0]))
    tensor([0., 2., 6.])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.relu6(input, inplace=self.inplace)


@layer(learns="-")
class LeakyReLU(_Numbers):
    """y = x above 0, negative_slope · x below (Maas et al. 2013).

    >>> weft.nn.LeakyReLU(0.5)(weft.tensor([-1.0, 2.0]))
    tensor([-0.5000,  2.0000])
    """

    _shown = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False):
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.leaky_relu(input, self.negative_slope, inplace=self.inplace)


@layer(learns="G")
class PReLU(Module):
    """y = x above 0, a · x below; the slopes `a` are learned (He et al. 2015).

    Shape: input [B, C, *], output the same; weight [num_parameters]: one slope for all, or one for each channel C. They
    start as `init`.

    >>> weft.nn.PReLU(2)(weft.tensor([[-1.0, 2.0]]))
    tensor([[-0.2500,  2.0000]], requires_grad=True)
    """

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None):
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(full((num_parameters,), init, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Set the slopes to `init`."""
        init.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


@layer(learns="-", oracle="torch.nn.RReLU in eval mode; the range and the mean of the slopes while training")
class RReLU(_Numbers):
    """y = x above 0, a · x below: while training, `a` is uniform in [lower, upper) for each element; in eval mode it is
    (lower + upper) / 2 (Xu et al. 2015).

    >>> weft.nn.RReLU(0.25, 0.75).eval()(weft.tensor([-1.0, 2.0]))
    tensor([-0.5000,  2.0000])
    """

    _shown = ("lower", "upper")

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False):
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)


@layer(learns="-")
class ELU(_Numbers):
    """y = x above 0, alpha · (eˣ - 1) below (Clevert et al. 2016).

    >>> weft.nn.ELU()(weft.tensor([-1.0, 2.0]))
    tensor([-0.6321,  2.0000])
    """

    _shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.elu(input, self.alpha, inplace=self.inplace)


@layer(learns="-")
class CELU(_Numbers):
    """y = x above 0, alpha · (e^(x / alpha) - 1) below: slope 1 at 0 for every alpha (Barron 2017).

    >>> weft.nn.CELU(0.5)(weft.tensor([-1.0, 2.0]))
    tensor([-0.4323,  2.0000])
    """

    _shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.celu(input, self.alpha, inplace=self.inplace)


@layer(learns="-")
class SELU(_InPlace):
    """y = s · (x above 0, a · (eˣ - 1) below) with a = 1.67326..., s = 1.05070..., which keep mean 0 and variance 1
    from layer to layer (Klambauer et al. 2017).

    >>> weft.nn.SELU()(weft.tensor([-1.0, 2.0]))
    tensor([-1.1113,  2.1014])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.selu(input, inplace=self.inplace)


@layer(learns="-")
class GELU(_Numbers):
    """y = x · Φ(x), Φ the normal distribution function; approximate='tanh' computes
    0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))) (Hendrycks & Gimpel 2016).

    >>> weft.nn.GELU()(weft.tensor([-1.0, 2.0]))
    tensor([-0.1587,  1.9545])
    """

    _shown = ("approximate",)

    def __init__(self, approximate: str = "none"):
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        return F.gelu(input, self.approximate)


@layer(aliases=("Swish",), learns="-")
class SiLU(_InPlace):
    """y = x · sigmoid(x), also called swish (Elfwing et al. 2018, Ramachandran et al. 2017).

    >>> weft.nn.SiLU()(weft.tensor([-1.0, 2.0]))
    tensor([-0.2689,  1.7616])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.silu(input, inplace=self.inplace)


Swish = SiLU


@layer(learns="-")
class Mish(_InPlace):
    """y = x · tanh(log(1 + eˣ)) (Misra 2019).

    >>> weft.nn.Mish()(weft.tensor([-1.0, 2.0]))
    tensor([-0.3034,  1.9440])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.mish(input, inplace=self.inplace)


@layer(learns="-")
class Softplus(_Numbers):
    """y = log(1 + e^(beta x)) / beta; x itself where beta x > threshold (Dugas et al. 2001).

    >>> weft.nn.Softplus()(weft.tensor([-1.0, 2.0]))
    tensor([0.3133, 2.1269])
    """

    _shown = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0):
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, input: Tensor) -> Tensor:
        return F.softplus(input, self.beta, self.threshold)


@layer(learns="-")
class Softshrink(Module):
    """y = x - lambd above lambd, x + lambd below -lambd, 0 between: what minimises (x - y)² / 2 + lambd |y|
    (Donoho 1995).

    >>> weft.nn.Softshrink()(weft.tensor([-1.0, 0.2, 2.0]))
    tensor([-0.5000,  0.0000,  1.5000])
    """

    def __init__(self, lambd: float = 0.5):
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        return F.softshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return f"{self.lambd}"


@layer(learns="-")
class Hardshrink(Module):
    """y = x where |x| > lambd, else 0.

    >>> weft.nn.Hardshrink()(weft.tensor([-1.0, 0.2, 2.0]))
    tensor([-1.,  0.,  2.])
    """

    def __init__(self, lambd: float = 0.5):
        super().__init__()
        self.lambd = lambd

    def forward(self, input: Tensor) -> Tensor:
        return F.hardshrink(input, self.lambd)

    def extra_repr(self) -> str:
        return f"{self.lambd}"


@layer(learns="-")
class Hardsigmoid(_InPlace):
    """y = min(max(x + 3, 0), 6) / 6.

    >>> weft.nn.Hardsigmoid()(weft.tensor([-4.0, 0.0, 4.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.hardsigmoid(input, inplace=self.inplace)


@layer(learns="-")
class Hardswish(_InPlace):
    """y = x · min(max(x + 3, 0), 6) / 6 (Howard et al. 2019).

    >>> weft.nn.Hardswish()(weft.tensor([-1.0, 1.0, 4.0]))
    tensor([-0.3333,  0.6667,  4.0000])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.hardswish(input, inplace=self.inplace)


@layer(learns="-")
class Hardtanh(_Numbers):
    """y = min(max(x, min_val), max_val).

    >>> weft.nn.Hardtanh()(weft.tensor([-4.0, 0.5, 4.0]))
    tensor([-1.0000,  0.5000,  1.0000])
    """

    _shown = ("min_val", "max_val")

    def __init__(
        self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False,
        min_value: float | None = None, max_value: float | None = None,
    ):  # fmt: skip
        super().__init__()
        min_val = min_val if min_value is None else min_value  # torch's old names
        max_val = max_val if max_value is None else max_value
        if not min_val < max_val:
            given = f"min_val={min_val!r} and max_val={max_val!r}"
            raise problem(RangeError, "Hardtanh", given, "min_val < max_val")
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.hardtanh(input, self.min_val, self.max_val, inplace=self.inplace)


@layer(learns="-")
class Tanh(Module):
    """y = tanh(x) = (eˣ - e⁻ˣ) / (eˣ + e⁻ˣ).

    >>> weft.nn.Tanh()(weft.tensor([-1.0, 2.0]))
    tensor([-0.7616,  0.9640])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.tanh(input)


@layer(learns="-")
class Tanhshrink(Module):
    """y = x - tanh(x).

    >>> weft.nn.Tanhshrink()(weft.tensor([-1.0, 2.0]))
    tensor([-0.2384,  1.0360])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.tanhshrink(input)


@layer(learns="-")
class Sigmoid(Module):
    """y = 1 / (1 + e⁻ˣ).

    >>> weft.nn.Sigmoid()(weft.tensor([-1.0, 2.0]))
    tensor([0.2689, 0.8808])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.sigmoid(input)


@layer(learns="-")
class LogSigmoid(Module):
    """y = log(1 / (1 + e⁻ˣ)), without overflow.

    >>> weft.nn.LogSigmoid()(weft.tensor([-100.0, 2.0]))
    tensor([-100.0000,   -0.1269])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.logsigmoid(input)


@layer(learns="-")
class Softsign(Module):
    """y = x / (1 + |x|).

    >>> weft.nn.Softsign()(weft.tensor([-1.0, 3.0]))
    tensor([-0.5000,  0.7500])
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.softsign(input)


@layer(learns="-")
class Threshold(_Numbers):
    """y = x above `threshold`, otherwise `value`.

    >>> weft.nn.Threshold(0.5, -1.0)(weft.tensor([0.0, 3.0]))
    tensor([-1.,  3.])
    """

    _shown = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False):
        super().__init__()
        self.threshold, self.value, self.inplace = threshold, value, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.threshold(input, self.threshold, self.value, inplace=self.inplace)


@layer(learns="-")
class GLU(_Numbers):
    """y = a · sigmoid(b), with a and b the halves of x along `dim` (Dauphin et al. 2017).

    Shape: input [*, 2n, *], output [*, n, *].

    >>> weft.nn.GLU()(weft.tensor([3.0, 0.0]))
    tensor([1.5000])
    """

    _shown = ("dim",)

    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.glu(input, self.dim)
