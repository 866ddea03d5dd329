"""Random graphs and devices from a seed, the same ones with every version of Python and of hypothesis.

The functions that draw graphs ask for `draw(st.integers(0, 4))`. Here `st` is a `Strategies`, whose strategies are
functions of a random stream; `drawing` puts it in hypothesis' place.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.backend import (
    random_devices,
    random_elementwise,
    random_graphs,
    random_indexing,
    random_movement,
    random_operations,
)  # fmt: skip

Strategy = Callable[["Stream"], Any]


class Stream:
    """Numbers that follow from a seed. Only `Random.random` is used, which no version of Python may change."""

    def __init__(self, seed: int):
        self._random = random.Random(seed)

    def below(self, count: int) -> int:
        return int(self._random.random() * count)

    def shuffled(self, items: Sequence) -> list:
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(len(left))]

    def draw(self, strategy: Strategy) -> Any:
        return strategy(self)


class Strategies:
    """Those of hypothesis' strategies that the drawing functions use."""

    @staticmethod
    def integers(low: int, high: int) -> Strategy:
        return lambda stream: low + stream.below(high - low + 1)

    @staticmethod
    def booleans() -> Strategy:
        return lambda stream: stream.below(2) == 1

    @staticmethod
    def sampled_from(options: Sequence) -> Strategy:
        return lambda stream: options[stream.below(len(options))]

    @staticmethod
    def permutations(items: Sequence) -> Strategy:
        return lambda stream: stream.shuffled(items)

    @staticmethod
    def sets(elements: Strategy, min_size: int = 0, max_size: int = 4) -> Strategy:
        def drawn(stream: Stream) -> set:
            wanted = min_size + stream.below(max_size - min_size + 1)
            found: set = set()
            for _ in range(8 * wanted):  # elements come several times: the set may stay smaller than wanted
                if len(found) < wanted:
                    found.add(elements(stream))
            return found or {elements(stream)}

        return drawn

    @classmethod
    def frozensets(cls, elements: Strategy) -> Strategy:
        some = cls.sets(elements, max_size=8)
        return lambda stream: frozenset(some(stream))


MODULES = (  # those that draw
    random_devices, random_elementwise, random_graphs, random_movement, random_operations, random_indexing,
)  # fmt: skip


@contextmanager
def drawing(seed: int) -> Iterator[Stream]:
    """`draw_graph(stream.draw, ...)` and `draw_gpu(stream.draw)` give what belongs to the seed."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "st", Strategies)
        yield Stream(seed)
