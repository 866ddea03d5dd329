"""Where batches come from: data that lives on the device, a loader that streams, or any iterable of batches.

Two kinds, one interface. Resident data is gathered inside the compiled step, so a batch is no argument of it;
streamed batches are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import weft
from weft import tree
from weft.errors import RangeError, WeftError, problem
from weft.tensor import Tensor


class Batches:
    """Base class. `position` counts the batches of the epoch that were taken; `wait_seconds` is the time in which the
    step could not run because data was not there."""

    wait_seconds = 0.0
    position = 0
    length: Any = None  # batches of an epoch, where it is known

    def start(self, epoch: int, position: int = 0, state: Mapping[str, Any] | None = None) -> None:
        """Go to batch number `position` of an epoch, with what `state_dict` returned there, if it is known."""
        raise NotImplementedError

    def take(self, epoch: int, position: int) -> tuple[Any, ...]:
        """The batch at a position of the present epoch once more. The place is lost."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on at this position with the same batches."""
        return {}


class Resident(Batches):
    """Data on the device (`weft.data.ResidentData`). `count(n)` is the number of rows of batch `n`."""

    def __init__(self, data: Any):
        self.data = data
        self.length = int(data.batches)
        if not self.length:
            raise _nothing("a data set without a batch")

    def start(self, epoch: int, position: int = 0, state: Mapping[str, Any] | None = None) -> None:
        self.position = position
        if not position:
            self.data.start_epoch(epoch)
            return
        known = {"seed": self.data.seed, "draws": 0, **(state or {})}
        self.data.load_state_dict({**known, "epoch": epoch, "position": position})

    def count(self, number: int) -> int:
        return self.data.count(number)

    def take(self, epoch: int, position: int) -> tuple[Any, ...]:
        state = self.data.state_dict()
        draws = state["draws"] // max(state["position"], 1) * position  # of the transform: equal for all batches
        self.data.load_state_dict({**state, "epoch": epoch, "position": position, "draws": draws})
        return tuple(self.data.next(self.count(position)))

    def state_dict(self) -> dict[str, Any]:
        return self.data.state_dict()


class Streamed(Batches):
    """Batches that a loader or another iterable gives, one after the other."""

    def __init__(self, source: Any, device: Any):
        self.source, self.device = source, device
        self.length = _length(source)
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
        state = self.state_dict()
        state["draws"] = state.get("draws", 0) // max(state.get("position", 1), 1) * position
        self.start(epoch, position, state)
        batch = self.next()
        if batch is None:
            raise _nothing(f"an epoch of {position} batches")
        return batch

    def state_dict(self) -> dict[str, Any]:
        return dict(self.source.state_dict()) if hasattr(self.source, "state_dict") else {}


def _length(source: Any) -> int | None:
    try:
        return len(source)
    except (TypeError, WeftError):
        return None


def _nothing(given: str) -> WeftError:
    return problem(RangeError, "Trainer", given, "at least one batch", "pass a DataLoader, or a list of batches")


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
        given = f"data of type {type(source).__name__}"
        raise problem(RangeError, "Trainer", given, "a DataLoader, or an iterable of batches (inputs, target)")
    return Streamed(source, device)
