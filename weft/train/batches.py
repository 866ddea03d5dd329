"""Where batches come from: data that lives on the device, a loader that streams, or any iterable of batches.

Two kinds, one interface. Resident data is gathered inside the compiled step, so a batch is no argument of it;
streamed batches are.
"""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import weft
from weft.base import tree
from weft.base.errors import RangeError, WeftError, problem
from weft.core.tensor import Tensor
from weft.data.collate import array_of_torch, is_torch_tensor
from weft.data.loader import DataLoader
from weft.data.seeds import ITEMS, epoch_seed, iterate_apart, restore_generator, save_generator
from weft.random.generator import Generator


class Batches(abc.ABC):
    """Base class. `position` counts the batches of the epoch that were taken; `wait_seconds` is the time in which the
    step could not run because data was not there."""

    wait_seconds = 0.0
    position = 0
    length: Any = None  # batches of an epoch, where it is known

    epoch: int | None = None  # the one that was started

    @abc.abstractmethod
    def start(self, epoch: int, position: int = 0, state: Mapping[str, Any] | None = None) -> None:
        """Go to batch number `position` of an epoch, with what `state_dict` returned there, if it is known."""

    @abc.abstractmethod
    def take(self, epoch: int, position: int) -> tuple[Any, ...]:
        """The batch at a position of the present epoch once more."""

    @abc.abstractmethod
    def state_dict(self, epoch: int, position: int) -> dict[str, Any]:
        """What it takes to go on with the same batches at this position of an epoch, after the batches that steps were
        made of: for an epoch that was started its seed, and always the generator that seeds are drawn from."""

    def random_state(self, epoch: int, position: int) -> tuple[int, int]:
        """The state of Weft's default generator with which to go on at this position."""
        return weft.default_generator.get_state()

    @property
    @abc.abstractmethod
    def seed_generator(self) -> Any:
        """The generator of its own that a loader draws the seeds of epochs from, if it has one."""

    @contextlib.contextmanager
    def keeping_generator(self) -> Iterator[None]:
        """What is started inside leaves the seeds of later epochs as they would be without it."""
        generator = self.seed_generator
        drawn = None if generator is None else generator.get_state()
        try:
            yield
        finally:
            if generator is not None:
                generator.set_state(drawn)


