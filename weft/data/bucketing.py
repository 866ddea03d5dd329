"""Sequences of different lengths in batches of few shapes: a batch sampler by length, and a collate that pads.

Lengths are divided by `boundaries`; a batch has items of one bucket and is padded to its boundary. So there are at most
two shapes for each bucket, of a full batch and of the last one, however lengths are distributed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.core.boundary import entry_point
from weft.core.creation import tensor
from weft.core.tensor import Tensor
from weft.data.collate import array_of_torch, collate, is_torch_tensor
from weft.data.sampler import Sampler
from weft.random.distributions import randperm
from weft.random.generator import Generator

__all__ = ["LengthBucketSampler", "PadCollate", "find_boundaries"]


@entry_point
def find_boundaries(lengths: Sequence[int], buckets: int = 8, multiple: int = 1) -> list[int]:
    """Boundaries of at most `buckets` groups with about the same number of items each; all of them whole multiples of
    `multiple`. The last is not below the greatest length.

    >>> find_boundaries([3, 4, 5, 9, 10, 30], buckets=3, multiple=4)
    [4, 12, 32]
    """
    if not len(lengths) or buckets < 1 or multiple < 1:
        given = f"{len(lengths)} lengths, buckets={buckets}, multiple={multiple}"
        raise problem(RangeError, "find_boundaries", given, "one length at least, and positive numbers")
    ordered = np.sort(np.asarray(lengths))
    ends = [ordered[-(-len(ordered) * number // buckets) - 1] for number in range(1, buckets + 1)]
    return sorted({-(-max(int(end), 1) // multiple) * multiple for end in ends})


@entry_point
class LengthBucketSampler(Sampler):
    """Lists of positions of items whose lengths lie in the same bucket, to be given as `batch_sampler`. The order of
    items and of batches is drawn again each epoch, unless `shuffle` is False.

    >>> list(weft.data.LengthBucketSampler([3, 9, 4, 8, 2], batch_size=2, boundaries=[4, 9], shuffle=False))
    [[0, 2], [4], [1, 3]]
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        boundaries: Sequence[int] | None = None,
        *,
        buckets: int = 8,
        shuffle: bool = True,
        drop_last: bool = False,
        generator: Generator | None = None,
    ):
        if batch_size < 1:
            raise problem(RangeError, "LengthBucketSampler", f"batch_size={batch_size}", "a positive number")
        self.boundaries = sorted(boundaries) if boundaries is not None else find_boundaries(lengths, buckets)
        self.lengths = np.asarray(lengths, dtype=np.int64)
        if len(self.lengths) and self.lengths.max() > self.boundaries[-1]:
            given = f"an item of length {self.lengths.max()} (item {int(self.lengths.argmax())})"
            expected = f"at most {self.boundaries[-1]}, the last boundary"
            raise problem(RangeError, "LengthBucketSampler", given, expected, "cut it, or add a boundary")
        self.batch_size, self.shuffle, self.drop_last, self.generator = batch_size, shuffle, drop_last, generator
        self._bucket_of = np.searchsorted(np.asarray(self.boundaries), self.lengths)

    def draw(self, generator: Generator | None) -> Iterator[list[int]]:
        count = len(self.lengths)
        order = randperm(count, generator=generator, device="cpu").numpy() if self.shuffle else np.arange(count)
        batches: list[list[int]] = []
        for bucket in range(len(self.boundaries)):
            members = order[self._bucket_of[order] == bucket].tolist()
            cut = [members[k : k + self.batch_size] for k in range(0, len(members), self.batch_size)]
            if cut and self.drop_last and len(cut[-1]) < self.batch_size:
                cut.pop()
            batches += cut
        if self.shuffle:
            batches = [batches[k] for k in randperm(len(batches), generator=generator, device="cpu").tolist()]
        return iter(batches)

    def __len__(self) -> int:
        counts = np.bincount(self._bucket_of, minlength=len(self.boundaries)).tolist()
        return sum(one // self.batch_size if self.drop_last else -(-one // self.batch_size) for one in counts)


@entry_point
class PadCollate:
    """A collate_fn for items with sequences: those of `fields` (positions in a tuple, or keys of a dict) are padded
    along their first axis with `value`, to the smallest boundary that is not below the longest of the batch, or to
    `length`. With `lengths=True` the lengths of the first field come last (in a dict: under "lengths").

    >>> weft.data.PadCollate([4, 8])([np.array([1, 2]), np.array([3])])
    tensor([[1, 2, 0, 0],
            [3, 0, 0, 0]])
    """

    def __init__(
        self,
        boundaries: Sequence[int] | None = None,
        *,
        fields: Sequence[Any] = (0,),
        value: float = 0,
        lengths: bool = False,
    ):
        self.boundaries = None if boundaries is None else sorted(boundaries)
        self.fields, self.value, self.lengths = tuple(fields), value, lengths

    def __call__(self, items: list[Any]) -> Any:
        first = items[0]
        if isinstance(first, dict):
            counts = [len(item[self.fields[0]]) for item in items]
            size = self._size(max(len(item[field]) for item in items for field in self.fields))
            padded: Any = [item | {field: self._pad(item[field], size) for field in self.fields} for item in items]
            made = collate(padded, tensor)
            return made | {"lengths": tensor(np.array(counts, np.int64))} if self.lengths else made
        is_tuple = isinstance(first, (tuple, list))
        rows = [list(item) if is_tuple else [item] for item in items]
        counts = [len(row[self.fields[0]]) for row in rows]
        size = self._size(max(len(row[field]) for row in rows for field in self.fields))
        for row in rows:
            for field in self.fields:
                row[field] = self._pad(row[field], size)
        made = collate(rows, tensor)
        if self.lengths:
            made.append(tensor(np.array(counts, np.int64)))
        return made if is_tuple or self.lengths else made[0]

    def _size(self, longest: int) -> int:
        if self.boundaries is None:
            return longest
        for boundary in self.boundaries:
            if longest <= boundary:
                return boundary
        given = f"a sequence of length {longest}"
        raise problem(ShapeError, "PadCollate", given, f"at most {self.boundaries[-1]}, the last boundary")

    def _pad(self, sequence: Any, size: int) -> np.ndarray:
        if isinstance(sequence, Tensor):
            array = sequence.numpy()
        else:
            array = array_of_torch(sequence) if is_torch_tensor(sequence) else np.asarray(sequence)
        _check_value(self.value, array.dtype)
        result = np.full((size, *array.shape[1:]), self.value, array.dtype)
        result[: len(array)] = array
        return result


def _check_value(value: Any, dtype: np.dtype) -> None:
    """What sequences are padded with must be a value of their dtype."""
    with np.errstate(all="ignore"):
        try:
            made = np.asarray(value).astype(dtype)
        except (ValueError, TypeError, OverflowError):
            made = None
        is_float = dtype.kind in "fc" or dtype.name == "bfloat16"
        if made is not None and is_float:
            fits = bool(np.isfinite(np.asarray(made, np.float64)) == np.isfinite(value))  # else it became infinite
        else:
            fits = made is not None and bool(made == value)
    if not fits:
        fix = "convert the sequences to a dtype that has it first, such as np.int64"
        raise problem(DTypeError, "PadCollate", f"value={value!r} for sequences of {dtype}", f"a value of {dtype}", fix)
