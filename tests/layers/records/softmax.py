"""Records of softmax and its relatives."""

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_function, of_numpy, of_torch
from tests.layers.record import Bad, Case, LayerRecord
from tests.layers.simple import like_torch


def sparsemax(state, z):
    """The projection onto the simplex, along the last axis."""
    ordered = -np.sort(-z, -1)
    sums, count = np.cumsum(ordered, -1), np.arange(1, z.shape[-1] + 1)
    size = np.maximum((1 + count * ordered > sums).sum(-1, keepdims=True), 1)
    theta = (np.take_along_axis(sums, size - 1, -1) - 1) / size
    return np.maximum(z - theta, 0) + 0 * z.sum(-1, keepdims=True)  # a NaN spoils its row


def entmax15(state, z):
    """max(z / 2 - θ, 0)² with θ by bisection, along the last axis."""
    x = z / 2
    low, high = x.max(-1, keepdims=True) - 1, x.max(-1, keepdims=True)
    for _ in range(80):
        middle = (low + high) / 2
        is_low = (np.maximum(x - middle, 0) ** 2).sum(-1, keepdims=True) >= 1
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    return np.maximum(x - (low + high) / 2, 0) ** 2 + (x - x)


def check_support_gradient():
    """Sparsemax: the gradient is g - mean of g over the support, and exactly 0 elsewhere."""
    z = weft.tensor([[1.0, 0.8, -2.0, 0.5]], dtype=weft.float64, requires_grad=True)
    g = np.array([[1.0, 2.0, 3.0, 4.0]])
    p = nn.Sparsemax()(z)
    (p * weft.tensor(g)).sum().backward()
    support = np.array([[True, True, False, True]])
    np.testing.assert_array_equal(p.detach().numpy() > 0, support)
    np.testing.assert_allclose(z.grad, np.where(support, g - g[support].mean(), 0.0), atol=1e-15)


def check_infinite(cls):
    """Entries of -inf have probability and gradient 0."""

    def check():
        z = weft.tensor([[0.3, -np.inf, 0.1]], requires_grad=True)
        p = cls()(z)
        (p * weft.tensor([[1.0, 2.0, 3.0]])).sum().backward()
        assert p[0, 1].item() == 0.0
        assert z.grad[0, 1].item() == 0.0
        np.testing.assert_allclose(p.detach().sum().item(), 1.0, rtol=1e-6)
        assert np.isfinite(z.grad.numpy()).all()

    return check


def check_mask_buffer():
    """A mask that is assigned counts until another is given; the state_dict has none."""
    layer = nn.MaskedSoftmax()
    z = weft.tensor([[1.0, 2.0, 3.0]])
    np.testing.assert_allclose(layer(z).numpy(), torch.softmax(torch.tensor([[1.0, 2.0, 3.0]]), -1), rtol=1e-6)
    step = weft.compile(lambda z: layer(z))
    step(z)
    layer.mask = weft.tensor([True, False, True])
    for call in (layer, step):
        assert call(z)[0, 1].item() == 0.0
    assert layer(z, weft.tensor([False, True, False])).tolist() == [[0.0, 1.0, 0.0]]
    assert list(layer.state_dict()) == []


