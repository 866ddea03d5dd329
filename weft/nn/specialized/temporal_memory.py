"""The temporal memory of hierarchical temporal memory: sequences of sparse codes, learned by permanences of synapses.

`learn` is tensor code without gradients: it works eagerly and inside `weft.compile`, and does not learn in evaluation
mode. The rows of a batch learn one after another.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from weft.autograd import no_grad
from weft.base.dtypes import bool_, int32, int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import arange, full, ones, zeros
from weft.core.tensor import Tensor
from weft.functional.loop import loop
from weft.names.functions import where
from weft.nn.module import Module
from weft.nn.parameter import Buffer
from weft.nn.registry import layer
from weft.nn.specialized.anomaly import anomaly_score
from weft.nn.specialized.batch_state import compute_now, fit_rows, set_rows
from weft.random.generator import rand


class _Synapses(NamedTuple):
    """What a temporal memory learns: `presyn` and `permanence` [cells, segments, synapses], `used` [cells,
    segments]."""

    presyn: Tensor
    permanence: Tensor
    used: Tensor
    step: Tensor


class _Cells(NamedTuple):
    """What one sequence has: `active` and `winner` [cells], and for every segment [cells, segments] how many of its
    connected, and of all its synapses come from active cells."""

    active: Tensor
    winner: Tensor
    connected: Tensor
    potential: Tensor


@layer("L099", aliases=("TemporalMemoryLayer",), learns="HTM", oracle="NumPy: the same rule in loops, to the bit")
class TemporalMemory(Module):
    """Active cells: in every active column those that were predicted, or all of them where none was (Hawkins & Ahmad
    2016).

    A cell is predicted (predictive) when one of its segments has at least `activation_threshold` connected
    synapses (permanence >= connected) to active cells; a segment with at least `min_threshold` synapses, connected or
    not, to active cells is matching. The same input so has other cells in another context.

    A step of `learn`, with the active cells, winners and segments of the step before:

    1. An active column with predicted cells: these are active and winners. Each of their active segments learns: +
       perm_inc on synapses to cells that were active, - perm_dec on the others, and it grows up to max_new_synapses
       less its active synapses to winners of before that it is not connected to (permanence initial_perm).
       Other active columns burst: all their cells are active; the winner is the owner of the matching segment with most
       active synapses, which learns as above, else the cell with fewest segments, which gets a new segment with up to
       max_new_synapses to winners of before, if there were any. Ties: the lower index.
    2. In inactive columns matching segments lose predicted_dec on synapses to cells that were active. Synapses at 0 or
       below are deleted.
    3. Synapses of every segment to the cells that are active now are counted.

    Winners are chosen in one random order per step. In a full segment the weakest synapse is replaced, in a full cell
    the segment that has not learned for longest.

    `forward(columns)` is a step without learning, `learn(columns)` one with it (unless in evaluation mode); `reset()`
    at the border of a sequence clears the state of all rows.

    Shape: columns [B, column_count], binary (any dtype; not 0 is active); output [B, column_count · cells_per_column],
    0 or 1; cell i of column c is number c · cells_per_column + i. Every row of the batch is a sequence with a state of
    its own; a batch of another size starts over. After a step, `predictive_columns` [B, column_count] are those
    expected next, and `anomaly` [B] is the part of the active columns that was not expected. Buffers of fixed capacity:
    presyn, int32 [cells, max_segments, max_synapses], -1 where there is no synapse; permanence of the same shape; used
    [cells, max_segments], the step at which a segment learned last. It has no gradient. Growing is most of the work:
    `max_active_columns`, if given, is how many columns are active at most (more raise), and it is done for no more.

    >>> memory = weft.nn.TemporalMemory(8, 4, activation_threshold=2, min_threshold=1, max_new_synapses=4)
    >>> first, second = weft.zeros(1, 8), weft.zeros(1, 8)
    >>> first[:, :3] = 1
    >>> second[:, 4:7] = 1
    >>> for _ in range(6):
    ...     memory.reset()
    ...     _, _ = memory.learn(first), memory.learn(second)
    >>> memory.anomaly
    tensor([0.])
    """

    presyn: Tensor
    permanence: Tensor
    used: Tensor
    step: Tensor
    active: Tensor
    winner: Tensor
    connected_count: Tensor
    potential_count: Tensor
    anomaly: Tensor

    def __init__(
        self,
        column_count: int,
        cells_per_column: int = 32,
        activation_threshold: int = 13,
        min_threshold: int = 10,
        initial_perm: float = 0.21,
        connected: float = 0.5,
        max_new_synapses: int = 20,
        perm_inc: float = 0.1,
        perm_dec: float = 0.1,
        predicted_dec: float = 0.0,
        max_segments: int = 16,
        max_synapses: int = 32,
        max_active_columns: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        sizes = (column_count, cells_per_column, activation_threshold, min_threshold, max_segments, max_synapses)
        if min(sizes) < 1 or max_new_synapses < 0 or not 0 < initial_perm <= 1:
            given = f"sizes and thresholds {sizes}, max_new_synapses={max_new_synapses}, initial_perm={initial_perm}"
            raise problem(RangeError, "TemporalMemory", given, "at least 1 of each, and 0 < initial_perm <= 1")
        if max_active_columns is not None and max_active_columns < 1:
            given = f"max_active_columns={max_active_columns}"
            raise problem(RangeError, "TemporalMemory", given, "at least 1, or None for all")
        self.column_count, self.cells_per_column = column_count, cells_per_column
        self.activation_threshold, self.min_threshold = activation_threshold, min_threshold
        self.initial_perm, self.connected, self.max_new_synapses = initial_perm, connected, max_new_synapses
        self.perm_inc, self.perm_dec, self.predicted_dec = perm_inc, perm_dec, predicted_dec
        self.max_segments, self.max_synapses = max_segments, max_synapses
        self.max_active_columns = column_count if max_active_columns is None else min(max_active_columns, column_count)
        self.cells = column_count * cells_per_column
        shape = (self.cells, max_segments, max_synapses)
        self.presyn = Buffer(full(shape, -1, device=device, dtype=int32))
        self.permanence = Buffer(zeros(*shape, device=device, dtype=dtype))
        self.used = Buffer(zeros(*shape[:2], device=device, dtype=int64))
        self.step = Buffer(zeros((), device=device, dtype=int64))
        for name, value in self._fresh(1).items():
            self.register_buffer(name, value, persistent=False)

    def _fresh(self, rows: int) -> dict[str, Tensor]:
        """The state of `rows` sequences before their first step."""
        device = self.presyn.device
        cells, segments = (rows, self.cells), (rows, self.cells, self.max_segments)
        return {
            "active": zeros(*cells, dtype=bool_, device=device),
            "winner": zeros(*cells, dtype=bool_, device=device),
            "connected_count": zeros(*segments, dtype=int32, device=device),
            "potential_count": zeros(*segments, dtype=int32, device=device),
            "anomaly": zeros(rows, dtype=self.permanence.dtype, device=device),
        }

    def reset(self, batch_size: int | None = None) -> None:
        """Forget what came before, for the next sequences: `batch_size` of them, or as many as there were."""
        set_rows(self, self._fresh(len(self.active) if batch_size is None else batch_size))

    @property
    def predictive(self) -> Tensor:
        """The cells that have an active segment, bool [B, cells]."""
        return (self.connected_count >= self.activation_threshold).any(-1)

    @property
    def predictive_columns(self) -> Tensor:
        """The columns that are expected next, bool [B, column_count]."""
        return self.predictive.reshape(-1, self.column_count, self.cells_per_column).any(-1)

    def forward(self, columns: Tensor) -> Tensor:
        return self._advance(columns, learns=False)

    def learn(self, columns: Tensor) -> Tensor:
        """A step that learns: the active cells. In evaluation mode it is forward."""
        return self._advance(columns, learns=self.training)

    def _advance(self, columns: Tensor, learns: bool) -> Tensor:
        if columns.ndim != 2 or columns.shape[1] != self.column_count:
            given = f"shape {tuple(columns.shape)}"
            raise problem(ShapeError, "TemporalMemory", given, f"[B, {self.column_count}]")
        with no_grad():
            fit_rows(self, len(columns), self._fresh)
            columns = columns != 0
            if learns and self.max_active_columns < self.column_count:  # more of them raise: an index out of range
                fits = ones(self.max_active_columns + 1, dtype=bool_, device=columns.device)
                columns = columns & fits[columns.sum(-1, keepdim=True)]
            self.anomaly = anomaly_score(columns, self.predictive_columns, self.permanence.dtype)
            synapses = _Synapses(self.presyn, self.permanence, self.used, self.step)
            cells = _Cells(self.active, self.winner, self.connected_count, self.potential_count)
            if learns:
                priority = rand(len(columns), self.cells, device=columns.device)
                synapses, cells = loop(self._learn_row, synapses, (columns, cells, priority))
                self.presyn, self.permanence, self.used, self.step = synapses
            else:
                cells = loop(lambda same, x: (same, self._step_row(x, synapses)), self.step, (columns, cells))[1]
            self.active, self.winner, self.connected_count, self.potential_count = cells
            output = self.active.to(self.permanence.dtype)
            compute_now(*synapses, *cells, self.anomaly, output)
            return output

    def _step_row(self, x: tuple[Tensor, _Cells], synapses: _Synapses) -> _Cells:
        """One sequence's step without learning."""
        columns, before = x
        active, winner, _ = self._activate(columns, before, synapses)
        return _Cells(active, winner, *self._count(active, synapses))

    def _learn_row(self, synapses: _Synapses, x: tuple[Tensor, _Cells, Tensor]) -> tuple[_Synapses, _Cells]:
        """One sequence's step with learning."""
        columns, before, priority = x
        active, winner, chosen = self._activate(columns, before, synapses)
        synapses = self._adapt(columns, before, chosen, winner, priority, synapses)
        return synapses, _Cells(active, winner, *self._count(active, synapses))

    def _per_cell(self, columns: Tensor) -> Tensor:
        """[column_count] for every cell."""
        return columns.repeat_interleave(self.cells_per_column)

    # ---- 1: which cells become active ------------------------------------------------------------------------------

    def _activate(self, columns: Tensor, before: _Cells, synapses: _Synapses) -> tuple[Tensor, Tensor, Tensor]:
        """The active cells, the winners, and the matching segment that learns in each bursting column (bool
        [cells, segments])."""
        shape = (self.column_count, self.cells_per_column)
        on = self._per_cell(columns)
        predicted = (before.connected >= self.activation_threshold).any(-1) & on
        bursts = on & ~self._per_cell(predicted.reshape(shape).any(-1))
        matching = before.potential >= self.min_threshold  # [cells, segments]
        has_match = self._per_cell(matching.reshape(self.column_count, -1).any(-1))
        best = _first_largest(where(matching, before.potential, -1).reshape(self.column_count, -1))
        best = best.reshape(self.cells, -1) & (bursts & has_match).unsqueeze(1)
        segments = (synapses.presyn >= 0).any(-1).sum(-1)  # of each cell
        fewest = _first_largest(-segments.reshape(shape)).reshape(-1) & bursts & ~has_match
        return predicted | bursts, predicted | best.any(-1) | fewest, best

    # ---- 1 and 2: how synapses change ------------------------------------------------------------------------------

    def _adapt(
        self, columns: Tensor, before: _Cells, best: Tensor, winner: Tensor, priority: Tensor, synapses: _Synapses
    ) -> _Synapses:
        presyn, permanence, used, step = synapses
        on = self._per_cell(columns).unsqueeze(1)
        learns = best | ((before.connected >= self.activation_threshold) & on)  # [cells, segments]
        exists = presyn >= 0
        was_active = exists & before.active[presyn.clamp_min(0)]
        change = where(was_active, self.perm_inc, -self.perm_dec).to(permanence.dtype)
        adapted = where(learns.unsqueeze(-1), (permanence + change).clamp(0.0, 1.0), permanence)
        if self.predicted_dec > 0:
            punished = ((before.potential >= self.min_threshold) & ~on).unsqueeze(-1) & was_active
            adapted = where(punished, adapted - self.predicted_dec, adapted)
        fresh = self._new_segments(winner & ~learns.any(-1) & before.winner.any(), exists.any(-1), used)
        keeps = exists & (adapted > 0) & ~fresh.unsqueeze(-1)
        presyn, permanence = where(keeps, presyn, -1), where(keeps, adapted, 0.0)
        missing = where(fresh, self.max_new_synapses, (self.max_new_synapses - before.potential).clamp_min(0))
        wanted = where(learns | fresh, missing, 0)
        if self.max_new_synapses:
            presyn, permanence = self._grow_in(columns, presyn, permanence, wanted, before.winner, priority)
        step = step + 1
        return _Synapses(presyn, permanence, where(learns | fresh, step, used), step)

    def _new_segments(self, cells: Tensor, exists: Tensor, used: Tensor) -> Tensor:
        """A segment of each of `cells` to be made again: one without synapses, else the one used longest ago."""
        age = where(exists, used, -1)
        return _first_largest(-age) & cells.unsqueeze(1)

    def _grow_in(
        self, columns: Tensor, presyn: Tensor, permanence: Tensor, wanted: Tensor, winner: Tensor, priority: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`_grow` in the active columns: others want nothing."""
        count = self.max_active_columns
        if count == self.column_count:
            return self._grow(presyn, permanence, wanted, winner, priority)
        order = (~columns).to(int32).argsort(stable=True)  # the active columns first
        slot = order.argsort()
        is_taken, shape = (slot < count)[:, None, None], (self.column_count, -1, self.max_synapses)
        old = [one.reshape(shape) for one in (presyn, permanence)]
        some = [one[order[:count]].flatten(0, 1) for one in (*old, wanted.reshape(shape[:2]))]
        new = self._grow(some[0], some[1], some[2], winner, priority)  # [count · segments of a column, synapses]
        both = [
            where(is_taken, grown.reshape(count, *shape[1:])[slot.clamp_max(count - 1)], one).reshape(presyn.shape)
            for grown, one in zip(new, old, strict=True)
        ]
        return both[0], both[1]

    def _grow(
        self, presyn: Tensor, permanence: Tensor, wanted: Tensor, winner: Tensor, priority: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Up to `wanted` [*] synapses to winners that a segment is not connected to, of segments [*, synapses]."""
        limit = min(self.cells, self.max_synapses + self.max_new_synapses)  # of these as many are new as can be wanted
        order = where(winner, priority, 2.0).argsort(stable=True)[:limit]  # winners in random order
        source = order.to(int32)
        is_new = winner[order] & ~(presyn.unsqueeze(-1) == source).any(-2)  # [*, limit]
        number = is_new.to(int32).cumsum(-1) - 1  # of each new one
        slot = arange(min(self.max_new_synapses, self.max_synapses), device=presyn.device).unsqueeze(1)
        is_next = is_new.unsqueeze(-2) & (number.unsqueeze(-2) == slot)  # [*, slots, limit]
        chosen = where(is_next, source, 0).sum(-1).to(int32)  # the new ones in their order
        rank = _ascending_rank(where(presyn >= 0, permanence, -1.0))  # empty slots first, then the weakest synapses
        grows = rank < where(is_new.sum(-1) < wanted, is_new.sum(-1), wanted).unsqueeze(-1)
        taken = chosen.gather(-1, rank.clamp_max(len(slot) - 1))
        return where(grows, taken, presyn), where(grows, self.initial_perm, permanence)

    # ---- 3: what is expected next ----------------------------------------------------------------------------------

    def _count(self, active: Tensor, synapses: _Synapses) -> tuple[Tensor, Tensor]:
        """How many connected synapses, and how many in all, of each segment come from active cells."""
        is_active = (synapses.presyn >= 0) & active[synapses.presyn.clamp_min(0)]
        is_connected = is_active & (synapses.permanence >= self.connected)
        return is_connected.sum(-1).to(int32), is_active.sum(-1).to(int32)

    def extra_repr(self) -> str:
        return f"column_count={self.column_count}, cells_per_column={self.cells_per_column}"


def _first_largest(values: Tensor) -> Tensor:
    """True at the first of the largest elements along the last axis."""
    return arange(values.shape[-1], device=values.device) == values.argmax(-1, keepdim=True)


def _ascending_rank(values: Tensor) -> Tensor:
    """How many elements along the last axis are smaller, or equal and before it."""
    own, other = values.unsqueeze(-1), values.unsqueeze(-2)
    slot = arange(values.shape[-1], device=values.device)
    is_before = (other < own) | ((other == own) & (slot < slot.unsqueeze(-1)))
    return is_before.sum(-1)
