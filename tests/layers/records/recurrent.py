"""Records of the recurrent layers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_torch, to_torch
from tests.layers.record import Bad, Case, LayerRecord
from weft.nn.utils.rnn import pack_sequence

T, B, F, H = 5, 3, 4, 3
KINDS = ("RNN", "LSTM", "GRU")
SEQUENCE = frozenset({"batch", "sequence"})


def record(kind: str, variant: str = "", checks: Any = None, **options: Any) -> LayerRecord:
    """A recurrent layer with some options, beside torch's."""
    size = (F, H + 1) if options.get("proj_size") else (F, H)
    time = 1 if options.get("batch_first") else 0
    shape = (B, T, F) if time else (T, B, F)
    return LayerRecord(
        name=kind,
        variant=variant,
        make=lambda: getattr(nn, kind)(*size, **options),
        inputs=lambda draw: (draw.normal(*shape),),
        oracle=of_torch(lambda: getattr(torch.nn, kind)(*size, **options)),
        traits=SEQUENCE,
        batch_axes=(1 - time,),
        sequence_axis=time,
        bad=BAD if not variant else (),
        no_bad="" if not variant else "as without options",
        checks=checks or {},
    )


BAD = [
    Bad(call=lambda layer: layer(weft.ones(2, 3, F + 1)), match=r"given input of shape \[2, 3, 5\].*input_size = 4"),
    Bad(call=lambda layer: layer(weft.ones(2, 3, 4, F)), match=r"\[T, B, F\] or \[T, F\]", error=weft.ShapeError),
    Bad(call=lambda layer: layer(weft.ones(0, 3, F)), match="at least one time step", error=weft.ShapeError),
    Bad(call=lambda layer: layer(weft.ones(2, 3, F, dtype=weft.float64)), match=r"float64.*float32.*Fix"),
    Bad(call=lambda layer: layer(weft.ones(T, B, F), lengths=[5, 0, 2]), match=r"the length 0.*1 to 5"),
    Bad(call=lambda layer: layer(weft.ones(T, B, F), lengths=weft.tensor([5, 6, 2])), match=r"the length 6.*1 to 5"),
    Bad(call=lambda layer: layer(weft.ones(T, B, F), lengths=[5, 2]), match=r"one for each of 3 sequences"),
    Bad(call=lambda layer: layer(weft.ones(T, B, F), lengths=[5.0, 2.0, 1.0]), match="integers", error=weft.DTypeError),
    Bad(
        call=lambda layer: layer(weft.ones(T, B, F), states_of(layer, B, H + 1)),
        match=r"a state of shape \[1, 3, 4\]; expected \[1, 3, 3\]",
    ),
    Bad(call=lambda layer: type(layer)(F, 0), match=r"hidden_size=0", error=weft.RangeError),
    Bad(call=lambda layer: type(layer)(F, 2.0), match=r"hidden_size=2.0.*an int", error=weft.DTypeError),
    Bad(call=lambda layer: type(layer)(F, H, num_layers=0), match="num_layers=0", error=weft.RangeError),
    Bad(call=lambda layer: type(layer)(F, H, 2, dropout=1.5), match="dropout=1.5", error=weft.RangeError),
]


def states_of(layer: Any, batch: int, size: int) -> Any:
    state = weft.zeros(1, batch, size)
    return (state, state) if isinstance(layer, nn.LSTM) else state


# ---- lengths, beside packed sequences -------------------------------------------------------------------------------


def packed(module: Any, x: Any, hx: Any, lengths: list[int]) -> Any:
    """What torch gives for the packed sequences, padded to the length of the input."""
    from torch.nn.utils import rnn

    time = 1 if module.batch_first else 0
    found = torch.as_tensor(lengths)
    given = rnn.pack_padded_sequence(x, found, batch_first=module.batch_first, enforce_sorted=False)
    y, state = module(given, hx)
    return rnn.pad_packed_sequence(y, batch_first=module.batch_first, total_length=x.shape[time])[0], state


