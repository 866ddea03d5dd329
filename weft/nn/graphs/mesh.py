"""Layers on triangle meshes. Neighbours are given as integers; -1 is a neighbour that is missing and gives zeros."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.base.errors import IndexRangeError, ShapeError, problem
from weft.core.creation import arange, empty, full, tensor
from weft.core.tensor import Tensor
from weft.names.functions import stack, where
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.named_activation import make_activation
from weft.nn.graphs.message_passing import apply_activation, need_features, need_sizes
from weft.nn.module import Module
from weft.nn.parameter import Buffer, Parameter
from weft.nn.registry import export, layer


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of `x` [..., E, C] by an index [...]: [..., *index, C]; zeros for -1."""
    is_missing = index == -1
    picked = x.index_select(-2, where(is_missing, 0, index).flatten())
    picked = picked.reshape(*x.shape[:-2], *index.shape, x.shape[-1])
    return where(is_missing.unsqueeze(-1), 0.0, picked)


def _need_rows(who: str, x: Any, width: int, rows: str, count: int | None = None) -> None:
    """Raise unless `x` is [rows, width] or [batch, rows, width]."""
    is_fit = isinstance(x, Tensor) and x.ndim in (2, 3) and x.shape[-1] == width
    if not is_fit or (count is not None and x.shape[-2] != count):
        given = f"features of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"features of {type(x).__name__}"
        wanted = f"{rows if count is None else count}, {width}]"
        raise problem(ShapeError, who, given, f"[{wanted} or [batch, {wanted}")


def _need_neighbors(who: str, x: Tensor, neighbors: Any, count: int) -> None:
    """Raise unless `neighbors` are `count` integers for every row of `x`."""
    expected = (x.shape[-2], count)
    if not isinstance(neighbors, Tensor) or tuple(neighbors.shape) != expected or neighbors.dtype.kind not in "iu":
        is_tensor = isinstance(neighbors, Tensor)
        given = (
            f"{neighbors.dtype.name} neighbours of shape {tuple(neighbors.shape)}" if is_tensor else f"{neighbors!r}"
        )
        raise problem(ShapeError, who, given, f"integers of shape {expected}: edges, neighbours")


