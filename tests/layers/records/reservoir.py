"""Records of echo state networks."""

import numpy as np

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy
from tests.layers.record import Bad, LayerRecord


def _echo(leak):
    def states(state, u, h=None):
        h = np.zeros((len(u), len(state["bias"]))) if h is None else h
        results = []
        for t in range(u.shape[1]):
            new = np.tanh(u[:, t] @ state["weight_in"].T + h @ state["weight_hh"].T + state["bias"])
            h = (1 - leak) * h + leak * new
            results.append(h)
        return np.stack(results, 1)

    return of_numpy(states)


def _spectral_radius():
    for radius, density, size in ((0.9, 0.1, 60), (1.3, 1.0, 7), (0.5, 0.1, 8), (0.7, 0.02, 5), (0.0, 0.5, 6)):
        layer = nn.Reservoir(2, size, spectral_radius=radius, density=density)
        found = np.abs(np.linalg.eigvals(layer.weight_hh.numpy().astype(np.float64))).max()
        assert abs(found - radius) < 1e-5, (radius, found)
    weft.manual_seed(0)
    layer = nn.Reservoir(2, 200, input_scaling=0.5, bias_scale=0.2)
    density = (layer.weight_hh != 0).float().mean().item()
    assert abs(density - 0.1) < 0.01
    assert 0.45 < layer.weight_in.abs().max().item() <= 0.5 and 0.15 < layer.bias.abs().max().item() <= 0.2


def _echo_state():
    """Two initial states converge under the same input."""
    weft.manual_seed(0)
    layer = nn.Reservoir(1, 50)
    u = weft.rand(1, 300, 1)
    random = np.random.default_rng(0)
    one, other = (layer(u, weft.tensor(random.normal(size=(1, 50)), dtype=weft.float32)) for _ in range(2))
    distance = (one - other).norm(dim=-1).numpy()[0]
    assert distance[0] > 0.1 and distance[-1] < 1e-5


def _goes_on():
    layer = nn.Reservoir(2, 10, density=0.5, leak=0.3)
    u = weft.rand(3, 8, 2)
    first = layer(u[:, :5])
    np.testing.assert_array_equal(layer(u)[:, 5:].numpy(), layer(u[:, 5:], first[:, -1]).numpy())


def _ridge_is_solve():
    random = np.random.default_rng(0)
    h, y = random.normal(size=(2, 30, 6)).astype(np.float32), random.normal(size=(2, 30, 3)).astype(np.float32)
    flat, goal = h.reshape(-1, 6).astype(np.float64), y.reshape(-1, 3).astype(np.float64)
    expected = np.linalg.solve(flat.T @ flat + 0.3 * np.eye(6), flat.T @ goal).T
    found = nn.Reservoir.fit_ridge(weft.tensor(h), weft.tensor(y), 0.3)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def _narma():
    """The NARMA-10 series from its input, better than the mean by far, on steps that were not fitted."""
    weft.manual_seed(1)
    random = np.random.default_rng(1)
    u, y = random.uniform(0, 0.5, 1500), np.zeros(1500)
    for t in range(9, 1499):
        y[t + 1] = 0.3 * y[t] + 0.05 * y[t] * y[t - 9 : t + 1].sum() + 1.5 * u[t - 9] * u[t] + 0.1
    layer = nn.Reservoir(1, 150, spectral_radius=0.95, input_scaling=0.3, bias_scale=0.3)
    states = layer(weft.tensor(u.reshape(1, -1, 1), dtype=weft.float32))[:, :-1]
    goals = weft.tensor(y[1:].reshape(1, -1, 1), dtype=weft.float32)
    weight = nn.Reservoir.fit_ridge(states[:, 100:1000], goals[:, 100:1000], 1e-6)
    error = ((states[:, 1000:] @ weight.T - goals[:, 1000:]) ** 2).mean().item() / y[1001:].var()
    assert error < 0.2, error


RECORDS = [
    LayerRecord(
        name="Reservoir",
        make=lambda: nn.Reservoir(2, 6, density=0.6),
        inputs=lambda draw: (draw.normal(3, 5, 2),),
        oracle=_echo(1.0),
        traits=frozenset({"batch", "sequence"}),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(1, 4, 3)), match=r"\(1, 4, 3\).*\[B, T, 2\]", error=weft.ShapeError),
            Bad(
                call=lambda layer: layer(weft.ones(1, 4, 2), weft.ones(2, 6)), match=r"\[1, 6\]", error=weft.ShapeError
            ),
            Bad(call=lambda layer: nn.Reservoir(2, 6, leak=0), match="leak=0", error=weft.RangeError),
            Bad(call=lambda layer: nn.Reservoir(2, 2, density=1e-9), match="raise the density", error=weft.RangeError),
            Bad(
                call=lambda layer: layer.fit_ridge(weft.ones(4, 6), weft.ones(5, 1)),
                match=r"\(4, 6\).*\(5, 1\)",
                error=weft.ShapeError,
            ),
        ],
        checks={
            "spectral radius": _spectral_radius,
            "echo state": _echo_state,
            "goes on": _goes_on,
            "ridge": _ridge_is_solve,
            "narma": _narma,
        },
    ),
    LayerRecord(
        name="Reservoir",
        variant="leak, bias, state",
        make=lambda: nn.Reservoir(2, 6, density=0.6, leak=0.4, bias_scale=0.5),
        inputs=lambda draw: (draw.normal(3, 5, 2), draw.normal(3, 6)),
        oracle=_echo(0.4),
        traits=frozenset({"batch"}),  # the state has no time: a sequence of one is in the other record
        no_bad="as without",
    ),
]