def with_lengths(kind: str) -> LayerRecord:
    options = {"num_layers": 2, "bidirectional": True}
    states = 2 if kind == "LSTM" else 1

    def inputs(draw: Any, steps: int = T, batch: int = B, lengths: Any = (3, 5, 1)) -> tuple[Any, ...]:
        hx = tuple(draw.normal(4, batch, H) for _ in range(states))
        return draw.normal(steps, batch, F), hx if kind == "LSTM" else hx[0], list(lengths)

    def check_nan(layer: Any, given: tuple[Any, ...]) -> None:
        """NaN in the padding reaches neither results nor gradients."""
        x, hx, lengths = given
        alive = weft.arange(T).unsqueeze(1) < weft.tensor(lengths)
        found = []
        for value in (0.0, float("nan")):
            layer.zero_grad()
            y, _ = layer(weft.where(alive.unsqueeze(2), x, value), hx, lengths)
            y.sum().backward()
            found.append([y.detach().numpy(), *[param.grad.numpy() for param in layer.parameters()]])
        for one, other in zip(*found, strict=True):
            assert np.isfinite(one).all()
            np.testing.assert_array_equal(one, other)

    return LayerRecord(
        name=kind,
        variant="lengths",
        make=lambda: getattr(nn, kind)(F, H, **options),
        inputs=inputs,
        oracle=of_torch(lambda: getattr(torch.nn, kind)(F, H, **options), call=packed),
        traits=SEQUENCE,
        edges={
            "batch of one": Case(inputs=lambda draw: inputs(draw, batch=1, lengths=[3])),
            "sequence of one": Case(inputs=lambda draw: inputs(draw, steps=1, lengths=[1, 1, 1])),
            "nan": Case(check=check_nan),
        },
        no_bad="as without options",
    )


# ---- other checks ---------------------------------------------------------------------------------------------------


def check_dropout(kind: str) -> None:
    """Dropout acts between layers, while training: the second layer sees the first one's output, partly zero."""
    weft.manual_seed(0)
    layer, x = getattr(nn, kind)(F, 8, 2, dropout=0.5), weft.randn(4, 16, F)
    plain = getattr(nn, kind)(F, 8, 2)
    plain.load_state_dict(layer.state_dict())
    expected = plain(x)[0].numpy()
    np.testing.assert_array_equal(layer.eval()(x)[0].numpy(), expected)
    layer.train()
    one, two = layer(x)[0].numpy(), layer(x)[0].numpy()
    assert not np.array_equal(one, two) and not np.array_equal(one, expected)
    first = getattr(nn, kind)(F, 8)
    second = getattr(nn, kind)(8, 8)
    first.load_state_dict({key: value for key, value in layer.state_dict().items() if "_l0" in key})
    second.load_state_dict({key.replace("_l1", "_l0"): v for key, v in layer.state_dict().items() if "_l1" in key})
    weft.manual_seed(5)
    by_hand = second(weft.nn.functional.dropout(first(x)[0], 0.5))[0].numpy()
    weft.manual_seed(5)
    np.testing.assert_allclose(layer(x)[0].numpy(), by_hand, rtol=1e-5, atol=1e-6)
    weft.manual_seed(5)
    compiled = weft.compile(lambda x: layer(x)[0].detach())(x)
    np.testing.assert_allclose(compiled.numpy(), by_hand, rtol=1e-5, atol=1e-6)


def check_initial(kind: str) -> None:
    """All parameters are uniform in ±1/√H."""
    weft.manual_seed(0)
    for param in getattr(nn, kind)(30, 40).parameters():
        values = np.abs(param.detach().numpy()) * np.sqrt(40)
        assert values.max() < 1 and 0.4 < values.mean() < 0.6


RECORDS = [
    *[
        record(
            kind,
            checks={
                "dropout": functools.partial(check_dropout, kind),
                "initial values": functools.partial(check_initial, kind),
            },
        )
        for kind in KINDS
    ],
    *[record(kind, "batch first, no bias", batch_first=True, bias=False) for kind in KINDS],
    *[with_lengths(kind) for kind in KINDS],
    record("RNN", "relu", nonlinearity="relu"),
    record("LSTM", "projections", num_layers=2, bidirectional=True, proj_size=2),
    LayerRecord(
        name="GRU",
        variant="one sequence",
        make=lambda: nn.GRU(F, H, batch_first=True),
        inputs=lambda draw: (draw.normal(T, F),),
        oracle=of_torch(lambda: torch.nn.GRU(F, H, batch_first=True)),
        traits=frozenset({"sequence"}),
        sequence_axis=0,
        no_bad="as with a batch",
    ),
]


