"""Attributes of a module: parameters, buffers and submodules are registered where they are assigned.

While a function is traced, its modules are noted and buffers are replaced only when it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.base.errors import DTypeError, GraphError, ShapeError, problem
from weft.base.state import MODULES, STATE
from weft.core.tensor import Tensor
from weft.nn.module.registered import Registered
from weft.nn.parameter import Buffer, Parameter

if TYPE_CHECKING:
    from weft.nn.module.module import Module

_NOTHING = object()


class ModuleAttributes:
    """The attributes of `Module`, and what registers them."""

    _parameters: Registered[Parameter | None]
    _buffers: Registered[Tensor | None]
    _modules: Registered[Any]  # modules, or None
    _non_persistent: frozenset[str]
    _training: bool

    def __getattr__(self, name: str) -> Any:
        space = self.__dict__
        for kind in ("_parameters", "_buffers", "_modules"):
            found = space.get(kind)
            if found is not None and name in found:
                value = found[name]
                trace = STATE.trace
                if trace is not None:
                    trace.modules[id(self)] = self
                    if kind == "_modules" and value is not None:
                        trace.modules[id(value)] = value
                return value
        if name == "checkpoint":
            return False
        if "_modules" not in space and name in ("_parameters", "_buffers", "_modules", "_training", "_non_persistent"):
            who = type(self).__name__
            raise AttributeError(f"{who}: call super().__init__() before the module is used")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        space = self.__dict__
        if space.get(name, _NOTHING) is not value:
            MODULES.bump()
        if isinstance(value, Parameter):
            self._need_init("parameters")
            self._forget(name, "_parameters")
            self.register_parameter(name, value)
        elif isinstance(value, Buffer) and not (STATE.trace is not None and name in space.get("_buffers", ())):
            self._need_init("buffers")
            self._forget(name, "_buffers")
            self.register_buffer(name, value, value.persistent)
        elif isinstance(value, ModuleAttributes):
            self._need_init("submodules")
            self._forget(name, "_modules")
            self._modules[name] = value
        elif "_parameters" in space and name in self._parameters:
            if value is not None:
                given = f"a {type(value).__name__} for the parameter {name!r}"
                raise problem(DTypeError, type(self).__name__, given, "a Parameter or None", "use nn.Parameter(value)")
            self._parameters[name] = None
        elif "_modules" in space and name in self._modules:
            if value is not None:
                given = f"a {type(value).__name__} for the submodule {name!r}"
                raise problem(DTypeError, type(self).__name__, given, "a Module or None", "delete the attribute first")
            self._modules[name] = None
        elif "_buffers" in space and name in self._buffers:
            self._set_buffer(name, value)
        else:
            if STATE.trace is not None:
                STATE.trace.note_write(self, name)
            object.__setattr__(self, name, value)

    def _need_init(self, what: str) -> None:
        if "_modules" not in self.__dict__:
            raise AttributeError(f"cannot assign {what} before super().__init__() of {type(self).__name__}")

    def _forget(self, name: str, kind: str) -> None:
        """Take an attribute away from where it lies, if that is not `kind`."""
        self.__dict__.pop(name, None)
        for other in ("_parameters", "_buffers", "_modules"):
            if other != kind:
                self.__dict__[other].pop(name, None)

    def _set_buffer(self, name: str, value: Any) -> None:
        """Assign a buffer. A compiled function writes the buffer in place when it ends; until then it reads the new
        value, and what it has read before stays what it was."""
        if value is not None and not isinstance(value, Tensor):
            given = f"a {type(value).__name__} for the buffer {name!r}"
            raise problem(DTypeError, type(self).__name__, given, "a Tensor or None", "use weft.tensor(value)")
        trace = STATE.trace
        old = self._buffers[name] if trace is None else trace.first_buffer(self._buffers, name)
        if trace is not None and (old is None or not trace.is_made(old)):
            trace.modules[id(self)] = self
            if old is not None and value is not None and (value.shape, value.dtype) != (old.shape, old.dtype):
                given = f"{value.dtype.name}{list(value.shape)} for the buffer {name!r} inside {trace.where}"
                expected = f"what it holds, {old.dtype.name}{list(old.shape)}"
                raise problem(ShapeError, type(self).__name__, given, expected, "assign it outside, or cast it")
            trace.replace_buffer(self._buffers, name, value)
            return
        self._buffers[name] = value

    def __delattr__(self, name: str) -> None:
        self._need_init("or delete anything")
        MODULES.bump()
        for kind in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__[kind]:
                del self.__dict__[kind][name]
                self.__dict__["_non_persistent"] -= {name}
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._parameters, *self._buffers, *self._modules})

    @property
    def training(self) -> bool:
        """Whether the module is in training mode; `train()` and `eval()` set it for all submodules, too."""
        trace = STATE.trace
        if trace is not None:
            trace.modules[id(self)] = self
            trace.training_read.add(id(self))
        return self.__dict__.get("_training", True)

    @training.setter
    def training(self, mode: bool) -> None:
        if self.__dict__.get("_training") is not mode:
            self.__dict__["_training"] = mode
            MODULES.bump()

    # ---- registration ----------------------------------------------------------------------------------------------

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Make `param` the parameter called `name`; None reserves the name."""
        self._check_name(name, "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise problem(DTypeError, "register_parameter", f"a {type(param).__name__}", "a Parameter or None")
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Make `tensor` the buffer called `name`: state that is no parameter. Buffers that are not persistent stay out
        of `state_dict()`."""
        self._check_name(name, "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise problem(DTypeError, "register_buffer", f"a {type(tensor).__name__}", "a tensor or None")
        self._buffers[name] = tensor
        self.__dict__["_non_persistent"] = (
            self._non_persistent - {name} if persistent else self._non_persistent | {name}
        )

    def register_module(self, name: str, module: Module | None) -> None:
        """The same as `add_module`."""
        self.add_module(name, module)

    def add_module(self, name: str, module: Module | None) -> None:
        """Make `module` the submodule called `name`."""
        self._check_name(name, "_modules")
        if module is not None and not isinstance(module, ModuleAttributes):
            raise problem(DTypeError, "add_module", f"a {type(module).__name__}", "a Module or None")
        self._modules[name] = module

    def _check_name(self, name: str, kind: str) -> None:
        who = type(self).__name__
        self._need_init("anything")
        if not isinstance(name, str):
            raise problem(DTypeError, who, f"a name of type {type(name).__name__}", "a string")
        if not name or "." in name:
            raise problem(GraphError, who, f"the name {name!r}", "a name that is not empty and has no '.'")
        if name not in self.__dict__[kind] and hasattr(self, name):
            raise problem(GraphError, who, f"the name {name!r}", "one that no other attribute has", "choose another")
