"""Tensors as text, in PyTorch's form to the letter: `tensor([[1., 2.]], requires_grad=True)`.

All numbers of a tensor have one width. Whole floats are shown as `3.`; scientific notation is used where the largest
magnitude is above 1e8, the smallest (zeros left out) below 1e-4, or the two more than a factor of 1000 apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.base.dtypes import bool_, int64
from weft.base.errors import RangeError, problem
from weft.base.state import SETTINGS, STATE
from weft.core.device import default_device

if TYPE_CHECKING:
    from weft.core.cell import TensorCell

PREFIX = "tensor("


@dataclasses.dataclass(slots=True)
class Options:
    """How tensors are printed; see `set_printoptions`."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


OPTIONS = Options()
PROFILES: dict[str, dict[str, float]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": math.inf, "edgeitems": 3, "linewidth": 80},
}


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set how tensors are printed; what is None stays as it is, but `sci_mode=None` lets the values choose.

    `precision` digits after the point; tensors of more than `threshold` elements show `edgeitems` at each end of an
    axis; lines of at most `linewidth` letters. `profile` is 'default', 'short' or 'full'.

    >>> weft.set_printoptions(precision=2)
    >>> weft.tensor([1.12345])
    tensor([1.12])
    >>> weft.set_printoptions(profile="default")
    """
    if profile is not None and profile not in PROFILES:
        raise problem(RangeError, "set_printoptions", f"the profile {profile!r}", f"one of {sorted(PROFILES)}")
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, value in ({**PROFILES[profile], **chosen} if profile else chosen).items():
        setattr(OPTIONS, name, value)
    OPTIONS.sci_mode = sci_mode


def get_printoptions() -> dict[str, Any]:
    """How tensors are printed now, as arguments of `set_printoptions`."""
    return dataclasses.asdict(OPTIONS)


@contextlib.contextmanager
def printoptions(**options: Any) -> Iterator[None]:
    """Print tensors otherwise inside a `with` block.

    >>> with weft.printoptions(precision=1):
    ...     print(weft.tensor([0.123]))
    tensor([0.1])
    """
    before = get_printoptions()
    set_printoptions(**options)
    try:
        yield
    finally:
        set_printoptions(**before)


def text(tensor: TensorCell) -> str:
    """The value, the device unless it is the default, the dtype unless the value shows it, and requires_grad."""
    if STATE.trace is not None:
        return f"tensor(<traced>, shape={tensor.shape}, dtype={tensor.dtype!r})"
    usual, empty = (SETTINGS.default_dtype, int64, bool_), not tensor.numel()
    values = _values(tensor.numpy())
    suffixes = []
    if tensor.device is not default_device():
        suffixes.append(f"device='{tensor.device}'")
    if tensor.ndim != 1 if empty else not OPTIONS.edgeitems:
        suffixes.append(f"size={tensor.shape}")
    if tensor.dtype is not SETTINGS.default_dtype if empty else tensor.dtype not in usual:
        suffixes.append(f"dtype={tensor.dtype!r}")
    if tensor._requires_grad:
        suffixes.append("requires_grad=True")
    return _with_suffixes(PREFIX + values, suffixes)


MAX_HTML_ROWS, MAX_HTML_COLUMNS = 24, 16  # of tensors that a notebook shows as tables


def html(tensor: TensorCell) -> str | None:
    """A small vector or matrix as a table, its form below it; None for any other tensor, which is shown as text."""
    shape = tensor.shape
    if STATE.trace is not None or tensor.ndim not in (1, 2) or not tensor.numel():
        return None
    rows, columns = (1, shape[0]) if tensor.ndim == 1 else shape
    if rows > MAX_HTML_ROWS or columns > MAX_HTML_COLUMNS:
        return None
    array = tensor.numpy()
    if array.dtype.kind == "V":  # bfloat16, which NumPy cannot round
        array = array.astype(np.float32)
    write = _Format(array)
    cell = '<td style="text-align: right">{}</td>'
    lines = ["".join([cell.format(write(value).strip()) for value in row]) for row in np.atleast_2d(array).tolist()]
    body = "".join([f"<tr>{line}</tr>" for line in lines])
    about = [f"{tensor.dtype.name}{list(shape)}", str(tensor.device)]
    about += ["requires_grad=True"] if tensor._requires_grad else []
    return f"<table><tbody>{body}</tbody></table><div>tensor: {', '.join(about)}</div>"


def _values(array: np.ndarray) -> str:
    if not array.size:
        return "[]"
    if array.dtype.kind == "V":  # bfloat16, which NumPy cannot round
        array = array.astype(np.float32)
    summarise = array.size > OPTIONS.threshold
    return _format_nested(array, len(PREFIX), summarise, _Format(_select_shown(array) if summarise else array))


def _with_suffixes(start: str, suffixes: Sequence[str]) -> str:
    """Put `suffixes` behind the values, each on a new line where it would not fit."""
    out = [start]
    length = len(start) - start.rfind("\n") + 1
    for suffix in suffixes:
        if length + len(suffix) + 2 > OPTIONS.linewidth:
            out.append(",\n" + " " * len(PREFIX) + suffix)
            length = len(PREFIX) + len(suffix)
        else:
            out.append(", " + suffix)
            length += len(suffix) + 2
    return "".join([*out, ")"])


class _Format:
    """How one number is written, so that all have one width. `array` holds every number that will be shown."""

    def __init__(self, array: np.ndarray):
        self.floating = array.dtype.kind == "f"
        self.style, self.whole = ".0f", self.floating  # whole floats get a point behind them
        self.width = 1
        if not self.floating:
            self.width = max((len(str(value)) for value in array.ravel().tolist()), default=1)
            return
        sizes = array[np.isfinite(array) & (array != 0)]
        if not sizes.size:
            return
        magnitudes = np.abs(sizes.astype(np.float64))
        low, high = magnitudes.min(), magnitudes.max()
        if OPTIONS.sci_mode if OPTIONS.sci_mode is not None else high / low > 1000 or high > 1e8 or low < 1e-4:
            self.style = f".{OPTIONS.precision}e"
            self.whole = False
        elif (sizes != np.ceil(sizes)).any():
            self.style = f".{OPTIONS.precision}f"
            self.whole = False
        self.width = max(len(format(value, self.style)) for value in sizes.tolist()) + self.whole

    def __call__(self, value: float | int | bool) -> str:
        if not self.floating:
            return str(value).rjust(self.width)
        point = "." if self.whole and math.isfinite(value) else ""
        return (format(value, self.style) + point).rjust(self.width)


def _format_nested(array: np.ndarray, indent: int, summarise: bool, write: _Format) -> str:
    if array.ndim == 0:
        return write(array.item())
    edge = OPTIONS.edgeitems
    cut = summarise and array.shape[0] > 2 * edge
    if array.ndim == 1:
        return _vector(array, indent, cut, summarise, write)
    kept = [*range(edge), *range(len(array) - edge, len(array))] if cut else range(len(array))
    rows = [_format_nested(array[k], indent + 1, summarise, write) for k in kept]
    if cut:
        rows.insert(edge, "...")
    return "[" + ("," + "\n" * (array.ndim - 1) + " " * (indent + 1)).join(rows) + "]"


def _vector(array: np.ndarray, indent: int, cut: bool, summarise: bool, write: _Format) -> str:
    edge = OPTIONS.edgeitems
    if summarise and not edge:
        words = ["..."]
    elif cut:
        words = [*map(write, array[:edge].tolist()), " ...", *map(write, array[-edge:].tolist())]
    else:
        words = [write(value) for value in array.tolist()]
    each = max(1, (OPTIONS.linewidth - indent) // (write.width + 2))
    lines = [", ".join(words[k : k + each]) for k in range(0, len(words), each)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _select_shown(array: np.ndarray) -> np.ndarray:
    """The elements that a summary shows."""
    edge = OPTIONS.edgeitems
    for axis, extent in enumerate(array.shape):
        if extent > 2 * edge:
            array = np.take(array, [*range(edge), *range(extent - edge, extent)], axis)
    return array
