"""What goes wrong in a run: the table of docs/training.md, row by row; each fault is provoked."""

import errno
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

import weft
import weft.nn as nn
from weft.data import DataLoader, ImageFolder
from weft.train import Callback, NotFiniteError, Trainer
from weft.train.faults import exit_code, run_guarded

pytestmark = pytest.mark.backend
PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text()


def table():
    """(exit code, message) by fault."""
    text = PAGE.split("| fault | exit code | message |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {fault: (int(code), message) for fault, code, message in rows}


def make_trainer(model=None, **options):
    weft.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, nn.CrossEntropyLoss(), optimizer, device=weft.default_device(), **options)


def batches(label=0, scale=1.0):
    x = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32) * np.float32(scale)
    return [(x, np.full(16, label))] * 3


class Signal(Callback):
    def __init__(self, number):
        self.number = number

    def on_batch_end(self, trainer, batch, metrics):
        if batch == 1:
            os.kill(os.getpid(), self.number)


def interrupted(number):
    def fault(tmp_path, patch):
        make_trainer(callbacks=[Signal(number)], run=tmp_path / "run").fit(batches())

    return fault


def not_finite(tmp_path, patch):
    make_trainer().fit(batches(scale=np.inf))


def wrong_label(tmp_path, patch):
    make_trainer().fit(batches(label=5))


def missing(tmp_path, patch):
    make_trainer().fit(DataLoader(ImageFolder(tmp_path / "nowhere"), batch_size=2))


def unreadable(tmp_path, patch):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "images" / "cat").mkdir(parents=True)
    for number in range(3):
        image.new("RGB", (1, 1)).save(tmp_path / "images" / "cat" / f"{number}.png")
    (tmp_path / "images" / "cat" / "1.png").write_bytes(b"no picture")
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 3))
    flat = lambda picture: picture.astype(np.float32)  # noqa: E731
    make_trainer(model).fit(DataLoader(ImageFolder(tmp_path / "images", transform=flat), batch_size=2, num_workers=1))


def damaged(tmp_path, patch):
    (tmp_path / "weights.safetensors").write_bytes(b"not this")
    make_trainer().model.load_state_dict(weft.load(tmp_path / "weights.safetensors"))


def full_disk(tmp_path, patch):
    """While the second checkpoint is written."""
    trainer = make_trainer(run=tmp_path / "run")
    trainer.fit(batches(), epochs=1)

    def no_space(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(os, "fsync", no_space)
    try:
        trainer.fit(batches(), epochs=2)
    finally:
        patch.undo()
        assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000003"]


def out_of_memory(tmp_path, patch):
    model = nn.Sequential(nn.Linear(4, 1 << 40, bias=False))
    make_trainer(model).fit(batches())


def refused(tmp_path, patch):
    raise SystemExit(2)  # as argparse and the configuration do; tests/unit/test_config*.py


def anything_else(tmp_path, patch):
    make_trainer().fit([])


FAULTS = {
    "Ctrl-C": interrupted(signal.SIGINT),
    "SIGTERM": interrupted(signal.SIGTERM),
    "a configuration that is refused": refused,
    "loss not finite": not_finite,
    "label outside the classes": wrong_label,
    "missing data": missing,
    "unreadable image": unreadable,
    "damaged checkpoint or weights": damaged,
    "full disk": full_disk,
    "out of memory": out_of_memory,
    "anything else": anything_else,
}
WORDS = {
    "Ctrl-C": r"Interrupted by Ctrl-C after step 2 \(epoch 1\); saved to .*step-00000002\. To go on: ",
    "SIGTERM": r"Interrupted by SIGTERM after step 2 \(epoch 1\); saved to .*step-00000002\. To go on: ",
    "loss not finite": r"Trainer: given a loss that is not finite in step 1 \(epoch 1, batch 0\); first: layer 0 \(L",
    "label outside the classes": r"cross_entropy .*: given the label 5 at position 0, for 3 classes; expected 0 to 2",
    "missing data": "nowhere",
    "unreadable image": r"1\.png",
    "damaged checkpoint or weights": r"weights\.safetensors",
    "full disk": r"a full disk while .* was written.*files that were there before are unchanged",
    "out of memory": "TiB",
    "anything else": "data without a batch",
}


def test_the_table_has_every_fault():
    assert set(table()) == set(FAULTS)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(on_each_device, tmp_path, monkeypatch, capsys, fault):
    code, message = table()[fault]
    if fault == "a configuration that is refused":
        with pytest.raises(SystemExit) as stop:
            FAULTS[fault](tmp_path, monkeypatch)
        assert exit_code(stop.value) == code
        return
    assert run_guarded(lambda: FAULTS[fault](tmp_path, monkeypatch)) == code
    shown = capsys.readouterr().err
    if fault == "label outside the classes" and on_each_device != "cpu":  # known late, without the label
        assert "cross_entropy" in shown and "given an index outside an axis of extent 3" in shown
        return
    assert re.search(WORDS[fault], shown), shown
    assert "Traceback" not in shown
    fixed = [part for part in re.split(r"\b[NEPBLC]\b|PATH|CLASS|\.\.\.|[A-Z]-1", message) if len(part.strip()) > 12]
    if fault in ("Ctrl-C", "SIGTERM", "loss not finite", "label outside the classes", "full disk"):
        assert any(part.strip(" ;()") in shown for part in fixed), (fixed, shown)


def test_errors_of_unknown_reason_keep_their_traceback():
    def fault():
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        run_guarded(fault)
    assert run_guarded(lambda: None) == 0


def test_the_cause_of_an_error_counts():
    try:
        try:
            raise FileNotFoundError("sample 7")
        except FileNotFoundError as error:
            raise RuntimeError("a worker failed") from error
    except RuntimeError as error:
        assert exit_code(error) == 5
    assert exit_code(NotFiniteError("x")) == 3


def nan_batches():
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    return [(x, np.zeros(8, np.int64)), (x * np.nan, np.zeros(8, np.int64))]


def test_the_search_for_the_layer_changes_nothing(on_each_device):
    trainer = make_trainer(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)))
    trainer.train_batch(*nan_batches()[0])
    before = {name: value.tolist() for name, value in trainer.model.state_dict().items()}
    with pytest.raises(NotFiniteError, match=r"first: layer 0 \(Linear\), whose input is not finite"):
        trainer.fit(nan_batches()[1:])
    assert {name: value.tolist() for name, value in trainer.model.state_dict().items()} == before
    assert before["1.num_batches_tracked"] == 1


