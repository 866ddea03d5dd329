"""Records of the dense layers."""

import math

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy, of_torch, to_torch
from tests.layers.record import Bad, Case, LayerRecord
from weft.nn.basic.linear import expmap0, logmap0, mobius_add, octonion_signs, project_to_ball


def check_activations():
    """`activation` is a name, a function or a module; a module's parameters are the layer's."""
    x = weft.tensor([[1.0, -2.0]])
    plain = nn.Linear(2, 3)
    for activation in ("relu", weft.relu, nn.ReLU()):
        layer = nn.Linear(2, 3, activation=activation)
        layer.load_state_dict(plain.state_dict())
        np.testing.assert_array_equal(layer(x).detach(), plain(x).relu().detach())
    layer = nn.Linear(2, 3, activation="prelu")
    assert sorted(layer.state_dict()) == ["activation.weight", "bias", "weight"]
    assert nn.Dense is nn.FullyConnected is nn.Linear is nn.get("FullyConnectedLayer")
    lazy = nn.LazyLinear(3, activation="tanh")
    assert abs(lazy(x * 100).detach().numpy()).max() <= 1


def check_fused():
    """Bias and activation are launched as in plain tensor code: on the CPU they are part of the product's kernel."""
    x, layer = weft.randn(16, 8), nn.Linear(8, 8, activation="gelu")
    plain = weft.compile(lambda x: weft.nn.functional.gelu(weft.nn.functional.linear(x, layer.weight, layer.bias)))
    counts = []
    for step in (weft.compile(lambda x: layer(x)), plain):
        step(x)
        before = weft.counters()["launches"]
        step(x)
        counts.append(weft.counters()["launches"] - before)
    assert counts[0] == counts[1]
    assert counts[0] == 1 or weft.default_device().kind != "cpu"


# ---- LocallyConnected2d ---------------------------------------------------------------------------------------------


def locally_connected(state, x, kernel, padding, stride, size):
    """unfold and einsum."""
    patches = torch.nn.functional.unfold(to_torch(x), kernel, padding=padding, stride=stride)  # [B, C·k, P]
    weight = to_torch(state["weight"])
    y = torch.einsum("bip,poi->bop", patches, weight.flatten(2)).unflatten(-1, size)
    return y + to_torch(state["bias"]) if "bias" in state else y


def check_shared_weights():
    """With the same weights everywhere it is a convolution."""
    layer = nn.LocallyConnected2d(2, 3, (5, 6), (3, 2), stride=(2, 1), padding=1)
    conv = torch.nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=1)
    places = math.prod(layer.output_size)
    weight = conv.weight.detach().flatten(2).expand(places, 3, 2, 6)
    bias = conv.bias.detach()[:, None, None].expand(3, *layer.output_size)
    layer.load_state_dict({"weight": weight.contiguous(), "bias": bias.contiguous()})
    x = np.random.default_rng(0).normal(size=(2, 2, 5, 6)).astype(np.float32)
    np.testing.assert_allclose(layer(weft.tensor(x)).detach(), conv(torch.tensor(x)).detach(), rtol=1e-5, atol=1e-6)


# ---- HyperbolicLinear -----------------------------------------------------------------------------------------------


def norm(x):
    return np.sqrt((x * x).sum(-1, keepdims=True))


def hyperbolic(c, tangent=False, limit=4e-3):
    """The formula in its other form: tanh(‖Wx‖ / ‖x‖ artanh(√c ‖x‖)) Wx / (√c ‖Wx‖), then the Möbius sum."""

    def expmap(v):
        return np.tanh(np.sqrt(c) * norm(v)) * v / (np.sqrt(c) * norm(v))

    def oracle(state, x):
        x = expmap(x) if tangent else x
        wx = x @ state["weight"].T
        y = np.tanh(norm(wx) / norm(x) * np.arctanh(np.sqrt(c) * norm(x))) * wx / (np.sqrt(c) * norm(wx))
        if "bias" in state:
            b = expmap(state["bias"])
            xy, xx, yy = (y * b).sum(-1, keepdims=True), norm(y) ** 2, norm(b) ** 2
            y = ((1 + 2 * c * xy + c * yy) * y + (1 - c * xx) * b) / (1 + 2 * c * xy + c * c * xx * yy)
        return y * np.minimum(1, (1 - limit) / np.sqrt(c) / norm(y))

    return of_numpy(oracle)


