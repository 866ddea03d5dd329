"""Data on a device: order, position and augmentation in the plan, exact states, the last batch, no host transfers."""

import numpy as np
import pytest

import weft
import weft.data as data
from weft.data.seeds import ORDER, current_generator, epoch_seed


def rows(count=11, width=3):
    return weft.tensor(np.arange(count * width, dtype=np.float32).reshape(count, width)), weft.arange(count)


def transfers(before, after):
    return [after[name] - before[name] for name in ("uploads", "downloads", "traces", "plans_built")]


def add_noise(x, y):
    return x + weft.rand(*x.shape, generator=current_generator()), y


def values(loader):
    return [[part.tolist() for part in batch] for batch in loader]


def test_a_resident_step_transfers_nothing(on_each_device):
    x, y = rows()
    loader = data.DataLoader(data.TensorDataset(x, y), 4, shuffle=True, seed=3, last="drop", transform=add_noise)
    resident = loader.resident(on_each_device)
    total = weft.zeros(3)

    @weft.compile
    def step():
        batch, labels = resident.next()
        total.add_(batch.sum(0))
        return labels

    for epoch in range(2):
        resident.start_epoch(epoch)
        step()
        step()
    before = weft.counters()
    found = []
    for epoch in range(2, 5):
        resident.start_epoch(epoch)
        found.append([step() for _ in range(resident.batches)])
    assert transfers(before, weft.counters()) == [0, 0, 0, 0]
    for epoch, batches in zip(range(2, 5), found, strict=True):
        order = weft.randperm(11, generator=weft.Generator(epoch_seed(3, epoch, ORDER)), device="cpu").tolist()
        assert [one for batch in batches for one in batch.tolist()] == order[:8]


@pytest.mark.parametrize("last", ["keep", "drop", "pad"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_streaming_and_resident_give_the_same(on_each_device, last, shuffle):
    x, y = rows()
    options = {"shuffle": shuffle, "seed": 1, "last": last, "device": on_each_device, "transform": add_noise}
    resident = data.DataLoader(data.TensorDataset(x, y), 4, **options)
    streams = [
        data.DataLoader(data.TensorDataset(x, y), 4, resident=False, num_workers=workers, **options)
        for workers in (0, 2)
    ]
    assert resident.resident() is not None and streams[0].resident() is None
    for _ in range(2):
        expected = values(resident)
        assert [values(stream) for stream in streams] == [expected, expected]
        sizes = [len(batch[1]) for batch in expected]
        assert sizes == {"keep": [4, 4, 3], "drop": [4, 4], "pad": [4, 4, 4]}[last] and len(resident) == len(sizes)
        if last == "pad":
            assert expected[-1][1][3:] == expected[0][1][:1]
    batch = next(iter(streams[1]))
    assert batch[0].device == weft.get_device(on_each_device)


@pytest.mark.parametrize("resident", [None, False])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [7, None])
def test_going_on_within_an_epoch(on_each_device, resident, workers, seed):
    def make():
        weft.manual_seed(4)
        return data.DataLoader(
            data.TensorDataset(*rows()), 2, shuffle=True, seed=seed, device=on_each_device, transform=add_noise,
            resident=resident, num_workers=workers,
        )  # fmt: skip

    loader = make()
    epochs = [values(loader) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    for stop in (0, 1, 3, 6):
        loader = make()
        values(loader)
        batches = iter(loader)
        begun = [next(batches) for _ in range(stop)]
        state, random_state = loader.state_dict(), weft.get_rng_state()
        assert state["epoch"] == (2 if stop == 6 else 1) and state["position"] == stop % 6
        other = make()
        other.load_state_dict(state)
        assert other.state_dict() == state
        weft.set_rng_state(random_state)
        rest = values(other)
        if stop == 6:
            assert rest == epochs[2]
        else:
            assert [[part.tolist() for part in batch] for batch in begun] + rest == epochs[1]
            assert values(other) == epochs[2]


def test_the_short_last_batch_is_one_more_plan(on_each_device):
    loader = data.DataLoader(data.TensorDataset(*rows()), 4, shuffle=True, seed=0, device=on_each_device)
    before = weft.counters()["traces"]
    for _ in range(4):
        values(loader)
    assert weft.counters()["traces"] - before <= 3  # the order, a batch, the last batch
    assert loader.wait_seconds == 0.0


def test_epochs_can_be_chosen(on_each_device):
    loader = data.DataLoader(data.TensorDataset(*rows()), 4, shuffle=True, seed=0, device=on_each_device)
    epochs = [values(loader) for _ in range(3)]
    loader.set_epoch(1)
    assert values(loader) == epochs[1] and values(loader) == epochs[2]


def test_two_iterations_at_once():
    rows_ = data.TensorDataset(*rows())
    stream = data.DataLoader(rows_, 4, shuffle=True, seed=0)
    epochs = [values(stream), values(stream)]
    stream.set_epoch(0)
    both = [*zip(stream, stream, strict=True)]
    assert [[[part.tolist() for part in batch] for batch in one] for one in zip(*both, strict=True)] == epochs
    resident = data.DataLoader(rows_, 4, shuffle=True, seed=0, device="cpu")
    with pytest.raises(weft.RangeError, match="one at a time"):
        list(zip(resident, resident, strict=True))


@pytest.mark.parametrize("size", [1, 4, 11, 20])
@pytest.mark.parametrize("last", ["keep", "drop", "pad"])
def test_any_batch_size(size, last):
    def labels(**options):
        loader = data.DataLoader(data.TensorDataset(*rows()), size, last=last, shuffle=True, seed=0, **options)
        found = [batch[1].tolist() for batch in loader]
        assert len(found) == len(loader)
        return found

    assert labels(device="cpu") == labels() == labels(device="cpu", resident=False)
    assert list(data.DataLoader(data.TensorDataset(weft.zeros(0, 2)), size, last=last, shuffle=True)) == []


def test_other_devices():
    for device in ("reference", "null"):
        loader = data.DataLoader(data.ArrayDataset(np.arange(6)), 2, device=device, transform=lambda x: x + 1)
        batches = list(loader)
        assert len(batches) == 3 and all(batch[0].device.name == device for batch in batches)


def test_what_cannot_be_resident_streams():
    x, y = rows()
    sets = data.TensorDataset(x, y)
    assert data.DataLoader(sets, 4, sampler=[0, 1]).resident("cpu") is None
    assert data.DataLoader(sets, 4, collate_fn=list).resident("cpu") is None
    assert data.DataLoader([1, 2], 4).resident("cpu") is None
    assert data.DataLoader(data.TensorDataset(x[:0]), 4).resident("cpu") is None
    with pytest.raises(weft.RangeError, match="resident=True"):
        data.DataLoader([1, 2], 4, resident=True).resident("cpu")
    part = data.DataLoader(data.Subset(data.Subset(sets, [5, 6, 7, 8]), [3, 1]), 2, device="cpu", resident=True)
    assert values(part)[0][1] == [8, 6]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"last": "cut"}, "last='cut'"),
        ({"last": "pad", "drop_last": True}, "drop_last=True"),
        ({"last": "pad", "batch_size": None}, "batch_size"),
        ({"worker": "coroutine"}, "worker='coroutine'"),
        ({"prefetch_factor": 0}, "prefetch_factor=0"),
    ],
)
def test_wrong_options(options, match):
    with pytest.raises(weft.RangeError, match=match):
        data.DataLoader(range(3), **options)


