"""Parquet and Arrow files, by the package `pyarrow`: whole tables, or a stream of rows for files that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.base.errors import RangeError, problem
from weft.core.boundary import entry_point
from weft.data.dataset import IterableDataset
from weft.data.faults import DataError, Source, find_file, need_package
from weft.data.table import Table

__all__ = ["ParquetStream", "read_arrow", "read_parquet"]


@entry_point
def read_parquet(path: Source, columns: Sequence[str] | None = None) -> Table:
    """The table of a Parquet file. Lists of equal length become arrays [rows, length]. Whole numbers among which values
    are missing become float64 with NaN; those that float64 cannot hold exactly are an error."""
    who = f"read_parquet({str(path)!r})"
    found = find_file("read_parquet", path)
    parquet = need_package("read_parquet", "pyarrow.parquet", "pyarrow")
    return _as_table(who, _convert_errors(who, lambda: _select(who, parquet.ParquetFile(found), columns)))


@entry_point
def read_arrow(path: Source, columns: Sequence[str] | None = None) -> Table:
    """The table of an Arrow IPC (Feather) file or stream, memory-mapped while it is read; columns as those of
    `read_parquet`."""
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

    return _as_table(who, _convert_errors(who, read))


class ParquetStream(IterableDataset):
    """The rows of a Parquet file as dicts of NumPy values, read by row groups: only one is in memory at a time. A
    column has one dtype in the whole file, that of `read_parquet`."""

    def __init__(self, path: Source, columns: Sequence[str] | None = None):
        self.path, self.columns = find_file("ParquetStream", path), columns
        self.who = f"ParquetStream({str(path)!r})"
        self._with_missing: frozenset[str] | None = None  # columns in which values are missing, once it is known

    def _open(self) -> Any:
        parquet = need_package("ParquetStream", "pyarrow.parquet", "pyarrow")
        return _convert_errors(self.who, lambda: parquet.ParquetFile(self.path))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        file = self._open()
        _check_names(self.who, file.schema_arrow.names, self.columns)
        names = None if self.columns is None else list(self.columns)
        if self._with_missing is None:
            self._with_missing = _convert_errors(self.who, lambda: _find_missing(file, names))
        for group in range(file.num_row_groups):
            found = _convert_errors(self.who, lambda group=group: file.read_row_group(group, columns=names))
            columns = _as_table(self.who, found, self._with_missing)
            for row in range(columns.rows):
                yield {name: column[row] for name, column in columns.items()}

    def __len__(self) -> int:
        return self._open().metadata.num_rows


def _select(who: str, file: Any, columns: Sequence[str] | None) -> Any:
    _check_names(who, file.schema_arrow.names, columns)
    return file.read(columns=None if columns is None else list(columns))


def _check_names(who: str, names: Sequence[str], columns: Sequence[str] | None) -> None:
    for name in columns or ():
        if name not in names:
            raise problem(RangeError, who, f"column {name!r}", f"one of {list(names)}")


def _pyarrow() -> Any:
    return need_package("read_parquet", "pyarrow", "pyarrow")


def _convert_errors(who: str, read: Any) -> Any:
    """What `read` returns; errors of pyarrow as ours."""
    pa = _pyarrow()
    try:
        return read()
    except (pa.ArrowException, OSError) as error:
        raise problem(DataError, who, f"a damaged or foreign file ({error})", "a Parquet or Arrow file") from None


def _as_table(who: str, table: Any, with_missing: frozenset[str] | None = None) -> Table:
    """The columns as arrays; `with_missing` are those in which values are missing, here or in other parts of a file."""
    result = {}
    for name in table.column_names:
        column = table.column(name)
        has_missing = _has_missing(column) if with_missing is None else name in with_missing
        result[name] = _as_array(who, name, column, has_missing)
    return Table(result)


def _has_missing(column: Any) -> bool:
    """Whether values are missing in a column, or in the lists of a column of lists."""
    pa = _pyarrow()
    if column.null_count:
        return True
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    if not (is_list or pa.types.is_fixed_size_list(column.type)):
        return False
    return any(chunk.flatten().null_count for chunk in column.chunks)


def _find_missing(file: Any, names: list[str] | None) -> frozenset[str]:
    """The columns of whole numbers and bools in which values are missing anywhere in a Parquet file: by its statistics
    or, where these do not say it, by reading the column."""
    pa = _pyarrow()
    found = set()
    for name in file.schema_arrow.names if names is None else names:
        kind = file.schema_arrow.field(name).type
        if _float_type(kind) is None and not pa.types.is_boolean(kind):
            continue
        counts = [_count_missing(file.metadata.row_group(group), name) for group in range(file.num_row_groups)]
        if None in counts:
            parts = (file.read_row_group(group, columns=[name]) for group in range(file.num_row_groups))
            has_missing = any(_has_missing(part.column(name)) for part in parts)
        else:
            has_missing = any(counts)
        if has_missing:
            found.add(name)
    return frozenset(found)


def _count_missing(group: Any, name: str) -> int | None:
    """How many values of a column are missing in a row group; None where the metadata do not say it."""
    total = 0
    for number in range(group.num_columns):
        part = group.column(number)
        is_in_lists = part.path_in_schema.startswith(f"{name}.")
        if part.path_in_schema != name and not is_in_lists:
            continue
        known = part.statistics
        if known is None or not known.has_null_count or (is_in_lists and known.null_count):
            return None  # of lists, empty ones are counted, too
        total += known.null_count
    return total


def _float_type(kind: Any) -> Any:
    """The Arrow type with floats in place of whole numbers that may be missing; None for a type without such."""
    pa = _pyarrow()
    if pa.types.is_integer(kind):
        return pa.float64()
    if pa.types.is_fixed_size_list(kind) and pa.types.is_integer(kind.value_type):
        return pa.list_(pa.float64(), kind.list_size)
    if pa.types.is_list(kind) and pa.types.is_integer(kind.value_type):
        return pa.list_(pa.float64())
    if pa.types.is_large_list(kind) and pa.types.is_integer(kind.value_type):
        return pa.large_list(pa.float64())
    return None


def _as_array(who: str, name: str, column: Any, has_missing: bool) -> np.ndarray:
    wide = _float_type(column.type) if has_missing else None
    if wide is not None:
        pa = _pyarrow()
        try:
            column = column.cast(wide)
        except pa.ArrowInvalid as error:
            given = f"column {name!r} of {column.type} with missing values, and values that float64 has not ({error})"
            raise problem(DataError, who, given, "numbers below 2**53, or none missing") from None
    values = column.to_numpy()
    if values.dtype == bool and has_missing:
        return values.astype(object)
    if values.dtype != object:
        return values
    if len(values) and all(isinstance(one, np.ndarray) for one in values):
        lengths = {one.shape for one in values}
        if len(lengths) == 1 and values[0].dtype != object:
            return np.stack(list(values))
    if len(values) and all(isinstance(one, bool) for one in values):
        return values.astype(bool)
    return values
