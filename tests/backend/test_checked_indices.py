"""Indices that a compiled function reads from a tensor which it also changes: checks see the value from before."""

import numpy as np
import pytest

import weft

pytestmark = pytest.mark.usefixtures("on_each_device")

TABLE = np.arange(48, dtype=np.float32).reshape(16, 3)


def reduce_rows(table, rows):
    return table.index_select(0, rows).sum(1).square().mean()


def reduce_all(table, rows):
    return table.index_select(0, rows).sum()


def softmax_loss(table, rows):
    return weft.nn.functional.cross_entropy(table.index_select(0, rows), rows % 3)


@pytest.mark.parametrize("size", [1, 2, 8, 16])
@pytest.mark.parametrize("reduce", [reduce_rows, reduce_all, softmax_loss])
@pytest.mark.parametrize("through", [False, True], ids=["direct", "through an order"])
def test_a_position_that_moves_on(reduce, size, through):
    table, position = weft.tensor(TABLE), weft.zeros(1, dtype=weft.int64)
    order, total, count = weft.tensor(np.arange(16)[::-1].copy()), weft.zeros(()), weft.zeros((), dtype=weft.int64)

    @weft.compile
    def step():
        rows = position + weft.arange(size)
        rows = order.index_select(0, rows) if through else rows
        loss = reduce(table, rows)
        position.add_(size)
        total.add_(loss)
        count.add_(1)

    for _ in range(2):
        position.zero_()
        total.zero_()
        for _ in range(16 // size):
            step()
        weft.synchronize()  # an index out of range would be known now
        rows = np.arange(16)[::-1] if through else np.arange(16)
        expected = sum(
            reduce(table, weft.tensor(rows[at : at + size].copy())).item() for at in range(0, 16, size)
        )  # fmt: skip
        np.testing.assert_allclose(total.item(), expected, rtol=1e-5)
        assert position.tolist() == [16]
    with pytest.raises(weft.IndexRangeError, match=r"index_select at .*: given an index outside an axis of extent 16"):
        step()  # the position has moved on when the error is known, so the message has no value
        weft.synchronize()