def in_ball(draw, c, *shape):
    x = draw.normal(*shape)
    return x / (norm(x) * np.sqrt(c)) * draw.uniform(*shape[:-1], 1, high=0.9)


def check_identity_and_limit():
    """W = I, b = 0 is the identity; c → 0 is Linear; results stay inside the ball."""
    x = weft.tensor([[0.3, -0.4], [0.05, 0.0], [0.6, 0.6]])
    layer = nn.HyperbolicLinear(2, 2, c=1.3)
    layer.load_state_dict({"weight": np.eye(2), "bias": np.zeros(2)})
    np.testing.assert_allclose(layer(x).detach(), x.numpy(), rtol=2e-6)
    flat, plain = nn.HyperbolicLinear(2, 3, c=1e-8), nn.Linear(2, 3)
    flat.load_state_dict(plain.state_dict())
    np.testing.assert_allclose(flat(x).detach(), plain(x).detach(), rtol=1e-5, atol=1e-6)
    for c in (0.5, 2.0):
        layer = nn.HyperbolicLinear(2, 3, c=c, tangent_input=True)
        for dtype, limit in ((weft.float32, 4e-3), (weft.float64, 1e-5)):
            y = layer.to(dtype)(weft.tensor([[100.0, 3.0], [0.0, 0.0], [-1e-9, 5.0]], dtype=dtype))
            norms = y.norm(dim=-1).detach().numpy()
            assert np.isfinite(norms).all()
            assert (norms <= (1 - limit) / math.sqrt(c) * (1 + 1e-6)).all()


def check_gradient_at_zero():
    """Near the norm 0, where the formulas are 0 / 0, values and gradients are finite and right."""
    for bias in (True, False):
        for tangent in (True, False):
            layer = nn.HyperbolicLinear(3, 2, bias=bias, tangent_input=tangent)
            with weft.no_grad():
                if bias:
                    layer.bias.zero_()
            x = weft.zeros(2, 3, requires_grad=True)
            y = layer(x)
            (y * weft.tensor([1.0, 2.0])).sum().backward()
            np.testing.assert_array_equal(y.detach().numpy(), np.zeros((2, 2)))
            expected = layer.weight.detach().numpy().T @ np.array([1.0, 2.0])  # all maps are the identity at 0
            np.testing.assert_allclose(x.grad.numpy(), np.tile(expected, (2, 1)), rtol=1e-5)
            np.testing.assert_array_equal(layer.weight.grad.numpy(), np.zeros((2, 3)))
            if bias:
                np.testing.assert_allclose(layer.bias.grad.numpy(), [2.0, 4.0], rtol=1e-6)
    for size in (1e-30, 1e-8, 9.9e-4, 1e-3, 1.1e-3):  # the series and the formula meet
        v = np.array([0.6, 0.8]) * size
        np.testing.assert_allclose(expmap0(weft.tensor(v)).numpy(), np.tanh(size) * v / size, rtol=1e-14)
        np.testing.assert_allclose(logmap0(weft.tensor(v)).numpy(), np.arctanh(size) * v / size, rtol=1e-14)


def check_ball():
    """exp and log are inverse, 0 is neutral, -x is the inverse of x; points beyond the border are finite."""
    x = weft.tensor([[0.3, -0.2], [0.01, 0.5]], dtype=weft.float64)
    y = weft.tensor([[-0.1, 0.7], [0.2, 0.2]], dtype=weft.float64)
    for c in (0.5, 1.0, 1.7):
        np.testing.assert_allclose(expmap0(logmap0(x, c), c).numpy(), x.numpy(), rtol=1e-12)
        np.testing.assert_allclose(mobius_add(x, x * 0, c).numpy(), x.numpy(), rtol=1e-14)
        np.testing.assert_allclose(mobius_add(-x, mobius_add(x, y, c), c).numpy(), y.numpy(), rtol=1e-12)
    outside = weft.tensor([[3.0, 4.0]], requires_grad=True)
    (logmap0(outside).sum() + project_to_ball(outside).sum()).backward()
    assert np.isfinite(outside.grad.numpy()).all()


# ---- OctonionLinear -------------------------------------------------------------------------------------------------


