"""Records of the restricted Boltzmann machine."""

import itertools

import numpy as np

import weft
import weft.nn as nn
from tests.layers.checks import check_rule
from tests.layers.oracles import of_numpy
from tests.layers.record import Bad, LayerRecord


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _machine(visible=3, hidden=2, scale=1.0, seed=0):
    """A layer with weights of a size that matters, and its weights in float64."""
    random = np.random.default_rng(seed)
    layer = nn.RBM(visible, hidden)
    with weft.no_grad():
        for param in (layer.weight, layer.visible_bias, layer.hidden_bias):
            param.copy_(weft.tensor(random.normal(size=tuple(param.shape)) * scale))
    return layer, *[one.detach().numpy().astype(np.float64) for one in layer.parameters()]


def _states(count):
    return np.array(list(itertools.product((0.0, 1.0), repeat=count)))


def _probabilities(weight, b, c):
    """p(v) of all visible states, by summing over all hidden ones."""
    v, h = _states(len(b)), _states(len(c))
    energy = -(v @ b)[:, None] - h @ c - v @ weight.T @ h.T
    joint = np.exp(-energy)
    return v, joint.sum(1) / joint.sum()


def _free_energy():
    layer, weight, b, c = _machine()
    v, p = _probabilities(weight, b, c)
    found = np.exp(-layer.free_energy(weft.tensor(v, dtype=weft.float32)).detach().numpy().astype(np.float64))
    np.testing.assert_allclose(found / found.sum(), p, rtol=1e-5)


def _exact_gradient(data, weight, b, c):
    """Of the mean log-likelihood in the weight and both biases."""
    v, p = _probabilities(weight, b, c)

    def statistics(states, probabilities):
        h = _sigmoid(states @ weight.T + c)
        return h.T @ (states * probabilities[:, None]), probabilities @ states, probabilities @ h

    ours, model = statistics(data, np.full(len(data), 1 / len(data))), statistics(v, p)
    return [one - other for one, other in zip(ours, model, strict=True)]


def _approaches_the_likelihood_gradient():
    """The average over many chains; its error falls as k grows."""
    data = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    many = weft.tensor(np.tile(data, (8000, 1)), dtype=weft.float32)
    errors = []
    for k in (1, 3, 30):
        layer, weight, b, c = _machine(scale=2.5, seed=1)
        exact = _exact_gradient(data, weight, b, c)
        weft.manual_seed(k)
        layer.learn(many, k=k, lr=1.0)
        moved = [one.detach().numpy() - start for one, start in zip(layer.parameters(), (weight, b, c), strict=True)]
        errors.append(max(np.abs(one - other).max() for one, other in zip(moved, exact, strict=True)))
    assert errors[0] > 0.1 and errors[1] < 0.2 * errors[0] and errors[2] < 0.008, errors


