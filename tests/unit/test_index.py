"""The integer algebra of indices: rewriting never changes a value, bounds hold, and what must cancel does."""

import random

import pytest

from weft.kernels import index as ix
from weft.kernels.index import Axis, Quotient

pytestmark = pytest.mark.unit


def value(index, at):
    """An index evaluated in plain Python."""
    total = index.const
    for atom, factor in index.terms:
        if isinstance(atom, Axis):
            part = at[atom.name]
        else:
            inner = value(atom.value, at)
            part = inner // atom.divisor if isinstance(atom, Quotient) else inner % atom.divisor
        total += factor * part
    return total


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
                index = ix.floordiv(index, k)
            elif way == "mod":
                index = ix.remainder(index, k)
            elif way == "mul":
                index = ix.scale(index, k)
            else:
                index = ix.add(index, ix.const(k - 5) if way == "add" else ix.axis_index(axes[1]))
        for a in range(axes[0].extent):
            for b in range(axes[1].extent):
                expected = a
                for way, k in steps:
                    change = {"div": expected // k, "mod": expected % k, "mul": expected * k, "add": expected + k - 5}
                    expected = change.get(way, expected + b)
                found = value(index, {"a": a, "b": b})
                assert found == expected, (index, steps)
                assert index.low <= found <= index.high


def test_a_remainder_cut_in_two_joins_again():
    row = ix.axis_index(Axis("row", 54))
    split = ix.add(ix.floordiv(ix.remainder(row, 18), 6), ix.scale(ix.floordiv(row, 18), 3))
    assert split == ix.floordiv(row, 6)
    assert ix.remainder(ix.floordiv(ix.remainder(row, 18), 3), 2) == ix.remainder(ix.floordiv(row, 3), 2)


def test_reshapes_cancel():
    axes = [ix.axis_index(Axis(name, extent)) for name, extent in (("i", 9), ("j", 2), ("k", 3))]
    there = ix.reshape(tuple(axes), (9, 2, 3), (3, 18))
    assert ix.reshape(there, (3, 18), (9, 2, 3)) == tuple(axes)
