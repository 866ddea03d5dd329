"""Which items come when: folds, buckets by length, padding, samplers of a loader, seeds of epochs."""

import numpy as np
import pytest

import weft
import weft.data as data
from weft.data.seeds import ORDER, TRANSFORM, current_generator, draw_seed, drawing_from, epoch_seed

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("labels", [None, [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2]])
def test_folds_cover_everything_once(shuffle, labels):
    folds = data.k_fold(range(11), 3, shuffle=shuffle, labels=labels)
    assert sorted(one for _, part in folds for one in part) == list(range(11))
    for train, part in folds:
        assert sorted([*train, *part]) == list(range(11)) and 3 <= len(part) <= 4
        if labels is not None:
            assert sum(labels[one] == 0 for one in part) == 2 and sum(labels[one] == 1 for one in part) == 1
    again = data.k_fold(range(11), 3, shuffle=shuffle, labels=labels)
    assert [list(part) for _, part in again] == [list(part) for _, part in folds]
    if shuffle:
        other = data.k_fold(range(11), 3, seed=1, labels=labels)
        assert [list(part) for _, part in other] != [list(part) for _, part in folds]


def test_wrong_folds():
    with pytest.raises(weft.RangeError, match="folds=1"):
        data.k_fold(range(4), 1)
    with pytest.raises(weft.RangeError, match="folds=5"):
        data.k_fold(range(4), 5)
    with pytest.raises(weft.ShapeError, match="3 labels"):
        data.k_fold(range(4), 2, labels=[1, 2, 3])


def sequences(count=100, seed=0):
    rng = np.random.default_rng(seed)
    return [(np.arange(1, length + 1), k) for k, length in enumerate(rng.integers(1, 60, count).tolist())]


@pytest.mark.parametrize("drop_last", [False, True])
def test_buckets_bound_the_number_of_shapes(drop_last):
    items = sequences()
    sampler = data.LengthBucketSampler([len(x) for x, _ in items], 8, buckets=5, drop_last=drop_last)
    collate = data.PadCollate(sampler.boundaries, lengths=True)
    loader = data.DataLoader(items, batch_sampler=sampler, collate_fn=collate, seed=3)
    epochs = []
    for _ in range(3):
        batches = list(loader)
        assert len(batches) == len(loader)
        shapes = {tuple(x.shape) for x, _, _ in batches}
        assert len(shapes) <= (5 if drop_last else 10) and {shape[1] for shape in shapes} <= set(sampler.boundaries)
        epochs.append([one for _, numbers, _ in batches for one in numbers.tolist()])
        if not drop_last:
            assert sorted(epochs[-1]) == list(range(100))
        for x, numbers, lengths in batches:
            for row, number, length in zip(x.tolist(), numbers.tolist(), lengths.tolist(), strict=True):
                assert length == len(items[number][0])
                assert row == [*range(1, length + 1), *[0] * (len(row) - length)]
    assert epochs[0] != epochs[1]
    loader.set_epoch(0)
    assert [one for _, numbers, _ in loader for one in numbers.tolist()] == epochs[0]


def test_boundaries():
    assert data.find_boundaries([5], 8) == [5]
    assert data.find_boundaries([0, 0], 2) == [1]
    found = data.find_boundaries(list(range(1, 1001)), 4, multiple=16)
    assert found == [256, 512, 752, 1008]
    with pytest.raises(weft.RangeError, match="0 lengths"):
        data.find_boundaries([])
    with pytest.raises(weft.RangeError, match=r"length 9 \(item 1\)"):
        data.LengthBucketSampler([3, 9], 2, [4, 8])


def test_padding_of_other_items():
    pad = data.PadCollate(fields=("a", "b"), value=-1, lengths=True)
    found = pad([{"a": [1, 2], "b": weft.ones(1), "c": 5}, {"a": [3], "b": weft.ones(3), "c": 6}])
    assert found["a"].tolist() == [[1, 2, -1], [3, -1, -1]] and found["b"].tolist() == [[1, -1, -1], [1, 1, 1]]
    assert found["c"].tolist() == [5, 6] and found["lengths"].tolist() == [2, 1]
    both = data.PadCollate(fields=(0, 1))([(np.ones((2, 3)), [1, 2]), (np.ones((1, 3)), [1])])
    assert both[0].shape == (2, 2, 3) and both[1].tolist() == [[1, 2], [1, 0]]
    with pytest.raises(weft.ShapeError, match="length 9"):
        data.PadCollate([4, 8])([np.arange(9)])