def cell(kind: str, variant: str = "", **options: Any) -> LayerRecord:
    states = 2 if kind == "LSTMCell" else 1
    count = () if variant == "one sample" else (B,)

    def inputs(draw: Any) -> tuple[Any, ...]:
        hx = tuple(draw.normal(*count, H) for _ in range(states))
        return draw.normal(*count, F), hx if states == 2 else hx[0]

    def one(draw: Any) -> tuple[Any, ...]:
        hx = tuple(draw.normal(1, H) for _ in range(states))
        return draw.normal(1, F), hx if states == 2 else hx[0]

    return LayerRecord(
        name=kind,
        variant=variant,
        make=lambda: getattr(nn, kind)(F, H, **options),
        inputs=inputs if variant != "no bias, no state" else lambda draw: (draw.normal(B, F),),
        oracle=of_torch(lambda: getattr(torch.nn, kind)(F, H, **options)),
        traits=frozenset() if variant == "one sample" else frozenset({"batch"}),
        edges={"batch of one": Case(inputs=one)},
        bad=CELL_BAD if not variant else (),
        no_bad="as without options" if variant else "",
    )


CELL_BAD = [
    Bad(call=lambda layer: layer(weft.ones(2, F + 1)), match=r"given input of shape \[2, 5\].*input_size = 4"),
    Bad(call=lambda layer: layer(weft.ones(1, 2, F)), match=r"\[B, F\] or \[F\]", error=weft.ShapeError),
    Bad(
        call=lambda layer: layer(
            weft.ones(2, F), (weft.ones(3, H),) * 2 if isinstance(layer, nn.LSTMCell) else weft.ones(3, H)
        ),
        match=r"a state of shape \[3, 3\]; expected \[2, 3\]",
    ),
    Bad(call=lambda layer: type(layer)(0, H), match="input_size=0", error=weft.RangeError),
]

RECORDS += [
    cell(f"{kind}Cell", variant, **options)
    for kind in KINDS
    for variant, options in (("", {}), ("no bias, no state", {"bias": False}))
]
RECORDS += [cell("RNNCell", "relu", nonlinearity="relu"), cell("LSTMCell", "one sample")]


# ---- two directions -------------------------------------------------------------------------------------------------


def renamed(key: str) -> str:
    side, name = key.split(".")
    return name if side == "forward_layer" else f"{name}_reverse"


def check_two_states() -> None:
    """States of both directions are passed on, and those of the layer's copy are its own."""
    torch.manual_seed(0)
    theirs = torch.nn.LSTM(F, H, batch_first=True, bidirectional=True)
    ours = nn.Bidirectional(nn.LSTM(F, H, batch_first=True))
    ours.load_state_dict({key: theirs.state_dict()[renamed(key)] for key in ours.state_dict()})
    random = np.random.default_rng(0)
    x, h, c = (random.normal(size=shape).astype(np.float32) for shape in ((B, T, F), (2, B, H), (2, B, H)))
    first = tuple((weft.tensor(h[k : k + 1]), weft.tensor(c[k : k + 1])) for k in range(2))
    y, (one, other) = ours(weft.tensor(x), first)
    z, state = theirs(torch.tensor(x), (torch.tensor(h), torch.tensor(c)))
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), rtol=1e-5, atol=1e-6)
    for k in range(2):
        pair = np.concatenate([one[k].detach().numpy(), other[k].detach().numpy()])
        np.testing.assert_allclose(pair, state[k].detach().numpy(), rtol=1e-5, atol=1e-6)
    fresh = nn.Bidirectional(nn.GRU(F, H))
    assert not np.array_equal(fresh.forward_layer.weight_hh_l0.numpy(), fresh.backward_layer.weight_hh_l0.numpy())


