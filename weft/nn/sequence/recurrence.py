"""One step of each recurrent cell, and how a layer runs it over time; used by the layers and cells of `recurrent`.

A step is `states, output = step(states, gates)`: `gates` is what the input contributes to this time step, computed for
all steps by one product. `run` is a `weft.loop`, so one step is compiled, whatever the length.

Under autocast `gates` and outputs have its dtype, as in PyTorch on GPUs. A state that is a sum over time (c of an LSTM,
h of a GRU) has the dtype of the weights while the recurrence runs, and is rounded when it leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from weft.base.dtypes import int64
from weft.base.errors import DTypeError, ShapeError, problem
from weft.base.state import STATE
from weft.core.autocast import is_autocast_enabled
from weft.core.creation import arange, full, zeros
from weft.core.creation import tensor as make_tensor
from weft.core.tensor import Tensor
from weft.functional.loop import loop
from weft.names.functions import where
from weft.nn import functional as F
from weft.nn.utils.rnn import host_lengths

States = tuple[Tensor, ...]
Step = Callable[[States, Tensor], tuple[States, Tensor]]


class Weights(NamedTuple):
    """The parameters of one layer and direction, gates stacked: ih [gates H, F], hh [gates H, H], biases [gates H],
    and of an LSTM with projections hr [P, H]."""

    ih: Tensor
    hh: Tensor
    bias_ih: Tensor | None = None
    bias_hh: Tensor | None = None
    hr: Tensor | None = None


def rnn_step(activation: Callable[[Tensor], Tensor]) -> Callable[[Weights], Step]:
    """h' = activation(gates + W_hh h)."""

    def make(w: Weights) -> Step:
        def step(states: States, gates: Tensor) -> tuple[States, Tensor]:
            h = activation(gates + F.linear(states[0], w.hh))
            return (h,), h

        return step

    return make


def lstm_step(w: Weights) -> Step:
    """(i, f, g, o) = gates + W_hh h; c' = sigmoid(f) c + sigmoid(i) tanh(g); h' = sigmoid(o) tanh(c'), projected by
    W_hr if there is one."""

    def step(states: States, gates: Tensor) -> tuple[States, Tensor]:
        h, c = states
        i, f, g, o = (gates + F.linear(h, w.hh)).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = (o.sigmoid() * c.tanh()).to(gates.dtype)
        if w.hr is not None:
            h = F.linear(h, w.hr)
        return (h, c), h

    return step


def gru_step(w: Weights) -> Step:
    """r and z = sigmoid(their gates + W_hh h + b_hh); n = tanh(n's gate + r (W_hn h + b_hn)); h' = (1 - z) n + z h."""

    def step(states: States, gates: Tensor) -> tuple[States, Tensor]:
        (h,) = states
        r_x, z_x, n_x = gates.chunk(3, -1)
        r_h, z_h, n_h = F.linear(h, w.hh, w.bias_hh).chunk(3, -1)
        z = (z_x + z_h).sigmoid()
        n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
        h = (1 - z) * n + z * h
        return (h,), h.to(gates.dtype)

    return step


class Cell(NamedTuple):
    """What distinguishes kinds of recurrent layers. `sums` says which of its states are sums over time."""

    gates: int
    sums: tuple[bool, ...]
    step: Callable[[Weights], Step]

    @property
    def states(self) -> int:
        """How many states there are."""
        return len(self.sums)

    def begin(self, first: States, gates: Tensor, weights: Weights) -> States:
        """First states in the dtypes that they have in the recurrence."""
        kinds = [weights.hh.dtype if is_sum else gates.dtype for is_sum in self.sums]
        return tuple(one.to(kind) for one, kind in zip(first, kinds, strict=True))


CELLS = {
    "RNN_TANH": Cell(1, (False,), rnn_step(Tensor.tanh)),
    "RNN_RELU": Cell(1, (False,), rnn_step(F.relu)),
    "LSTM": Cell(4, (False, True), lstm_step),
    "GRU": Cell(3, (True,), gru_step),
}


def project(mode: str, x: Tensor, w: Weights) -> Tensor:
    """What the input contributes to the gates, at all time steps: [*, F] to [*, gates H]. Both biases are added here,
    except for the GRU's second one, which is inside the product with r."""
    bias = w.bias_ih
    if bias is not None and mode != "GRU":
        bias = bias + w.bias_hh
    return F.linear(x, w.ih, bias)


def run(step: Step, first: States, gates: Any, alive: Tensor | None, reverse: bool = False) -> tuple[States, Tensor]:
    """The last states and all outputs [T, B, *]. Where `alive` [T, B, 1, ...] is False, states stay and outputs are 0;
    so a reversed run begins at the last step of each sequence."""
    if alive is None:
        return loop(step, first, gates, reverse=reverse)

    def masked_step(states: States, now: tuple[Any, Tensor]) -> tuple[States, Tensor]:
        gates, alive = now
        new, output = step(states, gates)
        kept = tuple(where(alive, one, old) for one, old in zip(new, states, strict=True))
        return kept, where(alive, output, zero(output))

    return loop(masked_step, first, (gates, alive), reverse=reverse)


def zero(like: Tensor) -> Tensor:
    """A zero of the dtype and on the device of a tensor."""
    return full((), 0.0, dtype=like.dtype, device=like.device)


def alive_mask(who: str, lengths: Any, steps: int, batch: int, device: Any) -> Tensor | None:
    """[T, B]: whether a sequence has a step t. None for no lengths. Values are checked, unless they are those of a
    tensor inside `weft.compile`: there a length of 0 leaves the first state, and one beyond T counts as T."""
    if lengths is None:
        return None
    if isinstance(lengths, Tensor) and STATE.trace is not None:
        if lengths.dtype.kind not in "iu":
            raise problem(DTypeError, who, f"lengths of {lengths.dtype.name}", "integers")
        if lengths.shape != (batch,):
            given = f"lengths of shape {list(lengths.shape)}"
            raise problem(ShapeError, who, given, f"one for each of {batch} sequences")
        found = lengths.to(device).to(int64)
    else:
        found = make_tensor(host_lengths(who, lengths, batch, steps), device=device)
    return arange(steps, device=device).unsqueeze(1) < found


def mask_input(x: Tensor, alive: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Input [T, B, *] with zeros for padding, whatever was there, and the mask with axes like the input's."""
    if alive is None:
        return x, None
    alive = alive.reshape(*alive.shape, *(1 for _ in x.shape[2:]))
    return where(alive, x, zero(x)), alive


def zero_state(batch: int, *sizes: int, like: Tensor) -> Tensor:
    """A first state."""
    return zeros(batch, *sizes, dtype=like.dtype, device=like.device)


def check_dtype(who: str, given: Tensor, expected: Tensor) -> None:
    """Raise unless a tensor has the dtype of another; under autocast products cast what they read."""
    if given.dtype is not expected.dtype and not (is_autocast_enabled(given.device.kind) and given.dtype.kind == "f"):
        raise problem(
            DTypeError, who, f"{given.dtype.name} for a layer of {expected.dtype.name}", "one dtype",
            f"cast the input with .to(weft.{expected.dtype.name}), or the layer",
        )  # fmt: skip
