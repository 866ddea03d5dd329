"""Datasets: things with a length and items, or things that can be iterated over. After `torch.utils.data`."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from weft.base.errors import IndexRangeError, RangeError, ShapeError, problem
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.random.distributions import randperm
from weft.random.generator import Generator

__all__ = [
    "ArrayDataset",
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "Subset",
    "TensorDataset",
    "k_fold",
    "random_split",
]

Item = TypeVar("Item")


class Dataset(Generic[Item]):
    """Something with items: subclasses define `__getitem__(index)` and `__len__()`.

    >>> class Squares(weft.utils.data.Dataset):
    ...     def __getitem__(self, index):
    ...         return index**2
    ...
    ...     def __len__(self):
    ...         return 4
    >>> len(Squares() + Squares())
    8
    """

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __getitem__")

    def __repr__(self) -> str:
        size = getattr(type(self), "__len__", None)
        return f"{type(self).__name__}({'' if size is None else f'{size(self)} items'})"

    def __add__(self, other: Dataset) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[Item]):
    """Something that is iterated over: subclasses define `__iter__()`."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")


def is_stream(dataset: Any) -> bool:
    """Whether a dataset is iterated over: it cannot be indexed, or is an `IterableDataset` of this package, of PyTorch
    or of Hugging Face (whose base classes have `__getitem__` all the same)."""
    is_iterable = any(one.__name__ == "IterableDataset" for one in type(dataset).__mro__)
    return is_iterable or not hasattr(type(dataset), "__getitem__")


def _check_rows(who: str, arrays: Mapping[str, Any]) -> None:
    """Arrays or tensors must have rows, as many each."""
    scalars = [name for name, one in arrays.items() if hasattr(one, "shape") and not len(one.shape)]
    if scalars:
        raise problem(ShapeError, who, f"a scalar (array {', '.join(scalars)})", "arrays with rows", "leave it out")
    lengths = [len(one) for one in arrays.values()]
    if len(set(lengths)) != 1:
        raise problem(ShapeError, who, f"arrays of lengths {lengths}", "equal lengths, one at least")


class TensorDataset(Dataset):
    """Rows of tensors of the same length: item k is (t[k] for each tensor).

    >>> weft.utils.data.TensorDataset(weft.ones(3, 2), weft.arange(3))[1]
    (tensor([1., 1.]), tensor(1))
    """

    @entry_point
    def __init__(self, *tensors: Tensor):
        _check_rows("TensorDataset", {str(number): one for number, one in enumerate(tensors)})
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0])


class ArrayDataset(Dataset):
    """Rows of NumPy arrays of the same length, memory-mapped ones included: item k is (a[k] for each array), or a dict
    where the arrays are given by name. `transform(item)` changes an item as it is read.

    >>> weft.data.ArrayDataset(named={"x": np.arange(6.0).reshape(3, 2), "y": np.arange(3)})[1]["x"]
    array([2., 3.])
    """

    @entry_point
    def __init__(
        self, *arrays: Any, named: Mapping[str, Any] | None = None, transform: Callable[[Any], Any] | None = None
    ):
        if arrays and named:
            raise problem(RangeError, "ArrayDataset", "arrays with and without names", "one of the two")
        self.names = tuple(named) if named else None
        self.arrays = tuple(arrays) or tuple((named or {}).values())
        _check_rows(
            "ArrayDataset", dict(zip(self.names or map(str, range(len(self.arrays))), self.arrays, strict=True))
        )
        self.transform = transform

    @property
    def gives_rows(self) -> bool:
        """Whether a list of positions gives the rows at once."""
        return self.transform is None

    def __getitem__(self, index: Any) -> Any:
        rows = tuple(array[index] for array in self.arrays)
        item: Any = rows if self.names is None else dict(zip(self.names, rows, strict=True))
        return item if self.transform is None else self.transform(item)

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getstate__(self) -> dict[str, Any]:
        """Memory-mapped arrays are sent to another process as the place in their file."""
        return self.__dict__ | {"arrays": tuple(_MappedFile.of(array) or array for array in self.arrays)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        opened = tuple(one.open() if isinstance(one, _MappedFile) else one for one in state["arrays"])
        self.__dict__.update(state | {"arrays": opened})


class _MappedFile:
    """Where a memory-mapped array lies in its file."""

    def __init__(self, path: str, dtype: np.dtype, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]):
        self.path, self.dtype, self.offset, self.shape, self.strides = path, dtype, offset, shape, strides

    @staticmethod
    def of(array: Any) -> _MappedFile | None:
        """The place of an array that is a view of a file as a whole or of rows in it; None for any other."""
        if not isinstance(array, np.memmap) or array.filename is None or not array.size or min(array.strides) < 0:
            return None
        base = array
        while isinstance(base.base, np.memmap):
            base = base.base
        start = base.offset + array.ctypes.data - base.ctypes.data
        return _MappedFile(str(array.filename), array.dtype, start, array.shape, array.strides)

    def open(self) -> np.ndarray:
        span = 1 + sum((extent - 1) * step for extent, step in zip(self.shape, self.strides, strict=True))
        span += self.dtype.itemsize - 1
        flat = np.memmap(self.path, np.uint8, "r", self.offset, (span,))
        return np.ndarray(self.shape, self.dtype, flat, 0, self.strides)


