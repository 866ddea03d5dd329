"""What waits on WebGPU's queue: launches, the words that they get, and how commands become one command buffer.

It knows neither memory nor when commands are submitted: that is the driver's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.backends.webgpu.compile import Function


class Arguments:
    """The words of launches: bytes on the host, and the uniform buffer that gets them."""

    def __init__(self, buffer: Any, nbytes: int):
        self.buffer, self.nbytes, self.used = buffer, nbytes, 0
        self.data = bytearray(nbytes)

    def add(self, data: bytes, alignment: int) -> int:
        """Put the words of a launch in; returns their offset."""
        at = self.used
        self.data[at : at + len(data)] = data
        self.used = at + -(-len(data) // alignment) * alignment
        return at


class Launch:
    """A launch that is not bound yet: its words, and where the binding of each buffer begins."""

    __slots__ = ("buffers", "data", "function", "windows", "workgroups")

    def __init__(
        self, function: Function, data: bytes, buffers: list[Any], windows: tuple[int, ...], workgroups: int
    ):  # fmt: skip
        self.function, self.data, self.buffers = function, data, buffers
        self.windows, self.workgroups = windows, workgroups


class Graph:
    """Commands that are replayed, and what they use."""

    __slots__ = ("arguments", "commands")

    def __init__(self, commands: list[Any], arguments: Arguments | None):
        self.commands, self.arguments = commands, arguments


def encode(device: Any, lib: Any, commands: Iterable[Any]) -> Any:
    """A command buffer of commands: tuples, which are launches that are bound, and functions that get the encoder."""
    set_pipeline, set_group = lib.wgpuComputePassEncoderSetPipeline, lib.wgpuComputePassEncoderSetBindGroup
    dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
    encoder = device.create_command_encoder()
    compute, handle, last = None, None, None
    for command in commands:
        if type(command) is tuple:
            pipeline, group, offset, columns, rows, _ = command
            if compute is None:
                compute = encoder.begin_compute_pass()
                handle, last = compute._internal, None
            if pipeline is not last:
                set_pipeline(handle, pipeline)
                last = pipeline
            set_group(handle, 0, group, 1, offset)
            dispatch(handle, columns, rows, 1)
        else:
            if compute is not None:
                compute.end()
                compute = None
            command(encoder)
    if compute is not None:
        compute.end()
    return encoder.finish()
