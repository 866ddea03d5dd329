"""Where calls of the user enter Weft: an error that Weft raises on purpose leaves there without Weft's own frames.

`install` wraps the functions that the public namespaces of `import weft` show, and the methods of their classes, once;
files that are loaded later have `@entry_point` on theirs. A wrapper costs nothing but a call; operations on tensors
(`lift.lift`) and compiled functions do the same in their own frame and cost nothing at all. Frames of the user's own
functions that Weft called (inside `weft.compile`, in a `Function`, in a loop) stay. Any other exception, such as a bug
of Weft's, keeps all of its frames, and so does every error under `WEFT_TRACEBACK=full`.
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from weft.base.errors import WeftError, hide_frames

Public = TypeVar("Public", bound=Callable[..., Any])

# Namespaces that users call functions of: those in `__all__`, else a package's public functions, or those that a module
# defines. The functions are replaced where they are defined, too.
NAMESPACES = (
    "", "autograd", "cuda", "linalg", "names.functions", "nn.functional", "random", "signal.windows", "testing",
)  # fmt: skip
# Classes whose public methods users call.
CLASSES = {
    "core.tensor": ("Tensor",),
    "core.attributes": ("TensorAttributes",),
    "core.cell": ("TensorCell",),
    "jit.compiled": ("Compiled",),
    "autograd.function": ("Context", "Function"),
    "functional.custom_kernel": ("Kernel", "_Decorator"),
    "core.device": ("DeviceType",),
    "random.generator": ("Generator",),
    "core.autocast": ("autocast",),
}
# Methods that do it themselves, that the user's class defines, or that no error of ours can come from.
LEFT_OUT = {
    "Tensor": {"__init__", "__hash__"},
    "TensorCell": {"__init__", "dim", "numel", "size"},
    "Compiled": {"__init__", "__call__"},
    "Function": {"forward", "backward"},
    "_Decorator": {"__getattr__", "__dir__"},
    "Generator": {"draw"},
}


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as users see it: errors of ours end at the caller's line."""
    kind, hide = WeftError, hide_frames  # of this scope, since the wrapper gets the names of another module

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except kind as error:
            hide(error)
            raise  # adds no frame for this one

    # With the names of the function's own module, so that tools such as doctest find it there.
    own = types.FunctionType(call.__code__, function.__globals__, function.__name__, None, call.__closure__)
    own.__dict__["is_entry"] = True
    return functools.update_wrapper(own, function)


def entry_point(public: Public) -> Public:
    """Decorates a public function, or a class of whose public methods it makes entries, where it is defined."""
    if isinstance(public, type):
        _wrap_methods(public, public.__module__, LEFT_OUT.get(public.__name__, ()))
        return public
    return cast(Public, entry(public))


def is_entry(function: Any) -> bool:
    """Whether errors of ours end at the caller of `function`."""
    return getattr(function, "is_entry", False) is True


def install() -> None:
    """Make entries of everything public that is not one yet."""
    wrapped: dict[Any, Any] = {}  # functions, and the entries that took their places
    for name, classes in CLASSES.items():
        module = importlib.import_module(f"weft.{name}")
        for kind in classes:
            wrapped |= _wrap_methods(getattr(module, kind), module.__name__, LEFT_OUT.get(kind, ()))
    for name in NAMESPACES:
        space = importlib.import_module(f"weft.{name}".rstrip("."))
        for key, value in list(_exports(space)):
            if value not in wrapped and _is_own(value, value.__module__):
                wrapped[value] = entry(value)
                owner = sys.modules[value.__module__]
                if vars(owner).get(value.__name__) is value:
                    setattr(owner, value.__name__, wrapped[value])
            if value in wrapped:
                setattr(space, key, wrapped[value])


def _exports(space: types.ModuleType) -> Iterable[tuple[str, types.FunctionType]]:
    """The functions of Weft that a namespace shows, by name."""
    shown, is_package = vars(space).get("__all__"), hasattr(space, "__path__")
    for key, value in vars(space).items():
        if not isinstance(value, types.FunctionType) or not value.__module__.startswith("weft."):
            continue
        is_own = not key.startswith("_") and (is_package or value.__module__ == space.__name__)
        if is_own if shown is None else key in shown:
            yield key, value


def _is_own(value: Any, module: str) -> bool:
    return isinstance(value, types.FunctionType) and value.__module__ == module and not is_entry(value)


def _wrap_methods(kind: type, module: str, left_out: Iterable[str]) -> dict[Any, Any]:
    wrapped = {}
    for name, value in list(vars(kind).items()):
        if name in left_out or (name.startswith("_") and not name.endswith("__")):
            continue
        if _is_own(value, module):
            wrapped[value] = entry(value)
            setattr(kind, name, wrapped[value])
        elif isinstance(value, classmethod):
            setattr(kind, name, classmethod(entry(value.__func__)))
        elif isinstance(value, property) and value.fset is not None:
            setattr(kind, name, property(value.fget, entry(value.fset), value.fdel, value.__doc__))
    return wrapped
