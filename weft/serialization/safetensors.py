"""Reader and writer of the safetensors format: tensors by name and a table of texts, in one file without code.

A file is a length (8 bytes, little endian), a JSON header of that length and the data. The header has for every tensor
its dtype, its shape and where its bytes begin and end in the data, and under `__metadata__` texts by name. Nothing is
trusted: tensors must be contiguous, without gaps or overlaps, and fill the data exactly.

What Weft writes has a SHA-256 of all the rest in the metadata (`weft.sha256`), which is checked when the file is read:
a file that was damaged is an error. Files of other programs have none. Files of a megabyte and more are mapped into
memory: on the CPU their tensors are the file's own pages, which are only read. Such a file may be replaced by another
(as Weft does), but must not be written to in place while tensors of it are in use.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from weft.base import dtypes, files
from weft.base.dtypes import DType
from weft.base.errors import DTypeError, FileFormatError, GraphError, RangeError, problem
from weft.base.files import PathLike, as_path, damaged_file
from weft.core.device import get
from weft.core.host_arrays import host_array
from weft.core.interop import array_leaf
from weft.core.tensor import Tensor
from weft.jit.snapshot import snapshot

HEADER_LIMIT = 100_000_000  # bytes, as in the reference implementation
DIGEST = "weft.sha256"
METADATA = "__metadata__"
ALIGNMENT = 64  # where the data begins: a multiple of this many bytes
LARGEST_INT64 = 2**63 - 1
AXES = 32  # at most

NAMES: dict[str, DType] = {
    "BOOL": dtypes.bool_, "U8": dtypes.uint8, "I8": dtypes.int8, "U16": dtypes.uint16, "I16": dtypes.int16,
    "F16": dtypes.float16, "BF16": dtypes.bfloat16, "U32": dtypes.uint32, "I32": dtypes.int32, "F32": dtypes.float32,
    "U64": dtypes.uint64, "I64": dtypes.int64, "F64": dtypes.float64,
}  # fmt: skip
NAME_OF = {dtype: name for name, dtype in NAMES.items()}
# Dtypes of the format that Weft does not have: the message says so instead of calling the file damaged.
FOREIGN = frozenset({"F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2", "C64", "C128"})


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its form, and where its bytes lie in the data."""

    dtype: DType
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class TensorFile:
    """A file whose header was read and found to be right. `data` are the bytes behind the header."""

    path: Path
    entries: dict[str, Entry]
    metadata: dict[str, str] = field(repr=False)
    digest: str | None
    data: np.ndarray = field(repr=False)

    def array(self, name: str) -> np.ndarray:
        """A tensor of the file as an array on the file's memory, read-only."""
        entry = self.entries[name]
        raw = self.data[entry.start : entry.stop]
        if entry.dtype.kind == "b" and raw.size and raw.max() > 1:
            raise damaged_file("load", self.path, f"the tensor {name!r} of dtype bool has bytes other than 0 and 1")
        return raw.view(entry.dtype.numpy).reshape(entry.shape)

    def tensor(self, name: str, device: Any = None) -> Tensor:
        """A tensor of the file; on the CPU it shares the file's memory where it is aligned."""
        return Tensor(array_leaf("load", self.array(name), self.entries[name].dtype, get(device)))

    def tensors(self, device: Any = None) -> dict[str, Tensor]:
        """All tensors of the file."""
        target = get(device)
        return {name: self.tensor(name, target) for name in self.entries}

    def verify(self) -> None:
        """Compare the file with the digest that it was written with; files of other programs have none."""
        if self.digest is None and any(key.startswith("weft.") for key in self.metadata):
            raise damaged_file("load", self.path, "Weft wrote it, and its SHA-256 is missing, so it is damaged")
        if self.digest is not None and _digest(self.entries, self.metadata, [self.data.data]) != self.digest:
            fix = "take another copy; if a program changed it on purpose, load it with verify=False"
            raise damaged_file("load", self.path, "its contents do not match its SHA-256, so it is damaged", "", fix)


