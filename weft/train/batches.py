"""Where batches come from: data that lives on the device, a loader that streams, or any iterable of batches.

Two kinds, one interface. Resident data is gathered inside the compiled step, so a batch is no argument of it;
streamed batches are.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import weft
from weft import tree
from weft.errors import RangeError, WeftError, problem
from weft.tensor import Tensor


class Batches(abc.ABC):
    """Base class. `position` counts the batches of the epoch that were taken; `wait_seconds` is the time in which the
    step could not run because data was not there."""

    wait_seconds = 0.0
    position = 0
    length: Any = None  # batches of an epoch, where it is known

    @abc.abstractmethod
    def start(self, epoch: int, position: int = 0, state: Mapping[str, Any] | None = None) -> None:
        """Go to batch number `position` of an epoch, with what `state_dict` returned there, if it is known."""

    @abc.abstractmethod
    def take(self, epoch: int, position: int) -> tuple[Any, ...]:
        """The batch at a position of the present epoch once more."""

    def state_dict(self, position: int) -> dict[str, Any]:
        """What it takes to go on at this position, after the batches that steps were made of, with the same batches."""
        return {}


class Resident(Batches):
    """Data on the device (`weft.data.ResidentData`). `count(n)` is the number of rows of batch `n`.

    The place in the epoch is kept here, too, in numbers on the host: who uses the same data in between, a callback for
    example, moves the place on the device, and `come_back` returns to it."""

    def __init__(self, data: Any):
        self.data = data
        self.length = int(data.batches)
        if not self.length:
            rows, size = data.length, data.batch_size
            fix = "take a smaller batch_size, or keep the last batch (drop_last=False)"
            raise _nothing(f"{rows} sample{'s' * (rows != 1)}, dropped as less than a batch of {size}", fix)
        self._hold()

    def start(self, epoch: int, position: int = 0, state: Mapping[str, Any] | None = None) -> None:
        if position:
            known = {"seed": self.data.seed, "draws": 0, **(state or {})}
            self.data.load_state_dict({**known, "epoch": epoch, "position": position})
        else:
            self.data.start_epoch(epoch)
        self._hold()

    def _hold(self) -> None:
        data = self.data
        self.epoch, self.position, self.seed = data.epoch, data.first, data.seed
        self.draws, self.seeks = data.generator.counter, data.seeks

    def step_done(self) -> None:
        """A step has taken the next batch."""
        self.position += 1
        self.draws = self.data.generator.counter

    def come_back(self) -> None:
        """Set the place on the device to the one that is kept here."""
        self.data.load_state_dict(self.state_dict(self.position))
        self.seeks = self.data.seeks

    def count(self, number: int) -> int:
        return self.data.count(number)

    def take(self, epoch: int, position: int) -> tuple[Any, ...]:
        draws = self.draws // max(self.position, 1) * position  # of the transform: equal for all batches
        self.data.load_state_dict({"seed": self.seed, "epoch": epoch, "position": position, "draws": draws})
        batch = tuple(self.data.next(self.count(position)))
        weft.eval(*[one for one in batch if isinstance(one, Tensor)])  # before the place changes again
        return batch

    def state_dict(self, position: int) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": position, "seed": self.seed, "draws": self.draws}


class Streamed(Batches):
    """Batches that a loader or another iterable gives, one after the other."""

    def __init__(self, source: Any, device: Any):
        self.source, self.device = source, device
        self.length = known_length(source)
        self._iterator: Iterator[Any] = iter(())

    def start(self, epoch: int, position: int = 0, state: Mapping[str, Any] | None = None) -> None:
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)
        self.position = position
        is_skipped = bool(position and state and hasattr(self.source, "load_state_dict"))
        if is_skipped and state is not None:
            self.source.load_state_dict({**state, "epoch": epoch, "position": position})
        self._iterator = iter(self.source)
        for _ in range(0 if is_skipped else position):
            next(self._iterator, None)

    def next(self) -> tuple[Any, ...] | None:
        """The next batch on the device, as arguments of a step; None at the end of the epoch."""
        began = time.perf_counter()
        try:
            batch = next(self._iterator)
        except StopIteration:
            if not self.position:
                raise _nothing("data without a batch, or an iterator that was used up by an epoch before") from None
            return None
        finally:
            self.wait_seconds += time.perf_counter() - began
        self.position += 1
        return as_arguments(batch, self.device)

    def take(self, epoch: int, position: int) -> tuple[Any, ...]:
        if isinstance(self.source, Iterator):
            raise problem(RangeError, "Trainer", "an iterator", "data that can be iterated again")
        kept, state = (self._iterator, self.position), self.state_dict(self.position)
        try:
            self.start(epoch, position, {**state, "draws": _share(state, self.position, position)})
            batch = self.next()
        finally:
            self._iterator, self.position = kept
            if state and hasattr(self.source, "load_state_dict"):
                self.source.load_state_dict(state)
        if batch is None:
            raise _nothing(f"an epoch of {position} batches")
        return batch

    def state_dict(self, position: int) -> dict[str, Any]:
        if not hasattr(self.source, "state_dict"):
            return {}
        state = dict(self.source.state_dict())
        return {**state, "draws": _share(state, self.position, position)} if state.get("draws") else state


def _share(state: Mapping[str, Any], taken: int, position: int) -> int:
    """The draws of the transform in the first `position` batches of those that were taken: equal for all batches."""
    return state.get("draws", 0) // max(taken, 1) * position


def known_length(source: Any) -> int | None:
    """How many batches there are, where it is known before they are read."""
    try:
        return len(source)
    except (TypeError, WeftError):
        return None


def _nothing(given: str, fix: str = "pass a DataLoader, or a list of batches") -> WeftError:
    return problem(RangeError, "Trainer", given, "at least one batch", fix)


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
    if type(value).__module__.startswith("torch"):  # a batch of a torch loader
        return weft.tensor(value.numpy(), device=device)
    return value


def batches_of(source: Any, device: Any) -> Batches:
    """What gives the batches of a loader, resident data, or an iterable of batches."""
    if isinstance(source, Batches):
        return source
    if hasattr(source, "start_epoch") and hasattr(source, "next"):
        return Resident(source)
    if hasattr(source, "resident"):
        data = source.resident(device)
        if data is not None:
            return Resident(data)
    elif not hasattr(source, "__iter__") or isinstance(source, (Tensor, np.ndarray, str, Mapping)):
        given, expected = f"data of type {type(source).__name__}", "a DataLoader, or an iterable of batches"
        fix = "DataLoader(data, batch_size=32, shuffle=True)"
        if isinstance(source, (Tensor, np.ndarray)):
            fix = "DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True), or [(x, y)] for one batch"
        raise problem(RangeError, "Trainer", given, f"{expected} (inputs, target)", fix)
    return Streamed(source, device)
