"""Connectionist temporal classification: the likelihood of a label sequence over all its alignments with time steps.

One `weft.loop` over time carries the log-likelihoods of all prefixes; the gradient is that of the loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.base.dtypes import float32, int64
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.base.state import STATE
from weft.core.host_arrays import from_host
from weft.core.lift import lift
from weft.core.tensor import Tensor
from weft.functional.loop import loop
from weft.graph import build
from weft.graph.node import Node
from weft.ops.common import as_int, need_float, same_device
from weft.ops.registry import operation

Lengths = Tensor | Sequence[int] | int
_surrogate = lift(build.surrogate)


@operation("functional", of_tensors=True)
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int] | int,
    target_lengths: Tensor | Sequence[int] | int,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The negative logarithm of the probability of each target, summed over its alignments with the time steps.

    `log_probs` [T, N, C] (or [T, C]) are logarithms of probabilities, as `log_softmax` gives them. `targets` [N, S]
    are class numbers without `blank`, of which the first `target_lengths` [N] count; or they are one vector with the
    targets of all samples one after the other. The first `input_lengths` [N] time steps count. The mean divides each
    loss by the length of its target first. A target that is too long for its input has an infinite loss, or 0 and no
    gradient with `zero_infinity`. The gradient is that in PyTorch, which takes for granted that the probabilities of a
    time step sum to 1: it differs from the derivative by `exp(log_probs)`, which `log_softmax` cancels.

    Lengths are checked where their values are known: not inside `weft.compile`.

    >>> log_probs = weft.full((2, 1, 2), 0.5).log()
    >>> loss = weft.nn.functional.ctc_loss(log_probs, weft.tensor([[1]]), (2,), (1,), reduction="sum")
    >>> weft.exp(-loss)  # '1 1', '1 -' and '- 1'
    tensor(0.7500)
    """
    who = "ctc_loss"
    need_float(who, log_probs.node)
    if reduction not in ("mean", "sum", "none"):
        raise problem(RangeError, who, f"reduction={reduction!r}", "'mean', 'sum' or 'none'")
    single = log_probs.ndim == 2
    if log_probs.ndim not in (2, 3) or targets.dtype.kind not in "iu":
        given = f"log_probs {log_probs.shape} and targets {targets.dtype.name}{list(targets.shape)}"
        raise problem(ShapeError, who, given, "[T, N, C] or [T, C], and integer targets")
    same_device(who, [log_probs.node, targets.node])
    steps, batch, classes = (log_probs.shape[0], 1, log_probs.shape[1]) if single else log_probs.shape
    if not 0 <= as_int(who, blank, "blank") < classes:
        raise problem(RangeError, who, f"blank={blank} for {classes} classes", f"0 to {classes - 1}")
    times = _lengths("input_lengths", input_lengths, batch, log_probs, steps)
    most = targets.shape[0] if targets.ndim == 1 else targets.shape[-1]
    sizes = _lengths("target_lengths", target_lengths, batch, log_probs, most)
    scores = log_probs.reshape(steps, batch, classes)
    scores = scores.to(float32) if scores.dtype.is_16_bit else scores
    labels = _pad_targets(targets, sizes, target_lengths, batch, blank)
    loss = _negative_log_likelihood(scores, labels, times, sizes, blank)
    infinite = loss.detach() == math.inf
    total = _probability(scores, times)
    if not zero_infinity:
        total = total * Tensor(build.like(total.node, 1.0)).masked_fill(infinite, math.nan)  # no slope there
    loss = _surrogate(loss, loss + total)
    loss = loss.masked_fill(infinite, 0.0) if zero_infinity else loss
    loss = loss.to(log_probs.dtype)
    if reduction == "mean":
        return (loss / sizes.clamp(min=1).to(loss.dtype)).mean()
    if reduction == "sum":
        return loss.sum()
    return loss.reshape(()) if single else loss


def _lengths(name: str, given: Lengths, batch: int, like: Tensor, most: int) -> Tensor:
    """Lengths as int64 [batch], checked where their values are known."""
    who = "ctc_loss"
    if isinstance(given, Tensor):
        if given.dtype.kind not in "iu":
            raise problem(DTypeError, who, f"{name} of {given.dtype.name}", "integers")
        if given.shape != (batch,) and not (batch == 1 and given.shape == ()):
            raise problem(ShapeError, who, f"{name} of shape {given.shape}", f"one for each of {batch} samples")
        values = given.detach().numpy() if STATE.trace is None else None
        found = given.to(like.device).to(int64).reshape(batch)
    else:
        listed = [given] if isinstance(given, int) else given
        values = np.array([as_int(who, one, name) for one in listed], np.int64)
        if values.shape != (batch,):
            raise problem(ShapeError, who, f"{len(values)} {name}", f"one for each of {batch} samples")
        found = Tensor(_constant(values, like))
    if values is not None and values.size and not (values.min() >= 0 and values.max() <= most):
        raise problem(RangeError, who, f"{name} from {values.min()} to {values.max()}", f"0 to {most}")
    return found


def _constant(values: np.ndarray, like: Tensor) -> Node:
    """Numbers that are known when the call is recorded, as a node that a compiled function may contain."""
    if STATE.trace is None:
        return from_host(values, like.device)
    parts = [build.full((1,), int(value), int64, like.device) for value in values]
    return build.concat(parts, 0) if parts else build.full((0,), 0, int64, like.device)


