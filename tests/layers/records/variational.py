"""Records of the parts of autoencoders."""

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy, of_torch
from tests.layers.record import Bad, Case, LayerRecord


def _measure(state, psi):
    squares = (psi * psi).sum(-1) if psi.ndim >= 2 and psi.shape[-1] == 2 else psi * psi
    total = squares.sum(-1, keepdims=True)
    return np.where(total == 0, 0.0, squares / np.where(total == 0, 1.0, total))


def _zero_state_has_no_probabilities():
    x = weft.zeros(2, 4, 2, requires_grad=True)
    p = nn.Measurement()(x)
    p.sum().backward()
    assert p.tolist() == [[0.0] * 4] * 2 and x.grad.abs().max().item() == 0.0


def _real_pairs():
    p = nn.Measurement(real=True)(weft.tensor([[3.0, 4.0], [0.0, 2.0]]))
    np.testing.assert_allclose(p.numpy(), [[9 / 25, 16 / 25], [0.0, 1.0]], rtol=1e-6)


class _Decoder(torch.nn.Module):
    """What the layer is compared with, with its names."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = torch.nn.Linear(5, 4), torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)

    def forward(self, x):
        act = torch.relu
        return torch.sigmoid(self.fc3(act(self.fc2(act(self.fc1(x))))))


def _formula_with_the_drawn_noise():
    x = np.random.default_rng(0).normal(size=(4, 6))
    given = weft.tensor(x, dtype=weft.float32).requires_grad_()
    weft.manual_seed(5)
    z = nn.Reparameterize()(given)
    weft.manual_seed(5)
    noise = weft.randn(4, 3).numpy().astype(np.float64)
    std = np.exp(0.5 * x[:, 3:])
    np.testing.assert_allclose(z.detach().numpy(), x[:, :3] + std * noise, rtol=1e-5, atol=1e-6)
    g = np.random.default_rng(1).normal(size=(4, 3))
    (z * weft.tensor(g, dtype=weft.float32)).sum().backward()
    expected = np.concatenate([g, 0.5 * g * noise * std], 1)
    np.testing.assert_allclose(given.grad.numpy(), expected, rtol=1e-5, atol=1e-6)


def _moments_of_the_samples():
    weft.manual_seed(0)
    mean, log_variance = weft.full((40000, 1), 2.0), weft.full((40000, 1), float(np.log(9.0)))
    z = nn.Reparameterize()(weft.cat([mean, log_variance], -1)).numpy()
    assert abs(z.mean() - 2.0) < 0.06 and abs(z.std() - 3.0) < 0.05


RECORDS = [
    LayerRecord(
        name="LogVariance",
        make=lambda: nn.LogVariance(1),
        inputs=lambda draw: (draw.normal(4, 5, 3),),
        oracle=of_numpy(lambda state, x: np.log(x.var(1) + 1e-8)),
        bad=[Bad(call=lambda layer: layer(weft.ones(3)), match=r"1", error=weft.WeftError)],
    ),
    LayerRecord(
        name="LogVariance",
        variant="several axes",
        make=lambda: nn.LogVariance((-2, -1), eps=0.1, keepdim=True),
        inputs=lambda draw: (draw.normal(2, 3, 4),),
        oracle=of_numpy(lambda state, x: np.log(x.var((-2, -1), keepdims=True) + 0.1)),
        no_bad="as with one axis",
    ),
    LayerRecord(
        name="Measurement",
        make=lambda: nn.Measurement(),
        inputs=lambda draw: (draw.normal(3, 4, 2),),
        oracle=of_numpy(_measure),
        bad=[Bad(call=lambda layer: layer(weft.tensor(1.0)), match=r"\[\*, D, 2\]", error=weft.ShapeError)],
        checks={"a zero state": _zero_state_has_no_probabilities, "real pairs": _real_pairs},
    ),
    LayerRecord(
        name="Measurement",
        variant="real",
        make=lambda: nn.Measurement(),
        inputs=lambda draw: (draw.normal(3, 8),),
        oracle=of_numpy(_measure),
        no_bad="as complex",
    ),
    LayerRecord(
        name="Reconstruction",
        make=lambda: nn.Reconstruction(5, 4, 6, 3),
        inputs=lambda draw: (draw.normal(4, 5),),
        oracle=of_torch(_Decoder),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 4)), match=r"fc1.*\[2, 4\].*\[\*, 5\]", error=weft.ShapeError),
            Bad(call=lambda layer: nn.Reconstruction(5, hidden_act="blue"), match="'blue'", error=weft.RangeError),
        ],
    ),
    LayerRecord(
        name="Reparameterize",
        make=lambda: nn.Reparameterize(),
        inputs=lambda draw: (draw.normal(4, 6),),
        random=True,
        edges={"eval": Case(oracle=of_numpy(lambda state, x: x[:, :3]))},
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 5)), match=r"\(2, 5\).*2 L", error=weft.ShapeError)],
        checks={"formula": _formula_with_the_drawn_noise, "moments": _moments_of_the_samples},
    ),
]