def check_other_layers() -> None:
    """Layers without states, and layers over images, whose features are not the last axis."""
    x = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    sums = nn.Bidirectional(nn.Lambda(lambda x: x.cumsum(1)), merge=None)
    one, other = sums(weft.tensor(x))
    np.testing.assert_allclose(one.numpy(), x.cumsum(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(other.numpy(), x[:, ::-1].cumsum(1)[:, ::-1], rtol=1e-5, atol=1e-6)
    for is_sequence in (True, False):
        images = nn.Bidirectional(nn.ConvLSTM2d(2, 3, return_sequences=is_sequence))
        x = weft.randn(2, 4, 2, 3, 3)
        y, _ = images(x)
        last = images.backward_layer(x.flip(1))[0]
        last = last.flip(1) if is_sequence else last
        expected = weft.cat([images.forward_layer(x)[0], last], 2 if is_sequence else 1)
        np.testing.assert_allclose(y.detach().numpy(), expected.detach().numpy(), rtol=1e-6)


def both_directions(kind: str, merge: str | None, variant: str, lengths: list[int] | None = None) -> LayerRecord:
    def call(module: Any, x: Any, hx: Any = None, lengths: Any = None) -> Any:
        y, state = module(x) if lengths is None else packed(module, x, hx, lengths)
        one, other = y.chunk(2, -1)
        merged = {"concat": y, "sum": one + other, "mul": one * other, "ave": (one + other) / 2, None: (one, other)}
        pairs = [part.chunk(2) for part in (state if kind == "LSTM" else [state])]
        return merged[merge], tuple(zip(*pairs, strict=True))

    def inputs(draw: Any, steps: int = T, batch: int = B, lengths: Any = lengths) -> tuple[Any, ...]:
        x = draw.normal(batch, steps, F)
        return (x,) if lengths is None else (x, None, lengths)

    edges = {
        "batch of one": Case(inputs=lambda draw: inputs(draw, batch=1, lengths=lengths and [3])),
        "sequence of one": Case(inputs=lambda draw: inputs(draw, steps=1, lengths=lengths and [1, 1, 1])),
    }
    if lengths:
        edges["nan"] = "as without lengths"
    return LayerRecord(
        name="Bidirectional",
        variant=variant,
        make=lambda: nn.Bidirectional(getattr(nn, kind)(F, H, batch_first=True), merge),
        inputs=inputs,
        oracle=of_torch(
            lambda: getattr(torch.nn, kind)(F, H, batch_first=True, bidirectional=True), rename=renamed, call=call
        ),
        traits=SEQUENCE,
        edges=edges,
        checks={} if variant else {"states": check_two_states, "other layers": check_other_layers},
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3, F + 1)), match=r"forward_layer.*input_size = 4"),
            Bad(call=lambda layer: layer(weft.ones(5, F)), match="axes of batch and time", error=weft.ShapeError),
            Bad(call=lambda layer: layer(pack_sequence([weft.ones(5, F)])), match="Fix: pass it with lengths="),
            Bad(call=lambda layer: type(layer)(nn.RNN(2, 2), "add"), match="merge='add'", error=weft.RangeError),
        ],
    )


RECORDS += [
    both_directions("GRU", "sum", ""),
    both_directions("RNN", "mul", "mul"),
    both_directions("GRU", "ave", "ave"),
    both_directions("LSTM", None, "two results"),
    both_directions("LSTM", "concat", "lengths", [3, 5, 1]),
]


# ---- images ---------------------------------------------------------------------------------------------------------


