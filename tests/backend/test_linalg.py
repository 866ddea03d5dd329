"""weft.linalg against torch.linalg: values, gradients, second derivatives, errors."""

import numpy as np
import pytest
import torch

import weft

pytestmark = pytest.mark.backend
ROOM = {"float32": (2e-4, 2e-4), "float64": (1e-9, 1e-10)}


def matrix(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def definite(*shape):
    x = matrix(*shape)
    return x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])


def symmetric(x):
    return (x + x.mT) / 2


L, TL = weft.linalg, torch.linalg

# name, ours, torch's, arguments. Vectors whose sign is free are compared by what does not depend on it.
CASES = [
    ("inv", lambda x: L.inv(x), lambda x: TL.inv(x), [matrix(3, 3)]),
    ("inv batch", lambda x: L.inv(x), lambda x: TL.inv(x), [matrix(2, 3, 3)]),
    ("solve", L.solve, TL.solve, [matrix(3, 3), matrix(3, 2, seed=1)]),
    ("solve vector", L.solve, TL.solve, [matrix(3, 3), matrix(3, seed=1)]),
    ("solve batch", L.solve, TL.solve, [matrix(4, 3, 3), matrix(3, 2, seed=1)]),
    (
        "solve left",
        lambda a, b: L.solve(a, b, left=False),
        lambda a, b: TL.solve(a, b, left=False),
        [matrix(3, 3), matrix(2, 3)],
    ),
    (
        "triangular",
        lambda a, b: L.solve_triangular(a, b, upper=True),
        lambda a, b: TL.solve_triangular(a, b, upper=True),
        [matrix(3, 3) + 3 * np.eye(3), matrix(3, 2)],
    ),
    (
        "unitriangular",
        lambda a, b: L.solve_triangular(a, b, upper=False, unitriangular=True),
        lambda a, b: TL.solve_triangular(a, b, upper=False, unitriangular=True),
        [matrix(3, 3), matrix(3, 2)],
    ),
    ("det", L.det, TL.det, [matrix(3, 3)]),
    ("det batch", L.det, TL.det, [matrix(2, 4, 4)]),
    ("slogdet", L.slogdet, TL.slogdet, [matrix(3, 3)]),
    ("cholesky", lambda x: L.cholesky(symmetric(x)), lambda x: TL.cholesky(symmetric(x)), [definite(3, 3)]),
    ("cholesky plain", L.cholesky, TL.cholesky, [definite(2, 3, 3)]),
    ("cholesky upper", lambda x: L.cholesky(x, upper=True), lambda x: TL.cholesky(x, upper=True), [definite(3, 3)]),
    ("eigvalsh", lambda x: L.eigvalsh(symmetric(x)), lambda x: TL.eigvalsh(symmetric(x)), [matrix(4, 4)]),
    ("eigh", lambda x: L.eigh(symmetric(x))[1] ** 2, lambda x: TL.eigh(symmetric(x))[1] ** 2, [matrix(2, 4, 4)]),
    ("eigh upper", lambda x: L.eigh(x, "U")[0], lambda x: TL.eigh(x, "U")[0], [definite(4, 4)]),
    ("svdvals", L.svdvals, TL.svdvals, [matrix(3, 5)]),
    ("svd", lambda x: L.svd(x, False)[0] ** 2, lambda x: TL.svd(x, False)[0] ** 2, [matrix(2, 5, 3)]),
    ("svd wide", lambda x: L.svd(x, False)[2] ** 2, lambda x: TL.svd(x, False)[2] ** 2, [matrix(3, 5)]),
    ("svd square", lambda x: [p**2 for p in L.svd(x)], lambda x: [p**2 for p in TL.svd(x)], [matrix(3, 3)]),
    ("qr", lambda x: [p**2 for p in L.qr(x)], lambda x: [p**2 for p in TL.qr(x)], [matrix(2, 5, 3)]),
    ("qr wide", lambda x: [p**2 for p in L.qr(x)], lambda x: [p**2 for p in TL.qr(x)], [matrix(3, 5)]),
    ("pinv", L.pinv, TL.pinv, [matrix(5, 3)]),
    ("pinv wide", L.pinv, TL.pinv, [matrix(2, 3, 5)]),
    ("lstsq", lambda a, b: L.lstsq(a, b)[0], lambda a, b: TL.lstsq(a, b)[0], [matrix(5, 3), matrix(5, 2)]),
    ("matrix_power", lambda x: L.matrix_power(x, -2), lambda x: TL.matrix_power(x, -2), [matrix(3, 3)]),
    (
        "multi_dot",
        lambda *x: L.multi_dot(x),
        lambda *x: TL.multi_dot(x),
        [matrix(2, 7), matrix(7, 3), matrix(3, 5), matrix(5)],
    ),
    ("cond", L.cond, TL.cond, [matrix(3, 3)]),
    ("cond 1", lambda x: L.cond(x, 1), lambda x: TL.norm(x, 1) * TL.norm(TL.inv(x), 1), [matrix(3, 3)]),
    ("norm", L.norm, TL.norm, [matrix(3, 4)]),
    ("norm matrix", lambda x: L.norm(x, 1), lambda x: TL.norm(x, 1), [matrix(3, 4)]),
    ("norm axis", lambda x: L.norm(x, 3, 1), lambda x: TL.norm(x, 3, 1), [matrix(3, 4)]),
    ("vector_norm", lambda x: L.vector_norm(x, 3, (0, 1)), lambda x: TL.vector_norm(x, 3, (0, 1)), [matrix(3, 4)]),
    ("cross", L.cross, TL.cross, [matrix(4, 3), matrix(4, 3, seed=1)]),
    *[
        (
            f"matrix_norm {order}",
            lambda x, order=order: L.matrix_norm(x, order, (0, 2), True),
            lambda x, order=order: TL.matrix_norm(x, order, (0, 2), True),
            [matrix(3, 2, 4)],
        )
        for order in ("fro", "nuc", 2, -2, 1, -1, float("inf"), -float("inf"))
    ],
]  # fmt: skip


