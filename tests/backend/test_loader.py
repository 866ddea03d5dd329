"""weft.utils.data beside torch.utils.data."""

import threading
from collections import namedtuple

import numpy as np
import pytest
import torch
import torch.utils.data as theirs

import weft
import weft.utils.data as ours

Pair = namedtuple("Pair", "x y")


def items(library):
    return [
        {"x": library.ones(2) * k, "n": k, "f": k / 2, "flag": k % 2 == 0, "name": str(k), "p": Pair(k, [k, k + 1])}
        for k in range(5)
    ]


def plain(value):
    """Tensors as lists, in nested containers."""
    if isinstance(value, (weft.Tensor, torch.Tensor)):
        return value.tolist(), str(value.dtype).split(".")[1]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [plain(one) for one in value]
    return value


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"batch_size": 2, "drop_last": True}, {"batch_size": None}])
@pytest.mark.parametrize("workers", [0, 3])
def test_batches_are_torchs(options, workers):
    found = [plain(batch) for batch in ours.DataLoader(items(weft), **options, num_workers=workers)]
    expected = [plain(batch) for batch in theirs.DataLoader(items(torch), **options)]
    assert found == expected
    assert len(ours.DataLoader(items(weft), **options)) == len(theirs.DataLoader(items(torch), **options))


def test_rows_of_tensors():
    array = np.arange(14.0).reshape(7, 2)
    for shuffle in (False, True):
        loader = ours.DataLoader(ours.TensorDataset(weft.tensor(array), weft.arange(7)), 3, shuffle=shuffle)
        rows, numbers = (weft.cat(list(parts)) for parts in zip(*loader, strict=True))
        order = numbers.tolist()
        assert sorted(order) == list(range(7)) and (order == list(range(7))) is not shuffle
        np.testing.assert_array_equal(rows.numpy(), array[order])


def test_shuffling_follows_the_seed():
    def order(seed):
        loader = ours.DataLoader(range(20), shuffle=True, generator=weft.Generator(seed))
        return [batch.item() for batch in loader]

    assert order(1) == order(1) != order(2)
    weft.manual_seed(5)
    first = list(ours.RandomSampler(range(20)))
    weft.manual_seed(5)
    assert list(ours.RandomSampler(range(20))) == first != list(ours.RandomSampler(range(20)))


def test_iterable_datasets():
    class Stream(ours.IterableDataset):
        def __iter__(self):
            return iter(range(5))

    assert [batch.tolist() for batch in ours.DataLoader(Stream(), batch_size=2)] == [[0, 1], [2, 3], [4]]
    assert [batch.tolist() for batch in ours.DataLoader(Stream(), batch_size=2, drop_last=True)] == [[0, 1], [2, 3]]
    assert list(ours.DataLoader(Stream(), batch_size=None)) == [0, 1, 2, 3, 4]
    assert list(ours.ChainDataset([Stream(), Stream()])) == [*range(5)] * 2


def test_samplers():
    assert len(ours.RandomSampler(range(4), num_samples=10)) == 10
    assert len(list(ours.RandomSampler(range(4), num_samples=10))) == 10
    drawn = list(ours.RandomSampler(range(3), replacement=True, num_samples=300))
    assert set(drawn) == {0, 1, 2}
    weighted = list(ours.WeightedRandomSampler([0.0, 1.0, 3.0], 400))
    assert 0 not in weighted and weighted.count(2) > 1.5 * weighted.count(1)
    assert sorted(ours.SubsetRandomSampler([3, 5, 7])) == [3, 5, 7]
    assert list(ours.BatchSampler(ours.SequentialSampler(range(5)), 2, True)) == [[0, 1], [2, 3]]
    sampler = ours.BatchSampler(ours.SequentialSampler(range(4)), 3, False)
    assert [b.tolist() for b in ours.DataLoader(range(4), batch_sampler=sampler)] == [[0, 1, 2], [3]]


def test_parts_of_datasets():
    joined = ours.TensorDataset(weft.arange(3)) + ours.TensorDataset(weft.arange(2))
    assert [row[0].item() for row in (joined[k] for k in range(5))] == [0, 1, 2, 0, 1]
    assert joined[-1][0].item() == 1
    with pytest.raises(weft.IndexRangeError):
        joined[5]
    first, second = ours.random_split(range(11), [0.5, 0.5])
    assert (len(first), len(second)) == tuple(map(len, theirs.random_split(range(11), [0.5, 0.5]))) == (6, 5)
    assert sorted([*first, *second]) == list(range(11))
    with pytest.raises(weft.RangeError, match="add up to 11"):
        ours.random_split(range(11), [5, 5])


def test_workers_are_threads_and_give_batches_in_order():
    threads = set()

    class Slow(ours.Dataset):
        def __getitem__(self, index):
            threads.add(threading.get_ident())
            return index

        def __len__(self):
            return 30

    found = [batch.tolist() for batch in ours.DataLoader(Slow(), 3, num_workers=3)]
    assert found == [[k, k + 1, k + 2] for k in range(0, 30, 3)]
    assert threading.get_ident() not in threads


def test_an_error_in_a_dataset_reaches_the_caller():
    class Broken(ours.Dataset):
        def __getitem__(self, index):
            raise KeyError(index)

        def __len__(self):
            return 3

    for workers in (0, 2):
        with pytest.raises(KeyError):
            list(ours.DataLoader(Broken(), num_workers=workers))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"sampler": range(3), "shuffle": True}, "shuffle=True"),
        ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler"),
    ],
)
def test_wrong_options(options, match):
    with pytest.raises(weft.RangeError, match=match):
        ours.DataLoader(range(3), **options)


def test_items_that_do_not_fit_together():
    with pytest.raises(weft.RangeError, match="lengths"):
        ours.default_collate([[1], [1, 2]])
    with pytest.raises(weft.DTypeError, match="object"):
        ours.default_collate([object()])
    with pytest.raises(weft.ShapeError, match="lengths"):
        ours.TensorDataset(weft.ones(2), weft.ones(3))
