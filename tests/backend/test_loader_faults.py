"""Loaders: what datasets draw, what evaluations see of filled up batches, states of other batches, names of samples."""

import threading

import numpy as np
import pytest

import weft
import weft.data as data
import weft.nn as nn
from weft.train import Callback, Trainer

KINDS = [(0, "thread"), (1, "thread"), (3, "thread"), (2, "process")]


class Drawn(data.Dataset):
    """Items that are drawn when they are read: at once, and by a compiled function."""

    def __init__(self):
        self.function = None

    def __getitem__(self, index):
        if self.function is None:
            self.function = weft.compile(lambda x: x + weft.rand(1))
        return np.array([weft.rand(1).item(), weft.randint(0, 2**30, (1,)).item(), self.function(weft.zeros(1)).item()])

    def __len__(self):
        return 12


class DrawnStream(data.IterableDataset):
    def __iter__(self):
        for _ in range(6):
            yield weft.rand(1).item()


def read(dataset, workers, kind, init=None, **options):
    """The batches of two epochs, and what the default generator gives afterwards; it is drawn from in between, too."""
    weft.manual_seed(0)
    loader = data.DataLoader(
        dataset, 2, num_workers=workers, worker=kind, worker_init_fn=init, **({"seed": 3} | options)
    )
    batches = []
    for _ in range(2):
        for batch in loader:
            weft.rand(1)
            batches.append(batch.tolist())
    return batches, weft.rand(1).item()


@pytest.mark.parametrize("make", [Drawn, DrawnStream])
@pytest.mark.parametrize("seed", [3, None])
def test_what_a_dataset_draws_depends_neither_on_workers_nor_on_other_draws(make, seed):
    expected = read(make(), 0, "thread", seed=seed)
    drawn = np.array(expected[0])
    assert len(np.unique(drawn)) == drawn.size  # in other batches and epochs other numbers
    for workers, kind in KINDS[1:]:
        for _ in range(1 if kind == "process" else 3):
            assert read(make(), workers, kind, seed=seed) == expected


def test_a_worker_init_fn_may_seed_a_thread():
    found = read(Drawn(), 1, "thread", lambda number: weft.manual_seed(9))
    stream = weft.Generator(9)
    expected = [weft.rand(1, generator=stream).item() for _ in range(3)][
        ::2
    ]  # the second of three draws is a whole number
    assert [found[0][0][0][0], found[0][0][0][2]] == expected
    weft.manual_seed(0)
    [weft.rand(1) for _ in range(12)]
    assert found[1] == weft.rand(1).item()  # the stream of the process was not seeded


def test_a_generator_stands_in_for_the_default_one_in_one_thread_only():
    from weft.random.generator import use_generator

    weft.manual_seed(1)
    own, seen = weft.Generator(5), []
    with use_generator(own):
        assert weft.initial_seed() == 5 and weft.default_generator.get_state() == (5, 0)
        inside = weft.rand(2).tolist()
        assert weft.default_generator.state_dict() == {"seed": 5, "draws": own.counter}
        thread = threading.Thread(target=lambda: seen.append(weft.default_generator.get_state()))
        thread.start()
        thread.join()
        weft.manual_seed(6)
    assert seen == [(1, 0)] and own.get_state() == (6, 0)
    assert weft.default_generator.get_state() == (1, 0)
    assert inside == weft.rand(2, generator=weft.Generator(5)).tolist()


# ---- evaluations ----------------------------------------------------------------------------------------------------


class Items(data.IterableDataset):
    def __init__(self, x, y):
        self.rows = list(zip(x, y, strict=True))

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)


