"""CheckpointFolder: complete at every moment, whatever is interrupted; damaged and foreign files are errors."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

import weft
from weft import nn
from weft.base import files
from weft.serialization import CheckpointFolder, flatten_state, unflatten_state

ROOT = Path(__file__).parents[2]
ARTIFACT = ROOT / "tests" / "artifacts" / "checkpoint-1"


def tensors(step: int) -> dict:
    return {
        "w": weft.full((50,), float(step)),
        "half": weft.ones(3).bfloat16() * step,
        "flags": weft.tensor([True, False]),
    }


def save(folder, step, metric=None):
    return folder.save(
        step, tensors(step), {"epoch": step // 10, "note": f"step {step}", "list": [1, None, 0.1]}, metric
    )


def is_whole(checkpoint) -> bool:
    """Whether a checkpoint has everything of one step."""
    step = checkpoint.step
    return (
        checkpoint.state == {"epoch": step // 10, "note": f"step {step}", "list": [1, None, 0.1]}
        and checkpoint.tensors["w"].tolist() == [float(step)] * 50
        and checkpoint.tensors["half"].tolist() == [float(step)] * 3
        and checkpoint.tensors["flags"].tolist() == [True, False]
    )


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir())


def test_a_checkpoint_comes_back(tmp_path, on_each_device):
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    assert folder.latest() is None and folder.best() is None and folder.paths() == []
    path = save(folder, 12, metric=0.5)
    assert path == tmp_path / "run" / "checkpoints" / "step-00000012" and folder.latest() == folder.best() == path
    found = folder.load()
    assert is_whole(found) and (found.step, found.epoch, found.metric, found.path) == (12, 1, 0.5, path)
    assert found.tensors["w"].device.kind == on_each_device and found.tensors["half"].dtype is weft.bfloat16
    assert is_whole(CheckpointFolder(folder.path).load(str(path), device="cpu"))
    assert names(folder) == ["step-00000012"] and sorted(os.listdir(path)) == ["state.json", "tensors.safetensors"]


def test_the_last_and_the_best_are_kept(tmp_path):
    folder = CheckpointFolder(tmp_path, keep_last=2, keep_best=2)
    for step, metric in enumerate([5.0, 1.0, 4.0, math.nan, 2.0, None, 3.0, math.inf]):
        save(folder, step, metric)
    assert [path.name for path in folder.paths()] == [f"step-0000000{k}" for k in (1, 4, 6, 7)]
    assert folder.best().name == "step-00000001" and folder.latest().name == "step-00000007"
    assert folder.load(folder.latest()).metric == math.inf
    greatest = CheckpointFolder(tmp_path, keep_last=1, keep_best=1, mode="max")
    save(greatest, 8, 2.5)
    assert [path.name for path in greatest.paths()] == ["step-00000007", "step-00000008"]
    everything = CheckpointFolder(tmp_path / "all", keep_last=None, keep_best=0)
    for step in range(5):
        save(everything, step)
    assert len(everything.paths()) == 5


def test_ties_go_to_the_newest(tmp_path):
    folder = CheckpointFolder(tmp_path, keep_last=1)
    for step in range(4):
        save(folder, step, 1.0)
    assert [path.name for path in folder.paths()] == ["step-00000003"]


def test_a_step_can_be_saved_again(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save(10, {"w": weft.zeros(3)}, {"old": True})
    save(folder, 10)
    assert is_whole(folder.load()) and names(folder) == ["step-00000010"]
    save(folder, 5)  # an older step does not become the newest, and is not taken away at once
    assert folder.latest().name == "step-00000010" and (tmp_path / "step-00000005").exists()


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-00000009").write_text("a file")
    (tmp_path / "step-00000008x").mkdir()
    folder = CheckpointFolder(tmp_path, keep_last=1)
    for step in (1, 2):
        save(folder, step)
    assert folder.latest().name == "step-00000002"
    assert names(folder) == ["notes.txt", "step-00000002", "step-00000008x", "step-00000009", "step-3"]


def test_arguments_are_checked(tmp_path):
    for arguments in ({"keep_last": 0}, {"keep_last": 1.5}, {"keep_best": -1}, {"mode": "best"}):
        with pytest.raises(weft.RangeError):
            CheckpointFolder(tmp_path, **arguments)
    folder = CheckpointFolder(tmp_path)
    for step in (-1, 1.5, True, 10**18):
        with pytest.raises(weft.RangeError, match="step="):
            folder.save(step, {}, None)
    for state, where in [
        ({"a": {1: 2}}, r"other keys than texts at state\['a'\]"), ({"a": (1, 2)}, r"\(1, 2\) at state\['a'\]"),
        ([math.nan], r"nan at state\[0\]"), ({"w": weft.ones(1)}, r"at state\['w'\]"), (object(), "at state"),
    ]:  # fmt: skip
        with pytest.raises(weft.DTypeError, match=where + ".*flatten_state"):
            folder.save(1, {}, state)
    with pytest.raises(weft.DTypeError, match="a float under 'w'"):
        folder.save(1, {"w": 1.0}, None)
    assert names(folder) == []
    with pytest.raises(weft.FileFormatError, match="has no complete checkpoint"):
        folder.load()
    (tmp_path / "file").write_text("")
    with pytest.raises(weft.FileError):
        CheckpointFolder(tmp_path / "file").save(1, {}, None)


def test_files_go_from_and_to_each_device(tmp_path, on_each_device):
    """Everything that is saved from a device is loaded onto it, and onto the CPU."""
    import torch

    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    x = weft.randn(5, 3)
    model.save(tmp_path / "model")
    weft.save(model.state_dict(), tmp_path / "state")
    torch.save({"w": torch.arange(6.0).reshape(2, 3).T, "b": torch.ones(2).bfloat16()}, tmp_path / "x.pt")
    for device in (None, on_each_device, "cpu"):
        kind = on_each_device if device is None else device
        found = nn.load(tmp_path / "model", device=device)
        state = weft.load(tmp_path / "state", device=device)
        theirs = weft.load(tmp_path / "x.pt", device=device)
        for value in (*found.state_dict().values(), *state.values(), *theirs.values()):
            assert value.device.kind == kind
        assert theirs["w"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] and theirs["b"].tolist() == [1.0, 1.0]
        for name, value in model.state_dict().items():
            assert (
                value.numpy().tobytes() == state[name].numpy().tobytes() == found.state_dict()[name].numpy().tobytes()
            )
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    other.load(tmp_path / "state")
    assert other[0].weight.device.kind == on_each_device
    assert model.eval()(x).detach().numpy().tobytes() == other.eval()(x).detach().numpy().tobytes()
    with pytest.raises(weft.DeviceError):
        weft.load(tmp_path / "state", device="nowhere")


# ---- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
@pytest.mark.parametrize("how", ["flipped", "short", "empty", "missing", "foreign", "of another"])
def test_damaged_checkpoints_are_errors_and_left_out(file, how, tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)
    path = save(folder, 2) / file
    good = path.read_bytes()
    if how == "flipped":
        path.write_bytes(good[:-20] + bytes([good[-20] ^ 1]) + good[-19:])
    elif how == "short":
        path.write_bytes(good[: len(good) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "foreign":
        path.write_bytes(b'{"hello": "world"}')
    elif how == "of another":
        shutil.copy(tmp_path / "step-00000001" / file, path)
    else:
        path.unlink()
    for one in (folder, CheckpointFolder(tmp_path)):  # the one that wrote it, too
        with pytest.raises(weft.FileFormatError):
            one.load(tmp_path / "step-00000002")
        with pytest.warns(weft.CheckpointWarning, match="step-00000002 is left out"):
            found = one.load()
        assert found.step == 1 and is_whole(found)


def test_every_single_byte_that_is_changed_is_found(tmp_path):
    folder = CheckpointFolder(tmp_path)
    step = folder.save(1, {"w": weft.arange(3.0)}, {"a": 1})
    for file in ("tensors.safetensors", "state.json"):
        good = (step / file).read_bytes()
        for place in range(len(good)):
            (step / file).write_bytes(good[:place] + bytes([good[place] ^ 0x15]) + good[place + 1 :])
            try:
                found = CheckpointFolder(tmp_path).load(step)
                assert found.tensors["w"].tolist() == [0.0, 1.0, 2.0] and found.state == {"a": 1} and found.step == 1
            except weft.FileFormatError:
                pass
        (step / file).write_bytes(good)
    assert CheckpointFolder(tmp_path).load(step).step == 1


def test_what_is_no_checkpoint(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for path in (tmp_path, tmp_path / "nothing", ROOT / "README.md"):
        with pytest.raises(weft.FileFormatError, match="expected a checkpoint of CheckpointFolder"):
            folder.load(path)


def test_a_later_format_is_named(tmp_path):
    folder = CheckpointFolder(tmp_path)
    path = save(folder, 1) / "state.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(
        weft.FileFormatError, match=r"it has the format 2; expected format 1\. Fix: a newer Weft wrote it"
    ):
        folder.load(path.parent)


def test_the_recorded_checkpoint_of_format_1_loads():
    folder = CheckpointFolder(ARTIFACT)
    found = folder.load()
    assert (found.step, found.epoch, found.metric) == (1200, 3, 0.25)
    state = unflatten_state(found.tensors, found.state)
    assert state["model"]["weight"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert state["model"]["weight"].dtype is weft.bfloat16 and state["epoch"] == 3
    assert state["optimizer"]["state"] == {0: {"step": 7}} and state["optimizer"]["betas"] == (0.9, 0.999)
    generator = weft.Generator()
    generator.load_state_dict(state["rng"])
    assert generator.get_state() == (11, 4)


# ---- full disks -----------------------------------------------------------------------------------------------------


class Failing:
    """The `os` of `weft.base.files`, whose operation number `at` fails, or ends the process."""

    CHANGING = ("open", "write", "fsync", "replace", "rename", "mkdir", "makedirs", "lseek", "close")

    def __init__(self, at, fail):
        self.at, self.fail, self.calls = at, fail, 0

    def __getattr__(self, name):
        found = getattr(os, name)
        return (lambda *args, **kwargs: self.call(found, args, kwargs)) if name in self.CHANGING else found

    def call(self, function, args, kwargs):
        self.calls += 1
        if self.calls == self.at:
            self.fail()
        return function(*args, **kwargs)


def run_out_of_space():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def operations(tmp_path, monkeypatch, before, step) -> int:
    """How many operations of the system a save takes."""
    folder = CheckpointFolder(tmp_path / "counted", keep_last=2)
    for one in before:
        save(folder, one)
    counting = Failing(0, None)
    with monkeypatch.context() as patch:
        patch.setattr(files, "os", counting)
        save(folder, step)
    return counting.calls


@pytest.mark.parametrize("step", [3, 2])
def test_a_full_disk_changes_nothing(step, tmp_path, monkeypatch):
    total = operations(tmp_path, monkeypatch, (1, 2), step)
    assert total > 15
    failures = 0
    for at in range(1, total + 1):
        path = tmp_path / str(at)
        folder = CheckpointFolder(path, keep_last=2)
        for one in (1, 2):
            save(folder, one)
        with monkeypatch.context() as patch:
            patch.setattr(files, "os", Failing(at, run_out_of_space))
            try:
                save(folder, step)
            except weft.FileError as error:
                failures += 1
                assert error.errno == errno.ENOSPC and "a full disk while" in str(error) and "unchanged" in str(error)
        assert not [name for name in names(folder) if name.endswith(".tmp")]
        assert is_whole(folder.load()) and is_whole(CheckpointFolder(path).load(path / "step-00000002"))
        save(folder, 4)
        assert is_whole(folder.load()) and folder.load().step == 4
    assert failures > 10


# ---- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [3, 2])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_crash_at_each_operation_leaves_a_complete_checkpoint(step, tmp_path, monkeypatch):
    """The process ends at the operation, as with kill -9: nothing is cleaned up."""
    with weft.device("cpu"):
        total = operations(tmp_path, monkeypatch, (1, 2), step)
        given = {one: tensors(one) for one in (1, 2, 3, 4)}
        weft.eval(*[value for one in given.values() for value in one.values()])  # the child computes nothing
        monkeypatch.setattr(sys.modules[__name__], "tensors", given.get)
        seen = {crash_at(at, step, tmp_path / str(at)) for at in range(1, total + 1)}
    assert seen == {2, step}


def crash_at(at, step, path) -> int:
    """Let a process end at operation `at`, and return the step that is the newest then."""
    folder = CheckpointFolder(path, keep_last=2)
    for one in (1, 2):
        save(folder, one)
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # ends a child that hangs
            files.os = Failing(at, lambda: os._exit(9))
            save(folder, step)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = CheckpointFolder(path).load()
    assert is_whole(found)
    save(folder, 4)  # the next one goes well, and cleans up
    assert is_whole(folder.load()) and folder.load().step == 4
    assert not [name for name in names(folder) if name.endswith((".tmp", ".replaced"))]
    return found.step


LOOP = """
import sys, weft
from weft.serialization import CheckpointFolder
folder = CheckpointFolder(sys.argv[1], keep_last=2, keep_best=1)
w = weft.zeros(20_000)
step = 0
print("ready", flush=True)
while True:
    step += 1
    w += 1
    folder.save(step, {"w": w}, {"step": step}, metric=float(step % 7))
    print(step, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_kill_9_at_random_moments(tmp_path):
    """The newest checkpoint after the kill is the last that was reported, or the one that was being written."""
    moments = random.Random(5)
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    for number in range(5):
        path = tmp_path / str(number)
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, script, path], stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout.readline() == "ready\n"
        for _ in range(moments.randrange(1, 12)):
            process.stdout.readline()
        time.sleep(moments.uniform(0, 0.02))
        process.kill()
        rest, _ = process.communicate(timeout=60)
        reported = [int(line) for line in rest.split()]
        folder = CheckpointFolder(path, keep_last=2, keep_best=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = folder.load()
        assert found.state == {"step": found.step} and found.tensors["w"].tolist() == [float(found.step)] * 20_000
        assert not reported or found.step in (reported[-1], reported[-1] + 1)
        for one in folder.paths():
            folder.load(one)
        folder.save(10**6, {"w": weft.ones(1)}, None)
        assert not [name for name in names(folder) if name.endswith(".tmp")]


# ---- a run that goes on ---------------------------------------------------------------------------------------------


def make_run():
    weft.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    optimizer = weft.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = weft.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    ema = weft.optim.ExponentialMovingAverage(model.parameters(), decay=0.9)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "ema": ema}