def test_the_search_for_the_layer_in_a_step_that_updates_itself(on_each_device):
    calls = []

    def step(trainer, x, y):
        calls.append(1)
        trainer.optimizer.zero_grad()
        loss = trainer.loss(trainer.model(x), y)
        loss.backward()
        trainer.optimizer.step()
        return loss.detach()

    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3))
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, device=weft.default_device(), step=step)
    trainer.fit(nan_batches()[:1])
    weights = model[0].weight.tolist()
    momenta = [state["momentum_buffer"].tolist() for state in optimizer.state_dict()["state"].values()]
    count = len(calls)
    with pytest.raises(NotFiniteError, match=r"first: layer 0 \(Linear\)"):
        trainer.fit(nan_batches()[1:], epochs=2)
    assert len(calls) == count + 1  # the compiled step was not traced again
    assert model[0].weight.tolist() == weights
    assert [state["momentum_buffer"].tolist() for state in optimizer.state_dict()["state"].values()] == momenta


@pytest.mark.parametrize("at", [0, 1])
def test_a_batch_that_cannot_be_computed_again_hides_no_error(on_each_device, at):
    with pytest.raises(NotFiniteError, match="the layer is unknown: the batch could not be computed again"):
        make_trainer().fit(batch for batch in nan_batches()[at:])


@pytest.mark.parametrize("resident", [True, False])
def test_the_message_for_a_label_names_it(on_each_device, resident):
    rng = np.random.default_rng(0)
    x, good, bad = rng.normal(size=(40, 4)).astype(np.float32), np.zeros(40, np.int64), np.zeros(40, np.int64)
    bad[21] = 5

    def loader(labels):
        data = weft.data.TensorDataset(weft.tensor(x), weft.tensor(labels))
        return DataLoader(data, batch_size=8, device=weft.default_device(), resident=resident, seed=1)

    trainer = make_trainer()
    given = "given the label 5 at position 5, for 3 classes"
    if weft.get_device(on_each_device).backend.runs_ahead:  # the batch may be gone when the error is known
        given += "|given an index outside an axis of extent 3"
    with pytest.raises(weft.errors.IndexRangeError, match=given) as error:
        trainer.fit(loader(bad))
    assert exit_code(error.value) == 4
    history = trainer.fit(loader(good), epochs=2)
    assert np.isfinite(history["loss"]).all()
