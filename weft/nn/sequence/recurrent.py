"""Recurrent layers: RNN, LSTM and GRU over sequences, and their cells.

Inputs of all time steps are projected by one product; the recurrence is a `weft.loop`, whose compile time does not
depend on the length. No layer keeps a state between calls: the caller passes it on.
"""

from __future__ import annotations

import math
import numbers
import warnings
from typing import Any

from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.core.creation import empty
from weft.core.tensor import Tensor
from weft.names.functions import cat, stack
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import export, layer
from weft.nn.sequence.recurrence import (
    CELLS,
    States,
    Weights,
    alive_mask,
    check_dtype,
    mask_input,
    project,
    run,
    zero_state,
)
from weft.nn.utils.rnn import PackedSequence, pack_like, padded_rows


@export
class RNNBase(Module):
    """What RNN, LSTM and GRU share: parameters, layers, directions, packed and padded sequences.

    `mode` is 'RNN_TANH', 'RNN_RELU', 'LSTM' or 'GRU'. Parameters of layer k (with '_reverse' for the second direction):
    weight_ih_l{k} [gates H, F], weight_hh_l{k} [gates H, H], bias_ih_l{k} and bias_hh_l{k} [gates H], gates stacked,
    start as U(-1/√H, 1/√H).
    """

    mode: str
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    proj_size: int

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        who = type(self).__name__
        if mode not in CELLS:
            raise problem(RangeError, who, f"mode={mode!r}", f"one of {', '.join(CELLS)}")
        _check_sizes(who, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        if isinstance(dropout, bool) or not isinstance(dropout, numbers.Real) or not 0 <= dropout <= 1:
            raise problem(RangeError, who, f"dropout={dropout!r}", "a probability from 0 to 1")
        if not 0 <= proj_size < hidden_size:
            expected = "less than hidden_size, or 0 for no projection"
            raise problem(RangeError, who, f"proj_size={proj_size} and hidden_size={hidden_size}", expected)
        if not isinstance(bias, bool) or not isinstance(batch_first, bool):
            raise problem(DTypeError, who, f"bias={bias!r} and batch_first={batch_first!r}", "two bools")
        if dropout > 0 and num_layers == 1:
            text = f"{who}: dropout={dropout} acts between layers, and there is one layer"
            warnings.warn(text, stacklevel=3)
        self.mode, self.input_size, self.hidden_size, self.num_layers = mode, input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        rows, size = CELLS[mode].gates * hidden_size, proj_size or hidden_size
        for number in range(num_layers * self.num_directions):
            features = input_size if number < self.num_directions else size * self.num_directions
            shapes = [(rows, features), (rows, size), (rows,), (rows,), (proj_size, hidden_size)]
            for name, shape in zip(self._names(number), shapes, strict=True):
                if name is not None:
                    self.register_parameter(name, Parameter(empty(*shape, device=device, dtype=dtype)))
        self.reset_parameters()

    @property
    def num_directions(self) -> int:
        """2 if there is a second direction, else 1."""
        return 2 if self.bidirectional else 1

    def _names(self, number: int) -> list[str | None]:
        """The names of one layer and direction's parameters, in the order of `Weights`; None for what is not there."""
        suffix = f"_l{number // self.num_directions}{'_reverse' if number % self.num_directions else ''}"
        biases = [f"bias_ih{suffix}", f"bias_hh{suffix}"] if self.bias else [None, None]
        return [f"weight_ih{suffix}", f"weight_hh{suffix}", *biases, f"weight_hr{suffix}" if self.proj_size else None]

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        bound = 1 / math.sqrt(self.hidden_size)
        for param in self.parameters():
            init.uniform_(param, -bound, bound)

    def flatten_parameters(self) -> None:
        """Nothing: parameters lie where the plans want them. PyTorch programs call it."""

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of every layer and direction."""
        count = self.num_layers * self.num_directions
        return [[getattr(self, name) for name in self._names(k) if name is not None] for k in range(count)]

    def forward(self, input: Tensor | PackedSequence, hx: Any = None, lengths: Any = None) -> tuple[Any, Any]:
        """Outputs of the last layer, and the last states of all layers and directions.

        input: [T, B, F], [B, T, F] with `batch_first`, [T, F] for a single sequence, or a PackedSequence.
        hx: first states [layers * directions, B, H] ([layers * directions, H] for a single sequence), 0 by default;
            of an LSTM a pair (h, c).
        lengths: how many steps of each padded sequence count, [B]; as if they had been packed. Outputs beyond are 0.
        """
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx, lengths)
        self._check_input(input, "[B, T, F]" if self.batch_first else "[T, B, F]", (2, 3))
        is_single = input.ndim == 2
        is_transposed = self.batch_first and not is_single
        x = input.unsqueeze(1) if is_single else input.transpose(0, 1) if is_transposed else input  # [T, B, F]
        y, last = self._run_layers(x, self._first_states(hx, x, is_single), lengths)
        if is_single:
            y, last = y.squeeze(1), tuple(one.squeeze(1) for one in last)
        elif is_transposed:
            y = y.transpose(0, 1)
        return y, last if self.mode == "LSTM" else last[0]

    def _forward_packed(self, packed: PackedSequence, hx: Any, lengths: Any) -> tuple[PackedSequence, Any]:
        """The sequences are padded, run as they are sorted, and packed again."""
        if lengths is not None:
            raise problem(ShapeError, type(self).__name__, "a PackedSequence and lengths", "one of them")
        self._check_input(packed.data, "[N, F]", (2,))
        x, lengths = padded_rows(packed)  # [T, B, F]
        states = self._first_states(hx, x, False)
        if states is not None and packed.sorted_indices is not None:
            states = tuple(one.index_select(1, packed.sorted_indices) for one in states)
        y, last = self._run_layers(x, states, lengths)
        if packed.unsorted_indices is not None:
            last = tuple(one.index_select(1, packed.unsorted_indices) for one in last)
        return pack_like(y, packed), last if self.mode == "LSTM" else last[0]

    def _run_layers(self, x: Tensor, states: States | None, lengths: Any) -> tuple[Tensor, States]:
        """x [T, B, F] and states [layers * directions, B, H] to y [T, B, directions H] and the last states."""
        steps, batch = x.shape[0], x.shape[1]
        if steps == 0:
            given = f"input of {batch} sequences without a time step"
            raise problem(ShapeError, type(self).__name__, given, "at least one time step")
        x, alive = mask_input(x, alive_mask(type(self).__name__, lengths, steps, batch, x.device))
        cell, last = CELLS[self.mode], []
        zero = [zero_state(batch, size, like=x) for size in self._state_sizes()]
        for level in range(self.num_layers):
            outputs = []
            for direction in range(self.num_directions):
                number = level * self.num_directions + direction
                weights = self._weights(number)
                first = tuple(zero) if states is None else tuple(one[number] for one in states)
                gates = project(self.mode, x, weights)
                first = cell.begin(first, gates, weights)
                end, y = run(cell.step(weights), first, gates, alive, reverse=direction == 1)
                last.append(tuple(one.to(y.dtype) for one in end))
                outputs.append(y)
            x = cat(outputs, -1) if self.bidirectional else outputs[0]
            if self.dropout and level < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, tuple(stack(parts) for parts in zip(*last, strict=True))

    def _weights(self, number: int) -> Weights:
        """The parameters of one layer and direction."""
        found: list[Any] = [None if name is None else getattr(self, name) for name in self._names(number)]
        return Weights(*found)

    def _state_sizes(self) -> list[int]:
        """The widths of the states: h, and of an LSTM c."""
        return [self.proj_size or self.hidden_size, self.hidden_size][: CELLS[self.mode].states]

    def _check_input(self, x: Any, layout: str, ranks: tuple[int, ...]) -> None:
        who = type(self).__name__
        if x.ndim not in ranks or x.shape[-1] != self.input_size:
            expected = f"{layout}{' or [T, F]' if len(ranks) > 1 else ''} with F = input_size = {self.input_size}"
            raise problem(ShapeError, who, f"input of shape {list(x.shape)}", expected)
        check_dtype(who, x, self.weight_ih_l0)

    def _first_states(self, hx: Any, x: Tensor, is_single: bool) -> States | None:
        """The given states as [layers * directions, B, H] each, checked; None for zeros."""
        if hx is None:
            return None
        who, sizes = type(self).__name__, self._state_sizes()
        given = check_states(who, hx, len(sizes))
        count = self.num_layers * self.num_directions
        for one, size in zip(given, sizes, strict=True):
            expected = (count, size) if is_single else (count, x.shape[1], size)
            if tuple(one.shape) != expected:
                raise problem(ShapeError, who, f"a state of shape {list(one.shape)}", f"{list(expected)}")
            check_dtype(who, one, x)
        return tuple(one.unsqueeze(1) for one in given) if is_single else given

    def extra_repr(self) -> str:
        defaults = {
            "proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0, "bidirectional": False,
        }  # fmt: skip
        named = [f"{name}={getattr(self, name)}" for name, value in defaults.items() if getattr(self, name) != value]
        return ", ".join([str(self.input_size), str(self.hidden_size), *named])


def check_states(who: str, hx: Any, count: int) -> States:
    """The states that a user gave: a tensor where there is one, else a pair of them."""
    given = (hx,) if count == 1 else hx
    if not isinstance(given, tuple | list) or len(given) != count or not all(isinstance(x, Tensor) for x in given):
        is_several = isinstance(hx, tuple | list)
        text = f"{len(hx)} states in a {type(hx).__name__}" if is_several else f"a {type(hx).__name__} as state"
        raise problem(ShapeError, who, text, "a tensor h" if count == 1 else "a pair (h, c)")
    return tuple(given)


def _check_sizes(who: str, **sizes: Any) -> None:
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise problem(DTypeError, who, f"{name}={value!r}", "an int")
        if value < 1:
            raise problem(RangeError, who, f"{name}={value}", "at least 1")


@layer("L047", aliases=("RecurrentLayer",))
class RNN(RNNBase):
    """h_t = tanh(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), or relu of it: `nonlinearity='relu'`.

    Shape: input [T, B, F] ([B, T, F] with `batch_first`), h [layers * directions, B, H]; gives outputs [T, B,
    directions H] and the last h. `dropout` acts between stacked layers, while training. Elman 1990.

    >>> rnn = weft.nn.RNN(3, 4, num_layers=2)
    >>> y, h = rnn(weft.ones(5, 2, 3))
    >>> y.shape, h.shape
    ((5, 2, 4), (2, 2, 4))
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None,
        dtype: Any = None,
    ):  # fmt: skip
        _check_nonlinearity("RNN", nonlinearity)
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first, dropout,
            bidirectional, device=device, dtype=dtype,
        )  # fmt: skip
        self.nonlinearity = nonlinearity


