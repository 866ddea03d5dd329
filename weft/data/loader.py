"""DataLoader: the batches of a dataset, in order or shuffled. After `torch.utils.data.DataLoader`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import numpy as np

from weft.creation import tensor
from weft.data.dataset import IterableDataset, Subset, TensorDataset
from weft.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from weft.dtypes import float64, int64
from weft.errors import DTypeError, RangeError, problem
from weft.functions import stack
from weft.random import Generator
from weft.tensor import Tensor

Item = TypeVar("Item")


def default_collate(batch: list[Any]) -> Any:
    """Items as one batch: tensors and arrays are stacked, numbers become tensors, containers are taken apart.

    >>> weft.utils.data.default_collate([(1, 2.0), (3, 4.0)])
    [tensor([1, 3]), tensor([2., 4.], dtype=weft.float64)]
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return stack(batch)
    if isinstance(first, (np.ndarray, np.generic)):
        return tensor(np.stack(batch))
    if isinstance(first, float):
        return tensor(batch, dtype=float64)
    if isinstance(first, int):
        return tensor(batch) if isinstance(first, bool) else tensor(batch, dtype=int64)
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return {key: default_collate([one[key] for one in batch]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(default_collate(list(values)) for values in zip(*batch, strict=True)))
    if isinstance(first, (tuple, list)):
        if any(len(one) != len(first) for one in batch):
            lengths = sorted({len(one) for one in batch})
            raise problem(RangeError, "default_collate", f"items of lengths {lengths}", "equal lengths")
        return [default_collate(list(values)) for values in zip(*batch, strict=True)]
    given = f"items of type {type(first).__name__}"
    raise problem(DTypeError, "default_collate", given, "tensors, arrays, numbers, strings or containers of them")


class DataLoader(Generic[Item]):
    """The batches of a dataset. With `num_workers` that many threads fetch the next batches meanwhile, in order.

    `pin_memory`, `persistent_workers`, `multiprocessing_context`, `worker_init_fn`, `timeout` and `pin_memory_device`
    are PyTorch's and have no effect here: workers are threads.

    >>> data = weft.utils.data.TensorDataset(weft.arange(5))
    >>> [batch.tolist() for (batch,) in weft.utils.data.DataLoader(data, batch_size=2)]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ):
        self._check(dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, drop_last)
        self.dataset, self.num_workers, self.drop_last, self.generator = dataset, num_workers, drop_last, generator
        self.prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        self.batch_size = None if batch_sampler is not None else batch_size
        self.sampler: Any = sampler
        if sampler is None and not isinstance(dataset, IterableDataset):
            self.sampler = RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
        self.batch_sampler: Any = batch_sampler
        if batch_sampler is None and batch_size is not None and not isinstance(dataset, IterableDataset):
            self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        self._whole_rows = collate_fn is None and _has_rows(dataset)
        self.collate_fn = collate_fn or (default_collate if self.batch_sampler is not None or batch_size else _same)

    @staticmethod
    def _check(
        dataset: Any, batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, num_workers: int, drop_last: bool
    ) -> None:
        who = "DataLoader"
        if batch_size is not None and batch_size <= 0:
            raise problem(RangeError, who, f"batch_size={batch_size}", "a positive number, or None")
        if num_workers < 0:
            raise problem(RangeError, who, f"num_workers={num_workers}", "0 or more")
        if sampler is not None and shuffle:
            raise problem(RangeError, who, "a sampler and shuffle=True", "one of the two")
        if batch_sampler is not None and (batch_size not in (1, None) or shuffle or sampler is not None or drop_last):
            given = "a batch_sampler with batch_size, shuffle, sampler or drop_last"
            raise problem(RangeError, who, given, "the batch_sampler alone")
        if isinstance(dataset, IterableDataset) and (shuffle or sampler is not None or batch_sampler is not None):
            raise problem(RangeError, who, "an IterableDataset and an order", "the order of the dataset itself")

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.dataset, IterableDataset):
            return self._iterate()
        positions = self.batch_sampler if self.batch_sampler is not None else self.sampler
        return self._prefetch(positions) if self.num_workers else map(self._fetch, positions)

    def _fetch(self, positions: Any) -> Any:
        """The batch at some positions, or the item at one."""
        if self.batch_sampler is None:
            return self.collate_fn(self.dataset[positions])
        if self._whole_rows:  # one gather instead of one slice per row
            return list(self.dataset[positions])
        return self.collate_fn([self.dataset[position] for position in positions])

    def _prefetch(self, positions: Iterable[Any]) -> Iterator[Any]:
        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(self.num_workers) as pool:
            try:
                for one in positions:
                    waiting.append(pool.submit(self._fetch, one))
                    if len(waiting) > self.num_workers * self.prefetch_factor:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _iterate(self) -> Iterator[Any]:
        if self.batch_size is None:
            yield from map(self.collate_fn, self.dataset)
            return
        batch: list[Any] = []
        for item in self.dataset:
            batch.append(item)
            if len(batch) == self.batch_size:
                yield self.collate_fn(batch)
                batch = []
        if batch and not self.drop_last:
            yield self.collate_fn(batch)

    def __len__(self) -> int:
        """The number of batches."""
        if isinstance(self.dataset, IterableDataset):
            count = len(self.dataset)  # type: ignore[arg-type]
            size = self.batch_size or 1
            return count // size if self.drop_last else -(-count // size)
        return len(self.batch_sampler if self.batch_sampler is not None else self.sampler)


def _has_rows(dataset: Any) -> bool:
    """Whether a list of positions gives whole rows at once."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset


def _same(item: Any) -> Any:
    return item
