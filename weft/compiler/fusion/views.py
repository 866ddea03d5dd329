"""Nodes that need no memory of their own because they are contiguous parts of what is stored anyway."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from weft.compiler.fusion.index_map import MOVEMENT
from weft.compiler.program import slice_offset
from weft.graph.node import Node


@dataclass(frozen=True, slots=True)
class Window:
    """Where a node is stored inside another (a part of a concatenation, a slice of a template's result): strides and
    offset there, in elements."""

    whole: Node
    strides: tuple[int, ...]
    offset: int


def base_of(node: Node) -> Node:
    """The node whose contiguous memory `node` shares: reshapes are free."""
    while node.op == "reshape":
        node = node.srcs[0]
    return node


def window(node: Node, leaves: Collection[Node]) -> tuple[Node, int]:
    """The stored value that `node` is a contiguous part of (itself, if there is none), and the part's byte offset."""
    part, offset = node, 0
    while part not in leaves:
        inside = 0 if part.op == "reshape" else slice_offset(part) if part.op == "slice" else None
        if inside is None:
            break
        part, offset = part.srcs[0], offset + inside
    return (part, offset) if part in leaves or part.op not in MOVEMENT - {"copy"} else (base_of(node), 0)


def window_base(node: Node, leaves: Collection[Node]) -> Node:
    """The computed value that `node` is a contiguous part of, or its `base_of` where there is none."""
    part, _ = window(node, leaves)
    return base_of(node) if part in leaves else part


def under_movement(node: Node, leaves: Collection[Node]) -> Node:
    """The value whose elements `node` only rearranges."""
    while node.op in MOVEMENT and node not in leaves:
        node = node.srcs[0]
    return node
