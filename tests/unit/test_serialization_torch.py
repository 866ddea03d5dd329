"""Files of torch.save: what torch wrote comes back bit for bit, and nothing that a file names is run."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch

import weft

pytestmark = pytest.mark.unit

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
]  # fmt: skip
FORMS = [(protocol, as_zip) for protocol in (2, 3, 4, 5) for as_zip in (True, False)]


def bits(tensor) -> bytes:
    """Bytes of a tensor of either library."""
    if isinstance(tensor, torch.Tensor):
        return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return np.ascontiguousarray(tensor.detach().numpy()).tobytes()


def assert_same(expected, found) -> None:
    if isinstance(expected, torch.Tensor):
        assert str(expected.dtype) == f"torch.{found.dtype.name}" and tuple(expected.shape) == tuple(found.shape)
        assert bits(expected) == bits(found) and expected.requires_grad == found.requires_grad
    elif isinstance(expected, dict):
        assert isinstance(found, dict) and list(expected) == list(found)
        for key in expected:
            assert_same(expected[key], found[key])
    elif isinstance(expected, list | tuple):
        assert isinstance(found, tuple if isinstance(expected, tuple) else list) and len(expected) == len(found)
        for one, other in zip(expected, found, strict=True):
            assert_same(one, other)
    else:
        assert expected == found and type(expected) is type(found)


def content(obj, protocol=2, as_zip=True) -> bytes:
    stream = io.BytesIO()
    torch.save(obj, stream, pickle_protocol=protocol, _use_new_zipfile_serialization=as_zip)
    return stream.getvalue()


def load(tmp_path, data: bytes):
    (tmp_path / "x.pt").write_bytes(data)
    return weft.load(tmp_path / "x.pt")


@pytest.mark.parametrize(("protocol", "as_zip"), FORMS)
def test_all_dtypes_and_plain_data(protocol, as_zip, tmp_path):
    torch.manual_seed(0)
    obj = {
        "dtypes": [torch.randint(0, 2, (3, 4)).to(dtype) for dtype in DTYPES],
        "bits": torch.randint(-(2**15), 2**15, (50,), dtype=torch.int16).view(torch.bfloat16),
        "scalar": torch.tensor(4), "empty": torch.zeros(0, 3), "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "grad": torch.randn(3, requires_grad=True), "none": None, "numbers": [1, -5, 300, 70_000, 2**40, 2**70, 1.5],
        "texts": ["", "ä", "x" * 300], "bytes": b"\x00abc", "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "ordered": OrderedDict(b=1, a=2), 3: {(1, 2): True}, "set": {1, 2}, "numpy": np.float64(2.5), "bool": False,
        "counter": Counter([1, 1, 2]),
    }  # fmt: skip
    assert_same(obj, load(tmp_path, content(obj, protocol, as_zip)))


@pytest.mark.parametrize(("protocol", "as_zip"), FORMS)
def test_views_of_one_storage_share_memory_as_in_torch(protocol, as_zip, tmp_path):
    base = torch.arange(60.0).reshape(3, 4, 5)
    obj = {
        "base": base, "t": base.permute(2, 0, 1), "row": base[1], "part": base[1:3, :, 2:4], "step": base[::2, ::3],
        "flat": base.reshape(-1)[7:31], "element": base[1, 2, 3], "expanded": base[0, 0, :1].expand(2, 3, 4),
        "mixed": base[:, :1].expand(3, 4, 5), "none": base[:0],
    }  # fmt: skip
    found = load(tmp_path, content(obj, protocol, as_zip))
    assert_same(obj, found)
    for name in ("base", "t", "row", "flat", "element"):  # writes to one are seen in the others
        other = load(tmp_path, content(obj, protocol, as_zip))
        expected = torch.load(io.BytesIO(content(obj)))
        other[name].mul_(-2.0)
        expected[name].mul_(-2.0)
        for seen in ("base", "t", "row", "flat", "element"):
            assert bits(expected[seen]) == bits(other[seen]), (name, seen)


@pytest.mark.parametrize("as_zip", [True, False])
def test_a_single_view_of_any_strides(as_zip, tmp_path):
    base = torch.arange(60).reshape(3, 4, 5)
    for view in (
        base.permute(2, 1, 0),
        base[1:, ::2, 3],
        base[:, 1:2].expand(3, 6, 5),
        base[2],
        base.transpose(0, 1)[1:],
    ):
        assert_same(view, load(tmp_path, content(view, as_zip=as_zip)))


@pytest.mark.parametrize("as_zip", [True, False])
def test_state_dicts_of_models_and_optimizers(as_zip, tmp_path):
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Flatten())
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 4])
    theirs(torch.randn(2, 2, 5, 5)).sum().backward()
    optimizer.step()
    obj = {"model": theirs.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
    found = load(tmp_path, content(obj, as_zip=as_zip))
    assert_same(obj, found)
    assert found["model"]._metadata["1"]["version"] == 2
    own = weft.nn.Sequential(weft.nn.Conv2d(2, 3, 3), weft.nn.BatchNorm2d(3), weft.nn.Flatten())
    own.load(tmp_path / "x.pt")  # finds the model among the rest
    x = torch.randn(2, 2, 5, 5)
    expected = theirs.eval()(x).detach().numpy()
    np.testing.assert_allclose(own.eval()(weft.from_dlpack(x)).detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_tied_weights_stay_one_tensor(tmp_path):
    layer = torch.nn.Linear(3, 3)
    found = load(tmp_path, content({"a": layer.weight, "b": layer.weight}))
    assert found["a"] is found["b"]


def test_large_files_are_mapped(tmp_path):
    found = load(tmp_path, content({"w": torch.arange(1 << 19, dtype=torch.float32)}))["w"]
    assert found.node.buffer.slab.nbytes and found[77].item() == 77.0
    found += 1
    assert load(tmp_path, (tmp_path / "x.pt").read_bytes())["w"][0].item() == 0.0


class Attack:
    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


@pytest.mark.parametrize("as_zip", [True, False])
@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (Attack(os.system, "touch attacked"), "it needs posix.system, and Weft runs no code"),
        (Attack(eval, "1"), "needs .*builtin.*eval"),
        (Attack(getattr, "a", "b"), "needs .*getattr"),
        (torch.nn.Linear(1, 1), "it needs torch.nn.modules.linear.Linear.*save model.state_dict"),
        (torch.eye(3).to_sparse(), "only dense ones"),
        (torch.ones(2, dtype=torch.complex64), "Complex.*, which Weft does not have"),
        (torch.ones(2).to(torch.float8_e4m3fn), "dtype float8_e4m3fn, which Weft does not have"),
        (torch.arange(9.0).unfold(0, 5, 1), "several times.*save x.contiguous"),
        (np.ones(2), "_reconstruct"),
    ],
)
def test_what_needs_code_is_refused_and_not_run(obj, message, as_zip, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(weft.FileFormatError, match=message):
        load(tmp_path, content(obj, as_zip=as_zip))
    assert not (tmp_path / "attacked").exists()


def archive(pickled: bytes, storages=None, compression=zipfile.ZIP_STORED, **others) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as made:
        made.writestr("archive/data.pkl", pickled)
        for key, data in (storages or {}).items():
            made.writestr(f"archive/data/{key}", data)
        for name, data in others.items():
            made.writestr(f"archive/{name}", data)
    return stream.getvalue()


def tensor_pickle(count=4, offset=0, size=(4,), stride=(1,), key="0", kind="FloatStorage") -> bytes:
    """The pickle of one tensor, with any sizes."""

    class Storage:
        pass

    class Pickler(pickle._Pickler):
        def persistent_id(self, obj):
            return ("storage", Name("torch", kind), key, "cpu", count) if isinstance(obj, Storage) else None

        def save(self, obj, *args, **kwargs):
            if isinstance(obj, Name):
                self.write(b"c" + obj.module.encode() + b"\n" + obj.name.encode() + b"\n")
            else:
                super().save(obj, *args, **kwargs)

    stream = io.BytesIO()
    pickler = Pickler(stream, 2)
    stream.write(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n")
    pickler.save((Storage(), offset, size, stride, False, None))
    stream.write(b"R.")
    return stream.getvalue()


class Name:
    def __init__(self, module, name):
        self.module, self.name = module, name


FOUR = {"0": np.arange(4, dtype=np.float32).tobytes()}


def test_the_pickles_of_this_file_are_right(tmp_path):
    assert load(tmp_path, archive(tensor_pickle(), FOUR)).tolist() == [0.0, 1.0, 2.0, 3.0]
    swapped = {"0": np.arange(4, dtype=">f4").tobytes()}
    assert load(tmp_path, archive(tensor_pickle(), swapped, byteorder=b"big")).tolist() == [0.0, 1.0, 2.0, 3.0]
    repeated = load(tmp_path, archive(tensor_pickle(size=(10**12,), stride=(0,)), FOUR))
    assert repeated.shape == (10**12,) and repeated[10**11].item() == 0.0  # nothing of it is allocated


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (archive(tensor_pickle(size=(5,)), FOUR), "reads element 4 of a storage with 4"),
        (archive(tensor_pickle(offset=1), FOUR), "reads element 4"),
        (archive(tensor_pickle(stride=(2**62,)), FOUR), "reads element"),
        (archive(tensor_pickle(offset=-1), FOUR), "that cannot be"),
        (archive(tensor_pickle(size=(-4,)), FOUR), "that cannot be"),
        (archive(tensor_pickle(size=(2, 2)), FOUR), "that cannot be"),
        (archive(tensor_pickle(size=(2**40, 2**40), stride=(0, 0)), FOUR), "has the size"),
        (archive(tensor_pickle(size=(0, 2**62), stride=(1, 1)), FOUR), "has the size"),
        (archive(tensor_pickle(size=(1,) * 40, stride=(1,) * 40), FOUR), "that cannot be"),
        (archive(tensor_pickle(count=400, size=(400,)), FOUR), "has 16 bytes instead of 1600"),
        (archive(tensor_pickle(count=2**70), FOUR), "cannot be"),
        (archive(tensor_pickle(key="1"), FOUR), "its archive has no 'data/1'"),
        (archive(tensor_pickle(key="../../x"), FOUR), "its archive has no"),
        (archive(tensor_pickle(kind="BoolStorage"), {"0": b"\0\1\2\3"}), "bytes other than 0 and 1"),
        (archive(tensor_pickle(kind="OddStorage"), FOUR), "it needs torch.OddStorage"),
        (archive(tensor_pickle(), FOUR, zipfile.ZIP_DEFLATED), "compressed"),
        (archive(tensor_pickle(), FOUR, byteorder=b"odd"), "byte order"),
        (archive(tensor_pickle(), FOUR, **{"code/__torch__.py": b""}), "TorchScript"),
        (archive(b""), "cut short"),
        (archive(b"\x80\x02X\xff\xff\xff\x7fabc."), "cut short"),
        (archive(b"\x80\x02\x8b\xff\xff\xff\xff."), "cut short"),
        (archive(b"\x80\x02j\xff\xff\xff\xff."), "its pickle is damaged"),
        (archive(b"\x80\x02]r\xff\xff\xff\x7f."), None),  # a memo of 2^31 places, which takes no memory
        (archive(b"\x80\x02}](ss."), "damaged"),
        (archive(b"\x80\x02}]K\x01s."), "a key of a dict or a set is a list"),
        (archive(b"\x80\x02(."), "does not end with a value"),
        (archive(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n."), "does not end with a value"),
        (archive(b"\x80\x02i"), "operation b'i'"),
        (archive(b"\x80\x09N."), "protocol"),
        (archive(b"\x80\x02\x8c\xff."), "cut short"),
        (b"PK\x03\x04" + bytes(100), "archive is damaged"),
        (b"\x80\x02K\x01.", "not as one of torch.save"),
        (pickle.dumps({"a": 1}), "not as one of torch.save"),
    ],
)  # fmt: skip
def test_damaged_and_hostile_files(data, message, tmp_path):
    if message is None:
        assert load(tmp_path, data) == []
        return
    with pytest.raises(weft.FileFormatError, match=message):
        load(tmp_path, data)


def nested(levels: int, end: bytes) -> bytes:
    """Tuples of two, each twice the one before: small as a program, and 2^levels elements to hash or to print."""
    program = b"\x80\x02)q\x00"
    for level in range(levels):
        program += b"h" + bytes([level]) + b"h" + bytes([level]) + b"\x86q" + bytes([level + 1])
    return program + end


@pytest.mark.parametrize("end", [b"}h\x3cK\x01s.", b"\x8f(h\x3c\x90.", b"(h\x3c\x91.", b"h\x3cQ.", b"cx\ny\nh\x3cR."])
def test_what_nests_cannot_hang(end, tmp_path):
    with pytest.raises(weft.FileFormatError):
        load(tmp_path, archive(nested(60, end)))


def test_copies_of_large_lists_are_limited(tmp_path):
    size = b"ctorch\nSize\nq\x02"
    program = b"\x80\x02](" + b"K\x01" * 20_000 + b"eq\x01" + size + b"(" + b"h\x02h\x01\x85R" * 5_000 + b"t."
    with pytest.raises(weft.FileFormatError, match="copies the same values over and over"):
        load(tmp_path, archive(program))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"(" + b"N" * 3_000, "more than 2,048 operations"),  # a program that only fills the stack
        (b"(" + b"\x8f" * 1_500, "more than 1,024 objects"),
        (b"N" + b"\x94" * 1_500, "more than 1,024 objects"),
        (b"(" + b"N\x85" * 1_020 + b"q\1" * 10, "more than 1,024 objects|more than 2,048 operations"),
    ],
)
def test_operations_and_objects_are_counted(program, message, tmp_path, monkeypatch):
    from weft.serialization import pickles

    monkeypatch.setattr(pickles, "MAX_OPERATIONS", 2_048)
    monkeypatch.setattr(pickles, "MAX_OBJECTS", 1_024)
    assert load(tmp_path, archive(b"\x80\2(" + b"]\x94" * 500 + b"t.")) == ([],) * 500
    with pytest.raises(weft.FileFormatError, match=message):
        load(tmp_path, archive(b"\x80\2" + program + b"t."))


def test_deep_nesting_takes_no_stack(tmp_path):
    depth = 100_000
    found = load(tmp_path, archive(b"\x80\2" + b"]" * depth + b"a" * (depth - 1) + b"."))
    for _ in range(depth - 1):
        (found,) = found
    assert found == []


def test_a_lost_value_is_not_asked_for_its_truth(tmp_path):
    """The operation that drops a value, here a tensor of four elements, which is neither true nor false."""
    assert load(tmp_path, archive(tensor_pickle()[:-1] + b"0N.", FOUR)) is None


def test_windows_with_gaps_do_not_multiply_a_storage(tmp_path):
    """Each of many tensors shows every other element of one storage: they cannot all be views of one tensor."""
    storage = {"0": np.arange(1 << 16, dtype=np.float32).tobytes()}
    one = tensor_pickle(count=1 << 16, size=(1 << 15,), stride=(2,))[2:-1]
    few = load(tmp_path, archive(b"\x80\2(" + one * 4 + b"t.", storage))
    assert [tensor[-1].item() for tensor in few] == [65534.0] * 4
    with pytest.raises(weft.FileFormatError, match=r"shows its storages many times.*contiguous"):
        load(tmp_path, archive(b"\x80\2(" + one * 100 + b"t.", storage))


def test_checksums_are_compared(tmp_path):
    data = bytearray(content({"w": torch.arange(100.0)}))
    place = data.index(struct.pack("<f", 57.0))
    data[place] ^= 1
    with pytest.raises(weft.FileFormatError, match="does not match its checksum"):
        load(tmp_path, bytes(data))


def test_a_file_that_is_cut_short_anywhere(tmp_path):
    for as_zip in (True, False):
        data = content({"w": torch.arange(10.0), "n": 3}, as_zip=as_zip)
        for length in range(1, len(data), 7):
            with pytest.raises(weft.FileFormatError):
                load(tmp_path, data[:length])


@pytest.mark.parametrize(
    ("start", "key"),
    [
        (b"(" + b"K\1" * 20_000 + b"tq\1", "a long tuple"),
        (b"(G\0\0\0\0\0\0\0\0tq\1", "a tuple"),
        (b"\x8b" + struct.pack("<i", 20_000) + b"\1" * 20_000 + b"q\1", "a number of more than 60 bits"),
    ],
)
def test_keys_that_take_long_to_hash(start, key, tmp_path):
    """A dict hashes tuples and long numbers anew each time: a small file could take hours."""
    program = b"\x80\2" + start + b"0}" + b"h\1Ns" * 20_000 + b"."
    with pytest.raises(weft.FileFormatError, match=f"a key of a dict or a set is {key}"):
        load(tmp_path, archive(program))
    small = load(tmp_path, archive(b"\x80\2}(K\1X\1\0\0\0a\x86K\2JJ\xff\xff\xffNu."))
    assert small == {(1, "a"): 2, -182: None}
