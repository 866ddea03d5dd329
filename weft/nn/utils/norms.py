"""Weight and spectral normalization in PyTorch's older form: parameters `weight_g`, `weight_v` or `weight_orig` beside
the module's others. `parametrizations` has the newer one.

The weight is computed whenever it is read (`nn.utils.computed`), so it never lags behind an optimizer's update.
"""

from __future__ import annotations

import abc
from typing import Any, TypeVar

from weft.autograd import no_grad
from weft.base.errors import GraphError, RangeError, problem
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.utils.computed import compute, need_shape, rules, stop_computing
from weft.nn.utils.parametrizations import default_dim, norm_except, rows_first, scale_to_norm
from weft.random.generator import randn

Made = TypeVar("Made", bound=Module)


class _Norm(abc.ABC):
    """A weight that is computed from parameters with longer names."""

    is_parametrization = False
    parts: tuple[str, ...]  # what the names of its tensors end in

    def __init__(self, name: str):
        self.name = name

    def part(self, module: Any, ending: str) -> Tensor:
        return getattr(module, f"{self.name}_{ending}")

    @abc.abstractmethod
    def value(self, module: Any) -> Tensor:
        """The weight."""

    def assign(self, module: Any, value: Any) -> None:
        given = f"a value for {self.name!r}, which is computed from {', '.join(f'{self.name}_{p}' for p in self.parts)}"
        raise problem(GraphError, type(module).__name__, given, "values for those", "assign to them")

    def remove(self, module: Module) -> None:
        with no_grad():
            value = self.value(module)
        stop_computing(module, self.name)
        for ending in self.parts:
            delattr(module, f"{self.name}_{ending}")
        module.register_parameter(self.name, Parameter(value))


def _parameter(who: str, module: Module, name: str) -> Parameter:
    if name in rules(module):
        raise problem(GraphError, who, f"{name!r}, which is computed already", "a plain parameter")
    param = module._parameters.get(name)
    if param is None:
        given = f"{name!r}, which {type(module).__name__} does not have"
        raise problem(GraphError, who, given, "the name of a parameter")
    need_shape(who, module, name, param)
    return param


def _remove(who: str, module: Made, name: str, kind: type[_Norm]) -> Made:
    rule: Any = rules(module).get(name)
    if not isinstance(rule, kind):
        raise problem(GraphError, who, f"{name!r} of {type(module).__name__}", "a weight that is normalized")
    rule.remove(module)
    return module


class _WeightNorm(_Norm):
    parts = ("g", "v")

    def __init__(self, name: str, dim: int):
        super().__init__(name)
        self.dim = dim

    def value(self, module: Any) -> Tensor:
        return scale_to_norm(self.part(module, "g"), self.part(module, "v"), self.dim)


def weight_norm(module: Made, name: str = "weight", dim: int | None = 0) -> Made:
    """Let a weight of `module` be g v / |v| with the parameters `weight_g` and `weight_v`; the norm is that of each
    slice along `dim`, or of all with None.

    Salimans & Kingma, Weight normalization (2016).

    >>> layer = weft.nn.utils.weight_norm(weft.nn.Linear(4, 6))
    >>> [name for name, _ in layer.named_parameters()]
    ['bias', 'weight_g', 'weight_v']
    """
    weight = _parameter("weight_norm", module, name)
    rule = _WeightNorm(name, -1 if dim is None else dim)
    with no_grad():
        length = norm_except(weight, rule.dim)
    delattr(module, name)
    module.register_parameter(f"{name}_g", Parameter(length))
    module.register_parameter(f"{name}_v", Parameter(weight.detach()))
    compute(module, name, rule)
    return module


def remove_weight_norm(module: Made, name: str = "weight") -> Made:
    """Make the weight a plain parameter again, with its present value."""
    return _remove("remove_weight_norm", module, name, _WeightNorm)


class _SpectralNorm(_Norm):
    parts = ("u", "v", "orig")

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float):
        super().__init__(name)
        self.n_power_iterations, self.dim, self.eps = n_power_iterations, dim, eps

    def value(self, module: Any) -> Tensor:
        weight = self.part(module, "orig")
        u, v = self.part(module, "u").detach(), self.part(module, "v").detach()
        return weight / (u @ (rows_first(weight, self.dim) @ v))

    def __call__(self, module: Any, args: Any) -> None:
        """Before every call in training: iterate."""
        if module.training:
            with no_grad():
                matrix = rows_first(self.part(module, "orig"), self.dim)
                u, v = self.part(module, "u"), self.part(module, "v")
                new_u, new_v = u, v
                for _ in range(self.n_power_iterations):
                    new_v = F.normalize(matrix.mT @ new_u, dim=0, eps=self.eps)
                    new_u = F.normalize(matrix @ new_v, dim=0, eps=self.eps)
                u.copy_(new_u)
                v.copy_(new_v)

    def remove(self, module: Module) -> None:
        super().remove(module)
        for hook in module._hooks:
            if hook.function is self:
                from weft.nn.module.hooks import ModuleHandle

                ModuleHandle(module, hook.number).remove()


def spectral_norm(
    module: Made, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Made:
    """Let a weight of `module` be W / σ with the parameter `weight_orig` and the buffers `weight_u` and `weight_v`;
    every call in training makes `n_power_iterations`. See `nn.SpectralNorm`.

    >>> layer = weft.nn.utils.spectral_norm(weft.nn.Linear(4, 6))
    >>> list(layer.state_dict())
    ['bias', 'weight_orig', 'weight_u', 'weight_v']
    """
    weight = _parameter("spectral_norm", module, name)
    if n_power_iterations < 1:
        given = f"n_power_iterations={n_power_iterations}"
        raise problem(RangeError, "spectral_norm", given, "a whole number above 0")
    rule = _SpectralNorm(name, n_power_iterations, default_dim(module) if dim is None else dim, eps)
    sizes = rows_first(weight.detach(), rule.dim).shape
    delattr(module, name)
    module.register_parameter(f"{name}_orig", weight)
    for ending, size in zip(("u", "v"), sizes, strict=True):
        start = randn(size, dtype=weight.dtype, device=weight.device)
        module.register_buffer(f"{name}_{ending}", F.normalize(start, dim=0, eps=eps))
    compute(module, name, rule)
    module.register_forward_pre_hook(rule)
    return module


def remove_spectral_norm(module: Made, name: str = "weight") -> Made:
    """Make the weight a plain parameter again, with its present value."""
    return _remove("remove_spectral_norm", module, name, _SpectralNorm)
