"""Devices by name. Backends are imported when first asked for, so `import weft` loads none of them.

Tensors are made on the CPU unless another device is named: `set_default_device` names one for the whole process, and
`with device(...)` one for a stretch of one thread. `auto` is the fastest device that is really there: a GPU where one
answers, else the CPU.
"""

from __future__ import annotations

import contextlib
import copyreg
import importlib
from typing import TYPE_CHECKING, Any

from weft.backends.base import ENTERED, Device
from weft.errors import DeviceError, WeftError, problem
from weft.locks import new_lock
from weft.singletons import once, table

BACKENDS = {
    "cpu": ("weft.backends.cpu", "CpuBackend"),
    "cuda": ("weft.backends.cuda", "Cuda"),
    "reference": ("weft.backends.reference", "ReferenceBackend"),
    "null": ("weft.backends.null", "NullBackend"),
}
FASTEST = ("cuda",)  # kinds that `auto` prefers to the CPU, the best first
PLANNED = ("hip", "opencl", "webgpu")
_loaded: dict[str, Any] = table("backends")  # by kind
_loading = new_lock()  # two threads must not get two backends for one GPU


@once
class _Default:
    """What `set_default_device` named."""

    everywhere: Device | None = None


def load(kind: str) -> Any:
    """The backend of a kind; where it has no devices, its `reason` says why."""
    with _loading:
        if kind not in _loaded:
            module, name = BACKENDS[kind]
            made = getattr(importlib.import_module(module), name)()
            _loaded.setdefault(kind, made)  # a finalizer or signal handler may have been faster
        return _loaded[kind]


def get(device: str | Device | int | None = None) -> Device:
    """The device called `cpu`, `cuda`, `cuda:1`, `reference`, `null` or `auto`; None is the default device, and a
    number that of an NVIDIA GPU.

    >>> weft.get_device("reference").name
    'reference'
    """
    if isinstance(device, Device):
        return device
    if device is None:
        return default_device()
    if type(device) is int:  # as in PyTorch
        device = f"cuda:{device}"
    kind, _, number = str(device).partition(":")
    if kind == "auto":
        kind = next((fast for fast in FASTEST if load(fast).devices()), "cpu")
    if kind in BACKENDS:
        found = load(kind).devices()
        if not found:
            given = f"{device!r}, but {load(kind).reason}"
            raise problem(DeviceError, "device", given, "a device of this machine", "`weft doctor` lists them")
        if not number or (number.isdigit() and int(number) < len(found)):
            return found[int(number or 0)]
        expected = f"'{kind}:0'" + (f" to '{kind}:{len(found) - 1}'" if len(found) > 1 else "")
        raise problem(DeviceError, "device", f"{device!r}", expected, "`weft doctor` lists them")
    expected = f"one of {sorted(BACKENDS)}"
    if kind in PLANNED:
        raise problem(
            DeviceError, "device", f"{device!r}, for which this version has no backend yet", expected, "use 'cpu'"
        )
    raise problem(DeviceError, "device", f"{device!r}", expected, "use 'auto' for the best device present")


def _reduce(device: Device) -> tuple[Any, ...]:
    return get, (device.name,)


copyreg.pickle(Device, _reduce)


def default_device() -> Device:
    """The device on which tensors are made when none is named."""
    if ENTERED.devices:
        return ENTERED.devices[-1]
    if _Default.everywhere is None:
        _Default.everywhere = get("cpu")
    return _Default.everywhere


def set_default_device(device: str | Device) -> None:
    """Make tensors on `device` from now on, in all threads."""
    _Default.everywhere = get(device)


class DeviceType(type):
    """What lets `weft.device` find a device when it is called, and be its type for `isinstance`."""

    def __call__(cls, type: str | Device | int, index: int | None = None) -> Any:
        name = type if index is None or isinstance(type, Device) else f"{type}:{index}"
        return get(name)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Device)


class _Device(metaclass=DeviceType):
    """The device called `type`: `weft.device("cuda")`, `weft.device("cuda", 1)`. In a `with` block, tensors are made on
    it; other threads make theirs where they did.

    >>> with weft.device("reference"):
    ...     weft.ones(1).device.name
    'reference'
    >>> isinstance(weft.ones(1).device, weft.device), weft.device("cpu").type
    (True, 'cpu')
    """


if TYPE_CHECKING:

    class device(Device):
        """What type checkers take `weft.device` for: the type of devices, made from a name."""

        def __init__(self, type: str | Device | int, index: int | None = None) -> None: ...

else:
    device = _Device
    device.__name__ = device.__qualname__ = "device"


def devices() -> list[Device]:
    """The devices that compute here: every one of every backend but `null`. A GPU that does not answer, as when another
    process has it for itself, is left out; `weft doctor` tells why."""
    found: list[Device] = []
    for kind in BACKENDS:
        if kind != "null":
            group = load(kind).devices()
            for number in range(len(group)):
                with contextlib.suppress(WeftError):
                    found.append(group[number])
    return found
