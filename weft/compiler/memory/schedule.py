"""The order in which regions run, chosen so that little memory is in use at a time."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import replace

from weft.compiler.fusion.region import Region
from weft.compiler.memory.storage import Allocation, stored_results
from weft.compiler.options import Options
from weft.graph.node import Node


def schedule_steps(allocation: Allocation, options: Options) -> Allocation:
    """The regions, each after all that it depends on. Among those that are ready, the one runs next that leaves the
    arena smallest: what frees memory runs before what allocates some; otherwise in order of creation."""
    regions, storage, fixed = allocation.regions, allocation.storage, allocation.outside_arena()
    touched: dict[Region, list[Node]] = {}
    users: dict[Node, int] = {}
    for region in regions:
        values = dict.fromkeys([storage.locate(node)[0] for node in (*stored_results(region), *region.reads)])
        touched[region] = [value for value in values if value not in fixed]
        for value in touched[region]:
            users[value] = users.get(value, 0) + 1
    alive: set[Node] = set()
    done = 0
    out: list[Region] = []
    # Regions that are ready, by their position among all; the others wait for one that has not run, the latest of them.
    position = {region: number for number, region in enumerate(regions)}
    ready: list[tuple[int, Region]] = []
    waiting: dict[int, list[Region]] = {}

    def enter(region: Region) -> None:
        missing = region.before & ~done
        if missing:
            waiting.setdefault(missing.bit_length() - 1, []).append(region)
        else:
            bisect.insort(ready, (position[region], region), key=lambda item: item[0])

    for region in regions:
        enter(region)
    while len(out) < len(regions):
        assert ready, "regions depend on each other in a circle"
        growth = [_growth(touched[region], alive, users) for _, region in ready[: options.device.tuning.max_ready]]
        _, best = ready.pop(growth.index(min(growth)))
        out.append(best)
        done |= best.bit
        for value in touched[best]:
            users[value] -= 1
            alive.add(value)
        for region in waiting.pop(best.number, ()):
            enter(region)
    return replace(allocation, regions=tuple(out))


def _growth(values: Sequence[Node], alive: set[Node], users: dict[Node, int]) -> int:
    """By how many bytes the arena grows if a region that touches `values` runs now."""
    added = sum(value.nbytes for value in values if value not in alive)
    return added - sum(value.nbytes for value in values if users[value] == 1)