def train(run, steps):
    @weft.compile
    def step(x, y):
        run["optimizer"].zero_grad()
        loss = nn.functional.cross_entropy(run["model"](x), y)
        loss.backward()
        run["optimizer"].step()
        run["ema"].update()
        return loss

    losses = []
    for _ in range(steps):
        x = weft.randn(8, 6)
        losses.append(step(x, (x.sum(1) > 0).to(weft.int64)).item())
        run["scheduler"].step()
    return losses


def state_of(run):
    return {name: part.state_dict() for name, part in run.items()} | {"rng": weft.default_generator.state_dict()}


def test_a_run_goes_on_with_the_same_bits(tmp_path, on_each_device):
    unbroken = make_run()
    expected = train(unbroken, 12)
    first = make_run()
    begun = train(first, 5)
    folder = CheckpointFolder(tmp_path)
    folder.save(5, *flatten_state(state_of(first)))
    second = make_run()
    train(second, 2)  # it was elsewhere
    found = folder.load()
    state = unflatten_state(found.tensors, found.state)
    for name, part in second.items():
        part.load_state_dict(state[name])
    weft.default_generator.load_state_dict(state["rng"])
    assert begun + train(second, 7) == expected
    for own, other in zip(unbroken["model"].parameters(), second["model"].parameters(), strict=True):
        assert own.detach().numpy().tobytes() == other.detach().numpy().tobytes()
    assert json.dumps(found.state)  # plain JSON
