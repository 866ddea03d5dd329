"""Recurrent layers over images."""

from __future__ import annotations

import math
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer
from weft.nn.sequence.recurrence import States, alive_mask, check_dtype, mask_input, run, zero_state


@layer("L044", aliases=("ConvLSTMLayer",), oracle="an explicit loop over torch's conv2d; torch.nn.LSTM on 1 x 1 images")
class ConvLSTM2d(Module):
    """(i, f, g, o) = W_ih * x_t + b_ih + W_hh * h + b_hh; c' = sigmoid(f) ⊙ c + sigmoid(i) ⊙ tanh(g);
    h' = sigmoid(o) ⊙ tanh(c'): an LSTM whose products are convolutions of stride 1 that keep the size.

    `peephole` adds W_ci ⊙ c to i, W_cf ⊙ c to f and W_co ⊙ c' to o; these weights are [hidden, H, W], so `size=(H, W)`
    has to be given. Shape: input [B, T, C, H, W], states (h, c) [B, hidden, H, W] (0 by default); gives outputs [B, T,
    hidden, H, W], or [B, hidden, H, W] of the last step without `return_sequences`, and the last (h, c). `lengths` [B]:
    how many steps of each sequence count. Weights start as U(-b, b), b = 1/√(hidden · kernel area). Shi 2015.

    >>> layer = weft.nn.ConvLSTM2d(3, 4)
    >>> y, (h, c) = layer(weft.ones(2, 5, 3, 8, 8))
    >>> y.shape, h.shape
    ((2, 5, 4, 8, 8), (2, 4, 8, 8))
    """

    feature_axis = -3  # of the outputs, see `Bidirectional`

    def __init__(
        self, in_channels: int, hidden_channels: int, kernel_size: int | tuple[int, int] = 3, bias: bool = True,
        peephole: bool = False, return_sequences: bool = True, size: tuple[int, int] | None = None,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        kernel = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        if min(in_channels, hidden_channels, *kernel) < 1:
            given = f"in_channels={in_channels}, hidden_channels={hidden_channels}, kernel_size={kernel_size}"
            raise problem(RangeError, "ConvLSTM2d", given, "numbers of at least 1")
        if peephole and size is None:
            raise problem(
                ShapeError, "ConvLSTM2d", "peephole=True and no size", "the size of the images",
                "pass size=(height, width)",
            )  # fmt: skip
        self.in_channels, self.hidden_channels, self.kernel_size = in_channels, hidden_channels, kernel
        self.bias, self.peephole, self.return_sequences = bias, peephole, return_sequences
        self.size = None if size is None else tuple(size)
        rows = 4 * hidden_channels
        self.weight_ih = Parameter(empty(rows, in_channels, *kernel, device=device, dtype=dtype))
        self.weight_hh = Parameter(empty(rows, hidden_channels, *kernel, device=device, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(rows, device=device, dtype=dtype)) if bias else None)
        for name in ("weight_ci", "weight_cf", "weight_co"):
            made = empty(hidden_channels, *size, device=device, dtype=dtype) if peephole and size is not None else None
            self.register_parameter(name, None if made is None else Parameter(made))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        bound = 1 / math.sqrt(self.hidden_channels * math.prod(self.kernel_size))
        for param in self.parameters():
            init.uniform_(param, -bound, bound)

    def forward(
        self, input: Tensor, state: tuple[Tensor, Tensor] | None = None, lengths: Any = None
    ) -> tuple[Tensor, States]:
        self._check(input, state)
        batch, steps, _, height, width = input.shape
        alive = alive_mask("ConvLSTM2d", lengths, steps, batch, input.device)
        x, alive = mask_input(input.transpose(0, 1), alive)  # [T, B, C, H, W]
        bias = None if self.bias_ih is None else self.bias_ih + self.bias_hh
        gates = F.conv2d(x.flatten(0, 1), self.weight_ih, bias, padding="same")  # of all steps at once
        gates = gates.reshape(steps, batch, *gates.shape[1:])
        if state is None:
            zero = zero_state(batch, self.hidden_channels, height, width, like=input)
            state = (zero, zero)
        last, y = run(self._step, tuple(state), gates, alive)
        return (y.transpose(0, 1) if self.return_sequences else last[0]), last

    def _step(self, states: States, gates: Tensor) -> tuple[States, Tensor]:
        h, c = states
        i, f, g, o = (gates + F.conv2d(h, self.weight_hh, padding="same")).chunk(4, 1)
        if self.peephole:
            i, f = i + self.weight_ci * c, f + self.weight_cf * c
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        if self.peephole:
            o = o + self.weight_co * c
        h = o.sigmoid() * c.tanh()
        return (h, c), h

    def _check(self, x: Tensor, state: Any) -> None:
        if x.ndim != 5 or x.shape[2] != self.in_channels or (self.peephole and tuple(x.shape[3:]) != self.size):
            size = f" and [H, W] = {list(self.size or ())}" if self.peephole else ""
            expected = f"[B, T, C, H, W] with C = in_channels = {self.in_channels}{size}"
            raise problem(ShapeError, "ConvLSTM2d", f"input of shape {list(x.shape)}", expected)
        check_dtype("ConvLSTM2d", x, self.weight_ih)
        if x.shape[1] == 0:
            raise problem(ShapeError, "ConvLSTM2d", f"input of shape {list(x.shape)}", "at least one time step")
        expected_state = (x.shape[0], self.hidden_channels, *x.shape[3:])
        for one in state or ():
            if tuple(one.shape) != expected_state or len(state) != 2:
                given = f"{len(state)} states, one of shape {list(one.shape)}"
                raise problem(ShapeError, "ConvLSTM2d", given, f"(h, c), each {list(expected_state)}")
            check_dtype("ConvLSTM2d", one, x)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.hidden_channels}, kernel_size={self.kernel_size}"
        defaults = {"bias": True, "peephole": False, "return_sequences": True, "size": None}
        named = [f"{name}={getattr(self, name)}" for name, value in defaults.items() if getattr(self, name) != value]
        return ", ".join([text, *named])
