"""fuse: divide a graph into regions, each one kernel.

Walks the nodes that must exist in memory or end a loop (sinks) in topological order and puts each into a region that
already computes what it needs, if the indices agree and no cycle arises; else it opens a new one. What lies between
sinks is computed inside the regions that use it; a value that would be expensive to compute again is stored by the
first region that had it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from weft.compiler.access import MOVEMENT, reshaped, row_major
from weft.compiler.loops import hidden_states
from weft.compiler.matmul import operands
from weft.compiler.program import slice_offset
from weft.compiler.region import FORMS, Conflict, Region, Walk
from weft.compiler.sinks import COST, DEAR, MAX_COST, MAX_OPERATIONS, Choice
from weft.compiler.templates import TEMPLATES
from weft.compiler.windows import base_of, window
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES, results_of

CANDIDATES = 6  # how many regions a sink tries to join
SMALL = 1 << 16  # elements up to which unrelated work of the same form shares a kernel
SMALL_FOR_BLOCKS = 1 << 21  # the same where a launch takes as long as moving megabytes
MOST_READS = 8  # values that such a kernel reads
MOST_FOLDS = 24  # of one kernel: each that depends on others walks the row once more
MAX_VALUES = 64  # values that one kernel reads or stores, unless a single result needs more
MAX_UNRELATED_COST = 512  # arithmetic per element, as `sinks.COST` counts it, of a kernel with unrelated results
MERGE_WINDOW = 32  # regions of one domain, latest first, that a region may be merged with
# Kinds of nodes that are the anchor of a region of their own, which has the form of that name: the region's domain.
ANCHORS: dict[str, Callable[[Node], tuple[int, ...]]] = {
    "dot": lambda node: node.shape,
    "template": lambda node: node.shape,
    "scatter": lambda node: node.srcs[1].shape,
    "scan": lambda node: node.srcs[0].shape,
    "sort": lambda node: node.srcs[0].shape,
    "put": lambda node: node.srcs[0].shape,
}


@dataclass(frozen=True, slots=True)
class Home:
    """A node that lives inside another (a part of a concatenation, a slice of a template's result): strides and offset
    there, in elements."""

    root: Node
    strides: tuple[int, ...]
    offset: int


@dataclass(slots=True)
class Fused:
    """The regions (see `memory.order`), which of them store each node, and the nodes inside a concatenation."""

    regions: list[Region]
    stored: dict[Node, tuple[Region, ...]]
    homes: dict[Node, Home]
    readers: dict[Node, list[Region]] = field(init=False)  # regions that read each value from memory
    waits: list[Node] = field(init=False)  # the `after` nodes, sources first

    def __post_init__(self) -> None:
        self.readers = {}
        for region in self.regions:
            for read in region.reads:
                self.readers.setdefault(read, []).append(region)
        self.waits = [node for node in self.stored if node.op == "after"]


def fuse(
    nodes: Sequence[Node],
    outputs: Sequence[Node],
    leaves: Sequence[Node],
    written: Collection[int] = (),
    changing: Collection[Node] = (),
) -> Fused:
    """Divide the graph of `nodes` (topologically sorted) into regions. `written` outputs replace leaves, whose memory
    the leaves in `changing` share."""
    return _Fuser(nodes, outputs, leaves, written, changing).run()


class _Fuser:
    def __init__(
        self, nodes: Sequence[Node], outputs: Sequence[Node], leaves: Sequence[Node], written: Collection[int],
        changing: Collection[Node],
    ):  # fmt: skip
        self.nodes = nodes
        self.leaves = set(leaves)
        self.blocks = bool(nodes) and "blocks" in nodes[0].device.features
        self.stored: dict[Node, tuple[Region, ...]] = dict.fromkeys(leaves, ())
        self.regions: list[Region] = []
        self.numbers = itertools.count()
        self.homes: dict[Node, Home] = {}
        self.position = {node: number for number, node in enumerate(nodes)}
        self.users: dict[Node, list[Region]] = {}  # regions that read or compute a node
        self.written_by: dict[Region, dict[Node, None]] = {}  # what each region stores, with what that is a part of
        self.preceding = 0  # bit set of all regions that some other region had to wait for
        self.choice = Choice(nodes, outputs, self.leaves, written)
        self.apart = self.choice.apart
        self.changing = changing

    def run(self) -> Fused:
        for leaf in self.leaves:
            if leaf in self.choice.slices and leaf not in self.changing:
                self._place_windows(leaf)
        for node in self.nodes:
            if node not in self.choice.sinks or node in self.stored:
                continue
            if not node.size:
                self._store(node, ())  # nothing to compute, nothing to wait for
            elif node.op == "concat":
                self._place_concat(node)
            elif node.op == "after":
                self._place_after(node)
            else:
                self._assign(node)
            self._place_windows(node)
        self._merge()
        self._drop_unread_rows()
        return Fused(self.regions, self.stored, self.homes)

    def _store(self, node: Node, writers: tuple[Region, ...]) -> None:
        """`node` lies in memory once `writers` have run."""
        self.stored[node] = writers
        for writer in writers:
            self.written_by.setdefault(writer, {})[node] = None

    # --- putting a sink into a region --------------------------------------------------------------------------------

    def _assign(self, node: Node) -> None:
        kind = PRIMITIVES[node.op].kind
        if kind in ANCHORS:
            self._open_anchored(Region(next(self.numbers), kind, ANCHORS[kind](node), anchor=node), node)
        elif kind == "loop":
            self._open_loop(node)
        elif kind in ("segment", "rows"):
            self._assign_segment(node, kind)
        elif node.op.startswith("partial_"):
            self._assign_partial(node)
        elif kind == "reduce":
            self._assign_reduce(node)
        elif not self._join(self._candidates(node), node):
            self._open(Region(next(self.numbers), "map", node.shape), node)

    def _assign_reduce(self, node: Node) -> None:
        shape, reduced = node.srcs[0].shape, node.attrs[0]
        form = "rows" if len(shape) - 1 in reduced else "cols"
        if not self._fold_into(node, form, shape, reduced):
            self._open(Region(next(self.numbers), form, shape, reduced), node)

    def _assign_segment(self, node: Node, kind: str) -> None:
        pointers = node.srcs[-1]
        shape = (pointers.size - 1, *(node.srcs[0] if kind == "segment" else node).shape)
        alike = [other for other in self._candidates(node) if (other.pointers, other.shape) == (pointers, shape)]
        if kind == "rows" or not self._join(alike, node):
            self._open(Region(next(self.numbers), "segment", shape, (1,), pointers=pointers), node)

    def _fold_into(self, node: Node, form: str, shape: tuple[int, ...], reduced: tuple[int, ...]) -> bool:
        """Add a fold to a region of that form, or to an elementwise one that can become it."""
        candidates = self._candidates(node)
        same = [
            region for region in candidates if (region.form, region.shape, region.reduced) == (form, shape, reduced)
        ]
        if self._join(same, node):
            return True
        return any(self._upgrade(region, form, shape, reduced, node) for region in candidates if region.form == "map")

    def _assign_partial(self, node: Node) -> None:
        shape, (reduced, *_) = node.srcs[0].shape, node.attrs
        if len(shape) - 1 not in reduced:  # columns: ride along with a region that walks the same rows
            columns = tuple([k for k in range(len(shape)) if k not in reduced])
            if not self._fold_into(node, "rows", shape, columns):
                self._open(Region(next(self.numbers), "rows", shape, columns), node)
        else:
            self._open(Region(next(self.numbers), "split", shape, reduced), node)

    def _candidates(self, node: Node) -> list[Region]:
        """Regions that compute or read something that `node` needs, latest first."""
        found: dict[Region, None] = {}
        stack, seen = list(node.srcs), set()
        while stack:
            source = stack.pop()
            if source in seen:
                continue
            seen.add(source)
            if 4 * source.size >= node.size or source.op not in MOVEMENT:
                for region in self.users.get(source, ()):
                    found[region] = None
            writers = self.stored.get(source)
            if writers is None:
                stack.extend(source.srcs)
            else:
                for region in writers:
                    found[region] = None
        latest = sorted(found, key=lambda region: region.number, reverse=True)
        related = [region for region in latest if region.joins != "nothing"][:CANDIDATES]
        return related + [region for region in self._alike(node) if region not in found]

    def _alike(self, node: Node) -> list[Region]:
        """Small regions of the form that `node` would open: unrelated work of one kind shares a launch."""
        if PRIMITIVES[node.op].kind == "reduce":
            key = (node.srcs[0].shape, node.attrs[0])
        else:
            key = (node.shape, ())
        if math.prod(key[0]) > SMALL:
            return []
        return [
            region
            for region in reversed(self.regions[-8:])
            if (region.shape, region.reduced) == key and FORMS[region.form].merges and region.pointers is None
        ]

    def _join(self, candidates: Sequence[Region], node: Node) -> bool:
        """Add `node` to the candidate that has to wait least for it, if there is one whose indices fit."""
        best: tuple[int, Region, Walk] | None = None
        for region in candidates:
            walk = self._fits(region, node)
            if walk is not None:
                waits = _after(self._writers(walk, region)) & ~region.before
                if best is None or waits.bit_count() < best[0]:
                    best = (waits.bit_count(), region, walk)
                if not waits:
                    break
        if best is None:
            return False
        self._commit(best[1], node, best[2])
        return True

    def _fits(self, region: Region, node: Node) -> Walk | None:
        """What `node` would read as a member of `region`; None if it does not fit, makes a cycle or shares nothing."""
        at = self._domain_index(region, node)
        if at is None or (self._is_partial(node) and not _same_chunks(region.partials, node)):
            return None
        if len(region.place) >= MOST_FOLDS and PRIMITIVES[node.op].kind in ("reduce", "segment"):
            return None
        walk = Walk(region, self.stored, self._home_for, self.apart)
        try:
            for source in self._walked(node):
                walk.visit(source, at)
        except Conflict:
            return None
        writers = self._writers(walk, region)
        if any(writer.before & region.bit for writer in writers):
            return None
        if not self._has_room(region, walk):
            return None
        if walk.touched:
            return walk
        if region.cost + self._cost(region, walk) > MAX_UNRELATED_COST:
            return None
        if region.joins == "epilogues" or _delays(region, writers):
            return None
        if region.volume > SMALL:
            shared = any(read in region.reads and read.size > 1 for read in walk.reads)
            if not shared and not any(source in region.inlined for source in walk.inlined):
                return None
        return walk

    def _has_room(self, region: Region, walk: Walk) -> bool:
        """Whether one kernel may compute what `region` has and what `walk` found: code of bounded size."""
        values = region.reads.keys() | walk.reads.keys()
        if len(values) + len(region.sinks) + len(region.partials) >= MAX_VALUES:
            return False
        if region.cost + self._cost(region, walk) > MAX_COST:
            return False
        return region.operations + self._operations(region, walk) <= MAX_OPERATIONS

    def _operations(self, region: Region, walk: Walk) -> int:
        """The elementwise operations that `walk` adds to those of `region`."""
        return sum([node not in region.inlined and node.op not in MOVEMENT for node in walk.inlined])

    def _cost(self, region: Region, walk: Walk) -> int:
        """The arithmetic per element that `walk` adds to that of `region`."""
        added = [node for node in walk.inlined if node not in region.inlined]
        return sum([self.choice.own_cost(node) for node in added]) + COST["random"] * len(walk.drawn)

    def _open(self, region: Region, node: Node) -> None:
        """A new region with `node` as its first sink."""
        self.regions.append(region)
        walk = Walk(region, self.stored, self._home_for, self.apart)
        if region.pointers is not None:
            walk.reads[region.pointers] = None
        at = self._domain_index(region, node)
        assert at is not None, f"{node} does not fit the region opened for it"
        for source in self._walked(node):
            walk.visit(source, at)
        self._commit(region, node, walk)

    def _open_anchored(self, region: Region, node: Node) -> None:
        """A new region whose loops are written around `node`: it reads some sources as they lie in memory, others at
        the points of its domain."""
        self.regions.append(region)
        walk = Walk(region, self.stored, self._home_for, self.apart)
        memory: Sequence[Node] = ()
        points: Sequence[Node] = ()
        if region.form == "dot":
            region.operands = operands(node, self.leaves)
            memory = [view.base for view in region.operands.views]
        elif region.form == "template":
            region.template = TEMPLATES[node.op](node, self.leaves)
            memory = region.template.reads
        elif region.form == "scatter":
            memory, points = node.srcs[:1], node.srcs[1:2]
        else:
            points = [source for source in node.srcs if source.op != "scratch"]
        walk.reads.update(dict.fromkeys(memory))
        for source in points:
            walk.visit(source, region.index)
        for source in node.srcs:
            if source.op == "scratch":
                region.sinks.append(source)
                self._store(source, (region,))
        self._commit(region, node, walk)

    def _open_loop(self, node: Node) -> None:
        """A region for a loop: it reads all sources from memory and stores everything that is picked."""
        region = Region(next(self.numbers), "loop", (), anchor=node)
        self.regions.append(region)
        walk = Walk(region, self.stored, self._home_for, self.apart)
        walk.reads.update({window(source, self.leaves)[0]: None for source in node.srcs})
        picks = self.choice.picks[node]
        region.sinks = [*picks, *hidden_states(node, picks)]
        for pick in (node, *region.sinks):
            self._store(pick, (region,))
        self._absorb(region, walk)

    def _upgrade(self, region: Region, form: str, shape: tuple[int, ...], reduced: tuple[int, ...], node: Node) -> bool:
        """Turn an elementwise region into one that also folds `node`, if all its sinks fit the new domain."""
        trial = Region(region.number, form, shape, reduced, before=region.before)
        return self._rebuild(trial, [region], node)

    def _merge(self) -> None:
        """Join regions of one form and domain that share what they read, or are small: fewer kernels, fewer bytes."""
        alike: dict[tuple, list[Region]] = {}
        for region in self.regions:
            if FORMS[region.form].merges:
                alike.setdefault((region.form, region.shape, region.reduced, region.pointers), []).append(region)
        numbered = {region.number: region for region in self.regions}
        for group in alike.values():
            for second in range(1, len(group)):
                for first in range(max(0, second - MERGE_WINDOW), second):
                    a, b = group[first], group[second]
                    if a is not b and self._worth_merging(a, b) and not _somebody_between(a, b, numbered):
                        before = (a.before | b.before) & ~(a.bit | b.bit)
                        trial = Region(b.number, b.form, b.shape, b.reduced, pointers=b.pointers, before=before)
                        if self._rebuild(trial, [a, b], None):
                            group[:] = [trial if region in (a, b) else region for region in group]
                            del numbered[a.number]
                            numbered[trial.number] = trial

    def _drop_unread_rows(self) -> None:
        """Segment numbers that every region which needs them knows from its own loops are not computed."""
        read = {node for region in self.regions for node in region.reads} | self.choice.results | self.homes.keys()
        for region in list(self.regions):
            if all(sink.op == "segment_rows" and sink not in read for sink in region.sinks) and not region.partials:
                self.regions.remove(region)
                for sink in region.sinks:
                    del self.stored[sink]
                for other in self.regions:
                    other.before &= ~region.bit
                for node, writers in self.stored.items():
                    self.stored[node] = tuple([writer for writer in writers if writer is not region])

    def _worth_merging(self, a: Region, b: Region) -> bool:
        if len(a.place) + len(b.place) > MOST_FOLDS:
            return False
        if a.operations + b.operations > MAX_OPERATIONS or a.cost + b.cost > MAX_COST:
            return False
        if len(a.reads.keys() | b.reads.keys()) + len(a.stores) + len(b.stores) > MAX_VALUES:
            return False
        if a.cost + b.cost > MAX_UNRELATED_COST and not any(sink in b.reads for sink in a.sinks):
            return False
        if not self._launch_outweighs(a, b) and not any(sink in b.reads for sink in a.sinks):
            shared = a.reads.keys() & b.reads.keys()
            return any(read.size > 1 and 4 * read.size >= a.volume for read in shared)
        return True

    def _launch_outweighs(self, a: Region, b: Region) -> bool:
        """Whether two regions of one domain do so little that one launch less is worth more than anything else."""
        if a.volume <= SMALL:
            return True
        together = len(a.reads) + len(b.reads) <= MOST_READS
        return self.blocks and a.form in ("map", "cols") and a.volume <= SMALL_FOR_BLOCKS and together

    def _rebuild(self, trial: Region, regions: Sequence[Region], node: Node | None) -> bool:
        """Put all that `regions` compute, and `node`, into `trial` instead. False, and no change, where that fails."""
        held = {sink: (region,) for region in regions for sink in (*region.sinks, *region.partials)}
        spare = self._read_only_among(regions, held)
        members = sorted([*held.keys() - spare, *([node] if node else [])], key=self.position.__getitem__)
        for sink in held:
            del self.stored[sink]
        walk = Walk(trial, self.stored, lambda value, _: self._home_outside(value, regions), self.apart)
        if trial.pointers is not None:
            walk.reads[trial.pointers] = None
        try:
            for member in members:
                at = self._domain_index(trial, member)
                if at is None or (self._is_partial(member) and not _same_chunks(trial.partials, member)):
                    raise Conflict
                for source in self._walked(member):
                    walk.visit(source, at)
                self._settle(trial, member)
            writers = self._writers(walk, trial)
            gone = sum(region.bit for region in regions)
            if any(writer in regions or writer.before & (trial.bit | gone) for writer in writers):
                raise Conflict
            if node is not None and not any(sink in walk.inlined for sink in held) and len(regions) == 1:
                alone = Walk(trial, {**self.stored, **held}, self._home_for, self.apart)
                for source in self._walked(node):
                    alone.visit(source, self._domain_index(trial, node))
                if _delays(regions[0], self._writers(alone, trial)):
                    raise Conflict
        except Conflict:
            self.stored.update(held)
            return False
        self._replace(trial, regions)
        for sink in held:
            if sink not in spare:
                self._store(sink, (trial,))
        if node is not None:
            self._store(node, (trial,))
        self._absorb(trial, walk)
        return True

    def _read_only_among(self, regions: Sequence[Region], sinks: Collection[Node]) -> set[Node]:
        """Values that were stored only for others of `regions` to read: together they need no memory."""

        def is_read_outside(sink: Node) -> bool:
            return any(sink in user.reads and user not in regions for user in self.users.get(sink, ()))

        return {sink for sink in sinks if sink not in self.choice.sinks and not is_read_outside(sink)}

    def _replace(self, trial: Region, regions: Sequence[Region]) -> None:
        """Let `trial` take the place of `regions` everywhere."""
        gone = sum(region.bit for region in regions)
        self.regions = [region for region in self.regions if region not in regions] + [trial]
        for region in self.regions:
            if region.before & gone:
                region.before = (region.before & ~gone) | (trial.bit if region is not trial else 0)
        old = set(regions)
        for source in {source for region in regions for source in (*region.reads, *region.inlined)}:
            users = self.users[source]
            users[:] = list(dict.fromkeys([trial if user in old else user for user in users]))
        for stored in dict.fromkeys([node for region in regions for node in self.written_by.pop(region, ())]):
            writers = self.stored.get(stored)
            if writers is not None:
                self._store(stored, tuple(dict.fromkeys([trial if w in old else w for w in writers])))

    def _commit(self, region: Region, node: Node, walk: Walk) -> None:
        """Make `node`, for which `walk` found what is read, a member of `region`."""
        self._settle(region, node)
        for result in (node, *results_of(node)):
            self._store(result, (region,))
        self._absorb(region, walk)

    def _settle(self, region: Region, node: Node) -> None:
        """Enter `node` among what `region` computes."""
        if self._is_partial(node):
            region.partials.append(node)
            return
        region.sinks.extend(results_of(node) or [node])
        kind = PRIMITIVES[node.op].kind
        if kind in ("dot", "template"):
            region.place[node] = region.index
        elif kind in ("reduce", "segment"):
            region.place[node] = tuple([region.index[k] for k in region.kept])

    def _absorb(self, region: Region, walk: Walk) -> None:
        """Enter what `walk` found into `region`: memory read, values on the way, and who has to run before."""
        for read, home in walk.reads.items():
            if home is not None and read not in self.stored:  # a dear value: who computed it first stores it now
                home.sinks.append(read)
                self._store(read, (home,))
            region.reads[read] = None
        region.accesses.update(walk.accesses)
        region.operations += self._operations(region, walk)
        region.cost += self._cost(region, walk)
        for source, at in walk.inlined.items():
            region.inlined.setdefault(source, at)
        for writer in self._writers(walk, region):
            region.before |= writer.before | writer.bit
        self.preceding |= region.before
        if self.preceding & region.bit:
            for other in self.regions:
                if other.before & region.bit:
                    other.before |= region.before
        for source in (*walk.reads, *walk.inlined):
            users = self.users.setdefault(source, [])
            if region not in users:
                users.append(region)

    def _domain_index(self, region: Region, node: Node):
        """The region's axes as indices into what is walked for `node`: the source of a reduction, else itself."""
        if PRIMITIVES[node.op].kind in ("reduce", "segment"):
            return region.folded_index(node.srcs[0].shape)
        return region.folded_index(node.shape) if node.op == "segment_rows" else region.indices_for(node.shape)

    def _walked(self, node: Node) -> tuple[Node, ...]:
        kind = PRIMITIVES[node.op].kind
        return {"reduce": node.srcs, "segment": node.srcs[:1], "rows": ()}.get(kind, (node,))

    @staticmethod
    def _is_partial(node: Node) -> bool:
        return node.op.startswith("partial_") and len(node.srcs[0].shape) - 1 not in node.attrs[0]

    def _writers(self, walk: Walk, region: Region) -> list[Region]:
        """Regions that must run before `region` for what `walk` reads."""
        found: dict[Region, None] = {}
        for read, home in walk.reads.items():
            for writer in self.stored.get(read, () if home is None else (home,)):
                if writer is not region:
                    found[writer] = None
        return list(found)

    def _home_outside(self, node: Node, regions: Sequence[Region]) -> Region | None:
        """`_home_for` a region that takes the place of others."""
        if any(region in self.users.get(node, ()) for region in regions):
            return None
        return self._home_for(node, regions[-1])

    def _home_for(self, node: Node, region: Region) -> Region | None:
        """The earlier region that should store `node` because computing it again is dear; None to compute it here."""
        users = self.users.get(node)
        if not users or region in users:
            return None
        if len(self.choice.reads[node]) < 2 and self.choice.cost[node] < DEAR:
            return None
        if not self._is_dear(node):
            return None
        for other in users:
            at = other.inlined.get(node)
            fits = at is not None and node.size > 1 and at == other.indices_for(node.shape)
            if fits and not other.before & region.bit and other.joins != "nothing":
                return other
        return None

    def _is_dear(self, node: Node) -> bool:
        """Whether computing `node` once more, from what is stored by now, takes two large reads or much arithmetic."""
        stack, seen, cost, reads = [node], {node}, 0, 0
        while stack:
            at = stack.pop()
            if at is not node and (at in self.stored or PRIMITIVES[at.op].kind == "gather"):
                reads += 2 * at.size >= node.size
                continue
            cost += self.choice.own_cost(at)
            for source in at.srcs:
                if source not in seen:
                    seen.add(source)
                    stack.append(source)
        return reads >= 2 or cost >= DEAR

    # --- concatenations and order ------------------------------------------------------------------------------------

    def _place_concat(self, node: Node) -> None:
        """All parts were stored before (they are sinks): give each its place in the whole."""
        axis, at = node.attrs[0], 0
        strides, leading = row_major(node.shape), math.prod(node.shape[:axis]) == 1
        writers: dict[Region, None] = {}
        for source in node.srcs:
            base = base_of(source)
            own = row_major(base.shape) if leading else reshaped(source.shape, strides, base.shape)
            if base is source:
                own = strides
            assert own is not None, "decompose copies what does not fit"
            self.homes[base] = Home(node, own, at * strides[axis])
            for region in self.stored[base]:
                writers[region] = None
            at += source.shape[axis]
        self._store(node, tuple(writers))

    def _place_windows(self, node: Node) -> None:
        """Contiguous slices of a stored value are memory of their own: kernels that read them know no offset, so that
        one kernel serves readers of different slices."""
        is_template = PRIMITIVES[node.op].kind == "template"
        for part in self.choice.slices.get(node, ()):
            offset = slice_offset(part)
            if offset is not None and (is_template or part not in self.choice.sinks):
                self.homes[part] = Home(node, row_major(part.shape), offset // node.dtype.itemsize)
                self._store(part, self.stored[node])

    def _place_after(self, node: Node) -> None:
        """The memory of its first source, for those who run after all that the second is computed from."""
        writers = dict.fromkeys(self.stored[base_of(node.srcs[0])])
        stack, seen = [node.srcs[1]], set()
        while stack:
            source = stack.pop()
            if source not in seen:
                seen.add(source)
                if source in self.stored:
                    writers.update(dict.fromkeys(self.stored[source]))
                else:
                    stack.extend(source.srcs)
        self._store(node, tuple(writers))


def _delays(region: Region, writers: Sequence[Region]) -> bool:
    """Whether a value that needs only `writers` would have to wait for more by joining `region`."""
    return bool(region.before & ~_after(writers))


def _after(writers: Sequence[Region]) -> int:
    """The regions that come before someone who needs `writers`, as a bit set."""
    before = 0
    for writer in writers:
        before |= writer.before | writer.bit
    return before


def _somebody_between(a: Region, b: Region, numbered: dict[int, Region]) -> bool:
    """Whether a third region must run between two. Late ones are asked first: in a chain, the last one does."""
    both = a.bit | b.bit
    before = (a.before | b.before) & ~both
    while before:
        number = before.bit_length() - 1
        if numbered[number].before & both:
            return True
        before ^= 1 << number
    return False


def _same_chunks(partials: Sequence[Node], node: Node) -> bool:
    return all(other.attrs[2:] == node.attrs[2:] for other in partials)
