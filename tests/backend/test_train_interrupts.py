"""Ctrl-C and SIGTERM: in scripts, at a prompt, in the middle of a validation."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import weft
import weft.nn as nn
from weft.train import Callback, Interrupted, Trainer

pytestmark = pytest.mark.backend

X = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
BATCHES = [(X[k : k + 4], X[k : k + 4].sum(1, keepdims=True)) for k in (0, 4, 8)]


def make(device, **options):
    weft.manual_seed(0)
    model = nn.Linear(2, 1)
    return Trainer(model, nn.MSELoss(), weft.optim.Adam(model.parameters(), lr=0.1), device=device, **options)


class Signal(Callback):
    def __init__(self, number=signal.SIGINT):
        self.number = number

    def on_batch_end(self, trainer, batch, metrics):
        if trainer.step_count == 2:
            os.kill(os.getpid(), self.number)


def test_ctrl_c_is_a_keyboard_interrupt(on_each_device, capsys):
    with pytest.raises(KeyboardInterrupt, match="Interrupted by Ctrl-C after step 2") as found:
        make(on_each_device, callbacks=[Signal()]).fit(BATCHES)
    assert isinstance(found.value, SystemExit) and isinstance(found.value, Interrupted) and found.value.code == 130
    assert "Interrupted by Ctrl-C after step 2" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["prompt", "notebook"])
def test_ctrl_c_ends_no_prompt(on_each_device, monkeypatch, capsys, where):
    if where == "prompt":
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    else:
        monkeypatch.setattr("builtins.__IPYTHON__", True, raising=False)
    trainer = make(on_each_device, callbacks=[Signal()])
    with pytest.raises(KeyboardInterrupt, match="Interrupted by Ctrl-C after step 2") as found:
        trainer.fit(BATCHES)
    assert not isinstance(found.value, SystemExit) and isinstance(found.value, Interrupted)
    assert not capsys.readouterr().err  # the prompt shows it
    trainer.fit(BATCHES)
    whole = make(on_each_device)
    whole.fit(BATCHES)
    np.testing.assert_array_equal(trainer.model.weight.numpy(), whole.model.weight.numpy())


@pytest.mark.parametrize("where", ["prompt", ""])
def test_sigterm_ends_everything(on_each_device, monkeypatch, where):
    if where:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(SystemExit) as found:
        make(on_each_device, callbacks=[Signal(signal.SIGTERM)]).fit(BATCHES)
    assert found.value.code == 143 and not isinstance(found.value, KeyboardInterrupt)


SCRIPT = """
import os, signal, weft
from weft import nn
stop = type("Stop", (weft.train.Callback,), {"on_batch_end": lambda *args: os.kill(os.getpid(), signal.SIGINT)})
model = nn.Linear(2, 1)
trainer = weft.train.Trainer(model, nn.MSELoss(), weft.optim.SGD(model.parameters()), device="cpu", callbacks=[stop()])
history = trainer.fit([(weft.ones(4, 2), weft.ones(4, 1))] * 3)
print("alive", trainer.step_count)
"""


def test_a_script_ends_with_the_code_and_a_prompt_stays():
    script = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100)
    assert script.returncode == 130 and "alive" not in script.stdout
    assert script.stderr.startswith("Interrupted by Ctrl-C after step 1") and "Traceback" not in script.stderr
    prompt = subprocess.run([sys.executable, "-i", "-q"], input=SCRIPT, capture_output=True, text=True, timeout=100)
    assert "alive 1" in prompt.stdout, prompt.stderr


@pytest.mark.parametrize("resumed", ["process", "folder"])
@pytest.mark.parametrize("shared", [False, True])
def test_a_signal_ends_the_validation(on_each_device, tmp_path, resumed, shared):
    class Validation:
        taken, at = 0, 2

        def __len__(self):
            return 3

        def __iter__(self):
            for batch in BATCHES:
                type(self).taken += 1
                if self.taken == self.at:
                    os.kill(os.getpid(), signal.SIGINT)
                yield batch

    class Stop(Callback):  # in the validation of the first epoch, with the data of the training
        def evaluating(self, trainer):
            if trainer.epoch == 0 and shared and not Validation.taken:
                Validation.taken = 2
                os.kill(os.getpid(), signal.SIGINT)

    def data():
        return weft.data.DataLoader(weft.data.ArrayDataset(X, X.sum(1, keepdims=True)), batch_size=4, shuffle=True)

    def fit(trainer):
        train = data()
        trainer.fit(train, validation=train if shared else Validation(), epochs=2)

    first = make(on_each_device, run=tmp_path, callbacks=[Stop()])
    with pytest.raises(KeyboardInterrupt, match=r"after step 3 .epoch 1.; saved to"):
        fit(first)
    assert Validation.taken == 2  # it did not go on
    assert first.epoch == 0 and first.position == 3
    assert "val_loss" not in first.history.last
    Validation.at = 0
    again = first if resumed == "process" else make(on_each_device, run=tmp_path, callbacks=[Stop()])
    fit(again)
    Validation.taken = 1
    whole = make(on_each_device, callbacks=[Stop()])
    fit(whole)
    assert again.step_count == whole.step_count == 6
    assert again.history["val_loss"] == whole.history["val_loss"] and len(whole.history["val_loss"]) == 2
    assert again.history["loss"] == whole.history["loss"]
    np.testing.assert_array_equal(again.model.weight.numpy(), whole.model.weight.numpy())
