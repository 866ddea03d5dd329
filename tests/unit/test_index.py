"""The integer algebra of indices: rewriting never changes a value, bounds hold, and what must cancel does."""

import random

import pytest

from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis

pytestmark = pytest.mark.unit


def test_random_expressions_keep_their_value():
    draw = random.Random(0)
    for _ in range(500):
        axes = [Axis("a", draw.choice([4, 6, 12, 36])), Axis("b", draw.choice([2, 3, 5]))]
        index, steps = ix.axis_index(axes[0]), []
        for _ in range(draw.randint(1, 6)):
            step = (draw.choice(["div", "mod", "mul", "add", "axis"]), draw.choice([2, 3, 4, 6, 12, 18]))
            steps.append(step)
            way, k = step
            if way == "div":
                index = index // k
            elif way == "mod":
                index = index % k
            elif way == "mul":
                index = index * k
            else:
                index = index + (ix.const(k - 5) if way == "add" else ix.axis_index(axes[1]))
        for a in range(axes[0].extent):
            for b in range(axes[1].extent):
                expected = a
                for way, k in steps:
                    change = {"div": expected // k, "mod": expected % k, "mul": expected * k, "add": expected + k - 5}
                    expected = change.get(way, expected + b)
                found = ix.value_at(index, {axes[0]: a, axes[1]: b})
                assert found == expected, (index, steps)
                assert index.low <= found <= index.high


def test_a_remainder_cut_in_two_joins_again():
    row = ix.axis_index(Axis("row", 54))
    split = row % 18 // 6 + row // 18 * 3
    assert split == (row // 6)
    assert (row % 18 // 3 % 2) == (row // 3 % 2)


def test_reshapes_cancel():
    axes = [ix.axis_index(Axis(name, extent)) for name, extent in (("i", 9), ("j", 2), ("k", 3))]
    there = ix.reshape(tuple(axes), (9, 2, 3), (3, 18))
    assert ix.reshape(there, (3, 18), (9, 2, 3)) == tuple(axes)


def factors(size, draw):
    """A random shape of `size` elements."""
    found = []
    while size > 1:
        found.append(draw.choice([k for k in range(2, size + 1) if size % k == 0]))
        size //= found[-1]
    draw.shuffle(found)
    return tuple(found)


@pytest.mark.parametrize("known", ["axes", "row", "part of a row"])
def test_any_reshapes_cancel(known):
    """From any shape over any others and back: also where the first indices are parts of one axis."""
    draw = random.Random(1)
    for _ in range(300):
        size = draw.choice([80, 72, 120, 48, 64, 180, 210])
        first = shape = factors(size, draw)
        if known == "axes":
            start = tuple([ix.axis_index(Axis(f"i{k}", extent)) for k, extent in enumerate(first)])
        else:
            row = ix.axis_index(Axis("row", size if known == "row" else 3 * size))
            start = ix.delinearise(row % size, first)
        now = start
        for other in [factors(size, draw) for _ in range(draw.randint(1, 5))]:
            now, shape = ix.reshape(now, shape, other), other
        assert ix.reshape(now, shape, first) == start, (first, shape, now)


def test_indices_of_other_forms_are_compared_by_value():
    row, column = ix.axis_index(Axis("row", 60)), ix.axis_index(Axis("column", 7))
    unseen = ix.Index(((ix.Quotient(row * 2, 4, 0, 29), 1),), 0)  # what `floordiv` would write as row // 2
    assert unseen != (row // 2)
    assert ix.are_equal((unseen, column), (row // 2, column))
    assert not ix.are_equal((unseen, column), (row // 3, column))
    assert not ix.are_equal((row,), (row, column))
