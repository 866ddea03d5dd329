"""Functions of `nn.functional` that records cannot say: random ones, ones that write to their arguments, gradients that
are PyTorch's by convention, and calls inside `weft.compile`."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft
import weft.nn.functional as F

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.backend
TF = torch.nn.functional
TARGETS, TIMES, SIZES = [[1, 1, 3], [2, 4, 0]], [7, 2], [2, 2]


def log_probs(steps=7, batch=2, classes=5):
    rows = np.random.default_rng(0).normal(size=(steps, batch, classes)).astype(np.float32)
    return torch.log_softmax(torch.from_numpy(rows), 2)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_gradient_of_log_probabilities_is_pytorchs(reduction, zero_infinity):
    """Which adds the probabilities, and is NaN where the loss is infinite."""
    targets = torch.tensor([[1, 1], [2, 2]])  # the second needs three steps and has two
    theirs = log_probs().requires_grad_()
    expected = TF.ctc_loss(theirs, targets, TIMES, SIZES, reduction=reduction, zero_infinity=zero_infinity)
    expected.sum().backward()
    ours = weft.tensor(theirs.detach().numpy()).requires_grad_()
    loss = F.ctc_loss(
        ours, weft.tensor(targets.numpy()), TIMES, SIZES, reduction=reduction, zero_infinity=zero_infinity
    )
    loss.sum().backward()
    np.testing.assert_allclose(loss.numpy(), expected.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_ctc_compiled_is_eager_and_takes_lengths_as_tensors():
    rows, sizes, times = weft.tensor(log_probs().numpy()), weft.tensor(SIZES), weft.tensor([7, 6])
    vector = weft.tensor([1, 1, 2, 4])

    def both(rows, targets, times, sizes):
        rows.grad = None
        loss = F.ctc_loss(rows, targets, times, sizes)
        loss.backward()
        return loss, rows.grad

    rows.requires_grad_()
    eager = [one.numpy() for one in both(rows, vector, times, sizes)]
    compiled = [one.numpy() for one in weft.compile(both)(rows, vector, times, sizes)]
    fixed = [one.numpy() for one in weft.compile(lambda r, t: both(r, t, (7, 6), (2, 2)))(rows, vector)]
    for one, two, three in zip(eager, compiled, fixed, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(one, three, rtol=1e-6, atol=1e-7)
    expected = TF.ctc_loss(log_probs(), torch.tensor([1, 1, 2, 4]), (7, 6), (2, 2))
    np.testing.assert_allclose(eager[0], expected.numpy(), rtol=1e-5)


def test_ctc_of_a_sample_that_is_all_padding():
    loss = F.ctc_loss(weft.tensor(log_probs().numpy()), weft.zeros(2, 0).long(), (0, 3), (0, 0), reduction="none")
    expected = TF.ctc_loss(log_probs(), torch.zeros(2, 0).long(), (0, 3), (0, 0), reduction="none")
    np.testing.assert_allclose(loss.numpy(), expected.numpy(), rtol=1e-5)


def channels(x):
    return x.numpy().reshape(x.shape[0] * x.shape[1], -1)


@pytest.mark.parametrize(
    ("drop", "shape"),
    [
        (F.dropout1d, (20, 30, 4)),
        (F.dropout2d, (20, 30, 2, 3)),
        (F.dropout3d, (20, 30, 2, 1, 3)),
        (F.dropout2d, (20, 30, 4)),
    ],
)
def test_dropout_of_channels(drop, shape):
    weft.manual_seed(3)
    x = weft.ones(*shape).requires_grad_()
    y = drop(x, 0.25)
    y.sum().backward()
    rows = channels(y)
    assert np.array_equal(rows, np.repeat(rows[:, :1], rows.shape[1], 1))  # whole channels
    assert set(np.unique(rows)) == {0.0, np.float32(1 / 0.75)}
    assert 0.18 < (rows[:, 0] == 0).mean() < 0.32
    assert np.array_equal(x.grad.numpy(), y.numpy())
    assert drop(x, 0.25, training=False) is x and np.all(drop(x, 1.0).numpy() == 0)


@pytest.mark.parametrize(("drop", "shape"), [(F.dropout1d, (30, 4)), (F.dropout3d, (30, 2, 2, 2))])
def test_dropout_of_channels_without_a_batch(drop, shape):
    rows = drop(weft.ones(*shape), 0.5).numpy().reshape(30, -1)
    assert np.array_equal(rows, np.repeat(rows[:, :1], rows.shape[1], 1)) and 0 < (rows[:, 0] == 0).sum() < 30


@pytest.mark.parametrize("shape", [(4000,), (40, 100, 3)])
def test_alpha_dropout_keeps_mean_and_variance(shape):
    weft.manual_seed(1)
    drop = F.alpha_dropout if len(shape) == 1 else F.feature_alpha_dropout
    x = weft.randn(*shape)
    y = drop(x, 0.2, training=True).numpy()
    assert abs(y.mean()) < 0.08 and abs(y.std() - 1.0) < 0.08
    dropped = np.isclose(y, np.float32(-1.7580993408473766 * 0.8 / math.sqrt((1.7580993408473766**2 * 0.2 + 1) * 0.8)))
    assert 0.15 < dropped.mean() < 0.25
    assert drop(x, 0.2) is x


def test_dropouts_write_in_place():
    for drop in (F.dropout, F.dropout2d, F.alpha_dropout):
        x = weft.ones(8, 8, 2)
        y = drop(x, 0.5, True, True)
        assert y is x and not np.array_equal(x.numpy(), np.ones((8, 8, 2)))
    x = weft.tensor([-1.0, 2.0])
    assert F.rrelu(x, 0.5, 0.5, inplace=True) is x and x.tolist() == [-0.5, 2.0]


def test_rrelu_draws_slopes_between_its_bounds():
    x = weft.full((500,), -2.0).requires_grad_()
    y = F.rrelu(x, 0.25, 0.75, training=True)
    y.sum().backward()
    slopes = -y.numpy() / 2
    assert slopes.min() >= 0.25 and slopes.max() <= 0.75 and np.ptp(slopes) > 0.4
    np.testing.assert_allclose(x.grad.numpy(), slopes, rtol=1e-6)


def test_gumbel_softmax_draws_classes_by_their_probability():
    weft.manual_seed(0)
    logits = weft.tensor(np.log([0.7, 0.2, 0.1]).astype(np.float32)).expand(4000, 3).contiguous().requires_grad_()
    hard = F.gumbel_softmax(logits, tau=0.5, hard=True)
    rows = hard.numpy()
    assert np.array_equal(np.unique(rows), [0.0, 1.0]) and np.all(rows.sum(1) == 1)
    np.testing.assert_allclose(rows.mean(0), [0.7, 0.2, 0.1], atol=0.03)
    (hard * weft.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert np.isfinite(logits.grad.numpy()).all() and np.abs(logits.grad.numpy()).max() > 0
    soft = F.gumbel_softmax(logits.detach(), tau=2.0, dim=0)
    np.testing.assert_allclose(soft.numpy().sum(0), np.ones(3), rtol=1e-5)


def test_random_functions_follow_their_generator_compiled_or_not():
    x = weft.randn(4, 6)

    def draws(x, generator):
        return (
            F.dropout1d(x, 0.5, generator=generator),
            F.alpha_dropout(x, 0.5, True, generator=generator),
            F.rrelu(x, training=True, generator=generator),
            F.gumbel_softmax(x, hard=True, generator=generator),
            F.fractional_max_pool2d(x[None, None], 2, output_size=2, generator=generator),
        )

    first = [one.numpy() for one in draws(x, weft.Generator(5))]
    generator = weft.Generator(5)
    second = [one.numpy() for one in weft.compile(lambda x: draws(x, generator))(x)]
    for one, two in zip(first, second, strict=True):
        assert np.array_equal(one, two)


def test_embedding_bounds_the_norms_of_rows_it_uses():
    table = np.array([[3.0, 4.0], [0.3, 0.4], [6.0, 8.0]], np.float32)
    ours, theirs = weft.tensor(table).requires_grad_(), torch.from_numpy(table.copy()).requires_grad_()
    out = F.embedding(weft.tensor([0, 1]), ours, max_norm=1.0)
    expected = TF.embedding(torch.tensor([0, 1]), theirs, max_norm=1.0)
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-6)
    out.sum().backward()
    assert ours.grad.tolist() == [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]


def test_embedding_bag_divides_gradients_by_frequency():
    """By its own frequency; PyTorch's kernel for bags on the CPU takes that of another row."""
    table = weft.ones(4, 1).requires_grad_()
    F.embedding_bag(weft.tensor([[0, 2, 2]]), table, mode="sum", scale_grad_by_freq=True).sum().backward()
    assert table.grad.flatten().tolist() == [1.0, 0.0, 1.0, 0.0]


