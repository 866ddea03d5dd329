"""Samplers: in which order the items of a dataset are taken. After `torch.utils.data`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from weft.base.dtypes import float64
from weft.base.errors import RangeError, problem
from weft.core.boundary import entry_point
from weft.core.creation import as_tensor
from weft.data.seeds import iterate_apart
from weft.random.distributions import multinomial, randperm
from weft.random.generator import Generator, randint

__all__ = [
    "BatchSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]

Item = TypeVar("Item")


class Sampler(Generic[Item]):
    """Positions of items, in some order: subclasses define `__iter__()`, and `__len__()` where it is known.

    A random sampler defines `draw(generator)` instead: the loader gives it the generator of the epoch. A sampler with
    `set_epoch(epoch)` sets the epoch before it is iterated over.
    """

    generator: Generator | None = None

    def __iter__(self) -> Iterator[Any]:
        if type(self).draw is Sampler.draw:
            raise NotImplementedError(f"{type(self).__name__} has no __iter__")
        return self.draw(self.generator)

    def draw(self, generator: Generator | None) -> Iterator[Any]:
        """The positions, drawn from this generator."""
        return iter(self)


class SequentialSampler(Sampler):
    """0, 1, 2, ..."""

    @entry_point
    def __init__(self, data_source: Any):
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """All positions in random order; with `replacement` random positions, of which some come twice and some never."""

    @entry_point
    def __init__(
        self,
        data_source: Any,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ):
        if num_samples is not None and num_samples <= 0:
            raise problem(RangeError, "RandomSampler", f"num_samples={num_samples}", "a positive number")
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self._count = num_samples

    @property
    def num_samples(self) -> int:
        return len(self.data_source) if self._count is None else self._count

    def draw(self, generator: Generator | None) -> Iterator[int]:
        size, count = len(self.data_source), self.num_samples
        if self.replacement:
            yield from randint(0, size, (count,), generator=generator, device="cpu").tolist()
            return
        while count > 0:
            yield from randperm(size, generator=generator, device="cpu").tolist()[:count]
            count -= size

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Some positions in random order."""

    @entry_point
    def __init__(self, indices: Sequence[int], generator: Generator | None = None):
        self.indices, self.generator = indices, generator

    def draw(self, generator: Generator | None) -> Iterator[int]:
        return (self.indices[k] for k in randperm(len(self.indices), generator=generator, device="cpu").tolist())

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """Positions drawn with probabilities in proportion to weights."""

    @entry_point
    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ):
        self.weights = as_tensor(weights, dtype=float64, device="cpu")
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def draw(self, generator: Generator | None) -> Iterator[int]:
        drawn = multinomial(self.weights, self.num_samples, self.replacement, generator=generator)
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of `batch_size` positions of another sampler; the last may be shorter, or is dropped.

    >>> list(weft.utils.data.BatchSampler(range(5), 2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    @entry_point
    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool):
        if batch_size <= 0:
            raise problem(RangeError, "BatchSampler", f"batch_size={batch_size}", "a positive number")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last
        self.generator = getattr(sampler, "generator", None)

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler inside the epoch."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches(iter(self.sampler))

    def draw(self, generator: Generator | None) -> Iterator[list[int]]:
        return self._batches(draw_positions(self.sampler, generator))

    def _batches(self, positions: Iterator[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in positions:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)


def _can_be_given(sampler: Any) -> bool:
    """Whether a sampler draws from a generator that it is given."""
    return isinstance(sampler, Sampler) and type(sampler).__iter__ in (Sampler.__iter__, BatchSampler.__iter__)


def draws_itself(sampler: Any) -> bool:
    """Whether the positions come from a user's own `__iter__`, which may draw from a generator while it runs."""
    return draws_itself(sampler.sampler) if type(sampler) is BatchSampler else not _can_be_given(sampler)


def draw_positions(sampler: Iterable[Any], generator: Generator | None) -> Iterator[Any]:
    """The positions of a sampler, drawn from a generator; a sampler with an `__iter__` of its own draws from it where
    it would draw from Weft's default generator."""
    if _can_be_given(sampler):
        return sampler.draw(generator)  # type: ignore[attr-defined]
    return iter(sampler) if generator is None else iterate_apart(lambda: sampler, generator)
