"""Parquet and Arrow files, by the package `pyarrow`: whole tables, or a stream of rows for files that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.data.dataset import IterableDataset
from weft.data.faults import DataError, Source, find_file, need_package
from weft.data.table import Table
from weft.errors import RangeError, problem


def read_parquet(path: Source, columns: Sequence[str] | None = None) -> Table:
    """The table of a Parquet file. Lists of equal length become arrays [rows, length]."""
    who = f"read_parquet({str(path)!r})"
    found = find_file("read_parquet", path)
    parquet = need_package("read_parquet", "pyarrow.parquet", "pyarrow")
    return _as_table(who, _guarded(who, lambda: _chosen(who, parquet.ParquetFile(found), columns)))


def read_arrow(path: Source, columns: Sequence[str] | None = None) -> Table:
    """The table of an Arrow IPC (Feather) file or stream, memory-mapped while it is read."""
    who = f"read_arrow({str(path)!r})"
    found = find_file("read_arrow", path)
    pa = need_package("read_arrow", "pyarrow", "pyarrow")

    def read() -> Any:
        with pa.memory_map(str(found)) as file:
            try:
                table = pa.ipc.open_file(file).read_all()
            except pa.ArrowInvalid:
                file.seek(0)
                table = pa.ipc.open_stream(file).read_all()
        _check_names(who, table.schema.names, columns)
        return table if columns is None else table.select(list(columns))

    return _as_table(who, _guarded(who, read))


class ParquetStream(IterableDataset):
    """The rows of a Parquet file as dicts of NumPy values, read by row groups: only one is in memory at a time."""

    def __init__(self, path: Source, columns: Sequence[str] | None = None):
        self.path, self.columns = find_file("ParquetStream", path), columns
        self.who = f"ParquetStream({str(path)!r})"

    def _open(self) -> Any:
        parquet = need_package("ParquetStream", "pyarrow.parquet", "pyarrow")
        return _guarded(self.who, lambda: parquet.ParquetFile(self.path))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        file = self._open()
        _check_names(self.who, file.schema_arrow.names, self.columns)
        names = None if self.columns is None else list(self.columns)
        for group in range(file.num_row_groups):
            columns = _as_table(
                self.who, _guarded(self.who, lambda group=group: file.read_row_group(group, columns=names))
            )
            for row in range(columns.rows):
                yield {name: column[row] for name, column in columns.items()}

    def __len__(self) -> int:
        return self._open().metadata.num_rows


def _chosen(who: str, file: Any, columns: Sequence[str] | None) -> Any:
    _check_names(who, file.schema_arrow.names, columns)
    return file.read(columns=None if columns is None else list(columns))


def _check_names(who: str, names: Sequence[str], columns: Sequence[str] | None) -> None:
    for name in columns or ():
        if name not in names:
            raise problem(RangeError, who, f"column {name!r}", f"one of {list(names)}")


def _guarded(who: str, read: Any) -> Any:
    """What `read` returns; errors of pyarrow as ours."""
    pa = need_package("read_parquet", "pyarrow", "pyarrow")
    try:
        return read()
    except (pa.ArrowException, OSError) as error:
        raise problem(DataError, who, f"a damaged or foreign file ({error})", "a Parquet or Arrow file") from None


def _as_table(who: str, table: Any) -> Table:
    return Table({name: _as_array(who, name, table.column(name)) for name in table.column_names})


def _as_array(who: str, name: str, column: Any) -> np.ndarray:
    values = column.to_numpy()
    if values.dtype != object:
        return values
    if len(values) and all(isinstance(one, np.ndarray) for one in values):
        lengths = {one.shape for one in values}
        if len(lengths) == 1 and values[0].dtype != object:
            return np.stack(list(values))
    if len(values) and all(isinstance(one, bool) for one in values):
        return values.astype(bool)
    return values