def _check_nonlinearity(who: str, name: Any) -> None:
    if name not in ("tanh", "relu"):
        raise problem(RangeError, who, f"nonlinearity={name!r}", "'tanh' or 'relu'")


@layer("L046", aliases=("LSTMLayer",))
class LSTM(RNNBase):
    """(i, f, g, o) = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh; c_t = sigmoid(f) ⊙ c_{t-1} + sigmoid(i) ⊙ tanh(g);
    h_t = sigmoid(o) ⊙ tanh(c_t).

    With `proj_size` P the output and the state h are W_hr h_t, of width P. Shape: input [T, B, F] ([B, T, F] with
    `batch_first`), states (h, c) [layers * directions, B, H]; gives outputs [T, B, directions H] and the last (h, c).
    `dropout` acts between stacked layers, while training. Hochreiter and Schmidhuber 1997; Sak 2014 (projections).

    >>> lstm = weft.nn.LSTM(3, 4, batch_first=True, bidirectional=True)
    >>> y, (h, c) = lstm(weft.ones(2, 5, 3), lengths=[5, 2])
    >>> y.shape, h.shape, c.shape
    ((2, 5, 8), (2, 2, 4), (2, 2, 4))
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__(
            "LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, device,
            dtype,
        )  # fmt: skip


@layer("L045", aliases=("GRULayer",))
class GRU(RNNBase):
    """r = sigmoid(W_ir x_t + b_ir + W_hr h_{t-1} + b_hr), z likewise;
    n = tanh(W_in x_t + b_in + r ⊙ (W_hn h_{t-1} + b_hn)); h_t = (1 - z) ⊙ n + z ⊙ h_{t-1}.

    Shape: input [T, B, F] ([B, T, F] with `batch_first`), h [layers * directions, B, H]; gives outputs [T, B,
    directions H] and the last h. `dropout` acts between stacked layers, while training. Cho 2014.

    >>> gru = weft.nn.GRU(3, 4)
    >>> y, h = gru(weft.ones(5, 2, 3), weft.zeros(1, 2, 4))
    >>> y.shape, h.shape
    ((5, 2, 4), (1, 2, 4))
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, 0, device, dtype
        )


