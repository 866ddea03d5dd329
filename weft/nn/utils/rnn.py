"""Sequences of different lengths: padded to one length, or packed without padding, after `torch.nn.utils.rnn`.

Lengths decide the shape of what is packed, so they are numbers of the host: lists, arrays or tensors on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.base.errors import DeviceError, DTypeError, GraphError, RangeError, ShapeError, problem
from weft.base.state import STATE
from weft.core.creation import full
from weft.core.creation import tensor as make_tensor
from weft.core.tensor import Tensor
from weft.names.functions import stack, where
from weft.nn import functional as F

__all__ = [
    "PackedSequence",
    "invert_permutation",
    "pack_padded_sequence",
    "pack_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "unpack_sequence",
    "unpad_sequence",
]


class _Fields(NamedTuple):
    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None
    unsorted_indices: Tensor | None


class _Known(NamedTuple):
    """What decides shapes, on the host: `batch_sizes`, and `unsorted_indices` if there are any."""

    sizes: np.ndarray
    inverse: np.ndarray | None


class PackedSequence(_Fields):
    """Sequences without padding: all first steps, then all second steps, and so on, longest sequence first.

    data [sum of lengths, *]; batch_sizes [T] (on the CPU): how many sequences have a step t; sorted_indices [B]: where
    each sequence stood before they were sorted, or None; unsorted_indices: the inverse. Made by `pack_padded_sequence`
    and `pack_sequence`. Inside `weft.compile` it has to be packed in the same function, from lengths that are a list:
    `lengths=` of the recurrent layers takes tensors, too.
    """

    _known: _Known | None

    def __new__(
        cls, data: Any, batch_sizes: Any = None, sorted_indices: Any = None, unsorted_indices: Any = None
    ) -> PackedSequence:
        if batch_sizes is None:
            data, batch_sizes = data
        if isinstance(batch_sizes, Tensor) and batch_sizes.device.kind != "cpu":
            given = f"batch_sizes on {batch_sizes.device}"
            raise problem(DeviceError, "PackedSequence", given, "batch_sizes on the CPU", "use pack_padded_sequence")
        if unsorted_indices is None:
            unsorted_indices = invert_permutation(sorted_indices)
        made = super().__new__(cls, data, batch_sizes, sorted_indices, unsorted_indices)
        made._known = None
        return made

    def to(self, *args: Any, **kwargs: Any) -> PackedSequence:
        """The data on another device or in another dtype; the indices follow the data, batch_sizes stay."""
        data = self.data.to(*args, **kwargs)
        order, inverse = (None if one is None else one.to(data.device) for one in self[2:])
        return _make_packed(data, self.batch_sizes, order, inverse, self._known)

    def cpu(self) -> PackedSequence:
        """On the CPU."""
        return self.to("cpu")

    def cuda(self, device: Any = None) -> PackedSequence:
        """On an NVIDIA GPU."""
        return self.to(self.data.cuda(device).device)

    def double(self) -> PackedSequence:
        """In float64."""
        return self._cast("float64")

    def float(self) -> PackedSequence:
        """In float32."""
        return self._cast("float32")

    def half(self) -> PackedSequence:
        """In float16."""
        return self._cast("float16")

    def long(self) -> PackedSequence:
        """In int64."""
        return self._cast("int64")

    def int(self) -> PackedSequence:
        """In int32."""
        return self._cast("int32")

    def _cast(self, name: str) -> PackedSequence:
        from weft.base.dtypes import by_name

        return self.to(by_name(name))

    @property
    def is_cuda(self) -> bool:
        """Whether the data is on an NVIDIA GPU."""
        return self.data.is_cuda


def _make_packed(
    data: Tensor, batch_sizes: Tensor, order: Tensor | None, inverse: Tensor | None, known: _Known | None
) -> PackedSequence:
    made = PackedSequence(data, batch_sizes, order, inverse)
    made._known = known
    return made


def read_numbers(packed: PackedSequence) -> _Known:
    """How many sequences have each step, and their order before sorting, as numbers of the host."""
    if packed._known is None:
        if STATE.trace is not None:
            raise problem(
                GraphError, "PackedSequence", "one from outside, whose lengths a compiled function does not know",
                "one that is packed inside", "pass padded input and lengths= to the layer",
            )  # fmt: skip
        inverse = packed.unsorted_indices
        packed._known = _Known(packed.batch_sizes.numpy(), None if inverse is None else inverse.numpy())
    return packed._known


def host_lengths(who: str, lengths: Any, batch: int, steps: int) -> np.ndarray:
    """Lengths as checked numbers, [batch], each from 1 to `steps`."""
    if isinstance(lengths, Tensor) and STATE.trace is not None:
        raise problem(
            GraphError, who, "lengths that are a tensor inside weft.compile", "numbers", "pass a list of ints"
        )
    found = np.asarray(lengths.tolist() if isinstance(lengths, Tensor) else lengths)
    if found.dtype.kind not in "iu":
        raise problem(DTypeError, who, f"lengths of {found.dtype}", "integers")
    if found.shape != (batch,):
        raise problem(ShapeError, who, f"lengths of shape {list(found.shape)}", f"one for each of {batch} sequences")
    wrong = found[(found < 1) | (found > steps)]
    if wrong.size:
        raise problem(RangeError, who, f"the length {wrong[0]}", f"lengths from 1 to {steps}", "leave empty ones out")
    return found.astype(np.int64)


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """The permutation that undoes another.

    >>> weft.nn.utils.rnn.invert_permutation(weft.tensor([2, 0, 1]))
    tensor([1, 2, 0])
    """
    return permutation.argsort() if isinstance(permutation, Tensor) else permutation


def pack_padded_sequence(
    input: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack padded sequences [T, B, *] ([B, T, *] with `batch_first`). `enforce_sorted`: they come longest first, else
    they are sorted here.

    >>> x = weft.tensor([[1, 2, 3], [4, 0, 0]])
    >>> packed = weft.nn.utils.rnn.pack_padded_sequence(x, [3, 1], batch_first=True)
    >>> packed.data, packed.batch_sizes
    (tensor([1, 4, 2, 3]), tensor([2, 1, 1]))
    """
    who = "pack_padded_sequence"
    if input.ndim < 2:
        raise problem(ShapeError, who, f"a tensor of shape {list(input.shape)}", "axes of time and batch")
    batch, steps = (input.shape[0], input.shape[1]) if batch_first else (input.shape[1], input.shape[0])
    found = host_lengths(who, lengths, batch, steps)
    order = np.arange(batch)
    if not enforce_sorted:
        order = np.argsort(-found, kind="stable")
    elif np.any(found[1:] > found[:-1]):
        given = f"the lengths {found.tolist()} with enforce_sorted=True"
        raise problem(RangeError, who, given, "lengths in decreasing order", "pass enforce_sorted=False")
    sizes = (found[None, :] > np.arange(found.max(initial=0))[:, None]).sum(1)
    time = np.repeat(np.arange(len(sizes)), sizes)
    sequence = order[np.concatenate([np.arange(size) for size in sizes])] if len(sizes) else order
    rows = sequence * steps + time if batch_first else time * batch + sequence
    data = _rows(input.reshape(batch * steps, *input.shape[2:]), rows)
    batch_sizes = make_tensor(sizes, device="cpu")
    if enforce_sorted:
        return _make_packed(data, batch_sizes, None, None, _Known(sizes, None))
    inverse = np.argsort(order)
    indices = [make_tensor(one, device=input.device) for one in (order, inverse)]
    return _make_packed(data, batch_sizes, indices[0], indices[1], _Known(sizes, inverse))


