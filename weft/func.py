"""Functions of modules, after `torch.func`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from weft.autograd import grad, value_and_grad
from weft.base.errors import GraphError, problem
from weft.base.state import MODULES, STATE
from weft.core.tensor import Tensor

__all__ = ["functional_call", "grad", "value_and_grad"]


def functional_call(
    module: Any,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | tuple[Mapping[str, Tensor], ...],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Call `module` with other values for its parameters and buffers, given by path. The module keeps its own. With
    `tie_weights` a value for one name of a shared parameter is used under its other names, too; with `strict` all
    parameters and buffers must be given, and nothing else.

    >>> layer = weft.nn.Linear(2, 1, bias=False)
    >>> weft.func.functional_call(layer, {"weight": weft.ones(1, 2)}, (weft.ones(2),))
    tensor([2.])
    """
    given: dict[str, Tensor] = {}
    dicts = parameter_and_buffer_dicts
    for one in dicts if isinstance(dicts, (tuple, list)) else (dicts,):
        given.update(one)
    args = () if args is None else args if isinstance(args, tuple) else (args,)
    with _replace_tensors(module, given, tie_weights, strict):
        return module(*args, **(kwargs or {}))


@contextmanager
def _replace_tensors(module: Any, given: dict[str, Tensor], tie_weights: bool, strict: bool) -> Iterator[None]:
    """While the block lasts, the module has the given tensors."""
    owners = {
        (f"{path}.{name}" if path else name): (registry, name)
        for path, part in module.named_modules(remove_duplicate=False)
        for registry in (part._parameters, part._buffers)
        for name in registry
    }
    unknown = [name for name in given if name not in owners]
    missing = [name for name in owners if name not in given and owners[name][0][owners[name][1]] is not None]
    if unknown or (strict and missing):
        text = f"{', '.join(unknown)}" if unknown else f"nothing for {', '.join(missing)}"
        raise problem(GraphError, "functional_call", text, f"names among {', '.join(owners)}")
    values = dict(given)
    if tie_weights:
        shared = {id(owners[name][0][owners[name][1]]): value for name, value in given.items()}
        for name, (registry, key) in owners.items():
            if name not in values and registry[key] is not None and id(registry[key]) in shared:
                values[name] = shared[id(registry[key])]
    before = [(*owners[name], owners[name][0][owners[name][1]]) for name in values]
    # What a trace has noted of buffers that are replaced here is about the module's own.
    noted: dict[tuple[int, str], Any] = {} if STATE.trace is None else STATE.trace.buffers
    keys = [(id(registry), key) for registry, key, _ in before]
    own = {key: noted.pop(key) for key in keys if key in noted}
    try:
        for name, value in values.items():
            registry, key = owners[name]
            dict.__setitem__(registry, key, value)
        MODULES.bump()
        yield
    finally:
        for registry, key, value in before:
            noted.pop((id(registry), key), None)  # assigned in the call: they end with it
            dict.__setitem__(registry, key, value)
        noted.update(own)
        MODULES.bump()
