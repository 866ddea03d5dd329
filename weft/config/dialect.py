"""Networks as lists of layers, in the dialect of an older system. Layers exchange flat vectors.

    {"id": "net", "batch_size": 1, "grid_rows": 1, "grid_cols": 1, "layers_per_cell": 2, "layers": [
        {"type": "dense", "activation": "relu", "input_height": 8, "output_height": 16},
        {"type": "conv1d", "conv1d_in_channels": 4, "conv1d_filters": 2, "conv1d_kernel_size": 3}]}

`KEYS` says what each key holds, `FORMS` which keys a type has and what it makes of them. A layer views the vector as it
needs it ([channels, length], [channels, height, width], [seq_length, features]) and flattens its result. Widths are
followed from layer to layer, so that a layer that does not fit is found when the file is read. A type that is not of
the dialect is a layer of the catalogue, which gets the vector as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from weft.base.errors import ConfigError, ShapeError, WeftError, problem
from weft.config import locations
from weft.config.catalogue import argument_names
from weft.config.catalogue import build as build_layer
from weft.config.locations import LARGEST_SIZE, Location
from weft.core.creation import tensor
from weft.core.tensor import Tensor
from weft.nn.basic.gating import SwiGLU
from weft.nn.basic.linear import Linear
from weft.nn.basic.named_activation import make_activation
from weft.nn.basic.normalization import LayerNorm, RMSNorm
from weft.nn.basic.softmax import GridSoftmax, MaskedSoftmax, Softmax
from weft.nn.grid import MAX_LAYERS, Grid
from weft.nn.module import Module
from weft.nn.sequence.attention import MultiheadAttention
from weft.nn.sequence.recurrent import LSTM, RNN
from weft.nn.spatial.convolution import Conv1d, Conv2d

TOP = ("id", "batch_size", "grid_rows", "grid_cols", "layers_per_cell", "layers")
VARIANTS = ("standard", "temperature", "grid", "masked")
# Functions of single elements, which leave the width of a vector as it is.
ACTIVATIONS = (
    "linear", "relu", "relu6", "leaky_relu", "elu", "celu", "selu", "gelu", "silu", "swish", "mish", "softplus",
    "softsign", "sigmoid", "log_sigmoid", "hard_sigmoid", "hard_swish", "hard_tanh", "tanh", "tanhshrink",
)  # fmt: skip

_size = partial(locations.integer, minimum=1)
_count = partial(locations.integer, minimum=0)


def _mask(location: Location, value: Any) -> list[bool]:
    return [
        one if isinstance(one, bool) else bool(locations.integer(location.at(k), one, 0, 1))
        for k, one in enumerate(locations.array(location, value, "a list of booleans, true for what is allowed"))
    ]


# Every key of a layer: the check of its value.
KEYS: dict[str, Callable[[Location, Any], Any]] = {
    "activation": partial(locations.choice, choices=ACTIVATIONS),
    "input_height": _size,
    "input_width": _size,
    "output_height": _size,
    "output_width": _size,
    "input_channels": _size,
    "filters": _size,
    "kernel_size": _size,
    "stride": _size,
    "padding": _count,
    "norm_size": _size,
    "epsilon": partial(locations.number, above=0.0, maximum=1.0),
    "temperature": partial(locations.number, above=0.0),
    "softmax_variant": partial(locations.choice, choices=VARIANTS),
    "softmax_rows": _size,
    "softmax_cols": _size,
    "mask": _mask,
    "conv1d_in_channels": _size,
    "conv1d_filters": _size,
    "conv1d_kernel_size": _size,
    "conv1d_stride": _size,
    "conv1d_padding": _count,
    "input_size": _size,
    "hidden_size": _size,
    "seq_length": _size,
    "d_model": _size,
    "num_heads": _size,
}


@dataclass(frozen=True)
class Made:
    """What an entry of the list is: a layer, the shape in which it gets one vector (None: as it is), and the widths of
    the vectors that it takes and gives (None: not known)."""

    layer: Module
    view: tuple[int, ...] | None
    takes: int | None
    gives: int | None


# An entry with checked values, its location, and the width of the vector that it gets, if that is known.
Maker = Callable[[dict[str, Any], Location, "int | None"], Made]


@dataclass(frozen=True)
class Form:
    """The keys of a type besides `type` and `activation`, and what it makes of them."""

    make: Maker
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


def _dense(entry: dict[str, Any], location: Location, width: int | None) -> Made:
    takes, gives = entry["input_height"], entry["output_height"]
    return Made(Linear(takes, gives), None, takes, gives)


def _swiglu(entry: dict[str, Any], location: Location, width: int | None) -> Made:
    takes = entry["input_height"]
    return Made(SwiGLU(takes, entry["output_height"]), None, takes, takes)


def _norm(cls: Any, entry: dict[str, Any], location: Location, width: int | None) -> Made:
    """Every `norm_size` neighbours of the vector are normalised together."""
    size = entry["norm_size"]
    if width is not None and width % size:
        location.at("norm_size").fail(f"{size} for a vector of {width}", "a divisor of its length")
    return Made(cls(size, eps=entry.get("epsilon", 1e-5)), (-1, size), width, width)


def _extent(location: Location, key: str, size: int, kernel: int, stride: int, padding: int) -> int:
    """The extent of the result of a convolution along one axis."""
    extent = (size + 2 * padding - kernel) // stride + 1
    if extent < 1:
        location.at(key).fail(f"{kernel} for {size} elements with padding {padding}", "a kernel that fits")
    return extent


def _conv1d(entry: dict[str, Any], location: Location, width: int | None) -> Made:
    channels, filters, kernel = (entry[f"conv1d_{key}"] for key in ("in_channels", "filters", "kernel_size"))
    stride, padding = entry.get("conv1d_stride", 1), entry.get("conv1d_padding", 0)
    length = entry.get("input_height")
    if length is None:
        if width is None:
            location.fail("no length, and no layer before it whose width is known", "input_height, the length")
        if width % channels:
            location.at("conv1d_in_channels").fail(f"{channels} for a vector of {width}", "a divisor of its length")
        length = width // channels
    gives = _extent(location, "conv1d_kernel_size", length, kernel, stride, padding)
    _check_result(location, entry, output_height=gives)
    layer = Conv1d(channels, filters, kernel, stride, padding)
    return Made(layer, (channels, length), channels * length, filters * gives)


def _conv2d(entry: dict[str, Any], location: Location, width: int | None) -> Made:
    channels, filters, kernel = entry["input_channels"], entry["filters"], entry["kernel_size"]
    stride, padding = entry.get("stride", 1), entry.get("padding", 0)
    sizes = entry["input_height"], entry["input_width"]
    high, wide = (_extent(location, "kernel_size", size, kernel, stride, padding) for size in sizes)
    _check_result(location, entry, output_height=high, output_width=wide)
    layer = Conv2d(channels, filters, kernel, stride, padding)
    return Made(layer, (channels, *sizes), channels * sizes[0] * sizes[1], filters * high * wide)


def _check_result(location: Location, entry: dict[str, Any], **sizes: int) -> None:
    """The extents of a convolution's result follow from the other keys; where they are given, they must be right."""
    for key, size in sizes.items():
        if entry.get(key, size) != size:
            location.at(key).fail(str(entry[key]), f"{size}, which follows from the other keys", f"leave {key!r} out")