def test_a_transform_returns_what_fits():
    loader = data.DataLoader(data.TensorDataset(*rows()), 4, device="cpu", transform=lambda x, y: (x, y, y))
    with pytest.raises(weft.ShapeError, match="3 results"):
        next(iter(loader))
    halved = data.DataLoader(data.TensorDataset(*rows()), 4, device="cpu", transform=lambda x, y: x / 2)
    assert next(iter(halved))[0].tolist()[0] == [0.0, 0.5, 1.0] and len(next(iter(halved))) == 2


def test_training_has_the_same_bits_resident_streamed_and_resumed(on_each_device):
    images, labels = data.digits.load("test")
    sets = data.ArrayDataset(images, labels)

    def train(epochs, start=None, resident=True):
        weft.manual_seed(1)
        model = weft.nn.Sequential(weft.nn.Linear(64, 16), weft.nn.ReLU(), weft.nn.Linear(16, 10))
        optimizer = weft.optim.Adam(model.parameters(), lr=0.01)
        loader = data.DataLoader(
            sets, 60, shuffle=True, seed=5, last="drop", device=on_each_device, resident=resident, num_workers=2,
            transform=data.transforms.GaussianNoise(0.1),
        )  # fmt: skip

        def update(x, y):
            optimizer.zero_grad()
            weft.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

        if start is not None:
            model.load_state_dict(start[0])
            optimizer.load_state_dict(start[1])
            loader.load_state_dict(start[2])
        if not resident:
            step = weft.compile(update)
            for _ in range(epochs):
                for x, y in loader:
                    step(x, y)
        else:
            rows_there = loader.resident()
            step = weft.compile(lambda: update(*rows_there.next()))
            first = loader.state_dict()["epoch"]
            for epoch in range(first, epochs):
                rows_there.start_epoch(epoch)
                for number in range(rows_there.first, rows_there.batches):
                    if epochs == 1 and number == 2:  # stop within the epoch
                        return model, optimizer, loader
                    step()
        return model, optimizer, loader

    def weights(trained):
        return [one.detach().numpy() for one in trained[0].parameters()]

    expected = weights(train(2))
    model, optimizer, loader = train(1)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 2)
    resumed = train(2, (model.state_dict(), optimizer.state_dict(), state))
    for found in (weights(train(2, resident=False)), weights(resumed)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
