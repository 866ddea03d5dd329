"""What a Trainer does between calls: single steps, further fits, groups and averages that are added, states that are
loaded, iterators that are used up."""

import os
import signal

import numpy as np
import pytest

import weft
import weft.nn as nn
from weft.train import EMA, Callback, EarlyStopping, Interrupted, ModelCheckpoint, NotFiniteError, Trainer

pytestmark = pytest.mark.backend

rng = np.random.default_rng(0)
X = rng.normal(size=(12, 2)).astype(np.float32)
Y = X.sum(1, keepdims=True)
DATA = [(X[k : k + 4], Y[k : k + 4]) for k in (0, 4, 8)]


def make(device, model=None, **options):
    weft.manual_seed(0)
    model = nn.Linear(2, 1) if model is None else model
    return Trainer(model, nn.MSELoss(), weft.optim.SGD(model.parameters(), lr=0.1), device=device, **options)


def weights(trainer):
    return [value.numpy().tobytes() for value in trainer.model.state_dict().values()]


def test_accumulation_divides_the_gradients_of_groups_that_were_added(on_each_device):
    found = []
    for parts in (1, 2):
        weft.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        optimizer = weft.optim.SGD(model[2].parameters(), lr=0.1)
        trainer = Trainer(model, nn.MSELoss(), optimizer, device=on_each_device, accumulate=parts)
        trainer.train_batch(*DATA[0])
        optimizer.add_param_group({"params": list(model[0].parameters())})
        trainer.train_batch(*DATA[1])
        found.append(model[0].weight.numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_a_single_bad_batch_does_not_end_training_by_single_steps(on_each_device):
    trainer = make(on_each_device)
    trainer.train_batch(*DATA[0])
    before = weights(trainer)
    assert not np.isfinite(trainer.train_batch(X[:4] * np.nan, Y[:4]).item())
    assert weights(trainer) == before
    trainer.train_batch(*DATA[1])
    assert weights(trainer) != before
    assert np.isfinite(trainer.fit(DATA, epochs=2)["loss"]).all()


def test_the_message_names_no_batch_that_is_not_there(on_each_device):
    trainer = make(on_each_device)
    trainer.fit(DATA, epochs=1)
    trainer.meters.counts[1] = 1
    with pytest.raises(NotFiniteError, match=r"in step 1 \(before epoch 2\)"):
        trainer.read()


class Root(nn.Module):
    """Its loss is finite where its gradient is not."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(weft.zeros(1))

    def forward(self, x):
        return x[:, :1] + self.w.sqrt()


def test_steps_whose_gradients_are_not_finite_are_skipped(on_each_device):
    trainer = make(on_each_device, Root(), on_nan="skip")
    history = trainer.fit(DATA, epochs=2)
    assert trainer.model.w.tolist() == [0.0]
    assert history["skipped"][-1] == 6


def test_a_path_is_resumed_from_though_the_trainer_has_begun(on_each_device, tmp_path):
    trainer = make(on_each_device, run=tmp_path)
    trainer.fit(DATA, epochs=1)
    first = weights(trainer)
    trainer.fit(DATA, epochs=3)
    trainer.fit(DATA, epochs=1, resume=tmp_path / "checkpoints" / "step-00000003")
    assert trainer.step_count == 3 and weights(trainer) == first
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]
    with pytest.raises(weft.WeftError, match="nowhere"):
        trainer.fit(DATA, epochs=4, resume=tmp_path / "nowhere")


def test_what_names_no_checkpoint(on_each_device, tmp_path):
    """True without a run folder ended in an assertion, a number in an error of pathlib."""
    make(on_each_device, run=tmp_path).fit(DATA, epochs=1)
    for where, message in [
        (True, "resume=True for a Trainer without a run folder"),
        (3, 'given resume=3; expected "auto", None, or the path of a checkpoint'),
        (tmp_path, r"the folder of a run; expected a checkpoint, .* Trainer\(run=...\) goes on with a run"),
    ]:
        with pytest.raises(weft.errors.RangeError, match=message):
            make(on_each_device).fit(DATA, epochs=1, resume=where)


def test_single_steps_before_fit_do_not_prevent_a_resume(on_each_device, tmp_path):
    make(on_each_device, run=tmp_path).fit(DATA, epochs=2)
    again = make(on_each_device, run=tmp_path)
    again.train_batch(*DATA[0])
    again.fit(DATA, epochs=3)
    assert again.step_count == 9


def test_checkpoints_of_another_run_are_put_aside(on_each_device, tmp_path):
    make(on_each_device, run=tmp_path).fit(DATA, epochs=3)
    other = make(on_each_device, run=tmp_path)
    state = make(on_each_device).state_dict()
    state["callbacks"] = [{} for _ in other.callbacks][: len(other.state_dict()["callbacks"])]
    other.load_state_dict(state)
    other.fit(DATA, epochs=1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]
    last = make(on_each_device, run=tmp_path)
    last.fit(DATA, epochs=1)
    assert last.step_count == 3 and weights(last) == weights(other)


def test_a_signal_at_the_end_is_heard(on_each_device):
    class Late(Callback):
        def on_train_end(self, trainer):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="SIGTERM"):
        make(on_each_device, callbacks=[Late()]).fit(DATA, epochs=1)


def test_an_iterator_goes_on_where_it_is(on_each_device):
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield DATA[len(taken) % 3]

    batches, trainer = endless(), make(on_each_device)
    for stop in (3, 6):
        trainer.fit(batches, max_steps=stop)
        assert len(taken) == trainer.step_count == stop


def test_early_stopping_counts_anew_when_fit_is_called_again(on_each_device, tmp_path):
    trainer = make(on_each_device, callbacks=[EarlyStopping("loss", patience=1, min_delta=10)], run=tmp_path)
    trainer.fit(DATA, epochs=10)
    assert trainer.epoch == 2
    trainer.fit(DATA, epochs=20)
    assert trainer.epoch == 3
    again = make(on_each_device, callbacks=[EarlyStopping("loss", patience=1, min_delta=10)], run=tmp_path)
    again.fit(DATA, epochs=20)  # a script that is run again: the run is over
    assert again.epoch == 3


def test_averages_are_there_as_soon_as_a_state_is_loaded(on_each_device):
    first = make(on_each_device, callbacks=[EMA(0.9)])
    first.fit(DATA, epochs=2)
    expected, state = first.evaluate(DATA), first.state_dict()
    other = make(on_each_device, callbacks=[EMA(0.9)])
    other.load_state_dict(state)
    kept = other.state_dict()["callbacks"][0]["averages"]
    assert [one.tolist() for one in kept] == [one.tolist() for one in state["callbacks"][0]["averages"]]
    other.find_lr(DATA, steps=8)
    assert other.evaluate(DATA) == expected
    first.find_lr(DATA, steps=8)
    assert first.evaluate(DATA) == expected


def test_averages_follow_parameters_that_are_added(on_each_device):
    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = weft.optim.SGD(model[2].parameters(), lr=0.1)
    average = EMA(0.9)
    trainer = Trainer(model, nn.MSELoss(), optimizer, device=on_each_device, callbacks=[average])
    trainer.fit(DATA, epochs=1)
    kept = average.average.averages[0].tolist()
    optimizer.add_param_group({"params": list(model[0].parameters())})
    average.on_train_begin(trainer)
    assert average.average.averages[0].tolist() == kept
    trainer.fit(DATA, epochs=3)
    raw = model[0].weight.tolist()
    with average.applied():
        assert model[0].weight.tolist() != raw


def test_a_checkpoint_has_the_weights_that_were_validated(on_each_device, tmp_path):
    path = tmp_path / "best.safetensors"
    trainer = make(on_each_device, callbacks=[EMA(0.99), ModelCheckpoint(path, save_best_only=False)])
    history = trainer.fit(DATA, validation=DATA, epochs=2)
    other = make(on_each_device)
    other.model.load_state_dict(weft.load(path))
    assert other.evaluate(DATA)["loss"] == history["val_loss"][-1]


def test_gradient_norms_change_nothing(on_each_device):
    def step(trainer, x, y):
        loss = trainer.loss(trainer.model(x), y)
        loss.backward()
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return loss.detach()

    trainer = make(on_each_device, step=step)
    before = weights(trainer)
    with pytest.raises(weft.WeftError, match="gradient_norms: given a step that makes its updates itself"):
        trainer.gradient_norms(*DATA[0])
    assert weights(trainer) == before
    with pytest.raises(weft.WeftError, match=r"Trainer\.evaluate: given a step that calls backward\(\)"):
        trainer.evaluate(DATA)


def test_other_batches_in_the_middle_of_an_epoch_are_refused(on_each_device, tmp_path):
    def loader(size):
        return weft.data.DataLoader(weft.data.TensorDataset(weft.tensor(X), weft.tensor(Y)), batch_size=size)

    make(on_each_device, run=tmp_path).fit(loader(2), epochs=1, max_steps=4)
    with pytest.raises(weft.WeftError, match=r"data of 3 batches.*middle of epoch 1; expected 6"):
        make(on_each_device, run=tmp_path).fit(loader(4), epochs=1)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_table_that_was_cut_off_goes_on_in_whole_rows(on_each_device, tmp_path, cut):
    make(on_each_device, run=tmp_path).fit(DATA, epochs=2)
    path = tmp_path / "metrics.csv"
    header = path.read_text().splitlines()[0]
    path.write_bytes(path.read_bytes()[:-cut])
    make(on_each_device, run=tmp_path).fit(DATA, epochs=4)
    lines = path.read_text().splitlines()
    assert lines[0] == header
    assert all(line.count(",") == header.count(",") for line in lines)
    assert [line.split(",")[0] for line in lines[1:]] in (["0", "2", "3"], ["0", "1", "2", "3"])
