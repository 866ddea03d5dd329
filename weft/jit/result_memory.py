"""Memory for what a compiled function returns, which is used again as soon as nothing refers to a result."""

from __future__ import annotations

import weakref

from weft.plan.device import Slab

MAX_SPARE_BYTES = 1024  # of results up to which a second piece of memory is kept for them


class ResultMemory:
    """Memory for the results of one slot, used again once nothing refers to the last result.

    Each run makes a new `Slab` for the memory. All that reads a result refers to that slab: tensors, views, values that
    wait for it, NumPy arrays, capsules. So the memory is free when the weak reference to the slab is dead. Small
    results have two pieces: `loss = step(x)` retains a loss until the next is there, and the two alternate.
    """

    __slots__ = ("pieces", "slot")

    def __init__(self, slot: int):
        self.slot = slot
        self.pieces: list[Piece] = []  # small results: two at most, else one

    def add_piece(self, slab: Slab) -> None:
        """Keep another piece of memory, which `slab` is the first use of; the oldest goes where there are enough."""
        most = 2 if slab.nbytes <= MAX_SPARE_BYTES else 1
        self.pieces = [*self.pieces[len(self.pieces) - most + 1 :], Piece(slab)]


class Piece:
    """One allocation, and the slab that was made for it last."""

    __slots__ = ("form", "last_slab")

    def __init__(self, slab: Slab):
        self.form = (slab.device, slab.nbytes, slab.pointer, slab.owner)
        self.last_slab = weakref.ref(slab)
