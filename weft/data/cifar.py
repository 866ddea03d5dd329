"""CIFAR-10 and CIFAR-100 in their binary form and in their Python form, which is a pickle read as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from weft.base.errors import RangeError, problem
from weft.core.boundary import entry_point
from weft.data.dataset import ArrayDataset
from weft.data.faults import DataError, MissingDataError, Source, check_labels, find_folder, read_bytes
from weft.serialization.pickle_calls import ARRAY_CALLS, PLAIN_CALLS, PickledArray, Refused
from weft.serialization.pickles import Machine

__all__ = ["CIFAR10", "CIFAR100", "read_cifar"]

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
_FILES = {
    (10, "train"): [f"data_batch_{number}" for number in range(1, 6)],
    (10, "test"): ["test_batch"],
    (100, "train"): ["train"],
    (100, "test"): ["test"],
}
_LABEL_KEYS = {10: "labels", 100: "fine_labels"}


@entry_point
def CIFAR10(folder: Source, split: str = "train") -> ArrayDataset:
    """Images uint8 [N, 3, 32, 32] and labels int64 [N] of CIFAR-10: `data_batch_1`, ... with or without `.bin`, in the
    folder or in its `cifar-10-batches-bin` or `cifar-10-batches-py`."""
    return _load("CIFAR10", folder, split, 10)


@entry_point
def CIFAR100(folder: Source, split: str = "train") -> ArrayDataset:
    """The same for CIFAR-100, with its fine labels: `train` and `test`, with or without `.bin`."""
    return _load("CIFAR100", folder, split, 100)


def _load(who: str, folder: Source, split: str, classes: int) -> ArrayDataset:
    if split not in ("train", "test"):
        raise problem(RangeError, who, f"split={split!r}", "'train' or 'test'")
    root = find_folder(who, folder)
    inner = ("", f"cifar-{classes}-batches-bin", f"cifar-{classes}-batches-py", "cifar-100-binary", "cifar-100-python")
    names = _FILES[classes, split]
    found = next(
        (
            [root / part / f"{name}{ending}" for name in names]
            for part in inner
            for ending in (".bin", "")
            if (root / part / f"{names[0]}{ending}").is_file()
        ),
        None,
    )
    if found is None:
        given = f"{str(root)!r} without {names[0]} or {names[0]}.bin"
        raise problem(MissingDataError, who, given, f"the files of CIFAR-{classes}", "download and unpack them")
    parts = [read_cifar(path, classes) for path in found]
    return ArrayDataset(np.concatenate([one for one, _ in parts]), np.concatenate([one for _, one in parts]))


@entry_point
def read_cifar(path: Source, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [N, 3, 32, 32] and labels int64 [N] of one file; `.bin` files are of the binary form."""
    who = f"read_cifar({str(path)!r})"
    if classes not in _LABEL_KEYS:
        raise problem(RangeError, "read_cifar", f"classes={classes}", "10 or 100")
    data = read_bytes("read_cifar", path)
    if Path(path).suffix == ".bin":
        return parse_binary(data, who, classes)
    return parse_python(data, who, classes)


@entry_point
def parse_binary(data: bytes, who: str = "read_cifar", classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Records of a label (CIFAR-100: a coarse and a fine one) and 3072 pixels."""
    head = 1 if classes == 10 else 2
    if not data or len(data) % (head + PIXELS):
        given = f"{len(data)} bytes"
        raise problem(DataError, who, given, f"records of {head + PIXELS} bytes", "download the file again")
    records = np.frombuffer(data, np.uint8).reshape(-1, head + PIXELS)
    labels = records[:, head - 1].astype(np.int64)
    check_labels(who, "file", labels, classes)
    return records[:, head:].reshape(-1, *SHAPE).copy(), labels


@entry_point
def parse_python(data: bytes, who: str = "read_cifar", classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """A pickled dict with `data` [N, 3072] and `labels`."""
    key = _LABEL_KEYS[classes]
    content = _read_dict(data, who)
    images, labels = content.get("data"), content.get(key)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (PIXELS,):
        raise problem(DataError, who, "a pickle without images", f"'data', uint8 [N, {PIXELS}]")
    if not isinstance(labels, list) or len(labels) != len(images) or any(type(one) is not int for one in labels):
        raise problem(DataError, who, "a pickle whose labels do not fit", f"{key!r}, {len(images)} numbers")
    if any(not 0 <= one < classes for one in labels):
        wrong = next(k for k, one in enumerate(labels) if not 0 <= one < classes)
        raise problem(
            DataError, who, f"a label outside the classes at sample {wrong}", f"labels from 0 to {classes - 1}"
        )
    return images.reshape(-1, *SHAPE).copy(), np.array(labels, np.int64)


def _read_dict(data: bytes, who: str) -> dict[str, Any]:
    """A pickled dict whose keys are texts, of which nothing is run; arrays among its values are NumPy's."""
    try:
        content, _ = Machine(data, PLAIN_CALLS | ARRAY_CALLS, has_byte_strings=True).run()
    except Refused as error:
        given = f"a damaged or foreign pickle: {error.why}"
        raise problem(DataError, who, given, "numbers, strings, containers and arrays", error.fix) from None
    if not isinstance(content, dict) or not all(type(key) in (str, bytes) for key in content):
        raise problem(DataError, who, "a pickle of something else than a dict", "'data' and 'labels' by name")
    named = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in content.items()}
    return {key: value.value if isinstance(value, PickledArray) else value for key, value in named.items()}
