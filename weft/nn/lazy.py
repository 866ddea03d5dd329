"""Lazy modules: those that learn the sizes of their parameters from the first input, as in PyTorch.

A lazy class is `class LazyLinear(LazyModuleMixin, Linear)` with `cls_to_become = Linear`: its constructor makes an
`UninitializedParameter` for every parameter, `initialize_parameters(input)` gives them their shapes. The first call
does that, before all hooks, and then the module is one of the plain class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.base.errors import GraphError, ShapeError, WeftError, problem
from weft.base.state import MODULES, STATE
from weft.nn.module import Module, symbolic
from weft.nn.module.loading import as_value
from weft.nn.module.paths import add_path
from weft.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

__all__ = ["LazyModuleMixin", "UninitializedBuffer", "UninitializedParameter", "is_lazy"]

if TYPE_CHECKING:
    _Base = Module
else:
    _Base = object


class LazyModuleMixin(_Base):
    """Base of lazy modules, named before the class that they become.

    >>> layer = weft.nn.LazyLinear(2)
    >>> layer.weight
    <UninitializedParameter>
    >>> layer(weft.ones(5, 3)).shape
    (5, 2)
    >>> layer
    Linear(in_features=3, out_features=2, bias=True)
    """

    cls_to_become: type[Module] | None = None

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.register_load_state_dict_pre_hook(_materialize_for)

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Give all parameters the shapes that follow from the arguments of the first call, and values."""
        raise NotImplementedError(f"{type(self).__name__} has no initialize_parameters()")

    def has_uninitialized_params(self) -> bool:
        """Whether a parameter or buffer of this module has no shape yet."""
        return any(is_lazy(value) for value in (*self._parameters.values(), *self._buffers.values()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if symbolic.in_use and symbolic.has_symbol(args, kwargs):
            return symbolic.call(self, args, kwargs)
        try:
            if not self.__dict__.get("_is_initialized"):
                self._infer(args, kwargs)
        except WeftError as error:
            add_path(error, self)
            raise
        return Module.__call__(self, *args, **kwargs)

    def _infer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loaded = self.__dict__.get("_loaded", [])
        if loaded and self.has_uninitialized_params():
            given, fix = (
                f"values for {', '.join(loaded)} only by load_state_dict",
                "call the module before, or load all",
            )
            raise problem(GraphError, type(self).__name__, given, "values for all parameters, or none", fix)
        # While a function is traced, parameters are made beside the trace: they are state that outlives it.
        trace, STATE.trace = STATE.trace, None
        try:
            self.initialize_parameters(*args, **kwargs)
        finally:
            STATE.trace = trace
        if self.has_uninitialized_params():
            given = "parameters without a shape after initialize_parameters()"
            raise problem(GraphError, type(self).__name__, given, "none", "materialize all of them there")
        _clean_up(self)
        if self.cls_to_become is None:
            self.__dict__["_is_initialized"] = True
        else:
            object.__setattr__(self, "__class__", self.cls_to_become)  # state that outlives a trace, too
            MODULES.bump()


def infer_size(module: Module, name: str, given: int, weight: Any, axis: int) -> None:
    """Set the attribute `name` (such as in_features), which is 0 before the first call, to the extent of the input,
    and check it against parameters that were loaded before."""
    if not is_lazy(weight) and weight.shape[axis] != given:
        expected = f"{name}={weight.shape[axis]}, as in the weights that were loaded"
        raise problem(ShapeError, type(module).__name__, f"an input with {name}={given}", expected)
    setattr(module, name, given)


def _materialize_for(module: Any, state: Any, prefix: str, *_: Any) -> None:
    """Before a state_dict is loaded: give parameters the shapes of what is to be loaded."""
    for name, value in [*module._parameters.items(), *module._buffers.items()]:
        key = prefix + name
        if is_lazy(value) and key in state and not is_lazy(state[key]):
            value.materialize(tuple(as_value(state[key]).shape))
            module.__dict__.setdefault("_loaded", []).append(name)


def _clean_up(module: Module) -> None:
    """Take away what only a lazy module has."""
    module.__dict__.pop("_loaded", None)
    kept = tuple(hook for hook in module._state_hooks if hook[2] is not _materialize_for)
    module.__dict__["_state_hooks"] = kept