def test_one_hot_reads_its_classes_outside_compile_only():
    assert F.one_hot(weft.tensor([1, 2])).shape == (2, 3)
    with pytest.raises(weft.GraphError, match="pass num_classes"):
        weft.compile(lambda x: F.one_hot(x))(weft.tensor([1, 2]))


def test_attention_weights_drop_in_training_only():
    x, w, o = weft.randn(3, 2, 4), weft.randn(12, 4), weft.randn(4, 4)

    def weights(training):
        return F.multi_head_attention_forward(x, x, x, 4, 2, w, None, None, None, False, 0.5, o, None, training)[1]

    np.testing.assert_allclose(weights(False).numpy().sum(-1), np.ones((2, 3)), rtol=1e-5)
    assert np.abs(weights(True).numpy().sum(-1) - 1).max() > 0.05


# What torch.nn.functional has and Weft does not: torch's own helpers, and products of grouped or scaled 8-bit floats.
NOT_FUNCTIONS = {"assert_int_or_pair", "boolean_dispatch", "handle_torch_function", "has_torch_function"}
WITHOUT_COUNTERPART = {"grouped_mm", "scaled_grouped_mm", "scaled_mm"}


def test_every_function_of_torch_is_there():
    names = {
        name
        for name, value in vars(TF).items()
        if callable(value) and not name.startswith("_") and not isinstance(value, type)
    }
    own = {name for name in names if name in NOT_FUNCTIONS or name.startswith("has_torch_function")}
    typing = {name for name in names if name in ("Callable", "Optional")}
    assert names - own - typing - set(dir(F)) == WITHOUT_COUNTERPART


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("celu", (0.5,)), ("elu", (0.5,)), ("hardtanh", (-0.5, 0.7)), ("leaky_relu", (0.2,)), ("relu", ()),
        ("rrelu", (0.2, 0.4)), ("selu", ()), ("threshold", (0.1, 7.0)),
    ],
)  # fmt: skip
def test_activations_that_write_to_their_input(name, args):
    values = np.array([-2.0, -0.3, 0.0, 0.6, 3.0], np.float32)
    ours, theirs = weft.tensor(values), torch.from_numpy(values.copy())
    assert getattr(F, name + "_")(ours, *args) is ours
    getattr(TF, name + "_")(theirs, *args)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)
    leaf = weft.tensor(values).requires_grad_()
    with pytest.raises(weft.GraphError, match=f"{name}_"):
        getattr(F, name + "_")(leaf, *args)


