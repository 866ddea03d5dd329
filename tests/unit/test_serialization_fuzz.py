"""Files with random damage: an error or the right data, never a crash, a hang or a large allocation."""

from __future__ import annotations

import io
import json
import math
import os
import random
import resource
import signal
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch as oracle
import torch

import weft
from weft import nn
from weft.base import files
from weft.serialization import CheckpointFolder, checkpoint, save_tensors
from weft.serialization import safetensors as own
from weft.serialization.saving import state_of
from weft.serialization.torch_files import parse_torch

pytestmark = pytest.mark.unit

MUTATIONS = 10_000
GROWTH = 200 << 10  # KiB of memory that all of them together may take
SECONDS = 20  # for one file
CPU = weft.get_device("cpu")
NUMBERS = [b"0", b"-1", b"1e9", b"18446744073709551616", b"null", b"[]", b"{}", b'""', b"NaN", b"\xff\xff\xff\xff"]


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Bytes with one to three kinds of damage."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not found:
            break
        start = rng.randrange(len(found))
        stop = min(len(found), start + rng.choice((1, 1, 2, 4, 8, 30)))
        kind = rng.randrange(9)
        if kind == 0:
            found[start] ^= 1 << rng.randrange(8)
        elif kind == 1:
            found[start] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            found[start:stop] = rng.randbytes(stop - start)
        elif kind == 3:
            del found[start:stop]
        elif kind == 4:
            found[start:start] = found[start:stop]
        elif kind == 5:
            del found[start:]
        elif kind == 6:
            other = rng.randrange(len(found))
            found[start:stop] = found[other : other + stop - start]
        elif kind == 7:
            found[start:stop] = rng.choice(NUMBERS)
        else:
            found += rng.randbytes(rng.randrange(1, 9))
    return bytes(found)


