"""The memory of the emulated GPU (see `lockstep`), which notes who reads and writes each element and finds races."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from weft.kernels.ir.language import Copy, If, Kernel, Loop, Reduction, Stmt, Store


class Watch:
    """Who wrote and who read each place of some memory last, and behind which barrier, in one launch.

    A lane is (its workgroup) * (lanes + 1) + (its number); the number `lanes` means several lanes of that workgroup,
    and the workgroup `workgroups` several workgroups. A note is barriers * everybody + lane; 0 means no lane.
    """

    def __init__(self, size: int, lanes: int, workgroups: int):
        self.each, self.everybody = lanes + 1, (lanes + 1) * (workgroups + 1)
        self.written, self.read = np.zeros(size, np.int64), np.zeros(size, np.int64)

    def reads(self, places: np.ndarray, who: np.ndarray, now: np.ndarray) -> None:
        self.check("read", self.written, places, who, now)
        self.note(self.read, places, who, now)

    def writes(self, places: np.ndarray, who: np.ndarray, now: np.ndarray) -> None:
        for notes in (self.written, self.read):
            self.check("written", notes, places, who, now)
        self.note(self.written, places, who, now)

    def check(self, what: str, notes: np.ndarray, places: np.ndarray, who: np.ndarray, now: np.ndarray) -> None:
        when, other = np.divmod(notes[places], self.everybody)
        met = (when == now) | (other // self.each != who // self.each)
        bad = (when > 0) & (other != who) & met
        assert not bad.any(), (
            f"{what} before a barrier: {places[bad][:4]}, by lanes {who[bad][:4]} and {other[bad][:4]}"
        )

    def note(self, notes: np.ndarray, places: np.ndarray, who: np.ndarray, now: np.ndarray) -> None:
        when, other = np.divmod(notes[places], self.everybody)
        self.put(notes, places, np.where((when == now) & (other != who), self.several(who, other), who), now)
        last = notes[places] % self.everybody
        for clash in ((last != who) & (last // self.each == who // self.each), last // self.each != who // self.each):
            self.put(notes, places[clash], self.several(who[clash], last[clash]), now[clash])

    def put(self, notes: np.ndarray, places: np.ndarray, who: np.ndarray, now: np.ndarray) -> None:
        notes[places] = now * self.everybody + who

    def several(self, who: np.ndarray, other: np.ndarray) -> np.ndarray:
        """What stands for both of two lanes."""
        workgroups = who // self.each
        return np.where(workgroups == other // self.each, (workgroups + 1) * self.each - 1, self.everybody - 1)


class Memory:
    """An array that lanes share: `unit` places of its watch to an element, from `first` on."""

    def __init__(self, data: np.ndarray, watch: Watch | None, first: int = 0, unit: int = 1):
        self.data, self.watch, self.first, self.unit = data, watch, first, unit

    def reads(self, places: np.ndarray, who: np.ndarray, now: np.ndarray) -> np.ndarray:
        if self.watch is not None:
            self.watch.reads(self.first + places * self.unit, who, now)
        return self.data[places]

    def writes(self, places: np.ndarray, who: np.ndarray, now: np.ndarray, values: np.ndarray) -> None:
        if self.watch is not None:
            self.watch.writes(self.first + places * self.unit, who, now)
        values = values.astype(self.data.dtype)
        self.data[places] = values
        found = self.data[places]
        same = (found == values) | ((found != found) & (values != values))  # NaN is one value here
        assert np.all(same), f"lanes write different values to one element: {places[~same][:4]}"


def stored_in(body: Iterable[Stmt]) -> Iterator[str]:
    """The names of memory that statements write."""
    for stmt in body:
        if isinstance(stmt, Store):
            yield stmt.buffer
        elif isinstance(stmt, Copy):
            yield stmt.target
        elif isinstance(stmt, Loop | Reduction | If):
            yield from stored_in(stmt.body)
            yield from stored_in(stmt.otherwise) if isinstance(stmt, If) else ()


def watched(kernel: Kernel, arrays: dict[str, np.ndarray], workgroups: int) -> dict[str, Memory]:
    """The buffers of a launch. Those that overlap have one watch; there is none where nothing is written."""
    written, found = set(stored_in(kernel.body)), {}
    rows = sorted((array.ctypes.data, array.ctypes.data + array.nbytes, name) for name, array in arrays.items())
    while rows:
        (start, end, name), *rows = rows
        names = [name]
        while rows and rows[0][0] < end:
            names.append(rows[0][2])
            end, rows = max(end, rows[0][1]), rows[1:]
        unit = min(arrays[name].itemsize for name in names)
        needed = not written.isdisjoint(names)
        watch = Watch((end - start) // unit + 1, kernel.geometry.lanes, workgroups) if needed else None
        for name in names:
            data = arrays[name]
            found[name] = Memory(data, watch, (data.ctypes.data - start) // unit, data.itemsize // unit)
    return found