@pytest.mark.parametrize("rank", [2, 3])
def test_fractional_pooling_with_indices(rank):
    rng = np.random.default_rng(0)
    x, u = rng.normal(size=(1, 2, *[7] * rank)), rng.uniform(size=(1, 2, rank))
    name = f"fractional_max_pool{rank}d_with_indices"
    ours = getattr(F, name)(weft.tensor(x), 2, output_size=3, _random_samples=weft.tensor(u))
    theirs = getattr(TF, name)(torch.from_numpy(x), 2, output_size=3, _random_samples=torch.from_numpy(u))
    for one, other in zip(ours, theirs, strict=True):
        assert np.array_equal(one.numpy(), other.numpy())


# --- losses that torch has not, against their formulas in NumPy ------------------------------------------------------


def loss_and_gradients(loss, *arrays):
    """The loss of float64 tensors, and its gradients."""
    tensors = [weft.tensor(one).requires_grad_() for one in arrays]
    value = loss(*tensors)
    value.backward()
    return value.item(), [one.grad.numpy() for one in tensors]


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("alpha", "gamma"), [(0.25, 2.0), (0.6, 1.5), (0.25, 0.0)])
def test_focal_loss_and_its_gradient(alpha, gamma):
    """dz = (2y - 1) a (1 - p)^g (g p log p - (1 - p)), of negatives too."""
    rng = np.random.default_rng(1)
    z, y = rng.normal(size=(4, 5)) * 3, (rng.random((4, 5)) < 0.5).astype(float)
    s = 1 / (1 + np.exp(-z))
    p, a = np.where(y == 1, s, 1 - s), np.where(y == 1, alpha, 1 - alpha)
    value, (slope,) = loss_and_gradients(
        lambda z: F.sigmoid_focal_loss(z, weft.tensor(y), alpha, gamma, reduction="sum"), z
    )
    close(value, (-a * (1 - p) ** gamma * np.log(p)).sum())
    close(slope, (2 * y - 1) * a * (1 - p) ** gamma * (gamma * p * np.log(p) - (1 - p)))


