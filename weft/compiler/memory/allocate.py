"""The memory of every stored value. Donated leaves first, then outputs; the rest goes to the arena.

A value that replaces a leaf (an updated parameter) is written straight into the leaf's memory when every other reader
of that memory has run, or reads exactly the element being written; else it is computed elsewhere and copied at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from weft.compiler.fusion.fuse import Fusion
from weft.compiler.fusion.region import Region
from weft.compiler.fusion.views import base_of
from weft.compiler.memory.in_place import Donation
from weft.compiler.memory.storage import Allocation, Storage
from weft.compiler.options import Options
from weft.compiler.passes.loops import last_entries
from weft.graph.node import Node


def assign_memory(fusion: Fusion, options: Options) -> Allocation:
    """Choose memory for all stored nodes, and note in each region which results are read outside of it. May add order
    between regions (readers before the writer of their memory)."""
    program = fusion.program
    inside: dict[Node, tuple[Node, int]] = {}
    for node, window in fusion.windows.items():
        inside[node] = (window.whole, window.offset * node.dtype.itemsize)
    inside.update({node: (base_of(node.srcs[0]), 0) for node in fusion.stored if node.op == "after"})
    for region in fusion.regions:
        if region.form == "loop":
            inside.update(last_entries(region.roots))
    donation = Donation(fusion)
    donation.run()
    inside.update(donation.inside)
    written = {write.output for write in program.writes}
    results = [base_of(node) for position, node in enumerate(program.outputs) if position not in written]
    storage = Storage(MappingProxyType(inside), (), tuple(donation.copies))
    outputs = tuple(dict.fromkeys([storage.locate(node)[0] for node in results]))
    storage = replace(storage, outputs=outputs)
    return Allocation(program, _retain_results(fusion, storage, donation.before), storage)


def _retain_results(fusion: Fusion, storage: Storage, before: Mapping[Region, int]) -> tuple[Region, ...]:
    """The regions with their final order, and with the results that are read outside of them and the strides of those
    that are stored inside others."""
    read = {base_of(node) for node in fusion.program.outputs}
    read.update([value for value, _, _ in storage.copies])
    read.update(storage.inside)
    read.update([whole for whole, _ in storage.inside.values()])
    read.update(fusion.windows)
    for region in fusion.regions:
        read.update(region.reads)
    windows = fusion.windows
    return tuple([
        replace(
            region,
            before=before.get(region, region.before),
            retained=frozenset([root for root in region.roots if root in read]),
            strides=MappingProxyType({root: windows[root].strides for root in region.roots if root in windows}),
        )
        for region in fusion.regions
    ])  # fmt: skip
