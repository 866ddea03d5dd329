"""A second direction for any layer over sequences."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import arange
from weft.core.tensor import Tensor
from weft.names.functions import cat, where
from weft.nn.module import Module
from weft.nn.registry import layer
from weft.nn.sequence.recurrence import alive_mask
from weft.nn.sequence.recurrent import RNNBase
from weft.nn.utils.rnn import PackedSequence

MERGES: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "concat": lambda one, other, axis: cat([one, other], axis),
    "sum": lambda one, other, axis: one + other,
    "mul": lambda one, other, axis: one * other,
    "ave": lambda one, other, axis: (one + other) / 2,
}


@layer("L043", aliases=("BidirectionalLayer",), oracle="torch.nn.LSTM, GRU, RNN(bidirectional=True)")
class Bidirectional(Module):
    """y = merge(layer(x), reverse(twin(reverse(x)))): a copy of a layer with parameters of its own reads the sequence
    from its end.

    merge: 'concat' (of the features), 'sum', 'mul', 'ave' (the mean), or None for the pair of outputs. `layer` maps
    sequences to outputs, or to outputs and states as the recurrent layers do; then this layer's states are the pair of
    the two layers'. Shape: [B, T, ...], or [T, B, ...] if `layer.batch_first` is False. With `lengths` each sequence is
    reversed within its length. Schuster and Paliwal 1997.

    >>> both = weft.nn.Bidirectional(weft.nn.GRU(3, 4, batch_first=True), merge="sum")
    >>> y, (h_forward, h_backward) = both(weft.ones(2, 5, 3))
    >>> y.shape, h_backward.shape
    ((2, 5, 4), (1, 2, 4))
    """

    def __init__(self, layer: Module, merge: str | None = "concat"):
        super().__init__()
        if merge is not None and merge not in MERGES:
            expected = ", ".join(map(repr, MERGES)) + " or None"
            raise problem(RangeError, "Bidirectional", f"merge={merge!r}", expected)
        self.merge = merge
        self.forward_layer, self.backward_layer = layer, copy.deepcopy(layer)
        for module in self.backward_layer.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()

    def forward(self, input: Tensor, state: Any = None, lengths: Any = None) -> Any:
        """The merged outputs, and the pair of states if the layer has states. `state` is such a pair."""
        time = 1 if getattr(self.forward_layer, "batch_first", True) else 0
        self._check(input)
        if state is not None and len(state) != 2:
            raise problem(ShapeError, "Bidirectional", f"{len(state)} states", "a pair, one for each direction")
        order = self._order(lengths, input, time)
        options = {} if lengths is None else {"lengths": lengths}
        results = []
        for k, (module, x) in enumerate(
            ((self.forward_layer, input), (self.backward_layer, reverse(input, order, time)))
        ):
            results.append(module(x, **options) if state is None else module(x, state[k], **options))
        has_states = isinstance(results[0], tuple)
        one, other = (result[0] if has_states else result for result in results)
        if getattr(self.forward_layer, "return_sequences", True):
            other = reverse(other, order, time)
        axis = getattr(self.forward_layer, "feature_axis", -1)
        merged = (one, other) if self.merge is None else MERGES[self.merge](one, other, axis)
        return (merged, (results[0][1], results[1][1])) if has_states else merged

    def _check(self, x: Any) -> None:
        if isinstance(x, PackedSequence):
            expected, fix = "padded input", "pass it with lengths=, see nn.utils.rnn.pad_packed_sequence"
            raise problem(ShapeError, "Bidirectional", "a PackedSequence", expected, fix)
        if x.ndim < (3 if isinstance(self.forward_layer, RNNBase) else 2):
            raise problem(
                ShapeError, "Bidirectional", f"input of shape {list(x.shape)}", "axes of batch and time first"
            )

    def _order(self, lengths: Any, x: Tensor, time: int) -> Tensor | None:
        """Where each step of the reversed sequences comes from, [T, B]; None where all have full length."""
        steps, batch = x.shape[time], x.shape[1 - time]
        alive = alive_mask("Bidirectional", lengths, steps, batch, x.device)
        if alive is None:
            return None
        position = arange(steps, device=x.device).unsqueeze(1)
        return where(alive, alive.sum(0) - 1 - position, position)

    def extra_repr(self) -> str:
        return f"merge={self.merge!r}"


def reverse(x: Tensor, order: Tensor | None, time: int) -> Tensor:
    """A sequence from its end. Padding stays where it is."""
    if order is None:
        return x.flip(time)
    order = order.transpose(0, 1) if time == 1 else order
    index = order.reshape(*order.shape, *(1 for _ in x.shape[2:])).expand(*x.shape)
    return x.gather(time, index)
