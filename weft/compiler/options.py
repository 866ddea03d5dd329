"""Options: what a program is compiled for, and who observes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.graph.node import Node
from weft.plan.device import Device

if TYPE_CHECKING:
    from weft.compiler.inspect.explain import Explained
    from weft.compiler.inspect.origins import Origins


@dataclass(frozen=True, slots=True)
class Options:
    """The options of every pass. The two observers only collect: `notes` gets what each step of the plan computes,
    `origins` what each step was made for; `origins` leaves the plan as it is, with `notes` each step keeps a launch of
    its own."""

    device: Device
    is_loop_body: bool = False  # the program is one iteration of a loop: every output has a slot
    rows_in_place: bool = True  # a few rows may be written into their table
    notes: list[Explained] | None = None
    origins: Origins | None = None

    def watch(self, nodes: Iterable[Node]) -> list[Node]:
        """The nodes as a list for a pass to go through, which tells `origins` where the pass is."""
        return list(nodes) if self.origins is None else self.origins.watch(nodes)
