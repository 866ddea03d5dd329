"""Tensors whose memory belongs to compiled functions.

A captured tensor has `_buffer`. While it is not read, it has no node: the compiled function rewrites the memory in
place. When it is read, `expose` makes a leaf for the current value; before the memory is rewritten `retire` gives any
leaf that is still in use a private copy, so that no value changes under its holder.

Memory that is rewritten belongs to a `WriteGroup`. A run holds its lock from `retire` to the end; who copies from the
memory, or makes a leaf for it, holds it meanwhile. So a reader in another thread sees the state before a run or after
it, never a part of each.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from weft.base.locks import WriteGroup, call_holding, locks_of
from weft.base.state import VERSION
from weft.compiler.realize import realize_nodes
from weft.graph.node import Node, leaf
from weft.plan.device import Buffer


def expose(tensor: Any) -> Node:
    """A leaf node for the current value of a captured tensor."""
    while True:
        buffer = tensor._buffer
        group = buffer.slab.pinned
        if group is None:  # another thread was faster, or is about to pin it
            if tensor._node is not None:
                return tensor._node
            continue
        with group.lock:
            node = tensor._node
            if node is not None:  # another thread was faster
                return node
            if tensor._buffer is buffer:
                shape, dtype = tensor._form
                node = leaf(buffer, shape, dtype, buffer.slab.device)
                tensor._node = node
                group.exposed.append((weakref.ref(tensor), weakref.ref(node)))
                VERSION.bump()
                return node


def retire(groups: Iterable[WriteGroup]) -> None:
    """Before memory is rewritten, under its lock: keep the old value for leaves of it that are still referred to."""
    for group in groups:
        while group.exposed:
            entry = owner, exposed = group.exposed.pop()
            tensor = owner()
            if tensor is not None and tensor._node is exposed():
                tensor._forget_node()
            node = exposed()  # None where only the tensor referred to it
            if node is not None:
                try:
                    node.buffer = private_copy(node.buffer)
                except BaseException:  # no memory for it, so nothing is rewritten
                    group.exposed.append(entry)
                    raise


def write_back(tensor: Any) -> None:
    """Bring a captured tensor that was assigned from outside back into the memory that compiled functions use."""
    node = tensor._node
    if node is None or node.buffer is tensor._buffer:
        return
    realize_nodes([node])
    moved = node.device is not tensor._buffer.slab.device
    if moved or (node.shape, node.dtype) != tensor._form:  # a value of another form: the old memory is released
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


def steady_copy(node: Node) -> Buffer:
    """The memory of a computed node, or a copy of it where it is rewritten in place."""
    while True:
        buffer = node.buffer
        group = buffer.slab.pinned
        if group is None:
            return buffer
        with group.lock:
            if node.buffer is buffer:
                return private_copy(buffer)


def groups_of(tensors: Iterable[Any]) -> set[WriteGroup]:
    """The groups whose memory holds the value of one of these tensors."""
    buffers = [tensor._buffer for tensor in tensors]
    return {buffer.slab.pinned for buffer in buffers if buffer is not None and buffer.slab.pinned is not None}


def call_steady(tensors: Iterable[Any], function: Callable[[set[WriteGroup]], Any]) -> Any:
    """What `function` returns for the groups of these tensors, while no run changes the value of any of them."""
    known = list(tensors)

    def call(groups: set[WriteGroup]) -> tuple[bool, Any]:
        if groups_of(known) != groups:  # a function was traced meanwhile that writes more of them
            return False, None
        return True, function(groups)

    while True:
        groups = groups_of(known)
        is_done, result = call_holding(locks_of(groups), call, groups)
        if is_done:
            return result
