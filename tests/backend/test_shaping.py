"""Shapes from other tensors, parts whose place a tensor gives, and arguments of linalg: views, compile, gradients."""

import numpy as np
import pytest
import torch

import weft

VIEWS = {
    "hsplit": lambda x: x.hsplit(2)[1],
    "vsplit": lambda x: x.vsplit([1])[0],
    "split_with_sizes": lambda x: x.split_with_sizes([1, 3], 1)[1],
    "tensor_split": lambda x: x.tensor_split(3, 1)[0],
    "ravel": lambda x: x.ravel(),
    "view_as": lambda x: x.view_as(x.clone().reshape(2, 6)),
    "reshape_as": lambda x: x.reshape_as(x.reshape(6, 2)),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "moveaxis": lambda x: x.moveaxis(0, 1),
    "swapdims": lambda x: x.swapdims(0, 1),
    "adjoint": lambda x: x.adjoint(),
    "mH": lambda x: x.mH,
    "H": lambda x: x.H,
}


@pytest.mark.parametrize("name", VIEWS)
def test_writes_to_views_go_through(name):
    ours, theirs = weft.arange(12.0).reshape(3, 4).clone(), torch.arange(12.0).reshape(3, 4).clone()
    for x in (ours, theirs):
        VIEWS[name](x).add_(100.0)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize("of", [weft.atleast_1d, weft.atleast_2d, weft.atleast_3d])
def test_at_least_so_many_axes_are_views(of):
    x = weft.zeros(3)
    of(x).add_(1.0)
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_narrow_from_a_tensor_is_a_view_outside_compile_and_a_value_inside():
    x, start = weft.zeros(5), weft.tensor(1)
    x.narrow(0, start, 2).add_(1.0)
    assert x.tolist() == [0.0, 1.0, 1.0, 0.0, 0.0]
    read = weft.compile(lambda x, start: x.narrow(0, start, 2) * 2)
    values = weft.arange(5.0)
    assert [read(values, weft.tensor(k)).tolist() for k in (0, 3, -2)] == [[0, 2], [6, 8], [6, 8]]
    with pytest.raises(weft.IndexRangeError):
        read(values, weft.tensor(4)).tolist()
    with pytest.raises(weft.GraphError, match="narrow"):
        weft.compile(lambda x, start: x.narrow(0, start, 2).add_(1.0))(values, start)


def test_repeat_interleave_of_known_size_compiles_and_refuses_another():
    x = weft.tensor([1.0, 2.0, 3.0], requires_grad=True)
    call = weft.compile(lambda x, counts: weft.repeat_interleave(x, counts, output_size=4))
    assert call(x, weft.tensor([2, 0, 2])).tolist() == [1.0, 1.0, 3.0, 3.0]
    assert call(x, weft.tensor([0, 3, 1])).tolist() == [2.0, 2.0, 2.0, 3.0]
    for counts in ([1, 1, 1], [2, 2, 2]):
        with pytest.raises(weft.IndexRangeError):
            call(x, weft.tensor(counts)).tolist()
    with pytest.raises(weft.GraphError, match="output_size"):
        weft.compile(lambda x, counts: weft.repeat_interleave(x, counts))(x, weft.tensor([2, 0, 2]))


@pytest.mark.parametrize("of", [weft.quantile, weft.nanquantile])
def test_quantiles_outside_0_to_1_raise_compiled_too(of):
    call = weft.compile(lambda x, q: of(x, q))
    x = weft.arange(5.0)
    assert call(x, weft.tensor([0.0, 0.5, 1.0])).tolist() == [0.0, 2.0, 4.0]
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(weft.IndexRangeError):
            call(x, weft.tensor([0.5, wrong, 0.5])).tolist()


def test_negative_weights_of_covariances_raise():
    with pytest.raises(weft.IndexRangeError):
        weft.cov(weft.ones(2, 3), aweights=weft.tensor([1.0, -1.0, 1.0])).tolist()


def test_index_put_by_masks_and_indices():
    x = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    mask, columns, values = [True, False, True], [0, 3], [5.0, 6.0]
    results = [
        module.tensor(x).index_put_(
            (module.tensor(mask), module.tensor(columns)), module.tensor(values), accumulate=True
        )
        for module in (weft, torch)
    ]
    np.testing.assert_array_equal(results[0].numpy(), results[1].numpy())


def differentiate(module, call, array):
    x = module.tensor(array, requires_grad=True)
    sum((part * part.abs().cos()).sum() for part in call(module, x)).backward()
    return x.grad.numpy()


SQUARE = np.array([[2.0, 0.5, -0.3], [0.5, 1.0, 0.2], [-0.3, 0.2, 3.0]])
TALL = np.array([[2.0, 0.5], [-0.3, 1.0], [0.7, -1.2], [0.1, 0.4]])
GRADIENTS = {
    "eigh of vectors": (lambda m, x: [m.linalg.eigh(x).eigenvectors.abs()], SQUARE),
    "eigh, upper": (lambda m, x: [m.linalg.eigh(x, UPLO="U").eigenvectors.abs()], SQUARE + np.triu(np.ones((3, 3)), 1)),
    "svd, all columns": (lambda m, x: [m.linalg.svd(x).U[:, :2].abs(), m.linalg.svd(x).Vh.abs()], TALL),
    "svd, all rows": (lambda m, x: [m.linalg.svd(x).S, m.linalg.svd(x).Vh[:2].abs()], TALL.T.copy()),
    "pinv, hermitian": (lambda m, x: [m.linalg.pinv(x, hermitian=True)], SQUARE),
    "pinv, atol": (lambda m, x: [m.linalg.pinv(x, atol=0.1)], TALL),
    "tensorsolve": (lambda m, x: [m.linalg.tensorsolve(x, m.tensor(SQUARE[0]))], SQUARE),
    "logdet": (lambda m, x: [m.logdet(x)], SQUARE),
    "nuclear norm": (lambda m, x: [m.norm(x, "nuc")], TALL),
    "multi_dot": (lambda m, x: [m.linalg.multi_dot([x, x.T, x])], TALL),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_linalg(name):
    call, array = GRADIENTS[name]
    np.testing.assert_allclose(
        differentiate(weft, call, array), differentiate(torch, call, array), rtol=1e-8, atol=1e-10
    )


def test_condition_of_singular_matrices_is_infinite():
    pair = np.stack([SQUARE, np.zeros((3, 3))])
    ours, theirs = (module.linalg.cond(module.tensor(pair), "fro").numpy() for module in (weft, torch))
    np.testing.assert_allclose(ours, theirs)


@pytest.mark.parametrize("driver", [None, "gels", "gelsy", "gelsd", "gelss"])
def test_lstsq_returns_what_the_driver_of_torch_returns(driver):
    results = [
        module.linalg.lstsq(module.tensor(TALL), module.tensor(TALL[:, :1] + 1.0), driver=driver)
        for module in (weft, torch)
    ]
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == tuple(theirs.shape)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-9, atol=1e-12)


def test_an_output_argument_that_is_none_is_ignored():
    assert weft.add(weft.ones(2), 1, out=None).tolist() == [2.0, 2.0]
    with pytest.raises(TypeError, match="out"):
        weft.add(weft.ones(2), 1, out=weft.ones(2))
