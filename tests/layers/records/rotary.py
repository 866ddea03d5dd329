"""Records of rotary positions."""

import numpy as np

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy
from tests.layers.record import Bad, LayerRecord


def rotation(state, x, positions=None):
    at = np.arange(x.shape[-2]) if positions is None else positions
    dim = x.shape[-1]
    angles = at[..., None] * 10000.0 ** (-np.arange(0, dim, 2) / dim)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


def scores_depend_on_distance():
    rotary = nn.RotaryEmbedding(8, max_len=4)
    q, k = weft.randn(1, 8).expand(12, 8), weft.randn(1, 8).expand(12, 8)
    scores = (rotary(q) @ rotary(k).T).numpy()  # 12 positions: more than the table has
    for lag in (0, 1, 5):
        np.testing.assert_allclose(np.diag(scores, -lag), scores[lag, 0], rtol=1e-4, atol=1e-4)
    x = np.random.default_rng(0).normal(size=(12, 8))
    np.testing.assert_allclose(rotary(weft.tensor(x)).numpy(), rotation({}, x), rtol=1e-12, atol=1e-12)  # float64
    positions = weft.arange(3) + 9
    np.testing.assert_allclose(rotary(q[:3], positions).numpy(), rotary(q)[9:].numpy(), rtol=1e-5, atol=1e-5)


def heads_share_the_positions_of_their_batch():
    """positions [B, T] for x [B, H, T, D], also where there are as many heads as batches."""
    rotary = nn.RotaryEmbedding(4)
    for batch, heads in ((2, 2), (2, 3), (3, 1)):
        x = np.random.default_rng(0).normal(size=(batch, heads, 5, 4)).astype(np.float32)
        at = np.arange(batch * 5).reshape(batch, 5)
        expected = rotation({}, x, at[:, None])
        np.testing.assert_allclose(rotary(weft.tensor(x), weft.tensor(at)).numpy(), expected, rtol=1e-4, atol=1e-5)
        five = rotary(weft.tensor(x).unsqueeze(1).expand(-1, batch, -1, -1, -1), weft.tensor(at)).numpy()
        np.testing.assert_allclose(five, np.repeat(expected[:, None], batch, 1), rtol=1e-4, atol=1e-5)


def tables_keep_their_precision():
    """A model that was bfloat16 for a while, or is, has the tables of float32."""
    x = weft.randn(6, 8)
    expected = nn.RotaryEmbedding(8)(x).numpy()
    np.testing.assert_array_equal(nn.RotaryEmbedding(8).bfloat16().float()(x).numpy(), expected)
    np.testing.assert_array_equal(nn.RotaryEmbedding(8, dtype=weft.float16)(x).numpy(), expected)
    assert nn.RotaryEmbedding(8).bfloat16()(x.to(weft.bfloat16)).dtype is weft.bfloat16


RECORDS = [
    LayerRecord(
        name="RotaryEmbedding",
        make=lambda: nn.RotaryEmbedding(6),
        inputs=lambda draw: (draw.normal(2, 5, 6),),
        oracle=of_numpy(rotation),
        traits=frozenset({"batch", "sequence"}),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3, 5)), match=r"\(2, 3, 5\).*\[..., T, 6\]"),
            Bad(call=lambda layer: type(layer)(5), match="dim=5"),
        ],
        checks={
            "scores depend on distance": scores_depend_on_distance,
            "positions of a batch": heads_share_the_positions_of_their_batch,
            "precision of the tables": tables_keep_their_precision,
        },
    ),
]