def parts(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_against_torch(case, dtype):
    _, ours, theirs, arrays = case
    xs = [weft.tensor(array.astype(dtype), requires_grad=True) for array in arrays]
    ys = [torch.tensor(array.astype(dtype), requires_grad=True) for array in arrays]
    rtol, atol = ROOM[dtype]
    results = list(zip(parts(ours(*xs)), parts(theirs(*ys)), strict=True))
    for one, two in results:
        assert one.dtype.name == dtype and one.shape == tuple(two.shape)
        np.testing.assert_allclose(one.detach().numpy(), two.detach().numpy(), rtol, atol)
        if two.requires_grad and one.requires_grad:  # the sign of a determinant has no gradient
            seed = np.cos(np.arange(two.numel())).reshape(two.shape).astype(dtype) + 2
            one.backward(weft.tensor(seed), retain_graph=True)
            two.backward(torch.tensor(seed), retain_graph=True)
    for x, y in zip(xs, ys, strict=True):
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), 10 * rtol, 10 * atol)


@pytest.mark.parametrize(
    "function",
    [
        L.inv, L.det, L.svdvals, L.pinv, lambda x: L.slogdet(x)[1], lambda x: L.eigvalsh(symmetric(x)),
        lambda x: L.qr(x)[1] ** 2,
    ],
)  # fmt: skip
def test_second_derivatives(function):
    slope = weft.grad(lambda x: (function(x) ** 2).sum())
    assert weft.testing.gradcheck(slope, [weft.tensor(matrix(3, 3))], rtol=1e-3, atol=1e-4)


def test_the_determinants_gradient_at_singular_matrices():
    for array in ([[1.0, 2.0], [2.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]], [[1.0, 0, 0], [0, 2.0, 0], [0, 0, 0]]):
        x = weft.tensor(np.array(array), requires_grad=True)
        L.det(x).backward()
        minors = [
            [
                (-1) ** (i + j) * np.linalg.det(np.delete(np.delete(np.array(array), i, 0), j, 1))
                for j in range(len(array))
            ]
            for i in range(len(array))
        ]
        np.testing.assert_allclose(x.grad.numpy(), minors, atol=1e-12)


def test_complete_forms_and_extras():
    x = matrix(5, 3)
    q, r = L.qr(weft.tensor(x), "complete")
    np.testing.assert_allclose((q @ r).numpy(), x, atol=1e-12)
    assert q.shape == (5, 5) and L.qr(weft.tensor(x), "r").R.shape == (3, 3)
    u, s, vh = L.svd(weft.tensor(x))
    assert u.shape == (5, 5)
    np.testing.assert_allclose((u[:, :3] * s @ vh).numpy(), x, atol=1e-12)
    found = L.lstsq(weft.tensor(x), weft.tensor(matrix(5, 2, seed=3)), driver="gelsd")
    expected = torch.linalg.lstsq(torch.tensor(x), torch.tensor(matrix(5, 2, seed=3)), driver="gelsd")
    np.testing.assert_allclose(found.residuals.numpy(), expected.residuals.numpy())
    assert found.rank.item() == 3 and L.matrix_rank(weft.tensor(np.ones((3, 3)))).item() == 1


def test_nothing_to_decompose():
    empty = weft.zeros(0, 3, 3)
    assert L.inv(empty).shape == (0, 3, 3) and L.det(empty).shape == (0,)
    assert L.eigh(empty).eigenvalues.shape == (0, 3) and L.svdvals(weft.zeros(0, 2, 3)).shape == (0, 2)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: L.inv(weft.zeros(2, 2)), weft.RangeError, "inv: given a singular matrix"),
        (lambda: L.inv(weft.ones(2, 3)), weft.ShapeError, "inv: given shape"),
        (lambda: L.det(weft.arange(4).reshape(2, 2)), weft.DTypeError, "det: given a int64 tensor"),
        (lambda: L.cholesky(-weft.ones(2, 2)), weft.RangeError, "not positive definite"),
        (lambda: L.solve(weft.ones(2, 2), weft.ones(3, 1)), weft.ShapeError, "solve: given"),
        (lambda: L.qr(weft.ones(2, 2), "full"), weft.RangeError, "qr: given mode='full'"),
        (lambda: L.matrix_norm(weft.ones(2, 2), "max"), weft.RangeError, "matrix_norm: given ord='max'"),
        (
            lambda: weft.compile(lambda x: L.inv(x))(weft.ones(2, 2)),
            weft.GraphError,
            r"linalg\.inv inside weft\.compile",
        ),
    ],
)
def test_errors(call, kind, text):
    with pytest.raises(kind, match=text):
        call()
