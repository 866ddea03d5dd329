"""Layers over the structure of sequences: a conditional random field, and a module applied at every time step."""

from __future__ import annotations

from typing import Any

from weft.base import tree
from weft.base.dtypes import bool_, int64
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.core.creation import arange, empty, full, ones
from weft.core.tensor import Tensor
from weft.functional.loop import loop
from weft.names.functions import cat, where
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer
from weft.nn.sequence.recurrence import check_dtype, zero


@layer(
    "L091", aliases=("ConditionalRandomFieldLayer", "ConditionalRandomField"), oracle="all K^T paths in float64 NumPy"
)
class CRF(Module):
    """score(y) = start[y_1] + Σ e_t[y_t] + Σ transitions[y_{t-1}, y_t] + end[y_T]; p(y) = exp(score(y)) / Z: a linear
    chain over K tags, with Z summed over all K^T paths by one recursion in log space.

    Shape: emissions e [B, T, K], tags [B, T] (integers), mask [B, T] (bool, True for steps that count; steps that do
    not are skipped as if they were not there, and a sequence without any has the score 0 and Z = 1). Parameters
    transitions [K, K] (from, to), start [K], end [K] start as U(-0.1, 0.1). Called with tags it gives `nll`, without
    the tags of `decode`. Lafferty 2001.

    >>> crf = weft.nn.CRF(3)
    >>> crf.decode(weft.tensor([[[5.0, 0.0, 0.0], [0.0, 0.0, 5.0]]]))
    tensor([[0, 2]])
    """

    def __init__(self, num_tags: int, device: Any = None, dtype: Any = None):
        super().__init__()
        if isinstance(num_tags, bool) or not isinstance(num_tags, int) or num_tags < 1:
            raise problem(RangeError, "CRF", f"num_tags={num_tags!r}", "an int of at least 1")
        self.num_tags = num_tags
        self.transitions = Parameter(empty(num_tags, num_tags, device=device, dtype=dtype))
        self.start = Parameter(empty(num_tags, device=device, dtype=dtype))
        self.end = Parameter(empty(num_tags, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        for param in self.parameters():
            init.uniform_(param, -0.1, 0.1)

    def forward(
        self, emissions: Tensor, tags: Tensor | None = None, mask: Tensor | None = None, reduction: str = "mean"
    ) -> Tensor:
        return self.decode(emissions, mask) if tags is None else self.nll(emissions, tags, mask, reduction)

    def nll(self, emissions: Tensor, tags: Tensor, mask: Tensor | None = None, reduction: str = "mean") -> Tensor:
        """log Z - score(tags): the negative log-likelihood. `reduction` over the batch: 'mean', 'sum' or 'none'."""
        if reduction not in ("mean", "sum", "none"):
            raise problem(RangeError, "CRF.nll", f"reduction={reduction!r}", "'mean', 'sum' or 'none'")
        loss = self.log_partition(emissions, mask) - self.score(emissions, tags, mask)
        return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()

    def log_partition(self, emissions: Tensor, mask: Tensor | None = None) -> Tensor:
        """log Z of each sequence, [B]. Its gradient in the emissions are the marginals p(y_t = k)."""
        mask, is_first, _ = self._masks(emissions, mask)

        def step(alpha: Tensor, now: Any) -> tuple[Tensor, None]:
            e, is_here, is_first = now  # [B, K], [B, 1], [B, 1]
            moved = (alpha.unsqueeze(2) + self.transitions).logsumexp(1)  # [B, from, to] to [B, to]
            new = where(is_first, self.start, moved) + e
            return where(is_here, new, alpha), None

        alpha, _ = loop(step, self._nothing(emissions), _by_time(emissions, mask, is_first))
        return where(mask.any(1), (alpha + self.end).logsumexp(1), zero(alpha))

    def score(self, emissions: Tensor, tags: Tensor, mask: Tensor | None = None) -> Tensor:
        """The score of each sequence of tags, [B]."""
        mask, is_first, previous = self._masks(emissions, mask)
        if tags.dtype.kind not in "iu":
            raise problem(DTypeError, "CRF", f"tags of {tags.dtype.name}", "integers")
        if tags.shape != mask.shape:
            raise problem(ShapeError, "CRF", f"tags of shape {list(tags.shape)}", f"{list(mask.shape)}")
        tags = where(mask, tags, 0).to(int64)
        before = tags.gather(1, previous.clamp(min=0))  # the tag of the step before
        here = emissions.gather(2, tags.unsqueeze(2)).squeeze(2)
        here = here + where(is_first, self.start[tags], self.transitions[before, tags])
        last = tags.gather(1, _last(mask)[:, -1:].clamp(min=0)).squeeze(1)
        return where(mask, here, zero(here)).sum(1) + where(mask.any(1), self.end[last], zero(here))

    def decode(self, emissions: Tensor, mask: Tensor | None = None) -> Tensor:
        """The tags of the highest score, [B, T], by Viterbi's recursion; of equal scores the lower tag, from the last
        step on. Steps that do not count get -1."""
        mask, is_first, _ = self._masks(emissions, mask)
        same = arange(self.num_tags, device=emissions.device)

        def step(best: Tensor, now: Any) -> tuple[Tensor, Tensor]:
            e, is_here, is_first = now
            moved, origin = (best.unsqueeze(2) + self.transitions).max(1)
            new = where(is_first, self.start, moved) + e
            return where(is_here, new, best), where(is_here & ~is_first, origin, same)

        def follow(tag: Tensor, origin: Tensor) -> tuple[Tensor, Tensor]:
            return origin.gather(1, tag.unsqueeze(1)).squeeze(1), tag

        best, origins = loop(step, self._nothing(emissions), _by_time(emissions, mask, is_first))
        _, tags = loop(follow, (best + self.end).argmax(1), origins, reverse=True)  # [T, B]
        return where(mask, tags.transpose(0, 1), -1)

    def _nothing(self, emissions: Tensor) -> Tensor:
        return full((emissions.shape[0], self.num_tags), 0.0, dtype=emissions.dtype, device=emissions.device)

    def _masks(self, emissions: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The mask, whether each step is its sequence's first, and the step before each (-1 for none), all [B, T]."""
        if emissions.ndim != 3 or emissions.shape[2] != self.num_tags or emissions.shape[1] == 0:
            expected = f"[B, T, K] with T of at least 1 and K = num_tags = {self.num_tags}"
            raise problem(ShapeError, "CRF", f"emissions of shape {list(emissions.shape)}", expected)
        check_dtype("CRF", emissions, self.start)
        batch, steps = emissions.shape[:2]
        if mask is None:
            mask = ones(batch, steps, dtype=bool_, device=emissions.device)
        if mask.shape != (batch, steps):
            raise problem(ShapeError, "CRF", f"a mask of shape {list(mask.shape)}", f"{[batch, steps]}")
        mask = mask.to(bool_)
        none = full((batch, 1), -1, dtype=int64, device=emissions.device)
        previous = cat([none, _last(mask)[:, :-1]], 1)
        return mask, mask & (previous < 0), previous

    def extra_repr(self) -> str:
        return f"num_tags={self.num_tags}"


def _last(mask: Tensor) -> Tensor:
    """The last step up to each that counts, [B, T]; -1 where none does."""
    return where(mask, arange(mask.shape[1], device=mask.device), -1).cummax(1).values


def _by_time(emissions: Tensor, *masks: Tensor) -> tuple[Tensor, ...]:
    """[B, T, K] and [B, T] as slices of time for a loop: [T, B, K] and [T, B, 1]."""
    return (emissions.transpose(0, 1), *[mask.transpose(0, 1).unsqueeze(2) for mask in masks])


@layer("L106", aliases=("TimeDistributedLayer",), learns="G", oracle="a loop over the time steps")
class TimeDistributed(Module):
    """y_t = module(x_t), for all time steps by one call: [B, T, ...] becomes [B T, ...] and back.

    Shape: every input [B, T, ...], every output [B, T, ...].

    >>> layer = weft.nn.TimeDistributed(weft.nn.Linear(3, 4))
    >>> layer(weft.ones(2, 5, 3)).shape
    (2, 5, 4)
    """

    def __init__(self, module: Module):
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Any:
        heads = {tuple(one.shape[:2]) for one in inputs}
        if len(heads) != 1 or len(next(iter(heads))) < 2:
            shapes = ", ".join(str(list(one.shape)) for one in inputs) or "no shape"
            raise problem(ShapeError, "TimeDistributed", f"input of shape {shapes}", "the same axes [B, T] first")
        batch, steps = next(iter(heads))
        result = self.module(*[one.flatten(0, 1) for one in inputs])
        leaves, structure = tree.flatten(result)
        split = [one.reshape(batch, steps, *one.shape[1:]) if isinstance(one, Tensor) else one for one in leaves]
        return tree.unflatten(structure, split)