def _recurrent(cls: Any, entry: dict[str, Any], location: Location, width: int | None) -> Made:
    features, hidden, steps = entry["input_size"], entry["hidden_size"], entry["seq_length"]
    options = {}
    if cls is RNN and "activation" in entry:
        options["nonlinearity"] = locations.choice(location.at("activation"), entry["activation"], ("tanh", "relu"))
    layer = cls(features, hidden, batch_first=True, **options)
    return Made(layer, (steps, features), steps * features, steps * hidden)


def _mha(entry: dict[str, Any], location: Location, width: int | None) -> Made:
    features, heads, steps = entry["d_model"], entry["num_heads"], entry["seq_length"]
    if features % heads:
        location.at("num_heads").fail(f"{heads} for d_model={features}", "a divisor of d_model")
    layer = MultiheadAttention(features, heads, batch_first=True)
    return Made(layer, (steps, features), steps * features, steps * features)


def _softmax(entry: dict[str, Any], location: Location, width: int | None) -> Made:
    variant, temperature = entry.get("softmax_variant", "standard"), entry.get("temperature", 1.0)
    belongs = {"softmax_rows": "grid", "softmax_cols": "grid", "mask": "masked"}
    for key, owner in belongs.items():
        if key in entry and variant != owner:
            location.at(key).fail(f"softmax_variant={variant!r}", f"softmax_variant={owner!r} for this key")
        if key not in entry and variant == owner:
            location.fail(f"no {key!r}", f"the key {key!r} for softmax_variant={owner!r}", f"add {key!r}")
    if variant == "standard" and temperature != 1:
        given, fix = f"{temperature} with softmax_variant='standard'", "softmax_variant='temperature' divides by it"
        location.at("temperature").fail(given, "1, or another variant", fix)
    if variant == "temperature" and "temperature" not in entry:
        location.fail(
            "no 'temperature'", "the key 'temperature' for softmax_variant='temperature'", "add 'temperature'"
        )
    if variant == "grid":
        rows, cols = entry["softmax_rows"], entry["softmax_cols"]
        return Made(GridSoftmax(rows, cols, temperature), None, rows * cols, rows * cols)
    if variant == "masked":
        masked = MaskedSoftmax(-1, temperature)
        masked.mask = tensor(entry["mask"])
        return Made(masked, None, len(entry["mask"]), len(entry["mask"]))
    return Made(Softmax(-1, temperature), None, width, width)


