"""Safetensors files: the `safetensors` package reads what Weft writes and vice versa; bad headers are refused."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest
import safetensors
import safetensors.torch as oracle
import torch

import weft
from weft.base import dtypes, files
from weft.serialization import load_tensors, read_metadata, save_tensors
from weft.serialization import safetensors as own

pytestmark = pytest.mark.unit


def assert_error(kind, message, function, *args):
    with pytest.raises(kind, match=message):
        function(*args)


def sample(dtype, shape, seed=0):
    """Random bits of a dtype, NaNs and infinities included."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 2 if dtype.kind == "b" else 256, int(np.prod(shape)) * dtype.itemsize, np.uint8)
    return weft.from_numpy(raw.view(dtype.numpy).reshape(shape).copy())


def bits(tensor) -> bytes:
    if isinstance(tensor, torch.Tensor):
        return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return np.ascontiguousarray(tensor.detach().numpy()).tobytes()


def every_dtype():
    shapes = [(3, 5), (), (0, 4), (1,), (2, 1, 3)]
    return {f"{dtype.name}.{k}": sample(dtype, s, k) for dtype in dtypes.ALL for k, s in enumerate(shapes)}


def test_the_package_reads_what_weft_writes(tmp_path):
    tensors = every_dtype()
    save_tensors(tmp_path / "x.safetensors", tensors, {"a": "ä", "": "empty"})
    found = oracle.load_file(tmp_path / "x.safetensors")
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert str(found[name].dtype) == f"torch.{tensor.dtype.name}" and found[name].shape == tuple(tensor.shape)
        assert bits(found[name]) == bits(tensor)
    with safetensors.safe_open(tmp_path / "x.safetensors", "np") as opened:
        assert opened.metadata().items() >= {"a": "ä", "": "empty"}.items()


def test_weft_reads_what_the_package_writes(tmp_path):
    given = {name: torch.from_dlpack(tensor).clone() for name, tensor in every_dtype().items() if "bool" not in name}
    given["flags"] = torch.tensor([[True, False]])
    oracle.save_file(given, tmp_path / "x.safetensors", {"format": "pt"})
    found = load_tensors(tmp_path / "x.safetensors")
    assert read_metadata(tmp_path / "x.safetensors") == {"format": "pt"}
    for name, tensor in given.items():
        assert f"torch.{found[name].dtype.name}" == str(tensor.dtype) and tuple(found[name].shape) == tensor.shape
        assert bits(found[name]) == bits(tensor)


def test_own_files_round_trip_in_order_with_metadata(tmp_path):
    tensors = every_dtype()
    digest = save_tensors(tmp_path / "x", tensors, {"k": "v"})
    found = load_tensors(tmp_path / "x")
    assert list(found) == list(tensors) and read_metadata(tmp_path / "x") == {"k": "v"}
    assert all(bits(found[name]) == bits(tensor) for name, tensor in tensors.items())
    assert save_tensors(tmp_path / "y", tensors, {"k": "v"}) == digest
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()
    save_tensors(tmp_path / "z", {})
    assert load_tensors(tmp_path / "z") == {}


def test_what_is_saved_is_what_views_and_lazy_values_show(tmp_path):
    base = weft.arange(24.0).reshape(4, 6)
    save_tensors(
        tmp_path / "x", {"t": base.T, "s": base[::2, 1:4], "e": weft.ones(3, 1).expand(3, 4), "lazy": base + 1}
    )
    found = oracle.load_file(tmp_path / "x")
    expected = torch.arange(24.0).reshape(4, 6)
    assert torch.equal(found["t"], expected.T) and torch.equal(found["s"], expected[::2, 1:4])
    assert torch.equal(found["e"], torch.ones(3, 4)) and torch.equal(found["lazy"], expected + 1)


def test_large_files_are_mapped_and_tensors_share_their_pages(tmp_path):
    given = weft.arange(1 << 19, dtype=weft.float32)
    save_tensors(tmp_path / "x", {"a": given, "odd": weft.ones(3, dtype=weft.uint8)})
    opened = own.open_tensors(tmp_path / "x")
    tensor = opened.tensor("a")
    start = opened.data.ctypes.data
    assert start <= tensor.node.buffer.pointer < start + opened.data.nbytes
    tensor += 1  # the file stays as it is
    assert tensor[5].item() == 6.0
    save_tensors(tmp_path / "x", {"a": weft.zeros(4)})  # replaced while tensors of the old file are in use
    assert opened.tensor("a")[1 << 18].item() == 1 << 18
    assert load_tensors(tmp_path / "x")["a"].tolist() == [0.0] * 4


