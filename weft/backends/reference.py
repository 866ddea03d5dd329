"""The reference backend: NumPy evaluates one primitive after the other. Slow, simple, and the oracle for the others.

It runs graphs, not plans; `run_nodes` is what `compiler.realize` calls for tensors on this device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.base import host_memory
from weft.base.counters import COUNTERS
from weft.base.dtypes import ALL, DType
from weft.base.errors import GraphError, IndexRangeError, out_of_memory, problem
from weft.graph.node import Node, toposort
from weft.graph.ranges import checked_source, ranges_of
from weft.graph.reference import run_all
from weft.kernels.ir.language import Kernel
from weft.plan.device import Buffer, Device, Explain, HostWords, Slab
from weft.plan.plan import Code, Plan
from weft.plan.protocols import Executable

VIEWS = frozenset({"reshape", "permute", "expand", "slice", "flip", "pick"})  # take no memory in NumPy


class ReferenceBackend:
    """Memory is NumPy byte arrays; there is one device, `reference`."""

    runs_ahead = False

    def __init__(self) -> None:
        self._device = Device("reference", 0, self, "NumPy interpreter", frozenset(ALL))

    def devices(self) -> list[Device]:
        return [self._device]

    def allocate(self, nbytes: int) -> Slab:
        _require(nbytes)
        try:
            memory = np.zeros(max(nbytes, 1), np.uint8)
        except (MemoryError, ValueError):
            raise out_of_memory("reference", nbytes, *host_memory.memory()) from None
        return Slab(self._device, nbytes, memory.ctypes.data, memory)

    def upload_new(self, array: np.ndarray) -> Slab:
        """New memory with the bytes of an array."""
        slab = self.allocate(array.nbytes)
        self.upload(Buffer(slab, 0, array.nbytes), array)
        return slab

    def upload(self, buffer: Buffer, array: np.ndarray) -> None:
        COUNTERS.uploads += 1
        COUNTERS.upload_bytes += buffer.nbytes
        _bytes(buffer)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def download(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        COUNTERS.downloads += 1
        COUNTERS.download_bytes += buffer.nbytes
        return _array(buffer, shape, dtype).copy()

    def adopt(self, array: np.ndarray) -> Slab:
        """The memory of a contiguous array, which stays the caller's and is only read."""
        memory = array.reshape(-1).view(np.uint8)
        return Slab(self._device, array.nbytes, memory.ctypes.data, memory)

    def window(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """The buffer's memory as an array that cannot be written to."""
        COUNTERS.downloads += 1
        COUNTERS.download_bytes += buffer.nbytes
        array = _array(buffer, shape, dtype)
        array.flags.writeable = False
        return array

    peek = download

    def copy(self, target: Buffer, source: Buffer) -> None:
        _bytes(target)[:] = _bytes(source)

    def clear(self, buffer: Buffer) -> None:
        _bytes(buffer)[:] = 0

    def require(self, nbytes: int) -> None:
        """Raise where so much memory is not there."""
        _require(nbytes)

    def memory(self) -> tuple[int, int]:
        return host_memory.memory()

    def arena(self, nbytes: int) -> Slab:
        raise _interprets("the temporaries of a plan")

    def host_words(self, nbytes: int) -> HostWords:
        raise _interprets("the numbers of a plan")

    def status(self, nbytes: int) -> Slab:
        raise _interprets("the status words of a plan")

    def watch(self, status: Slab, plan: Plan, explain: Explain | None = None) -> None:
        raise _interprets("the status words of a plan")

    def slot_table(self, count: int) -> Any:
        raise _interprets("the slots of a plan")

    def identity(self) -> None:
        """There are no plans to keep."""

    def render(self, kernel: Kernel) -> Code:
        raise _interprets("a kernel")

    def executable(self, plan: Plan) -> Executable:
        raise _interprets("a plan")

    def counts(self) -> None:
        """Memory is not counted."""

    def empty_cache(self) -> None:
        """Nothing is kept for reuse."""

    def synchronise(self) -> None:
        """Nothing is ever under way."""

    def run_nodes(self, nodes: Sequence[Node], float64: bool = False) -> list[np.ndarray]:
        """The values of `nodes`, which also get a buffer each. With `float64`, floats are computed in double precision
        throughout and nothing is stored, so the answer is better than the node's dtype could hold."""
        order = toposort(nodes)
        known: dict[Node, np.ndarray] = {}
        for node in order:
            if node.buffer is not None:
                value = _array(node.buffer, node.shape, node.dtype)
                known[node] = value.astype(np.float64) if float64 and node.dtype.kind == "f" else value
        try:
            values = run_all(order, known, float64, lambda node, arrays: _check(node, arrays, known))
        except MemoryError:
            largest = max((node.nbytes for node in order), default=0)
            raise out_of_memory("reference", largest, *host_memory.memory()) from None
        if not float64:
            for node in nodes:
                if node.buffer is None:
                    node.buffer = self._store(values[node])
        return [values[node] for node in nodes]

    def _store(self, value: np.ndarray) -> Buffer:
        buffer = Buffer(self.allocate(value.nbytes), 0, value.nbytes)
        _bytes(buffer)[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return buffer


def _require(nbytes: int) -> None:
    """Raise where so much memory is not there, before any of it is touched."""
    if nbytes >= host_memory.CHECKED and nbytes > host_memory.memory()[0]:
        raise out_of_memory("reference", nbytes, *host_memory.memory())


def _bytes(buffer: Buffer) -> np.ndarray:
    return buffer.slab.owner[buffer.offset : buffer.offset + buffer.nbytes]


def _array(buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    return _bytes(buffer).view(dtype.numpy).reshape(shape)


def _interprets(given: str) -> Exception:
    return problem(GraphError, "reference backend", given, "a graph: this backend interprets nodes", "use device 'cpu'")


def _check(node: Node, arrays: Sequence[np.ndarray], known: dict[Node, np.ndarray]) -> None:
    """Raise where a node has no value here."""
    if node.op == "input":
        raise problem(GraphError, "reference backend", f"the placeholder {node!r}", "a node with a value")
    if node.op == "iota":  # a line of numbers, expanded
        _require(node.shape[node.attrs.axis] * node.dtype.itemsize)
    elif node.op not in VIEWS:
        _require(node.nbytes)
    _check_range(node, arrays, known)


def _check_range(node: Node, arrays: Sequence[np.ndarray], known: dict[Node, np.ndarray]) -> None:
    """An index outside its axis, and row pointers that do not rise, are errors here as on every backend."""
    site = node.site or node.op
    checked = checked_source(node)
    if checked is not None:
        index, extent = arrays[checked[0]], checked[1]
        if ((index < 0) | (index >= extent)).any():
            raise problem(IndexRangeError, site, *_describe_index(node, extent, known), "check the values")
    elif node.op.startswith("segment_"):
        fault = ranges_of(node)[0].fault(site, arrays[-1], arrays[-1])
        if fault is not None:
            raise problem(IndexRangeError, site, *fault, "check the values")


def _describe_index(node: Node, extent: int, known: dict[Node, np.ndarray]) -> tuple[str, str]:
    """(what was given, what was expected): the first index outside, where its values follow from what is `known`."""
    for found in ranges_of(node):
        order = toposort([found.index, found.given], known.__contains__)
        if all(one in known or one.op != "input" for one in order):  # else it is inside a loop
            values = run_all(order, known)
            fault = found.fault(node.site or node.op, values[found.index], values[found.given])
            if fault is not None:
                return fault
    return f"an index outside an axis of extent {extent}", ""
