"""Records of diffusion on graphs. The oracle is NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
import weft.nn as nn
from tests.layers.graphs import WRONG_RANK, WRONG_WIDTH, graph_record, sum_at, variants, with_weights, x_and_edges
from tests.layers.instances import tensors
from tests.layers.oracles import of_numpy
from tests.layers.record import Bad, Case, Draw, LayerRecord

PATH = np.array([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])  # two components: 0 - 1 - 2 and 3 - 4
MASS = np.array([1.0, 2.0, 0.5, 1.5, 1.0])


def path_laplacian() -> np.ndarray:
    dense = np.zeros((5, 5))
    dense[PATH[1], PATH[0]] = 1.0
    return np.diag(dense.sum(1)) - dense


def eigenpairs(mass: np.ndarray | None = MASS) -> tuple[np.ndarray, np.ndarray]:
    """Of L φ = λ M φ, by the eigenvectors of M⁻¹ L, which is not symmetric; brought to Φᵀ M Φ = I."""
    mass = np.ones(5) if mass is None else mass
    root = np.diag(mass**-0.5)
    values, vectors = np.linalg.eigh(root @ path_laplacian() @ root)
    return values, root @ vectors


def expm(matrix: np.ndarray) -> np.ndarray:
    """The matrix exponential by its series, on a matrix that was halved until it is small, then squared again."""
    result, term = np.eye(len(matrix)), np.eye(len(matrix))
    small = matrix / 2**20
    for k in range(1, 8):
        term = term @ small / k
        result = result + term
    for _ in range(20):
        result = result @ result
    return result


def heat(state: Any, x: Any, values: Any, vectors: Any, mass: Any) -> Any:
    """By the matrix exponential: the eigenpairs that were given are not used."""
    operator = path_laplacian() / mass[:, None]
    spread = [expm(-max(time, 1e-8) * operator) @ x for time in state["times"]]
    return np.concatenate(spread, 1) @ state["weight"].T + state["bias"]


def heat_inputs(draw: Draw) -> tuple[Any, ...]:
    return draw.normal(5, 3), *eigenpairs(), MASS


def heat_limits() -> None:
    """No time leaves the input, and a long time gives the mean of each component, weighted by the masses."""
    x = Draw().normal(5, 3)
    layer = nn.DiffusionConv(3, 3, num_times=1, bias=False).double()
    with weft.no_grad():
        layer.weight.copy_(weft.eye(3, dtype=weft.float64))
    means = np.concatenate([
        np.repeat((MASS[part, None] * x[part]).sum(0, keepdims=True) / MASS[part].sum(), part.stop - part.start, 0)
        for part in (slice(0, 3), slice(3, 5))
    ])  # fmt: skip
    inputs = tensors((x, *eigenpairs(), MASS), weft.float64)
    for time, expected in ((-1.0, x), (1e4, means)):
        with weft.no_grad():
            layer.times.fill_(time)
        np.testing.assert_allclose(layer(*inputs).numpy(), expected, atol=1e-6)


def helper_gives_eigenpairs() -> None:
    laplacian = nn.graph_laplacian(weft.tensor(PATH), 5).double()
    np.testing.assert_array_equal(laplacian.numpy(), path_laplacian())
    values, vectors = [one.numpy() for one in nn.laplacian_eigenpairs(laplacian, 4, weft.tensor(MASS))]
    assert values.shape == (4,) and vectors.shape == (5, 4)
    np.testing.assert_allclose(path_laplacian() @ vectors, MASS[:, None] * vectors * values, atol=1e-12)
    np.testing.assert_allclose(vectors.T @ (MASS[:, None] * vectors), np.eye(4), atol=1e-12)
    assert (np.diff(values) >= 0).all()


def fewer_eigenpairs() -> None:
    weft.manual_seed(0)
    layer = nn.DiffusionConv(3, 4, num_eigen=2).double()
    x, values, vectors, mass = tensors(heat_inputs(Draw()), weft.float64)
    expected = layer(x, values[:2], vectors[:, :2], mass)
    np.testing.assert_array_equal(layer(x, values, vectors, mass).numpy(), expected.numpy())


def random_walk(state: Any, x: Any, edges: Any, weights: Any = None) -> Any:
    """One step after the other: to each node the mean over its edges, weighted; first over those that go out."""
    weights = np.ones(edges.shape[1]) if weights is None else weights
    blocks = [x]
    for at, other in ((edges[0], edges[1]), (edges[1], edges[0])):
        degree = sum_at(at, weights, len(x))[:, None]
        state_now = x
        for _ in range(3):
            total = sum_at(at, weights[:, None] * state_now[other], len(x))
            state_now = np.divide(total, degree, out=np.zeros_like(total), where=degree != 0)
            blocks.append(state_now)
    return np.concatenate(blocks, 1) @ state["weight"].T + state["bias"]


RECORDS = [
    LayerRecord(
        name="DiffusionConv",
        make=lambda: nn.DiffusionConv(3, 4, num_times=3),
        inputs=heat_inputs,
        oracle=of_numpy(heat),
        traits=frozenset({"graph"}),
        edges={
            "empty graph": Case(
                inputs=lambda draw: (draw.normal(5, 3), np.zeros(5), np.eye(5), np.ones(5)),
                oracle=of_numpy(lambda state, x, *rest: np.concatenate([x] * 3, 1) @ state["weight"].T + state["bias"]),
            ),
            "isolated nodes": "the graph of the record has two components; a node by itself is an empty graph",
            "nan": "the oracle ignores the eigenpairs: NaN spreads to the whole component there, here to all nodes",
        },
        checks={"limits": heat_limits, "helper": helper_gives_eigenpairs, "fewer eigenpairs": fewer_eigenpairs},
        bad=[
            Bad(
                call=lambda layer: layer(weft.ones(5, 3), weft.ones(4), weft.ones(5, 3)),
                match=r"eigenvectors of shape \(5, 3\); expected \(5, 4\)",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: layer(weft.ones(5, 2), weft.ones(5), weft.ones(5, 5)), match=r"\(5, 2\)"),
            Bad(call=lambda layer: nn.DiffusionConv(3, 4, kind="wave"), match="kind='wave'", error=weft.RangeError),
            Bad(call=lambda layer: nn.DiffusionConv(3, 4, t_min=2.0), match="t_min=2.0", error=weft.RangeError),
            Bad(call=lambda layer: nn.laplacian_eigenpairs(weft.ones(2, 3), 1), match=r"\(2, 3\)"),
            Bad(
                call=lambda layer: nn.laplacian_eigenpairs(weft.eye(2), 1, weft.zeros(2)),
                match="positive",
                error=weft.RangeError,
            ),
        ],
    ),
    graph_record(
        with_weights,
        name="DiffusionConv",
        variant="random walk",
        make=lambda: nn.DiffusionConv(4, 5, kind="random_walk", num_steps=3),
        oracle=of_numpy(random_walk),
        checks={
            "without weights": variants(
                "DiffusionConv",
                (
                    lambda: nn.DiffusionConv(4, 5, kind="random_walk", num_steps=3),
                    of_numpy(random_walk),
                    x_and_edges,
                ),
            )
        },
        bad=[WRONG_RANK, WRONG_WIDTH],
        rtol=2e-5,
    ),
]
