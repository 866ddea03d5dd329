"""NumPy files: `.npy` and `.npz`, memory-mapped where their bytes lie in the file as they are. Pickled objects are
refused."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from weft.base.errors import problem
from weft.core.boundary import entry_point
from weft.data.dataset import ArrayDataset
from weft.data.faults import DataError, Source, find_file

__all__ = ["load_arrays", "open_arrays"]

LOCAL_HEADER = struct.Struct("<4s5H3I2H")  # of a member of a zip file; its last two numbers are lengths


@entry_point
def load_arrays(path: Source, mmap: bool = True) -> dict[str, np.ndarray]:
    """The arrays of a `.npy` (under the name "array") or `.npz` file by name. Arrays are memory-mapped, and read when
    they are used, unless `mmap` is False or they are compressed."""
    who = f"load_arrays({str(path)!r})"
    found = find_file("load_arrays", path)
    try:
        with found.open("rb") as file:
            if file.read(2) == b"PK":
                return _load_archive(found, mmap)
            file.seek(0)
            return {"array": _load_one(found, file, mmap)}
    except Exception as error:  # NumPy's parser of headers raises almost anything
        raise problem(DataError, who, f"a damaged or foreign file ({error})", "a .npy or .npz file") from None


@entry_point
def open_arrays(path: Source, *names: str, mmap: bool = True) -> ArrayDataset:
    """A dataset of the arrays of a `.npy` or `.npz` file: items are tuples in the order of `names`, or dicts of all
    arrays where no names are given."""
    arrays = load_arrays(path, mmap)
    missing = [name for name in names if name not in arrays]
    if missing:
        given = f"names {missing}"
        raise problem(DataError, f"open_arrays({str(path)!r})", given, f"one of {sorted(arrays)}")
    if names:
        return ArrayDataset(*(arrays[name] for name in names))
    if set(arrays) == {"array"}:
        return ArrayDataset(arrays["array"])
    return ArrayDataset(named=arrays)


def _load_one(path: Path, file: IO[bytes], mmap: bool) -> np.ndarray:
    shape, is_fortran, dtype = _header(file)
    if mmap:
        order: Any = "F" if is_fortran else "C"
        return np.memmap(path, dtype, "r", file.tell(), shape, order) if 0 not in shape else np.empty(shape, dtype)
    return np.lib.format.read_array(_rewind(file), allow_pickle=False)


def _rewind(file: IO[bytes]) -> IO[bytes]:
    file.seek(0)
    return file


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    return shape, is_fortran, dtype


def _load_archive(path: Path, mmap: bool) -> dict[str, np.ndarray]:
    result: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as file:
                if mmap and member.compress_type == zipfile.ZIP_STORED:
                    shape, is_fortran, dtype = _header(file)
                    start = _content_offset(path, member) + file.tell()
                    if 0 not in shape:
                        order: Any = "F" if is_fortran else "C"
                        result[name] = np.memmap(path, dtype, "r", start, shape, order)
                        continue
                    result[name] = np.empty(shape, dtype)
                    continue
                result[name] = np.lib.format.read_array(file, allow_pickle=False)
    return result


def _content_offset(path: Path, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a stored member begin."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        header = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    return member.header_offset + LOCAL_HEADER.size + header[-2] + header[-1]