def test_focal_loss_of_classes_and_its_gradient():
    rng = np.random.default_rng(2)
    z, y, alpha = rng.normal(size=(6, 4)) * 2, rng.integers(0, 4, 6), rng.uniform(0.1, 1.0, 4)
    value, (slope,) = loss_and_gradients(lambda z: F.softmax_focal_loss(z, weft.tensor(y), weft.tensor(alpha), 2.0), z)
    soft = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    p, a, hot = soft[range(6), y][:, None], alpha[y][:, None], np.eye(4)[y]
    close(value, (-a * (1 - p) ** 2 * np.log(p)).mean())
    # dL/dp times dp/dz = p (hot - soft)
    close(slope, a * (2 * (1 - p) * np.log(p) - (1 - p) ** 2 / p) * p * (hot - soft) / 6)


def test_contrastive_loss_and_its_gradient():
    """Similar pairs draw together, others push apart below the margin; nothing moves where both are one point."""
    rng = np.random.default_rng(3)
    x1, x2 = rng.normal(size=(5, 3)), rng.normal(size=(5, 3))
    x2[1], y, margin = x1[1], np.array([1.0, 0.0, 0.0, 1.0, 0.0]), 2.5
    value, (first, second) = loss_and_gradients(lambda a, b: F.contrastive_loss(a, b, weft.tensor(y), margin), x1, x2)
    d = np.sqrt(((x1 - x2) ** 2).sum(1))
    close(value, (0.5 * (y * d**2 + (1 - y) * np.maximum(0, margin - d) ** 2)).mean())
    with np.errstate(all="ignore"):
        push = np.where((d < margin) & (d > 0), -(margin - d) / np.where(d > 0, d, 1), 0.0)
    expected = np.where(y == 1, 1.0, push)[:, None] * (x1 - x2) / 5
    close(first, expected)
    close(second, -expected)


def test_gaussian_kl_and_its_gradient():
    rng = np.random.default_rng(4)
    mean, log_variance = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    value, (in_mean, in_log) = loss_and_gradients(F.gaussian_kl, mean, log_variance)
    close(value, (-0.5 * (1 + log_variance - mean**2 - np.exp(log_variance))).sum(1).mean())
    close(in_mean, mean / 3)
    close(in_log, 0.5 * (np.exp(log_variance) - 1) / 3)


def test_capsule_margin_loss_and_its_gradient():
    rng = np.random.default_rng(5)
    v, t = rng.random((3, 4)), np.eye(4)[[1, 3, 0]]
    value, (slope,) = loss_and_gradients(lambda v: F.capsule_margin_loss(v, weft.tensor(t)), v)
    above, below = np.maximum(0, 0.9 - v), np.maximum(0, v - 0.1)
    close(value, (t * above**2 + 0.5 * (1 - t) * below**2).sum(1).mean())
    close(slope, (-2 * t * above + (1 - t) * below) / 3)