_CONV1D = ("conv1d_in_channels", "conv1d_filters", "conv1d_kernel_size")
_CONV2D = ("input_channels", "input_height", "input_width", "filters", "kernel_size")
_RECURRENT = ("input_size", "hidden_size", "seq_length")
_SOFTMAX = ("softmax_variant", "temperature", "softmax_rows", "softmax_cols", "mask")

FORMS: dict[str, Form] = {
    "dense": Form(_dense, ("input_height", "output_height")),
    "conv1d": Form(_conv1d, _CONV1D, ("conv1d_stride", "conv1d_padding", "input_height", "output_height")),
    "conv2d": Form(_conv2d, _CONV2D, ("stride", "padding", "output_height", "output_width")),
    "layer_norm": Form(partial(_norm, LayerNorm), ("norm_size",), ("epsilon",)),
    "rms_norm": Form(partial(_norm, RMSNorm), ("norm_size",), ("epsilon",)),
    "softmax": Form(_softmax, (), _SOFTMAX),
    "swiglu": Form(_swiglu, ("input_height", "output_height")),
    "rnn": Form(partial(_recurrent, RNN), _RECURRENT),
    "lstm": Form(partial(_recurrent, LSTM), _RECURRENT),
    "mha": Form(_mha, ("d_model", "num_heads", "seq_length")),
}


class FlatLayer(Module):
    """A layer of the dialect: vectors [*, n] to vectors [*, m]. `entry` is what the file says of it."""

    def __init__(self, entry: dict[str, Any], made: Made):
        super().__init__()
        self.entry = entry
        self.layer = made.layer
        self.view, self.takes, self.gives = made.view, made.takes, made.gives
        name = entry.get("activation")
        separate = name not in (None, "linear") and entry["type"] != "rnn"  # an RNN's is inside the recurrence
        self.activation = make_activation(name) if separate else None

    def forward(self, x: Tensor) -> Tensor:
        if not x.ndim or (self.takes is not None and x.shape[-1] != self.takes):
            expected = "[*, n]" if self.takes is None else f"[*, {self.takes}]"
            raise problem(ShapeError, self.entry["type"], f"shape {list(x.shape)}", expected)
        lead = x.shape[:-1]
        if self.view is not None:
            x = x.unflatten(-1, self.view) if self.view[0] == -1 else x.reshape(math.prod(lead), *self.view)
        y = self.layer(x, need_weights=False) if self.entry["type"] == "mha" else self.layer(x)
        y = y[0] if isinstance(y, tuple) else y
        if self.view is not None:
            y = y.flatten(-2) if self.view[0] == -1 else y.reshape(*lead, self.gives)
        return y if self.activation is None else self.activation(y)

    def extra_repr(self) -> str:
        return self.entry["type"]


