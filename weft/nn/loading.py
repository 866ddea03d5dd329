"""state_dict of modules: saving, loading, and the report of what did not fit."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.autograd import no_grad
from weft.creation import tensor
from weft.errors import ShapeError
from weft.interop import from_dlpack
from weft.nn import parameter
from weft.state import MODULES
from weft.tensor import Tensor

if TYPE_CHECKING:
    from weft.nn.module import Module

EXTRA = "_extra_state"
_numbers = itertools.count()


class StateHandle:
    """What the hooks of `state_dict` return: `remove()` takes the hook away."""

    def __init__(self, module: Module, number: int):
        self._module, self.id = module, number

    def remove(self) -> None:
        """Take the hook away; once is enough."""
        kept = tuple(hook for hook in self._module._state_hooks if hook[1] != self.id)
        self._module.__dict__["_state_hooks"] = kept


def add_hook(module: Module, kind: str, function: Callable[..., Any]) -> StateHandle:
    """Register a hook of kind 'saving', 'saved', 'loading' or 'loaded'."""
    number = next(_numbers)
    module.__dict__["_state_hooks"] = (*module._state_hooks, (kind, number, function))
    return StateHandle(module, number)


def _hooks(module: Module, kind: str) -> list[Callable[..., Any]]:
    return [function for name, _, function in module._state_hooks if name == kind]


def _has_extra(module: Module) -> bool:
    from weft.nn.module import Module

    return type(module).get_extra_state is not Module.get_extra_state


def state_dict(
    module: Module, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
) -> OrderedDict[str, Any]:
    """See `Module.state_dict`."""
    if args:
        positional = dict(zip(("destination", "prefix", "keep_vars"), args, strict=False))
        destination = positional.get("destination", destination)
        prefix, keep_vars = positional.get("prefix", prefix), positional.get("keep_vars", keep_vars)
    parameter.compute_waiting()
    found: OrderedDict[str, Any] = OrderedDict() if destination is None else destination
    for hook in _hooks(module, "saving"):
        hook(module, prefix, keep_vars)
    for name, value in _own_state(module).items():
        found[prefix + name] = value if keep_vars else value.detach()
    if _has_extra(module):
        found[prefix + EXTRA] = module.get_extra_state()
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=found, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    for hook in _hooks(module, "saved"):
        answer = hook(module, found, prefix, {})
        found = found if answer is None else answer
    return found


def _own_state(module: Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers of one module by name."""
    buffers = {name: value for name, value in module._buffers.items() if name not in module._non_persistent}
    return {name: value for name, value in {**module._parameters, **buffers}.items() if value is not None}


def load(module: Module, given: Mapping[str, Any], strict: bool, assign: bool) -> tuple[list[str], list[str]]:
    """See `Module.load_state_dict`; returns the missing and the unexpected keys."""
    if not isinstance(given, Mapping):
        raise TypeError(
            f"load_state_dict: given a {type(given).__name__}; expected a dict such as state_dict() returns."
        )
    parameter.compute_waiting()
    state = OrderedDict(given)
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []
    writes: list[Callable[[], Any]] = []
    used: set[str] = set()
    for path, part in list(module.named_modules(remove_duplicate=False)):
        prefix = f"{path}." if path else ""
        for hook in _hooks(part, "loading"):
            hook(part, state, prefix, {}, strict, missing, unexpected, errors)
        _load_own(part, state, prefix, missing, errors, writes, used, assign)
    unexpected += [key for key in state if key not in used]
    for part in module.modules():
        for hook in _hooks(part, "loaded"):
            hook(part, (missing, unexpected))
    if strict and (missing or unexpected):
        errors[:0] = _report(missing, unexpected)
    if errors:
        text = "".join(f"\n  {line}" for line in errors)
        raise ShapeError(f"load_state_dict: what was given does not fit {type(module).__name__}:{text}")
    with no_grad():
        for write in writes:
            write()
    MODULES.bump()
    return missing, unexpected


def _report(missing: list[str], unexpected: list[str]) -> list[str]:
    lines = []
    if missing:
        lines.append(f"missing: {', '.join(missing)}")
    if unexpected:
        lines.append(f"unexpected: {', '.join(unexpected)}")
    return lines


def _load_own(
    module: Module, state: Mapping[str, Any], prefix: str, missing: list[str], errors: list[str],
    writes: list[Callable[[], Any]], used: set[str], assign: bool,
) -> None:  # fmt: skip
    """One module's own part of a state_dict: check it, and note what is to be written."""
    for name, old in _own_state(module).items():
        key = prefix + name
        if key not in state:
            missing.append(key)
            continue
        used.add(key)
        if parameter.is_lazy(old) and parameter.is_lazy(state[key]):
            continue
        value = as_value(state[key])
        if tuple(value.shape) != tuple(old.shape):
            errors.append(f"{key}: given shape {list(value.shape)}, expected {list(old.shape)}")
        elif assign:
            writes.append(partial(_replace, module, name, value, old))
        else:
            writes.append(partial(old.copy_, value.to(old.device)))
    if _has_extra(module):
        key = prefix + EXTRA
        if key in state:
            used.add(key)
            writes.append(partial(module.set_extra_state, state[key]))
        else:
            missing.append(key)


def as_value(value: Any) -> Tensor:
    """A tensor for what a state_dict holds: a tensor of Weft's or of another library, or an array. Memory of others is
    copied now: they may write to it before the value is used."""
    if isinstance(value, Tensor):
        return value.detach()
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        value = value.detach() if hasattr(value, "detach") else value
        return from_dlpack(value.cpu() if hasattr(value, "cpu") else value, copy=True)
    return tensor(np.asarray(value))


def _replace(module: Module, name: str, value: Tensor, old: Tensor) -> None:
    if name in module._parameters:
        module._parameters[name] = parameter.Parameter(value, old.requires_grad)
    else:
        module._buffers[name] = value