@pytest.fixture(autouse=True)
def limits():
    """Each file has its time, and all together little memory."""

    def stop(*_):
        raise AssertionError(f"a file took more than {SECONDS} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    old = signal.signal(signal.SIGALRM, stop)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH


def outcomes(data: bytes, load, check, seed: int, count: int = MUTATIONS) -> tuple[int, int]:
    """How many mutations load, and how many are errors."""
    rng = random.Random(seed)
    good = bad = 0
    for _ in range(count):
        damaged = mutate(data, rng)
        signal.alarm(SECONDS)
        try:
            found = load(damaged)
        except weft.FileFormatError as error:
            assert "load: given" in str(error)
            bad += 1
            continue
        check(damaged, found)
        good += 1
    return good, bad


@pytest.fixture
def content(monkeypatch):
    """Files by path that have other bytes than on the disk, where writing ten thousand would take long."""
    changed: dict[Path, bytes] = {}
    real = files.read_bytes
    monkeypatch.setattr(files, "read_bytes", lambda path: as_array(changed[path]) if path in changed else real(path))
    return changed


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def test_safetensors_of_other_programs_load_as_the_package_loads_them():
    """There is no checksum: what is read is what the file says, and the package is the oracle for that."""
    given = {
        "a.weight": torch.arange(6.0).reshape(2, 3),
        "b": torch.ones(3).bfloat16(),
        "c": torch.tensor([True, False]),
    }
    data = oracle.save(given, {"format": "pt", "note": "x"})

    def check(damaged, found):
        expected = dict(safetensors.deserialize(damaged))
        assert set(expected) == set(found)
        for name, about in expected.items():
            assert about["shape"] == list(found[name].shape) and about["dtype"] == own.NAME_OF[found[name].dtype]
            assert bytes(about["data"]) == found[name].numpy().tobytes()

    def load(damaged):
        return own.parse_tensors(Path("x"), as_array(damaged)).tensors(CPU)

    check(data, load(data))
    good, bad = outcomes(data, load, check, 1)
    assert good > 100 and bad > 5_000


def test_files_of_save_load_with_the_right_data_or_not(tmp_path):
    state = {"w": weft.arange(6.0).reshape(2, 3), "step": 7, "betas": (0.9, 0.999), "names": ["a", "b"], 3: None}
    weft.save(state, tmp_path / "x")
    data = (tmp_path / "x").read_bytes()

    def load(damaged):
        return state_of(own.parse_tensors(Path("x"), as_array(damaged)), CPU)

    def check(_, found):
        assert found["w"].tolist() == state["w"].tolist() and found["w"].dtype is weft.float32
        assert {key: found[key] for key in found if key != "w"} == {key: state[key] for key in state if key != "w"}

    check(None, load(data))
    good, bad = outcomes(data, load, check, 2)
    assert bad > 9_000 and good + bad == MUTATIONS


def test_models_load_with_the_right_data_or_not(tmp_path, content):
    nn.Sequential(nn.Linear(3, 2), nn.ReLU()).save(tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    expected = repr(nn.load(tmp_path / "x"))

    def load(damaged):
        content[tmp_path / "x"] = damaged
        return nn.load(tmp_path / "x")

    def check(_, found):
        assert repr(found) == expected

    good, bad = outcomes(data, load, check, 3)
    assert bad > 9_000 and good + bad == MUTATIONS


def test_checkpoints_load_with_the_right_data_or_not(tmp_path, content):
    step = CheckpointFolder(tmp_path).save(
        12, {"w": weft.arange(6.0), "b": weft.ones(2)}, {"epoch": 1, "a": [0.5]}, 0.25
    )

    def check(_, found):
        assert (found.step, found.epoch, found.metric, found.state) == (12, 1, 0.25, {"epoch": 1, "a": [0.5]})
        assert found.tensors["w"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        assert found.tensors["b"].tolist() == [1.0, 1.0] and len(found.tensors) == 2

    for seed, name in enumerate(("tensors.safetensors", "state.json")):
        data = (step / name).read_bytes()

        def load(damaged, name=name):
            content[step / name] = damaged
            return CheckpointFolder(tmp_path).load(step)

        check(None, load(data))
        good, bad = outcomes(data, load, check, 4 + seed, MUTATIONS // 2)
        assert bad > 4_000 and good + bad == MUTATIONS // 2
        content.clear()
    assert CheckpointFolder(tmp_path).load().step == 12


def torch_file(as_zip: bool) -> tuple[bytes, dict]:
    base = torch.arange(12.0).reshape(3, 4)
    given = {
        "a": base,
        "b": base.T,
        "c": torch.ones(2).bfloat16(),
        "n": [1, 2.5, "x", None],
        "d": base[:1].expand(3, 4),
    }
    stream = io.BytesIO()
    torch.save(given, stream, _use_new_zipfile_serialization=as_zip)
    return stream.getvalue(), given


def test_archives_of_torch_load_with_the_right_data_or_not():
    data, given = torch_file(True)

    def check(_, found):
        for name in "abcd":
            assert torch.equal(torch.from_dlpack(found[name].detach().contiguous()), given[name])
        assert found["n"] == given["n"] and len(found) == len(given)

    def load(damaged):
        return parse_torch(Path("x"), as_array(damaged), CPU)

    check(None, load(data))
    good, bad = outcomes(data, load, check, 6)
    assert good > 100 and bad > 2_000  # much of an archive is padding and members that are not read


def test_streams_of_torch_load_or_not():
    """There is no checksum here, either; pickles that are damaged run nothing and take no memory."""
    data, given = torch_file(False)

    def load(damaged):
        found = parse_torch(Path("x"), as_array(damaged), CPU)
        if isinstance(found, dict):
            for value in found.values():
                if isinstance(value, weft.Tensor) and value.numel() < 10**6:
                    value.detach().numpy()
        return found

    assert set(load(data)) == set(given)
    good, bad = outcomes(data, load, lambda *_: None, 7)
    assert good > 100 and bad > 2_000


def test_pickles_of_random_operations():
    """Programs of valid operations, in any order."""
    from tests.unit.test_serialization_torch import FOUR, archive, tensor_pickle
    from weft.serialization.pickles import OPERATIONS

    rng = random.Random(8)
    codes = [bytes([code]) for code in OPERATIONS]
    parts = [b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n", b"ctorch\nSize\n", b"X\1\0\0\0a"]
    parts += [
        b"ctorch\nFloatStorage\n",
        b"K\1",
        b"\x89",
        b"(K\1K\2t",
        b"X\7\0\0\0storage",
        b"X\1\0\0\x000",
        tensor_pickle()[2:-1],
    ]
    good = bad = 0
    for _ in range(MUTATIONS // 2):
        program = b"".join(rng.choice(codes if rng.random() < 0.4 else parts) for _ in range(rng.randrange(1, 25)))
        signal.alarm(SECONDS)
        try:
            parse_torch(Path("x"), as_array(archive(b"\x80\x02" + program + b".", FOUR)), CPU)
            good += 1
        except weft.FileFormatError:
            bad += 1
    assert good > 5 and bad > 1_000


def test_indices_of_shards(tmp_path, content):
    save_tensors(tmp_path / "a.safetensors", {"w": weft.ones(2)})
    save_tensors(tmp_path / "b.safetensors", {"v": weft.ones(1)})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {"total_size": 12}, "weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}')
    data = index.read_bytes()

    def load(damaged):
        content[index] = damaged
        return weft.load(index)

    def check(_, found):
        assert all(found[name].tolist() == {"w": [1.0, 1.0], "v": [1.0]}[name] for name in found)

    good, bad = outcomes(data, load, check, 9, 2_000)
    assert good > 10 and bad > 1_000


# ---- files whose checksum is right: what reads behind it ------------------------------------------------------------

ODD = [
    None, True, -1, 0, 3, 2**40, 10**9, 1.5, "", "w", "Linear", "tensor", "/etc/hostname", [], {}, [[]], {"$": "array"},
    {"type": "ReLU"}, {"$": "tensor", "name": "w"}, {"config": "net.json"}, {"$function": "operator.pow"},
]  # fmt: skip


def change_tree(tree, rng: random.Random):
    """A copy of a tree of JSON in which one to three values or names are others, are missing or exchanged."""
    found = json.loads(json.dumps(tree))
    for _ in range(rng.choice((1, 1, 2, 3))):
        places: list[tuple[Any, Any]] = []
        waiting = [found]
        while waiting:
            one = waiting.pop()
            for key in one if isinstance(one, dict) else range(len(one)):
                places.append((one, key))
                if isinstance(one[key], (dict, list)):
                    waiting.append(one[key])
        if not places:
            break
        (owner, key), (other, name) = rng.choice(places), rng.choice(places)
        kind = rng.randrange(5)
        if kind == 0:
            del owner[key]
        elif kind == 1 and isinstance(owner, dict):
            owner[rng.choice(["type", "$", "name", "items", "calls", "layers", "x"])] = owner.pop(key)
        elif kind == 2:
            owner[key] = json.loads(json.dumps(other[name]))
        else:
            owner[key] = json.loads(json.dumps(rng.choice(ODD)))
    return found


def signed(tensors, metadata) -> bytes:
    """A file of Weft's with any metadata, and the right digest."""
    handle = os.memfd_create("signed")
    try:
        own.write_tensors(handle, tensors, metadata)
        return os.pread(handle, 1 << 20, 0)
    finally:
        os.close(handle)


def trees_that_load(tree, load, seed: int, count: int = 3_000) -> tuple[int, int]:
    rng = random.Random(seed)
    good = bad = 0
    for _ in range(count):
        signal.alarm(SECONDS)
        try:
            load(change_tree(tree, rng))
            good += 1
        except weft.FileFormatError:
            bad += 1
    return good, bad


def test_states_with_the_right_digest(tmp_path, content):
    state = OrderedDict(w=weft.arange(6.0), a=np.arange(3), n={"t": (1, 2.5), 3: None, "s": {1, 2}, "d": weft.float32})
    weft.save({"x": state, "c": Counter("ab"), "l": [b"y", math.inf]}, tmp_path / "x")
    opened = own.open_tensors(tmp_path / "x")
    tensors, metadata = opened.tensors(CPU), dict(opened.metadata)
    (key,) = (one for one in metadata if one.endswith("state"))
    metadata.pop(own.DIGEST, None)

    def load(tree):
        content[tmp_path / "x"] = signed(tensors, metadata | {key: json.dumps(tree)})
        return weft.load(tmp_path / "x")

    good, bad = trees_that_load(json.loads(metadata[key]), load, 10, 2_000)
    assert good > 60 and bad > 600


def test_models_with_the_right_digest(tmp_path, content):
    x = nn.Input((5, 4))
    hidden = nn.Linear(4, 4)(x)
    nn.Model(x, [nn.LSTM(4, 3, num_layers=2)(hidden)[0], (hidden**2.0)[:, 1:]]).save(tmp_path / "x")
    opened = own.open_tensors(tmp_path / "x")
    tensors, metadata = opened.tensors(CPU), dict(opened.metadata)
    metadata.pop(own.DIGEST, None)

    def load(tree):
        content[tmp_path / "x"] = signed(tensors, metadata | {"weft.model": json.dumps(tree)})
        return nn.load(tmp_path / "x")

    good, bad = trees_that_load(json.loads(metadata["weft.model"]), load, 11, 250)
    assert good > 3 and bad > 80


def test_checkpoints_with_the_right_digest(tmp_path, content):
    step = CheckpointFolder(tmp_path).save(12, {"w": weft.arange(6.0)}, {"epoch": 1, "a": [0.5]}, 0.25)
    tree = json.loads((step / "state.json").read_text())
    del tree["sha256"]

    def load(tree):
        made = tree | {"sha256": checkpoint._digest(tree)} if isinstance(tree, dict) else tree
        content[step / "state.json"] = json.dumps(made).encode()
        found = CheckpointFolder(tmp_path).load(step)
        assert type(found.step) is int and type(found.epoch) in (int, type(None))
        assert isinstance(found.metric, (int, float, type(None))) and found.state == tree["state"]
        assert found.tensors["w"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

    good, bad = trees_that_load(tree, load, 12)
    assert good > 100 and bad > 1_000
