"""Records of the mesh layers. The oracles are torch_geometric's pooling, NumPy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.geometric import geometric
from tests.layers.instances import assert_close, tensors
from tests.layers.oracles import of_numpy, to_torch
from tests.layers.record import Bad, Case, Draw, LayerRecord

NEIGHBORS = np.array(
    [[1, 2, 3, 4], [0, 2, 5, -1], [0, 1, 6, 3], [4, 0, -1, -1], [3, 0, 6, 5], [1, 4, 6, 2], [5, 2, 4, 1]]
)
EDGES = len(NEIGHBORS)


def picked(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Rows, zeros for -1."""
    rows = x[..., np.maximum(index, 0), :]
    return np.where((index >= 0)[..., None], rows, 0.0)


# ---- pooling --------------------------------------------------------------------------------------------------------


def pooled(kept: int) -> Any:
    def oracle(state: Any, x: Any, neighbors: Any) -> Any:
        kept_here = min(kept, len(x))
        pool = geometric.TopKPooling(4, ratio=kept_here).double()
        pool.load_state_dict({"select.weight": to_torch(state["weight"][None])})
        y, *_, index, _ = pool(to_torch(x), torch.zeros(2, 0, dtype=torch.int64))
        index, y = index.numpy(), y.detach().numpy()
        order = np.argsort(index)
        numbers = np.full(len(x), -1)
        numbers[index[order]] = np.arange(kept_here)
        return y[order], np.where(neighbors == -1, -1, numbers[neighbors])[index[order]], index[order]

    return oracle


def ties_take_the_lower_index() -> None:
    weft.manual_seed(0)
    layer = nn.MeshPool(3, 3)
    x = np.ones((6, 3), np.float32)
    x[4] = np.sign(layer.weight.numpy()) * 9  # the largest score
    x[2] = -x[4]  # the smallest
    _, neighbors, index = layer(*tensors((x, np.array([[4, 0, 1, 5]] * 6))))
    assert index.tolist() == [0, 1, 4]
    assert neighbors.tolist() == [[2, 0, 1, -1]] * 3


def the_vector_learns() -> None:
    """The gradient reaches p through the gate: a selection alone would give none."""
    layer = nn.MeshPool(3, 2).double()
    y, _, _ = layer(*tensors((Draw().normal(5, 3), np.array([[1, 2, 3, 4]] * 5)), weft.float64))
    y.sum().backward()
    assert np.abs(layer.weight.grad.numpy()).max() > 1e-3


def all_kept(wanted: int) -> None:
    """No more edges are kept than there are; and a mesh without edges."""
    weft.manual_seed(0)
    layer = nn.MeshPool(4, wanted).double()
    x = Draw().normal(EDGES, 4)
    state = {"weight": layer.weight.detach().numpy()}
    given = layer(*tensors((x, NEIGHBORS), weft.float64))
    assert_close(given, pooled(wanted)(state, x, NEIGHBORS), 1e-12, 1e-12, "all kept")
    y, neighbors, index = layer(weft.zeros(0, 4, dtype=weft.float64), weft.tensor(np.zeros((0, 4), np.int64)))
    assert (y.shape, neighbors.shape, index.shape) == ((0, 4), (0, 4), (0,))


# ---- convolutions ---------------------------------------------------------------------------------------------------


def edge_conv(state: Any, x: Any, neighbors: Any) -> Any:
    a, b, c, d = [picked(x, neighbors[:, k]) for k in range(4)]
    features = [x, a + c, b + d, abs(a - c), abs(b - d)]
    weight = state["weight"]
    return sum(one @ weight[:, :, m].T for m, one in enumerate(features)) + state.get("bias", 0.0)


def faces_may_be_exchanged() -> None:
    weft.manual_seed(0)
    layer = nn.MeshEdgeConv(4, 3).double()
    x, neighbors = weft.tensor(Draw().normal(EDGES, 4)), weft.tensor(NEIGHBORS)
    np.testing.assert_allclose(layer(x, neighbors[:, [2, 3, 0, 1]]).numpy(), layer(x, neighbors).numpy(), rtol=1e-12)


