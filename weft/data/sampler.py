"""Samplers: in which order the items of a dataset are taken. After `torch.utils.data`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from weft.creation import as_tensor
from weft.dtypes import float64
from weft.errors import RangeError, problem
from weft.random import Generator, randint
from weft.sampling import multinomial, randperm

Item = TypeVar("Item")


class Sampler(Generic[Item]):
    """Positions of items, in some order: subclasses define `__iter__()`, and `__len__()` where it is known."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


class SequentialSampler(Sampler):
    """0, 1, 2, ..."""

    def __init__(self, data_source: Any):
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler):
    """All positions in random order; with `replacement` random positions, of which some come twice and some never."""

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

    def __iter__(self) -> Iterator[int]:
        size, count = len(self.data_source), self.num_samples
        if self.replacement:
            yield from randint(0, size, (count,), generator=self.generator).tolist()
            return
        while count > 0:
            yield from randperm(size, generator=self.generator).tolist()[:count]
            count -= size

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """Some positions in random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None):
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        return (self.indices[k] for k in randperm(len(self.indices), generator=self.generator).tolist())

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """Positions drawn with probabilities in proportion to weights."""

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ):
        self.weights = as_tensor(weights, dtype=float64)
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        drawn = multinomial(self.weights, self.num_samples, self.replacement, generator=self.generator)
        return iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of `batch_size` positions of another sampler; the last may be shorter, or is dropped.

    >>> list(weft.utils.data.BatchSampler(range(5), 2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool):
        if batch_size <= 0:
            raise problem(RangeError, "BatchSampler", f"batch_size={batch_size}", "a positive number")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
