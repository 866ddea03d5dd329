"""The GPUs of one kind, each opened when it is first looked at: one GPU's user takes no memory on the others. One that
cannot be opened leaves nothing behind, and is tried again when it is next looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from weft.backends.gpu.driver import Driver
from weft.base.errors import WeftError
from weft.base.locks import new_lock
from weft.plan.device import Device

_opening = new_lock()


@contextlib.contextmanager
def close_on_failure(driver: Driver) -> Iterator[None]:
    """Around what opens a device: where it fails, what was opened until then is released. A driver that fails there,
    too, as a lost device does, does not hide why the device was not opened."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(WeftError):
            driver.close()
        raise


class OpenedDevices(Sequence[Device]):
    """Number n is what `open_device(ordinals[n], n)` returns."""

    def __init__(self, ordinals: Sequence[int], open_device: Callable[[int, int], Device]):
        self._ordinals, self._open = ordinals, open_device
        self._opened: dict[int, Device] = {}

    def __len__(self) -> int:
        return len(self._ordinals)

    @overload
    def __getitem__(self, number: int) -> Device: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Device]: ...
    def __getitem__(self, number: int | slice) -> Device | Sequence[Device]:
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        ordinal = self._ordinals[number]
        with _opening:
            if ordinal not in self._opened:
                made = self._open(ordinal, self._ordinals.index(ordinal))
                self._opened.setdefault(ordinal, made)  # a finalizer or signal handler may have been faster
            return self._opened[ordinal]