class Resident(Batches):
    """Data on the device (`weft.data.ResidentData`). `count(n)` is the number of rows of batch `n`.

    The position in the epoch is kept here, too, in numbers on the host: who uses the same data in between, such as a
    callback, moves the position on the device, and `come_back` returns to it."""

    def __init__(self, data: Any, pads: bool = True):
        self.data, self.pads = data, pads
        self.length = int(data.batches)
        if not self.length:
            raise _make_dropped_error(data.length, data.batch_size)

    @property
    def seed_generator(self) -> Any:
        return getattr(self.data, "seed_generator", None)

    def start(self, epoch: int, position: int = 0, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        if position or state.get("seed") is not None:  # an epoch that has started
            known = {"seed": self.data.seed, "draws": 0, **state}
            self.data.load_state_dict({**known, "epoch": epoch, "position": position})
        else:
            restore_generator(self.seed_generator, state)
            self.data.start_epoch(epoch)
        data = self.data
        self.epoch, self.position, self.seed = data.epoch, data.first, data.seed
        self.draws, self.seeks = data.generator.counter, data.seeks

    def step_done(self) -> None:
        """A step has taken the next batch."""
        self.position += 1
        self.draws = self.data.generator.counter

    def come_back(self) -> None:
        """Set the position on the device to the one that is kept here."""
        assert self.epoch is not None
        self.data.load_state_dict(self.state_dict(self.epoch, self.position))
        self.seeks = self.data.seeks

    def count(self, number: int) -> int:
        is_unpadded = not self.pads and getattr(self.data, "last", None) == "pad"
        return self.data.count(number, pads=False) if is_unpadded else self.data.count(number)

    def take(self, epoch: int, position: int) -> tuple[Any, ...]:
        draws = self.draws // max(self.position, 1) * position  # of the transform: equal for all batches
        self.data.load_state_dict({"seed": self.seed, "epoch": epoch, "position": position, "draws": draws})
        batch = tuple(self.data.next(self.count(position)))
        weft.eval(*[one for one in batch if isinstance(one, Tensor)])  # before the position changes again
        return batch

    def state_dict(self, epoch: int, position: int) -> dict[str, Any]:
        drawn = save_generator(self.seed_generator)
        if epoch != self.epoch:
            return drawn
        saved = {"epoch": epoch, "position": position, "seed": self.seed, "draws": self.draws}
        return {**saved, "batches": self.length, "batch_size": self.data.batch_size, **drawn}


class Streamed(Batches):
    """Batches that a loader or another iterable gives, one after the other.

    A `weft.data.DataLoader` gives its seed and how to skip batches (`progress`). Another object with `state_dict` and
    `load_state_dict` has its state saved at a checkpoint, and restored before it is iterated over again. Anything
    else is iterated over again from the beginning; where its code draws from Weft's default generator, it draws from a
    stream of the epoch's own instead (`seed`), so that it gives the same batches again."""

    def __init__(self, source: Any, device: Any, pads: bool = True):
        self.source, self.device, self.pads = source, device, pads
        self.length = find_length(source)
        self.what = "data"  # what errors call it
        self.progress: Any = None  # of this iteration, where the loader has one
        self.seed: int | None = None
        self._iterator: Iterator[Any] = iter(())
        self._drawn = (0, 0)  # the state of Weft's default generator before the last batch: its transform may draw
        self._has_state = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")

    @property
    def seed_generator(self) -> Any:
        return getattr(self.source, "seed_generator", None)

    def start(self, epoch: int, position: int = 0, state: Mapping[str, Any] | None = None) -> None:
        if isinstance(self.source, Iterator) and self.epoch == epoch and self.position <= position:
            missing, self.position = position - self.position, position
            for _ in range(missing):
                next(self._iterator, None)
            return
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)
        self.epoch, self.position = epoch, position
        if self._has_state:
            if state:
                known = {"seed": None, "draws": 0} if hasattr(self.source, "progress") else {}
                self.source.load_state_dict({**known, **state, "epoch": epoch, "position": position})
            is_unpadded = not self.pads and type(self.source).__iter__ is DataLoader.__iter__
            self._iterator = self.source.stream_batches(pads=False) if is_unpadded else iter(self.source)
            self.progress = getattr(self.source, "progress", None)
            if state or not position:
                return
        else:
            saved = (state or {}).get("seed")
            self.seed = epoch_seed(*weft.default_generator.get_state(), ITEMS) if saved is None else saved
            self._iterator = iterate_apart(lambda: self.source, Generator(self.seed))
        for _ in range(position):
            next(self._iterator, None)

    def random_state(self, epoch: int, position: int) -> tuple[int, int]:
        is_ahead = epoch == self.epoch and position < self.position  # by a batch that no step was made of
        return self._drawn if is_ahead else super().random_state(epoch, position)

    def next(self) -> tuple[Any, ...] | None:
        """The next batch on the device, as arguments of a step; None at the end of the epoch."""
        began = time.perf_counter()
        self._drawn = weft.default_generator.get_state()
        try:
            batch = next(self._iterator)
        except StopIteration:
            if not self.position:
                raise self._no_batches_error() from None
            return None
        finally:
            self.wait_seconds += time.perf_counter() - began
        self.position += 1
        return as_arguments(batch, self.device)

    def _no_batches_error(self) -> WeftError:
        if self.length == 0 and getattr(self.source, "drop_last", False):
            rows, size = len(self.source.dataset), self.source.batch_size
            return _make_dropped_error(rows, size)
        return _no_batches_error(f"{self.what} without a batch, or an iterator that was used up by an epoch before")

    def take(self, epoch: int, position: int) -> tuple[Any, ...]:
        if isinstance(self.source, Iterator):
            raise problem(RangeError, "Trainer", "an iterator", "data that can be iterated again")
        kept, state = (self._iterator, self.position, self.progress), self.state_dict(epoch, position)
        try:
            with self.keeping_generator():
                self.start(epoch, position, state)
                batch = self.next()
        finally:
            self._iterator, self.position, self.progress = kept
            if self._has_state and self.progress is None:
                self.source.load_state_dict(state)
        if batch is None:
            raise _no_batches_error(f"an epoch of {position} batches")
        return batch

    def state_dict(self, epoch: int, position: int) -> dict[str, Any]:
        if not self._has_state:
            return {"seed": self.seed, "batches": self.length} if epoch == self.epoch else {}
        if self.progress is None:
            return dict(self.source.state_dict())
        if epoch != self.epoch:
            return self.source.generator_state()
        state = self.progress.state_dict() | self.source.generator_state(self.progress)
        draws = _share(state, self.position, position)
        return state | {"position": position, "draws": draws, "batches": self.length}