@layer("L021", aliases=("MeshPoolLayer",), oracle="torch_geometric.nn.TopKPooling; NumPy for the neighbours")
class MeshPool(Module):
    """s = x·p/‖p‖; idx = the K edges with the largest s, ascending; y = x[idx] ⊙ tanh(s[idx]) (Gao & Ji 2019).

    K = min(target_edges, E); of equal scores the lower index is taken. Neighbours are numbered again, those that were
    dropped are -1. The gradient reaches p through the gate tanh; the selection has none.
    Shape: x [E, in], neighbors [E, num_neighbors]; output (y [K, in], neighbors [K, num_neighbors], idx [K]); weight p
    [in], which starts as U(-1/√in, 1/√in).

    >>> layer = weft.nn.MeshPool(3, target_edges=2)
    >>> y, neighbors, kept = layer(weft.ones(4, 3), weft.tensor([[1, 2, 3, -1]] * 4))
    >>> kept, neighbors[0]
    (tensor([0, 1]), tensor([ 1, -1, -1, -1]))
    """

    def __init__(
        self, in_channels: int, target_edges: int, num_neighbors: int = 4, device: Any = None, dtype: Any = None
    ):
        super().__init__()
        need_sizes("MeshPool", in_channels=in_channels, target_edges=target_edges, num_neighbors=num_neighbors)
        self.in_channels, self.target_edges, self.num_neighbors = in_channels, target_edges, num_neighbors
        self.weight = Parameter(empty(in_channels, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameter again."""
        bound = 1 / math.sqrt(self.in_channels)
        init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, neighbors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        need_features("MeshPool", x, self.in_channels, "edge features", "edges")
        _need_neighbors("MeshPool", x, neighbors, self.num_neighbors)
        edges = x.shape[0]
        kept = min(self.target_edges, edges)
        scores = (x * self.weight).sum(-1) / (self.weight * self.weight).sum().sqrt()
        index = scores.detach().argsort(descending=True, stable=True)[:kept].sort().values
        y = x[index] * scores[index].tanh().unsqueeze(-1)
        numbers = full((edges,), -1, dtype=neighbors.dtype, device=x.device)
        numbers = numbers.scatter(0, index, arange(kept, dtype=neighbors.dtype, device=x.device))
        renumbered = where(neighbors == -1, -1, numbers[where(neighbors == -1, 0, neighbors)])
        return y, renumbered[index], index

    def extra_repr(self) -> str:
        return f"{self.in_channels}, target_edges={self.target_edges}"


@layer("L072", aliases=("MeshEdgeConvLayer",), oracle="NumPy")
class MeshEdgeConv(Module):
    """y_e = Σ_{m,c} W[:, c, m] f_m[c] + b, with f = [x_e, x_a + x_c, x_b + x_d, |x_a - x_c|, |x_b - x_d|].

    (a, b, c, d) are the neighbours of the edge: a, b on one face, c, d on the other in the same turning order.
    Exchanging the two faces leaves y unchanged (MeshCNN, Hanocka et al. 2019).
    Shape: x [E, in] or [B, E, in], neighbors [E, 4]; output [E, out] or [B, E, out]; weight [out, in, 5], bias [out];
    both start as U(-1/√(5 in), 1/√(5 in)).

    >>> layer = weft.nn.MeshEdgeConv(3, 2)
    >>> layer(weft.ones(5, 3), weft.tensor([[1, 2, 3, 4]] * 5)).shape
    (5, 2)
    """

    def __init__(
        self, in_channels: int, out_channels: int, bias: bool = True, activation: Any = None,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        need_sizes("MeshEdgeConv", in_channels=in_channels, out_channels=out_channels)
        self.in_channels, self.out_channels, self.activation = in_channels, out_channels, make_activation(activation)
        self.weight = Parameter(empty(out_channels, in_channels, 5, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        bound = 1 / math.sqrt(5 * self.in_channels)
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor, neighbors: Tensor) -> Tensor:
        _need_rows("MeshEdgeConv", x, self.in_channels, "edges")
        _need_neighbors("MeshEdgeConv", x, neighbors, 4)
        a, b, c, d = _rows(x, neighbors).unbind(-2)  # [..., E, in] each
        features = stack([x, a + c, b + d, (a - c).abs(), (b - d).abs()], -1)  # [..., E, in, 5]
        return apply_activation(F.linear(features.flatten(-2), self.weight.flatten(1), self.bias), self.activation)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


@layer("L073", aliases=("SpiralConvLayer",), oracle="torch: gather and Linear")
class SpiralConv(Module):
    """y_v = W [x_{s(v,0)} ‖ … ‖ x_{s(v,L-1)}] + b, s(v, ·) the spiral that starts at v (SpiralNet++, Gong 2019).

    `spiral_indices` makes spirals from faces.
    Shape: x [V, in] or [B, V, in]; output [V, out] or [B, V, out]; buffer indices [V, L] (-1: zeros), weight
    [out, in · L], bias [out]; both start as U(-1/√(in L), 1/√(in L)).

    >>> spirals = weft.nn.spiral_indices([[0, 1, 2], [0, 2, 3]], 4, 4)
    >>> weft.nn.SpiralConv(3, 2, spirals)(weft.ones(4, 3)).shape
    (4, 2)
    """

    def __init__(
        self, in_channels: int, out_channels: int, indices: Any, bias: bool = True, activation: Any = None,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        need_sizes("SpiralConv", in_channels=in_channels, out_channels=out_channels)
        spirals = indices.numpy() if isinstance(indices, Tensor) else np.asarray(indices)
        if spirals.ndim != 2 or spirals.dtype.kind not in "iu" or not spirals.shape[1]:
            given = f"{spirals.dtype} indices of shape {spirals.shape}"
            raise problem(ShapeError, "SpiralConv", given, "integers [vertices, length]")
        wrong = spirals[(spirals < -1) | (spirals >= len(spirals))]
        if wrong.size:
            given = f"the index {wrong[0]}"
            raise problem(IndexRangeError, "SpiralConv", given, f"0 to {len(spirals) - 1}, or -1 for none")
        self.in_channels, self.out_channels, self.activation = in_channels, out_channels, make_activation(activation)
        self.indices = Buffer(tensor(spirals.astype(np.int64), device=device))
        width = in_channels * spirals.shape[1]
        self.weight = Parameter(empty(out_channels, width, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        _need_rows("SpiralConv", x, self.in_channels, "vertices", self.indices.shape[0])
        spirals = _rows(x, self.indices).flatten(-2)  # [..., V, L · in]
        return apply_activation(F.linear(spirals, self.weight, self.bias), self.activation)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, length={self.indices.shape[1]}"


# ---- spirals --------------------------------------------------------------------------------------------------------


@export
def spiral_indices(faces: Any, num_vertices: int, length: int) -> Tensor:
    """The first `length` vertices of the spiral around each vertex, int64 [V, length], padded with -1.

    A spiral lists the vertex, then ring by ring the vertices around it in the turning order of `faces` [F, 3]. The
    first ring starts at the neighbour with the lowest index; a later one lists, for each vertex of the ring before in
    order, those of its neighbours that are not listed yet, in turning order from a neighbour that is.

    >>> weft.nn.spiral_indices([[0, 1, 2], [0, 2, 3], [0, 3, 1]], 4, 5)
    tensor([[ 0,  1,  2,  3, -1],
            [ 1,  0,  3,  2, -1],
            [ 2,  0,  1,  3, -1],
            [ 3,  0,  2,  1, -1]])
    """
    triangles = faces.numpy() if isinstance(faces, Tensor) else np.asarray(faces)
    if triangles.ndim != 2 or triangles.shape[1] != 3:
        raise problem(ShapeError, "spiral_indices", f"faces of shape {triangles.shape}", "[faces, 3]")
    need_sizes("spiral_indices", length=length)
    wrong = triangles[(triangles < 0) | (triangles >= num_vertices)]
    if wrong.size:
        raise problem(IndexRangeError, "spiral_indices", f"the vertex {wrong[0]}", f"0 to {num_vertices - 1}")
    after: list[dict[int, int]] = [{} for _ in range(num_vertices)]  # around a vertex: which neighbour follows which
    for one, two, three in triangles.tolist():
        after[one][two], after[two][three], after[three][one] = three, one, two
    rings = [_ring(follows) for follows in after]
    table = np.full((num_vertices, length), -1, np.int64)
    for vertex in range(num_vertices):
        spiral = _spiral(vertex, rings, length)
        table[vertex, : len(spiral)] = spiral
    return tensor(table)


def _ring(follows: dict[int, int]) -> list[int]:
    """The neighbours of a vertex in turning order, from the lowest; at a border the order goes on at its other end."""
    waiting = {*follows, *follows.values()}
    ring: list[int] = []
    while waiting:
        ends = waiting - set(follows.values())
        at: int | None = min(waiting) if not ring else min(ends or waiting)
        while at is not None and at in waiting:
            waiting.discard(at)
            ring.append(at)
            at = follows.get(at)
    return ring


def _spiral(vertex: int, rings: list[list[int]], length: int) -> list[int]:
    spiral, seen = [vertex], {vertex}
    position = 0
    while position < len(spiral) < length:
        ring = rings[spiral[position]]
        first = next((k for k, one in enumerate(ring) if one in seen), 0)
        for one in [*ring[first:], *ring[:first]]:
            if one not in seen:
                seen.add(one)
                spiral.append(one)
        position += 1
    return spiral[:length]