def test_samplers_follow_the_epoch():
    weights = [0.1, 0.0, 0.9, 0.5]
    for sampler in (
        data.RandomSampler(range(40), replacement=True),
        data.SubsetRandomSampler(list(range(20, 50))),
        data.WeightedRandomSampler(weights, 30),
    ):
        loader = data.DataLoader(range(60), 7, sampler=sampler, seed=1)
        first, second = [[batch.tolist() for batch in loader] for _ in range(2)]
        loader.set_epoch(0)
        assert first != second and [batch.tolist() for batch in loader] == first
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        other = data.DataLoader(range(60), 7, sampler=sampler, seed=1)
        other.load_state_dict(state)
        assert [batch.tolist() for batch in other] == second[1:]


def test_own_samplers_get_the_epoch():
    class Rotating(data.Sampler):
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([(k + self.epoch) % 3 for k in range(3)])

        def __len__(self):
            return 3

    loader = data.DataLoader(range(3), 2, sampler=Rotating())
    assert [[batch.tolist() for batch in loader] for _ in range(2)] == [[[0, 1], [2]], [[1, 2], [0]]]


def test_seeds():
    seeds = {epoch_seed(seed, epoch, kind) for seed in range(9) for epoch in range(9) for kind in (ORDER, TRANSFORM)}
    assert len(seeds) == 162
    generator = weft.Generator(3)
    first, second = draw_seed(generator), draw_seed(generator)
    assert first != second and generator.counter == 2
    assert draw_seed(weft.Generator(3)) == first
    own = weft.Generator(1)
    with drawing_from(own):
        assert current_generator() is own
    assert current_generator() is weft.default_generator


def test_a_state_must_be_one():
    with pytest.raises(weft.RangeError, match=r"without \['draws', 'seed'\]"):
        data.DataLoader(range(3)).load_state_dict({"epoch": 0, "position": 0})


def test_items_of_different_shapes_say_what_to_do():
    with pytest.raises(weft.ShapeError, match=r"shapes \[\(2,\), \(3,\)\].*PadCollate"):
        next(iter(data.DataLoader([np.ones(2), np.ones(3)], 2)))


@pytest.mark.parametrize(
    "call",
    [
        lambda: data.DataLoader(range(3), 0),
        lambda: data.read_csv("no such file"),
        lambda: data.transforms.RandomCrop(0),
        lambda: data.transforms.RandomCrop(4)(weft.ones(1, 1, 2, 2)),
        lambda: data.DataLoader([1], resident=True).resident("cpu"),
        lambda: data.Table({})["x"],
    ],
)
def test_errors_end_at_the_line_of_the_caller(call):
    with pytest.raises(weft.WeftError) as caught:
        call()
    assert caught.traceback[-1].path.name == "test_data_order.py"


def test_the_package_is_loaded_lazily():
    import subprocess
    import sys

    code = "import sys, weft; print([n for n in sys.modules if n.startswith('weft.data.')]); weft.data.DataLoader"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "['weft.data.contents']\n"  # which file has which names, nothing else


@pytest.mark.parametrize("device", [None, "cpu"], ids=["streamed", "resident"])
@pytest.mark.parametrize("stop", [0, 2, 5])
@pytest.mark.parametrize("where", ["loader", "sampler"])
def test_a_generator_of_ones_own_goes_on_from_the_state(device, stop, where):
    rows = data.TensorDataset(weft.arange(10))

    def make():
        generator = weft.Generator(3)
        if where == "sampler":
            sampler = data.RandomSampler(rows, generator=generator)
            return data.DataLoader(rows, 2, sampler=sampler, device=device)
        return data.DataLoader(rows, 2, shuffle=True, generator=generator, device=device)

    def read(loader):
        return [one.tolist() for (one,) in loader]

    expected = [read(loader) for loader in [make()] for _ in range(4)]
    loader = make()
    read(loader)
    batches = iter(loader)
    begun = [next(batches)[0].tolist() for _ in range(stop)]
    state = loader.state_dict()
    other = make()
    other.load_state_dict(state)
    assert other.state_dict() == state
    if stop < 5:
        assert begun + read(other) == expected[1]
    assert [read(other) for _ in range(2)] == expected[2:]


def test_resident_data_of_a_loader_goes_on_with_its_generator():
    def make():
        rows = data.TensorDataset(weft.arange(10))
        loader = data.DataLoader(rows, 5, shuffle=True, generator=weft.Generator(3), device="cpu")
        return loader.resident()

    def read(resident, epoch):
        resident.start_epoch(epoch)
        return [resident.next()[0].tolist() for _ in range(2)]

    first = make()
    expected = [read(first, epoch) for epoch in range(3)]
    resident = make()
    read(resident, 0)
    resident.start_epoch(1)
    begun = resident.next()[0].tolist()
    state, other = resident.state_dict(), make()
    other.load_state_dict(state)
    assert [begun, other.next()[0].tolist()] == expected[1]
    assert read(other, 2) == expected[2]