class Network(Grid):
    """The grid that a file in the dialect describes, with its `id` and `batch_size`."""

    def __init__(self, rows: int, cols: int, layers_per_cell: int, id: str | None, batch_size: int):
        super().__init__(rows, cols, layers_per_cell)
        self.id, self.batch_size = id, batch_size

    @property
    def input_size(self) -> int | None:
        """The width of the vectors that the first layer takes, if it says so."""
        first = self.get_layer(0, 0, 0)
        return first.takes if isinstance(first, FlatLayer) else None


def build(location: Location, tree: dict[str, Any]) -> Network:
    """The network that a tree in the dialect describes."""
    locations.check_keys(location, tree, TOP, ("layers",))
    entries = locations.array(location.at("layers"), tree["layers"], "a list of layers")
    if not entries:
        location.at("layers").fail("an empty list", "at least one layer")
    sizes = _grid(location, tree, len(entries))
    id = None if tree.get("id") is None else locations.string(location.at("id"), tree["id"])
    batch = locations.integer(location.at("batch_size"), tree.get("batch_size", 1), 1)
    network = Network(*sizes, id, batch)
    width: int | None = None
    for where, number, entry in zip(network.places(), range(len(entries)), entries, strict=True):
        at = location.at("layers").at(number)
        layer, takes, gives = _build_entry(at, entry, width)
        if None not in (width, takes) and width != takes:
            at.fail(f"a layer for vectors of {takes}", f"one for {width}, the width of what the layer before it gives")
        network.set_layer(*where, layer)
        width = gives
    return network


def _grid(location: Location, tree: dict[str, Any], count: int) -> tuple[int, int, int]:
    """Rows, columns and layers per cell; without these keys there is one cell."""
    rows, cols = (_size(location.at(key), tree.get(key, 1), maximum=MAX_LAYERS) for key in ("grid_rows", "grid_cols"))
    cells = rows * cols
    if "layers_per_cell" not in tree and count % cells:
        location.at("layers").fail(
            f"{count} layers for {rows} x {cols} cells", "the same number of layers in each cell"
        )
    each = _size(location.at("layers_per_cell"), tree.get("layers_per_cell", count // cells), maximum=MAX_LAYERS)
    if cells * each != count:
        expected = f"{cells * each}: {rows} x {cols} cells of {each} layers"
        location.at("layers").fail(f"{count} layers", expected)
    return rows, cols, each


def _form_of(name: str, given: dict[str, Any]) -> str | None:
    """The type of the dialect that an entry means, in any case, with or without underscores. A name that the catalogue
    has too means the dialect where it is spelled as here, or where a key is one of the dialect alone."""
    wanted = name.replace("_", "").lower()
    kind = next((one for one in FORMS if one.replace("_", "") == wanted), None)
    if kind is None or kind == name:
        return kind
    known = argument_names(name)
    form = FORMS[kind]
    return kind if known is None or {*given} & {*form.required, *form.optional} - known else None


def _build_entry(location: Location, entry: Any, width: int | None) -> tuple[Module, int | None, int | None]:
    """A layer, and the widths that it takes and gives, as far as they are known."""
    given = locations.object_at(location, entry, "an object with a type")
    if "type" not in given:
        location.fail("no 'type'", "the type of the layer", f"add 'type', such as {', '.join(list(FORMS)[:3])}")
    kind = _form_of(locations.string(location.at("type"), given["type"]), given)
    if kind is None:
        return build_layer(location, given, FORMS), None, None
    form = FORMS[kind]
    known = ("type", "activation", *form.required, *form.optional)
    locations.check_keys(location, given, known, ("type", *form.required))
    values = {key: KEYS[key](location.at(key), value) for key, value in given.items() if key != "type"}
    try:
        made = form.make({"type": kind, **values}, location, width)
    except ConfigError:
        raise
    except WeftError as error:
        location.fail(str(error))
    for size in (made.takes, made.gives):
        if size is not None and size > LARGEST_SIZE:
            location.fail(f"vectors of {size}", f"at most {LARGEST_SIZE}")
    return FlatLayer({"type": kind, **values}, made), made.takes, made.gives
