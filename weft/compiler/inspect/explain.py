"""What each step of a plan computes, in terms of the graph. For `weft.testing.verify` alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.compiler.fusion.index_map import row_major
from weft.compiler.fusion.region import Region
from weft.compiler.memory.storage import stored_results
from weft.graph.node import Node, toposort
from weft.plan.plan import Place


@dataclass(frozen=True, slots=True)
class Stored:
    """A value in memory: element [i, j, ...] is i * strides[0] + j * strides[1] + ... elements after `place`."""

    node: Node
    place: Place
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Explained:
    """One step: the values that it reads and the ones that it leaves in memory."""

    reads: tuple[Stored, ...]
    results: tuple[Stored, ...]

    def nodes(self) -> list[Node]:
        """What is computed, sources before users, starting with what is read."""
        known = {read.node for read in self.reads}
        return toposort([result.node for result in self.results], known.__contains__)


def explain_region(region: Region, place: Callable[[Node], Place]) -> Explained:
    """What the step of a region reads and stores; `place` gives the place of a value."""
    reads = [Stored(node, place(node), row_major(node.shape)) for node in region.reads]
    results = [
        Stored(node, place(node), region.strides.get(node) or row_major(node.shape)) for node in stores_of(region)
    ]
    return Explained(tuple(reads), tuple(results))


def stores_of(region: Region) -> list[Node]:
    """What a region leaves in memory: not scratch, nor a reduction or a product that it uses up itself."""
    product = region.anchor if len(region.roots) > 1 and region.anchor not in region.retained else None
    stored = [node for node in stored_results(region) if node is not product]
    return [node for node in stored if node.primitive.kind != "leaf" and node.op != "scratch"]