def _pad_targets(targets: Tensor, sizes: Tensor, given: Lengths, batch: int, blank: int) -> Tensor:
    """Targets as int64 [batch, longest], `blank` after the end of each."""
    labels = targets.to(int64)
    if targets.ndim == 2 and targets.shape[0] == batch:
        columns = targets.shape[1]
    elif targets.ndim == 1:
        if batch == 1:
            columns = targets.shape[0]
        elif isinstance(given, Tensor):
            columns = int(given.detach().numpy().max(initial=0)) if STATE.trace is None else targets.shape[0]
        else:
            columns = max(given, default=0) if not isinstance(given, int) else given
    else:
        expected = f"[{batch}, S], or a vector of all targets"
        raise problem(ShapeError, "ctc_loss", f"targets of shape {targets.shape} for {batch} samples", expected)
    column_index = Tensor(build.iota((batch, columns), 1, targets.device))
    if targets.ndim == 1:
        starts = sizes.cumsum(0) - sizes
        last = max(targets.shape[0] - 1, 0)
        at = (starts.reshape(batch, 1) + column_index).clamp(max=last)
        labels = labels[at.reshape(-1)].reshape(batch, columns) if columns else column_index
    inside = column_index < sizes.reshape(batch, 1)
    return labels.masked_fill(~inside, blank)


def _negative_log_likelihood(scores: Tensor, labels: Tensor, times: Tensor, sizes: Tensor, blank: int) -> Tensor:
    """The loss of each sample, [batch]."""
    steps, batch, _ = scores.shape
    columns = labels.shape[1]
    width = 2 * columns + 1  # a blank before, between and after the labels
    blanks = Tensor(build.full((batch, columns, 1), blank, int64, scores.device))
    chain = _interleave(blanks, labels.reshape(batch, columns, 1), blank)  # [batch, width]
    number = Tensor(build.iota((batch, width), 1, scores.device))
    differs = (chain != chain.roll(2, 1)) & (number >= 2)  # one label may follow another without a blank
    by_step = scores.gather(2, chain.reshape(1, batch, width).broadcast_to((steps, batch, width)))
    clock = Tensor(build.iota((steps,), 0, scores.device))
    # before the first step the chain is at its beginning, from where the first blank and label are reached
    start = Tensor(build.full((batch, width), -math.inf, scores.dtype, scores.device)).masked_fill(number == 0, 0.0)

    def advance(before: Tensor, now: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
        time, score = now
        one = before.roll(1, 1).masked_fill(number < 1, -math.inf)
        two = before.roll(2, 1).masked_fill(~differs, -math.inf)
        after = _log_sum(before, one, two) + score
        return _choose((time < times).reshape(batch, 1), after, before), None

    likelihood, _ = loop(advance, start, (clock, by_step))
    end = 2 * sizes.reshape(batch, 1)
    is_end = (number == end) | (number == end - 1)  # the last blank, the last label
    return -_log_sum_of_rows(likelihood.masked_fill(~is_end, -math.inf))


def _probability(scores: Tensor, times: Tensor) -> Tensor:
    """The sum of all probabilities of the time steps that count, [batch]: PyTorch adds its gradient."""
    steps, batch, _ = scores.shape
    clock = Tensor(build.iota((steps, 1, 1), 0, scores.device))
    used = (clock < times.reshape(1, batch, 1)).broadcast_to(scores.shape)
    return scores.exp().masked_fill(~used, 0.0).sum((0, 2))


def _interleave(blanks: Tensor, labels: Tensor, blank: int) -> Tensor:
    """[batch, columns, 1] twice as [batch, 2 * columns + 1]: blank, label, blank, ..., blank."""
    batch, columns = labels.shape[:2]
    last = Tensor(build.full((batch, 1), blank, int64, labels.device))
    pairs = lift(lambda one, two: build.concat([one, two], 2))(blanks, labels).reshape(batch, 2 * columns)
    return lift(lambda one, two: build.concat([one, two], 1))(pairs, last)


def _choose(condition: Tensor, one: Tensor, other: Tensor) -> Tensor:
    wide = condition.broadcast_to(one.shape)
    return lift(build.select)(wide, one, other)


def _log_sum(*terms: Tensor) -> Tensor:
    """log(sum of e^term), -inf without gradient where all are -inf."""
    peak = terms[0].detach()
    for term in terms[1:]:
        peak = peak.maximum(term.detach())
    empty = peak == -math.inf
    shift = peak.masked_fill(empty, 0.0)
    total = (terms[0] - shift).exp()
    for term in terms[1:]:
        total = total + (term - shift).exp()
    return (total.masked_fill(empty, 1.0).log() + shift).masked_fill(empty, -math.inf)


def _log_sum_of_rows(rows: Tensor) -> Tensor:
    """`_log_sum` of the elements of each row: [batch]."""
    peak = rows.detach().amax(1)
    empty = peak == -math.inf
    shift = peak.masked_fill(empty, 0.0)
    total = (rows - shift.reshape(-1, 1)).exp().sum(1)
    return (total.masked_fill(empty, 1.0).log() + shift).masked_fill(empty, -math.inf)
