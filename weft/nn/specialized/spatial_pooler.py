"""The spatial pooler of hierarchical temporal memory: sparse codes of binary inputs, learned by permanences.

`learn` is tensor code without gradients: it works eagerly and inside `weft.compile`, and does not learn in evaluation
mode. The rows of a batch learn one after another.
"""

from __future__ import annotations

from typing import Any

from weft.autograd import no_grad
from weft.base.dtypes import bool_, int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import ones, zeros
from weft.core.tensor import Tensor
from weft.functional.loop import loop
from weft.names.functions import where
from weft.nn import functional as F
from weft.nn.module import Module
from weft.nn.parameter import Buffer
from weft.nn.registry import layer
from weft.nn.specialized.batch_state import compute_now
from weft.random.generator import rand

WEAK_DUTY = 0.001  # of the largest overlap duty cycle: columns below it get stronger synapses


@layer("L097", aliases=("SpatialPoolerLayer",), learns="HTM", oracle="NumPy: the same rule in loops, to the bit")
class SpatialPooler(Module):
    """active = the k columns with the largest o = boost ⊙ ((perm >= connected ∧ potential) x), k = max(1,
    round(sparsity · m)), among those whose raw overlap is at least max(1, stimulus_threshold); of equal ones the lower
    index. A sparse code in which similar inputs have similar columns (Cui, Ahmad & Hawkins 2017).

    `learn(x)` does for each row: forward; in every active column perm += perm_inc for potential inputs that are 1,
    perm -= perm_dec for those that are 0; with T = min(step, duty_period), active_duty ← ((T - 1) active_duty +
    active) / T, and overlap_duty the same with the columns whose overlap was large enough; boost =
    exp(-boost_strength (active_duty - sparsity)); columns with overlap_duty < 0.001 max(overlap_duty) get +
    connected/10 on all their potential synapses. Permanences stay in [0, 1].

    Shape: input [B, input_size], binary (any dtype; not 0 is 1), output [B, column_count], 0 or 1. Buffers: potential
    and permanence [column_count, input_size] (every column has a random `potential_pct` of the inputs; half of these
    synapses start in [connected, 1), half in [0, connected)), active_duty, overlap_duty and boost [column_count], step.
    It has no gradient.

    >>> pooler = weft.nn.SpatialPooler(20, column_count=50, sparsity=0.1)
    >>> pooler.learn((weft.rand(3, 20) < 0.5)).sum(1)
    tensor([5., 5., 5.])
    """

    permanence: Tensor
    active_duty: Tensor
    overlap_duty: Tensor
    boost: Tensor
    step: Tensor

    def __init__(
        self,
        input_size: int,
        column_count: int = 2048,
        sparsity: float = 0.02,
        potential_pct: float = 0.5,
        connected: float = 0.1,
        perm_inc: float = 0.05,
        perm_dec: float = 0.008,
        stimulus_threshold: int = 0,
        boost_strength: float = 0.0,
        duty_period: int = 1000,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        if min(input_size, column_count, duty_period) < 1:
            given = f"input_size={input_size}, column_count={column_count} and duty_period={duty_period}"
            raise problem(RangeError, "SpatialPooler", given, "at least 1 of each")
        if not (0 < sparsity <= 1 and 0 < potential_pct <= 1 and 0 < connected <= 1):
            given = f"sparsity={sparsity}, potential_pct={potential_pct} and connected={connected}"
            raise problem(RangeError, "SpatialPooler", given, "fractions above 0 and up to 1")
        self.input_size, self.column_count, self.sparsity = input_size, column_count, sparsity
        self.potential_pct, self.connected, self.perm_inc, self.perm_dec = potential_pct, connected, perm_inc, perm_dec
        self.stimulus_threshold, self.boost_strength, self.duty_period = stimulus_threshold, boost_strength, duty_period
        self.active_count = max(1, round(sparsity * column_count))
        shape, like = (column_count, input_size), {"device": device, "dtype": dtype}
        self.potential = Buffer(zeros(*shape, device=device, dtype=bool_))
        self.permanence = Buffer(zeros(*shape, **like))
        self.active_duty = Buffer(zeros(column_count, **like))
        self.overlap_duty = Buffer(zeros(column_count, **like))
        self.boost = Buffer(ones(column_count, **like))
        self.step = Buffer(zeros((), device=device, dtype=int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the synapses again, and forget the duty cycles."""
        count = max(1, round(self.potential_pct * self.input_size))
        device, dtype = self.permanence.device, self.permanence.dtype
        with no_grad():
            rank = rand(self.potential.shape, device=device).argsort(-1, stable=True).argsort(-1, stable=True)
            level = rand(self.potential.shape, device=device)
            strong = self.connected + (1.0 - self.connected) * level
            start = where(rank < count // 2, strong, self.connected * level)
            self.potential.copy_(rank < count)
            self.permanence.copy_(where(rank < count, start, 0.0).to(dtype))
            for duty in (self.active_duty, self.overlap_duty, self.step):
                duty.zero_()
            self.boost.fill_(1.0)

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        with no_grad():
            return self._compete(input != 0, self.permanence, self.boost)[0]

    def _check(self, input: Tensor) -> None:
        if input.ndim != 2 or input.shape[1] != self.input_size:
            raise problem(ShapeError, "SpatialPooler", f"shape {tuple(input.shape)}", f"[B, {self.input_size}]")

    def _compete(self, input: Tensor, permanence: Tensor, boost: Tensor) -> tuple[Tensor, Tensor]:
        """The active columns, and the columns with enough overlap, of bool inputs [B, n]: [B, m]."""
        synapses = (permanence >= self.connected) & self.potential
        overlap = F.linear(input.to(boost.dtype), synapses.to(boost.dtype))  # whole numbers, exact in any order
        is_enough = overlap >= max(1, self.stimulus_threshold)
        order = where(is_enough, boost * overlap, -1.0).topk(self.active_count).indices  # ties: lower index
        chosen = zeros(*overlap.shape, dtype=boost.dtype, device=boost.device).scatter(1, order, 1.0)
        return where(is_enough, chosen, 0.0), is_enough.to(boost.dtype)

    def learn(self, input: Tensor) -> Tensor:
        """The active columns of each row, [B, column_count], where every row has learned from those before it. In
        evaluation mode it is forward."""
        if not self.training:
            return self(input)
        self._check(input)
        with no_grad():
            state = (self.permanence, self.active_duty, self.overlap_duty, self.boost, self.step)
            state, active = loop(self._learn_row, state, input != 0)
            self.permanence, self.active_duty, self.overlap_duty, self.boost, self.step = state
            compute_now(*state, active)
            return active

    def _learn_row(self, state: tuple[Tensor, ...], row: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        permanence, active_duty, overlap_duty, boost, step = state
        active, is_enough = (one.squeeze(0) for one in self._compete(row.unsqueeze(0), permanence, boost))
        change = where(row, self.perm_inc, -self.perm_dec).to(permanence.dtype)  # [n]
        learns = self.potential & (active.unsqueeze(1) != 0)
        permanence = where(learns, (permanence + change).clamp(0.0, 1.0), permanence)
        step = step + 1
        period = step.clamp_max(self.duty_period).to(boost.dtype)
        active_duty = ((period - 1.0) * active_duty + active) / period
        overlap_duty = ((period - 1.0) * overlap_duty + is_enough) / period
        boost = (-self.boost_strength * (active_duty - self.sparsity)).exp()
        is_weak = overlap_duty < WEAK_DUTY * overlap_duty.max()
        raised = (permanence + self.connected / 10.0).clamp(0.0, 1.0)
        permanence = where(self.potential & is_weak.unsqueeze(1), raised, permanence)
        return (permanence, active_duty, overlap_duty, boost, step), active

    def extra_repr(self) -> str:
        return f"input_size={self.input_size}, column_count={self.column_count}, sparsity={self.sparsity}"
