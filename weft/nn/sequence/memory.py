"""Memories: levels that learn at different speeds, and a table of slots that is read and written by attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.tensor import Tensor
from weft.functional.loop import loop
from weft.nn import functional as F
from weft.nn.basic.linear import Linear
from weft.nn.containers import ModuleList
from weft.nn.module import Module
from weft.nn.registry import layer


@layer(
    "L086", aliases=("ContinuumMemorySystemLayer", "ContinuumMemorySystem"),
    oracle="a chain of torch Linears; NumPy SGD with one accumulator per level",
)  # fmt: skip
class ContinuumMemory(Module):
    """y = relu(W_K ... relu(W_1 x + b_1) ... + b_K): levels that differ in how often they learn. Level l takes one step
    for every C_l calls of the optimizer, with the sum of the gradients since its last step; the first is the fastest.

    Shape: x [*, in_features], y [*, hidden]; levels.0 [hidden, in_features], the others [hidden, hidden]. Give
    `param_groups()` to an optimizer, which honours their `update_every`. After Behrouz et al., "Nested learning"
    (2025).

    >>> memory = weft.nn.ContinuumMemory(3, 4, chunk_sizes=(1, 10, 100))
    >>> [group["update_every"] for group in memory.param_groups()]
    [1, 10, 100]
    >>> optimizer = weft.optim.SGD(memory.param_groups(), lr=0.1)
    """

    def __init__(
        self, in_features: int, hidden: int, num_levels: int = 3, chunk_sizes: Sequence[int] = (1, 10, 100),
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        if num_levels < 1 or len(chunk_sizes) != num_levels or any(size < 1 for size in chunk_sizes):
            given = f"num_levels={num_levels} and chunk_sizes={tuple(chunk_sizes)}"
            raise problem(RangeError, "ContinuumMemory", given, "one chunk size from 1 for each level")
        self.chunk_sizes = tuple(chunk_sizes)
        widths = [in_features] + [hidden] * num_levels
        self.levels = ModuleList(
            [Linear(widths[k], widths[k + 1], device=device, dtype=dtype) for k in range(num_levels)]
        )

    def param_groups(self) -> list[dict[str, Any]]:
        """One group of parameters per level, with how often it is updated."""
        return [
            {"params": list(level.parameters()), "update_every": size}
            for level, size in zip(self.levels, self.chunk_sizes, strict=True)
        ]

    def forward(self, x: Tensor) -> Tensor:
        for level in self.levels:
            x = F.relu(level(x))
        return x

    def extra_repr(self) -> str:
        return f"chunk_sizes={self.chunk_sizes}"


def _check_memory(who: str, x: Tensor, memory: Tensor, features: int, width: int, batched: bool) -> None:
    shapes = f"an input {x.shape} and a memory {memory.shape}"
    ranks = (3,) if batched else (2, 3)
    if x.ndim not in (2, 3) or x.shape[-1] != features or memory.ndim not in ranks or memory.shape[-1] != width:
        slots = f"[B, S, {width}]" if batched else f"[S, {width}] or [B, S, {width}]"
        raise problem(ShapeError, who, shapes, f"[B, {features}] or [B, T, {features}] and {slots}")
    if memory.ndim == 3 and memory.shape[0] != x.shape[0]:
        raise problem(ShapeError, who, shapes, "one memory for each sample")


@layer("L087", aliases=("MemoryReadLayer",), oracle="torch scaled_dot_product_attention and a torch Linear")
class MemoryRead(Module):
    """w = softmax(x W_q Mᵀ / √m), y = (w M) W_oᵀ + b: attention to the slots of a memory.

    Shape: x [B, input_dim] or [B, T, input_dim], M [S, memory_dim] or [B, S, memory_dim]; returns y [..., output_dim]
    and w [..., S]. query.weight [memory_dim, input_dim], output.weight [output_dim, memory_dim]. Gradients flow to M,
    too. After Graves et al., "Neural Turing machines" (2014).

    >>> y, w = weft.nn.MemoryRead(3, 4, 2)(weft.ones(5, 3), weft.ones(7, 4))
    >>> y.shape, w.shape
    ((5, 2), (5, 7))
    """

    def __init__(self, input_dim: int, memory_dim: int, output_dim: int, device: Any = None, dtype: Any = None):
        super().__init__()
        self.input_dim, self.memory_dim = input_dim, memory_dim
        self.query = Linear(input_dim, memory_dim, bias=False, device=device, dtype=dtype)
        self.output = Linear(memory_dim, output_dim, device=device, dtype=dtype)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        _check_memory("MemoryRead", x, memory, self.input_dim, self.memory_dim, batched=False)
        queries = self.query(x if x.ndim == 3 else x.unsqueeze(1))  # [B, T, m]
        scores = queries @ memory.transpose(-2, -1) * (1.0 / math.sqrt(self.memory_dim))
        weights = F.softmax(scores, -1)  # [B, T, S]
        y = self.output(weights @ memory)
        return (y, weights) if x.ndim == 3 else (y.squeeze(1), weights.squeeze(1))


@layer("L088", aliases=("MemoryWriteLayer",), oracle="the loop over steps in float64 NumPy")
class MemoryWrite(Module):
    """M' = M ⊙ (1 - w ⊗ e) + w ⊗ a with w = softmax(x W_q Mᵀ / √m), e = sigmoid(x W_e + b_e), a = tanh(x W_a + b_a):
    each slot is erased and written in proportion to its weight, step after step.

    Shape: x [B, input_dim] or [B, T, input_dim], M and M' [B, S, memory_dim]; query, erase and write have weights
    [memory_dim, input_dim]. The projections of all steps are one product each. After Graves et al., "Neural Turing
    machines" (2014).

    >>> weft.nn.MemoryWrite(3, 4)(weft.ones(2, 6, 3), weft.zeros(2, 5, 4)).shape
    (2, 5, 4)
    """

    def __init__(self, input_dim: int, memory_dim: int, device: Any = None, dtype: Any = None):
        super().__init__()
        self.input_dim, self.memory_dim = input_dim, memory_dim
        self.query = Linear(input_dim, memory_dim, bias=False, device=device, dtype=dtype)
        self.erase = Linear(input_dim, memory_dim, device=device, dtype=dtype)
        self.write = Linear(input_dim, memory_dim, device=device, dtype=dtype)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        _check_memory("MemoryWrite", x, memory, self.input_dim, self.memory_dim, batched=True)
        steps = (x if x.ndim == 3 else x.unsqueeze(1)).transpose(0, 1)  # [T, B, in]
        queries = self.query(steps) * (1.0 / math.sqrt(self.memory_dim))
        erased, written = F.sigmoid(self.erase(steps)), F.tanh(self.write(steps))  # [T, B, m]

        def step(slots: Tensor, now: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, None]:
            query, erase, write = now  # [B, m]
            weights = F.softmax((slots @ query.unsqueeze(2)).squeeze(2), -1).unsqueeze(2)  # [B, S, 1]
            return slots * (1.0 - weights * erase.unsqueeze(1)) + weights * write.unsqueeze(1), None

        return loop(step, memory, (queries, erased, written))[0]
