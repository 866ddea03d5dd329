"""Files of `torch.save`, read without running anything that they contain.

torch writes a pickle, which is a program for a stack machine, and the bytes of storages beside it: in a zip archive
(since torch 1.6), or behind it in one stream (before). `pickles.Machine` runs that program with the names that tensors
need (`_Tensors.calls`) and no others; nothing is imported.

The machine runs twice. The first run finds how many tensors each storage has; a storage of several tensors then becomes
one tensor of which they are views, so that they share memory as they did in torch. Sizes are checked against the bytes
that are there before anything is allocated; compressed archives, which torch does not write, are refused.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from weft.base import dtypes
from weft.base.dtypes import DType
from weft.base.files import damaged_file
from weft.core.interop import array_leaf
from weft.core.tensor import Tensor
from weft.serialization.pickle_calls import PLAIN_CALLS, Named, Part, Refused, as_tuple, call_function
from weft.serialization.pickles import Machine

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # of the stream format
LARGEST_INT64 = 2**63 - 1
AXES = 32
COPIES = 16  # of all storages: windows that leave gaps are copies of their own
SAVE_STATE = "in torch, save model.state_dict() instead"

DTYPES = {
    "float16": dtypes.float16, "half": dtypes.float16, "bfloat16": dtypes.bfloat16, "float32": dtypes.float32,
    "float": dtypes.float32, "float64": dtypes.float64, "double": dtypes.float64, "uint8": dtypes.uint8,
    "uint16": dtypes.uint16, "uint32": dtypes.uint32, "uint64": dtypes.uint64, "int8": dtypes.int8,
    "int16": dtypes.int16, "short": dtypes.int16, "int32": dtypes.int32, "int": dtypes.int32, "int64": dtypes.int64,
    "long": dtypes.int64, "bool": dtypes.bool_,
}  # fmt: skip
STORAGES: dict[str, DType | None] = {
    "HalfStorage": dtypes.float16, "BFloat16Storage": dtypes.bfloat16, "FloatStorage": dtypes.float32,
    "DoubleStorage": dtypes.float64, "ByteStorage": dtypes.uint8, "CharStorage": dtypes.int8,
    "ShortStorage": dtypes.int16, "IntStorage": dtypes.int32, "LongStorage": dtypes.int64, "BoolStorage": dtypes.bool_,
    "UntypedStorage": None,
}  # fmt: skip


def parse_torch(path: Path, content: np.ndarray, device: Any) -> Any:
    """What a file of `torch.save` with these bytes holds, its tensors on `device`."""
    try:
        archive = _Zip(content) if content[:2].tobytes() == b"PK" else _Stream(content)
        counting = _Tensors(archive, device)
        archive.run(counting.calls(), counting.storage)
        making = _Tensors(archive, device, counting.uses)
        return archive.run(making.calls(), making.storage)
    except Refused as error:
        raise damaged_file(
            "load", path, error.why, "a file of torch.save with tensors and plain data", error.fix
        ) from None
    except RecursionError:
        raise damaged_file("load", path, "it nests too deeply", "a file of torch.save") from None


# ---- the two containers ----------------------------------------------------------------------------------------------


class _Zip:
    """The archive that torch has written since 1.6: `NAME/data.pkl`, and a storage each in `NAME/data/KEY`."""

    def __init__(self, content: np.ndarray):
        self.content = content
        try:
            with zipfile.ZipFile(_Reader(content)) as archive:
                members = archive.infolist()
        except (
            zipfile.BadZipFile,
            ValueError,
            OSError,
            struct.error,
            EOFError,
            OverflowError,
            NotImplementedError,
        ) as e:
            raise Refused(f"its archive is damaged ({str(e)[:100]})") from None
        names = [member.filename for member in members]
        if any("/code/" in name or name.endswith("/constants.pkl") for name in names):
            raise Refused("it is a TorchScript program, whose code Weft does not run", SAVE_STATE)
        if len(set(names)) != len(names) or sum(member.file_size for member in members) > content.size:
            raise Refused("its archive is damaged (members overlap or occur twice)")
        self.members = dict(zip(names, members, strict=True))
        found = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(found) != 1:
            raise Refused("it is a zip archive without a data.pkl")
        self.root = found[0].removesuffix("data.pkl")
        self.checked: set[str] = set()  # members whose checksum is right
        self.pickle = self.read("data.pkl")
        order = self.read("byteorder").tobytes() if self.root + "byteorder" in self.members else b"little"
        if order not in (b"little", b"big"):
            raise Refused(f"its byte order is {order[:20]!r}")
        self.swapped = order == b"big"

    def read(self, name: str) -> np.ndarray:
        """The bytes of a member, whose checksum is right."""
        member = self.members.get(self.root + name)
        if member is None:
            raise Refused(f"its archive has no {name[:80]!r}")
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise Refused(f"{name[:80]!r} is compressed or encrypted, which torch does not do")
        start = member.header_offset
        header = self.content[start : start + 30].tobytes()
        if start < 0 or len(header) < 30 or not header.startswith(b"PK\x03\x04"):
            raise Refused(f"its archive is damaged at {name[:80]!r}")
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        start += 30 + name_length + extra_length
        found = self.content[start : start + member.file_size]
        if member.file_size != member.compress_size or found.size != member.file_size:
            raise Refused(f"{name[:80]!r} is cut short")
        if name not in self.checked and zlib.crc32(found.data) != member.CRC:
            raise Refused(f"{name[:80]!r} does not match its checksum")
        self.checked.add(name)
        return found

    def run(self, calls: Mapping[tuple[str, str], Any], storage: Callable[[Any], Any]) -> Any:
        return Machine(self.pickle, calls, storage, _unknown_name).run()[0]

    def storage_bytes(self, key: str, count: int, itemsize: int) -> np.ndarray:
        """The bytes of the storage that is called `key`."""
        found = self.read(f"data/{key}")
        if found.size < count * itemsize:
            raise Refused(f"the storage {key[:40]!r} has {found.size} bytes instead of {count * itemsize}")
        return found[: count * itemsize]


class _Stream:
    """What torch wrote before 1.6: a magic number, a version, facts about the machine, the data, the keys of storages,
    each a pickle, and then the storages: a count of elements each and the bytes."""

    swapped = False

    def __init__(self, content: np.ndarray):
        self.content = content
        head = content[: 1 << 16]  # three small pickles
        magic, position = Machine(head, {}).run()
        if magic != MAGIC:
            raise Refused("it begins as a pickle, and not as one of torch.save")
        version, used = Machine(head[position:], {}).run()
        position += used
        if version != PROTOCOL:
            raise Refused(f"its version is not {PROTOCOL}")
        about, used = Machine(head[position:], {}).run()
        self.start = position + used
        if isinstance(about, dict) and about.get("little_endian") is False:
            self.swapped = True
        self.records: dict[str, tuple[int, int]] | None = None  # elements, and where the bytes begin

    def run(self, calls: Mapping[tuple[str, str], Any], storage: Callable[[Any], Any]) -> Any:
        sizes: dict[str, int] = {}

        def note_location(about: Any) -> Any:
            dtype, key, _ = _storage_form(about)
            sizes[key] = 1 if dtype is None else dtype.itemsize
            return storage(about)

        value, used = Machine(self.content[self.start :], calls, note_location, _unknown_name).run()
        if self.records is None:
            self._find(self.start + used, sizes)
        return value

    def _find(self, position: int, sizes: Mapping[str, int]) -> None:
        keys, used = Machine(self.content[position:], {}).run()
        position += used
        self.records = {}
        if not isinstance(keys, list) or not all(isinstance(key, str) and key in sizes for key in keys):
            raise Refused("its list of storages does not match its data")
        order = ">q" if self.swapped else "<q"
        for key in keys:
            head = self.content[position : position + 8].tobytes()
            count = struct.unpack(order, head)[0] if len(head) == 8 else -1
            if count < 0 or position + 8 + count * sizes[key] > self.content.size:
                raise Refused("it is cut short")
            self.records[key] = count, position + 8
            position += 8 + count * sizes[key]

    def storage_bytes(self, key: str, count: int, itemsize: int) -> np.ndarray:
        if self.records is None:  # the first run, which reads no values
            return np.empty(0, np.uint8)
        if key not in self.records or self.records[key][0] != count:
            raise Refused(f"the storage {key[:40]!r} is not there, or has another size")
        start = self.records[key][1]
        return self.content[start : start + count * itemsize]


class _Reader(io.RawIOBase):
    """Bytes in memory as a file, which are not copied."""

    def __init__(self, content: np.ndarray):
        super().__init__()
        self.content, self.position = content, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = 0) -> int:
        target = offset + (0, self.position, self.content.size)[whence]
        if target < 0:
            raise ValueError("a position before the file")
        self.position = target
        return target

    def readinto(self, buffer: Any) -> int:
        found = self.content[self.position : self.position + len(buffer)]
        buffer[: found.size] = found.tobytes()
        self.position += found.size
        return found.size


# ---- tensors ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Storage(Part):
    """A storage in a pickle: `count` elements of `dtype` (bytes where that is None) under a key."""

    dtype: DType | None
    key: str
    count: int


def _storage_form(about: Any) -> tuple[DType | None, str, int]:
    """Dtype, key and number of elements from the tuple that stands for a storage."""
    if not isinstance(about, tuple) or len(about) not in (5, 6) or about[0] != "storage":
        raise Refused("it refers to something else than a storage")
    _, kind, key, _, count = about[:5]
    if not isinstance(kind, _StorageType) or not isinstance(key, str) or type(count) is not int or count < 0:
        raise Refused("it describes a storage wrongly")
    if len(about) == 6 and about[5] is not None:
        raise Refused("it has views of storages, from before torch 0.4", "load and save it with a newer torch")
    if count > LARGEST_INT64:
        raise Refused("it describes a storage that cannot be")
    return kind.dtype, key, count


def _unknown_name(module: str, name: str) -> Refused:
    """The error for a class or function that is not in the table."""
    other_dtypes = ("float8", "complex", "quint", "qint", "float4", "bits", "Complex", "QUInt", "QInt")
    if module == "torch" and name.startswith(other_dtypes):
        return Refused(f"it holds tensors of dtype {name[:80]}, which Weft does not have", "convert them in torch")
    if "sparse" in name or "qtensor" in name or "nested" in name:
        return Refused(f"it holds tensors made by {module[:80]}.{name[:80]}: only dense ones are read", "convert them")
    return Refused(f"it needs {module[:80]}.{name[:80]}, and Weft runs no code of files", SAVE_STATE)


@dataclass(frozen=True)
class _StorageType(Part):
    dtype: DType | None


class _Tensors:
    """The functions that pickles of torch call. Without `uses` they only count the tensors of each storage."""

    def __init__(self, archive: Any, device: Any, uses: Counter[str] | None = None):
        self.archive, self.device = archive, device
        self.making = uses is not None
        self.uses: Counter[str] = Counter() if uses is None else uses
        self.bases: dict[tuple[str, str], Tensor] = {}
        self.copied = 0  # bytes

    def storage(self, about: Any) -> _Storage:
        return _Storage(*_storage_form(about))

    def calls(self) -> dict[tuple[str, str], Any]:
        """Everything that a name in a pickle may stand for."""
        found: dict[tuple[str, str], Any] = {
            ("torch._utils", "_rebuild_tensor"): self.tensor,
            ("torch._utils", "_rebuild_tensor_v2"): self.tensor_v2,
            ("torch._utils", "_rebuild_tensor_v3"): self.tensor_v3,
            ("torch._utils", "_rebuild_parameter"): self.parameter,
            ("torch._utils", "_rebuild_parameter_with_state"): self.parameter,
            ("torch._tensor", "_rebuild_from_type_v2"): self.from_type,
            ("torch", "Tensor"): Named("torch.Tensor"),
            ("torch.nn.parameter", "Parameter"): Named("torch.nn.parameter.Parameter"),
            ("torch.nn.parameter", "Buffer"): Named("torch.nn.parameter.Buffer"),
            ("torch", "Size"): as_tuple,
            ("torch", "device"): _device_name,
            ("torch.serialization", "_get_layout"): _layout,
        }
        found |= PLAIN_CALLS
        for name, dtype in DTYPES.items():
            found["torch", name] = dtype
        for name, of in STORAGES.items():
            found["torch", name] = found["torch.storage", name] = _StorageType(of)
            found["torch.cuda", name] = _StorageType(of)
        return found

    def tensor(self, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Any:
        if not isinstance(storage, _Storage):
            raise Refused("a tensor has no storage")
        return self._make(storage, storage.dtype or dtypes.uint8, offset, size, stride)

    def tensor_v2(
        self, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any = None
    ) -> Any:
        self._no_marks(metadata)
        return self._wanting(self.tensor(storage, offset, size, stride), requires_grad)

    def tensor_v3(
        self, storage: Any, offset: Any, size: Any, stride: Any, requires_grad: Any, hooks: Any, dtype: Any,
        metadata: Any = None,
    ) -> Any:  # fmt: skip
        self._no_marks(metadata)
        if not isinstance(storage, _Storage) or not isinstance(dtype, DType):
            raise Refused("a tensor has no storage, or a dtype that Weft does not have")
        return self._wanting(self._make(storage, dtype, offset, size, stride), requires_grad)

    def parameter(self, data: Any, requires_grad: Any, hooks: Any, state: Any = None) -> Any:
        if not isinstance(data, (Tensor, _Placeholder)):
            raise Refused("a parameter has no tensor")
        return self._wanting(data, requires_grad)

    def from_type(self, function: Any, kind: Any, args: Any, state: Any) -> Any:
        """A tensor with attributes, which are left out; subclasses of tensors are refused."""
        if not isinstance(kind, Named) or not isinstance(args, tuple) or not callable(function):
            raise Refused("it holds a subclass of torch.Tensor", SAVE_STATE)
        return call_function(function, args)

    def _no_marks(self, metadata: Any) -> None:
        if metadata and any(metadata.values() if isinstance(metadata, dict) else [True]):
            raise Refused("a tensor is marked as conjugated or negated", "save x.resolve_conj().resolve_neg()")

    def _wanting(self, tensor: Any, requires_grad: Any) -> Any:
        if self.making and requires_grad is True and tensor.dtype.kind == "f":
            return tensor.requires_grad_()
        return tensor

    def _make(self, storage: _Storage, dtype: DType, offset: Any, size: Any, stride: Any) -> Any:
        sizes_fit = _are_sizes(size) and _are_sizes(stride) and len(size) == len(stride) <= AXES
        if not sizes_fit or type(offset) is not int or offset < 0:
            raise Refused("a tensor has a size, a stride or an offset that cannot be")
        if math.prod(max(one, 1) for one in size) * dtype.itemsize > LARGEST_INT64:
            raise Refused(f"a tensor has the size {size!r:.80}")
        unit = 1 if storage.dtype is None else storage.dtype.itemsize
        count = storage.count * unit // dtype.itemsize  # elements of the tensor's dtype
        last = offset + sum((one - 1) * step for one, step in zip(size, stride, strict=True)) if 0 not in size else 0
        if 0 not in size and last >= count:
            raise Refused(f"a tensor reads element {last} of a storage with {count}")
        self.uses[storage.key] += not self.making
        if not self.making:
            return _Placeholder()
        inner = [(one, step) for one, step in zip(size, stride, strict=True) if step or not one]  # the rest is repeated
        if 0 not in size and math.prod(one for one, _ in inner) > count:
            fix = "in torch, save x.contiguous()"
            raise Refused(f"a tensor of size {size} shows elements of its storage several times", fix)
        return self._window(storage, dtype, offset, tuple(size), tuple(stride), inner, count)

    def _window(
        self, storage: _Storage, dtype: DType, offset: int, size: tuple[int, ...], stride: tuple[int, ...],
        inner: list[tuple[int, int]], count: int,
    ) -> Tensor:  # fmt: skip
        if self.uses[storage.key] > 1 and 0 not in size:
            base = self._base(storage, dtype)
            shape, order = _order_axes(inner)
            if order is not None:  # part of the storage, perhaps with its axes in another order
                length = math.prod(shape)
                part = base if length == count else base[offset : offset + length]
                return _repeat_axes(part.reshape(shape).permute(order) if shape else part.reshape(()), size, stride)
        array = self._array(storage, dtype)
        steps = tuple(step * dtype.itemsize for _, step in inner)
        if 0 in size:
            return self._leaf(np.zeros(size, dtype.numpy), dtype)
        window = as_strided(array[offset:], tuple(one for one, _ in inner), steps, writeable=False)
        return _repeat_axes(self._leaf(window, dtype), size, stride)

    def _base(self, storage: _Storage, dtype: DType) -> Tensor:
        key = storage.key, dtype.name
        if key not in self.bases:
            self.bases[key] = self._leaf(self._array(storage, dtype), dtype)
        return self.bases[key]

    def _leaf(self, array: np.ndarray, dtype: DType) -> Tensor:
        self.copied += array.nbytes
        if self.copied > COPIES * self.archive.content.size:  # before any of it is copied
            raise Refused("it shows its storages many times, with gaps or in several dtypes", "save x.contiguous()")
        return Tensor(array_leaf("load", array, dtype, self.device))

    def _array(self, storage: _Storage, dtype: DType) -> np.ndarray:
        """The elements of a storage, one after the other."""
        unit = 1 if storage.dtype is None else storage.dtype.itemsize
        raw = self.archive.storage_bytes(storage.key, storage.count, unit)
        if dtype.kind == "b" and raw.size and raw.max() > 1:
            raise Refused("a tensor of dtype bool has bytes other than 0 and 1")
        array = raw[: raw.size // dtype.itemsize * dtype.itemsize].view(dtype.numpy)
        return array.view(f"u{dtype.itemsize}").byteswap().view(dtype.numpy) if self.archive.swapped else array


class _Placeholder:
    """A tensor in the first run."""


def _order_axes(inner: list[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """For axes that lie one inside the other: their sizes from the outermost to the innermost, and how to permute them
    into the tensor's order; None where they leave gaps."""
    outer_first = sorted(range(len(inner)), key=lambda axis: (-inner[axis][1], -inner[axis][0]))
    expected = 1
    for axis in reversed(outer_first):
        one, step = inner[axis]
        if one != 1 and step != expected:
            return (), None
        expected *= one
    order = tuple(outer_first.index(axis) for axis in range(len(inner)))
    return tuple(inner[axis][0] for axis in outer_first), order


def _repeat_axes(tensor: Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Put the axes in that repeat one element: those whose stride is 0."""
    if all(step or not one for one, step in zip(size, stride, strict=True)):
        return tensor
    kept = iter(tensor.shape)
    shape = [next(kept) if step or not one else 1 for one, step in zip(size, stride, strict=True)]
    return tensor.reshape(shape).expand(size)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(value) is int and 0 <= value <= LARGEST_INT64 for value in values)


def _device_name(kind: Any, number: Any = None) -> str:
    if not isinstance(kind, str) or type(number) not in (int, type(None)):
        raise Refused("a device has no name")
    return kind if number is None else f"{kind}:{number}"


def _layout(name: Any) -> Any:
    if name != "torch.strided":
        raise Refused("it holds a tensor that is not dense", "in torch, save x.to_dense()")
    return Named("torch.strided")
