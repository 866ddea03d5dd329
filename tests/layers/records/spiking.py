"""Records of spiking neurons."""

import math

import numpy as np
import torch

import weft
import weft.nn as nn
import weft.nn.functional as F
from tests.layers.oracles import load, of_numpy
from tests.layers.record import Bad, LayerRecord

snntorch = load("snntorch")


def _integrate(options, state, current, free):
    potential, last = state
    decay = 1.0 if options.get("neuron") == "if" else 1 - 1 / options.get("tau", 10.0)
    theta = options.get("threshold", 1.0)
    if options.get("reset", "zero") == "zero":
        potential = decay * potential * (1 - last) + current
    else:
        potential = decay * potential + current - theta * last
    spikes = (potential >= theta) & free
    return (potential, spikes.astype(float)), spikes


def _izhikevich(options, state, current, free):
    v, u = state
    v = v + 0.5 * (0.04 * v**2 + 5 * v + 140 - u + current)
    v = v + 0.5 * (0.04 * v**2 + 5 * v + 140 - u + current)
    u = u + 0.02 * (0.2 * v - u)
    fired = v >= 30
    return (np.where(fired, -65.0, v), np.where(fired, u + 8, u)), fired & free


def _adex(options, state, current, free):
    v, w = state
    tau = options.get("tau", 10.0)
    new_v = v + (-(v + 70) + 2 * np.exp(np.minimum((v + 50) / 2, 20)) - w + current) / tau
    new_w = w + (4 * (v + 70) - w) / 30
    fired = new_v >= 0
    return (np.where(fired, -70.0, new_v), np.where(fired, new_w + 0.5, new_w)), fired & free


def _gate_rates(v):
    with np.errstate(invalid="ignore", divide="ignore"):
        m = np.where(v == -40, 1.0, 0.1 * (v + 40) / (1 - np.exp(-(v + 40) / 10)))
        n = np.where(v == -55, 0.1, 0.01 * (v + 55) / (1 - np.exp(-(v + 55) / 10)))
    return (
        (m, 4 * np.exp(-(v + 65) / 18)),
        (0.07 * np.exp(-(v + 65) / 20), 1 / (1 + np.exp(-(v + 35) / 10))),
        (n, 0.125 * np.exp(-(v + 65) / 80)),
    )


def _hodgkin_huxley(options, state, current, free):
    v, *gates = state
    m, h, n = gates
    total = current - 120 * m**3 * h * (v - 50) - 36 * n**4 * (v + 77) - 0.3 * (v + 54.387)
    new_v = v + 0.01 * total
    rates = zip(gates, _gate_rates(v), strict=True)
    gates = [gate + 0.01 * (opening * (1 - gate) - closing * gate) for gate, (opening, closing) in rates]
    return (new_v, *gates), (v < 0) & (new_v >= 0) & free


_REST = [float(opening / (opening + closing)) for opening, closing in _gate_rates(np.float64(-65.0))]
_NEURONS = {
    "lif": (_integrate, (0.0, 0.0)),
    "if": (_integrate, (0.0, 0.0)),
    "izhikevich": (_izhikevich, (-65.0, -13.0)),
    "adex": (_adex, (-70.0, 0.0)),
    "hodgkin_huxley": (_hodgkin_huxley, (-65.0, *_REST)),
}


def _simulate(current, **options):
    """Spikes [B, T, out] and the last state of neurons with a current [B, T, out], step by step."""
    step, rest = _NEURONS[options.get("neuron", "lif")]
    state = tuple(np.full(current[:, 0].shape, value) for value in rest)
    refractory = options.get("refractory", 0)
    wait = np.zeros(current[:, 0].shape)
    spikes = []
    for now in current.transpose(1, 0, 2):
        free = wait <= 0
        state, fired = step(options, state, np.where(free, now, 0.0), free)
        wait = np.where(fired, refractory, np.maximum(wait - 1, 0))
        spikes.append(fired.astype(float))
    return np.stack(spikes, 1), (*state, wait) if refractory else state


def _oracle(**options):
    def spiking(state, x):
        return _simulate(x @ state["weight"].T + state.get("bias", 0.0), **options)

    return of_numpy(spiking)