@pytest.mark.parametrize("kind", ["resident", "stream", "iterable"])
@pytest.mark.parametrize("count", [10, 3, 8])
def test_evaluations_take_each_sample_once(on_each_device, kind, count):
    """Also with last="pad", which fills up a batch of training."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(count, 2)).astype(np.float32), rng.normal(size=(count, 1)).astype(np.float32)
    dataset = Items(x, y) if kind == "iterable" else data.ArrayDataset(x, y)
    options = {} if kind == "iterable" else {"resident": kind == "resident"}
    loader = data.DataLoader(dataset, 4, last="pad", device=on_each_device, **options)
    model = nn.Linear(2, 1)
    trainer = Trainer(
        model, nn.MSELoss(), weft.optim.SGD(model.parameters(), lr=0.0), device=on_each_device, metrics=["mse"]
    )
    made = model(weft.tensor(x)).numpy()
    expected = ((made.astype(np.float64) - y) ** 2).mean()
    for _ in range(2):
        found = trainer.evaluate(loader)
        np.testing.assert_allclose([found["loss"], found["mse"]], expected, rtol=1e-5)
        np.testing.assert_allclose(trainer.predict(loader).numpy(), made, rtol=1e-5)
        history = trainer.fit(loader, validation=loader, epochs=trainer.epoch + 1)
        np.testing.assert_allclose(history["val_loss"][-1], expected, rtol=1e-5)
    assert [len(batch[0]) for batch in loader] == [4] * -(-count // 4)  # batches of training are filled up


class Doubling(data.DataLoader):
    """A loader whose batches are changed by the way in which it is iterated over."""

    def __iter__(self):
        return ([2 * x, y] for x, y in super().__iter__())


def test_evaluations_use_the_iteration_of_a_subclass(on_each_device):
    x = weft.ones(4, 2)
    loader = Doubling(data.TensorDataset(x, x), 4, resident=False, device=on_each_device)
    model = nn.Linear(2, 2, bias=False)
    with weft.no_grad():
        model.weight.copy_(weft.eye(2))
    trainer = Trainer(model, nn.MSELoss(), weft.optim.SGD(model.parameters(), lr=0.0), device=on_each_device)
    assert trainer.evaluate(loader)["loss"] == 1.0 and trainer.predict(loader).tolist() == [[2.0, 2.0]] * 4


def test_an_evaluation_in_between_leaves_a_random_transform_as_it_was(on_each_device):
    def add_noise(x, y):
        return x + weft.randn(*x.shape, generator=data.seeds.current_generator(), device=x.device), y

    class Evaluating(Callback):
        def on_batch_end(self, trainer, batch, metrics):
            trainer.evaluate(loader)

    found = []
    for callbacks in ((), (Evaluating(),)):
        weft.manual_seed(0)
        x = weft.randn(12, 2)
        dataset = data.TensorDataset(x, x.sum(1, keepdim=True))
        loader = data.DataLoader(dataset, 4, resident=False, seed=1, transform=add_noise, device=on_each_device)
        model = nn.Linear(2, 1)
        optimizer = weft.optim.SGD(model.parameters(), lr=0.1)
        Trainer(model, nn.MSELoss(), optimizer, device=on_each_device, callbacks=callbacks).fit(loader, epochs=2)
        found.append([one.tolist() for one in model.parameters()])
    assert found[0] == found[1]


# ---- states ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resident", [True, False])
def test_a_state_in_mid_epoch_wants_the_same_batches(on_each_device, resident):
    def make(rows, size, **options):
        dataset = data.TensorDataset(weft.arange(rows))
        return data.DataLoader(dataset, size, device=on_each_device, resident=resident, **options)

    loader = make(11, 4)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    for other, what in ((make(11, 5), "batch_size=5"), (make(11, 2), "batch_size=2"), (make(40, 4), "batches=10")):
        with pytest.raises(weft.RangeError, match=f"given {what} for a state in the middle of an epoch"):
            other.load_state_dict(state)
    again = make(11, 4)
    again.load_state_dict(state)
    assert [one.tolist() for (one,) in again] == [[4, 5, 6, 7], [8, 9, 10]]
    list(batches)
    at_end = loader.state_dict()
    other = make(11, 5)
    other.load_state_dict(at_end)  # between two epochs they may change
    assert len(list(other)) == 3


def test_resuming_with_another_batch_size_is_refused(on_each_device, tmp_path):
    def make(size, resident):
        weft.manual_seed(0)
        model = nn.Linear(2, 1)
        dataset = data.TensorDataset(weft.ones(11, 2), weft.ones(11, 1))
        trainer = Trainer(model, nn.MSELoss(), weft.optim.SGD(model.parameters(), lr=0.1), device=on_each_device)
        return trainer, data.DataLoader(dataset, size, resident=resident, device=on_each_device)

    for resident in (True, False):
        trainer, loader = make(4, resident)
        trainer.fit(loader, epochs=2, max_steps=1)
        state = trainer.state_dict()
        other, loader = make(5, resident)  # as many batches, of other samples
        other.load_state_dict(state)
        with pytest.raises(weft.RangeError, match=r"batch_size=5 for a state .* batch_size=4"):
            other.fit(loader, epochs=2)


def test_other_tensors_of_a_dataset_are_seen(on_each_device):
    dataset = data.TensorDataset(weft.arange(4))
    for used in (dataset, data.Subset(dataset, [0, 1, 2, 3])):
        dataset.tensors = (weft.arange(4),)
        loader = data.DataLoader(used, 2, device=on_each_device)
        assert loader.resident() is loader.resident()
        assert [one.tolist() for (one,) in loader] == [[0, 1], [2, 3]]
        dataset.tensors = (weft.arange(4) * 10,)
        assert [one.tolist() for (one,) in loader] == [[0, 10], [20, 30]]


# ---- errors ---------------------------------------------------------------------------------------------------------


class Together(data.Dataset):
    """Reads all items of a batch at once."""

    def __getitems__(self, positions):
        if 7 in positions:
            raise KeyError("no such file")
        return positions

    def __getitem__(self, index):
        raise AssertionError

    def __len__(self):
        return 12


class Ends(data.Dataset):
    def __getitem__(self, index):
        if index == 5:
            raise StopIteration
        return index

    def __len__(self):
        return 12


class FailingStream(data.IterableDataset):
    def __init__(self, fails_at):
        self.fails_at = fails_at

    def __iter__(self):
        for k in range(10):
            if k == self.fails_at:
                raise ValueError("bad record")
            yield k


@pytest.mark.parametrize(("workers", "kind"), KINDS)
def test_errors_name_the_samples_that_were_read(workers, kind):
    options = {"num_workers": workers, "worker": kind}
    with pytest.raises(KeyError) as caught:
        list(data.DataLoader(Together(), 5, **options))
    assert any("reading samples [5, 6, 7, 8, 9] at once" in note for note in caught.value.__notes__)
    with pytest.raises(data.DataError, match="StopIteration, raised while Ends was read") as caught:
        list(data.DataLoader(Ends(), 2, **options))
    assert any("sample 5" in note for note in caught.value.__notes__)
    for size in (2, None):
        for fails_at in (0, 5, 6):  # at the first item of a batch and at the second
            with pytest.raises(ValueError, match="bad record") as caught:
                list(data.DataLoader(FailingStream(fails_at), size, **options))
            assert any(f"sample {fails_at}" in note for note in caught.value.__notes__), caught.value.__notes__


class OneLonger(data.IterableDataset):
    """Items of which number 5 fits no other, to read by position or as a stream."""

    def __iter__(self):
        return (np.zeros(3 if k == 5 else 2, np.float32) for k in range(40))


@pytest.mark.parametrize(("workers", "kind"), KINDS)
def test_errors_of_a_batch_name_its_samples(workers, kind):
    """The last sample that was read, or of a stream the next one, is not at fault."""
    options = {"num_workers": workers, "worker": kind}
    cases = [
        (list(OneLonger()), 4, r"samples [4, 5, 6, 7] at once"),
        (list(OneLonger()), 32, r"samples [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...] at once"),
        (OneLonger(), 4, "samples 4 to 7 at once"),
        (OneLonger(), 60, "samples 0 to 39 at once"),
    ]
    for dataset, size, named in cases:
        with pytest.raises(weft.errors.ShapeError, match="expected equal shapes") as caught:
            list(data.DataLoader(dataset, size, **options))
        assert any(f"DataLoader: raised while reading {named}" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("resident", [True, False])
def test_data_of_which_all_is_dropped(on_each_device, resident):
    dataset = data.TensorDataset(weft.ones(3, 2), weft.ones(3, 1))
    loader = data.DataLoader(dataset, 4, drop_last=True, resident=resident, device=on_each_device)
    model = nn.Linear(2, 1)
    trainer = Trainer(model, nn.MSELoss(), weft.optim.SGD(model.parameters(), lr=0.1), device=on_each_device)
    with pytest.raises(weft.RangeError, match=r"3 samples, dropped as less than a batch of 4.*drop_last=False"):
        trainer.fit(loader, epochs=1)