def conv_lstm(state: Any, x: Any, first: Any = None, lengths: Any = None) -> Any:
    """A loop over torch's conv2d."""
    w, x = to_torch({key: np.asarray(value) for key, value in state.items()}), to_torch(x)

    def conv(value: Any, name: str) -> Any:
        weight = w[f"weight_{name}"]
        (top, bottom), (left, right) = (((size - 1) // 2, size // 2) for size in weight.shape[2:])
        value = torch.nn.functional.pad(value, (left, right, top, bottom))
        return torch.nn.functional.conv2d(value, weight, w.get(f"bias_{name}"))

    hidden = w["weight_hh"].shape[1]
    h, c = to_torch(first) if first is not None else 2 * [x.new_zeros(x.shape[0], hidden, *x.shape[3:])]
    outputs = []
    for t in range(x.shape[1]):
        i, f, g, o = (conv(x[:, t], "ih") + conv(h, "hh")).chunk(4, 1)
        if "weight_ci" in w:
            i, f = i + w["weight_ci"] * c, f + w["weight_cf"] * c
        new = f.sigmoid() * c + i.sigmoid() * g.tanh()
        o = o + w["weight_co"] * new if "weight_co" in w else o
        out = o.sigmoid() * new.tanh()
        alive = torch.as_tensor([True if lengths is None else t < n for n in lengths or x]).reshape(-1, 1, 1, 1)
        h, c = torch.where(alive, out, h), torch.where(alive, new, c)
        outputs.append(torch.where(alive, out, 0.0))
    return torch.stack(outputs, 1), (h, c)


def check_is_lstm() -> None:
    """On images of 1 x 1 it is an LSTM with the middle of the kernels."""
    weft.manual_seed(0)
    layer, lstm = nn.ConvLSTM2d(3, 4), nn.LSTM(3, 4, batch_first=True)
    middle = {key: value[:, :, 1, 1] if value.ndim == 4 else value for key, value in layer.state_dict().items()}
    lstm.load_state_dict({f"{key}_l0": value for key, value in middle.items()})
    x = weft.randn(2, 6, 3, 1, 1)
    (y, (h, c)), (z, (hz, cz)) = layer(x), lstm(x.reshape(2, 6, 3))
    for one, other in ((y, z), (h, hz[0]), (c, cz[0])):
        np.testing.assert_allclose(one.numpy().reshape(other.shape), other.numpy(), rtol=1e-5, atol=1e-6)


def images(variant: str, inputs: Any = None, oracle: Any = None, **options: Any) -> LayerRecord:
    size = options.get("size", (3, 4))
    return LayerRecord(
        name="ConvLSTM2d",
        variant=variant,
        make=lambda: nn.ConvLSTM2d(2, 3, **options),
        inputs=inputs or (lambda draw: (draw.normal(2, 3, 2, *size),)),
        oracle=oracle or (lambda state, inputs, training: conv_lstm(state, *inputs)),
        traits=SEQUENCE | {"window"},
        edges={"odd sizes": Case(inputs=lambda draw: (draw.normal(2, 3, 2, *options.get("size", (5, 1))),))}
        | ({} if inputs is None else dict.fromkeys(("batch of one", "sequence of one", "nan"), "as without lengths")),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3, 3, 3, 4)), match=r"\[2, 3, 3, 3, 4\].*in_channels = 2"),
            Bad(call=lambda layer: layer(weft.ones(2, 2, 3, 4)), match=r"\[B, T, C, H, W\]", error=weft.ShapeError),
            Bad(call=lambda layer: type(layer)(2, 0), match="hidden_channels=0", error=weft.RangeError),
            Bad(call=lambda layer: type(layer)(2, 3, peephole=True), match=r"size=\(height", error=weft.ShapeError),
            Bad(
                call=lambda layer: layer(weft.ones(2, 3, 2, 3, 4), 2 * [weft.ones(2, 3, 9, 9)]),
                match=r"one of shape \[2, 3, 9, 9\].*each \[2, 3, 3, 4\]",
            ),
        ],
        checks={} if variant else {"an LSTM on one pixel": check_is_lstm},
    )


def last_output(state: Any, inputs: Any, training: bool) -> Any:
    y, last = conv_lstm(state, *inputs)
    return y[:, -1], last


RECORDS += [
    images(""),
    images("peephole", peephole=True, size=(3, 4), kernel_size=(1, 3)),
    images("no bias, last output", bias=False, kernel_size=2, return_sequences=False, oracle=last_output),
    images(
        "lengths",
        inputs=lambda draw: (draw.normal(2, 3, 2, 3, 4), tuple(draw.normal(2, 3, 3, 4) for _ in range(2)), [2, 3]),
    ),
]
