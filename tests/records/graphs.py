"""Records of the scatter family, segments and graph operations. What torch lacks is written with its own scatter."""

import numpy as np

import weft
from tests.records.oracle import torch
from tests.records.record import FLOATS, NARROW, NUMBERS, Record, T, sample
from weft.functional.adjacency import sort_edges

ROWS = T(dtype="int64", values=[2, 0, 2, 1, 2], grad=False)  # three rows of four get something
INT32 = T(dtype="int32", values=[2, 0, 2, 1, 2], grad=False)
POINTERS = T(dtype="int64", values=[0, 2, 2, 5], grad=False)  # segments of 2, 0 and 3
EVERY = T(dtype="int64", values=[[0, 2, 1], [2, 2, 0]], grad=False)
NOTHING = T(dtype="int64", values=np.zeros(0), grad=False)


def method(name, *samples, errors=(), dtypes=FLOATS, **rest):
    call = lambda x, *a, **k: getattr(x, name)(*a, **k)  # noqa: E731
    return Record(name, call, call, samples, dtypes, errors=errors, **rest)


def by_rows(fn):
    """A torch function of (src, index of every element, size) called as (src, index of every row, size)."""

    def call(src, index, size):
        full = index.long().reshape(-1, *(1,) * (src.dim() - 1)).expand_as(src)
        return fn(src, full, size)

    return call


def torch_reduce(reduce):
    def fold(src, index, size):
        out = torch.zeros(size, *src.shape[1:], dtype=src.dtype)
        return out.scatter_reduce(0, index, src, reduce, include_self=False)

    return by_rows(fold)


def segments(pointers):
    return torch.repeat_interleave(torch.arange(len(pointers) - 1), pointers.diff())


def torch_segment_reduce(data, pointers, reduce="sum", empty=0.0):
    if reduce in ("max", "min"):
        out = torch.segment_reduce(data, reduce, offsets=pointers)
        length = pointers.diff().reshape(-1, *(1,) * (data.dim() - 1))
        return torch.where(length > 0, out, torch.tensor(empty, dtype=data.dtype))
    return torch_reduce(reduce)(data, segments(pointers), len(pointers) - 1)


def torch_edge_softmax(scores, dst, count):
    out = torch.zeros_like(scores)
    for node in range(count):
        here = (dst == node).reshape(-1, *(1,) * (scores.dim() - 1))
        masked = torch.where(here, scores, -torch.inf)
        if here.any():
            out = torch.where(here, masked.softmax(0), out)
    return out


def torch_spmm(pointers, col, val, x):
    dense = torch.zeros(len(pointers) - 1, len(x), dtype=x.dtype)
    rows = segments(pointers)
    val = torch.ones(len(col), dtype=x.dtype) if val is None else val
    return dense.index_put((rows, col.long()), val, accumulate=True) @ x


def aggregated(reduce):
    def ours(x, weight):
        return weft.aggregate(x, weft.adjacency(EDGES, 4), weight[weft.adjacency(EDGES, 4).edge], reduce)

    def theirs(x, weight):
        rows = x[torch.tensor(EDGES[0])] * weight.reshape(-1, *(1,) * (x.dim() - 1))
        return torch_reduce({"max": "amax", "min": "amin"}.get(reduce, reduce))(rows, torch.tensor(EDGES[1]), 4)

    return Record(
        f"aggregate_{reduce}", ours, theirs, [sample(T((4, 3)), T((6,))), sample(T((4,)), T((6,)))], without=NARROW
    )


def both_directions():
    """Edges sorted in the plan, with weights in the given order, and the same edges turned round."""

    def ours(x, weight, pairs):
        graph = sort_edges(pairs, 4)
        turned, ordered = graph.transposed(), graph.reorder(weight)
        return weft.aggregate(x, graph, ordered), weft.aggregate(x, turned, graph.by_source(ordered))

    def theirs(x, weight, pairs):
        rows = weight.reshape(-1, *(1,) * (x.dim() - 1))
        return tuple(torch_reduce("sum")(x[a] * rows, b, 4) for a, b in ((pairs[0], pairs[1]), (pairs[1], pairs[0])))

    edges, none = [T(dtype="int64", values=values, grad=False) for values in (EDGES, np.zeros((2, 0)))]
    samples = [sample(T((4, 3)), T((6,)), edges), sample(T((4,)), T((6,)), edges), sample(T((4, 2)), T((0,)), none)]
    bad = weft.tensor([[0, 1], [1, 4]])
    errors = [
        (lambda: sort_edges(bad, 4).rowptr.numpy(), weft.IndexRangeError, "sort_edges at .*: given the index 4"),
        (lambda: sort_edges(bad[0], 4), weft.ShapeError, r"sort_edges: given an edge index of shape \(2,\)"),
        (lambda: sort_edges(bad.float(), 4), weft.DTypeError, "sort_edges: given a float32 tensor"),
        (
            lambda: weft.adjacency(EDGES, 4).reorder(weft.ones(5)),
            weft.ShapeError,
            r"reorder: given values of shape \(5,\) for 6 edges",
        ),
    ]
    return Record("aggregate_edge_index", ours, theirs, samples, without=NARROW, errors=errors)


