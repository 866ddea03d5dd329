"""What reads batches from a dataset, in the loader's thread, in a worker thread or in a worker process.

A `Source` is a dataset and how its items become a batch; it can be pickled and sent to a process. It notes the index of
the sample that it is about to read, so that an error, or the death of a process, can name it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from weft.base.dtypes import from_numpy as dtype_from_numpy
from weft.base.errors import problem
from weft.data.collate import Make, collate, map_leaves
from weft.data.dataset import ArrayDataset, Subset, TensorDataset
from weft.data.faults import DataError

# in place of a position: nothing is being read; something whose key is no number; all positions of a task at once
NO_SAMPLE, OTHER_KEY, WHOLE_TASK = -1, -2, -3
NAMED = 12  # samples in a message
END = object()  # what a stream gives behind its last batch; no item is this object, and it stays in its process


class Source:
    """A dataset and how batches are made of its items."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None,
        is_batched: bool,
        batch_size: int | None,
        last: str,
    ):
        self.dataset, self.collate_fn, self.is_batched = dataset, collate_fn, is_batched
        self.batch_size, self.last = batch_size, last
        self.has_rows = collate_fn is None and is_batched and has_rows(dataset)

    def read(self, positions: Any, note: Callable[[Any], None], make: Make) -> Any:
        """The batch at some positions, or the item at one. (StopIteration would end the iteration that reads.)"""
        try:
            return self._read(positions, note, make)
        except StopIteration as error:
            given = f"StopIteration, raised while {type(self.dataset).__name__} was read by its positions"
            fix = "derive it from weft.data.IterableDataset and define __iter__, if it is a stream"
            raise problem(DataError, "DataLoader", given, "an item for each position", fix) from error

    def _read(self, positions: Any, note: Callable[[Any], None], make: Make) -> Any:
        if not self.is_batched:
            note(positions)
            item = self.dataset[positions]
            return item if self.collate_fn is None else self.collate_fn(item)
        fetch_all = getattr(self.dataset, "__getitems__", None)
        if self.has_rows or fetch_all is not None:
            note(WHOLE_TASK if len(positions) > 1 else positions[0] if positions else NO_SAMPLE)
        if self.has_rows:  # one gather instead of one slice per row
            return _make_arrays(self.dataset[positions], make)
        if fetch_all is not None:
            return self._batch(list(fetch_all(positions)), make)
        items = []
        for position in positions:
            note(position)
            items.append(self.dataset[position])
        if len(items) > 1:
            note(WHOLE_TASK)
        return self._batch(items, make)

    def stream(self, skip: int, note: Callable[[Any], None], make: Make) -> Iterator[Any]:
        """The batches of an iterable dataset behind the first `skip`."""
        note(0)
        size = self.batch_size
        items: list[Any] = []
        first: list[Any] = []  # items to fill a short last batch with
        for number, item in enumerate(self.dataset):
            note(number + 1)
            if self.last == "pad" and len(first) < (size or 0):
                first.append(item)
            if number < skip * (size or 1):
                continue
            if size is None:
                yield item if self.collate_fn is None else self.collate_fn(item)
                note(number + 1)  # who reads forgets it between two batches
                continue
            items.append(item)
            if len(items) == size:
                note(range(number + 1 - len(items), number + 1))
                yield self._batch(items, make)
                note(number + 1)
                items = []
        if items and self.last != "drop":
            note(range(number + 1 - len(items), number + 1))
            if self.last == "pad":
                items += [first[k % len(first)] for k in range((size or 1) - len(items))]
            yield self._batch(items, make)

    def _batch(self, items: list[Any], make: Make) -> Any:
        return collate(items, make) if self.collate_fn is None else self.collate_fn(items)


def has_rows(dataset: Any) -> bool:
    """Whether a list of positions gives whole rows at once."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset or (isinstance(dataset, ArrayDataset) and dataset.gives_rows)


def _make_arrays(rows: Any, make: Make) -> Any:
    """The rows of a dataset of arrays: arrays become what `make` makes of them, tensors stay."""
    made = map_leaves(rows, lambda one: make(one) if isinstance(one, np.ndarray) else one)
    return list(made) if isinstance(made, tuple) else made


def describe_sample(index: Any, task: Any = None) -> str:
    """What a message says about the sample that was being read: a position, a key of the dataset's own, or one of the
    numbers above; `task` has the positions that were requested."""
    if isinstance(index, range):  # of a stream
        return f"samples {index[0]} to {index[-1]} at once" if len(index) > 1 else f"sample {index[0]}"
    if index == WHOLE_TASK:
        return f"{describe_samples(task)} at once" if isinstance(task, (list, tuple)) else "the samples of a batch"
    if index == OTHER_KEY:
        return "a sample whose key is no number"
    return "no sample" if index == NO_SAMPLE else f"sample {index!r:.80}"


def describe_samples(positions: Any) -> str:
    """What a message says about several samples: the positions, the first of them where they are many."""
    if not isinstance(positions, (list, tuple)):
        return f"sample {positions!r:.80}"
    shown = [f"{one!r:.80}" for one in positions[:NAMED]] + ["..."] * (len(positions) > NAMED)
    return f"samples [{', '.join(shown)}]"


def note_sample(error: BaseException, index: Any, task: Any) -> None:
    """Add the sample's index to an error that a dataset raised."""
    text = f"DataLoader: raised while reading {describe_sample(index, task)}"
    if text not in getattr(error, "__notes__", ()):
        error.add_note(text)


def row_parts(dataset: Any) -> list[Any]:
    """The objects that the rows of a dataset of rows are taken from: others mean other rows."""
    parts = []
    while type(dataset) is Subset:
        parts.append(dataset.indices)
        dataset = dataset.dataset
    return [*parts, *(getattr(dataset, "tensors", None) or getattr(dataset, "arrays", None) or ())]


def find_rows(dataset: Any) -> tuple[Sequence[Any], Any] | None:
    """The arrays or tensors of a dataset of rows, and the chosen positions (None: all); None for any other dataset."""
    chosen: Any = None
    while type(dataset) is Subset:
        inner = np.asarray(dataset.indices, dtype=np.int64)
        chosen = inner if chosen is None else inner[chosen]
        dataset = dataset.dataset
    if type(dataset) is TensorDataset:
        return dataset.tensors, chosen
    is_plain = isinstance(dataset, ArrayDataset) and dataset.gives_rows and dataset.names is None
    if is_plain and all(dtype_from_numpy(one.dtype) is not None for one in dataset.arrays):
        return dataset.arrays, chosen
    return None
