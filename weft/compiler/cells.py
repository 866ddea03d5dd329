"""cells: tensors whose memory belongs to compiled functions.

A captured tensor has `_buffer`. While nobody looks, it has no node: the compiled function rewrites the memory in place.
When someone reads it, `expose` makes a leaf for the current value; before the next replay `retire_exposed` gives any
leaf that is still in use a private copy, so that no value changes under its holder.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from weft.backends.base import Buffer
from weft.compiler.evaluate import evaluate
from weft.graph.node import Node, leaf

EXPOSED: list[tuple[weakref.ref, weakref.ref]] = []  # captured tensors, and leaves on memory that will be rewritten


def expose(tensor: Any) -> Node:
    """A leaf node for the current value of a captured tensor."""
    buffer, (shape, dtype) = tensor._buffer, tensor._form
    node = leaf(buffer, shape, dtype, buffer.slab.device)
    tensor._node = node
    EXPOSED.append((weakref.ref(tensor), weakref.ref(node)))
    return node


def retire_exposed() -> None:
    """Before memory is rewritten: keep the old value for whoever still holds it."""
    for owner, exposed in EXPOSED:
        tensor, node = owner(), exposed()
        if tensor is not None and tensor._node is node:
            tensor._forget_node()
        if node is not None and sys.getrefcount(node) > 2:
            node.buffer = private_copy(node.buffer)
    EXPOSED.clear()


def settle(tensor: Any) -> None:
    """Bring a captured tensor that was assigned from outside back into the memory that compiled functions know."""
    node = tensor._node
    if node is None or node.buffer is tensor._buffer:
        return
    evaluate([node])
    if (node.shape, node.dtype) != tensor._form:  # another kind of value: the old place is given up
        tensor._form, tensor._buffer = (node.shape, node.dtype), node.buffer
    elif tensor._buffer.slab.pinned:
        tensor._buffer.slab.device.backend.copy(tensor._buffer, node.buffer)
        tensor._forget_node()
    else:
        tensor._buffer = node.buffer


def private_copy(buffer: Buffer) -> Buffer:
    """The same bytes in memory of their own."""
    backend = buffer.slab.device.backend
    copy = Buffer(backend.allocate(buffer.nbytes), 0, buffer.nbytes)
    backend.copy(copy, buffer)
    return copy
