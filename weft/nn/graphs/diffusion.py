"""Diffusion on graphs and meshes: by the heat equation in a basis of eigenvectors, or by steps of random walks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty, tensor
from weft.core.tensor import Tensor
from weft.functional.adjacency import Adjacency, aggregate
from weft.names.functions import cat, segment_reduce, where
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.named_activation import make_activation
from weft.nn.graphs.message_passing import apply_activation, degrees, graph_of, need_features, need_sizes
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import export, layer


@layer("L060", aliases=("DiffusionConvLayer",), oracle="NumPy: the matrix exponential; powers of transition matrices")
class DiffusionConv(Module):
    """kind='heat': y = W [D_{t1} x ‖ … ‖ D_{tT} x] + b, D_t x = Φ diag(e^{-λt}) Φᵀ M x: the heat kernel e^{-t M⁻¹L}.

    λ and Φ are the smallest eigenpairs of L φ = λ M φ with Φᵀ M Φ = I (`laplacian_eigenpairs`), at most `num_eigen` of
    those given are used; M are the masses of the nodes. The times t = max(raw, 1e-8) are trained and start log-spaced
    between t_min and t_max (DiffusionNet, Sharp et al. 2022).
    Shape: x [N, in], eigenvalues [k], eigenvectors [N, k], mass [N] (ones unless given); output [N, out]; weight
    [out, in · T], bias [out], times [T].

    kind='random_walk': y = W [x ‖ P x ‖ … ‖ P^K x ‖ Q x ‖ … ‖ Q^K x] + b, where P = D_O⁻¹ A steps along edges and
    Q = D_I⁻¹ Aᵀ against them, A[i, j] the weight of the edge i→j, 1/0 = 0; K is `num_steps` (DCRNN, Li et al. 2018).
    Shape: x [N, in], edge_index as in MessagePassing, edge_weight [E]; output [N, out]; weight [out, in · (2K + 1)].

    >>> values, vectors = weft.nn.laplacian_eigenpairs(weft.nn.graph_laplacian(weft.tensor([[0, 1], [1, 2]]), 3), 2)
    >>> weft.nn.DiffusionConv(4, 5)(weft.ones(3, 4), values, vectors).shape
    (3, 5)
    >>> weft.nn.DiffusionConv(4, 5, kind="random_walk")(weft.ones(3, 4), weft.tensor([[0, 1], [1, 2]])).shape
    (3, 5)
    """

    def __init__(
        self, in_channels: int, out_channels: int, num_times: int = 4, num_eigen: int = 128, t_min: float = 0.01,
        t_max: float = 1.0, bias: bool = True, kind: str = "heat", num_steps: int = 2, activation: Any = None,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        who = "DiffusionConv"
        need_sizes(who, in_channels=in_channels, out_channels=out_channels, num_times=num_times, num_eigen=num_eigen)
        need_sizes(who, num_steps=num_steps)
        if kind not in ("heat", "random_walk"):
            raise problem(RangeError, who, f"kind={kind!r}", "'heat' or 'random_walk'")
        if not 0 < t_min <= t_max:
            raise problem(RangeError, who, f"t_min={t_min} and t_max={t_max}", "0 < t_min <= t_max")
        self.in_channels, self.out_channels, self.kind = in_channels, out_channels, kind
        self.num_eigen, self.num_steps, self.activation = num_eigen, num_steps, make_activation(activation)
        self.t_min, self.t_max = t_min, t_max
        blocks = num_times if kind == "heat" else 2 * num_steps + 1
        self.weight = Parameter(empty(out_channels, in_channels * blocks, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None)
        times = Parameter(empty(num_times, device=device, dtype=dtype)) if kind == "heat" else None
        self.register_parameter("times", times)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias again, as those of a Linear; space the times again."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                init.uniform_(parameter, -bound, bound)
        if self.times is not None:
            spaced = np.geomspace(self.t_min, self.t_max, self.times.shape[0])
            self.times.detach().copy_(tensor(spaced, dtype=self.times.dtype, device=self.times.device))

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        need_features("DiffusionConv", x, self.in_channels)
        diffuse = self._heat if self.kind == "heat" else self._random_walk
        return apply_activation(F.linear(diffuse(x, *args, **kwargs), self.weight, self.bias), self.activation)

    def _heat(self, x: Tensor, eigenvalues: Tensor, eigenvectors: Tensor, mass: Tensor | None = None) -> Tensor:
        """[N, T · in]"""
        nodes, count = x.shape[0], min(self.num_eigen, eigenvalues.shape[0])
        if tuple(eigenvectors.shape) != (nodes, eigenvalues.shape[0]):
            given = f"eigenvectors of shape {tuple(eigenvectors.shape)}"
            raise problem(ShapeError, "DiffusionConv", given, f"({nodes}, {eigenvalues.shape[0]}): nodes, eigenvalues")
        values, vectors = eigenvalues[:count], eigenvectors[:, :count]
        spectrum = vectors.T @ (x if mass is None else mass.unsqueeze(-1) * x)  # [k, in]
        decay = (-values.unsqueeze(-1) * self.times.clamp(min=1e-8)).exp()  # [k, T]
        spread = (decay.unsqueeze(-1) * spectrum.unsqueeze(1)).flatten(1)  # [k, T · in]
        return vectors @ spread

    def _random_walk(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        """[N, (2K + 1) · in]"""
        graph, weight = graph_of("DiffusionConv", edge_index, x.shape[0])
        if edge_weight is not None:
            weight = graph.reorder(edge_weight)
        weight = None if weight is None else weight.to(x.dtype)
        weight_by_source = None if weight is None else graph.by_source(weight)
        blocks = [x]
        for edges, weights in ((graph.transposed(), weight_by_source), (graph, weight)):
            scale, state = _inverse_degrees(edges, weights, x.dtype), x
            for _ in range(self.num_steps):
                state = scale * aggregate(state, edges, weights)
                blocks.append(state)
        return cat(blocks, -1)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, kind={self.kind!r}"


def _inverse_degrees(graph: Adjacency, weight: Tensor | None, dtype: Any) -> Tensor:
    """1/D, [N, 1]; 0 where D is 0."""
    degree = degrees(graph, dtype) if weight is None else segment_reduce(weight, graph.rowptr)
    return where(degree == 0, 0.0, 1.0 / where(degree == 0, 1.0, degree)).unsqueeze(-1)


@export
def graph_laplacian(edge_index: Any, num_nodes: int, edge_weight: Tensor | None = None) -> Tensor:
    """L = D - A of a graph, [N, N]: A[i, j] is the sum of the weights of the edges j→i, and D has the sums of its rows.

    >>> weft.nn.graph_laplacian(weft.tensor([[0, 1], [1, 0]]), 2)
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    source, target = edge_index[0], edge_index[1]
    weight = tensor(1.0).expand(source.shape[0]) if edge_weight is None else edge_weight
    dense = weight.new_zeros(num_nodes * num_nodes).index_add(0, target * num_nodes + source, weight)
    dense = dense.reshape(num_nodes, num_nodes)
    return dense.sum(1).diag() - dense


