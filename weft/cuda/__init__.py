"""`weft.cuda`: PyTorch's functions for NVIDIA GPUs (`torch.cuda`): availability, devices, memory, synchronization.

The backend is loaded by the first call, not by the import. Everything is passed to functions that any device has;
kernels and drivers are not known here.
"""

from __future__ import annotations

import importlib
from typing import Any

from weft.base.dtypes import bfloat16
from weft.core import memory, settings
from weft.core.device import default_device, get, load
from weft.plan.device import Device
from weft.random import generator as random

__all__ = [
    "amp", "current_device", "device_count", "empty_cache", "get_device_name", "is_available", "is_bf16_supported",
    "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info",
    "memory_allocated", "memory_reserved", "memory_stats", "reset_peak_memory_stats", "synchronize",
]  # fmt: skip


def is_available() -> bool:
    """Whether there is a GPU that Weft can use; `weft doctor` says why not."""
    return device_count() > 0


def device_count() -> int:
    """How many GPUs there are that Weft can use."""
    return len(load("cuda").devices())


def _gpu(device: str | Device | int | None) -> Device:
    """A GPU: the default device if it is one, else the first."""
    if device is None and default_device().kind == "cuda":
        return default_device()
    return get("cuda" if device is None else device)


def current_device() -> int:
    """The number of the default device if that is a GPU, else of the first GPU."""
    return _gpu(None).index


def get_device_name(device: str | Device | int | None = None) -> str:
    """What the GPU is called."""
    return _gpu(device).description.split(",")[0]


def mem_get_info(device: str | Device | int | None = None) -> tuple[int, int]:
    """Bytes that are available on the GPU, and bytes in all."""
    return _gpu(device).backend.memory()


def is_bf16_supported() -> bool:
    """Whether there is a GPU that computes in bfloat16."""
    return is_available() and bfloat16 in _gpu(None).dtypes


def synchronize(device: str | Device | int | None = None) -> None:
    """Wait until the GPU has done all that it was given."""
    settings.synchronize(_gpu(device))


def manual_seed(seed: int) -> None:
    """`weft.manual_seed`: one generator serves all devices."""
    random.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """`weft.manual_seed`: one generator serves all devices."""
    random.manual_seed(seed)


def empty_cache() -> None:
    """Give the driver back what no tensor holds any more. The memory of compiled functions stays theirs."""
    if is_available():
        for number in range(device_count()):
            memory.empty_cache(get(number))


def memory_stats(device: str | Device | int | None = None) -> dict[str, int]:
    """`weft.memory_stats` of a GPU."""
    return memory.memory_stats(_gpu(device))


def reset_peak_memory_stats(device: str | Device | int | None = None) -> None:
    """`weft.reset_peak_memory_stats` of a GPU."""
    memory.reset_peak_memory_stats(_gpu(device))


def memory_allocated(device: str | Device | int | None = None) -> int:
    """Bytes that tensors and compiled functions hold on the GPU."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: str | Device | int | None = None) -> int:
    """The most bytes that they used since `reset_peak_memory_stats`."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: str | Device | int | None = None) -> int:
    """Bytes that this process has of the GPU, with those that wait to be used again."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: str | Device | int | None = None) -> int:
    """The most bytes that it had since `reset_peak_memory_stats`, as far as it was looked at."""
    return memory_stats(device)["reserved_bytes.all.peak"]


def __getattr__(name: str) -> Any:
    """`weft.cuda.amp` is loaded when it is first used."""
    if name == "amp":
        return importlib.import_module("weft.cuda.amp")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
