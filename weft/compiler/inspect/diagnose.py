"""Which index left its axis, found after a run that noted one. Nothing is computed while all is well.

The index's few nodes are computed again, with NumPy, from the memory that the run read. A run outside of compiled
functions retains that memory until it is known to be over. A compiled function on a GPU does not, and no memory that
the run itself writes has the values from before: there the message says the operation and the line, not the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from weft.compiler.program import Program
from weft.graph.body import substitute
from weft.graph.node import Node, placeholder, toposort
from weft.graph.ranges import Range, ranges_of
from weft.graph.reference import run_all
from weft.plan.device import Buffer, Device, Explain, Slab

MOST_NODES = 64  # that are computed again for an error message
MOST_BYTES = 256 << 20  # that are read for one


def split_site(text: str, program: Program) -> tuple[int, str]:
    """(number of the node, rest of the text) of a message that begins with the line of a node; else (-1, text)."""
    for number, node in enumerate(program.nodes):
        if node.site and text.startswith(node.site + ": "):
            return number, text[len(node.site) :]
    return -1, text


def join_site(number: int, rest: str, program: Program) -> str:
    """The message for a program of the same form, perhaps made at another line of the user."""
    return f"{program.nodes[number].site or 'an unknown line'}{rest}" if number >= 0 else rest


class Diagnosis:
    """The indices of a program that are checked while it runs, over placeholders: none of its memory is retained.

    `sites` are the messages of its plan, one for each status word; `positions` are the leaves that indices are made of.
    """

    __slots__ = ("_leaves", "_sites", "positions")

    def __init__(self, program: Program, sites: Sequence[str]):
        self._leaves: dict[Node, int] = {}  # placeholders, and the leaves that they represent
        ranges: dict[str, list[Range]] = {}  # by line
        position = {leaf: number for number, leaf in enumerate(program.leaves)}
        written = _find_written(program)
        stands: dict[Node, Node] = {}
        for node in program.nodes:
            for found in ranges_of(node) if node.site else ():
                order = toposort([found.index, found.given], position.__contains__)
                below = [one for one in order if one in position]
                if len(order) > MOST_NODES or sum(one.nbytes for one in below) > MOST_BYTES:
                    continue
                if any(position[one] in written for one in below):
                    continue
                for one in below:
                    if one not in stands:
                        stands[one] = placeholder(one.shape, one.dtype, one.device)
                        self._leaves[stands[one]] = position[one]
                new = substitute(order, {one: stands[one] for one in below}, lambda one: None)
                moved = replace(found, index=new[found.index], given=new[found.given])
                ranges.setdefault(node.site or "", []).append(moved)
        self.positions = tuple(self._leaves.values())
        split = [split_site(text, program) for text in sites]
        self._sites = [(number, rest, ranges.get(_line(program, number), [])) for number, rest in split]

    def messages(self, program: Program) -> list[str]:
        """The messages of the plan for a program of this form: its lines may be others."""
        return [join_site(number, rest, program) for number, rest, _ in self._sites]

    def explain(
        self, word: int, addresses: Mapping[int, int] | Sequence[int] | None, messages: Sequence[str]
    ) -> tuple[str, str, str]:
        """(line, what was given, what was expected) for a status word, from the addresses of the run's leaves; None
        where that memory may have been reused."""
        line, _, wrong = messages[word].rpartition(": ")
        if addresses is None:
            return line, wrong, ""
        try:
            for found in self._sites[word][2]:
                fault = self._fault(found, line, addresses)
                if fault is not None:
                    return line, *fault
        except Exception:  # an error about the error would hide it
            pass
        return line, wrong, ""

    def _fault(self, found: Range, line: str, addresses: Mapping[int, int] | Sequence[int]) -> tuple[str, str] | None:
        order = toposort([found.index, found.given], lambda node: False)
        known = {node: _read(node, addresses[self._leaves[node]]) for node in order if node in self._leaves}
        values = run_all(order, known)
        return found.fault(line, values[found.index], values[found.given])


def _find_written(program: Program) -> set[int]:
    """The leaves whose memory a run changes, and those that overlap it."""
    written = {write.leaf for write in program.writes}
    written |= {big for small, big, _ in program.overlaps if small in written}
    return written | {small for small, big, _ in program.overlaps if big in written}


def _line(program: Program, number: int) -> str:
    return program.nodes[number].site or "" if number >= 0 else ""


def explanation(diagnosis: Diagnosis, program: Program, buffers: Sequence[Buffer]) -> Explain:
    """The explanation for a run of `program` that reads these buffers; it retains those that indices are computed
    from."""
    held, messages = {number: buffers[number] for number in diagnosis.positions}, diagnosis.messages(program)
    return lambda word: diagnosis.explain(word, {number: one.pointer for number, one in held.items()}, messages)


def _read(leaf: Node, address: int) -> np.ndarray:
    """The bytes at an address of the leaf's device."""
    device: Device = leaf.device
    memory = Slab(device, leaf.nbytes, address, None)
    return device.backend.peek(Buffer(memory, 0, leaf.nbytes), leaf.shape, leaf.dtype)