def quaternion(a, b):
    w, x, y, z = a
    p, q, r, s = b
    return np.array([
        w * p - x * q - y * r - z * s, w * q + x * p + y * s - z * r,
        w * r - x * s + y * p + z * q, w * s + x * r - y * q + z * p,
    ])  # fmt: skip


def octonion(x, y):
    """(a, b)(c, d) = (ac - d̄b, da + bc̄)."""
    bar = np.array([1, -1, -1, -1])
    (a, b), (c, d) = (x[:4], x[4:]), (y[:4], y[4:])
    return np.concatenate([
        quaternion(a, c) - quaternion(d * bar, b), quaternion(d, a) + quaternion(b, c * bar),
    ])  # fmt: skip


def octonions(state, x):
    rows = x.reshape(-1, x.shape[-1] // 8, 8)
    weight = state["weight"]
    out = np.zeros((len(rows), len(weight), 8))
    for n, row in enumerate(rows):
        for o in range(len(weight)):
            out[n, o] = sum(octonion(row[i], weight[o, i]) for i in range(len(row)))
    out = out + state["bias"] if "bias" in state else out
    return out.reshape(*x.shape[:-1], -1)


def check_octonions():
    """The table of units, the norm of products, and the real matrix."""
    unit, signs = np.eye(8), octonion_signs()
    for i in range(8):
        for j in range(8):
            np.testing.assert_array_equal(octonion(unit[i], unit[j]), signs[i][j] * unit[i ^ j])
    assert signs[1][2] == signs[1][4] == signs[2][4] == signs[3][4] == signs[1][7] == signs[2][5] == signs[3][6] == 1
    random = np.random.default_rng(0)
    layer = nn.OctonionLinear(1, 1, bias=False).double()
    x = random.normal(size=(4, 8))
    product = layer(weft.tensor(x)).detach().numpy()
    size = np.linalg.norm(layer.weight.detach().numpy())
    np.testing.assert_allclose(np.linalg.norm(product, axis=-1), np.linalg.norm(x, axis=-1) * size, rtol=1e-12)
    layer = nn.OctonionLinear(3, 2).double()
    x = weft.tensor(random.normal(size=(4, 24)))
    real = x @ layer.matrix().T + layer.bias.flatten()
    np.testing.assert_allclose(layer(x).detach(), real.detach(), rtol=1e-12)
    assert sorted(layer.state_dict()) == ["bias", "weight"]


def dry(make, *shape):
    """A lazy layer after its first call."""

    def made():
        layer = make()
        layer(weft.zeros(*shape))
        return layer

    return made


RECORDS = [
    LayerRecord(
        name="Linear",
        make=lambda: nn.Linear(5, 3),
        inputs=lambda draw: (draw.normal(4, 5),),
        oracle=of_torch(lambda: torch.nn.Linear(5, 3)),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 4)), match=r"\[2, 4\].*\[\*, 5\]", error=weft.ShapeError)],
        checks={"activations": check_activations},
    ),
    LayerRecord(
        name="Linear",
        variant="no bias",
        make=lambda: nn.Linear(5, 3, bias=False),
        inputs=lambda draw: (draw.normal(2, 3, 5),),
        oracle=of_torch(lambda: torch.nn.Linear(5, 3, bias=False)),
        no_bad="as with bias",
    ),
    LayerRecord(
        name="Linear",
        variant="activation",
        make=lambda: nn.Linear(5, 3, activation="gelu"),
        inputs=lambda draw: (draw.normal(4, 5),),
        oracle=of_torch(lambda: torch.nn.Linear(5, 3), call=lambda module, x: torch.nn.functional.gelu(module(x))),
        checks={"fused": check_fused},
        bad=[Bad(call=lambda layer: nn.Linear(2, 2, activation="bogus"), match="'bogus'", error=weft.RangeError)],
    ),
    LayerRecord(
        name="LazyLinear",
        make=dry(lambda: nn.LazyLinear(3), 1, 5),
        inputs=lambda draw: (draw.normal(4, 5),),
        oracle=of_torch(lambda: torch.nn.Linear(5, 3)),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 4)), match=r"\[2, 4\].*\[\*, 5\]", error=weft.ShapeError)],
    ),
    LayerRecord(
        name="Bilinear",
        make=lambda: nn.Bilinear(3, 4, 2),
        inputs=lambda draw: (draw.normal(5, 3), draw.normal(5, 4)),
        oracle=of_torch(lambda: torch.nn.Bilinear(3, 4, 2)),
        bad=[
            Bad(
                call=lambda layer: layer(weft.ones(2, 3), weft.ones(2, 3)),
                match=r"second input.*\[2, 3\].*\[\*, 4\]",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: nn.Bilinear(0, 1, 1), match="in1_features=0", error=weft.RangeError),
        ],
    ),
    LayerRecord(
        name="Bilinear",
        variant="no bias",
        make=lambda: nn.Bilinear(3, 4, 2, bias=False),
        inputs=lambda draw: (draw.normal(2, 2, 3), draw.normal(2, 2, 4)),
        oracle=of_torch(lambda: torch.nn.Bilinear(3, 4, 2, bias=False)),
        no_bad="as with bias",
    ),
    LayerRecord(
        name="LocallyConnected2d",
        make=lambda: nn.LocallyConnected2d(2, 3, 4, 3),
        inputs=lambda draw: (draw.normal(3, 2, 4, 4),),
        oracle=of_numpy(lambda state, x: locally_connected(state, x, 3, 0, 1, (2, 2))),
        traits=frozenset({"batch", "window"}),
        edges={
            "odd sizes": Case(
                make=lambda: nn.LocallyConnected2d(2, 3, (5, 7), (3, 2), stride=(2, 3), padding=(1, 0)),
                inputs=lambda draw: (draw.normal(2, 2, 5, 7),),
                oracle=of_numpy(lambda state, x: locally_connected(state, x, (3, 2), (1, 0), (2, 3), (3, 2))),
            )
        },
        checks={"shared weights": check_shared_weights},
        bad=[
            Bad(
                call=lambda layer: layer(weft.ones(1, 2, 4, 5)),
                match=r"\[1, 2, 4, 5\].*\[B, 2, 4, 4\]",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: nn.LocallyConnected2d(1, 1, 2, 3), match="that fits", error=weft.ShapeError),
        ],
    ),
    LayerRecord(
        name="LocallyConnected2d",
        variant="no bias",
        make=lambda: nn.LocallyConnected2d(2, 3, (4, 3), 2, stride=2, padding=1, bias=False),
        inputs=lambda draw: (draw.normal(2, 2, 4, 3),),
        oracle=of_numpy(lambda state, x: locally_connected(state, x, 2, 1, 2, (3, 2))),
        no_bad="as with bias",
    ),
    LayerRecord(
        name="HyperbolicLinear",
        make=lambda: nn.HyperbolicLinear(3, 2),
        inputs=lambda draw: (in_ball(draw, 1.0, 4, 3),),
        oracle=hyperbolic(1.0),
        checks={
            "identity and limit": check_identity_and_limit,
            "gradient at zero": check_gradient_at_zero,
            "ball": check_ball,
        },
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 4)), match=r"\[2, 4\].*\[\*, 3\]", error=weft.ShapeError),
            Bad(call=lambda layer: nn.HyperbolicLinear(2, 2, c=0.0), match="c=0.0", error=weft.RangeError),
        ],
    ),
    LayerRecord(
        name="HyperbolicLinear",
        variant="tangent, no bias",
        make=lambda: nn.HyperbolicLinear(3, 2, bias=False, c=0.6, tangent_input=True),
        inputs=lambda draw: (draw.normal(4, 3),),
        oracle=hyperbolic(0.6, tangent=True),
        no_bad="as with bias",
    ),
    LayerRecord(
        name="HyperbolicLinear",
        variant="curved",
        make=lambda: nn.HyperbolicLinear(3, 2, c=2.5),
        inputs=lambda draw: (in_ball(draw, 2.5, 2, 2, 3),),
        oracle=hyperbolic(2.5),
        no_bad="as with c = 1",
    ),
    LayerRecord(
        name="OctonionLinear",
        make=lambda: nn.OctonionLinear(3, 2),
        inputs=lambda draw: (draw.normal(4, 24),),
        oracle=of_numpy(octonions),
        checks={"algebra": check_octonions},
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 3)), match=r"\[2, 3\].*\[\*, 24\]", error=weft.ShapeError)],
    ),
    LayerRecord(
        name="OctonionLinear",
        variant="no bias",
        make=lambda: nn.OctonionLinear(2, 1, bias=False),
        inputs=lambda draw: (draw.normal(2, 2, 16),),
        oracle=of_numpy(octonions),
        no_bad="as with bias",
    ),
]