def _share(state: Mapping[str, Any], taken: int, position: int) -> int:
    """The draws of the transform in the first `position` batches of those that were taken: equal for all batches."""
    return state.get("draws", 0) // max(taken, 1) * position


def find_length(source: Any) -> int | None:
    """How many batches there are, where it is known before they are read."""
    try:
        return len(source)
    except (TypeError, WeftError):
        return None


def _no_batches_error(given: str, fix: str = "pass a DataLoader, or a list of batches") -> WeftError:
    return problem(RangeError, "Trainer", given, "at least one batch", fix)


def _make_dropped_error(rows: int, size: int | None) -> WeftError:
    fix = "take a smaller batch_size, or keep the last batch (drop_last=False)"
    return _no_batches_error(f"{rows} sample{'s' * (rows != 1)}, dropped as less than a batch of {size}", fix)


def as_arguments(batch: Any, device: Any) -> tuple[Any, ...]:
    """A batch as the arguments of a step: the elements of a tuple or list, or a dict or tensor as one. Arrays become
    tensors, and tensors come to the device."""
    parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    if all(type(part) is Tensor and part.device is device for part in parts):
        return parts
    leaves, structure = tree.flatten(parts)
    return tree.unflatten(structure, [_on(device, leaf) for leaf in leaves])


def _on(device: Any, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value if value.device is device else value.to(device)
    if isinstance(value, np.ndarray):
        return weft.tensor(value, device=device)
    if is_torch_tensor(value):  # a batch of a torch loader
        return weft.tensor(array_of_torch(value), device=device)
    return value


_NO_BATCHES = (Tensor, np.ndarray, str, Mapping)


def batches_of(source: Any, device: Any, pads: bool = True) -> Batches:
    """What gives the batches of a loader, resident data, or an iterable of batches. Without `pads`, as for evaluations,
    a loader with last="pad" leaves a short last batch short: each sample comes once."""
    if isinstance(source, Batches):
        return source
    if hasattr(source, "start_epoch") and hasattr(source, "next"):
        return Resident(source, pads)
    if hasattr(source, "resident"):
        data = source.resident(device)
        if data is not None:
            return Resident(data, pads)
    elif not hasattr(source, "__iter__") or isinstance(source, _NO_BATCHES) or is_torch_tensor(source):
        given, expected = f"data of type {type(source).__name__}", "a DataLoader, or an iterable of batches"
        fix = "DataLoader(data, batch_size=32, shuffle=True)"
        if isinstance(source, (Tensor, np.ndarray)):
            fix = "DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True), or [(x, y)] for one batch"
        raise problem(RangeError, "Trainer", given, f"{expected} (inputs, target)", fix)
    return Streamed(source, device, pads)
