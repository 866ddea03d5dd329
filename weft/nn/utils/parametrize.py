"""Parametrizations: a parameter that is a function of other tensors, which are what an optimizer learns.

After `register_parametrization(layer, "weight", Symmetric())` the attribute `layer.weight` is Symmetric()(original),
computed whenever it is read, and `layer.parametrizations.weight.original` is the parameter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from weft.autograd import no_grad
from weft.base.errors import DTypeError, GraphError, ShapeError, problem
from weft.base.state import STATE
from weft.core.tensor import Tensor
from weft.nn.containers import ModuleDict, ModuleList
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.utils.computed import compute, need_shape, plain_class, rules, stop_computing

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "transfer_parametrizations_and_params",
    "type_before_parametrizations",
]


class _Cache:
    """Values inside `cached()`. They are kept only within the trace, or outside of traces, where the block began."""

    def __init__(self) -> None:
        self.depth, self.trace = 0, None
        self.values: dict[tuple[int, str], Tensor] = {}


_cache = _Cache()


@contextlib.contextmanager
def cached() -> Iterator[None]:
    """Inside the block every parametrized tensor is computed once, and then kept.

    >>> layer = weft.nn.utils.parametrizations.weight_norm(weft.nn.Linear(2, 2))
    >>> with weft.nn.utils.parametrize.cached():
    ...     layer.weight is layer.weight
    True
    """
    if not _cache.depth:
        _cache.trace = STATE.trace
    _cache.depth += 1
    try:
        yield
    finally:
        _cache.depth -= 1
        if not _cache.depth:
            _cache.values.clear()
            _cache.trace = None


class _Parametrized:
    """The rule of a parametrized attribute."""

    is_parametrization = True

    def __init__(self, name: str):
        self.name = name

    def value(self, module: Any) -> Tensor:
        if not _cache.depth or STATE.trace is not _cache.trace:
            return module.parametrizations[self.name]()
        key = (id(module), self.name)
        if key not in _cache.values:
            _cache.values[key] = module.parametrizations[self.name]()
        return _cache.values[key]

    def assign(self, module: Any, value: Tensor) -> None:
        module.parametrizations[self.name].right_inverse(value)


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, in order, and the tensors that it is computed from: `original`, or
    `original0`, `original1`, ... where the first parametrization takes several."""

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False):
        if not modules:
            raise problem(ShapeError, "ParametrizationList", "no modules", "at least one")
        super().__init__(modules)
        self.unsafe = unsafe
        form = (original.shape, original.dtype)
        new = self._invert(original)
        self.is_tensor = isinstance(new, Tensor)
        self.ntensors = 1 if self.is_tensor else len(_as_sequence(new))
        if self.is_tensor:
            _register(self, "original", _with_value(original, new))
        else:
            for number, one in enumerate(new):
                value = one.detach()
                if isinstance(original, Parameter):
                    value = Parameter(value, original.requires_grad)
                _register(self, f"original{number}", value)
        if not unsafe:
            _check_form("register_parametrization", self(), *form)

    @no_grad()
    def _invert(self, original: Tensor) -> Any:
        """What the parametrizations that can be inverted are to be computed from, so that the result is `original`."""
        new: Any = original
        for module in reversed(list(self)):
            if hasattr(module, "right_inverse"):
                with contextlib.suppress(NotImplementedError):
                    new = module.right_inverse(new)
        return new

    def _originals(self) -> list[Tensor]:
        if self.is_tensor:
            return [self.original]
        return [getattr(self, f"original{number}") for number in range(self.ntensors)]

    def forward(self) -> Tensor:
        first, *others = self
        value = first(*self._originals())
        for module in others:
            value = module(value)
        return value

    def right_inverse(self, value: Tensor) -> None:
        """Make the originals such that the parametrized tensor is `value`, by the parametrizations' `right_inverse`."""
        with no_grad():
            new: Any = value
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    given = f"{type(module).__name__}, which has no right_inverse"
                    raise problem(GraphError, "right_inverse", given, "one", "assign to the original instead")
                new = module.right_inverse(new)
            news = [new] if self.is_tensor else _as_sequence(new)
            if len(news) != self.ntensors:
                raise problem(ShapeError, "right_inverse", f"{len(news)} tensors", f"{self.ntensors}")
            for original, one in zip(self._originals(), news, strict=True):
                if not isinstance(one, Tensor) or one.dtype != original.dtype:
                    given = one.dtype.name if isinstance(one, Tensor) else f"a {type(one).__name__}"
                    raise problem(DTypeError, "right_inverse", given, f"a tensor of {original.dtype.name}")
                _with_value(original, one)


def _as_sequence(value: Any) -> Sequence[Tensor]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, Tensor) for one in value):
        raise problem(DTypeError, "right_inverse", f"a {type(value).__name__}", "a tensor, or a tuple of tensors")
    return value


def _with_value(tensor: Tensor, value: Tensor) -> Tensor:
    """`tensor`, which keeps its identity, with another value, of another shape perhaps."""
    if value is not tensor:
        if value.dtype != tensor.dtype:
            given = f"{value.dtype.name} from right_inverse"
            raise problem(DTypeError, "register_parametrization", given, f"{tensor.dtype.name}, as the original")
        with no_grad():
            tensor._assign(value.detach().clone().node)
    return tensor