# ---- writing ---------------------------------------------------------------------------------------------------------


def save_tensors(path: PathLike, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write tensors, all of one moment, as one safetensors file, atomically; returns its digest.

    >>> from weft.serialization import load_tensors, save_tensors
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/weights.safetensors"
    >>> digest = save_tensors(path, {"w": weft.ones(2)}, {"author": "me"})
    >>> load_tensors(path)
    {'w': tensor([1., 1.])}
    """
    where = as_path("save_tensors", path)
    with files.replace("save_tensors", where) as handle:
        return write_tensors(handle, tensors, metadata or {})


def write_tensors(handle: int, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Write a safetensors file to an open, empty file; returns its digest."""
    _check(tensors, metadata)
    values: dict[str, Tensor] = snapshot(dict(tensors))
    entries: dict[str, Entry] = {}
    position = 0
    for name in sorted(values, key=lambda name: -values[name].dtype.itemsize):  # each is aligned to its elements
        value = values[name]
        nbytes = math.prod(value.shape) * value.dtype.itemsize
        entries[name] = Entry(value.dtype, tuple(value.shape), position, position + nbytes)
        position += nbytes
    order = list(entries)
    entries = {name: entries[name] for name in values}
    header = _header(entries, metadata, "0" * 64)
    if len(header) > HEADER_LIMIT:
        given = f"names and metadata of {len(header)} bytes"
        raise problem(RangeError, "save_tensors", given, f"at most {HEADER_LIMIT}", "keep less beside the tensors")
    files.write_all(handle, len(header).to_bytes(8, "little") + header)
    digest = hashlib.sha256(_encode_header(entries, metadata))
    for name in order:  # one at a time: tensors of a GPU are downloaded here
        raw = np.ascontiguousarray(host_array(values[name], None)).reshape(-1).view(np.uint8)
        digest.update(raw.data)
        files.write_all(handle, raw)
    made = digest.hexdigest()
    files.os.lseek(handle, 8, 0)
    files.write_all(handle, _header(entries, metadata, made))
    return made


def _check(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    who = "save_tensors"
    for name, value in tensors.items():
        if not isinstance(name, str) or name == METADATA:
            raise problem(DTypeError, who, f"the name {name!r} for a tensor", f"a string other than {METADATA!r}")
        _check_text(name)
        if not isinstance(value, Tensor):
            fix = "weft.save takes nested data; weft.tensor makes tensors of arrays"
            raise problem(DTypeError, who, f"a {type(value).__name__} under {name!r}", "a weft.Tensor", fix)
        if getattr(value, "becomes", None) is not None:
            given = f"the parameter {name!r}, which has no shape yet"
            raise problem(GraphError, who, given, "parameters with values", "call the lazy module once before")
    for key, text in metadata.items():
        if not isinstance(key, str) or not isinstance(text, str) or key == DIGEST:
            raise problem(DTypeError, who, f"the metadata {key!r}: {text!r}", "texts by name")
        _check_text(key)
        _check_text(text)


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise problem(DTypeError, "save_tensors", f"the text {text!r:.100}", "text that UTF-8 can write") from None


def _header(entries: Mapping[str, Entry], metadata: Mapping[str, str], digest: str) -> bytes:
    """The JSON of a header, filled up with spaces so that the data behind it is aligned."""
    full: dict[str, Any] = {METADATA: {**metadata, DIGEST: digest}}
    for name, entry in entries.items():
        full[name] = {
            "dtype": NAME_OF[entry.dtype], "shape": list(entry.shape), "data_offsets": [entry.start, entry.stop],
        }  # fmt: skip
    text = json.dumps(full, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    return text + b" " * (-(len(text) + 8) % ALIGNMENT)


def _encode_header(entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> bytes:
    """Forms and metadata in an order that does not depend on how they are written."""
    forms = {name: [NAME_OF[e.dtype], list(e.shape), e.start, e.stop] for name, e in entries.items()}
    return json.dumps([forms, dict(metadata)], sort_keys=True, separators=(",", ":")).encode("ascii")


def _digest(entries: Mapping[str, Entry], metadata: Mapping[str, str], parts: list[Any]) -> str:
    made = hashlib.sha256(_encode_header(entries, metadata))
    for part in parts:
        made.update(part)
    return made.hexdigest()


# ---- reading ---------------------------------------------------------------------------------------------------------


def load_tensors(path: PathLike, device: Any = None, *, verify: bool = True) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, on `device`. `verify` compares a file that Weft wrote with its
    digest."""
    opened = open_tensors(path)
    if verify:
        opened.verify()
    return opened.tensors(device)


def read_metadata(path: PathLike) -> dict[str, str]:
    """The texts that a safetensors file holds beside its tensors."""
    return dict(open_tensors(path).metadata)


def open_tensors(path: PathLike) -> TensorFile:
    """A safetensors file whose header has been read and checked, and whose tensors have not been read yet."""
    where = as_path("load", path)
    return parse_tensors(where, files.read_bytes(where))


def parse_tensors(path: Path, content: np.ndarray) -> TensorFile:
    """Read and check the header of a file with these bytes."""
    if content.size < 8:
        raise damaged_file("load", path, f"it has {content.size} bytes", "a safetensors file")
    length = int.from_bytes(content[:8].tobytes(), "little")
    if length > min(HEADER_LIMIT, content.size - 8):
        why = f"its header would have {length} bytes and the file has {content.size}"
        raise damaged_file("load", path, why, "a safetensors file, which is whole")
    text = content[8 : 8 + length].tobytes()
    if not text.startswith(b"{"):
        raise damaged_file("load", path, "its header does not begin with '{'", "a safetensors file")
    header = files.parse_json("load", path, text, "its header")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise damaged_file("load", path, "its metadata is no table of texts")
    digest = metadata.pop(DIGEST, None)
    entries = {name: _entry(path, name, about) for name, about in header.items()}
    data = content[8 + length :]
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != end:
            why = f"the tensor {name!r} begins at byte {entry.start} of the data, where {end} bytes are taken"
            raise damaged_file("load", path, why, "contiguous tensors, without gaps and overlaps")
        end = entry.stop
    if end != data.size:
        raise damaged_file(
            "load", path, f"its tensors take {end} bytes and {data.size} are there", "a file that is whole"
        )
    return TensorFile(path, entries, metadata, digest, data)


def _entry(path: Path, name: str, about: Any) -> Entry:
    if not isinstance(about, dict) or set(about) != {"dtype", "shape", "data_offsets"}:
        raise damaged_file("load", path, f"the tensor {name!r} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = about["dtype"], about["shape"], about["data_offsets"]
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise damaged_file("load", path, f"the tensor {name!r} has shape {shape!r:.80} and offsets {offsets!r:.80}")
    if isinstance(dtype, str) and dtype in FOREIGN:
        given, fix = f"the tensor {name!r} of {str(path)!r} with dtype {dtype}", "convert it to BF16 or F16 first"
        raise problem(FileFormatError, "load", given, f"one of {', '.join(NAMES)}", fix)
    if not isinstance(dtype, str) or dtype not in NAMES:
        raise damaged_file(
            "load", path, f"the tensor {name!r} has the dtype {dtype!r:.80}", f"one of {', '.join(NAMES)}"
        )
    count = math.prod(shape)
    if math.prod(max(size, 1) for size in shape) * NAMES[dtype].itemsize > LARGEST_INT64 or len(shape) > AXES:
        raise damaged_file("load", path, f"the tensor {name!r} has the shape {shape!r:.80}", "sizes that are possible")
    if offsets[1] - offsets[0] != count * NAMES[dtype].itemsize:
        why = f"the tensor {name!r} of shape {shape} and dtype {dtype} has {offsets[1] - offsets[0]} bytes"
        raise damaged_file("load", path, why, f"{count * NAMES[dtype].itemsize}")
    return Entry(NAMES[dtype], tuple(shape), offsets[0], offsets[1])


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value <= LARGEST_INT64 for value in values)
