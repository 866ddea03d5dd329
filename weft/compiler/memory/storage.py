"""Storage: the memory of every stored value, and Allocation: regions with their memory, before they become a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.compiler.fusion.region import Region
from weft.compiler.passes.loops import LoopBody
from weft.compiler.program import Program
from weft.graph.node import Node
from weft.plan.plan import Interval

ALIGN = 64  # bytes: every value in the arena starts at a multiple


@dataclass(frozen=True, slots=True)
class Storage:
    """For each node that is stored inside another the other one and the byte offset there, chained up to what has
    memory of its own: a leaf, an output or a part of the arena."""

    inside: Mapping[Node, tuple[Node, int]]
    outputs: tuple[Node, ...]  # values with an output slot, in order
    copies: tuple[tuple[Node, Node, int], ...] = ()  # to make at the end: (value, leaf, byte offset in the value)
    arena: Mapping[Node, int] = field(default_factory=dict)  # value -> byte offset in the arena
    arena_bytes: int = 0
    intervals: tuple[Interval, ...] = ()

    def locate(self, node: Node) -> tuple[Node, int]:
        """The value with memory of its own that a stored node (or a leaf) is part of, and the byte offset there."""
        offset = 0
        while node in self.inside:
            node, part = self.inside[node]
            offset += part
        return node, offset


@dataclass(frozen=True, slots=True)
class Allocation:
    """Regions with their memory; in the order in which they run once they are scheduled."""

    program: Program
    regions: tuple[Region, ...]
    storage: Storage
    bodies: Mapping[int, LoopBody] = field(default_factory=dict)  # by number of their region

    def outside_arena(self) -> set[Node]:
        """The values that are not in the arena."""
        return {*self.program.leaves, *self.storage.outputs}


def label_of(node: Node) -> str:
    """A name for people: what the value is."""
    return f"{node.op} {node.dtype.name}{list(node.shape)}"


def stored_results(region: Region) -> Sequence[Node]:
    """What a region computes that is stored in memory."""
    return [node for node in region.stores if region.is_stored(node)]