def slope_of_equal_neighbors() -> None:
    """|x_a - x_c| has the slope 0 where both are equal."""
    layer = nn.MeshEdgeConv(1, 1, bias=False)
    with weft.no_grad():
        layer.weight.copy_(weft.tensor([[[0.0, 0.0, 0.0, 1.0, 1.0]]]))
    x = weft.ones(5, 1, requires_grad=True)
    layer(x, weft.tensor([[1, 2, 3, 4]] * 5)).sum().backward()
    assert x.grad.tolist() == [[0.0]] * 5


def no_edges() -> None:
    layer = nn.MeshEdgeConv(4, 3)
    assert layer(weft.zeros(0, 4), weft.tensor(np.zeros((0, 4), np.int64))).shape == (0, 3)


def batch_of_meshes(layer: Any, *rest: Any) -> None:
    """A batch of features on one mesh: every one by itself."""
    x = weft.tensor(Draw().normal(3, EDGES, 4))
    layer = layer.double()
    expected = np.stack([layer(x[k], *rest).numpy() for k in range(3)])
    np.testing.assert_allclose(layer(x, *rest).numpy(), expected, rtol=1e-12)


# ---- spirals --------------------------------------------------------------------------------------------------------

SPIRALS = np.array([[0, 1, 2, 3], [1, 0, 3, -1], [2, 3, 0, 1], [3, 2, -1, -1], [4, 0, 1, 2]])
# Six triangles around vertex 0, and one more outside of the edge 1 - 2.
FAN = [[0, 1, 2], [0, 2, 3], [0, 3, 4], [0, 4, 5], [0, 5, 6], [0, 6, 1], [2, 1, 7]]


def spiral_conv(state: Any, x: Any) -> Any:
    """torch: gather from rows with a row of zeros at the end, and a Linear."""
    x, index = to_torch(x), to_torch(state["indices"])
    padded = torch.cat([x, torch.zeros_like(x[..., :1, :])], -2)
    rows = padded[..., torch.where(index < 0, x.shape[-2], index).flatten(), :]
    rows = rows.reshape(*x.shape[:-1], -1)
    return torch.nn.functional.linear(rows, to_torch(state["weight"]), to_torch(state["bias"]))


def spirals_of_a_fan() -> None:
    spirals = nn.spiral_indices(weft.tensor(FAN), 9, 9).tolist()
    assert spirals[0] == [0, 1, 2, 3, 4, 5, 6, 7, -1]  # around the inner vertex, then what lies outside of 1 and 2
    assert spirals[1] == [1, 0, 6, 7, 2, 3, 4, 5, -1]  # from 0 to the border at 6, then from the border at 7 to 2
    assert spirals[7] == [7, 1, 2, 0, 6, 3, 4, 5, -1]  # 1, 2; then 0, 6 beside 1 and 3 beside 2; then the rest
    assert spirals[8] == [8, *[-1] * 8]  # in no face
    assert nn.spiral_indices(FAN, 9, 3).tolist() == [one[:3] for one in spirals]


def spirals_of_a_tetrahedron() -> None:
    faces = [[0, 1, 2], [0, 2, 3], [0, 3, 1], [1, 3, 2]]
    assert nn.spiral_indices(faces, 4, 4).tolist() == [[0, 1, 2, 3], [1, 0, 3, 2], [2, 0, 1, 3], [3, 0, 2, 1]]


def spirals_of_a_grid() -> None:
    """Every vertex comes once, ring after ring."""
    side = 5
    at = np.arange(side * side).reshape(side, side)
    corners = at[:-1, :-1], at[:-1, 1:], at[1:, :-1], at[1:, 1:]
    a, b, c, d = [one.ravel() for one in corners]
    faces = np.concatenate([np.stack([a, c, b], 1), np.stack([b, c, d], 1)])
    links = {(one, two) for face in faces.tolist() for one in face for two in face if one != two}
    for vertex, spiral in enumerate(nn.spiral_indices(faces, side * side, side * side).tolist()):
        assert spiral[0] == vertex and sorted(spiral) == list(range(side * side))
        distance = {vertex: 0}
        for one in spiral:
            for two in range(side * side):
                if (one, two) in links and two not in distance:
                    distance[two] = distance[one] + 1
        rings = [distance[one] for one in spiral]
        assert rings == sorted(rings)