def _one_step_of_the_rule():
    """ΔW, Δb and Δc from the samples that were drawn, with momentum and decay; eager and compiled."""
    data = (np.random.default_rng(0).random((6, 4)) < 0.5).astype(np.float64)
    given = weft.tensor(data, dtype=weft.float32)
    layer, weight, b, c = _machine(4, 3)
    other = _machine(4, 3)[0]
    step = weft.compile(lambda v: other.learn(v, k=2, lr=0.2, momentum=0.5, weight_decay=0.1))
    velocity = [np.zeros_like(one) for one in (weight, b, c)]
    for number in range(3):
        weft.manual_seed(number)
        error = layer.learn(given, k=2, lr=0.2, momentum=0.5, weight_decay=0.1)
        weft.manual_seed(number)
        assert abs(step(given).item() - error.item()) < 1e-6
        weft.manual_seed(number)
        h0 = _sigmoid(data @ weight.T + c)
        h = weft.bernoulli(weft.tensor(h0, dtype=weft.float32)).numpy().astype(np.float64)
        for _ in range(2):
            v = _draw(_sigmoid(h @ weight + b))
            probability = _sigmoid(v @ weight.T + c)
            h = _draw(probability)
        changes = (h0.T @ data - probability.T @ v) / 6 - 0.1 * weight, (data - v).mean(0), (h0 - probability).mean(0)
        velocity = [0.5 * old + 0.2 * new for old, new in zip(velocity, changes, strict=True)]
        weight, b, c = (one + moved for one, moved in zip((weight, b, c), velocity, strict=True))
        for one, twin, expected in zip(layer.parameters(), other.parameters(), (weight, b, c), strict=True):
            np.testing.assert_allclose(one.detach().numpy(), expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(twin.detach().numpy(), expected, rtol=1e-5, atol=1e-6)
        assert abs(error.item() - ((data - v) ** 2).mean()) < 1e-6


def _draw(p):
    return weft.bernoulli(weft.tensor(p, dtype=weft.float32)).numpy().astype(np.float64)


def _likelihood_rises():
    """On two patterns, by CD-1 and by persistent chains, compiled; the chain is a buffer that goes on."""
    data = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]] * 8)
    for persistent in (False, True):
        weft.manual_seed(0)
        layer = nn.RBM(4, 3)
        layer.reset(batch_size=16)
        given = weft.tensor(data, dtype=weft.float32)
        step = weft.compile(lambda: layer.learn(given, k=1, lr=0.1, momentum=0.5, persistent=persistent))  # noqa: B023
        likelihoods = []
        for _ in range(4):
            v, p = _probabilities(*[one.detach().numpy().astype(np.float64) for one in layer.parameters()])
            index = [int(np.flatnonzero((v == row).all(1))[0]) for row in data]
            likelihoods.append(np.log(p[index]).mean())
            chain = layer.chain.numpy().copy()
            for _ in range(100):
                step()
        assert likelihoods[0] < -2.7 and likelihoods[1] < likelihoods[2] and likelihoods[-1] > -1.5, likelihoods
        assert (layer.chain.numpy() != chain).any() == persistent
        assert step.retraces == []


def _eval_never_learns():
    layer = nn.RBM(4, 3).eval()
    before = [one.detach().numpy().copy() for one in layer.parameters()]
    layer.learn(weft.ones(2, 4), lr=1.0, persistent=True)
    for one, start in zip(layer.parameters(), before, strict=True):
        np.testing.assert_array_equal(one.detach().numpy(), start)
    assert len(layer.chain) == 0


def _samples_have_their_probabilities():
    layer, weight, b, c = _machine()
    weft.manual_seed(0)
    v, h = np.tile([[1.0, 0.0, 1.0]], (20000, 1)), np.tile([[1.0, 0.0]], (20000, 1))
    found = layer.sample_h(weft.tensor(v, dtype=weft.float32)).mean(0).numpy()
    np.testing.assert_allclose(found, _sigmoid(v[0] @ weight.T + c), atol=0.015)
    found = layer.sample_v(weft.tensor(h, dtype=weft.float32)).mean(0).numpy()
    np.testing.assert_allclose(found, _sigmoid(h[0] @ weight + b), atol=0.015)


def _persistent():
    layer = nn.RBM(5, 3)
    layer.reset(batch_size=4)
    return layer


RECORDS = [
    LayerRecord(
        name="RBM",
        make=lambda: nn.RBM(5, 3),
        inputs=lambda draw: (draw.uniform(4, 5),),
        oracle=of_numpy(lambda state, v: _sigmoid(v @ state["weight"].T + state["hidden_bias"])),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 4)), match=r"\(2, 4\).*\(3, 5\)", error=weft.ShapeError),
            Bad(call=lambda layer: layer.learn(weft.ones(2, 4)), match=r"\(2, 4\).*\[B, 5\]", error=weft.ShapeError),
            Bad(call=lambda layer: layer.learn(weft.ones(2, 5), k=0), match="k=0", error=weft.RangeError),
            Bad(call=lambda layer: nn.RBM(0, 3), match="n_visible=0", error=weft.RangeError),
            Bad(
                call=lambda layer: weft.compile(lambda: layer.learn(weft.ones(2, 5), persistent=True))(),
                match=r"reset\(batch_size=2\)",
                error=weft.ShapeError,
            ),
        ],
        checks={
            "free energy": _free_energy,
            "one step": _one_step_of_the_rule,
            "likelihood gradient": _approaches_the_likelihood_gradient,
            "likelihood rises": _likelihood_rises,
            "samples": _samples_have_their_probabilities,
            "eval never learns": _eval_never_learns,
            "a thousand steps": check_rule(_persistent, np.eye(4, 5), k=2, momentum=0.5, persistent=True),
        },
    )
]
