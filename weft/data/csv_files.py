"""CSV files: rows by Python's `csv` module, dtypes by inference, errors with line numbers.

A column is int64 if all its values are whole numbers that fit, else float64 if all are numbers (missing values are
NaN), else bool if all are true or false, else text. Spaces behind a delimiter are no part of a value, nor are spaces
around a number or a word for a missing value.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.base.errors import RangeError, problem
from weft.core.boundary import entry_point
from weft.data.faults import DataError, Source, read_bytes
from weft.data.table import Table

__all__ = ["read_csv"]

SPACES = " \t"  # around a number
MISSING = ("", "NA", "N/A", "NaN", "nan", "null")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}\Z", re.ASCII)
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,9})?\Z|[+-]?(inf|Inf|INF|infinity|Infinity)\Z")
_BOOLS = {"true": True, "false": False, "True": True, "False": False, "TRUE": True, "FALSE": False}


@entry_point
def read_csv(
    path: Source,
    *,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    header: bool = True,
    delimiter: str = ",",
    missing: Sequence[str] = MISSING,
    encoding: str = "utf-8",
) -> Table:
    """The table of a CSV file. `columns` chooses some, `dtypes` fixes dtypes by name (`int`, `float`, `bool`, `str` or
    NumPy's), without a `header` the names are "0", "1", ..."""
    data = read_bytes("read_csv", path)
    return parse_csv(
        data, f"read_csv({str(path)!r})", columns=columns, dtypes=dtypes, header=header, delimiter=delimiter,
        missing=missing, encoding=encoding,
    )  # fmt: skip


@entry_point
def parse_csv(
    data: bytes,
    who: str = "read_csv",
    *,
    columns: Sequence[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    header: bool = True,
    delimiter: str = ",",
    missing: Sequence[str] = MISSING,
    encoding: str = "utf-8",
) -> Table:
    """The table of the bytes of a CSV file.

    >>> table = parse_csv(b"x,kind\\n1,a\\n2,b\\n")
    >>> table["x"], table["kind"].tolist()
    (array([1, 2]), ['a', 'b'])
    """
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise problem(RangeError, who, f"delimiter={delimiter!r}", "one character")
    names, rows, lines = _read_rows(who, _decode(who, data, encoding), header, delimiter)
    chosen = names if columns is None else list(columns)
    for name in [*chosen, *(dtypes or {})]:
        if name not in names:
            raise problem(RangeError, who, f"column {name!r}", f"one of {names}")
    absent = frozenset(missing)
    result = {}
    for name in chosen:
        column = names.index(name)
        values = [row[column] for row in rows]
        if dtypes is not None and name in dtypes:
            result[name] = _convert(who, values, lines, name, np.dtype(dtypes[name]), absent)
        else:
            result[name] = _infer(values, absent)
    return Table(result)


def _decode(who: str, data: bytes, encoding: str) -> str:
    try:
        text = data.decode(encoding)
    except LookupError:
        raise problem(RangeError, who, f"encoding={encoding!r}", "the name of an encoding, such as 'utf-8'") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        given = f"bytes that are not {encoding} in line {line}"
        raise problem(DataError, who, given, f"text in {encoding}", "give another encoding") from None
    return text.removeprefix("\ufeff")


def _read_rows(who: str, text: str, header: bool, delimiter: str) -> tuple[list[str], list[list[str]], list[int]]:
    """The names of the columns, the rows, and the line that each row ends in. Blank lines are left out."""
    has_spaces = delimiter != " "  # that may follow a delimiter, and are no part of the value
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=has_spaces)
    names: list[str] | None = None
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if not row:
                continue
            if names is None:
                names = [one.strip() for one in row] if header else [str(number) for number in range(len(row))]
                if len(set(names)) != len(names):
                    twice = next(one for one in names if names.count(one) > 1)
                    raise problem(DataError, who, f"two columns {twice!r} in line {reader.line_num}", "unique names")
                if header:
                    continue
            if len(row) != len(names):
                given = f"{len(row)} values in line {reader.line_num}"
                raise problem(DataError, who, given, f"{len(names)}, as many as there are columns")
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise problem(DataError, who, f"line {reader.line_num}, where {error}", "a CSV file") from None
    if names is None:
        raise problem(DataError, who, "an empty file", "a header and rows")
    return names, rows, lines


def _infer(texts: list[str], absent: frozenset[str]) -> np.ndarray:
    values = [one.strip(SPACES) for one in texts]
    if values and all(_WHOLE.match(one) for one in values):
        numbers = [int(one) for one in values]
        if all(-(2**63) <= one < 2**63 for one in numbers):
            return np.array(numbers, np.int64)
    if all(one in absent or _FLOAT.match(one) for one in values) and not all(one in absent for one in values):
        return np.array([np.nan if one in absent else float(one) for one in values], np.float64)
    if values and all(one in _BOOLS for one in values):
        return np.array([_BOOLS[one] for one in values], bool)
    return _texts(texts)


def _texts(values: list[str]) -> np.ndarray:
    result = np.empty(len(values), object)
    result[:] = values
    return result


def _convert(
    who: str, values: list[str], lines: list[int], name: str, dtype: np.dtype, absent: frozenset[str]
) -> np.ndarray:
    if dtype.kind in "OUST":
        return _texts(values)
    convert: dict[str, Callable[[str], Any]] = {"b": _as_bool, "f": _as_float, "i": int, "u": int}
    if dtype.kind not in convert:
        raise problem(RangeError, who, f"dtype {dtype} for column {name!r}", "int, float, bool or str")
    result = np.empty(len(values), dtype)
    for row, given_text in enumerate(values):
        text = given_text.strip(SPACES)
        try:
            if text in absent and dtype.kind == "f":
                result[row] = np.nan
            elif dtype.kind in "iu" and not _WHOLE.match(text):
                raise ValueError
            else:
                result[row] = convert[dtype.kind](text)
        except (ValueError, KeyError, OverflowError):
            shown = text if len(text) <= 40 else text[:37] + "..."
            given = f"{shown!r} in column {name!r}, line {lines[row]}"
            raise problem(DataError, who, given, f"a value of {dtype}") from None
    return result


def _as_bool(text: str) -> bool:
    return {"0": False, "1": True}[text] if text in ("0", "1") else _BOOLS[text]


def _as_float(text: str) -> float:
    """A number as `_infer` knows it, or NaN in words; Python's own rules also take 1_0 for 10."""
    if not _FLOAT.match(text) and text.lstrip("+-").lower() != "nan":
        raise ValueError
    return float(text)
