"""IDX files, the format of MNIST: two zero bytes, a dtype code, the number of axes, their extents, the elements, big
endian. Files may be compressed with gzip. Nothing is allocated that the file does not have."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from weft.base.errors import RangeError, problem
from weft.core.boundary import entry_point
from weft.data.dataset import ArrayDataset
from weft.data.faults import DataError, MissingDataError, Source, check_labels, find_folder, read_bytes

__all__ = ["MNIST", "read_idx"]

DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GZIP_MAGIC = b"\x1f\x8b"
DIGIT_CLASSES = 10


@entry_point
def read_idx(path: Source) -> np.ndarray:
    """The array of an IDX file, compressed or not, in the byte order of this machine."""
    return parse_idx(read_bytes("read_idx", path), path)


@entry_point
def parse_idx(data: bytes, path: Source = "data") -> np.ndarray:
    """The array of an IDX file's bytes.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    array([7, 9], dtype=uint8)
    """
    who = f"read_idx({str(path)!r})"
    stream: io.BufferedIOBase = io.BytesIO(data)
    if data[:2] == GZIP_MAGIC:
        stream = gzip.GzipFile(fileobj=stream)
    try:
        return _parse(who, stream)
    except (OSError, EOFError, zlib.error) as error:
        raise problem(DataError, who, f"a damaged gzip file ({error})", "an IDX file") from None


def _parse(who: str, stream: io.BufferedIOBase) -> np.ndarray:
    head = stream.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in DTYPES:
        codes = ", ".join(f"{code:#04x}" for code in DTYPES)
        raise problem(DataError, who, f"a file that begins with {head!r}", f"0, 0, one of {codes}, number of axes")
    extents = stream.read(4 * head[3])
    if len(extents) < 4 * head[3]:
        raise problem(DataError, who, f"{len(extents)} bytes of extents", f"{4 * head[3]} for {head[3]} axes")
    shape = struct.unpack(f">{head[3]}I", extents)
    dtype = np.dtype(DTYPES[head[2]])
    nbytes = math.prod(shape) * dtype.itemsize
    content = _read_up_to(stream, nbytes + 1)
    if len(content) != nbytes:
        has = "more" if len(content) > nbytes else f"{len(content)}"
        given = f"shape {shape} of {dtype.name}, and {has} bytes of elements"
        raise problem(DataError, who, given, f"{nbytes} bytes", "download the file again")
    if head[3] > 32:
        raise problem(DataError, who, f"{head[3]} axes", "at most 32")
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _read_up_to(stream: io.BufferedIOBase, limit: int) -> bytes:
    """At most `limit` bytes, which may be far more than there are."""
    parts, total = [], 0
    while total < limit:
        part = stream.read(min(limit - total, 1 << 24))
        if not part:
            break
        parts.append(part)
        total += len(part)
    return b"".join(parts)


@entry_point
def MNIST(folder: Source, split: str = "train") -> ArrayDataset:
    """Images uint8 [N, 1, 28, 28] and labels int64 [N] of the files `train-images-idx3-ubyte[.gz]`, ... in a folder
    (also those of Fashion-MNIST and others of this form)."""
    who = "MNIST"
    if split not in ("train", "test"):
        raise problem(RangeError, who, f"split={split!r}", "'train' or 'test'")
    name = "train" if split == "train" else "t10k"
    root = find_folder(who, folder)
    images = read_idx(_find(who, root, f"{name}-images", "idx3-ubyte"))
    labels = read_idx(_find(who, root, f"{name}-labels", "idx1-ubyte"))
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or images.dtype != np.uint8:
        given = f"images {images.dtype.name}{list(images.shape)} and labels {list(labels.shape)} in {str(root)!r}"
        raise problem(DataError, who, given, "uint8 [N, height, width] and [N]")
    labels = labels.astype(np.int64)
    check_labels(who, root, labels, DIGIT_CLASSES)
    return ArrayDataset(images[:, None], labels)


def _find(who: str, root: Path, stem: str, ending: str) -> Path:
    names = [f"{stem}-{ending}", f"{stem}.{ending}"]
    for name in [*names, *(f"{one}.gz" for one in names)]:
        if (root / name).is_file():
            return root / name
    raise problem(MissingDataError, who, f"{str(root)!r} without {names[0]}", "the file, or its .gz", "download it")
