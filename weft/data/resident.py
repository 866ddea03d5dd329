"""A data set that lives on a device: shuffled, indexed and augmented there, inside the compiled step.

Data structures, all on the device: `tensors` (the rows), `order` (int64 [length], the order of the epoch; absent where
nothing is shuffled) and `position` (int64 [1], the rows taken so far). `start_epoch` writes `order` and `position` in
place by one compiled function whose only inputs are the words of a counter-based generator; `next` is tensor code that
gathers rows, applies the transform and adds to `position` in place. Traced into a step, it needs no host transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.base.dtypes import int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.boundary import entry_point
from weft.core.creation import arange, tensor, zeros
from weft.core.tensor import Tensor
from weft.data.collate import array_of_torch, is_torch_tensor
from weft.data.seeds import ORDER, TRANSFORM, drawing_from, epoch_seed, restore_generator, save_generator
from weft.jit.compiled import compile
from weft.random.distributions import randperm
from weft.random.generator import Generator

__all__ = ["ResidentData"]

LAST = ("keep", "drop", "pad")


def count_batches(length: int, batch_size: int, last: str) -> int:
    """The number of batches of an epoch."""
    return length // batch_size if last == "drop" else -(-length // batch_size)


def check_batches(state: Mapping[str, Any], batch_size: int | None, batches: int | None) -> None:
    """A state in the middle of an epoch counts batches: others would leave samples out, or take some twice."""
    if not state["position"]:
        return
    for name, own in (("batch_size", batch_size), ("batches", batches)):
        saved = state.get(name)
        if saved is not None and own is not None and saved != own:
            given = f"{name}={own} for a state in the middle of an epoch with {name}={saved}"
            raise problem(
                RangeError, "load_state_dict", given, "the same batches", f"use {name}={saved}, or an epoch's end"
            )


def apply_transform(transform: Callable[..., Any] | None, batch: Any, generator: Generator | None) -> Any:
    """A batch after `transform`: it gets the elements of a tuple or list, or a dict or tensor as it is, and returns as
    many; a single tensor replaces the first element. Random transforms draw from `generator`."""
    if transform is None:
        return batch
    with drawing_from(generator):
        if not isinstance(batch, (tuple, list)):
            return transform(batch)
        made = transform(*batch)
    made = (made, *batch[1:]) if isinstance(made, Tensor) else tuple(made)
    if len(made) != len(batch):
        expected = f"{len(batch)}, as many as the batch has, or a single tensor"
        raise problem(ShapeError, "transform", f"{len(made)} results", expected)
    return type(batch)(made) if type(batch) in (tuple, list) else type(batch)(*made)


@entry_point
class ResidentData:
    """Rows of tensors on one device, taken batch by batch in the order of an epoch.

    >>> data = weft.data.ResidentData([weft.arange(5)], batch_size=2, shuffle=False)
    >>> step = weft.compile(lambda: data.next())
    >>> data.start_epoch(0)
    >>> [step()[0].tolist() for _ in range(2)], data.next(data.count(2))[0].tolist()
    ([[0, 1], [2, 3]], [4])
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        last: str = "keep",
        transform: Callable[..., Any] | None = None,
    ):
        lengths = [len(one) for one in tensors]
        if not lengths or len(set(lengths)) > 1:
            raise problem(ShapeError, "ResidentData", f"tensors of lengths {lengths}", "equal lengths, one at least")
        if batch_size < 1 or last not in LAST:
            given = f"batch_size={batch_size} and last={last!r}"
            raise problem(RangeError, "ResidentData", given, f"a positive number and one of {LAST}")
        self.tensors = tuple(tensors)
        self.device = tensors[0].device
        self.length, self.batch_size, self.shuffle, self.last = lengths[0], batch_size, shuffle, last
        self.batches = count_batches(self.length, batch_size, last)
        self.seed, self.transform = seed, transform
        self.epoch = 0
        self.seeks = 0  # how often the place was set: who is in the middle of an epoch sees whether another one did it
        self.first = 0  # batches of the epoch that were done before `start_epoch`, when it was resumed
        self.begin_epoch: Callable[..., tuple[int, int, int]] | None = None  # the loader's, which keeps the state
        self.seed_generator: Generator | None = None  # what the loader draws seeds from
        self.generator = Generator()  # of the transform
        self._order_generator = Generator()
        self.position = zeros(1, dtype=int64, device=self.device)
        self.order = arange(self.length, dtype=int64, device=self.device) if shuffle else None
        self._begin = compile(self._write_order)

    def start_epoch(self, epoch: int) -> None:
        """Write the order of this epoch; the position is 0, or, where the loader was given the state of this epoch,
        the one that was saved: then `first` is the number of the batch that comes next. No host transfer."""
        first = draws = 0
        if self.begin_epoch is not None:
            self.seed, first, draws = self.begin_epoch(epoch, self)
        self._seek(epoch, first, draws)

    def _seek(self, epoch: int, first: int, draws: int) -> None:
        self.epoch, self.first = epoch, first
        self.seeks += 1
        self._order_generator.manual_seed(epoch_seed(self.seed, epoch, ORDER))
        self.generator.manual_seed(epoch_seed(self.seed, epoch, TRANSFORM))
        self.generator.counter = draws
        self._begin(first * self.batch_size)

    def _write_order(self, start: int) -> None:
        if self.order is not None:
            self.order.copy_(randperm(self.length, generator=self._order_generator, device=self.device))
        self.position.fill_(start)

    def count(self, number: int, pads: bool = True) -> int:
        """The rows of batch `number` of an epoch: `batch_size`, or fewer in the last one where it is kept as it is.
        Without `pads` the last one is not filled up: evaluations take each row once."""
        if self.last == "drop" or (self.last == "pad" and pads):
            return self.batch_size
        return min(self.batch_size, self.length - number * self.batch_size)

    def next(self, count: int | None = None) -> Any:
        """The next `count` rows (`batch_size` unless given) of each tensor, after the transform; the position moves on
        in place. Meant to be traced inside `weft.compile`. There are `batches` batches in an epoch; behind its end rows
        start over with last="pad", and are an IndexRangeError otherwise."""
        size = self.batch_size if count is None else count
        rows = self.position + arange(size, dtype=int64, device=self.device)
        if self.last == "pad":
            rows = rows % self.length
        if self.order is not None:
            rows = self.order.index_select(0, rows)
        batch = tuple(one.index_select(0, rows) for one in self.tensors)
        self.position.add_(size)
        return apply_transform(self.transform, batch, self.generator)

    def state_dict(self) -> dict[str, Any]:
        """Epoch, batches taken and draws made by the transform: exact. Reads one number from the device."""
        done = -(-int(self.position.item()) // self.batch_size)
        return {
            "epoch": self.epoch,
            "position": min(done, self.batches),
            "seed": self.seed,
            "draws": self.generator.counter,
            "batch_size": self.batch_size,
            **save_generator(self.seed_generator),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        check_batches(state, self.batch_size, self.batches)
        self.seed = int(state["seed"])
        restore_generator(self.seed_generator, state)
        self._seek(int(state["epoch"]), int(state["position"]), int(state["draws"]))


def upload_rows(parts: Sequence[Any], device: Any) -> list[Tensor]:
    """Tensors and NumPy arrays as tensors on a device; what is there already is not copied."""
    arrays = [array_of_torch(one) if is_torch_tensor(one) else one for one in parts]
    return [one.to(device) if isinstance(one, Tensor) else tensor(one, device=device) for one in arrays]
