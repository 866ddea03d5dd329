"""The data set that ships with the package: shapes, ranges, the split, the licence file."""

from importlib import resources

import numpy as np
import pytest

from weft.data import digits

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("split", "count"), [("train", 1442), ("test", 355)])
def test_shapes_types_and_range(split, count):
    images, labels = digits.load(split)
    assert images.shape == (count, digits.PIXELS) and images.dtype == np.float32
    assert labels.shape == (count,) and labels.dtype == np.int64
    assert images.min() == 0.0 and images.max() == 1.0
    assert set(labels.tolist()) == set(range(digits.CLASSES))


def test_the_parts_are_the_whole_and_share_nothing():
    with np.load(str(resources.files("weft.data") / "digits.npz")) as archive:
        images, labels = archive["images"], archive["labels"]
    parts = [digits.load("train"), digits.load("test")]
    rows = np.concatenate([np.column_stack([part[0] * 16, part[1]]) for part in parts]).astype(np.uint8)
    whole = np.column_stack([images, labels])
    assert sorted(map(bytes, rows)) == sorted(map(bytes, whole))
    assert len({bytes(row) for row in whole}) == len(whole) == 1797  # no duplicates, so the parts are disjoint


def test_split_is_stratified():
    _, train = digits.load("train")
    _, test = digits.load("test")
    share = np.bincount(test) / (np.bincount(train) + np.bincount(test))
    np.testing.assert_allclose(share, 0.2, atol=0.01)


def test_load_is_the_same_every_time_and_returns_fresh_arrays():
    first, _ = digits.load("test")
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(digits.load("test")[0], kept)


def test_unknown_split_says_what_is_expected():
    with pytest.raises(ValueError, match=r"given split 'valid'; expected 'train' or 'test'"):
        digits.load("valid")


def test_small_and_with_its_licence():
    folder = resources.files("weft.data")
    assert len((folder / "digits.npz").read_bytes()) < 100_000
    text = (folder / "DIGITS.md").read_text()
    for needed in ("E. Alpaydin", "C. Kaynak", "CC BY 4.0", "archive.ics.uci.edu"):
        assert needed in text
