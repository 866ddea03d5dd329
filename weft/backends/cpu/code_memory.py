"""Machine code of many kernels in few mappings.

LLVM's own loader maps the sections of every object file apart, three mappings a kernel that are never joined. Linux
allows a process 65,530 of them (`vm.max_map_count`), so it would crash with the kernel number 21,000 or so. Here the
object files of kernels are loaded one after the other in large pieces of memory. Each piece is mapped twice, once to
write and once to execute: no page is both.

Only what our kernels consist of is understood: ELF for x86-64, code and constants, addresses relative to the code, no
symbols from outside. `CodeMemory.load` returns None for anything else, which LLVM's loader then takes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

PIECE_BYTES = 16 << 20  # bytes of address space; memory is taken as it is written
ALIGNMENT = 64

ELF64_LITTLE, RELOCATABLE, X86_64 = b"\x7fELF\x02\x01", 1, 62
PROGBITS, SYMTAB, RELA, NOBITS = 1, 2, 4, 8  # kinds of sections
ALLOCATED, WRITABLE = 2, 1  # flags of sections
KNOWN = ABSOLUTE_64, RELATIVE_32, CALL_32 = 1, 2, 4  # kinds of relocations
GLOBAL_FUNCTION = 0x12

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
RELOCATION = struct.Struct("<QQq")


class Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Symbol(NamedTuple):
    name: int
    info: int
    other: int
    section: int
    value: int
    size: int


class _Unknown(Exception):
    """Something that is left to LLVM's loader."""


def _sections(data: bytes) -> list[Section]:
    header = HEADER.unpack_from(data)
    identity, kind, machine, table, entry_size, count = header[0], header[1], header[2], header[6], *header[11:13]
    if not identity.startswith(ELF64_LITTLE) or (kind, machine, entry_size) != (RELOCATABLE, X86_64, SECTION.size):
        raise _Unknown
    return [Section(*SECTION.unpack_from(data, table + n * entry_size)) for n in range(count)]


def _symbols(data: bytes, sections: list[Section]) -> tuple[list[Symbol], Section]:
    """All symbols, and the section with their names."""
    for table in sections:
        if table.kind == SYMTAB:
            rows = SYMBOL.iter_unpack(data[table.offset : table.offset + table.size])
            return [Symbol(*row) for row in rows], sections[table.link]
    raise _Unknown


def _relocations(data: bytes, sections: list[Section]) -> Iterator[tuple[int, int, int, int, int]]:
    """The section that is changed, where in it, how, by which symbol and what is added."""
    for table in sections:
        if table.kind == RELA and sections[table.info].flags & ALLOCATED:
            for offset, info, addend in RELOCATION.iter_unpack(data[table.offset : table.offset + table.size]):
                yield table.info, offset, info & 0xFFFFFFFF, info >> 32, addend


def _map_twice(size: int) -> tuple[mmap.mmap, mmap.mmap]:
    """The same memory, once to write and once to execute."""
    if sys.platform != "linux":
        raise _Unknown
    handle = os.memfd_create("weft-kernels", os.MFD_CLOEXEC)
    try:
        os.ftruncate(handle, size)
        written = mmap.mmap(handle, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        return written, mmap.mmap(handle, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_EXEC)
    finally:
        os.close(handle)


class Piece:
    """One stretch of memory: `written` is where we write it, `address` where it is executed."""

    def __init__(self, size: int):
        self.written, self.executed = _map_twice(size)
        self.address: int = np.frombuffer(self.executed, np.uint8).ctypes.data
        self.size, self.used = size, 0
        # Never unmapped: a daemon thread may still run its code while Python shuts down.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.executed))


class CodeMemory:
    """The memory of the kernels of this process. Not for several threads at once."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.available = sys.platform == "linux" and hasattr(os, "memfd_create")
        if sys.platform == "linux" and self.available:
            os.register_at_fork(after_in_child=self._leave_pieces)

    def _leave_pieces(self) -> None:
        """A child executes what lies in its parent's pieces, which both see, and writes to its own."""
        self.pieces = []

    def load(self, data: bytes) -> dict[str, int] | None:
        """The addresses of the functions of an object file, or None where it has something that is unknown here or the
        system gives no memory to execute."""
        if not self.available:
            return None
        try:
            return self._link(data)
        except _Unknown:
            return None
        except OSError:  # no descriptors of this kind, or none that may be executed
            self.available = False
            return None

    def _link(self, data: bytes) -> dict[str, int]:
        sections = _sections(data)
        symbols, names = _symbols(data, sections)
        starts, image = _lay_out(data, sections)
        relocations = list(_relocations(data, sections))
        for where, _, kind, number, _ in relocations:
            if symbols[number].section not in starts or where not in starts or kind not in KNOWN:
                raise _Unknown
        piece, start = self._reserve(len(image))
        base = piece.address + start
        for where, offset, kind, number, addend in relocations:
            symbol = symbols[number]
            position, target = starts[where] + offset, base + starts[symbol.section] + symbol.value + addend
            if kind == ABSOLUTE_64:
                struct.pack_into("<Q", image, position, target)
            else:
                struct.pack_into("<i", image, position, target - (base + position))
        functions = {
            _name(data, names, symbol): base + starts[symbol.section] + symbol.value
            for symbol in symbols
            if symbol.info == GLOBAL_FUNCTION and symbol.section in starts
        }
        piece.written[start : start + len(image)] = bytes(image)
        return functions

    def _reserve(self, size: int) -> tuple[Piece, int]:
        """A piece, and where so many bytes begin in it that nobody else gets; also no signal handler that compiles
        before they are written: there is no call between reading what is used and changing it."""
        while True:
            for piece in self.pieces[-1:]:
                start = piece.used
                if piece.size - start >= size:
                    piece.used = start + size
                    return piece, start
            self.pieces.append(Piece(max(PIECE_BYTES, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)))


def _lay_out(data: bytes, sections: list[Section]) -> tuple[dict[int, int], bytearray]:
    """Where each section that takes memory begins, and all of them in a row."""
    starts: dict[int, int] = {}
    image = bytearray()
    for number, section in enumerate(sections):
        if not section.flags & ALLOCATED or not section.size:
            continue
        if section.kind != PROGBITS or section.flags & WRITABLE or section.alignment > ALIGNMENT:
            raise _Unknown
        image += bytes(-len(image) % max(section.alignment, 1))
        starts[number] = len(image)
        image += data[section.offset : section.offset + section.size]
    image += bytes(-len(image) % ALIGNMENT)  # the next kernel begins aligned
    return starts, image


def _name(data: bytes, names: Section, symbol: Symbol) -> str:
    start = names.offset + symbol.name
    return data[start : data.index(b"\0", start)].decode()
