"""Indexing by tensors: writes that meet, errors at the user's line, and what works inside compile."""

import numpy as np
import pytest

import weft
from tests.unit.programs import check_an_index_that_moves_on

pytestmark = pytest.mark.backend


def test_the_last_write_stays():
    rng = np.random.default_rng(0)
    for count, size in [(5, 40), (300, 1000), (1000, 50)]:
        index, values = rng.integers(0, count, size), rng.normal(size=(size, 3)).astype(np.float32)
        expected = np.zeros((count, 3), np.float32)
        for at, row in zip(index, values, strict=True):
            expected[at] = row
        x = weft.zeros(count, 3)
        x[weft.tensor(index)] = weft.tensor(values)
        np.testing.assert_array_equal(x.numpy(), expected)


def test_writes_inside_compile_reach_the_cell():
    table = weft.zeros(6, 2)

    @weft.compile
    def step(index, rows, mask):
        table[index] = rows
        table[mask] = 9.0
        return table.sum()

    mask = weft.tensor([False, True, False, False, False, False])
    for iteration in range(3):
        index = weft.tensor([iteration, 4])
        total = step(index, weft.full((2, 2), float(iteration + 1)), mask)
        assert total.item() == table.sum().item()
    np.testing.assert_array_equal(table.numpy()[:, 0], [1, 9, 3, 0, 3, 0])


def test_rows_for_a_mask_inside_compile():
    @weft.compile
    def fill(x, mask, rows):
        x = x * 1
        x[mask] = rows
        return x

    x, mask = weft.zeros(4, 2), weft.tensor([True, False, True, False])
    rows = weft.tensor([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(fill(x, mask, rows).numpy(), [[1, 2], [0, 0], [3, 4], [0, 0]])
    for wrong in (weft.ones(3, 2), weft.ones(4, 2)):
        with pytest.raises(weft.IndexRangeError, match=r"test_indexing\.py"):
            fill(x, mask, wrong).numpy()


def test_a_mask_that_picks_is_refused_inside_compile():
    with pytest.raises(weft.GraphError, match=r"nonzero inside weft\.compile"):
        weft.compile(lambda x, m: x[m])(weft.ones(3), weft.tensor([True, False, True]))


def test_errors_at_the_users_line():
    x = weft.tensor(np.ones((3, 4)))
    for key in [(weft.tensor([3]),), (weft.tensor([0]), weft.tensor([-5])), (slice(None), weft.tensor([4]))]:
        with pytest.raises(weft.IndexRangeError, match=r"test_indexing\.py"):
            x[key].numpy()
        with pytest.raises(weft.IndexRangeError, match=r"test_indexing\.py"):
            y = x * 1
            y[key] = 2.0
            y.numpy()
    with pytest.raises(weft.ShapeError, match="index: given a mask of shape"):
        x[weft.tensor([True, False])]
    with pytest.raises(weft.ShapeError, match="index: given shapes"):
        x[weft.tensor([0, 1, 2]), weft.tensor([0, 1])]
    with pytest.raises(weft.ShapeError, match=r"x\[index\] = value: given"):
        x[weft.tensor([0, 1])] = weft.ones(3, 4)


@pytest.mark.parametrize("table", [(11,), (11, 3)])
def test_an_index_that_the_step_moves_on_in_place_is_checked_as_it_was_read(on_each_device, table):
    """The kernel that gathers and the one that writes the index may be one: the last row is inside."""
    following = check_an_index_that_moves_on(table)
    with pytest.raises(weft.IndexRangeError, match="axis of extent 11"):
        following().numpy()