def _rows(table: Tensor, rows: np.ndarray) -> Tensor:
    return table.index_select(0, make_tensor(rows, device=table.device))


def padded_rows(
    packed: PackedSequence, padding_value: float = 0.0, steps: int | None = None, unsort: bool = False
) -> tuple[Tensor, np.ndarray]:
    """The sequences padded, [T, B, *], and their lengths; as they are sorted, or as they were before with `unsort`."""
    sizes, inverse = read_numbers(packed)
    steps = len(sizes) if steps is None else steps
    sequence = np.arange(sizes[0]) if inverse is None or not unsort else inverse  # of each sequence within a step
    lengths = (sizes[:, None] > sequence).sum(0)
    first = np.zeros(steps, np.int64)  # the row of each step's first sequence
    first[1 : len(sizes)] = np.cumsum(sizes)[:-1]
    is_valid = np.arange(steps)[:, None] < lengths  # [T, B]
    rows = np.where(is_valid, first[:, None] + sequence, 0)
    data = packed.data
    padded = _rows(data, rows.reshape(-1)).reshape(*rows.shape, *data.shape[1:])
    if not is_valid.all():
        valid = make_tensor(is_valid, device=data.device).reshape(*rows.shape, *(1 for _ in data.shape[1:]))
        padded = where(valid, padded, full((), padding_value, dtype=data.dtype, device=data.device))
    return padded, lengths


