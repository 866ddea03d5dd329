"""explain: what each step of a plan computes, in terms of the graph. For `weft.testing.verify`; nothing else asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.compiler.access import row_major
from weft.compiler.memory import is_kept
from weft.compiler.plan import Place
from weft.compiler.region import Region
from weft.graph.node import Node, toposort
from weft.graph.primitives import PRIMITIVES


@dataclass(frozen=True, slots=True)
class Stored:
    """A value in memory: element [i, j, ...] lies i * strides[0] + j * strides[1] + ... elements behind `place`."""

    node: Node
    place: Place
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Explained:
    """One step: the values that it reads and the ones that it leaves in memory."""

    reads: tuple[Stored, ...]
    results: tuple[Stored, ...]

    def nodes(self) -> list[Node]:
        """What is computed, sources before users, beginning with what is read."""
        known = {read.node for read in self.reads}
        return toposort([result.node for result in self.results], known.__contains__)


def explained(region: Region, place: Callable[[Node], Place]) -> Explained:
    """What the step of a region reads and stores; `place` says where values lie."""
    reads = [Stored(node, place(node), row_major(node.shape)) for node in region.reads]
    results = [
        Stored(node, place(node), region.strides.get(node) or row_major(node.shape)) for node in stored_by(region)
    ]
    return Explained(tuple(reads), tuple(results))


def stored_by(region: Region) -> list[Node]:
    """What a region leaves in memory: not scratch, nor a fold or a product that it uses up itself."""
    product = region.anchor if len(region.sinks) > 1 and region.anchor not in region.kept_results else None
    stored = [node for node in (*region.sinks, *region.partials) if is_kept(node, region) and node is not product]
    return [node for node in stored if PRIMITIVES[node.op].kind != "leaf" and node.op != "scratch"]
