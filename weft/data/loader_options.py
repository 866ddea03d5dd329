"""What the arguments of a DataLoader may be, and the progress in an epoch that it saves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.base.errors import DTypeError, RangeError, problem
from weft.data.dataset import is_stream
from weft.data.resident import LAST
from weft.random.generator import Generator

RESIDENT_SHARE = 0.5  # of a device's available memory, that a data set may take


@dataclass
class EpochProgress:
    """Where one iteration over a loader is. `draws` is what the transform of this iteration has drawn; `generator`
    the generator of seeds when the iteration began, where a sampler of a user's own draws from it meanwhile."""

    epoch: int = 0
    seed: int | None = None
    position: int = 0  # batches given out
    draws: int = 0
    generator: dict[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    is_complete: bool = True

    def state_dict(self) -> dict[str, Any]:
        saved = {"epoch": self.epoch, "position": self.position, "seed": self.seed, "draws": self.draws}
        return {**saved, "batch_size": self.batch_size}


def check_generator(generator: Any) -> None:
    """Seeds are drawn on the host from a generator whose state is two numbers, so that a loader can be saved."""
    if generator is not None and not isinstance(generator, Generator):
        given = f"generator={type(generator).__module__}.{type(generator).__name__}"
        raise problem(DTypeError, "DataLoader", given, "a weft.Generator", "pass weft.Generator(seed)")


def check_order(dataset: Any, batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: bool) -> None:
    who = "DataLoader"
    if batch_size is not None and (not isinstance(batch_size, (int, np.integer)) or batch_size <= 0):
        raise problem(RangeError, who, f"batch_size={batch_size!r}", "a positive whole number, or None")
    if not hasattr(type(dataset), "__getitem__") and not isinstance(dataset, Iterable):
        raise problem(DTypeError, who, f"a dataset of type {type(dataset).__name__}", "items, or something to iterate")
    if sampler is not None and shuffle:
        raise problem(RangeError, who, "a sampler and shuffle=True", "one of the two")
    if batch_sampler is not None and (batch_size not in (1, None) or shuffle or sampler is not None or drop_last):
        given = "a batch_sampler with batch_size, shuffle, sampler or drop_last"
        raise problem(RangeError, who, given, "the batch_sampler alone")
    if is_stream(dataset) and (shuffle or sampler is not None or batch_sampler is not None):
        raise problem(RangeError, who, "an IterableDataset and an order", "the order of the dataset itself")


def check_options(batch_size: Any, batch_sampler: Any, last: str, drop_last: bool) -> None:
    who = "DataLoader"
    if last not in LAST or (drop_last and last != "drop"):
        raise problem(RangeError, who, f"last={last!r} and drop_last={drop_last}", f"one of {LAST}")
    if last == "pad" and (batch_sampler is not None or batch_size is None):
        raise problem(RangeError, who, "last='pad' without a batch_size", "a batch_size to fill")


def count_row_elements(shape: Sequence[int]) -> int:
    total = 1
    for extent in shape[1:]:
        total *= extent
    return total


def check_workers(
    num_workers: Any, worker: str, prefetch_factor: Any, timeout: Any, persistent_workers: bool, device: Any
) -> None:
    who = "DataLoader"
    if not isinstance(num_workers, (int, np.integer)) or num_workers < 0:
        raise problem(RangeError, who, f"num_workers={num_workers!r}", "a whole number, 0 or more")
    if prefetch_factor is not None and (not isinstance(prefetch_factor, (int, np.integer)) or prefetch_factor < 1):
        raise problem(RangeError, who, f"prefetch_factor={prefetch_factor!r}", "a whole number, 1 or more")
    if worker not in ("thread", "process"):
        raise problem(RangeError, who, f"worker={worker!r}", "'thread' or 'process'")
    if not isinstance(timeout, (int, float, np.number)) or not timeout >= 0:
        raise problem(RangeError, who, f"timeout={timeout!r}", "seconds, 0 or more (0: no limit)")
    for name, value in (("timeout", timeout if device is None else 0), ("persistent_workers", persistent_workers)):
        if value and not num_workers:
            fix = "set num_workers, or leave it out"
            raise problem(RangeError, who, f"{name}={value!r} without workers", "workers that it is for", fix)