RECORDS = [
    LayerRecord(
        name="MeshPool",
        make=lambda: nn.MeshPool(4, 5),
        inputs=lambda draw: (draw.normal(EDGES, 4), NEIGHBORS),
        oracle=of_numpy(pooled(5)),
        traits=frozenset({"order"}),
        edges={
            "ties": Case(check=lambda layer, inputs: ties_take_the_lower_index()),
            "nan": "which edges have the largest score is not defined where one is NaN",
        },
        checks={
            "learns": the_vector_learns,
            "all kept": lambda: all_kept(9),
        },
        bad=[
            Bad(
                call=lambda layer: layer(weft.ones(7, 3), weft.tensor(NEIGHBORS)),
                match=r"edge features of shape \(7, 3\); expected \[edges, 4\]",
                error=weft.ShapeError,
            ),
            Bad(
                call=lambda layer: layer(weft.ones(7, 4), weft.tensor(NEIGHBORS[:, :3])),
                match=r"neighbours of shape \(7, 3\); expected integers of shape \(7, 4\)",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: nn.MeshPool(4, 0), match="target_edges=0", error=weft.RangeError),
            Bad(
                call=lambda layer: layer(weft.ones(7, 4), weft.tensor(NEIGHBORS + 1))[1],
                match="the index 7",
                error=weft.IndexRangeError,
            ),
        ],
    ),
    LayerRecord(
        name="MeshEdgeConv",
        make=lambda: nn.MeshEdgeConv(4, 3),
        inputs=lambda draw: (draw.normal(EDGES, 4), NEIGHBORS),
        oracle=of_numpy(edge_conv),
        traits=frozenset(),
        checks={
            "faces": faces_may_be_exchanged,
            "equal neighbours": slope_of_equal_neighbors,
            "batch": lambda: batch_of_meshes(nn.MeshEdgeConv(4, 3, activation="relu"), weft.tensor(NEIGHBORS)),
            "no edges": no_edges,
        },
        bad=[
            Bad(
                call=lambda layer: layer(weft.ones(7, 3), weft.tensor(NEIGHBORS)),
                match=r"features of shape \(7, 3\); expected \[edges, 4\] or \[batch, edges, 4\]",
                error=weft.ShapeError,
            ),
            Bad(
                call=lambda layer: layer(weft.ones(7, 4), weft.tensor(NEIGHBORS[1:])),
                match=r"neighbours of shape \(6, 4\); expected integers of shape \(7, 4\)",
                error=weft.ShapeError,
            ),
            Bad(
                call=lambda layer: layer(weft.ones(7, 4), weft.ones(7, 4)),
                match="float32 neighbours",
                error=weft.ShapeError,
            ),
            *[
                Bad(
                    call=lambda layer, shift=shift: layer(weft.ones(7, 4), weft.tensor(NEIGHBORS + shift)),
                    match=f"the index {value}",
                    error=weft.IndexRangeError,
                )
                for shift, value in ((1, 7), (-1, -2))
            ],
        ],
    ),
    LayerRecord(
        name="SpiralConv",
        make=lambda: nn.SpiralConv(4, 3, SPIRALS),
        inputs=lambda draw: (draw.normal(5, 4),),
        oracle=of_numpy(spiral_conv),
        traits=frozenset(),
        checks={
            "batch": lambda: batch_of_meshes(nn.SpiralConv(4, 3, np.arange(EDGES)[:, None])),
            "fan": spirals_of_a_fan,
            "tetrahedron": spirals_of_a_tetrahedron,
            "grid": spirals_of_a_grid,
        },
        bad=[
            Bad(
                call=lambda layer: layer(weft.ones(6, 4)),
                match=r"features of shape \(6, 4\); expected \[5, 4\] or \[batch, 5, 4\]",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: nn.SpiralConv(4, 3, SPIRALS + 1), match="the index 5", error=weft.IndexRangeError),
            Bad(call=lambda layer: nn.SpiralConv(4, 3, SPIRALS - 1), match="the index -2", error=weft.IndexRangeError),
            Bad(call=lambda layer: nn.SpiralConv(4, 3, np.ones((2, 2))), match="float64 indices"),
            Bad(call=lambda layer: nn.spiral_indices([[0, 1, 9]], 3, 4), match="the vertex 9"),
            Bad(call=lambda layer: nn.spiral_indices([[0, 1]], 3, 4), match=r"faces of shape \(1, 2\)"),
        ],
    ),
]
