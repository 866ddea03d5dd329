"""Where the random numbers of data come from: a seed for each (seed, epoch, purpose), and the generator of a transform.

Orders and augmentation of one epoch follow from (seed, epoch) alone, so they do not depend on the number of workers, on
the device, or on what else was drawn in between.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from weft.random.generator import Generator, default_generator, use_generator

ORDER, TRANSFORM, ITEMS = 1, 2, 3  # purposes
_MASK = 2**64 - 1
_ACTIVE = threading.local()  # .generator: what transforms of this thread draw from


def epoch_seed(seed: int, epoch: int, purpose: int) -> int:
    """A seed of 64 bits for one purpose in one epoch.

    >>> epoch_seed(0, 1, ORDER) == epoch_seed(0, 1, ORDER) != epoch_seed(1, 0, ORDER)
    True
    """
    state = 0
    for part in (seed, epoch, purpose):
        state = _finalize((state * 0xD1342543DE82EF95 + part + 0x9E3779B97F4A7C15) & _MASK)
    return state


def _finalize(z: int) -> int:
    """The finaliser of splitmix64."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def draw_seed(generator: Generator | None) -> int:
    """A seed from a generator, which counts it as one draw. Computed on the host, without a device."""
    source = (generator or default_generator)._present()
    made, counter = source.get_state()
    source.counter = counter + 1
    return epoch_seed(made, counter, 0)


def save_generator(generator: Generator | None) -> dict[str, Any]:
    """The part of a loader's state that holds the generator of its seeds, if it has one."""
    return {} if generator is None else {"generator": list(generator.get_state())}


def restore_generator(generator: Generator | None, state: Mapping[str, Any]) -> None:
    """Let a generator go on from a loader's state."""
    if generator is not None and state.get("generator") is not None:
        made, counter = state["generator"]
        generator.set_state((int(made), int(counter)))


def task_seed(seed: int, task: Any) -> int:
    """The seed of what a dataset draws while it reads a task: from that of the epoch's items and the positions, so
    that it depends neither on the number of workers nor on what else is read. A stream has one for all its items."""
    return epoch_seed(seed, 0 if task is None else zlib.crc32(repr(task).encode()), ITEMS)


def iterate_apart(make: Callable[[], Iterable[Any]], generator: Generator) -> Iterator[Any]:
    """The items of an iterable of a user's own, whose code draws from `generator` where it would draw from Weft's
    default generator: what it gives does not depend on what is drawn between two items, so it can be iterated again."""
    with use_generator(generator):
        items = iter(make())
    while True:
        with use_generator(generator):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def current_generator() -> Generator:
    """What transforms draw from: the loader's generator inside a loader, else Weft's default generator."""
    return getattr(_ACTIVE, "generator", None) or default_generator


@contextlib.contextmanager
def drawing_from(generator: Generator | None) -> Iterator[None]:
    """Let transforms that this thread calls inside the block draw from `generator`."""
    before = getattr(_ACTIVE, "generator", None)
    _ACTIVE.generator = generator
    try:
        yield
    finally:
        _ACTIVE.generator = before
