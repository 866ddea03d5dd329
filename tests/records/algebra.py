"""Records of einsum, products beyond matmul, norms and distances, diagonals, grids and stacks."""

import weft
from tests.records.oracle import torch
from tests.records.record import ALL, FLOATS, NARROW, NUMBERS, Record, T, sample

inf = float("inf")


def same(name, *samples, dtypes=FLOATS, errors=(), **kwargs):
    """A function of one name in both."""
    return Record(name, getattr(weft, name), getattr(torch, name), samples, dtypes, errors=errors, **kwargs)


def stacked(name, count):
    samples = [sample(T((2, 3)), T((2, 3))), sample(T((3,)), T((3,))), sample(T((2, 3, 1)), T((2, 3, 1)))]
    ours, theirs = getattr(weft, name), getattr(torch, name)
    return Record(name, lambda *xs: ours(xs), lambda *xs: theirs(xs), samples[:count], NUMBERS)


def powers(x, count=None, increasing=False):
    columns = [x**k for k in range(len(x) if count is None else count)]
    return torch.stack(columns if increasing else columns[::-1], 1)


EQUATIONS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("ij,jk", (3, 4), (4, 5)),
    ("ij,kj->ik", (3, 4), (5, 4)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)),
    ("i,j->ij", (3,), (4,)),
    ("i,i", (5,), (5,)),
    ("ij->ji", (3, 4)),
    ("ij->", (3, 4)),
    ("ij->j", (3, 4)),
    ("ii->i", (4, 4)),
    ("ii", (4, 4)),
    ("iij->ji", (3, 3, 2)),
    ("iii->i", (3, 3, 3)),
    ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("...ij,...jk", (2, 1, 3, 4), (3, 4, 5)),
    ("...i->...", (2, 3, 4)),
    ("i...->...i", (2, 3, 4)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("ij,jk,kl,lm->im", (2, 7), (7, 3), (3, 6), (6, 2)),
    ("a,b,c->cab", (2,), (3,), (4,)),
    ("ij,ij->ij", (3, 4), (3, 4)),
    ("ij,ik->ijk", (3, 4), (3, 5)),
    ("ij,jk->ik", (3, 1), (4, 5)),
    ("i,ij->j", (0,), (0, 3)),
    ("ij,jk->ik", (3, 0), (0, 2)),
    ("bn,anm,bm->ba", (2, 5), (3, 5, 4), (2, 4)),
    ("Ab,bA -> A", (2, 3), (3, 2)),
    ("xab,xcb->xac", (40, 8, 9), (40, 7, 9)),
    (",ij->ij", (), (2, 3)),
]


