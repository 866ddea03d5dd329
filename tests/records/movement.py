"""Records of movement, indexing and matrix products."""

import weft
import weft.nn.functional as F
from tests.records.oracle import TF, torch
from tests.records.record import ALL, FLOATS, NUMBERS, Record, T, sample


def method(name, *samples, errors=(), dtypes=ALL):
    return Record(
        name,
        lambda x, *a, **k: getattr(x, name)(*a, **k),
        lambda x, *a, **k: getattr(x, name)(*a, **k),
        samples,
        dtypes,
        errors=errors,
    )


def indexed(name, key, shape=(4, 5, 6)):
    """x[key], and its gradient; torch has no negative steps, so those are written with flip by the caller."""
    return Record(
        f"index_{name}",
        lambda x: x[key],
        lambda x: x[key],
        [sample(T(shape)), sample(T(shape, layout="transposed"))],
        ("float32", "int64"),
    )


def assigned(name, key, value=7.0, shape=(4, 5)):
    def write(x, y):
        x = x * 1
        x[key] = value if y is None else y
        return x

    return Record(f"setitem_{name}", write, write, [sample(T(shape), None)])


def ones(*shape):
    return weft.ones(*shape)


RECORDS = [
    method(
        "reshape",
        sample(T((3, 4)), 2, 6),
        sample(T((3, 4)), (4, -1)),
        sample(T((4, 3), layout="transposed"), -1),
        sample(T(()), (1, 1)),
        sample(T((0, 3)), 3, 0),
        errors=[
            (
                lambda: ones(3, 4).reshape(5, -1),
                weft.ShapeError,
                r"reshape: given shape \(3, 4\) \(12 elements\) to \(5, -1\)",
            ),
            (lambda: ones(3, 4).reshape(-1, -1), weft.ShapeError, "use -1 for one axis"),
        ],
    ),
    method(
        "permute",
        sample(T((2, 3, 4)), 2, 0, 1),
        sample(T((2, 3, 4)), (0, 2, 1)),
        sample(T((2, 3)), -1, 0),
        errors=[(lambda: ones(2, 3).permute(0, 0), weft.ShapeError, r"permute: given axes \(0, 0\)")],
    ),
    method(
        "transpose",
        sample(T((2, 3, 4)), 0, 2),
        sample(T((2, 3)), -1, -2),
        sample(T((3,)), 0, 0),
        errors=[(lambda: ones(2).transpose(0, 1), weft.ShapeError, "transpose: given axis 1")],
    ),
    method(
        "t",
        sample(T((2, 3))),
        sample(T((3,))),
        errors=[(lambda: ones(1, 2, 3).t(), weft.ShapeError, r"t: given shape \(1, 2, 3\)")],
    ),
    Record(
        "mT",
        lambda x: x.mT,
        lambda x: x.mT,
        [sample(T((2, 3, 4)))],
        errors=[(lambda: ones(2).mT, weft.ShapeError, "mT: given shape")],
    ),
    method("movedim", sample(T((2, 3, 4)), 0, 2), sample(T((2, 3, 4)), -1, 0)),
    method(
        "expand",
        sample(T((3, 1)), 3, 4),
        sample(T((3, 1)), 2, -1, 5),
        sample(T(()), 2, 2),
        sample(T((1,)), 0),
        errors=[
            (lambda: ones(3, 2).expand(3, 4), weft.ShapeError, r"expand: given shape \(3, 2\) to \(3, 4\)"),
            (lambda: ones(3).expand(-1, 3), weft.ShapeError, "expand: given"),
        ],
    ),
    method("expand_as", sample(T((3, 1)), T((2, 3, 4)))),
    method("broadcast_to", sample(T((3, 1)), (2, 3, 4))),
    method(
        "squeeze", sample(T((1, 3, 1))), sample(T((1, 3, 1)), 0), sample(T((1, 3, 1)), 1), sample(T((1, 3, 1)), (0, 2))
    ),
    method(
        "unsqueeze",
        sample(T((3, 4)), 0),
        sample(T((3, 4)), -1),
        sample(T(()), 0),
        errors=[(lambda: ones(3).unsqueeze(3), weft.ShapeError, "unsqueeze: given axis 3")],
    ),
    method(
        "flatten",
        sample(T((2, 3, 4))),
        sample(T((2, 3, 4)), 1),
        sample(T((2, 3, 4)), 0, 1),
        sample(T(())),
        errors=[(lambda: ones(2, 3).flatten(1, 0), weft.ShapeError, "flatten: given start_dim 1 after end_dim 0")],
    ),
    method(
        "unflatten",
        sample(T((2, 12)), 1, (3, -1)),
        errors=[(lambda: ones(5).unflatten(0, (2, -1)), weft.ShapeError, "unflatten: given extent 5")],
    ),
    method("flip", sample(T((3, 4)), 0), sample(T((3, 4)), (0, 1)), sample(T((4, 3), layout="transposed"), -1)),
    method(
        "roll",
        sample(T((3, 4)), 1),
        sample(T((3, 4)), -5, 1),
        sample(T((3, 4)), (1, 2), (0, 1)),
        sample(T((0, 2)), 1, 0),
    ),
    method(
        "repeat",
        sample(T((2, 3)), 2, 2),
        sample(T((3,)), 2, 1),
        sample(T((2,)), 0),
        errors=[(lambda: ones(2, 3).repeat(2), weft.ShapeError, "repeat: given")],
    ),
    method("tile", sample(T((2, 3)), (2,)), sample(T((3,)), (2, 2))),
    method(
        "split",
        sample(T((5, 2)), 2),
        sample(T((5, 2)), [1, 4]),
        sample(T((2, 6)), 3, 1),
        errors=[
            (lambda: ones(5).split([1, 2]), weft.ShapeError, "split: given sections"),
            (lambda: ones(5).split(0), weft.ShapeError, "split: given the size 0"),
        ],
    ),
    method("chunk", sample(T((5, 2)), 2), sample(T((2, 7)), 3, -1)),
    method(
        "unbind",
        sample(T((3, 2))),
        sample(T((3, 2)), 1),
        errors=[(lambda: weft.tensor(1.0).unbind(), weft.ShapeError, "unbind: given a scalar")],
    ),
    method(
        "tril",
        sample(T((3, 4))),
        sample(T((3, 4)), 1),
        sample(T((2, 4, 3)), -1),
        errors=[(lambda: ones(3).tril(), weft.ShapeError, "tril: given")],
    ),
    method("triu", sample(T((3, 4))), sample(T((3, 4)), 1), sample(T((2, 4, 3)), -1)),
    Record(
        "pad",
        F.pad,
        TF.pad,
        [
            sample(T((3, 4)), (1, 2)),
            sample(T((3, 4)), (1, 0, 0, 2), value=1.5),
            sample(T((3, 4)), (-1, 2)),
            sample(T((0, 2)), (1, 1)),
        ],
        errors=[
            (lambda: F.pad(ones(2), (1,)), weft.ShapeError, r"pad: given \(1,\)"),
            (lambda: F.pad(ones(2), (1, 1), "mirror"), weft.ShapeError, "mode='mirror'"),
            (lambda: F.pad(ones(2), (-2, -1)), weft.ShapeError, "stay at least 0"),
        ],
    ),
    Record(
        "cat",
        weft.cat,
        torch.cat,
        [
            sample([T((2, 3)), T((1, 3))]),
            sample([T((2, 3)), T((2, 2)), T((2, 0))], 1),
            sample([T((3,)), T((2,), dtype="int64")], -1),
        ],
        errors=[
            (lambda: weft.cat([]), weft.ShapeError, "cat: given no tensors"),
            (
                lambda: weft.cat([ones(2, 3), ones(2, 4)]),
                weft.ShapeError,
                r"cat: given shapes \(2, 3\) and \(2, 4\) along axis 0",
            ),
            (lambda: weft.cat([weft.tensor(1.0)]), weft.ShapeError, "use stack"),
        ],
    ),
    Record(
        "stack",
        weft.stack,
        torch.stack,
        [sample([T((2, 3)), T((2, 3))]), sample([T((2, 3)), T((2, 3))], -1), sample([T(()), T(())])],
        errors=[(lambda: weft.stack([ones(2), ones(3)]), weft.ShapeError, "stack: given shapes")],
    ),
    indexed("int", 1),
    indexed("negative", -1),
    indexed("ints", (1, 2, 3)),
    indexed("slice", slice(1, 3)),
    indexed("step", slice(None, None, 3)),
    indexed("none", (None, slice(None), None, 2)),
    indexed("ellipsis", (Ellipsis, 1)),
    indexed("middle", (0, Ellipsis, slice(1, None, 2))),
    indexed("empty", slice(3, 1)),
    indexed("beyond", slice(2, 100)),
    indexed("both", (slice(1, None, 2), slice(None, -1), slice(-4, -1))),
    Record("index_reversed", lambda x: x[::-1, 3:0:-2], lambda x: x.flip(0)[:, [3, 1]], [sample(T((4, 5)))]),
    Record(
        "index_tensor",
        lambda x, i: x[i],
        lambda x, i: x[i],
        [
            sample(T((4, 3)), T(dtype="int64", values=[0, 3, -1, 0])),
            sample(T((4, 3)), T(dtype="int32", values=[[1, 2], [2, 1]])),
            sample(T((4,)), T(dtype="int64", values=2)),
            sample(T((4, 2)), T(dtype="int64", values=[])),
        ],
        errors=[
            (lambda: ones(2)[weft.tensor([0.5])], weft.DTypeError, "index: given a float32 tensor"),
            (lambda: ones(2)[weft.tensor([True])], weft.ShapeError, "index: given a mask of shape"),
        ],
    ),
    Record(
        "index_tensor_axis",
        lambda x, i: x[1:, i, 0],
        lambda x, i: x[1:, i, 0],
        [sample(T((3, 4, 5)), T(dtype="int64", values=[0, 3, 3]))],
    ),
    Record(
        "index_two_tensors",
        lambda x, i, j: x[i, j],
        lambda x, i, j: x[i, j],
        [
            sample(T((3, 4, 2)), T(dtype="int64", values=[0, 1, 2]), T(dtype="int64", values=[3, -1, 3])),
            sample(T((3, 4)), T(dtype="int64", values=[[0], [2]]), T(dtype="int64", values=[1, 1, 3])),
        ],
    ),
    Record(
        "index_select",
        weft.index_select,
        torch.index_select,
        [sample(T((3, 4)), 0, T(dtype="int64", values=[2, 0, 2])), sample(T((3, 4)), -1, T(dtype="int64", values=[1]))],
    ),
    Record(
        "embedding",
        lambda w, i, **k: F.embedding(i, w, **k),
        lambda w, i, **k: TF.embedding(i, w, **k),
        [sample(T((5, 3)), T(dtype="int64", values=[[0, 4], [4, 4]]))],
        errors=[
            (lambda: F.embedding(ones(2), ones(2, 2)), weft.DTypeError, "embedding: given a float32 tensor"),
            (lambda: F.embedding(weft.arange(2), ones(2)), weft.ShapeError, "embedding: given a weight"),
        ],
    ),
    Record(
        "embedding_padding",
        lambda w, i, **k: F.embedding(i, w, **k),
        lambda w, i, **k: TF.embedding(i, w, **k),
        [
            sample(T((5, 3)), T(dtype="int64", values=[1, 2, 1]), padding_idx=1),
        ],
        finite_differences=False,
    ),
    Record(
        "one_hot",
        F.one_hot,
        TF.one_hot,
        [sample(T((2, 3), 0, 4, dtype="int64"), 5)],
        ("int64",),
        differentiable=False,
        errors=[
            (lambda: F.one_hot(weft.arange(3), 0), weft.RangeError, "one_hot: given num_classes=0"),
            (lambda: F.one_hot(ones(3), 3), weft.DTypeError, "one_hot: given a float32"),
        ],
    ),
    assigned("int", 1),
    assigned("slice", slice(1, 3)),
    assigned("step", (slice(None, None, 2), slice(1, None, 3))),
    assigned("all", Ellipsis),
    assigned("both", (-1, slice(0, 2))),
    Record(
        "setitem_tensor",
        lambda x, y: _write(x, (slice(None), slice(1, 3)), y),
        lambda x, y: _write(x, (slice(None), slice(1, 3)), y),
        [sample(T((4, 5)), T((2,))), sample(T((4, 5)), T((4, 1)))],
        errors=[
            (lambda: _write(ones(3), slice(0, 2), ones(3)), weft.ShapeError, r"x\[index\] = value: given"),
            (lambda: _write(ones(3), weft.tensor([0]), ones(2)), weft.ShapeError, "given a value of shape"),
        ],
    ),
    Record(
        "setitem_mask",
        lambda x, m: _write(x, m, 0.5),
        lambda x, m: _write(x, m, 0.5),
        [sample(T((4, 5)), T((4, 5), dtype="bool")), sample(T((4, 5)), T((4,), dtype="bool"))],
    ),
    Record(
        "matmul",
        weft.matmul,
        torch.matmul,
        [
            sample(T((3, 4)), T((4, 5))),
            sample(T((4,)), T((4,))),
            sample(T((4,)), T((4, 5))),
            sample(T((3, 4)), T((4,))),
            sample(T((2, 3, 4)), T((4, 5))),
            sample(T((2, 3, 4)), T((2, 4, 5))),
            sample(T((2, 1, 3, 4)), T((3, 4, 5))),
            sample(T((4,)), T((2, 4, 5))),
            sample(T((2, 3, 4)), T((4,))),
            sample(T((5, 2, 3, 4)), T((4, 2))),
            sample(T((4, 3), layout="transposed"), T((3, 5), layout="transposed")),
            sample(T((2, 4, 3), layout="transposed"), T((2, 3, 5), layout="transposed")),
            sample(T((0, 4)), T((4, 2))),
            sample(T((3, 0)), T((0, 2))),
            sample(T((33, 40)), T((40, 17))),
            sample(T((1, 1)), T((1, 1))),
        ],
        tolerance={"float32": (2e-5, 1e-5), "float64": (1e-10, 1e-12)},
        errors=[
            (lambda: ones(2, 3) @ ones(4, 5), weft.ShapeError, r"matmul: given shapes \(2, 3\) and \(4, 5\); expected"),
            (lambda: ones(2, 2) @ weft.tensor([[1, 2], [3, 4]]), weft.DTypeError, "matmul: given float32 and int64"),
            (lambda: weft.matmul(weft.tensor(1.0), ones(1)), weft.ShapeError, "use \\* for scalars"),
            (lambda: ones(2, 3, 4) @ ones(3, 4, 5), weft.ShapeError, "matmul: given shapes"),
        ],
    ),
    Record("matmul_int", weft.matmul, torch.matmul, [sample(T((3, 4)), T((4, 5)))], ("int64",), differentiable=False),
    Record(
        "mm",
        weft.mm,
        torch.mm,
        [sample(T((3, 4)), T((4, 5)))],
        errors=[(lambda: weft.mm(ones(3), ones(3)), weft.ShapeError, "mm: given")],
    ),
    Record("bmm", weft.bmm, torch.bmm, [sample(T((2, 3, 4)), T((2, 4, 5)))]),
    Record("mv", weft.mv, torch.mv, [sample(T((3, 4)), T((4,)))]),
    Record("dot", weft.dot, torch.dot, [sample(T((4,)), T((4,)))], NUMBERS),
    Record(
        "outer",
        weft.outer,
        torch.outer,
        [sample(T((3,)), T((4,)))],
        NUMBERS,
        errors=[(lambda: weft.outer(ones(1, 2), ones(2)), weft.ShapeError, "outer: given")],
    ),
    Record(
        "linear",
        F.linear,
        TF.linear,
        [sample(T((3, 4)), T((5, 4)), T((5,))), sample(T((2, 3, 4)), T((5, 4))), sample(T((4,)), T((5, 4)), T((5,)))],
        tolerance={"float32": (2e-5, 1e-5), "float64": (1e-10, 1e-12)},
        errors=[
            (
                lambda: F.linear(ones(2, 3), ones(3, 4)),
                weft.ShapeError,
                r"linear: given input \(2, 3\) and weight \(3, 4\)",
            ),
            (lambda: F.linear(ones(2, 3), ones(4, 3), ones(3)), weft.ShapeError, "linear: given a bias"),
        ],
    ),
    Record(
        "shrink",
        lambda x, *bounds: x.shrink(*bounds),
        lambda x, *bounds: x[tuple(slice(*pair) for pair in bounds)],
        [
            sample(T((4, 5)), (1, 3), (0, 5)),
            sample(T((4, 5)), (2, 2), (1, 2)),
            sample(T((5, 4), layout="transposed"), (0, 3), (1, 4)),
            sample(T((7,)), (3, 7)),
            sample(T(())),
        ],
        ALL,
        errors=[
            (lambda: ones(3, 4).shrink((0, 2)), weft.ShapeError, r"shrink: given 1 bounds for shape \(3, 4\)"),
            (lambda: ones(3).shrink((0, 4)), weft.ShapeError, r"\(0, 4\) for axis 0; expected 0 <= start <= end <= 3"),
            (lambda: ones(3).shrink((2, 1)), weft.ShapeError, r"\(2, 1\) for axis 0"),
            (lambda: ones(3, 4).shrink((0, 1, 2), None), weft.ShapeError, r"\(0, 1, 2\) for axis 0"),
        ],
    ),
    Record(
        "subsample",
        lambda x, *strides: x.subsample(*strides),
        lambda x, *strides: x[tuple(slice(None, None, one) for one in strides)],
        [
            sample(T((4, 5)), 2, 3),
            sample(T((5, 4), layout="transposed"), 1, 2),
            sample(T((7,)), 2),
            sample(T((6, 0)), 4, 2),
            sample(T((3, 1)), 5, 5),
            sample(T(())),
        ],
        ALL,
        errors=[
            (lambda: ones(3, 4).subsample(2), weft.ShapeError, r"subsample: given 1 strides for shape \(3, 4\)"),
            (lambda: ones(3, 4).subsample(2, 0), weft.ShapeError, r"strides \(2, 0\)"),
        ],
    ),
    Record("clone", weft.clone, torch.clone, [sample(T((3, 4)))], FLOATS),
]


def _write(x, key, value):
    x = x * 1
    x[key] = value
    return x
