"""state_dict of modules: saving, loading, and the report of what did not fit."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.autograd import no_grad
from weft.base.errors import GraphError, StateDictError, problem
from weft.base.state import MODULES
from weft.core.creation import tensor
from weft.core.interop import from_dlpack
from weft.core.tensor import Tensor
from weft.nn import parameter

if TYPE_CHECKING:
    from weft.nn.module import Module

EXTRA = "_extra_state"
_numbers = itertools.count()


class StateHandle:
    """What the hooks of `state_dict` return: `remove()` takes the hook away, as does the end of a `with` block."""

    def __init__(self, module: Module, number: int):
        self._module, self.id = weakref.ref(module), number

    def remove(self) -> None:
        """Take the hook away; once is enough."""
        module = self._module()
        if module is not None:
            module.__dict__["_state_hooks"] = tuple(hook for hook in module._state_hooks if hook[1] != self.id)

    def __enter__(self) -> StateHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


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
    metadata = found.__dict__.setdefault("_metadata", OrderedDict()) if hasattr(found, "__dict__") else {}
    metadata[prefix[:-1]] = local = {"version": module._version}
    for hook in _hooks(module, "saving"):
        hook(module, prefix, keep_vars)
    module._save_to_state_dict(found, prefix, keep_vars)
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=found, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    for hook in _hooks(module, "saved"):
        answer = hook(module, found, prefix, local)
        found = found if answer is None else answer
    return found


def save_own(module: Module, found: dict[str, Any], prefix: str, keep_vars: bool) -> None:
    """One module's own part of a state_dict."""
    for name, value in _own_state(module).items():
        found[prefix + name] = value if keep_vars else value.detach()
    if _has_extra(module):
        found[prefix + EXTRA] = module.get_extra_state()


def _own_state(module: Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers of one module by name."""
    buffers = {name: value for name, value in module._buffers.items() if name not in module._non_persistent}
    return {name: value for name, value in {**module._parameters, **buffers}.items() if value is not None}


def load(module: Module, given: Mapping[str, Any], strict: bool, assign: bool) -> LoadResult:
    """See `Module.load_state_dict`; returns the missing and the unexpected keys."""
    if not isinstance(given, Mapping):
        raise TypeError(
            f"load_state_dict: given a {type(given).__name__}; expected a dict such as state_dict() returns."
        )
    parameter.compute_waiting()
    state = _Loading(given)
    state.assign = assign
    metadata = getattr(given, "_metadata", None) or {}
    missing: list[str] = []
    unexpected: list[str] = []
    errors: list[str] = []
    parts = list(module.named_modules(remove_duplicate=False))
    for path, part in parts:
        prefix, local = f"{path}." if path else "", metadata.get(path, {})
        for hook in _hooks(part, "loading"):
            hook(part, state, prefix, local, strict, missing, unexpected, errors)
        part._load_from_state_dict(state, prefix, local, strict, missing, unexpected, errors)
    unexpected += [key for key in state if key not in state.used and key not in unexpected]
    after = [(part, hook) for _, part in reversed(parts) for hook in _hooks(part, "loaded")]
    if errors or (strict and (missing or unexpected) and not after):
        _refuse(module, missing if strict else [], unexpected if strict else [], errors)
    with no_grad():
        for write in state.writes:
            write()
    MODULES.bump()
    for part, hook in after:  # they may take keys out of the lists
        hook(part, LoadResult(missing, unexpected))
    if strict and (missing or unexpected):
        _refuse(module, missing, unexpected, [])
    return LoadResult(missing, unexpected)


class LoadResult(NamedTuple):
    """What `load_state_dict` found: keys of the module that were missing, and keys that it does not have."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"LoadResult(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


class _Loading(OrderedDict[str, Any]):
    """A state_dict that is being loaded, with what is to be written when all of it has been checked."""

    def __init__(self, given: Mapping[str, Any]):
        super().__init__(given)
        self.writes: list[Callable[[], Any]] = []
        self.used: set[str] = set()
        self.assign = False


def _refuse(module: Module, missing: list[str], unexpected: list[str], errors: list[str]) -> None:
    text = "".join(f"\n  {line}" for line in [*_report(missing, unexpected), *errors])
    raise StateDictError(f"load_state_dict: what was given does not fit {type(module).__name__}:{text}")


def _report(missing: list[str], unexpected: list[str]) -> list[str]:
    lines = []
    if missing:
        lines.append(f"missing: {', '.join(missing)}")
    if unexpected:
        lines.append(f"unexpected: {', '.join(unexpected)}")
    return lines


def load_own(module: Module, state: dict[str, Any], prefix: str, missing: list[str], errors: list[str]) -> None:
    """One module's own part of a state_dict: check it, and note what is to be written."""
    if not isinstance(state, _Loading):
        given = "a dict that did not come from load_state_dict"
        raise problem(GraphError, "_load_from_state_dict", given, "the one that it was called with")
    for name, old in _own_state(module).items():
        key = prefix + name
        if key not in state:
            missing.append(key)
            continue
        state.used.add(key)
        if parameter.is_lazy(old) and parameter.is_lazy(state[key]):
            continue
        value = as_value(state[key])
        if not old.shape and tuple(value.shape) == (1,):  # as older files have them
            value = value.reshape(())
        if tuple(value.shape) != tuple(old.shape):
            errors.append(f"{key}: given shape {list(value.shape)}, expected {list(old.shape)}")
        elif state.assign:
            whole = state[key] if isinstance(state[key], parameter.Parameter) else value
            state.writes.append(partial(_replace, module, name, whole, old))
        else:
            state.writes.append(partial(old.copy_, value.to(old.device)))
    if _has_extra(module):
        key = prefix + EXTRA
        if key in state:
            state.used.add(key)
            state.writes.append(partial(module.set_extra_state, state[key]))
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
        made = value if isinstance(value, parameter.Parameter) else parameter.Parameter(value, old.requires_grad)
        module._parameters[name] = made
    else:
        module._buffers[name] = value