def pack_like(padded: Tensor, packed: PackedSequence) -> PackedSequence:
    """The steps of `padded` [T, B, *] that `packed` has, packed like it."""
    batch = padded.shape[1]
    rows = np.concatenate([step * batch + np.arange(size) for step, size in enumerate(read_numbers(packed).sizes)])
    data = _rows(padded.reshape(-1, *padded.shape[2:]), rows)
    return _make_packed(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices, packed._known)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Undo `pack_padded_sequence`: the padded sequences [T, B, *] ([B, T, *] with `batch_first`) in their first order,
    and the lengths (on the CPU). `total_length` is a T beyond the longest sequence.

    >>> packed = weft.nn.utils.rnn.pack_sequence([weft.tensor([1, 2, 3]), weft.tensor([4])])
    >>> weft.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    (tensor([[1, 2, 3],
            [4, 0, 0]]), tensor([3, 1]))
    """
    steps = len(read_numbers(sequence).sizes)
    if total_length is not None and total_length < steps:
        given = f"total_length={total_length} and a sequence of length {steps}"
        raise problem(RangeError, "pad_packed_sequence", given, "at least the length of the longest sequence")
    padded, lengths = padded_rows(sequence, padding_value, total_length, unsort=True)
    return (padded.transpose(0, 1) if batch_first else padded), make_tensor(lengths, device="cpu")


def pad_sequence(
    sequences: Tensor | Iterable[Tensor], batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:  # fmt: skip
    """Pad tensors [length, *] to the longest and stack them: [T, B, *], or [B, T, *] with `batch_first`.

    >>> weft.nn.utils.rnn.pad_sequence([weft.tensor([1, 2, 3]), weft.tensor([4])], batch_first=True)
    tensor([[1, 2, 3],
            [4, 0, 0]])
    """
    given = [sequences[k] for k in range(len(sequences))] if isinstance(sequences, Tensor) else list(sequences)
    if padding_side not in ("left", "right"):
        raise problem(RangeError, "pad_sequence", f"padding_side={padding_side!r}", "'left' or 'right'")
    if not given:
        raise problem(ShapeError, "pad_sequence", "no sequences", "at least one")
    rest = {tuple(one.shape[1:]) for one in given}
    if any(one.ndim == 0 for one in given) or len(rest) > 1:
        shapes = ", ".join(str(list(one.shape)) for one in given)
        raise problem(ShapeError, "pad_sequence", f"the shapes {shapes}", "shapes that differ in the first axis only")
    longest = max(one.shape[0] for one in given)
    zeros = [0, 0] * (given[0].ndim - 1)
    padded = []
    for one in given:
        missing = longest - one.shape[0]
        amounts = [*zeros, missing, 0] if padding_side == "left" else [*zeros, 0, missing]
        padded.append(F.pad(one, amounts, value=padding_value) if missing else one)
    return stack(padded, 0 if batch_first else 1)


def unpad_sequence(
    padded_sequences: Tensor, lengths: Tensor | Sequence[int], batch_first: bool = False
) -> list[Tensor]:
    """Undo `pad_sequence`: a list of tensors [length, *].

    >>> weft.nn.utils.rnn.unpad_sequence(weft.tensor([[1, 2, 3], [4, 0, 0]]), [3, 1], batch_first=True)
    [tensor([1, 2, 3]), tensor([4])]
    """
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    found = host_lengths("unpad_sequence", lengths, x.shape[0], x.shape[1])
    return [x[k, :length] for k, length in enumerate(found.tolist())]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack tensors [length, *].

    >>> weft.nn.utils.rnn.pack_sequence([weft.tensor([1, 2]), weft.tensor([3])]).data
    tensor([1, 3, 2])
    """
    lengths = [one.shape[0] for one in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """Undo `pack_sequence`.

    >>> packed = weft.nn.utils.rnn.pack_sequence([weft.tensor([1, 2]), weft.tensor([3])])
    >>> weft.nn.utils.rnn.unpack_sequence(packed)
    [tensor([1, 2]), tensor([3])]
    """
    return unpad_sequence(*pad_packed_sequence(packed_sequences, batch_first=True), batch_first=True)
