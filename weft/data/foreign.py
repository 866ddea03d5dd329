"""Datasets of other libraries: those of PyTorch and of Hugging Face, with items as NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.base.errors import RangeError, problem
from weft.core.boundary import entry_point
from weft.data.collate import array_of_torch, is_torch_tensor, map_leaves
from weft.data.dataset import Dataset, IterableDataset, is_stream

__all__ = ["from_huggingface", "from_torch"]


@entry_point
def from_torch(dataset: Any) -> Dataset:
    """A dataset of PyTorch, map-style or iterable, with its tensors as NumPy arrays. (A `DataLoader` takes such a
    dataset as it is, too.)"""
    return _ForeignStream(dataset, _as_arrays) if is_stream(dataset) else _ForeignRows(dataset, _as_arrays)


@entry_point
def from_huggingface(dataset: Any, columns: Sequence[str] | None = None) -> Dataset:
    """A `datasets.Dataset` or `IterableDataset` of Hugging Face: items are tuples of the `columns` given, or dicts of
    all; lists of numbers and images become NumPy arrays."""
    known = getattr(dataset, "column_names", None)
    for name in columns or ():
        if known is not None and name not in known:
            raise problem(RangeError, "from_huggingface", f"column {name!r}", f"one of {list(known)}")
    convert = _Columns(None if columns is None else tuple(columns))
    return _ForeignStream(dataset, convert) if is_stream(dataset) else _ForeignRows(dataset, convert)


class _Columns:
    """An item of Hugging Face's with the values of some columns, or of all."""

    def __init__(self, names: tuple[str, ...] | None):
        self.names = names

    def __call__(self, item: Any) -> Any:
        if self.names is None:
            return {name: _as_value(value) for name, value in item.items()}
        return tuple(_as_value(item[name]) for name in self.names)


class _ForeignRows(Dataset):
    def __init__(self, dataset: Any, convert: Any):
        self.dataset, self.convert = dataset, convert

    def __getitem__(self, index: int) -> Any:
        return self.convert(self.dataset[index])

    def __len__(self) -> int:
        return len(self.dataset)


class _ForeignStream(IterableDataset):
    def __init__(self, dataset: Any, convert: Any):
        self.dataset, self.convert = dataset, convert

    def __iter__(self) -> Iterator[Any]:
        return (self.convert(item) for item in self.dataset)

    def __len__(self) -> int:
        return len(self.dataset)


def _as_arrays(item: Any) -> Any:
    return map_leaves(item, lambda one: array_of_torch(one) if is_torch_tensor(one) else one)


def _as_value(value: Any) -> Any:
    """A value of a column: lists of numbers and images as arrays, anything else as it is."""
    if is_torch_tensor(value):
        return array_of_torch(value)
    if type(value).__module__.partition(".")[0] == "PIL":
        return np.asarray(value)
    if isinstance(value, Mapping):
        return {key: _as_value(one) for key, one in value.items()}
    if isinstance(value, list):
        try:
            array = np.array(value)
        except ValueError:  # lists of different lengths
            return value
        return array if array.dtype.kind in "biuf" else value
    return value
