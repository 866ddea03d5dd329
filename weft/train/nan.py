"""A loss that is not finite: steps that are left out on the device, and the search for the layer that produced it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import weft
from weft import tree
from weft.autograd import no_grad
from weft.state import STATE
from weft.tensor import Tensor


def keep_unless(good: Tensor, exempt: Iterable[Tensor]) -> None:
    """Inside a compiled function: whatever it has assigned so far keeps its old value unless `good`, a bool on the
    device. `exempt` are tensors for which that is arranged already."""
    trace = STATE.trace
    if trace is None:
        return
    known = {id(tensor) for tensor in exempt}
    with no_grad():
        for registry, name, first in list(trace.buffers.values()):
            dict.__setitem__(registry, name, weft.where(good, registry[name], first))
        for cell in list(trace.cells.values()):
            if cell.written and id(cell.tensor) not in known:
                cell.node = weft.where(good, Tensor(cell.node), Tensor(cell.placeholder)).node


def _is_finite(value: Any) -> bool:
    floats = [leaf for leaf in tree.flatten(value)[0] if isinstance(leaf, Tensor) and leaf.dtype.kind == "f"]
    return all(bool(leaf.detach().isfinite().all()) for leaf in floats)


def find_first(model: Any, forward: Callable[[], Any]) -> str:
    """Run `forward` (which calls `model` and returns the loss) and say what was the first to be not finite: a
    parameter, an input, a layer, or the loss."""
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if not _is_finite(value):
            return f"{_layer_of(model, name)}: its {name.rpartition('.')[2]!r} is not finite since an earlier step"
    found: list[str] = []
    names = {id(module): name for name, module in model.named_modules()}

    def after(module: Any, inputs: Any, output: Any) -> None:
        if found or _is_finite(output):
            return
        what = f"layer {names[id(module)] or '(the model itself)'} ({type(module).__name__})"
        found.append(what if _is_finite(inputs) else f"{what}, whose input is not finite")

    handles = [module.register_forward_hook(after) for module in model.modules()]
    try:
        with no_grad():
            loss = forward()
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    if loss is not None and not _is_finite(loss):
        return "the loss: all layers gave finite values"
    return "the gradient: the loss of this batch is finite"


def _layer_of(model: Any, name: str) -> str:
    path = name.rpartition(".")[0]
    return f"layer {path or '(the model itself)'} ({type(model.get_submodule(path)).__name__})"