def check_mask_gradient():
    """Masked entries have gradient exactly 0, also in rows without a legal entry."""
    z = weft.tensor([[1.0, 5.0], [2.0, 3.0]], requires_grad=True)
    p = nn.MaskedSoftmax()(z, weft.tensor([[True, False], [False, False]]))
    (p * weft.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
    assert p.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    np.testing.assert_array_equal(z.grad.numpy(), np.zeros((2, 2)))


def check_gumbel():
    """Hard draws fall on each class as often as softmax says; soft ones sum to 1; both have the soft one's gradient."""
    logits = weft.tensor([0.0, 1.0, -1.0])
    weft.manual_seed(0)
    drawn = nn.GumbelSoftmax(hard=True)(logits.expand(4000, 3)).numpy()
    assert set(np.unique(drawn)) == {0.0, 1.0}
    expected = torch.softmax(torch.tensor([0.0, 1.0, -1.0]), 0).numpy()
    deviation = np.sqrt(expected * (1 - expected) / 4000)
    assert (abs(drawn.mean(0) - expected) < 5 * deviation).all()
    grads = []
    for hard in (True, False):
        z = logits.clone().requires_grad_()
        weft.manual_seed(1)
        y = nn.GumbelSoftmax(0.7, hard)(z)
        np.testing.assert_allclose(y.detach().sum().item(), 1.0, rtol=1e-6)
        (y * weft.tensor([1.0, 2.0, 4.0])).sum().backward()
        grads.append(z.grad.numpy())
    np.testing.assert_allclose(grads[0], grads[1], rtol=1e-5, atol=1e-7)


def check_adaptive_prediction():
    """All log-probabilities and the most probable classes are torch's."""
    layer, oracle = (
        nn.AdaptiveLogSoftmaxWithLoss(6, 9, [3, 5], 2.0),
        torch.nn.AdaptiveLogSoftmaxWithLoss(6, 9, [3, 5], 2.0),
    )
    layer.load_state_dict(oracle.state_dict())
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    expected = oracle.log_prob(torch.tensor(x)).detach()
    np.testing.assert_allclose(layer.log_prob(weft.tensor(x)).detach(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(layer.predict(weft.tensor(x)).numpy(), oracle.predict(torch.tensor(x)).numpy())
    np.testing.assert_allclose(np.exp(layer.log_prob(weft.tensor(x)).detach().numpy()).sum(1), np.ones(5), rtol=1e-5)
    one = layer(weft.tensor(x[0]), weft.tensor(7))
    np.testing.assert_allclose(one.output.item(), expected[0, 7].item(), rtol=1e-5)


def masked(z, mask):
    """softmax over the legal entries; zeros where there is none."""
    p = torch.softmax(z.masked_fill(~mask, -torch.inf), -1)
    return torch.where(mask & mask.any(-1, keepdim=True), p, 0.0)


def adaptive(**options):
    return of_torch(lambda: torch.nn.AdaptiveLogSoftmaxWithLoss(6, 9, [3, 5], 2.0, **options))


TEMPERATURE = [
    Bad(call=lambda layer: type(layer)(temperature=0.0), match="temperature=0.0.*above 0", error=weft.RangeError)
]
RECORDS = [
    like_torch("Softmax", lambda draw: (draw.normal(3, 4),), 1, bad=TEMPERATURE),
    LayerRecord(
        name="Softmax",
        variant="usual axis",
        make=nn.Softmax,
        inputs=lambda draw: (draw.normal(3, 4, 2),),
        oracle=of_function(lambda z: torch.softmax(z, 0)),  # torch warns that dim is missing
        batch_axes=(1,),
        no_bad="as with dim",
    ),
    LayerRecord(
        name="Softmax",
        variant="temperature",
        make=lambda: nn.Softmax(-1, temperature=0.4),
        inputs=lambda draw: (draw.normal(3, 4),),
        oracle=of_function(lambda z: torch.softmax(z / 0.4, -1)),
        bad=TEMPERATURE,
    ),
    like_torch(
        "Softmax2d",
        lambda draw: (draw.normal(2, 3, 2, 2),),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 3)), match=r"\[2, 3\].*\[B, C, H, W\]", error=weft.ShapeError)],
    ),
    like_torch(
        "LogSoftmax",
        lambda draw: (draw.normal(3, 4),),
        -1,
        bad=[Bad(call=lambda layer: nn.LogSoftmax(3)(weft.ones(2)), match="3", error=Exception)],
    ),
    like_torch(
        "Softmin",
        lambda draw: (draw.normal(3, 4),),
        1,
        bad=[Bad(call=lambda layer: nn.Softmin(3)(weft.ones(2)), match="3", error=Exception)],
    ),
    LayerRecord(
        name="GridSoftmax",
        make=lambda: nn.GridSoftmax(2, 3, temperature=0.7),
        inputs=lambda draw: (draw.normal(4, 6),),
        oracle=of_function(lambda x: torch.softmax(x.reshape(-1, 2, 3) / 0.7, -1).reshape(-1, 6)),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 5)), match=r"\[2, 5\].*\[\*, 6\]", error=weft.ShapeError),
            Bad(call=lambda layer: nn.GridSoftmax(0, 2), match="rows=0", error=weft.RangeError),
        ],
    ),
    LayerRecord(
        name="MaskedSoftmax",
        make=nn.MaskedSoftmax,
        inputs=lambda draw: (draw.normal(4, 5), draw.bools(4, 5, p=0.6) | np.eye(4, 5, dtype=bool)),
        oracle=of_function(masked),
        traits=frozenset({"batch", "mask"}),
        edges={"all-masked rows": Case(inputs=lambda draw: (draw.normal(2, 3), np.array([[False] * 3, [True] * 3])))},
        checks={"mask buffer": check_mask_buffer, "gradient at masked entries": check_mask_gradient},
        bad=[
            *TEMPERATURE,
            Bad(call=lambda layer: layer(weft.ones(2, 3), weft.ones(2, 4).bool()), match="4", error=weft.ShapeError),
        ],
    ),
    LayerRecord(
        name="MaskedSoftmax",
        variant="broadcast",
        make=lambda: nn.MaskedSoftmax(1, temperature=2.0),
        inputs=lambda draw: (draw.normal(3, 4, 2), np.array([[True], [False], [True], [True]])),
        oracle=of_function(lambda z, m: torch.softmax((z / 2).masked_fill(~m, -torch.inf), 1)),
        batch_axes=(0, None),
        traits=frozenset({"batch", "mask"}),
        edges={
            "all-masked rows": Case(
                inputs=lambda draw: (draw.normal(3, 4, 2), np.zeros((4, 1), bool)),
                oracle=of_function(lambda z, m: torch.zeros_like(z)),
            ),
            "nan": "masked entries are 0 even in a row with a NaN, unlike the oracle's: see the first record",
        },
        no_bad="as without broadcasting",
    ),
    LayerRecord(
        name="GumbelSoftmax",
        make=lambda: nn.GumbelSoftmax(0.8),
        inputs=lambda draw: (draw.normal(3, 4),),
        random=True,
        checks={"distribution and gradient": check_gumbel},
        bad=[Bad(call=lambda layer: nn.GumbelSoftmax(0.0), match="tau=0.0", error=weft.RangeError)],
    ),
    LayerRecord(
        name="GumbelSoftmax",
        variant="hard",
        make=lambda: nn.GumbelSoftmax(hard=True),
        inputs=lambda draw: (draw.normal(3, 4),),
        random=True,
        differentiable=False,  # straight through: not the slope of a step
        checks={"distribution and gradient": check_gumbel},
        no_bad="as the soft one",
    ),
    LayerRecord(
        name="Sparsemax",
        make=nn.Sparsemax,
        inputs=lambda draw: (draw.normal(4, 6),),
        oracle=of_numpy(sparsemax),
        traits=frozenset({"batch", "order"}),
        edges={"ties": Case(inputs=lambda draw: (np.array([[1.0, 1.0, 1.0], [2.0, 2.0, -5.0], [0.5, 0.5, 0.0]]),))},
        checks={"gradient on the support": check_support_gradient, "-inf": check_infinite(nn.Sparsemax)},
        bad=[Bad(call=lambda layer: nn.Sparsemax(2)(weft.ones(3)), match="2", error=Exception)],
    ),
    LayerRecord(
        name="Sparsemax",
        variant="first axis",
        make=lambda: nn.Sparsemax(0),
        inputs=lambda draw: (draw.normal(6, 4),),
        oracle=of_numpy(lambda state, z: sparsemax(state, z.T).T),
        batch_axes=(1,),
        no_bad="as along the last axis",
    ),
    LayerRecord(
        name="Entmax15",
        make=nn.Entmax15,
        inputs=lambda draw: (draw.normal(4, 6),),
        oracle=of_numpy(entmax15),
        traits=frozenset({"batch", "order"}),
        edges={"ties": Case(inputs=lambda draw: (np.array([[1.0, 1.0, 1.0], [2.0, 2.0, -5.0], [0.5, 0.5, 0.0]]),))},
        checks={"-inf": check_infinite(nn.Entmax15)},
        bad=[Bad(call=lambda layer: nn.Entmax15(2)(weft.ones(3)), match="2", error=Exception)],
    ),
    LayerRecord(
        name="AdaptiveLogSoftmaxWithLoss",
        make=lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 9, [3, 5], 2.0),
        inputs=lambda draw: (draw.normal(5, 6), np.array([0, 8, 3, 4, 2])),
        oracle=adaptive(),
        checks={"all classes": check_adaptive_prediction},
        bad=[
            Bad(
                call=lambda layer: layer(weft.ones(2, 5), weft.zeros(2).long()),
                match=r"\[2, 5\]",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: layer(weft.ones(2, 6), weft.tensor([0, 9])), match="9", error=IndexError),
            Bad(
                call=lambda layer: nn.AdaptiveLogSoftmaxWithLoss(6, 9, [5, 3]),
                match=r"cutoffs=\[5, 3\]",
                error=weft.RangeError,
            ),
        ],
    ),
    LayerRecord(
        name="AdaptiveLogSoftmaxWithLoss",
        variant="bias",
        make=lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 9, [3, 5], 2.0, head_bias=True),
        inputs=lambda draw: (draw.normal(5, 6), np.array([0, 8, 3, 4, 2])),
        oracle=adaptive(head_bias=True),
        no_bad="as without",
    ),
]
