"""Records of tensors put together, cut apart and with parts replaced."""

import warnings

import weft
from tests.records.oracle import torch
from tests.records.record import ALL, NUMBERS, Record, T, sample


def both(name, samples, dtypes=ALL, **options):
    return Record(name, getattr(weft, name), getattr(torch, name), samples, dtypes, **options)


def method(name, samples, dtypes=ALL, **options):
    return Record(
        name,
        lambda x, *a, **k: getattr(x, name)(*a, **k),
        lambda x, *a, **k: getattr(x, name)(*a, **k),
        samples,
        dtypes,
        **options,
    )


def reduced(how, **named):
    def torch_fn(x, index, y):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls it a beta
            return x.index_reduce(0, index, y, how, **named)

    return Record(
        f"index_reduce_{how}" + "_others" * bool(named),
        lambda x, index, y: x.index_reduce(0, index, y, how, **named),
        torch_fn,
        [
            sample(T((3, 4), 1, 3), T(values=[2, 0, 2, 2], dtype="int64"), T((4, 4), 1, 3)),
            sample(T((3,), 1, 3), T(values=[1], dtype="int64"), T((1,), 1, 3)),
        ],
        NUMBERS,
        without=("float16", "bfloat16", "uint16", "uint32", "uint64"),
        finite_differences=how not in ("amax", "amin"),
    )


RECORDS = [
    both("block_diag", [sample(T((2, 3)), T((3,)), T(())), sample(T((2, 0)), T((1, 2)))]),
    both("cartesian_prod", [sample(T((3,)), T((2,)), T((4,))), sample(T((3,)))]),
    both("combinations", [sample(T((4,))), sample(T((4,)), 3, True), sample(T((2,)), 3)]),
    both("diagflat", [sample(T((2, 3)), 1), sample(T(()))]),
    both("broadcast_tensors", [sample(T((2, 1)), T((3,)))]),
    both("atleast_1d", [sample(T(())), sample(T((2,)), T(()))]),
    both("atleast_2d", [sample(T((2,)))]),
    both("atleast_3d", [sample(T((2,))), sample(T((2, 3)))]),
    both("split_with_sizes", [sample(T((5, 2)), [1, 4]), sample(T((5, 2)), [2, 0], 1)]),
    both(
        "hsplit",
        [sample(T((2, 6)), 3), sample(T((6,)), [1, 4])],
        errors=[(lambda: weft.hsplit(weft.ones(2, 5), 2), weft.ShapeError, "hsplit: given 2 sections of extent 5")],
    ),
    both("vsplit", [sample(T((6, 2)), 3), sample(T((6, 2)), (1, -1))]),
    both("dsplit", [sample(T((1, 2, 4)), 2)]),
    both("ravel", [sample(T((2, 3))), sample(T((3, 2), layout="transposed"))]),
    Record(
        "movedim_several",
        weft.movedim,
        torch.movedim,
        [sample(T((2, 3, 4)), [0, 1], [-1, 0])],
        errors=[
            (lambda: weft.movedim(weft.ones(2, 2), (0, 0), (0, 1)), weft.ShapeError, "each axis and each position")
        ],
    ),
    method("view_as", [sample(T((2, 3)), T((6,)))], differentiable=False),
    method("adjoint", [sample(T((2, 3, 4)))]),
    Record(
        "unravel_index",
        lambda x: weft.unravel_index(x, (4, 5, 6)),
        lambda x: torch.unravel_index(x, (4, 5, 6)),
        [sample(T((3, 4), 0, 119, dtype="int64"))],
        ("int64",),
        differentiable=False,
        errors=[(lambda: weft.unravel_index(weft.ones(2), (2,)), weft.DTypeError, "unravel_index: given a float32")],
    ),
    both("select_scatter", [sample(T((3, 4)), T((4,)), 0, 1), sample(T((3, 4)), T((3,)), 1, -1)]),
    both(
        "slice_scatter",
        [sample(T((5, 2)), T((2, 2)), 0, 1, 5, 2), sample(T((5, 2)), T((5, 1)), 1, -1)],
        errors=[(lambda: weft.slice_scatter(weft.ones(3), weft.ones(2)), weft.ShapeError, "a source of shape")],
    ),
    both(
        "diagonal_scatter",
        [sample(T((3, 4)), T((3,)), 1), sample(T((4, 2)), T((2,)), -2), sample(T((2, 3, 4)), T((3, 2)), 0, 0, 2)],
    ),
    *[reduced(how) for how in ("prod", "mean", "amax", "amin")],
    *[reduced(how, include_self=False) for how in ("mean", "amin")],
    Record(
        "narrow_by_tensor",
        lambda x, start: x.narrow(1, start, 2),
        lambda x, start: x.narrow(1, start, 2),
        [sample(T((2, 5)), T(values=1, dtype="int64")), sample(T((2, 5)), T(values=-3, dtype="int64"))],
        ALL,
    ),
    Record(
        "searchsorted_unsorted",
        lambda rows, x: weft.searchsorted(rows, x, sorter=weft.argsort(rows)),
        lambda rows, x: torch.searchsorted(rows, x, sorter=torch.argsort(rows)),
        [sample(T((2, 7)), T((2, 5)))],
        NUMBERS,
        differentiable=False,
        without=("uint16", "uint32", "uint64"),
    ),
    Record(
        "vecdot",
        weft.linalg.vecdot,
        torch.linalg.vecdot,
        [sample(T((2, 3)), T((2, 3))), sample(T((2, 1, 3)), T((4, 3))), sample(T((3, 2)), T((3, 2)), dim=0)],
        without=("float16", "bfloat16"),
    ),
    Record(
        "linalg_vander",
        weft.linalg.vander,
        torch.linalg.vander,
        [sample(T((3,), 0.5, 1.5)), sample(T((2, 3), 0.5, 1.5), N=4)],
        without=("float16", "bfloat16"),
    ),
    Record(
        "einsum_by_lists",
        lambda x, y: weft.einsum(x, [0, 1], y, [2, 1], [0, 2]),
        lambda x, y: torch.einsum(x, [0, 1], y, [2, 1], [0, 2]),
        [sample(T((3, 4)), T((2, 4)))],
    ),
    Record(
        "repeat_interleave_known_size",
        lambda x, counts: weft.repeat_interleave(x, counts, 0, output_size=4),
        lambda x, counts: torch.repeat_interleave(x, counts, 0, output_size=4),
        [sample(T((3, 2)), T(values=[2, 0, 2], dtype="int64"))],
        ALL,
    ),
]
