"""What a driver of wgpu collects before it is submitted: launches, the words of launches, captured graphs."""

from __future__ import annotations

from typing import Any

from weft.backends.webgpu.compile import Function

UNIFORM_USAGE = 64 | 8  # uniform, copy to


class Arguments:
    """The words of launches: bytes on the host, and the uniform buffer that gets them."""

    def __init__(self, driver: Any, nbytes: int):
        self.nbytes, self.used = nbytes, 0
        self.data = bytearray(nbytes)
        self.buffer = driver.create_buffer(nbytes, UNIFORM_USAGE)

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
