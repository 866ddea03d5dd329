"""Names in WGSL: which words a kernel's names may not be, and kernels with other names instead."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, is_dataclass, replace
from typing import Any

from weft.kernels.ir.index import Axis, Index, Quotient, Remainder
from weft.kernels.ir.language import Accumulator, BufferParam, Kernel, Let, Local, ScalarParam, Update, Var

_WORDS = """
    NULL Self abstract active alignas alignof alias array arguments as asm async atomic attribute auto await become
    bitcast bool break case cast catch class common compile concept const const_assert constexpr continue continuing
    crate debugger default delete demote diagnostic discard do else enable enum explicit export extends extern
    external false fallthrough filter final finally fn for friend from get goto groupshared highp if impl implements
    import inline interface lane layout let loop lowp macro match mediump meta mod module move mut mutable namespace
    new nil noinline null of operator override package partial pass patch pixelfragment precise precision priv
    protected ptr pub public readonly ref register require requires resource restrict return sampler select self set
    shared sizeof smooth snorm static std struct subroutine super switch target template this throw trait true try
    type typedef typeid typename typeof union unless unorm unsafe unsized use using var varying virtual volatile
    wgsl where while with workgroup workgroups writeonly yield abs atomicAnd atomicLoad atomicOr atomicStore
    countLeadingZeros extractBits floor fma max min sqrt subgroupShuffle subgroupShuffleXor storageBarrier
    workgroupBarrier f16 f32 f64 i32 i64 u32 u64 vec2 vec4 needed lane_number workgroup_number workgroup_counts
"""
RESERVED = frozenset(_WORDS.split())  # WGSL's, and those that the renderer uses itself
_NAMED = {  # which fields of what are names
    Let: ("name",), Var: ("name",), Axis: ("name",), Accumulator: ("name",), Update: ("name",), Local: ("name",),
    BufferParam: ("name",), ScalarParam: ("name",), Kernel: ("ranges",),
}  # fmt: skip
_MEMORY = ("buffer", "target", "source")  # fields that name arrays, of any statement or expression


def avoid_names(kernel: Kernel, words: Collection[str]) -> Kernel:
    """`kernel`, in normal form, with every name that is one of `words`, or that WGSL does not allow, changed."""
    renamer = _Renamer(words)
    renamer.apply(kernel)
    if not renamer.found:
        return kernel
    renamer.done.clear()
    return renamer.apply(kernel)


class _Renamer:
    def __init__(self, words: Collection[str]):
        self.words = words
        self.found = False
        self.done: dict[int, tuple[Any, Any]] = {}  # by id, with the original, so that ids stay taken

    def name(self, text: str) -> str:
        if text not in self.words and not text.startswith("__"):
            return text
        self.found = True
        return f"{text.lstrip('_')}_x"

    def apply(self, value: Any) -> Any:
        """`value`, a kernel or a part of one, with other names."""
        if isinstance(value, tuple):
            return tuple([self.apply(one) for one in value])
        if isinstance(value, Index):
            return self.index(value)
        if not is_dataclass(value) or isinstance(value, type):
            return value
        known = self.done.get(id(value))
        if known is None:
            known = self.done[id(value)] = value, self.fields(value)
        return known[1]

    def fields(self, value: Any) -> Any:
        changed = {}
        for field in fields(value):
            old = getattr(value, field.name)
            if field.name in _NAMED.get(type(value), ()) or (field.name in _MEMORY and isinstance(old, str)):
                new = tuple([self.name(one) for one in old]) if isinstance(old, tuple) else self.name(old)
            elif field.name in ("definitions", "dtype", "geometry"):
                continue
            else:
                new = self.apply(old)
            if new is not old and new != old:
                changed[field.name] = new
        return replace(value, **changed) if changed else value

    def index(self, index: Index) -> Index:
        terms = []
        for atom, factor in index.terms:
            if isinstance(atom, Quotient | Remainder):
                atom = replace(atom, value=self.index(atom.value))
            else:
                atom = self.apply(atom)
            terms.append((atom, factor))
        return Index(tuple(terms), index.const)
