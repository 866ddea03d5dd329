"""Records of windows: pooling, padding, interpolation, sampling."""

import math

import torch.nn.functional as TF

import weft
import weft.nn.functional as F
from tests.records.record import FLOATS, NARROW, NUMBERS, Record, T, sample

INF, NAN = math.inf, math.nan
TIES = [[[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 0.0], [-INF, -INF, NAN, 1.0], [-INF, -INF, NAN, NAN]]]


def shape(rank, *, batch=2, channels=3, extent=7):
    """[batch, channels, ...] with extents that differ from axis to axis."""
    return (batch, channels, *[extent - axis for axis in range(rank)])


def refused(name, *args):
    call = getattr(F, name)
    rank = int(name[-2])
    return [
        (lambda: call(weft.ones(5), *args, 2), weft.ShapeError, rf"{name}: given shape \(5,\)"),
        (lambda: call(weft.ones(*shape(rank)), *args, 99), weft.ShapeError, "at least one window along every axis"),
        (lambda: call(weft.ones(*shape(rank)), *args, 0), weft.ShapeError, "kernel_size=0"),
        (lambda: call(weft.ones(*shape(rank)), *args, 2, 0), weft.ShapeError, "stride=0"),
        (lambda: call(weft.ones(*shape(rank)), *args, (1, 2, 3, 4)), weft.ShapeError, r"kernel_size=\(1, 2, 3, 4\)"),
    ]


def max_pool(rank):
    name = f"max_pool{rank}d"
    plain = T(shape(rank))
    samples = [
        sample(T((1, 1, *[4, 4, 3][:rank])), 2),
        sample(T((2, *[5, 4, 3][:rank])), 2, 1),
        sample(plain, 3, 2, 1),
        sample(plain, 2, ceil_mode=True),
        sample(plain, 3, 1, 1, 2),
        sample(plain, 3, 3, 1, ceil_mode=True),
        sample(plain, 5, 1, 2),
        sample(T(shape(rank, batch=0)), 2),
        sample(T(shape(rank), layout="transposed"), [2, 3, 1][:rank], [1, 2, 2][:rank]),
        sample(T(shape(rank, extent=40)[: rank + 2]), 2) if rank < 3 else sample(plain, 1),
    ]
    if rank == 2:
        samples += [sample(T(values=TIES), 2), sample(T(values=TIES), 3, 1, 1), sample(T(values=TIES), 2, 1, 1, 2)]
    errors = refused(name)
    errors.append((lambda: getattr(F, name)(weft.ones(*shape(rank)), 2, 2, 2), weft.ShapeError, "at most half of it"))
    return [
        Record(name, getattr(F, name), getattr(TF, name), samples, NUMBERS if rank == 2 else FLOATS, errors=errors),
        Record(
            f"{name}_with_indices",
            lambda *args: getattr(F, name)(*args, return_indices=True),
            lambda *args: getattr(TF, name)(*args, return_indices=True),
            [sample(plain, 2), sample(plain, 3, 2, 1), sample(plain, 5, 2, 2), sample(plain, 3, 1, 0, 2, True)],
        ),
    ]


def avg_pool(rank):
    name = f"avg_pool{rank}d"
    plain = T(shape(rank))
    samples = [
        sample(T((1, 1, *[4, 4, 3][:rank])), 2),
        sample(T((2, *[5, 4, 3][:rank])), 2, 1),
        sample(plain, 3, 2, 1),
        sample(plain, 3, 2, 1, count_include_pad=False),
        sample(plain, 2, ceil_mode=True),
        sample(plain, 3, 2, 1, ceil_mode=True),
        sample(plain, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        sample(plain, 5, 1, 2),
        sample(T(shape(rank, batch=0)), 2),
        sample(T(shape(rank), layout="transposed"), [2, 3, 1][:rank], [1, 2, 2][:rank]),
    ]
    if rank > 1:
        samples.append(sample(plain, 2, divisor_override=3))
    without = NARROW if rank == 3 else ()  # torch has none
    return Record(name, getattr(F, name), getattr(TF, name), samples, errors=refused(name), without=without)


def lp_pool(rank):
    name = f"lp_pool{rank}d"
    samples = [
        sample(T((1, 1, *[4, 4, 3][:rank]), 0.5, 2.0), 2, 2),
        sample(T(shape(rank), 0.5, 2.0), 3, 3, 2),
        sample(T(shape(rank), 0.5, 2.0), 1.5, 2, 1, True),
    ]
    return Record(name, getattr(F, name), getattr(TF, name), samples, errors=refused(name, 2), without=NARROW)


RECORDS = [
    *[record for rank in (1, 2, 3) for record in max_pool(rank)],
    *[avg_pool(rank) for rank in (1, 2, 3)],
    *[lp_pool(rank) for rank in (1, 2, 3)],
]
