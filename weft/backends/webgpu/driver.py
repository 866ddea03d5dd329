"""wgpu on one adapter: `backends.gpu.driver.Driver`.

Memory are wgpu's buffers with addresses of `backends.gpu.handles`. Work is collected as commands and encoded into one
command buffer when it is needed: when something is read or written by the host, at the end of a graph's replay, and
after `MAX_PENDING` launches. A launch binds whole buffers; its words (offsets, scalars, range) lie in a uniform buffer,
one for all pending launches and one for each graph. A graph keeps pipelines and bind groups: replaying it encodes one
command buffer of them and submits it.

WebGPU moves words of four bytes: other numbers of bytes go through small kernels (`backends.webgpu.byte_copies`).

A signal handler may raise at any call (Ctrl-C does; see `weft.base.locks`), or compute something on this device.
Pending commands stay pending until they are submitted: C code submits them and removes them from the list, which
nothing interrupts, and only if nothing was put on the queue since the submission was begun; else it is begun anew. The
buffer for small downloads is not in `_readback` while it is mapped: submitting a command that writes to a mapped buffer
would end the process.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.backends.gpu.handles import RANGE_ALIGNMENT, HandleMemory
from weft.backends.gpu.opened import close_on_failure
from weft.backends.gpu.run_ahead import RunAhead
from weft.backends.webgpu import byte_copies
from weft.backends.webgpu.clock import TIMESTAMP_FEATURES, Clock, Event
from weft.backends.webgpu.commands import Arguments, Graph, Launch, encode
from weft.backends.webgpu.compile import Compiler, Function
from weft.backends.webgpu.errors import raise_wgpu_errors
from weft.backends.webgpu.memory_size import memory_size
from weft.base.errors import WeftError, exceeds_allocation
from weft.base.locks import new_lock
from weft.plan.plan import Code

MAX_PENDING = 64  # commands that wait to be submitted
ARGUMENT_BYTES = 1 << 16  # of the words of pending launches
MAX_BIND_GROUPS = 8192  # that are kept for the next launch with the same buffers
SPARE_BYTES = 256  # of the buffer that stands for memory of 0 bytes
STORAGE_USAGE = 128 | 8 | 4  # storage, copy to, copy from
UNIFORM_USAGE = 64 | 8  # uniform, copy to
READBACK_USAGE = 1 | 8  # mapped for reading, copy to
READBACK_BYTES = 1 << 16  # of the buffer that small downloads go through
MAX_CALLS = 2  # of C that end a submission: one submits, one removes what was submitted from the list


class WebGpuDriver:
    """One device of wgpu, opened with these features and limits."""

    can_capture_graphs = True

    def __init__(self, adapter: Any, features: Sequence[str], limits: dict[str, int]):
        from wgpu.backends.wgpu_native import ffi, lib

        self._ffi, self._lib = ffi, lib
        self.name = str(adapter.info["device"])
        with raise_wgpu_errors(self.name):
            self.device = adapter.request_device_sync(required_features=list(features), required_limits=limits)
        with close_on_failure(self):
            self._prepare(memory_size(adapter.info), features)

    def _prepare(self, capacity: int, features: Sequence[str]) -> None:
        """What the device needs before its first launch."""
        self.queue = self.device.queue
        self.limits = dict(self.device.limits)
        self.largest = self.limits["max-buffer-size"] // RANGE_ALIGNMENT * RANGE_ALIGNMENT
        self.pool = HandleMemory(self._create, self._destroy, self.synchronise, capacity, self.name, self.largest)
        self._compiler = Compiler(self.device)
        self._loading = new_lock()
        self._alignment = self.limits["min-uniform-buffer-offset-alignment"]
        self._most = self.limits["max-compute-workgroups-per-dimension"]
        self._binding_bytes = self.limits["max-storage-buffer-binding-size"]
        self._part_bytes = 1 << self._binding_bytes.bit_length() - 1
        self._window = self.limits["min-storage-buffer-offset-alignment"]
        self._commands: list[Any] = []  # that are not submitted yet
        self._submitted = 0  # wgpu's number of the last submission
        self._ahead = RunAhead(lambda: self._submitted, self._wait_for)
        self._ticket: list[bool] = []  # of the submission that was begun last; empty: it may not go on
        self._captured: list[Any] | None = None  # of the graph that is being captured
        self._arguments = Arguments(self.create_buffer(ARGUMENT_BYTES, UNIFORM_USAGE), ARGUMENT_BYTES)
        self._groups: dict[tuple, Any] = {}
        self._offsets: dict[int, Any] = {}  # dynamic offsets as C arrays
        self._spare = self.create_buffer(SPARE_BYTES, STORAGE_USAGE)
        self._readback: Any = None
        self._clock = Clock(self, all(name in features for name in TIMESTAMP_FEATURES))

    def close(self) -> None:
        """wgpu releases what Python drops; memory is given back at once."""
        self.device.destroy()

    # --- about the device ---

    def activate(self) -> None:
        """Nothing: a device of wgpu belongs to no thread."""

    def memory(self) -> tuple[int, int]:
        return self.pool.memory()

    def reserved_bytes(self) -> int:
        return self.pool.reserved

    def release_unused(self) -> None:
        self.pool.release_unused()

    # --- memory ---

    def create_buffer(self, nbytes: int, usage: int) -> Any:
        with raise_wgpu_errors(self.name):
            return self.device.create_buffer(size=nbytes, usage=usage)

    def _create(self, nbytes: int) -> Any:
        return self.create_buffer(nbytes, STORAGE_USAGE)

    def _destroy(self, buffer: Any) -> None:
        self._groups = {key: group for key, group in self._groups.items() if buffer not in key[2]}
        buffer.destroy()

    def allocate(self, nbytes: int) -> int:
        if nbytes > self.largest:
            raise exceeds_allocation(self.name, nbytes, self.largest)
        return self.pool.allocate(nbytes)

    def allocate_arena(self, nbytes: int) -> int:
        return self.pool.allocate_pieces(nbytes)

    def free(self, pointer: int) -> None:
        self.pool.free(pointer)

    def host_visible_memory(self, nbytes: int) -> int:
        return 0

    def upload_new(self, address: int, nbytes: int) -> int:
        pointer = self.allocate(nbytes)
        self._write(*self.pool.split(pointer), address, nbytes, whole=True)
        return pointer

    def upload(self, pointer: int, address: int, nbytes: int) -> None:
        buffer, at = self.pool.split(pointer)
        self._write(buffer, at, address, nbytes)

    def _write(self, buffer: Any, at: int, address: int, nbytes: int, whole: bool = False) -> None:
        """Copy host memory into a buffer. `whole`: what follows in the buffer is padding."""
        padded = -(-nbytes // 4) * 4
        data = ctypes.string_at(address, nbytes).ljust(padded, b"\0") if padded != nbytes else None
        source = (ctypes.c_char * nbytes).from_address(address) if data is None else data
        if at % 4 == 0 and (whole or padded == nbytes):
            self.flush()
            with raise_wgpu_errors(self.name):
                self.queue.write_buffer(buffer, at, source)
            return
        staged = self.allocate(padded)
        self._write(*self.pool.split(staged), address, nbytes, whole=True)
        self._copy_bytes(buffer, at, *self.pool.split(staged), nbytes)
        self.free(staged)

    def download(self, address: int, pointer: int, nbytes: int) -> None:
        buffer, at = self.pool.split(pointer)
        first, last = at // 4 * 4, -(-(at + nbytes) // 4) * 4
        self.flush()
        with raise_wgpu_errors(self.name):
            self._ahead.wait()
            data = self._read(buffer, first, last - first)
        start = np.frombuffer(data, np.uint8)
        ctypes.memmove(address, start.ctypes.data + at - first, nbytes)

    def _read(self, buffer: Any, first: int, nbytes: int) -> Any:
        """Bytes of a buffer; few of them by way of a buffer that is kept for this."""
        if nbytes > READBACK_BYTES:
            return self.queue.read_buffer(buffer, first, nbytes)
        readback, self._readback = self._readback, None
        if readback is None:
            readback = self.device.create_buffer(size=READBACK_BYTES, usage=READBACK_USAGE)
        self._submit_now([lambda encoder: encoder.copy_buffer_to_buffer(buffer, first, readback, 0, nbytes)])
        readback.map_sync("READ_NOSYNC", 0, nbytes)
        data = readback.read_mapped(0, nbytes)
        readback.unmap()
        self._readback = readback
        return data

    def copy(self, target: int, source: int, nbytes: int) -> None:
        to, from_ = self.pool.split(target), self.pool.split(source)
        if to[1] % 4 or from_[1] % 4 or nbytes % 4:
            self._copy_bytes(*to, *from_, nbytes)
        elif to[0] is not from_[0]:
            self.enqueue(lambda encoder: encoder.copy_buffer_to_buffer(from_[0], from_[1], to[0], to[1], nbytes))
        else:  # wgpu copies between different buffers only
            staged = self.allocate(nbytes)
            self.copy(staged, source, nbytes)
            self.copy(target, staged, nbytes)
            self.free(staged)

    def clear(self, pointer: int, nbytes: int) -> None:
        buffer, at = self.pool.split(pointer)
        if at % 4 or nbytes % 4:
            self._copy_bytes(buffer, at, None, 0, nbytes)
        else:
            self.enqueue(lambda encoder: encoder.clear_buffer(buffer, at, nbytes))

    def _copy_bytes(self, target: Any, at: int, source: Any, index: int, nbytes: int) -> None:
        """Copy any number of bytes, or clear them, by a kernel: as many at a time as a binding has."""
        (function,) = self.load_kernels([byte_copies.CODE if source is not None else byte_copies.CLEAR])
        count = len(function.bindings)
        most = self._binding_bytes // 4 * 4 - self._window
        for start in range(0, nbytes, most):
            length = min(most, nbytes - start)
            words = [*[at + start, index + start][:count], length]
            data = struct.pack(f"<{len(words)}Q", *words)
            self._launch(function, data, [target, source][:count], byte_copies.workgroups(length))

    # --- kernels ---

    def load_kernels(self, codes: Sequence[Code]) -> list[Function]:
        with self._loading:
            return self._compiler.load(codes)

    def make_launcher(
        self, function: Function, workgroups: int, lanes: int, shared_bytes: int, words: ctypes.Array, buffers: int
    ) -> Callable[[], None]:
        start, nbytes = ctypes.addressof(words), ctypes.sizeof(words)

        def launch(kept: Any = words) -> None:
            data = bytearray(ctypes.string_at(start, nbytes))
            bound = []
            for number in range(buffers):
                buffer, at = self.pool.split(kept[number])
                bound.append(buffer)
                struct.pack_into("<Q", data, 8 * number, at)
            self._launch(function, data, bound, workgroups)

        return launch

    def _launch(self, function: Function, data: bytes | bytearray, buffers: list[Any], workgroups: int) -> None:
        """Put a launch on the queue; `data` are its words, with the offset of each buffer."""
        windows: tuple[int, ...] = (0,) * len(buffers)
        if any(buffer is not None and buffer.size > self._binding_bytes for buffer in buffers):
            data, windows = self._windows(data, buffers)
        launch = Launch(function, bytes(data).ljust(function.argument_bytes, b"\0"), buffers, windows, workgroups)
        self.enqueue(launch)

    def _bind(self, launch: Launch, arguments: Arguments) -> tuple:
        """The command of a launch whose words lie in `arguments`."""
        function = launch.function
        offset = self._offset(arguments.add(launch.data, self._alignment))
        group = self._bind_group(function, arguments, launch.buffers, launch.windows)
        rows = -(-launch.workgroups // self._most)
        return function.pointer, group._internal, offset, -(-launch.workgroups // rows), rows, group

    def _windows(self, data: bytes | bytearray, buffers: list[Any]) -> tuple[bytearray, tuple[int, ...]]:
        """Where the bindings of buffers that are larger than a binding begin; the words then count from there."""
        data, windows = bytearray(data), []
        for number, buffer in enumerate(buffers):
            (at,) = struct.unpack_from("<Q", data, 8 * number)
            large = buffer is not None and buffer.size > self._binding_bytes
            windows.append(at // self._window * self._window if large else 0)
            struct.pack_into("<Q", data, 8 * number, at - windows[-1])
        return data, tuple(windows)

    def _bind_group(
        self, function: Function, arguments: Arguments, buffers: list[Any], windows: tuple[int, ...]
    ) -> Any:
        key = function.layout, arguments, tuple(buffers), windows
        group = self._groups.get(key)
        if group is None:
            uniform = {"buffer": arguments.buffer, "offset": 0, "size": function.argument_bytes}
            entries = [{"binding": 0, "resource": uniform}]
            for buffer, first, count in zip(buffers, windows, function.bindings, strict=True):
                for resource in self._resources(self._spare if buffer is None else buffer, first, count):
                    entries.append({"binding": len(entries), "resource": resource})
            with raise_wgpu_errors(self.name):
                group = self.device.create_bind_group(layout=function.layout, entries=entries)
            if len(self._groups) >= MAX_BIND_GROUPS:
                self._groups.clear()
            self._groups[key] = group
        return group

    def _resources(self, buffer: Any, first: int, count: int) -> list[dict[str, Any]]:
        """`count` bindings of a buffer from byte `first` on. Where the buffer ends before the last ones, these are its
        end, which no kernel reaches."""
        most, found = self._binding_bytes if count == 1 else self._part_bytes, []
        last = (buffer.size - SPARE_BYTES) // self._window * self._window
        for number in range(count):
            start = min(first + number * self._part_bytes, last)
            size = min(buffer.size - start, most) // 16 * 16  # of vectors of four words
            found.append({"buffer": buffer, "offset": start, "size": size})
        return found

    def _offset(self, at: int) -> Any:
        made = self._offsets.get(at)
        if made is None:
            made = self._offsets[at] = self._ffi.new("uint32_t[]", [at])
        return made

    # --- the queue ---

    def enqueue(self, command: Any) -> None:
        """Put a launch on the queue, or a function that gets the encoder."""
        if self._captured is not None:
            self._captured.append(command)
            return
        self._commands.append(command)
        self._ticket.clear()
        if len(self._commands) >= MAX_PENDING:
            self.flush()

    def flush(self) -> None:
        """Submit what is pending."""
        while self._commands:
            assert self._captured is None
            ticket = self._begin_submission()
            try:
                with raise_wgpu_errors(self.name):
                    commands = self._bind_pending()
                    forget = functools.partial(operator.delitem, self._commands, slice(len(commands)))
                    self._submit(commands, ticket, forget)
            except WeftError:
                if ticket:  # else a signal handler submitted it, and maybe freed what it uses
                    self._commands.clear()  # what wgpu refuses, it would refuse again
                    raise

    def _bind_pending(self) -> list[Any]:
        """The first pending commands, with their words in the buffer for these: as many as find room there."""
        arguments = self._arguments
        commands: list[Any] = []
        arguments.used = 0
        for command in list(self._commands):
            if isinstance(command, Launch):
                if commands and arguments.used + command.function.argument_bytes > arguments.nbytes:
                    break
                command = self._bind(command, arguments)
            commands.append(command)
        if arguments.used:
            self.queue.write_buffer(arguments.buffer, 0, memoryview(arguments.data)[: arguments.used])
        return commands

    def _begin_submission(self) -> list[bool]:
        """A ticket: whether each of the calls that end a submission is made. Whatever is put on the queue from now on
        empties it, and none is made."""
        self._ticket.clear()
        self._ticket = [True] * MAX_CALLS
        return self._ticket

    def _submit_now(self, commands: list[Any]) -> None:
        """Submit commands after what is pending."""
        self.flush()
        while not self._submit(commands, self._begin_submission()):
            self.flush()

    def _submit(self, commands: list[Any], ticket: list[bool], *afterwards: Callable[[], Any]) -> bool:
        """Encode commands into one command buffer and submit it; `afterwards` are functions of C, called together with
        the one that submits. Whether it was submitted: not where the ticket is empty by then."""
        finished = encode(self.device, self._lib, commands)
        handles = self._ffi.new("WGPUCommandBuffer[]", [finished._internal])
        submit = functools.partial(self._lib.wgpuQueueSubmitForIndex, self.queue._internal, 1, handles)
        calls: list[Callable[[], Any]] = [submit, *afterwards]
        results: list[Any] = list(map(operator.call, itertools.compress(calls, ticket)))
        if results:
            self._submitted = results[0]
            self._ahead.count(len(commands))
        return bool(results)

    def _wait_for(self, submission: int) -> None:
        self._lib.wgpuDevicePoll(self.device._internal, True, self._ffi.new("uint64_t *", submission))

    def synchronise(self) -> None:
        self.flush()
        with raise_wgpu_errors(self.name):
            self._ahead.wait()
            self.device._poll_wait()
            self._submit_now([])  # fails where the device is lost: waiting does not; else wgpu keeps what is finished

    # --- graphs ---

    def capture_graph(self, enqueue: Callable[[], None]) -> Graph:
        self.flush()
        captured = self._captured = []
        try:
            enqueue()
        finally:
            self._captured = None
        sizes = [len(one.data) for one in captured if isinstance(one, Launch)]
        if not sizes:
            return Graph(captured, None)
        nbytes = sum(-(-size // self._alignment) * self._alignment for size in sizes)
        arguments = Arguments(self.create_buffer(nbytes, UNIFORM_USAGE), nbytes)
        commands = [self._bind(one, arguments) if isinstance(one, Launch) else one for one in captured]
        with raise_wgpu_errors(self.name):
            self.queue.write_buffer(arguments.buffer, 0, arguments.data)
        return Graph(commands, arguments)

    def call_outside_capture(self, work: Callable[..., Any], *args: Any) -> Any:
        before = self._captured
        try:
            self._captured = None
            return work(*args)
        finally:
            self._captured = before

    def replay_graph(self, graph: Graph) -> None:
        with raise_wgpu_errors(self.name):
            self._submit_now(graph.commands)

    def destroy_graph(self, graph: Graph) -> None:
        arguments = graph.arguments
        self._groups = {key: group for key, group in self._groups.items() if key[1] is not arguments}
        graph.commands = []

    # --- time ---

    def create_event(self) -> Event:
        return Event()

    def record_event(self, event: Event) -> None:
        self._clock.record(event)

    def seconds_between(self, first: Event, second: Event) -> float:
        with raise_wgpu_errors(self.name):
            return self._clock.seconds(second) - self._clock.seconds(first)

    def queue_timestamp_period(self) -> float:
        """Nanoseconds of a tick of the device's clock."""
        return float(self._lib.wgpuQueueGetTimestampPeriod(self.queue._internal))
