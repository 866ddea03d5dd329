"""The integer algebra of indices: linear forms over axes, with floor division and remainder by constants, and ranges.

Movement operations never copy; they rewrite the index at which a value is read. This module keeps such indices in one
canonical form, `const + sum(coefficient * atom)`, where an atom is an axis (a loop variable or a loaded integer with a
known range) or a quotient/remainder of another index. Ranges let reshapes cancel: `(i*8 + j) // 8` is `i`.
Indices and axes have Python's operators: `row * width + column`, `lane // 4`; `==` compares the forms.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass

MAX_EXTENT = 1 << 40  # bound on an extent that a kernel does not know, such as the batch
COMPARED_POINTS = 64  # at which indices of different forms are compared


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

    def __add__(self, other: IndexOperand) -> Index:
        return axis_index(self) + other

    def __radd__(self, other: int) -> Index:
        return other + axis_index(self)

    def __sub__(self, other: IndexOperand) -> Index:
        return axis_index(self) - other

    def __rsub__(self, other: int) -> Index:
        return other - axis_index(self)

    def __neg__(self) -> Index:
        return -axis_index(self)

    def __mul__(self, factor: int) -> Index:
        return axis_index(self) * factor

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Index:
        return axis_index(self) // divisor

    def __mod__(self, divisor: int) -> Index:
        return axis_index(self) % divisor


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
    DESCRIBED = ("terms", "const")  # the fields in the keys of caches

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
        """The factor of `axis` where it is alone (not inside a quotient or remainder)."""
        for atom, coefficient in self.terms:
            if atom == axis:
                return coefficient
        return 0

    def is_linear_in(self, axis: Axis) -> bool:
        """Whether `axis` occurs at most as a plain term."""
        return not any(not isinstance(atom, Axis) and depends(atom.value, axis) for atom, _ in self.terms)

    def __add__(self, other: IndexOperand) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.const + other) if other else self
        if isinstance(other, Axis):
            other = axis_index(other)
        elif not isinstance(other, Index):
            return NotImplemented
        if not self.terms and not self.const:
            return other
        if not other.terms:
            return self if not other.const else Index(self.terms, self.const + other.const)
        factors = dict(self.terms)
        for atom, coefficient in other.terms:
            factors[atom] = factors.get(atom, 0) + coefficient
        return Index(_canonical_terms(factors), self.const + other.const)

    def __radd__(self, other: int) -> Index:
        return const(other) + self if isinstance(other, int) else NotImplemented

    def __sub__(self, other: IndexOperand) -> Index:
        return self + other * -1 if isinstance(other, (Index, Axis, int)) else NotImplemented

    def __rsub__(self, other: int) -> Index:
        return const(other) + self * -1 if isinstance(other, int) else NotImplemented

    def __neg__(self) -> Index:
        return self * -1

    def __mul__(self, factor: int) -> Index:
        if not isinstance(factor, int):
            return NotImplemented
        if factor == 1:
            return self
        if factor == 0:
            return ZERO
        return Index(tuple([(atom, coefficient * factor) for atom, coefficient in self.terms]), self.const * factor)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: int) -> Index:
        """The quotient by a positive constant, rounded down."""
        if not isinstance(divisor, int):
            return NotImplemented
        if divisor == 1:
            return self
        if self.low // divisor == self.high // divisor:
            return const(self.low // divisor)
        # Split off what divides evenly: (divisor*q + r) // divisor = q + r // divisor.
        whole, rest = _split(self, divisor)
        if whole.terms or whole.const:
            return whole + rest // divisor
        if len(rest.terms) == 1 and not rest.const:
            atom, coefficient = rest.terms[0]
            if isinstance(atom, Remainder) and coefficient == 1 and atom.divisor % divisor == 0:
                return atom.value // divisor % (atom.divisor // divisor)
            if coefficient > 1 and divisor % coefficient == 0:
                return Index(((atom, 1),), 0) // (divisor // coefficient)
        # (a + x // d) // divisor is (d*a + x) // (d*divisor), however the inner division came about.
        for atom, coefficient in rest.terms:
            if isinstance(atom, Quotient) and coefficient == 1:
                others = rest + Index(((atom, -1),), 0)
                return (others * atom.divisor + atom.value) // (atom.divisor * divisor)
        # (c*x + r) // divisor with 0 <= r < c and c | divisor is x // (divisor // c): r can never carry.
        reduced = _drop_small(rest, divisor)
        if reduced is not None:
            return reduced[0] // (divisor // reduced[1])
        return Index(((Quotient(rest, divisor, rest.low // divisor, rest.high // divisor), 1),), 0)

    def __mod__(self, divisor: int) -> Index:
        """The remainder by a positive constant, never negative."""
        if not isinstance(divisor, int):
            return NotImplemented
        if divisor == 1:
            return ZERO
        _, rest = _split(self, divisor)
        if rest.low >= 0 and rest.high < divisor:
            return rest
        if rest.low // divisor == rest.high // divisor:
            return rest + -(rest.low // divisor) * divisor
        if len(rest.terms) == 1 and not rest.const:
            atom, coefficient = rest.terms[0]
            if isinstance(atom, Remainder) and coefficient == 1 and atom.divisor % divisor == 0:
                return atom.value % divisor
        reduced = _drop_small(rest, divisor)
        if reduced is not None:
            high, factor = reduced
            return high % (divisor // factor) * factor + (rest + high * -factor)
        return Index(((Remainder(rest, divisor, 0, divisor - 1), 1),), 0)


IndexOperand = Index | Axis | int

ZERO = Index((), 0)
CACHE_ENTRIES = 1 << 14  # results kept of functions that a compiler calls alike for every layer of a network


def const(value: int) -> Index:
    return Index((), value) if value else ZERO


def axis_index(axis: Axis) -> Index:
    """The index that is the axis itself (0 for an axis of extent 1)."""
    return Index(((axis, 1),), 0) if axis.extent != 1 else ZERO


def _canonical_terms(factors: dict[Atom, int]) -> tuple[tuple[Atom, int], ...]:
    """Terms in a canonical order, without zeros, with quotients and remainders of one value recombined:
    `d*(x//d) + x%d` is `x`, and `d*(x//d % e) + x%d` is `x % (d*e)`."""
    for atom, coefficient in list(factors.items()):
        if isinstance(atom, Remainder) and coefficient:
            found = _find_continuation(factors, atom, coefficient * atom.divisor)
            if found is not None and not found[1].const:
                upper, joined = found
                del factors[upper], factors[atom]
                return (Index(_canonical_terms(factors), 0) + joined * coefficient).terms
    kept = [(atom, coefficient) for atom, coefficient in factors.items() if coefficient]
    if len(kept) > 1:
        kept.sort(key=lambda term: _sort_key(term[0]))
    return tuple(kept)


def _find_continuation(factors: dict[Atom, int], lower: Remainder, expected: int) -> tuple[Atom, Index] | None:
    """The term of `factors` that holds the digits above `lower`, with the coefficient `expected`, and their sum."""
    quotient = lower.value // lower.divisor
    for atom, coefficient in factors.items():
        if coefficient != expected:
            continue
        if quotient.terms == ((atom, 1),) and not quotient.const:
            return atom, lower.value
        if isinstance(atom, Remainder) and atom.value == quotient:
            return atom, lower.value % (lower.divisor * atom.divisor)
    return None


def _sort_key(atom: Atom) -> str:
    return atom.name if isinstance(atom, Axis) else "~" + show(atom.value) + str(atom.divisor)


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
            new = substitute(atom.value, values) // atom.divisor
        else:
            new = substitute(atom.value, values) % atom.divisor
        out = out + new * coefficient
    return out


def are_equal(a: tuple[Index, ...], b: tuple[Index, ...]) -> bool:
    """Whether the indices are equal: in form, or else in value at points all over their axes."""
    if a == b:
        return True
    axes = sorted(set().union(*[axes_of(index) for index in (*a, *b)]), key=lambda axis: axis.name)
    draw = random.Random(0)
    points = [{axis: draw.randrange(max(axis.extent, 1)) for axis in axes} for _ in range(COMPARED_POINTS)]
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


@functools.lru_cache(CACHE_ENTRIES)
def linearise(indices: tuple[Index, ...], shape: tuple[int, ...]) -> Index:
    """Row-major position of `indices` in an array of `shape`."""
    out, stride = ZERO, 1
    for index, extent in zip(reversed(indices), reversed(shape), strict=True):
        out = out + index * stride
        stride *= extent
    return out


def delinearise(position: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """The indices in an array of `shape` of the row-major `position`."""
    out: list[Index] = []
    for extent in reversed(shape[1:]):
        out.append(position % extent)
        position = position // extent
    if shape:
        out.append(position if shape[0] != 1 else ZERO)
    return tuple(reversed(out))


@functools.lru_cache(CACHE_ENTRIES)
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
