"""Records of synapses with local rules."""

import numpy as np

import weft
import weft.nn as nn
from tests.layers.checks import check_rule
from tests.layers.oracles import of_numpy
from tests.layers.record import Bad, LayerRecord


def _lag_formula():
    """One pair of spikes at every lag, in both orders."""
    for lag in (1, 2, 5):
        for first in ("pre", "post"):
            layer = nn.SynapticPlasticity(1, 1, homeostasis=0.0)
            layer.weight.fill_(0.3)
            for t in range(lag + 1):
                spikes = {"pre": 0.0, "post": 0.0}
                if t == 0:
                    spikes[first] = 1.0
                if t == lag:
                    spikes["post" if first == "pre" else "pre"] = 1.0
                layer.learn(weft.tensor([[spikes["pre"]]]), weft.tensor([[spikes["post"]]]))
            change = 0.005 * 0.95**lag * (1 - 0.3) if first == "pre" else -0.0025 * 0.95**lag * 0.3
            assert abs(layer.weight.item() - 0.3 - change) < 1e-7, (lag, first)
    layer = nn.SynapticPlasticity(1, 1, homeostasis=0.0)
    layer.weight.fill_(0.3)
    layer.learn(weft.ones(1, 1), weft.ones(1, 1))  # at the same time
    assert layer.weight.item() == np.float32(0.3)


def _stdp_is_numpy():
    """Eager and compiled, over a spike train of a batch."""
    random = np.random.default_rng(0)
    eager = nn.SynapticPlasticity(4, 3, a_plus=0.1, a_minus=0.2, homeostasis=0.01, w_min=-0.5)
    traced = nn.SynapticPlasticity(4, 3, a_plus=0.1, a_minus=0.2, homeostasis=0.01, w_min=-0.5)
    traced.load_state_dict(eager.state_dict())
    traced.reset(batch_size=2)
    step = weft.compile(lambda pre, post: traced.learn(pre, post, lr=0.5))
    weight = eager.weight.numpy().astype(np.float64)
    x, y = np.zeros((2, 4)), np.zeros((2, 3))
    for _ in range(20):
        pre, post = (random.random((2, 4)) < 0.4).astype(float), (random.random((2, 3)) < 0.4).astype(float)
        x, y = 0.95 * x, 0.95 * y
        change = np.zeros_like(weight)
        for b in range(2):
            change += 0.1 * (1.0 - weight) * np.outer(post[b], x[b]) / 2
            change -= 0.2 * (weight + 0.5) * np.outer(y[b], pre[b]) / 2
        weight = np.clip(weight + 0.5 * (change - 0.01 * (weight - 0.5)), -0.5, 1.0)
        x, y = x + pre, y + post
        given = [weft.tensor(one, dtype=weft.float32) for one in (pre, post)]
        eager.learn(*given, lr=0.5)
        step(*given)
        np.testing.assert_allclose(eager.weight.numpy(), weight, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(eager.weight.numpy(), traced.weight.numpy())
    assert step.retraces == []


def _oja_finds_the_first_component():
    weft.manual_seed(0)
    random = np.random.default_rng(0)
    data = random.normal(size=(400, 3)) @ np.array([[2.0, 1.0, 0.0], [0.0, 0.7, 0.2], [0.0, 0.0, 0.3]])
    layer = nn.SynapticPlasticity(3, 1, rule="oja")
    x = weft.tensor(data, dtype=weft.float32)
    step = weft.compile(lambda: layer.learn(x, lr=0.05))
    for _ in range(300):
        step()
    weight = layer.weight.numpy()[0].astype(np.float64)
    largest = np.linalg.eigh(data.T @ data / 400)[1][:, -1]
    assert abs(np.linalg.norm(weight) - 1) < 1e-3 and abs(abs(weight @ largest) - 1) < 1e-4


def _hebb():
    layer = nn.SynapticPlasticity(2, 2, rule="hebb")
    layer.weight.fill_(0.5)
    layer.learn(weft.tensor([[1.0, 0.0], [0.0, 2.0]]), weft.tensor([[0.1, 0.0], [0.0, 4.0]]))
    np.testing.assert_allclose(layer.weight.numpy(), [[0.55, 0.5], [0.5, 1.0]], rtol=1e-6)  # the last one is clipped


def _eval_never_learns():
    layer = nn.SynapticPlasticity(2, 2).eval()
    before = layer.weight.numpy().copy()
    for _ in range(3):
        layer.learn(weft.ones(1, 2), weft.ones(1, 2))
    np.testing.assert_array_equal(layer.weight.numpy(), before)
    assert layer.pre_trace.abs().max().item() == 0.0


def _reset():
    layer = nn.SynapticPlasticity(2, 3)
    layer.learn(weft.ones(4, 2), weft.ones(4, 3))
    assert layer.pre_trace.tolist() == [[1.0, 1.0]] * 4 and list(layer.state_dict()) == ["weight"]
    layer.reset()
    assert layer.pre_trace.tolist() == [[0.0, 0.0]] * 4 and layer.post_trace.tolist() == [[0.0] * 3] * 4


RECORDS = [
    LayerRecord(
        name="SynapticPlasticity",
        make=lambda: nn.SynapticPlasticity(4, 3),
        inputs=lambda draw: (draw.normal(5, 4),),
        oracle=of_numpy(lambda state, x: x @ state["weight"].T),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3)), match=r"\(2, 3\).*\(3, 4\)", error=weft.ShapeError),
            Bad(
                call=lambda layer: layer.learn(weft.ones(2, 4), weft.ones(1, 3)),
                match=r"\(2, 4\).*\(1, 3\)",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: layer.learn(weft.ones(2, 4)), match="no post", error=weft.ShapeError),
            Bad(call=lambda layer: nn.SynapticPlasticity(4, 3, "stdb"), match="'stdb'", error=weft.RangeError),
            Bad(
                call=lambda layer: weft.compile(layer.learn)(weft.ones(2, 4), weft.ones(2, 3)),
                match=r"reset\(batch_size=2\)",
                error=weft.ShapeError,
            ),
        ],
        checks={
            "lag formula": _lag_formula,
            "stdp": _stdp_is_numpy,
            "oja": _oja_finds_the_first_component,
            "hebb": _hebb,
            "eval never learns": _eval_never_learns,
            "reset": _reset,
            "a thousand steps": check_rule(lambda: nn.SynapticPlasticity(3, 2), np.eye(1, 3), np.eye(1, 2)),
        },
    )
]
