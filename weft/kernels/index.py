"""The integer algebra of indices: linear forms over axes, with floor division and remainder by constants, and ranges.

Movement operations never copy; they rewrite the index at which a value is read. This module keeps such indices in one
canonical form, `const + sum(coefficient * atom)`, where an atom is an axis (a loop variable or a loaded integer with a
known range) or a quotient/remainder of another index. Ranges let reshapes cancel: `(i*8 + j) // 8` is `i`.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass

MANY = 1 << 40  # bound on an extent that a kernel does not know, such as the batch
POINTS = 64  # at which indices of different forms are compared


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop variable, `0 <= name < extent`. `kind` is 'parallel', 'reduce' or 'value' (an integer that is loaded)."""

    name: str
    extent: int
    kind: str = "parallel"

    @property
    def low(self) -> int:
        return 0

    @property
    def high(self) -> int:
        return max(self.extent - 1, 0)


@dataclass(frozen=True, slots=True)
class Quotient:
    """`value // divisor`, rounded down, for a positive constant divisor."""

    value: Index
    divisor: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Remainder:
    """`value % divisor`, never negative, for a positive constant divisor."""

    value: Index
    divisor: int
    low: int
    high: int


Atom = Axis | Quotient | Remainder


class Index:
    """`const + sum(coefficient * atom)`; immutable and hashable. `low` and `high` bound its value."""

    __slots__ = ("_hash", "const", "high", "low", "terms")
    DESCRIBED = ("terms", "const")  # what stands for it in the keys of caches

    def __init__(self, terms: tuple[tuple[Atom, int], ...], const: int):
        self.terms = terms
        self.const = const
        low = high = const
        for atom, coefficient in terms:
            if coefficient > 0:
                low += coefficient * atom.low
                high += coefficient * atom.high
            else:
                low += coefficient * atom.high
                high += coefficient * atom.low
        self.low, self.high = low, high
        self._hash = hash((terms, const))

    def __eq__(self, other) -> bool:
        return self is other or (isinstance(other, Index) and self.const == other.const and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return show(self)

    @property
    def is_const(self) -> bool:
        return not self.terms

    def coefficient(self, axis: Axis) -> int:
        """The factor of `axis` where it stands alone (not inside a quotient or remainder)."""
        for atom, coefficient in self.terms:
            if atom == axis:
                return coefficient
        return 0

    def linear_in(self, axis: Axis) -> bool:
        """Whether `axis` occurs at most as a plain term."""
        return not any(not isinstance(atom, Axis) and depends(atom.value, axis) for atom, _ in self.terms)


ZERO = Index((), 0)
CACHED = 1 << 14  # results kept of functions that a compiler asks the same of for every layer of a network


def const(value: int) -> Index:
    return Index((), value) if value else ZERO


def axis_index(axis: Axis) -> Index:
    """The index that is the axis itself (0 for an axis of extent 1)."""
    return Index(((axis, 1),), 0) if axis.extent != 1 else ZERO


def add(a: Index, b: Index) -> Index:
    if not a.terms and not a.const:
        return b
    if not b.terms:
        return a if not b.const else Index(a.terms, a.const + b.const)
    factors = dict(a.terms)
    for atom, coefficient in b.terms:
        factors[atom] = factors.get(atom, 0) + coefficient
    return Index(_ordered(factors), a.const + b.const)


def scale(a: Index, factor: int) -> Index:
    if factor == 1:
        return a
    if factor == 0:
        return ZERO
    return Index(tuple((atom, coefficient * factor) for atom, coefficient in a.terms), a.const * factor)


def _ordered(factors: dict[Atom, int]) -> tuple[tuple[Atom, int], ...]:
    """Terms in a canonical order, without zeros, with what a division took apart put together again:
    `d*(x//d) + x%d` is `x`, and `d*(x//d % e) + x%d` is `x % (d*e)`."""
    for atom, coefficient in list(factors.items()):
        if isinstance(atom, Remainder) and coefficient:
            found = _rejoined(factors, atom, coefficient * atom.divisor)
            if found is not None and not found[1].const:
                upper, joined = found
                del factors[upper], factors[atom]
                return add(Index(_ordered(factors), 0), scale(joined, coefficient)).terms
    kept = [(atom, coefficient) for atom, coefficient in factors.items() if coefficient]
    if len(kept) > 1:
        kept.sort(key=lambda term: _sort_key(term[0]))
    return tuple(kept)


def _rejoined(factors: dict[Atom, int], lower: Remainder, wanted: int) -> tuple[Atom, Index] | None:
    """The term of `factors` that continues `lower` above, with the coefficient `wanted`, and what both are together."""
    quotient = floordiv(lower.value, lower.divisor)
    for atom, coefficient in factors.items():
        if coefficient != wanted:
            continue
        if quotient.terms == ((atom, 1),) and not quotient.const:
            return atom, lower.value
        if isinstance(atom, Remainder) and atom.value == quotient:
            return atom, remainder(lower.value, lower.divisor * atom.divisor)
    return None


def _sort_key(atom: Atom) -> str:
    return atom.name if isinstance(atom, Axis) else "~" + show(atom.value) + str(atom.divisor)


def floordiv(a: Index, divisor: int) -> Index:
    """`a // divisor`, rounded down."""
    if divisor == 1:
        return a
    if a.low // divisor == a.high // divisor:
        return const(a.low // divisor)
    # Split off what divides evenly: (divisor*q + r) // divisor = q + r // divisor.
    whole, rest = _split(a, divisor)
    if whole.terms or whole.const:
        return add(whole, floordiv(rest, divisor))
    if len(rest.terms) == 1 and not rest.const:
        atom, coefficient = rest.terms[0]
        if isinstance(atom, Remainder) and coefficient == 1 and atom.divisor % divisor == 0:
            return remainder(floordiv(atom.value, divisor), atom.divisor // divisor)
        if coefficient > 1 and divisor % coefficient == 0:
            return floordiv(Index(((atom, 1),), 0), divisor // coefficient)
    # (a + x // d) // divisor is (d*a + x) // (d*divisor), however the inner division came about.
    for atom, coefficient in rest.terms:
        if isinstance(atom, Quotient) and coefficient == 1:
            others = add(rest, Index(((atom, -1),), 0))
            return floordiv(add(scale(others, atom.divisor), atom.value), atom.divisor * divisor)
    # (c*x + r) // divisor with 0 <= r < c and c | divisor is x // (divisor // c): r can never carry.
    reduced = _drop_small(rest, divisor)
    if reduced is not None:
        return floordiv(reduced[0], divisor // reduced[1])
    return Index(((Quotient(rest, divisor, rest.low // divisor, rest.high // divisor), 1),), 0)


def remainder(a: Index, divisor: int) -> Index:
    """`a % divisor`, never negative."""
    if divisor == 1:
        return ZERO
    _, rest = _split(a, divisor)
    if rest.low >= 0 and rest.high < divisor:
        return rest
    if rest.low // divisor == rest.high // divisor:
        return add(rest, const(-(rest.low // divisor) * divisor))
    if len(rest.terms) == 1 and not rest.const:
        atom, coefficient = rest.terms[0]
        if isinstance(atom, Remainder) and coefficient == 1 and atom.divisor % divisor == 0:
            return remainder(atom.value, divisor)
    reduced = _drop_small(rest, divisor)
    if reduced is not None:
        high, factor = reduced
        low = add(rest, scale(high, -factor))
        return add(scale(remainder(high, divisor // factor), factor), low)
    return Index(((Remainder(rest, divisor, 0, divisor - 1), 1),), 0)


def _split(a: Index, divisor: int) -> tuple[Index, Index]:
    """`a = divisor * whole + rest` with every term of `whole` exact."""
    whole = tuple((atom, c // divisor) for atom, c in a.terms if c % divisor == 0)
    rest = tuple((atom, c) for atom, c in a.terms if c % divisor)
    if not whole and 0 <= a.const < divisor:
        return ZERO, a
    return Index(whole, a.const // divisor), Index(rest, a.const % divisor)


def _drop_small(rest: Index, divisor: int) -> tuple[Index, int] | None:
    """Find `rest = factor * high + low` with `factor | divisor` and `0 <= low < factor`."""
    factors = sorted({abs(c) for _, c in rest.terms if abs(c) > 1 and divisor % abs(c) == 0}, reverse=True)
    for factor in factors:
        high_terms = tuple((atom, c // factor) for atom, c in rest.terms if c % factor == 0)
        low = Index(tuple((atom, c) for atom, c in rest.terms if c % factor), rest.const % factor)
        if 0 <= low.low and low.high < factor and (low.terms or low.const):
            return Index(high_terms, rest.const // factor), factor
    return None


def depends(a: Index, axis: Axis) -> bool:
    """Whether the value of `a` changes with `axis`."""
    return axis in axes_of(a)


def axes_of(a: Index) -> set[Axis]:
    """Every axis that `a` is made of."""
    found: set[Axis] = set()
    pending = [a]
    while pending:
        for atom, _ in pending.pop().terms:
            if isinstance(atom, Axis):
                found.add(atom)
            else:
                pending.append(atom.value)
    return found


def substitute(a: Index, values: dict[Axis, Index]) -> Index:
    """`a` with axes replaced by other indices."""
    out = const(a.const)
    for atom, coefficient in a.terms:
        if isinstance(atom, Axis):
            new = values.get(atom)
            new = Index(((atom, 1),), 0) if new is None else new
        elif isinstance(atom, Quotient):
            new = floordiv(substitute(atom.value, values), atom.divisor)
        else:
            new = remainder(substitute(atom.value, values), atom.divisor)
        out = add(out, scale(new, coefficient))
    return out


def agree(a: tuple[Index, ...], b: tuple[Index, ...]) -> bool:
    """Whether the indices are equal: in form, or else in value at points all over their axes."""
    if a == b:
        return True
    axes = sorted(set().union(*[axes_of(index) for index in (*a, *b)]), key=lambda axis: axis.name)
    draw = random.Random(0)
    points = [{axis: draw.randrange(max(axis.extent, 1)) for axis in axes} for _ in range(POINTS)]
    return len(a) == len(b) and all(
        value_at(one, point) == value_at(other, point) for point in points for one, other in zip(a, b, strict=True)
    )


def value_at(a: Index, point: Mapping[Axis, int]) -> int:
    """The integer that `a` is where its axes are at `point`."""
    total = a.const
    for atom, coefficient in a.terms:
        if isinstance(atom, Axis):
            value = point[atom]
        else:
            inner = value_at(atom.value, point)
            value = inner // atom.divisor if isinstance(atom, Quotient) else inner % atom.divisor
        total += coefficient * value
    return total


@functools.lru_cache(CACHED)
def linearise(indices: tuple[Index, ...], shape: tuple[int, ...]) -> Index:
    """Row-major position of `indices` in an array of `shape`."""
    out, stride = ZERO, 1
    for index, extent in zip(reversed(indices), reversed(shape), strict=True):
        out = add(out, scale(index, stride))
        stride *= extent
    return out


def delinearise(position: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """The indices in an array of `shape` of the row-major `position`."""
    out: list[Index] = []
    for extent in reversed(shape[1:]):
        out.append(remainder(position, extent))
        position = floordiv(position, extent)
    if shape:
        out.append(position if shape[0] != 1 else ZERO)
    return tuple(reversed(out))


@functools.lru_cache(CACHED)
def reshape(indices: tuple[Index, ...], old: tuple[int, ...], new: tuple[int, ...]) -> tuple[Index, ...]:
    """Indices into an array of shape `new` that read the same element as `indices` into shape `old`.

    Works group by group, so that untouched axes stay single terms.
    """
    out: list[Index] = []
    i = j = 0
    while i < len(old) or j < len(new):
        i0, j0 = i, j
        size_old = old[i] if i < len(old) else 1
        size_new = new[j] if j < len(new) else 1
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while size_old != size_new:
            if size_old < size_new:
                size_old *= old[i]
                i += 1
            else:
                size_new *= new[j]
                j += 1
        position = linearise(indices[i0:i], old[i0:i])
        out.extend(delinearise(position, new[j0:j]))
    return tuple(out)


def show(a: Index) -> str:
    """Readable text: `4*i + j // 8`."""
    parts = []
    for atom, coefficient in a.terms:
        if isinstance(atom, Axis):
            text = atom.name
        else:
            sign = "//" if isinstance(atom, Quotient) else "%"
            text = f"({show(atom.value)}) {sign} {atom.divisor}"
            if coefficient != 1:
                text = f"({text})"
        parts.append(text if coefficient == 1 else f"{coefficient}*{text}")
    if a.const or not parts:
        parts.append(str(a.const))
    return " + ".join(parts)