EDGES = np.array([[0, 1, 2, 3, 0, 1], [2, 0, 2, 1, 1, 2]])  # node 3 receives nothing


def x(*shape):
    return weft.ones(*shape)


RECORDS = [
    method(
        "gather",
        sample(T((3, 3)), 0, EVERY),
        sample(T((4, 5), layout="transposed"), 1, EVERY),
        sample(T((3,)), 0, ROWS),
        dtypes=NUMBERS,
        errors=[
            (lambda: x(2, 2).gather(0, weft.tensor([0])), weft.ShapeError, "gather: given an index of shape"),
            (lambda: x(2).gather(0, weft.tensor([0.0])), weft.DTypeError, "gather: given a float32 tensor"),
            (lambda: x(2).gather(0, weft.tensor([5])).numpy(), weft.IndexRangeError, "records.graphs"),
        ],
    ),
    Record(
        "take_along_dim",
        weft.take_along_dim,
        torch.take_along_dim,
        [
            sample(T((3, 3)), EVERY, 0),
            sample(T((2, 1, 3)), T(dtype="int64", values=[[[0], [0]]], grad=False), 1),
            sample(T((2, 3)), ROWS),
        ],
        errors=[(lambda: weft.take_along_dim(x(2, 2), weft.tensor([0]), 0), weft.ShapeError, "take_along_dim")],
    ),
    method(
        "scatter",
        sample(T((3, 3)), 0, EVERY, 7.0),
        sample(T((4, 5)), 1, T(dtype="int64", values=[[4, 0, 2], [1, 3, 0]], grad=False), T((2, 3))),
        errors=[
            (lambda: x(3).scatter(0, weft.tensor([0]), x(1), "amax"), weft.RangeError, "scatter: given reduce='amax'"),
            (lambda: x(3).scatter(0, weft.tensor([3]), x(1)).numpy(), weft.IndexRangeError, "records.graphs"),
            (lambda: x(3).scatter(0, weft.tensor([0, 1]), x(1)), weft.ShapeError, "scatter: given a source"),
        ],
    ),
    Record(
        "scatter_multiply",
        lambda a, i, b: a.scatter(0, i, b, "multiply"),
        lambda a, i, b: a.scatter_reduce(0, i, b, "prod"),
        [sample(T((3, 3)), EVERY, T((2, 3)))],
    ),
    method(
        "scatter_add",
        sample(T((3, 3)), 0, EVERY, T((2, 3))),
        sample(T((3, 4)), 1, EVERY, T((2, 3))),
        sample(T((4,)), 0, ROWS, T((5,))),
        sample(T((4,)), 0, NOTHING, T((0,))),
        dtypes=NUMBERS,
        errors=[
            (lambda: x(3).scatter_add(0, weft.tensor([-1]), x(1)).numpy(), weft.IndexRangeError, "records.graphs"),
            (
                lambda: x(3).scatter_add(0, weft.tensor([1]), weft.tensor([1])),
                weft.DTypeError,
                "scatter_add: given a int64 source",
            ),
        ],
    ),
    *[
        Record(
            f"scatter_reduce_{reduce}",
            lambda a, d, i, b, s, reduce=reduce: a.scatter_reduce(d, i, b, reduce, include_self=s),
            lambda a, d, i, b, s, reduce=reduce: a.scatter_reduce(d, i, b, reduce, include_self=s),
            [
                sample(T((3, 3)), 0, EVERY, T((2, 3)), True),
                sample(T((3, 3)), 0, EVERY, T((2, 3)), False),
                sample(T((4,)), 0, ROWS, T((5,)), False),
                sample(T((4,)), 0, ROWS, T((5,)), True),
                sample(T((3, 4)), 1, EVERY, T((2, 3)), False),
            ],
        )
        for reduce in ("sum", "prod", "mean", "amax", "amin")
    ],
    method(
        "index_add",
        sample(T((4, 3)), 0, ROWS, T((5, 3))),
        sample(T((2, 4, 3)), 1, ROWS, T((2, 5, 3))),
        sample(T((4,)), 0, INT32, T((5,))),
        errors=[(lambda: x(3).index_add(0, weft.tensor([0]), x(2)), weft.ShapeError, r"index_add: given .*\(2,\)")],
    ),
    Record(
        "index_add_alpha",
        lambda a, i, b: a.index_add(0, i, b, alpha=0.5),
        lambda a, i, b: a.index_add(0, i, b, alpha=0.5),
        [sample(T((4, 3)), ROWS, T((5, 3)))],
    ),
    method(
        "index_copy",
        sample(T((4, 3)), 0, T(dtype="int64", values=[3, 1], grad=False), T((2, 3))),
        sample(T((2, 4)), 1, T(dtype="int64", values=[3, 1], grad=False), T((2, 2))),
        dtypes=NUMBERS,
    ),
    method(
        "index_fill",
        sample(T((4, 3)), 0, ROWS, 7),
        sample(T((3, 4)), -1, ROWS, 0),
        dtypes=NUMBERS,
        errors=[(lambda: x(3).index_fill(0, weft.tensor([[0]]), 1), weft.ShapeError, "index_fill")],
    ),
    Record(
        "scatter_sum",
        weft.scatter_sum,
        by_rows(lambda s, i, n: torch.zeros(n, *s.shape[1:], dtype=s.dtype).scatter_add(0, i, s)),
        [sample(T((5, 3)), ROWS, 4), sample(T((5,)), INT32, 4), sample(T((5, 2, 2)), ROWS, 3)],
        NUMBERS,
        errors=[
            (lambda: weft.scatter_sum(x(3, 2), weft.tensor([0, 1]), 4), weft.ShapeError, "scatter_sum: given an index"),
            (lambda: weft.scatter_sum(x(1), weft.tensor([4]), 4).numpy(), weft.IndexRangeError, "records.graphs"),
        ],
    ),
    Record(
        "scatter_mean", weft.scatter_mean, torch_reduce("mean"), [sample(T((5, 3)), ROWS, 4), sample(T((5,)), ROWS, 3)]
    ),
    Record(
        "scatter_max",
        lambda *a: weft.scatter_max(*a).values,
        torch_reduce("amax"),
        [sample(T((5, 3)), ROWS, 4), sample(T((5,)), INT32, 4)],
    ),
    Record("scatter_min", lambda *a: weft.scatter_min(*a).values, torch_reduce("amin"), [sample(T((5, 3)), ROWS, 4)]),
    Record(
        "edge_softmax",
        weft.edge_softmax,
        torch_edge_softmax,
        [sample(T((5,)), ROWS, 4), sample(T((5, 3)), INT32, 3)],
        errors=[(lambda: weft.edge_softmax(weft.tensor([1]), weft.tensor([0]), 1), weft.DTypeError, "edge_softmax")],
        without=NARROW,  # several roundings
    ),
    Record(
        "segment_softmax",
        weft.segment_softmax,
        lambda s, p: torch_edge_softmax(s, segments(p), len(p) - 1),
        [sample(T((5,)), POINTERS), sample(T((5, 8)), POINTERS), sample(T((5, 1)), POINTERS)],
        without=NARROW,  # several roundings
    ),
    *[
        Record(
            f"segment_reduce_{reduce}",
            lambda d, p, reduce=reduce: weft.segment_reduce(d, p, reduce),
            lambda d, p, reduce=reduce: torch_segment_reduce(d, p, reduce),
            [sample(T((5,)), POINTERS), sample(T((5, 3)), POINTERS), sample(T((5, 2, 40)), POINTERS)],
            errors=[
                (lambda: weft.segment_reduce(x(2), weft.tensor([0, 1])).numpy(), weft.IndexRangeError, "rise from 0"),
                (lambda: weft.segment_reduce(x(2), weft.tensor([1, 2])).numpy(), weft.IndexRangeError, "rise from 0"),
                (lambda: weft.segment_reduce(x(2), weft.tensor([0, 9, 2])).numpy(), weft.IndexRangeError, "rise from"),
                (lambda: weft.segment_reduce(x(2), weft.tensor([0, 2]), "or"), weft.RangeError, "segment_reduce"),
            ],
        )
        for reduce in ("sum", "mean", "max", "min")
    ],
    Record(
        "spmm",
        weft.spmm,
        torch_spmm,
        [sample(POINTERS, ROWS, T((5,)), T((3, 6))), sample(POINTERS, INT32, None, T((3, 4)))],
        errors=[
            (
                lambda: weft.spmm(weft.tensor([0, 1]), weft.tensor([2]), None, x(2, 2)).numpy(),
                weft.IndexRangeError,
                "records.graphs",
            )
        ],
        without=NARROW,  # several roundings
    ),
    both_directions(),
    *[aggregated(reduce) for reduce in ("sum", "mean", "max", "min")],
]