def _register(module: Module, name: str, value: Tensor) -> None:
    if isinstance(value, Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


def _check_form(who: str, value: Any, shape: Any, dtype: Any) -> None:
    if not isinstance(value, Tensor):
        raise problem(DTypeError, who, f"a parametrization with result {type(value).__name__}", "a tensor")
    if (tuple(value.shape), value.dtype) != (tuple(shape), dtype):
        given = f"a parametrization with result {value.dtype.name}{list(value.shape)}"
        raise problem(ShapeError, who, given, f"{dtype.name}{list(shape)}", "pass unsafe=True if that is meant")


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Let `parametrization` compute the parameter or buffer `tensor_name` of a module from what it was; returns the
    module. A tensor may have several parametrizations, the first registered first. `right_inverse(value)` of a
    parametrization, if it has one, gives the original, or a tuple of originals, for a value. Shape and dtype must
    stay, unless `unsafe`.

    >>> class Symmetric(weft.nn.Module):
    ...     def forward(self, x):
    ...         return x.triu() + x.triu(1).T
    >>> layer = weft.nn.Linear(3, 3)
    >>> weft.nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    ParametrizedLinear(
      in_features=3, out_features=3, bias=True
      (parametrizations): ModuleDict(
        (weight): ParametrizationList(
          (0): Symmetric()
        )
      )
    )
    >>> bool((layer.weight == layer.weight.T).all()), [name for name, _ in layer.named_parameters()]
    (True, ['bias', 'parametrizations.weight.original'])
    """
    who = "register_parametrization"
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        known: Any = module.parametrizations[tensor_name]
        if not unsafe:
            present = getattr(module, tensor_name)
            value = parametrization(present)
            _check_form(who, value, present.shape, present.dtype)
            if hasattr(parametrization, "right_inverse"):
                with contextlib.suppress(NotImplementedError):
                    _check_form(who, parametrization.right_inverse(value), present.shape, present.dtype)
        known.append(parametrization)
        known.unsafe = known.unsafe or unsafe
        return module
    original: Tensor | None = module._parameters.get(tensor_name)
    original = module._buffers.get(tensor_name) if original is None else original
    if original is None:
        given = f"{tensor_name!r}, which {type(module).__name__} does not have"
        raise problem(GraphError, who, given, "the name of a parameter or buffer")
    need_shape(who, module, tensor_name, original)
    made = ParametrizationList([parametrization], original, unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        module.parametrizations = ModuleDict()
    module.parametrizations[tensor_name] = made
    compute(module, tensor_name, _Parametrized(tensor_name))
    return module


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a module has parametrizations, or one of that tensor.

    >>> weft.nn.utils.parametrize.is_parametrized(weft.nn.Linear(2, 2))
    False
    """
    found = [name for name, rule in rules(module).items() if rule.is_parametrization]
    return bool(found) if tensor_name is None else tensor_name in found


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make `tensor_name` a plain parameter again: with its present value, or with the original's.

    >>> layer = weft.nn.utils.parametrizations.weight_norm(weft.nn.Linear(2, 2))
    >>> weft.nn.utils.parametrize.remove_parametrizations(layer, "weight")
    Linear(in_features=2, out_features=2, bias=True)
    """
    who = "remove_parametrizations"
    if not is_parametrized(module, tensor_name):
        given = f"{tensor_name!r} of {type(module).__name__}, which has no parametrization"
        raise problem(GraphError, who, given, "a parametrized tensor")
    known: Any = module.parametrizations[tensor_name]
    if not known.is_tensor and not leave_parametrized:
        raise problem(GraphError, who, "leave_parametrized=False with several originals", "one original")
    value = getattr(module, tensor_name)
    if known.is_tensor:
        tensor = known.original
        if leave_parametrized:
            _with_value(tensor, value)
    else:
        tensor = Parameter(value.detach()) if value.requires_grad else value.detach()
    stop_computing(module, tensor_name)
    del module.parametrizations[tensor_name]
    if not is_parametrized(module):
        del module.parametrizations
    _register(module, tensor_name, tensor)
    return module


def type_before_parametrizations(module: Module) -> type:
    """The class of a module without its parametrizations."""
    return plain_class(module)


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Give `to_module` the parametrizations of `from_module`, of one tensor or of all, and their originals."""
    import copy

    if not is_parametrized(from_module):
        return to_module
    for name in [tensor_name] if tensor_name is not None else list(from_module.parametrizations):
        source: Any = from_module.parametrizations[name]
        if not hasattr(to_module, name):
            value = getattr(from_module, name).detach().clone()
            _register(to_module, name, Parameter(value) if getattr(from_module, name).requires_grad else value)
        for parametrization in source:
            register_parametrization(to_module, name, parametrization, unsafe=source.unsafe)
        target: Any = to_module.parametrizations[name]
        for original, theirs in zip(target._originals(), source._originals(), strict=True):
            _with_value(original, copy.deepcopy(theirs))
    return to_module
