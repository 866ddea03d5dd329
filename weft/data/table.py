"""Tables: named columns of one length, as CSV and Parquet files have them, and the datasets made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.boundary import entry_point
from weft.data.dataset import ArrayDataset
from weft.data.faults import DataError

__all__ = ["Table"]


@entry_point
class Table(Mapping[str, np.ndarray]):
    """Columns by name; text is a column of Python strings.

    >>> table = weft.data.Table({"x": np.array([1, 2]), "kind": np.array(["a", "b"], object)})
    >>> table
    Table(2 rows: x int64, kind text)
    >>> table.encode("kind")
    (array([0, 1]), ['a', 'b'])
    """

    def __init__(self, columns: Mapping[str, np.ndarray]):
        self.columns = dict(columns)
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise problem(ShapeError, "Table", f"columns of lengths {lengths}", "equal lengths")
        self.rows = next(iter(lengths.values()), 0)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise problem(RangeError, "Table", f"column {name!r}", f"one of {list(self.columns)}")
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        kinds = [f"{name} {'text' if one.dtype == object else one.dtype}" for name, one in self.columns.items()]
        return f"Table({self.rows} row{'s' * (self.rows != 1)}: {', '.join(kinds)})"

    def encode(self, name: str, classes: Sequence[Any] | None = None) -> tuple[np.ndarray, list[Any]]:
        """A column as numbers int64 of its classes, and the classes (those given, or all values, sorted)."""
        column = self[name]
        known = sorted({*column.tolist()}, key=lambda one: (str(type(one)), one)) if classes is None else list(classes)
        number_of = {value: number for number, value in enumerate(known)}
        for row, value in enumerate(column.tolist()):
            if value not in number_of:
                raise problem(DataError, "Table.encode", f"{value!r} in row {row} of {name!r}", f"one of {known}")
        return np.array([number_of[value] for value in column.tolist()], np.int64), known

    def features(self, names: Sequence[str] | None = None, dtype: Any = np.float32) -> np.ndarray:
        """Columns of numbers as one array [rows, columns]; text is an error that names the column."""
        chosen = list(self.columns) if names is None else list(names)
        for name in chosen:
            if self[name].dtype.kind not in "biuf" or self[name].ndim != 1:
                given = f"column {name!r} of {self[name].dtype}"
                raise problem(DataError, "Table.features", given, "numbers", "leave it out, or use encode")
        columns = [self[name].astype(dtype) for name in chosen]
        return np.stack(columns, 1) if columns else np.empty((self.rows, 0), dtype)

    def dataset(self, target: str | None = None, features: Sequence[str] | None = None) -> ArrayDataset:
        """Items (features float32, target): text and bool targets as class numbers int64, ints as int64, floats as
        float32; without a target, (features,)."""
        names = [name for name in self.columns if name != target] if features is None else list(features)
        inputs = self.features(names)
        if target is None:
            return ArrayDataset(inputs)
        column = self[target]
        if column.dtype.kind == "f":
            return ArrayDataset(inputs, column.astype(np.float32))
        return ArrayDataset(inputs, column.astype(np.int64) if column.dtype.kind in "iu" else self.encode(target)[0])
