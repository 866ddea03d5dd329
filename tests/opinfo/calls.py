"""Which function of Weft a sample calls, and with what.

Torch's table often holds a lambda around the function under test (`lambda x, condition, other: torch.where(condition,
x, other)`), so the call of torch that a sample makes is recorded, and the same call is made in Weft.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import weft

# Python 3 has no `__rdiv__`; torch keeps it as another name.
RENAMED = {"__rdiv__": "__rtruediv__"}
PROPERTIES = ("T", "H", "mT", "mH", "real", "imag")


@dataclass
class Call:
    """A call of torch: the path of the function below `torch`, and its arguments."""

    path: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any = None

    def text(self) -> str:
        parts = [_short(arg) for arg in self.args] + [f"{key}={_short(arg)}" for key, arg in self.kwargs.items()]
        return f"{self.path}({', '.join(parts)})"


class _Recorder(TorchFunctionMode):
    """Notes the calls of torch that are made inside, without those that they make themselves."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.given = given  # keywords of the sample
        self.calls: list[Call] = []

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        path = _path_of(function)
        call = Call(path or "", args, _without_defaults(function, kwargs or {}, self.given))
        if path is not None:
            self.calls.append(call)
        call.result = function(*args, **(kwargs or {}))
        return call.result


def _without_defaults(function: Any, kwargs: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Keywords without those that torch's Python functions add themselves when they hand a call on."""
    if not isinstance(function, types.FunctionType):
        return kwargs
    known = inspect.signature(function).parameters
    return {
        key: value
        for key, value in kwargs.items()
        if key in given or key not in known or value is not known[key].default
    }


def record(info: Any, sample: Any) -> tuple[Call, Any]:
    """Run a sample in torch: the call that it makes, and what that returns."""
    recorder = _Recorder(sample.kwargs)
    error: Exception | None = None
    result = None
    with recorder:
        try:
            result = info(sample.input, *sample.args, **sample.kwargs)
        except Exception as raised:
            error = raised
    plain = Call(named_path(info), (sample.input, *sample.args), dict(sample.kwargs))
    call = recorder.calls[-1] if recorder.calls else plain
    if _last_part(call.path).rstrip("_") != _last_part(plain.path).rstrip("_"):
        call = plain
    elif not call.path.startswith("Tensor."):
        call.path = plain.path
    if error is not None:
        raise Refused(call, error)
    return call, result if call is plain else call.result


class Refused(Exception):
    """Torch raised an error; `call` is the call that it was raised for."""

    def __init__(self, call: Call, error: Exception):
        super().__init__(str(error))
        self.call = call
        self.error = error


def named_path(info: Any) -> str:
    """The path of an operator as its name in torch's table says it."""
    name = RENAMED.get(info.name, info.name).removeprefix("torch.")
    is_method = name.startswith("__") or (not hasattr(torch, name.split(".")[0]) and hasattr(torch.Tensor, name))
    return f"Tensor.{name}" if is_method else name


def locate(path: str) -> str:
    """Where Weft has the function at a path of torch's, '' if nowhere; some are methods only."""
    ways = (path,) if "." in path else (path, f"Tensor.{path}")
    return next((way for way in ways if _look_up(way) is not None), "")


def find(path: str) -> Callable[..., Any] | None:
    """The function of Weft for one of torch's."""
    return _look_up(locate(path))


def _look_up(path: str) -> Callable[..., Any] | None:
    found = functools.reduce(lambda place, part: getattr(place, part, None), path.split("."), weft) if path else None
    if isinstance(found, property):
        return found.fget
    return found if callable(found) and not isinstance(found, (type, weft.base.dtypes.DType)) else None


def record_variant(theirs: Callable[..., Any], given: Any, sample: Any) -> tuple[Call, Any]:
    """The call that another way to write a sample makes (a method, a lambda around one), and torch's result. `given`
    takes the place of the sample's input."""
    recorder = _Recorder(sample.kwargs)
    with recorder:
        result = theirs(given, *sample.args, **sample.kwargs)
    return recorder.calls[-1], result


def _path_of(function: Any) -> str | None:
    name = getattr(function, "__name__", "")
    if name == "__get__":
        name = function.__self__.__name__
        return f"Tensor.{name}" if name in PROPERTIES else None
    if name.startswith("_set") or not name:
        return None
    module = getattr(function, "__module__", None) or ""
    if getattr(torch.Tensor, name, None) is function or module == "torch._tensor":
        return f"Tensor.{RENAMED.get(name, name)}"
    name = name.removesuffix("_with_indices").removesuffix(".default")
    for package in ("linalg", "special", "fft"):
        if name.startswith(package + "_"):
            return f"{package}.{name.removeprefix(package + '_')}"
    is_functional = module in ("torch.nn.functional", "torch._C._nn")
    return f"nn.functional.{name.removeprefix('_')}" if is_functional else name


def _last_part(path: str) -> str:
    return path.rpartition(".")[2]


def _short(arg: Any) -> str:
    if isinstance(arg, torch.Tensor):
        return f"{str(arg.dtype).removeprefix('torch.')}{list(arg.shape)}"
    if isinstance(arg, (list, tuple)):
        parts = ", ".join(_short(one) for one in arg)
        return f"[{parts}]" if isinstance(arg, list) else f"({parts}{',' if len(arg) == 1 else ''})"
    return repr(arg)[:60]