RECORDS = [
    Record(
        "einsum",
        lambda equation, *xs: weft.einsum(equation, *xs),
        lambda equation, *xs: torch.einsum(equation, *xs),
        [sample(equation, *[T(shape) for shape in shapes]) for equation, *shapes in EQUATIONS],
        (*FLOATS, "int64"),
        tolerance={"float32": (1e-4, 1e-5), "float64": (1e-10, 1e-12)},
        finite_differences=False,
        without=NARROW,
        errors=[
            (lambda: weft.einsum("ij,jk->ik", weft.ones(2, 3)), weft.ShapeError, "given 1 operands; expected 2"),
            (lambda: weft.einsum("ij->i", weft.ones(2)), weft.ShapeError, "a label for every axis"),
            (lambda: weft.einsum("i,i->i", weft.ones(2), weft.ones(3)), weft.ShapeError, "extents 2 and 3"),
            (lambda: weft.einsum("i->j", weft.ones(2)), weft.ShapeError, "the output label 'j'"),
            (lambda: weft.einsum("i->ii", weft.ones(2)), weft.ShapeError, "a label twice"),
            (lambda: weft.einsum("i1->i", weft.ones(2, 3)), weft.ShapeError, "the label '1'"),
            (lambda: weft.einsum("i,i", weft.ones(2), weft.ones(2).double()), weft.DTypeError, "one number type"),
        ],
    ),
    same(
        "tensordot",
        sample(T((2, 3, 4)), T((3, 4, 5)), 2),
        sample(T((2, 3, 4)), T((4, 3)), ([1, 2], [1, 0])),
        sample(T((2,)), T((3,)), 0),
        errors=[(lambda: weft.tensordot(weft.ones(2, 3), weft.ones(2, 3), 1), weft.ShapeError, "tensordot: given")],
    ),
    same("inner", sample(T((3,)), T((3,))), sample(T((2, 3)), T((4, 3))), sample(T(()), T((4, 3)))),
    same("kron", sample(T((2, 3)), T((2, 2))), sample(T((2,)), T((3, 2))), dtypes=NUMBERS, without=NARROW),
    same(
        "cross",
        sample(T((4, 3)), T((4, 3)), -1),
        sample(T((3, 4)), T((3, 4)), 0),
        sample(T((2, 4, 3)), T((2, 4, 3)), 2),
        without=NARROW,  # several roundings, which are not torch's
        errors=[(lambda: weft.cross(weft.ones(2), weft.ones(2)), weft.ShapeError, "an axis of extent 3")],
    ),
    same(
        "addmm",
        sample(T((5,)), T((3, 4)), T((4, 5)), beta=0.5, alpha=2.0),
        sample(T((3, 5)), T((3, 4)), T((4, 5))),
        without=NARROW,
    ),
    same("addmv", sample(T((3,)), T((3, 4)), T((4,)), beta=0.5, alpha=2.0)),
    same("addr", sample(T((3, 4)), T((3,)), T((4,)), beta=0.5, alpha=2.0), without=NARROW),
    same(
        "baddbmm",
        sample(T((2, 3, 5)), T((2, 3, 4)), T((2, 4, 5)), beta=0.5, alpha=2.0),
        errors=[(lambda: weft.baddbmm(weft.ones(1), weft.ones(2, 3), weft.ones(3, 2)), weft.ShapeError, "ranks 3")],
    ),
    same("addbmm", sample(T((3, 5)), T((2, 3, 4)), T((2, 4, 5)), beta=0.5, alpha=2.0), without=NARROW),
    same(
        "matrix_power",
        sample(T((3, 3)), 3),
        sample(T((2, 3, 3)), 2),
        sample(T((3, 3)), 0),
        sample(T((3, 3)), 1),
        tolerance={"float32": (1e-4, 1e-4), "float64": (1e-10, 1e-11)},
        without=NARROW,
        errors=[(lambda: weft.matrix_power(weft.ones(2, 3), 2), weft.ShapeError, "square matrices")],
    ),
    same(
        "matrix_exp",
        sample(T((3, 3))),
        sample(T((2, 4, 4), -0.1, 0.1)),
        sample(T((3, 3), -0.9, 0.9, layout="transposed")),
        sample(T((1, 1))),
        sample(T((0, 3, 3))),
        sample(T(values=[[0.0, 40.0], [-40.0, 0.0]])),
        tolerance={"float32": (2e-5, 5e-5), "float64": (1e-10, 1e-11)},
        without=NARROW,
        errors=[
            (lambda: weft.matrix_exp(weft.ones(2, 3)), weft.ShapeError, "matrix_exp: given shape"),
            (lambda: weft.matrix_exp(weft.arange(4).reshape(2, 2)), weft.DTypeError, "matrix_exp: given a int64"),
        ],
    ),
    Record(
        "norm",
        lambda x, *a, **k: weft.norm(x, *a, **k),
        lambda x, *a, **k: torch.norm(x, *a, **k),
        [
            sample(T((3, 4))),
            sample(T((3, 4)), 1, 1),
            sample(T((3, 4)), 3, 0),
            sample(T((3, 4)), inf, 1, True),
            sample(T((3, 4)), -inf, 1),
            sample(T((3, 4)), 2.5, (0, 1)),
            sample(T((3, 4)), 0, 1),
            sample(T(values=[0.0, 0.0])),
        ],
        errors=[
            (lambda: weft.norm(weft.ones(2), "max"), weft.RangeError, "norm: given p='max'"),
            (lambda: weft.norm(weft.ones(2), "nuc"), weft.ShapeError, "norm: given p='nuc'"),
        ],
    ),
    Record(
        "cdist",
        lambda x, y, p: weft.cdist(x, y, p),
        lambda x, y, p: torch.cdist(x, y, p),
        [
            sample(T((3, 4)), T((5, 4)), 2.0),
            sample(T((2, 3, 4)), T((2, 5, 4)), 1.0),
            sample(T((3, 4)), T((5, 4)), 3.0),
            sample(T((3, 4)), T((5, 4)), inf),
            sample(T(values=[[1.0, 2.0]]), T(values=[[1.0, 2.0], [0.0, 0.0]]), 2.0),
        ],
        without=NARROW,
        errors=[(lambda: weft.cdist(weft.ones(2, 3), weft.ones(2, 2)), weft.ShapeError, "cdist: given shapes")],
    ),
    Record(
        "vander",
        lambda x, *a, **k: weft.vander(x, *a, **k),
        powers,  # torch.vander has no gradient of its own: it works in place
        [
            sample(T((4,))),
            sample(T((4,)), 3),
            sample(T((4,)), 3, increasing=True),
            sample(T(values=[0.0, 1.0, 2.0])),
        ],
        ("float32", "float64", "int64"),
        without=NARROW,
    ),
    same(
        "diagonal",
        sample(T((3, 4))),
        sample(T((3, 4)), 1),
        sample(T((3, 4)), -2),
        sample(T((3, 4)), 9),
        sample(T((2, 3, 4)), 0, 1, 2),
        sample(T((2, 3, 4)), 1, -1, 0),
        sample(T((0, 3))),
        dtypes=ALL,
        errors=[(lambda: weft.diagonal(weft.ones(2, 2), 0, 1, 1), weft.ShapeError, "two different axes")],
    ),
    same(
        "diag_embed",
        sample(T((3,))),
        sample(T((2, 3)), 1),
        sample(T((2, 3)), -2, 0, 2),
        sample(T((2, 3)), 0, 2, 1),
        sample(T((0,)), 1),
        dtypes=ALL,
    ),
    same("diag", sample(T((3,)), 1), sample(T((3, 4)), -1), dtypes=NUMBERS),
    same("trace", sample(T((3, 4))), sample(T((3, 3))), dtypes=NUMBERS),
    same(
        "rot90",
        sample(T((3, 4))),
        sample(T((2, 3, 4)), 3, (2, 0)),
        sample(T((3, 4)), 2),
        sample(T((3, 4)), -1),
        sample(T((3, 4)), 4),
        dtypes=ALL,
    ),
    same("fliplr", sample(T((3, 4)))),
    same("flipud", sample(T((3, 4))), sample(T((3,)))),
    same("swapaxes", sample(T((2, 3, 4)), 0, -1)),
    same(
        "narrow",
        sample(T((3, 4)), 1, 1, 2),
        sample(T((3, 4)), 0, -2, 2),
        errors=[(lambda: weft.narrow(weft.ones(3), 0, 2, 2), weft.ShapeError, "narrow: given start 2")],
    ),
    same("select", sample(T((3, 4)), 1, -1), sample(T((3, 4)), 0, 1)),
    same("tensor_split", sample(T((7, 2)), 3), sample(T((7, 2)), (2, -3)), sample(T((2, 7)), 4, 1)),
    Record(
        "meshgrid",
        lambda x, y, z, **k: weft.meshgrid(x, y, z, **k),
        lambda x, y, z, **k: torch.meshgrid(x, y, z, **k),
        [sample(T((2,)), T((3,)), T((4,)), indexing="ij"), sample(T((2,)), T((3,)), T(()), indexing="xy")],
        NUMBERS,
    ),
    same(
        "repeat_interleave",
        sample(T((3,)), 2),
        sample(T((2, 3)), 3, 1),
        sample(T((2, 3)), T(dtype="int64", values=[2, 0, 1]), 1),
        sample(T((2, 3)), 2),
        sample(T((2, 3)), 0, 0),
        dtypes=ALL,
    ),
    stacked("hstack", 3),
    stacked("vstack", 3),
    stacked("dstack", 3),
    stacked("column_stack", 2),
    Record(
        "tril_indices",
        lambda *a: weft.tril_indices(*a),
        lambda *a: torch.tril_indices(*a),
        [sample(3, 4), sample(3, 3, -1), sample(2, 5, 2)],
        ("float32",),
        differentiable=False,
        without=NARROW,
    ),
    Record(
        "triu_indices",
        lambda *a: weft.triu_indices(*a),
        lambda *a: torch.triu_indices(*a),
        [sample(3, 4), sample(3, 3, -1), sample(2, 5, 2)],
        ("float32",),
        differentiable=False,
        without=NARROW,
    ),
]