@export
def laplacian_eigenpairs(laplacian: Tensor, k: int, mass: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The `k` smallest eigenvalues λ [k] and eigenvectors Φ [N, k] of L φ = λ M φ, with Φᵀ M Φ = I; `mass` [N] is the
    diagonal of M (ones unless given), all positive. L is taken as symmetric. Computed on the host in float64.

    >>> values, _ = weft.nn.laplacian_eigenpairs(weft.tensor([[1.0, -1.0], [-1.0, 1.0]]), 2)
    >>> values.round(decimals=4).abs()
    tensor([0., 2.])
    """
    matrix = laplacian.detach().double().numpy()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        given = f"a Laplacian of shape {tuple(matrix.shape)}"
        raise problem(ShapeError, "laplacian_eigenpairs", given, "a square matrix")
    weights = np.ones(len(matrix)) if mass is None else mass.detach().double().numpy()
    if weights.shape != (len(matrix),) or not (weights > 0).all():
        given = f"masses of shape {weights.shape}, the least {weights.min(initial=np.inf)}"
        raise problem(RangeError, "laplacian_eigenpairs", given, f"{len(matrix)} positive numbers")
    root = np.sqrt(weights)
    symmetric = (matrix + matrix.T) / 2 / np.outer(root, root)
    values, vectors = np.linalg.eigh(symmetric)  # of M^(-1/2) L M^(-1/2)
    made: dict[str, Any] = {"dtype": laplacian.dtype, "device": laplacian.device}
    return tensor(values[:k], **made), tensor((vectors / root[:, None])[:, :k], **made)