def test_unaligned_data_of_other_programs_is_copied(tmp_path):
    header = json.dumps({"a": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}).encode()
    header += b" " * ((3 - len(header)) % 8)
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + np.array([1.5, -2.0]).tobytes())
    assert load_tensors(tmp_path / "x")["a"].tolist() == [1.5, -2.0]


def test_damage_anywhere_is_found(tmp_path):
    path = tmp_path / "x"
    save_tensors(path, {"w": weft.arange(100.0)}, {"note": "hello"})
    good = path.read_bytes()
    for place in (len(good) - 1, len(good) - 200, good.index(b"hello")):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(weft.FileFormatError, match="do not match its SHA-256"):
            load_tensors(path)
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert load_tensors(path, verify=False)["w"].shape == (100,)


def file(header, data=b"", length=None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(1,), offsets=(0, 4), **others):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **others}


BAD = {
    "empty": (b"", "has 0 bytes"),
    "short": (b"1234", "has 4 bytes"),
    "header past the end": (file({"a": entry()}, bytes(4), 10**6), "its header would have 1000000 bytes"),
    "header of 2^63 bytes": (file({}, b"", 2**63), "its header would have"),
    "no object": (file([1]), "does not begin with"),
    "spaces first": (file(b" {}"), "does not begin with"),
    "no JSON": (file(b"{]"), "is not valid JSON"),
    "not UTF-8": (file(b'{"\xff": 1}'), "is not valid JSON"),
    "NaN": (file(b'{"a": NaN}'), "is not valid JSON"),
    "deep": (file(b'{"a":' + b"[" * 100_000), "is not valid JSON"),
    "long number": (file(b'{"a":' + b"9" * 10_000 + b"}"), "is not valid JSON"),
    "twice": (file(b'{"a":1,"a":2}'), "occurs twice"),
    "metadata": (file({"__metadata__": {"a": 1}}), "no table of texts"),
    "metadata list": (file({"__metadata__": []}), "no table of texts"),
    "no dict": (file({"a": 3}), "not described by"),
    "more keys": (file({"a": entry(other=1)}, bytes(4)), "not described by"),
    "dtype": (file({"a": entry("F33")}, bytes(4)), "has the dtype 'F33'"),
    "dtype list": (file({"a": entry(["F32"])}, bytes(4)), "has the dtype"),
    "float8": (file({"a": entry("F8_E4M3", (4,))}, bytes(4)), "convert it to BF16"),
    "negative": (file({"a": entry(shape=(-1,))}, bytes(4)), "has shape"),
    "float shape": (file({"a": entry(shape=(1.0,))}, bytes(4)), "has shape"),
    "bool shape": (file({"a": entry(shape=(True,))}, bytes(4)), "has shape"),
    "product overflows": (file({"a": entry(shape=(2**62, 4), offsets=(0, 0))}), "sizes that are possible"),
    "empty of huge": (file({"a": entry(shape=(0, 2**62, 2**62), offsets=(0, 0))}), "sizes that are possible"),
    "empty of many bytes": (file({"a": entry(shape=(0, 2**62), offsets=(0, 0))}), "sizes that are possible"),
    "too many axes": (file({"a": entry(shape=(1,) * 40)}, bytes(4)), "sizes that are possible"),
    "bytes": (file({"a": entry(offsets=(0, 8))}, bytes(8)), "has 8 bytes; expected 4"),
    "reversed": (file({"a": entry(offsets=(4, 0))}, bytes(4)), "has -4 bytes"),
    "three offsets": (file({"a": entry(offsets=(0, 4, 8))}, bytes(8)), "offsets"),
    "past the end": (file({"a": entry()}, bytes(3)), "take 4 bytes and 3 are there"),
    "more data": (file({"a": entry()}, bytes(5)), "take 4 bytes and 5 are there"),
    "gap": (file({"a": entry(), "b": entry(offsets=(8, 12))}, bytes(12)), "begins at byte 8 of the data, where 4"),
    "overlap": (file({"a": entry(), "b": entry(offsets=(2, 6))}, bytes(6)), "begins at byte 2 of the data, where 4"),
    "same place": (file({"a": entry(), "b": entry()}, bytes(4)), "begins at byte 0 of the data, where 4"),
    "bool": (file({"a": entry("BOOL", (4,))}, b"\0\1\2\0"), "bytes other than 0 and 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(name, tmp_path):
    content, message = BAD[name]
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(weft.FileFormatError, match=message):
        load_tensors(tmp_path / "x")


def test_what_cannot_be_saved(tmp_path):
    path = tmp_path / "x"
    assert_error(weft.DTypeError, "a list under 'a'", save_tensors, path, {"a": [1.0]})
    assert_error(weft.DTypeError, "the name 3", save_tensors, path, {3: weft.ones(1)})
    assert_error(weft.DTypeError, "the name '__metadata__'", save_tensors, path, {"__metadata__": weft.ones(1)})
    assert_error(weft.DTypeError, "the metadata 'a': 1", save_tensors, path, {}, {"a": 1})
    assert_error(weft.DTypeError, "UTF-8", save_tensors, path, {"\ud800": weft.ones(1)})
    assert_error(weft.GraphError, "has no shape yet", save_tensors, path, weft.nn.LazyLinear(2).state_dict())
    assert_error(weft.DTypeError, "a int as path", save_tensors, 3, {})
    assert list(tmp_path.iterdir()) == []


def test_paths_that_cannot_be_written_and_links(tmp_path):
    save_tensors(tmp_path / "x", {"a": weft.ones(1)})
    with pytest.raises(weft.FileError, match="check that the folder exists") as caught:
        save_tensors(tmp_path / "no" / "x", {})
    assert caught.value.errno == errno.ENOENT and isinstance(caught.value, OSError)
    with pytest.raises(weft.FileError):
        save_tensors(tmp_path, {})
    with pytest.raises(FileNotFoundError):
        load_tensors(tmp_path / "nothing")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    save_tensors(tmp_path / "link", {"a": weft.zeros(1)})
    assert (tmp_path / "link").is_symlink() and load_tensors(tmp_path / "x")["a"].item() == 0.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "x"]


class Failing:
    """The `os` of `weft.base.files`, whose operation number `at` fails."""

    def __init__(self, real, at, number=errno.ENOSPC, names=("open", "write", "fsync", "replace", "rename", "mkdir")):
        self.real, self.left, self.number, self.names = real, at, number, names
        self.calls = 0

    def __getattr__(self, name):
        found = getattr(self.real, name)
        return (lambda *args, **kwargs: self.call(found, args, kwargs)) if name in self.names else found

    def call(self, function, args, kwargs):
        self.calls += 1
        if self.calls == self.left:
            raise OSError(self.number, "No space left on device")
        return function(*args, **kwargs)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "x"
    save_tensors(path, {"a": weft.ones(3)})
    counting = Failing(files.os, -1)
    monkeypatch.setattr(files, "os", counting)
    save_tensors(path, {"a": weft.ones(3)})
    assert counting.calls >= 6
    for at in range(1, counting.calls - 1):  # the last two flush the folder, when the file is there
        monkeypatch.setattr(files, "os", Failing(counting.real, at))
        with pytest.raises(weft.FileError, match=r"a full disk while .* Fix: free some space") as caught:
            save_tensors(path, {"a": weft.zeros(5)})
        assert caught.value.errno == errno.ENOSPC
        monkeypatch.setattr(files, "os", counting.real)
        assert load_tensors(path)["a"].tolist() == [1.0] * 3 and [one.name for one in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("writes", [1, 7])
def test_short_writes_of_the_system_are_continued(writes, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "WRITE_BYTES", writes)
    tensors = {"a": weft.arange(50.0), "b": weft.tensor([True, False, True])}
    save_tensors(tmp_path / "x", tensors)
    monkeypatch.undo()
    assert {name: tensor.tolist() for name, tensor in load_tensors(tmp_path / "x").items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }
