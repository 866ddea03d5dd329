"""Where the order of the data comes from, and whether a run that was stopped goes on with the same one."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import weft
import weft.nn as nn
from weft.data import DataLoader, IterableDataset, TensorDataset
from weft.data.sampler import BatchSampler, RandomSampler, Sampler
from weft.data.seeds import current_generator
from weft.train import Callback, Trainer

pytestmark = pytest.mark.backend
ROOT = Path(__file__).parents[2]
ROWS, SIZE = 20, 4  # 5 batches in an epoch

rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 3)).astype(np.float32)
Y = X.sum(1, keepdims=True)


def add_noise(x, y):
    """From the stream of the loader, and from Weft's."""
    own = weft.randn(*x.shape, generator=current_generator(), device=x.device)
    return x + 0.1 * weft.randn_like(x) + 0.1 * own, y


class Shuffled(Sampler):
    """A sampler of a user's own that draws while it is iterated over, from its generator or from Weft's."""

    def __init__(self, generator=None):
        self.generator = generator

    def __iter__(self):
        for k in range(ROWS):
            if k % 7 == 0:
                order = weft.randperm(ROWS, generator=self.generator, device="cpu").tolist()
            yield order[k]

    def __len__(self):
        return ROWS


class DrawnStream(IterableDataset):
    """Items that are drawn when they are read; its length is not known."""

    def __iter__(self):
        for _ in range(ROWS):
            k = int(weft.randint(0, ROWS, (1,), device="cpu").item())
            yield X[k], Y[k]


class DrawnBatches:
    """An iterable that is no loader."""

    def __iter__(self):
        for _ in range(5):
            rows = weft.randint(0, ROWS, (SIZE,), device="cpu").numpy()
            yield X[rows], Y[rows]


def options_of(order, data):
    if order == "seed":
        return {"shuffle": True, "seed": 3}
    if order == "generator":
        return {"shuffle": True, "generator": weft.Generator(11)}
    if order == "global":
        return {"shuffle": True}
    if order == "sampler":
        return {"sampler": RandomSampler(data, generator=weft.Generator(11))}
    if order == "batch sampler":
        sampler = BatchSampler(RandomSampler(data, generator=weft.Generator(11)), SIZE, False)
        return {"batch_sampler": sampler, "batch_size": 1}
    return {"sampler": Shuffled(weft.Generator(11) if order == "own with generator" else None)}


def make_loader(kind, order, device):
    data = TensorDataset(weft.tensor(X), weft.tensor(Y))
    if kind == "iterable":
        return DrawnBatches()
    if kind == "stream":
        return DataLoader(DrawnStream(), batch_size=SIZE, transform=add_noise)
    options = {"batch_size": SIZE, "transform": add_noise} | options_of(order, data)
    if kind == "workers":
        return DataLoader(data, resident=False, num_workers=2, device=device, **options)
    return DataLoader(data, resident=kind == "resident", **options)


def make_trainer(device, run=None, callbacks=()):
    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    optimizer = weft.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    return Trainer(model, nn.MSELoss(), optimizer, device=device, run=run, callbacks=callbacks)


def bits(trainer):
    found = {name: value.numpy().tobytes() for name, value in trainer.model.state_dict().items()}
    left_out = ("seconds", "wait_seconds")
    found["history"] = [{k: v for k, v in row.items() if k not in left_out} for row in trainer.history.rows]
    found["random"] = weft.default_generator.get_state()
    return found


CASES = [
    *[(kind, order) for kind in ("resident", "streamed") for order in ("seed", "generator", "global")],
    ("workers", "generator"),
    *[("streamed", order) for order in ("sampler", "batch sampler", "own", "own with generator")],
    ("stream", "-"),
    ("iterable", "-"),
]


@pytest.mark.parametrize(("kind", "order"), CASES)
def test_a_resumed_run_has_the_same_order(on_each_device, tmp_path, kind, order):
    """Stopped at the end of epochs (5, 10), in the middle (7, 13), and both."""
    whole = make_trainer(on_each_device)
    whole.fit(make_loader(kind, order, on_each_device), epochs=4)
    expected = bits(whole)
    for number, stops in enumerate([(5,), (7,), (10, 13)]):
        for stop in (*stops, None):
            part = make_trainer(on_each_device, tmp_path / str(number))
            part.fit(make_loader(kind, order, on_each_device), epochs=4, max_steps=stop)
        assert bits(part) == expected, stops


@pytest.mark.filterwarnings("ignore:Trainer.predict. the data is shuffled")
@pytest.mark.parametrize("kind", ["resident", "streamed"])
@pytest.mark.parametrize("order", ["generator", "global"])
def test_what_is_evaluated_in_between_does_not_change_the_order(on_each_device, kind, order):
    """With the training data itself, in the middle of an epoch and between two."""

    class Evaluating(Callback):
        def on_batch_end(self, trainer, batch, metrics):
            trainer.evaluate(loader)

        def on_epoch_end(self, trainer, epoch, metrics):
            trainer.predict(loader)

    found = []
    for callbacks in ((), (Evaluating(),)):
        loader = make_loader(kind, order, on_each_device)
        trainer = make_trainer(on_each_device, callbacks=callbacks)
        if callbacks:
            trainer.find_lr(loader, steps=8)
            trainer.overfit_one_batch(loader, steps=2)
            trainer.evaluate(loader)
        trainer.fit(loader, validation=loader if callbacks else None, epochs=3)
        history = [row["loss"] for row in trainer.history.rows]
        found.append((history, [value.numpy().tobytes() for value in trainer.model.state_dict().values()]))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["resident", "streamed"])
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_batch_begin", "on_batch_end", "on_epoch_end"])
def test_a_state_can_be_taken_in_every_hook(on_each_device, kind, hook):
    """A new trainer and a new loader go on from it with the same bits."""
    states = []

    def keep(self, trainer, number, metrics):
        if trainer.step_count in (5, 7):
            states.append(trainer.state_dict())

    saving = type("Saving", (Callback,), {hook: keep})()
    whole = make_trainer(on_each_device, callbacks=[saving])
    whole.fit(make_loader(kind, "generator", on_each_device), epochs=3)
    expected = bits(whole)
    assert states
    for state in list(states):
        part = make_trainer(on_each_device, callbacks=[Callback()])
        part.load_state_dict(state)
        part.fit(make_loader(kind, "generator", on_each_device), epochs=3)
        assert bits(part) == expected


SCRIPT = """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    from test_train_resume_orders import bits, make_loader, make_trainer
    from weft.train import Callback

    class Kill(Callback):
        def on_batch_end(self, trainer, batch, metrics):
            if trainer.step_count == {kill}:
                os.kill(os.getpid(), signal.SIGKILL)

    trainer = make_trainer("cpu", {run!r}, callbacks=[Kill()])
    trainer.fit(make_loader({kind!r}, "generator", "cpu"), epochs=3)
    print(bits(trainer))
"""


@pytest.mark.parametrize("kind", ["resident", "streamed"])
def test_a_killed_run_goes_on_with_the_same_order(tmp_path, kind):
    def run(folder, kill):
        tests = str(Path(__file__).parent)
        script = textwrap.dedent(SCRIPT.format(tests=tests, kill=kill, run=str(tmp_path / folder), kind=kind))
        environment = dict(os.environ, PYTHONPATH=str(ROOT))
        return subprocess.run(
            [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )

    expected = run("whole", 0)
    assert expected.returncode == 0, expected.stderr
    assert run("parts", 8).returncode == -signal.SIGKILL
    last = run("parts", 0)
    assert last.returncode == 0, last.stderr
    final = [text.strip().splitlines()[-1] for text in (expected.stdout, last.stdout)]
    assert final[0] == final[1]


def test_orders_follow_the_generator_of_a_batch_sampler():
    """And not Weft's stream."""
    data = TensorDataset(weft.arange(12))
    found = []
    for seed in (1, 2):
        weft.manual_seed(seed)
        sampler = BatchSampler(RandomSampler(data, generator=weft.Generator(5)), 4, False)
        found.append([batch.tolist() for (batch,) in DataLoader(data, batch_sampler=sampler)])
    assert found[0] == found[1]


def test_iterations_of_one_loader_have_streams_of_their_own():
    """Two at a time: transforms of each draw what they draw alone."""
    noise = lambda x: x + weft.rand(2, generator=current_generator())  # noqa: E731
    loader = DataLoader(TensorDataset(weft.zeros(6)), batch_size=2, seed=1, transform=noise)
    loader.set_epoch(0)
    alone = [batch[0].tolist() for batch in loader]
    loader.set_epoch(0)
    first = iter(loader)
    found = [next(first)[0].tolist()]
    loader.set_epoch(7)
    next(iter(loader))
    found += [batch[0].tolist() for batch in first]
    assert found == alone


def test_a_generator_of_another_library_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"DataLoader.*torch.*Generator.*weft\.Generator"):
        DataLoader(TensorDataset(weft.arange(4)), shuffle=True, generator=torch.Generator())
