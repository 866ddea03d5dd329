"""Vector accesses whose lanes are close in memory: one load (or store) of all elements between them, and a shuffle.

Strides of 2 to 4, elements repeated by `i // 2` and their like would otherwise be a gather, which costs as much as one
load for each lane.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.kernels.ir.index import Axis, Index, Quotient, Remainder
from weft.render.llvm import operations as ops
from weft.render.llvm.blocks import BlockWriter, Vector
from weft.render.llvm.operations import vector_type

MAX_ELEMENTS_PER_LANE = 4  # elements for each lane that are worth loading
SHARING_LANES = 4  # lanes that may read one element where each has a mask of its own, or share a value that is computed


def lane_offsets(index: Index, vector: Vector) -> tuple[int, ...] | None:
    """Where the lanes of `index` lie, counted from the first lane; None where that changes from vector to vector.

    Only terms that vary between lanes count. Quotients and remainders keep their pattern if every vector starts at a
    multiple of their divisor.
    """
    offsets = [0] * vector.width
    for atom, factor in index.terms:
        if isinstance(atom, Axis):
            if atom.name != vector.axis.name:
                return None
            steps = list(range(vector.width))
        else:
            terms, const, divisor = atom.value.terms, atom.value.const, atom.divisor
            if len(terms) != 1 or terms[0][0] != vector.axis or terms[0][1] * vector.multiple % divisor:
                return None
            step = terms[0][1]
            values = [const + step * lane for lane in range(vector.width)]
            parts = [value // divisor if isinstance(atom, Quotient) else value % divisor for value in values]
            steps = [part - parts[0] for part in parts]
        offsets = [offset + factor * step for offset, step in zip(offsets, steps, strict=True)]
    return tuple(offsets)


def at_first_lane(index: Index, vector: Vector) -> Index:
    """`index`, whose lanes have offsets, in lane 0 of any vector: remainders of the lanes' axis are constants there."""
    terms, const = [], index.const
    for atom, factor in index.terms:
        if isinstance(atom, Remainder) and any(inner == vector.axis for inner, _ in atom.value.terms):
            const += factor * (atom.value.const % atom.divisor)
        else:
            terms.append((atom, factor))
    return Index(tuple(terms), const)


def share_of(offsets: Sequence[int]) -> int:
    """How many adjacent lanes have one offset: a power of two, 1 where fewer than SHARING_LANES do."""
    share = len(offsets)
    while any(offset != offsets[lane - lane % share] for lane, offset in enumerate(offsets)):
        share //= 2
    return share if share >= SHARING_LANES else 1


def readers(offsets: Sequence[int]) -> list[list[int]] | None:
    """For each element of the stretch (rounded up to a power of two) the lanes that use it; None if it is too long."""
    low = min(offsets)
    span, width = max(offsets) - low + 1, 1
    while width < span:
        width *= 2
    if width > MAX_ELEMENTS_PER_LANE * len(offsets):
        return None
    found: list[list[int]] = [[] for _ in range(width)]
    for lane, offset in enumerate(offsets):
        found[offset - low].append(lane)
    return found


def load(writer: BlockWriter, kind: str, align: int, address: str, offsets: Sequence[int], mask: str | None) -> str:
    """The elements at `offsets` from `address` (which is that of the least offset) in lanes; 0 where masked."""
    lanes = readers(offsets)
    assert lanes is not None
    width, low = len(lanes), min(offsets)
    stretch = vector_type(kind, width)
    chosen = _stretched_mask(writer, lanes, len(offsets), mask)
    if chosen is None:
        text = writer.emit(f"load {stretch}, ptr {address}, align {align}")
    else:
        bits, suffix = vector_type("i1", width), f"v{width}{ops.suffix(kind)}"
        text = writer.call(
            f"llvm.masked.load.{suffix}.p0",
            stretch,
            f"ptr align {align} {address}, {bits} {chosen}, {stretch} zeroinitializer",
            f"ptr, {bits}, {stretch}",
        )
    return _shuffle(writer, stretch, text, "poison", [offset - low for offset in offsets])


def store(
    writer: BlockWriter, kind: str, align: int, address: str, offsets: Sequence[int], mask: str | None, value: str
) -> None:
    """Lanes of `value` to `offsets` from `address` (which is that of the least offset)."""
    lanes = readers(offsets)
    assert lanes is not None and all(len(users) <= 1 for users in lanes)
    width = len(lanes)
    stretch = vector_type(kind, width)
    picks = [users[0] if users else 0 for users in lanes]
    text = _shuffle(writer, vector_type(kind, len(offsets)), value, "poison", picks)
    chosen = _stretched_mask(writer, lanes, len(offsets), mask)
    if chosen is None:
        writer.do(f"store {stretch} {text}, ptr {address}, align {align}")
        return
    bits, suffix = vector_type("i1", width), f"v{width}{ops.suffix(kind)}"
    arguments = f"{stretch} {text}, ptr align {align} {address}, {bits} {chosen}"
    writer.call(f"llvm.masked.store.{suffix}.p0", "void", arguments, f"{stretch}, ptr, {bits}")


def suits(offsets: Sequence[int] | None, masked: bool) -> bool:
    """Whether an access with these offsets is better done as a stretch."""
    if offsets is None:
        return False
    lanes = readers(offsets)
    return lanes is not None and (not masked or max(map(len, lanes)) <= SHARING_LANES)


def _stretched_mask(writer: BlockWriter, lanes: list[list[int]], width: int, mask: str | None) -> str | None:
    """The elements of the stretch that some active lane uses; None for all of them."""
    if mask is None or not mask.startswith("%"):
        active = _constant(mask, width)
        used = [any(active[lane] for lane in users) for users in lanes]
        return None if all(used) else "<" + ", ".join(f"i1 {int(one)}" for one in used) + ">"
    # As words: LLVM 22 gives up on some shuffles of single bits.
    words, wide = vector_type("i32", width), vector_type("i32", len(lanes))
    mask = writer.emit(f"sext {vector_type('i1', width)} {mask} to {words}")
    text = ""
    for number in range(max(map(len, lanes))):  # lanes that share an element: any of them may be active
        picks = [users[number] if number < len(users) else width for users in lanes]
        part = _shuffle(writer, words, mask, "zeroinitializer", picks)
        text = writer.emit(f"or {wide} {text}, {part}") if text else part
    return writer.emit(f"icmp ne {wide} {text}, zeroinitializer")


def _constant(mask: str | None, width: int) -> list[bool]:
    """A constant mask, as the renderer writes them, in Python."""
    if mask is None:
        return [True] * width
    return [part.split()[-1] in ("1", "true") for part in mask.strip("<>").split(",")]


def _shuffle(writer: BlockWriter, source: str, text: str, other: str, picks: Sequence[int]) -> str:
    numbers = ", ".join(f"i32 {pick}" for pick in picks)
    return writer.emit(f"shufflevector {source} {text}, {source} {other}, {vector_type('i32', len(picks))} <{numbers}>")