def _driven(current, **options):
    """The spikes [T] and states of one neuron that gets this current."""
    layer = nn.Spiking(1, 1, bias=False, **options).double()
    with weft.no_grad():
        layer.weight.fill_(1.0)
    spikes, state = layer(weft.tensor(np.asarray(current, np.float64).reshape(1, -1, 1)))
    return spikes.detach().numpy()[0, :, 0], [one.item() for one in state]


def _period():
    """Constant input I > threshold (1 - decay): a spike every ceil(log(1 - threshold (1 - decay) / I) / log decay)."""
    for current in (0.101, 0.13, 0.21, 0.55, 1.5):
        spikes = _driven(np.full(400, current))[0]
        period = math.ceil(math.log(1 - 0.1 / current) / math.log(0.9))
        assert np.flatnonzero(spikes)[:4].tolist() == [period * k - 1 for k in range(1, 5)], current
    assert _driven(np.full(400, 0.0999))[0].sum() == 0


def _regular_spiking():
    """An Izhikevich neuron at I = 10 fires regularly, with intervals that grow at first; at 0 it is silent."""
    spikes, state = _driven(np.full(200, 10.0), neuron="izhikevich")
    expected, (v, u) = _simulate(np.full((1, 200, 1), 10.0), neuron="izhikevich")
    np.testing.assert_array_equal(spikes, expected[0, :, 0])
    np.testing.assert_allclose(state, [v.item(), u.item()], rtol=1e-8)  # every spike multiplies what was rounded
    spikes = _driven(np.full(500, 10.0), neuron="izhikevich")[0]
    intervals = np.diff(np.flatnonzero(spikes))
    assert len(intervals) > 5 and intervals[0] < 0.7 * intervals[1:].min() and intervals[1:].max() < 70
    assert _driven(np.zeros(300), neuron="izhikevich")[0].sum() == 0


def _biophysical_neurons_fire():
    """Hodgkin-Huxley: no spike without current, repeated spikes at 10; adex: none at 15, some at 200."""
    assert _driven(np.zeros(3000), neuron="hodgkin_huxley")[0].sum() == 0
    spikes, state = _driven(np.full(6000, 10.0), neuron="hodgkin_huxley")
    expected, last = _simulate(np.full((1, 6000, 1), 10.0), neuron="hodgkin_huxley")
    np.testing.assert_array_equal(spikes, expected[0, :, 0])
    np.testing.assert_allclose(state, [one.item() for one in last], rtol=1e-6)
    assert 3 <= spikes.sum() <= 6
    assert _driven(np.full(300, 15.0), neuron="adex")[0].sum() == 0
    assert _driven(np.full(300, 200.0), neuron="adex")[0].sum() > 3


def _snntorch():
    """Spikes, membrane and gradients of snntorch's Leaky with reset by subtraction, in float64."""
    random = np.random.default_rng(0)
    x = random.normal(size=(3, 25, 4)) + 0.3
    layer = nn.Spiking(4, 5, tau=8.0, reset="subtract").double()  # 1 - 1/8 is a float32: snntorch has it so
    given = weft.tensor(x, requires_grad=True)
    spikes, (potential, _) = layer(given)
    goal = random.normal(size=(3, 25, 5))
    ((spikes * weft.tensor(goal)).sum() + potential.sum()).backward()

    linear = torch.nn.Linear(4, 5).double()
    linear.load_state_dict({key: torch.tensor(value.numpy()) for key, value in layer.state_dict().items()})
    neuron = snntorch.Leaky(
        beta=0.875, reset_mechanism="subtract", spike_grad=snntorch.surrogate.fast_sigmoid(slope=25)
    ).double()
    theirs, membrane, found = torch.tensor(x, requires_grad=True), torch.zeros(3, 5).double(), []
    for t in range(25):
        one, membrane = neuron(linear(theirs[:, t]), membrane)
        found.append(one)
    found = torch.stack(found, 1)
    assert found.sum() > 10
    np.testing.assert_array_equal(spikes.detach().numpy(), found.detach().numpy())
    np.testing.assert_allclose(potential.detach().numpy(), membrane.detach().numpy(), rtol=1e-9)
    ((found * torch.tensor(goal)).sum() + membrane.sum()).backward()
    pairs = ((given, theirs), (layer.weight, linear.weight), (layer.bias, linear.bias))
    for ours, other in pairs:  # snntorch's spikes, and so their gradients, are float32
        np.testing.assert_allclose(ours.grad.numpy(), other.grad.numpy(), rtol=1e-5, atol=1e-7)


