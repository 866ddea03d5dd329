"""Devices by name. Backends are imported when first used, so `import weft` loads none of them.

Tensors are made on the CPU unless another device is named: `set_default_device` names one for the whole process, and
`with device(...)` one for a stretch of one thread. `gpu` is the fastest GPU of any backend, and `auto` that or else the
CPU; a device that emulates a GPU in software (`Device.is_software`) is used only where it is named.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from weft.backends.registry import APIS, BACKENDS, EMULATED, FASTEST, PLANNED, load, may_have_gpu
from weft.base.errors import DeviceError, problem
from weft.base.singletons import singleton
from weft.plan.device import ENTERED, Device, Present


@singleton
class _Default:
    """What `set_default_device` named."""

    everywhere: Device | None = None


def get(device: str | Device | int | None = None) -> Device:
    """The device of a name: a kind (`cpu`, `cuda`, `hip`, `opencl`, `webgpu`, `reference`, `null`), with a number where
    there are several (`cuda:1`). `gpu` is the fastest GPU of any kind, `auto` that or else the CPU; neither is ever a
    device that emulates a GPU in software. `vulkan`, `metal` and `d3d12` are the WebGPU devices of these interfaces.
    None is the default device, and a number that of an NVIDIA GPU.

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
    wanted = int(number or 0) if not number or number.isdecimal() else None
    found = _devices_named(kind, f"{device!r}", None if wanted is None else wanted + 1)
    if wanted is not None and wanted < len(found):
        return found[wanted]
    expected = f"'{kind}:0'" + (f" to '{kind}:{len(found) - 1}'" if len(found) > 1 else "")
    raise problem(DeviceError, "device", f"{device!r}", expected, "`weft doctor` lists them")


def _devices_named(kind: str, given: str, most: int | None) -> Sequence[Device]:
    """The devices that `kind` means, without its number; DeviceError where there is none. Of those that have to be
    opened to be known, the first `most` are enough."""
    if kind in BACKENDS:
        return load(kind).devices() or _refuse(given, load(kind).reason)
    if kind == "auto":
        return _real_gpus(most) or load("cpu").devices()
    if kind == "gpu":
        return _real_gpus(most) or _refuse(
            given, "no GPU answers. " + "; ".join(f"{one}: {_why_no_gpu(one)}" for one in FASTEST)
        )
    if APIS.get(kind) in BACKENDS:
        devices, reason = _list_devices(APIS[kind])
        found, failures = _open_all(devices, lambda one: one.api == kind, most)
        reason = reason or f"no WebGPU device here is reached through {kind}"
        return found or _refuse(given, reason + _failures_text(failures))
    names = [*BACKENDS, *[api for api, owner in APIS.items() if owner in BACKENDS], "auto", "gpu"]
    expected, fix = f"one of {sorted(names)}", "use 'auto' for the best device present"
    if kind in PLANNED or kind in APIS:
        given, fix = f"{given}, for which this version has no backend yet", "use 'cpu'"
    raise problem(DeviceError, "device", given, expected, fix)


def _refuse(given: str, reason: str) -> NoReturn:
    raise problem(
        DeviceError, "device", f"{given}, but {reason}", "a device of this machine", "`weft doctor` lists them"
    )


def _list_devices(kind: str) -> tuple[Sequence[Device], str]:
    """The devices of one kind, and why there is none. A driver that does not start is one that is not there: those of
    the other kinds are still of use."""
    try:
        platform = load(kind)
        return platform.devices(), platform.reason
    except Exception as error:  # of the driver's own kinds, too
        return (), f"its driver does not start ({type(error).__name__}: {error})"


def _open_all(
    devices: Sequence[Device], is_wanted: Callable[[Device], bool] = lambda device: True, most: int | None = None
) -> tuple[list[Device], list[str]]:
    """Those that answer and are wanted, the first `most` of them, and why others do not answer."""
    found: list[Device] = []
    failures: list[str] = []
    for number in range(len(devices)):
        if len(found) == most:
            break
        try:
            device = devices[number]
        except Exception as error:  # as above
            failures.append(f"number {number}: {error}")
        else:
            if is_wanted(device):
                found.append(device)
    return found, failures


def _failures_text(failures: list[str]) -> str:
    return f"; some cannot be opened: {'; '.join(failures)}" if failures else ""


def _real_gpus(most: int | None = None) -> Sequence[Device]:
    """The GPUs of the fastest kind that has any; a kind whose first one is integrated comes after the others."""
    integrated: Sequence[Device] = ()
    for kind in FASTEST:
        if kind in BACKENDS and (kind not in EMULATED or may_have_gpu()):
            found = _list_devices(kind)[0]
            if kind in EMULATED:
                found = _open_all(found, lambda one: not one.is_software, most)[0]
                if found and found[0].is_integrated:
                    integrated = integrated or found
                    continue
            if found:
                return found
    return integrated


def _why_no_gpu(kind: str) -> str:
    """Why there is no GPU of this type."""
    if kind not in BACKENDS:
        return "this version has no backend for it"
    devices, reason = _list_devices(kind)
    if not devices:
        return reason
    opened, failures = _open_all(devices)
    names = ", ".join(one.description for one in opened)
    text = f"only emulated in software ({names})" if names else "none of its devices answers"
    return text + _failures_text(failures)


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
    """The devices that compute here: every one of every backend but `null`, those that emulate a GPU in software
    (`is_software`) included. A GPU that does not answer, as when another
    process has it for itself, is left out; `weft doctor` tells why."""
    return [
        device
        for kind in BACKENDS
        if kind != "null"
        for device in _open_all(_list_devices(kind)[0] if kind in FASTEST else load(kind).devices())[0]
    ]


Present.devices = staticmethod(devices)
