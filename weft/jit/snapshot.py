"""The values of several tensors at one moment, while other threads run compiled functions that write them."""

from __future__ import annotations

from typing import Any

from weft.autograd import no_grad
from weft.base import tree
from weft.base.state import STATE
from weft.compiler.cells import call_steady
from weft.core.realize import unknown_value_error
from weft.core.tensor import Tensor
from weft.graph import build


def snapshot(values: Any) -> Any:
    """The present values of tensors in nested lists, tuples and dicts, in the same structure: all of one moment.

    A compiled function that another thread runs changes its tensors either before that moment or after it, never in
    between. The copies have no history, and keep their values; their memory is shared until the originals change.

    >>> w = weft.ones(2)
    >>> before = weft.snapshot({"w": w})
    >>> before["w"], w.add_(1)
    (tensor([1., 1.]), tensor([2., 2.]))
    """
    if STATE.trace is not None:
        raise unknown_value_error("snapshot()")
    leaves, structure = tree.flatten(values)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    with no_grad():
        taken = iter(call_steady(tensors, lambda _: [Tensor(build.stop_gradient(one.node)) for one in tensors]))
    return tree.unflatten(structure, [next(taken) if isinstance(leaf, Tensor) else leaf for leaf in leaves])