class _Step(torch.autograd.Function):
    """A spike in torch, with a pseudo-derivative."""

    @staticmethod
    def forward(ctx, x, rule):
        ctx.save_for_backward(x)
        ctx.rule = rule
        return (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.rule(ctx.saved_tensors[0]), None


def _strong_random_currents(neuron, scale, steps):
    """Neurons that fire often, with and without refractory steps."""

    def check():
        current = np.abs(np.random.default_rng(0).normal(size=(2, steps, 1))) * scale
        for refractory in (0, 3):
            options = {"neuron": neuron, "refractory": refractory}
            layer = nn.Spiking(1, 1, bias=False, **options).double()
            with weft.no_grad():
                layer.weight.fill_(1.0)
                spikes, state = layer(weft.tensor(current))
            expected, last = _simulate(current, **options)
            assert expected.sum() >= 4
            np.testing.assert_array_equal(spikes.numpy(), expected)
            for one, other in zip(state, last, strict=True):
                np.testing.assert_allclose(one.numpy(), other, rtol=1e-6)

    return check


def _surrogates():
    """The gradient through time with reset to zero, for each pseudo-derivative, with k = 3, and refractory steps."""
    rules = {
        "fast_sigmoid": lambda x: 1 / (1 + 3 * x.abs()) ** 2,
        "atan": lambda x: 1.5 / (1 + (math.pi * 1.5 * x) ** 2),
        "sigmoid": lambda x: 3 * torch.sigmoid(3 * x) * (1 - torch.sigmoid(3 * x)),
    }
    random = np.random.default_rng(0)
    current, goal = random.normal(size=(2, 12, 3)) + 0.4, random.normal(size=(2, 12, 3))
    for refractory in (0, 2):
        for name, rule in rules.items():
            layer = nn.Spiking(3, 3, surrogate=name, slope=3.0, bias=False, refractory=refractory).double()
            with weft.no_grad():
                layer.weight.copy_(weft.eye(3))
            given = weft.tensor(current, requires_grad=True)
            spikes, _ = layer(given)
            (spikes * weft.tensor(goal)).sum().backward()

            theirs, wait = torch.tensor(current, requires_grad=True), torch.zeros(2, 3)
            potential, last, found = torch.zeros(2, 3).double(), torch.zeros(2, 3).double(), []
            for t in range(12):
                free = wait <= 0
                potential = 0.9 * potential * (1 - last) + torch.where(free, theirs[:, t], 0.0)
                one = torch.where(free, _Step.apply(potential - 1, rule), 0.0)
                wait = torch.where(one > 0, float(refractory), (wait - 1).clamp(min=0))
                last = one.detach()
                found.append(one)
            found = torch.stack(found, 1)
            (found * torch.tensor(goal)).sum().backward()
            np.testing.assert_array_equal(spikes.detach().numpy(), found.detach().numpy())
            np.testing.assert_allclose(given.grad.numpy(), theirs.grad.numpy(), rtol=1e-8, atol=1e-12)


def _steps_with_state():
    """One step at a time, and two halves of a sequence, are the whole sequence."""
    for options in ({}, {"neuron": "izhikevich"}, {"refractory": 2, "reset": "subtract"}, {"neuron": "hodgkin_huxley"}):
        layer = nn.Spiking(3, 2, **options)
        x = weft.tensor(np.random.default_rng(0).normal(size=(2, 8, 3)) * 4, dtype=weft.float32)
        with weft.no_grad():
            whole, last = layer(x)
            state, found = None, []
            for t in range(8):
                one, state = layer(x[:, t], state)
                found.append(one.numpy())
            half, middle = layer(x[:, :5])
            rest, end = layer(x[:, 5:], middle)
        np.testing.assert_array_equal(whole.numpy(), np.stack(found, 1))
        np.testing.assert_array_equal(whole.numpy(), np.concatenate([half.numpy(), rest.numpy()], 1))
        for one, two, three in zip(last, state, end, strict=True):
            np.testing.assert_allclose(one.numpy(), two.numpy(), rtol=1e-6)
            np.testing.assert_allclose(one.numpy(), three.numpy(), rtol=1e-6)


def _small_task():
    """Two layers learn by surrogate gradients whether the first or the second half of a sequence had more spikes."""
    weft.manual_seed(0)
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 64)
    rate = np.where((np.arange(20) < 10)[None] == (labels == 0)[:, None], 0.8, 0.2)
    x = weft.tensor((random.random((64, 20, 4)) < rate[..., None]).astype(np.float32))
    y = weft.tensor(labels)
    hidden, out = nn.Spiking(4, 24), nn.Spiking(24, 2)
    optimizer = weft.optim.Adam([*hidden.parameters(), *out.parameters()], lr=0.02)

    def counts():
        return out(hidden(x)[0])[0].sum(1)

    @weft.compile
    def step():
        loss = F.cross_entropy(counts(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = [step().item() for _ in range(150)]
    right = (counts().argmax(1) == y).float().mean().item()
    assert right >= 0.95 and losses[-1] < 0.3 * losses[0], (right, losses[0], losses[-1])


def _record(variant, oracle=None, scale=1.0, steps=6, learning_rate=0.02, checks=None, bad=(), edges=None, **options):
    return LayerRecord(
        name="Spiking",
        variant=variant,
        make=lambda: nn.Spiking(4, 3, **options),
        inputs=lambda draw: (draw.normal(2, steps, 4) * scale,),
        oracle=oracle or _oracle(**options),
        traits=frozenset({"batch", "sequence"}),
        own_gradient=True,
        rtol=1e-4,
        bf16="a spike comes earlier or later when its membrane is rounded",
        bad=bad,
        no_bad="" if bad else "as the first record",
        checks=checks or {},
        edges=edges or {},
        learning_rate=learning_rate,
    )


RECORDS = [
    _record(
        "",
        scale=2.0,
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 5, 3)), match=r"\(2, 5, 3\).*4", error=weft.ShapeError),
            Bad(
                call=lambda layer: layer(weft.ones(2, 4), (weft.ones(2, 3),)),
                match=r"2 tensors of shape \(2, 3\)",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: nn.Spiking(4, 3, "liff"), match="'liff'.*lif, if", error=weft.RangeError),
            Bad(call=lambda layer: nn.Spiking(4, 3, reset="one"), match="reset='one'", error=weft.RangeError),
            Bad(call=lambda layer: nn.Spiking(4, 3, surrogate="x"), match="surrogate='x'", error=weft.RangeError),
            Bad(call=lambda layer: nn.Spiking(4, 3, tau=0.5), match="tau=0.5", error=weft.RangeError),
        ],
        checks={
            "period": _period,
            "snntorch": _snntorch,
            "surrogates": _surrogates,
            "state": _steps_with_state,
            "a small task": _small_task,
        },
    ),
    _record("if, subtract", scale=2.0, neuron="if", reset="subtract", threshold=0.7, bias=False),
    _record("refractory", scale=3.0, steps=8, refractory=2, surrogate="sigmoid", slope=5.0),
    _record(
        "izhikevich",
        neuron="izhikevich",
        learning_rate=0.2,
        checks={
            "regular spiking": _regular_spiking,
            "strong currents": _strong_random_currents("izhikevich", 15.0, 60),
        },
    ),
    _record(
        "adex",
        scale=10.0,
        neuron="adex",
        surrogate="atan",
        slope=2.0,
        learning_rate=0.5,
        checks={"strong currents": _strong_random_currents("adex", 300.0, 100)},
    ),
    _record(
        "hodgkin_huxley",
        neuron="hodgkin_huxley",
        learning_rate=20.0,
        checks={
            "biophysical neurons": _biophysical_neurons_fire,
            "strong currents": _strong_random_currents("hodgkin_huxley", 80.0, 2000),
        },
    ),
]
