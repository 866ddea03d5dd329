"""Records of indexing by tensors, reading and writing."""

import numpy as np

import weft
from tests.records.oracle import torch
from tests.records.record import FLOATS, NUMBERS, Record, T, sample

ROWS = np.array([2, -1, 0])
COLUMNS = np.array([0, 3, -1])
TABLE = np.array([[0, 1, -1], [3, -4, 2]])
ONE = np.array(1)
NONE = np.zeros((0,), np.int64)
PICKS = np.array([True, False, True, True])
PLANE = np.arange(20).reshape(4, 5) % 3 == 0

KEYS = {
    "rows": (ROWS,),
    "pairs": (ROWS, COLUMNS),
    "apart": (ROWS, slice(None), COLUMNS),
    "after_slice": (slice(1, 3), COLUMNS),
    "last": (..., ROWS),
    "none_between": (ROWS, None, COLUMNS),
    "table": (TABLE, ONE),
    "int_before": (0, slice(None), ROWS),
    "int_after": (ROWS, 2),
    "slice_after": (slice(None), TABLE, slice(None, None, 2)),
    "scalar": (ONE,),
    "nothing": (NONE,),
    "list": ([0, 2],),
    "mask": (PICKS,),
    "plane": (PLANE,),
    "mask_inside": (slice(None), np.array([True, False, False, True, True])),
    "mask_and_index": (PICKS, ROWS),
    "turned": (ROWS, slice(None), slice(None, None, 3)),
}
SHAPE = (4, 5, 6)
REPEATED = ("table", "slice_after")


def key_for(module, key):
    def tensor(item):
        return module.tensor(item) if isinstance(item, np.ndarray) else item

    return tuple(tensor(item) for item in key)


def reader(name, key):
    return Record(
        f"index_by_{name}",
        lambda x: x[key_for(weft, key)],
        lambda x: x[key_for(torch, key)],
        [sample(T(SHAPE)), sample(T(SHAPE, layout="transposed"))],
        ("float32", "int64", "bool"),
    )


def writer(name, key):
    with weft.device("reference"):
        shape = weft.zeros(SHAPE)[key_for(weft, key)].shape

    def write(module):
        def call(x, value):
            x = x * 1
            x[key_for(module, key)] = value
            return x

        return call

    return Record(
        f"write_by_{name}",
        write(weft),
        write(torch),
        [sample(T(SHAPE), T(shape)), sample(T(SHAPE), 2), sample(T(SHAPE), T(shape[-1:]))],
        ("float32", "int64"),
        differentiable=name not in REPEATED,  # torch's gradient also goes to values that others overwrote
    )


def wrong(call, kind, text):
    return (lambda: call().numpy(), kind, text)


RECORDS = [
    *[reader(name, key) for name, key in KEYS.items()],
    *[writer(name, key) for name, key in KEYS.items()],
    Record(
        "index_put",
        lambda x, i, v, add: x.index_put((i,), v, add),
        lambda x, i, v, add: x.index_put((i,), v, add),
        [
            sample(T((5, 2)), T(dtype="int64", values=[3, 0, -1]), T((3, 2)), False),
            sample(T((5, 2)), T(dtype="int64", values=[3, 0, 3, 3]), T((4, 2)), True),
            sample(T((5, 2)), T(dtype="int64", values=[[3, 0], [1, 3]]), T((2,)), True),
        ],
        errors=[
            wrong(
                lambda: weft.ones(3).index_put((weft.tensor([3]),), weft.tensor(1.0)),
                weft.IndexRangeError,
                "indexing.py",
            ),
            (lambda: weft.ones(3).index_put((), weft.ones(1)), weft.ShapeError, "index_put: given 0 indices"),
        ],
    ),
    Record(
        "take",
        lambda x, i: weft.take(x, i),
        lambda x, i: torch.take(x, i),
        [sample(T((3, 4)), T(dtype="int64", values=[[0, -1], [5, 5]]))],
        NUMBERS,
        errors=[wrong(lambda: weft.take(weft.ones(3), weft.tensor([4])), weft.IndexRangeError, "indexing.py")],
    ),
    Record(
        "put",
        lambda x, i, v, add: x.put(i, v, add),
        lambda x, i, v, add: x.put(i, v, add),
        [
            sample(T((3, 4)), T(dtype="int64", values=[0, -1, 5]), T((3,)), False),
            sample(T((3, 4)), T(dtype="int64", values=[0, -1, 0]), T((3,)), True),
        ],
        FLOATS,
        errors=[(lambda: weft.ones(3).put(weft.tensor([0]), weft.ones(2)), weft.ShapeError, "put: given 1 indices")],
    ),
    Record(
        "masked_scatter",
        lambda x, m, v: weft.masked_scatter(x, m, v),
        lambda x, m, v: torch.masked_scatter(x, m, v),
        [
            sample(T((4, 5)), T(dtype="bool", values=PLANE), T((3, 5))),
            sample(T((3, 2)), T(dtype="bool", values=[True, False]), T((4,))),
        ],
        NUMBERS,
        errors=[
            wrong(
                lambda: weft.zeros(3).masked_scatter(weft.tensor([True] * 3), weft.ones(2)),
                weft.IndexRangeError,
                "indexing.py",
            )
        ],
    ),
]