# ---- one step -------------------------------------------------------------------------------------------------------


@export
class RNNCellBase(Module):
    """What the cells share: parameters weight_ih [gates H, F], weight_hh [gates H, H], bias_ih, bias_hh [gates H]."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None
    ):
        super().__init__()
        _check_sizes(type(self).__name__, input_size=input_size, hidden_size=hidden_size)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        rows = num_chunks * hidden_size
        self.weight_ih = Parameter(empty(rows, input_size, device=device, dtype=dtype))
        self.weight_hh = Parameter(empty(rows, hidden_size, device=device, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(rows, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        bound = 1 / math.sqrt(self.hidden_size)
        for param in self.parameters():
            init.uniform_(param, -bound, bound)

    def _advance(self, mode: str, x: Tensor, hx: Any) -> States:
        """The states after one step; `hx` is as in forward."""
        who = type(self).__name__
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            expected = f"[B, F] or [F] with F = input_size = {self.input_size}"
            raise problem(ShapeError, who, f"input of shape {list(x.shape)}", expected)
        check_dtype(who, x, self.weight_ih)
        expected_state = (*x.shape[:-1], self.hidden_size)
        count = CELLS[mode].states
        states = count * (zero_state(*expected_state, like=x),) if hx is None else check_states(who, hx, count)
        for one in states:
            if tuple(one.shape) != expected_state:
                raise problem(ShapeError, who, f"a state of shape {list(one.shape)}", f"{list(expected_state)}")
            check_dtype(who, one, x)
        weights = Weights(self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        gates = project(mode, x, weights)
        after, _ = CELLS[mode].step(weights)(CELLS[mode].begin(states, gates, weights), gates)
        return tuple(one.to(gates.dtype) for one in after)

    def extra_repr(self) -> str:
        extra = "" if self.bias else f", bias={self.bias}"
        if getattr(self, "nonlinearity", "tanh") != "tanh":
            extra += f", nonlinearity={self.nonlinearity}"
        return f"{self.input_size}, {self.hidden_size}{extra}"


@layer()
class RNNCell(RNNCellBase):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu of it: one step of `RNN`.

    Shape: input [B, F] or [F], h [B, H] or [H] (0 by default); gives h'.

    >>> weft.nn.RNNCell(3, 4)(weft.ones(2, 3)).shape
    (2, 4)
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None,
        dtype: Any = None,
    ):  # fmt: skip
        _check_nonlinearity("RNNCell", nonlinearity)
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._advance(f"RNN_{self.nonlinearity.upper()}", input, hx)[0]


@layer()
class LSTMCell(RNNCellBase):
    """(i, f, g, o) = W_ih x + b_ih + W_hh h + b_hh; c' = sigmoid(f) ⊙ c + sigmoid(i) ⊙ tanh(g);
    h' = sigmoid(o) ⊙ tanh(c'): one step of `LSTM`.

    Shape: input [B, F] or [F], states (h, c) [B, H] or [H] (0 by default); gives (h', c').

    >>> h, c = weft.nn.LSTMCell(3, 4)(weft.ones(2, 3))
    >>> h.shape, c.shape
    ((2, 4), (2, 4))
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = self._advance("LSTM", input, hx)
        return h, c


@layer()
class GRUCell(RNNCellBase):
    """r = sigmoid(W_ir x + b_ir + W_hr h + b_hr), z likewise; n = tanh(W_in x + b_in + r ⊙ (W_hn h + b_hn));
    h' = (1 - z) ⊙ n + z ⊙ h: one step of `GRU`.

    Shape: input [B, F] or [F], h [B, H] or [H] (0 by default); gives h'.

    >>> weft.nn.GRUCell(3, 4)(weft.ones(3)).shape
    (4,)
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._advance("GRU", input, hx)[0]
