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
from weft.graph.node import Node, leaf

EXPOSED: list[weakref.ref] = []  # captured tensors that have a leaf on the memory that will be rewritten


def expose(tensor: Any) -> Node:
    """A leaf node for the current value of a captured tensor."""
    buffer, (shape, dtype) = tensor._buffer, tensor._form
    node = leaf(buffer, shape, dtype, buffer.slab.device)
    tensor._node = node
    EXPOSED.append(weakref.ref(tensor))
    return node


def retire_exposed() -> None:
    """Before memory is rewritten: keep the old value for whoever still holds it."""
    for reference in EXPOSED:
        tensor = reference()
        if tensor is None or tensor._node is None or tensor._node.buffer is not tensor._buffer:
            continue  # assigned from outside since: the next replay copies the new value into place
        node, tensor._node = tensor._node, None
        if sys.getrefcount(node) > 2:
            node.buffer = private_copy(node.buffer)
    EXPOSED.clear()


def private_copy(buffer: Buffer) -> Buffer:
    """The same bytes in memory of their own."""
    backend = buffer.slab.device.backend
    copy = Buffer(backend.allocate(buffer.nbytes), 0, buffer.nbytes)
    backend.copy(copy, buffer)
    return copy
