"""Records of radial basis functions."""

import numpy as np

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy
from tests.layers.record import Bad, LayerRecord


def _rbf(state, x):
    squares = ((x[..., None, :] - state["centers"]) ** 2).sum(-1)
    return np.exp(-squares / (2 * np.exp(state["log_sigma"]) ** 2))


def _centers_are_rows():
    weft.manual_seed(0)
    data = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    layer = nn.RBF(3, 5)
    layer.init_centers(weft.tensor(data), iterations=0)
    found = {tuple(row) for row in layer.centers.detach().numpy()}
    assert len(found) == 5 and found <= {tuple(row) for row in data}


def _k_means():
    """The rounds are those of NumPy from the same rows, and clusters far apart are found."""
    random = np.random.default_rng(3)
    means = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    data = (means[random.integers(0, 3, 90)] + random.normal(size=(90, 2))).astype(np.float32)
    layer = nn.RBF(2, 3)
    weft.manual_seed(4)
    layer.init_centers(weft.tensor(data), iterations=0)
    centers = layer.centers.detach().numpy().astype(np.float64)
    for _ in range(8):
        nearest = ((data[:, None] - centers) ** 2).sum(-1).argmin(-1)
        centers = np.stack([data[nearest == k].mean(0) if (nearest == k).any() else centers[k] for k in range(3)])
    weft.manual_seed(4)
    layer.init_centers(weft.tensor(data), iterations=8)
    np.testing.assert_allclose(layer.centers.detach().numpy(), centers, rtol=1e-4, atol=1e-4)


def _frozen_width():
    layer = nn.RBF(2, 3, trainable_width=False)
    layer(weft.ones(4, 2)).sum().backward()
    assert layer.log_sigma.grad is None and layer.centers.grad is not None
    assert list(layer.state_dict()) == ["centers", "log_sigma"]


RECORDS = [
    LayerRecord(
        name="RBF",
        make=lambda: nn.RBF(3, 4),
        inputs=lambda draw: (draw.normal(5, 3),),
        oracle=of_numpy(_rbf),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 4)), match=r"\(2, 4\).*\[\*, 3\]", error=weft.ShapeError),
            Bad(call=lambda layer: nn.RBF(3, 0), match="num_centers=0", error=weft.RangeError),
            Bad(call=lambda layer: layer.init_centers(weft.ones(2, 3)), match="at least 4 rows", error=weft.ShapeError),
        ],
        checks={"centers are rows": _centers_are_rows, "k-means": _k_means, "frozen width": _frozen_width},
    )
]