class Subset(Dataset):
    """The items of a dataset at some positions."""

    @entry_point
    def __init__(self, dataset: Any, indices: Sequence[int]):
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[one] for one in index]]
        return self.dataset[self.indices[index]]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset):
    """Datasets one after the other."""

    @entry_point
    def __init__(self, datasets: Iterable[Any]):
        self.datasets = list(datasets)
        self.cumulative_sizes = list(itertools.accumulate(len(one) for one in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1] if self.cumulative_sizes else 0

    def __getitem__(self, index: int) -> Any:
        count = len(self)
        if not -count <= index < count:
            raise problem(IndexRangeError, "ConcatDataset", f"index {index} into {count} items", "one of them")
        index %= count
        number = bisect.bisect_right(self.cumulative_sizes, index)
        return self.datasets[number][index - (self.cumulative_sizes[number - 1] if number else 0)]


class ChainDataset(IterableDataset):
    """Iterable datasets one after the other."""

    @entry_point
    def __init__(self, datasets: Iterable[Any]):
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.datasets)


@entry_point
def random_split(dataset: Any, lengths: Sequence[float], generator: Generator | None = None) -> list[Subset]:
    """Split a dataset at random into parts of these lengths, or fractions that add up to 1.

    >>> [len(part) for part in weft.utils.data.random_split(range(10), [0.8, 0.2])]
    [8, 2]
    """
    total = len(dataset)
    counts = [int(length) for length in lengths]
    if abs(sum(lengths) - 1) < 1e-9 and all(0 <= length <= 1 for length in lengths):
        counts = [int(total * length) for length in lengths]
        for k in range(total - sum(counts)):
            counts[k % len(counts)] += 1
    if sum(counts) != total:
        given = f"lengths {list(lengths)} for {total} items"
        raise problem(RangeError, "random_split", given, f"numbers that add up to {total}, or fractions that do to 1")
    order = randperm(total, generator=generator).tolist()
    ends = list(itertools.accumulate(counts))
    return [Subset(dataset, order[end - count : end]) for count, end in zip(counts, ends, strict=True)]


@entry_point
def k_fold(
    dataset: Any, folds: int = 5, *, shuffle: bool = True, seed: int = 0, labels: Sequence[Any] | None = None
) -> list[tuple[Subset, Subset]]:
    """(training part, validation part) of each fold: every item is in one validation part. With `labels`, one for each
    item, each class is spread evenly over the folds.

    >>> [(len(train), list(valid)) for train, valid in weft.data.k_fold(range(5), 2, shuffle=False)]
    [(2, [0, 1, 2]), (3, [3, 4])]
    """
    total = len(dataset)
    if not 2 <= folds <= total:
        raise problem(RangeError, "k_fold", f"folds={folds} for {total} items", f"2 to {total}")
    if labels is not None and len(labels) != total:
        raise problem(ShapeError, "k_fold", f"{len(labels)} labels for {total} items", "one for each item")
    order = np.arange(total)
    if shuffle:
        order = randperm(total, generator=Generator(seed), device="cpu").numpy()
    if labels is None:
        parts = np.array_split(order, folds)
    else:
        _, classes = np.unique(np.asarray(labels), return_inverse=True)
        by_class = order[np.argsort(classes[order], kind="stable")]
        parts = [
            np.sort(by_class[number::folds]) if not shuffle else by_class[number::folds] for number in range(folds)
        ]
    result = []
    for number, part in enumerate(parts):
        rest = np.concatenate([one for other, one in enumerate(parts) if other != number])
        result.append((Subset(dataset, np.sort(rest).tolist()), Subset(dataset, part.tolist())))
    return result
