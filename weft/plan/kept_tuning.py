"""Tunings that `weft tune` found, one file for each model of device, applied when a device is opened.

A file is JSON inside of a file of the cache (`weft.base.disk`, kind "tuning"): the fields of `Tuning` that differ from
those of the device's class, and what was measured, for people. Its name covers what the numbers were measured on and
mean: kind and description of the device, its features and limits, the identity of its backend (driver, compiler),
the names and defaults of all fields, and `FORMAT`. So after an update of the driver, or of Weft where it changed a
field, there is no file for the device and its class decides; two GPUs of one model share a file.

A file that cannot be used is ignored with a warning that names it. It knows nothing of how a tuning is found
(`weft.profiling.tune`).
"""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from weft.base import disk
from weft.base.capabilities import Limits
from weft.base.digest import digest
from weft.base.errors import DeviceError, problem
from weft.base.tuning import Tuning
from weft.plan.device import Device

FORMAT = 1
LARGEST_FILE = 4096  # bytes, more than any tuning takes


@dataclass(frozen=True, slots=True)
class KeptTuning:
    """What a file says: `changes` are fields of `Tuning` with other values than the device's class has; `gains` how
    many times faster each probe of the search became."""

    changes: Mapping[str, Any]
    gains: Mapping[str, float] = field(default_factory=dict)
    made: str = ""  # the day

    def applied_to(self, tuning: Tuning) -> Tuning:
        return replace(tuning, **self.changes)


def apply_kept_tuning(device: Device) -> Device:
    """The device as its backend is to offer it: with the tuning that is kept for it, if there is one."""
    kept = read(device)
    return (
        device if kept is None else replace(device, tuning=kept.applied_to(device.tuning), class_tuning=device.tuning)
    )


def class_tuning(device: Device) -> Tuning:
    """The tuning of the device's class, whatever is kept."""
    return device.tuning if device.class_tuning is None else device.class_tuning


def changes_of(tuning: Tuning, usual: Tuning) -> dict[str, Any]:
    """The fields in which a tuning differs from the usual one."""
    names = [one.name for one in fields(Tuning)]
    return {name: getattr(tuning, name) for name in names if getattr(tuning, name) != getattr(usual, name)}


def read(device: Device) -> KeptTuning | None:
    """What is kept for a device; None where nothing is, or nothing that can be used, of which it warns."""
    key, path = _key(device), file_of(device)
    if key is None or path is None:
        return None
    data = disk.read(disk.TUNING, key)
    if data is None:
        if file_of(device) is not None:  # else another process removed it since it was found
            _warn(path, "it is damaged, or another user may have written it")
        return None
    try:
        return _parse(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        _warn(path, f"{type(error).__name__}: {error}")
        return None


def write(device: Device, kept: KeptTuning) -> str:
    """Keep a tuning for a device and return the path of its file; DeviceError where nothing can be kept."""
    text = json.dumps({"changes": dict(kept.changes), "gains": dict(kept.gains), "made": kept.made}, sort_keys=True)
    return _write(device, _key(device), text.encode())


def check_writable(device: Device) -> None:
    """Raise DeviceError where nothing can be kept for a device: write a file beside its own, and remove it."""
    key = None if _key(device) is None else digest(trial=secrets.token_hex(16))
    _write(device, key, bytes(LARGEST_FILE))
    if key is not None:
        disk.remove(disk.TUNING, key)


def _write(device: Device, key: str | None, data: bytes) -> str:
    """Write a file and return its path."""
    if key is not None:
        disk.write(disk.TUNING, key, data)
        path = disk.find(disk.TUNING, key)
        if path is not None and disk.read(disk.TUNING, key) == data:
            return path
    folder = disk.folder() or "of a user without a home"
    given = f"the folder {folder}, in which nothing can be kept" if key else f"{device}, which keeps nothing"
    fix = "set WEFT_CACHE_DIR to a folder of your own, and WEFT_CACHE_LIMIT to more than 0; `weft doctor` says more"
    raise problem(DeviceError, "tuning", given, "a folder that can be written", fix)


def remove(device: Device) -> bool:
    """Remove what is kept for a device; whether there was anything."""
    key = _key(device)
    return key is not None and disk.remove(disk.TUNING, key)


def file_of(device: Device) -> str | None:
    """The path of the file for a device, if there is one."""
    key = _key(device)
    return disk.find(disk.TUNING, key) if key else None


def lasting_limits(device: Device) -> Limits:
    """The limits of a device without the size of an allocation, which drivers of memory that the host uses, too, work
    out from what is free: what was measured holds for the next process that opens the device."""
    return replace(device.limits, allocation_bytes=0)


def _key(device: Device) -> str | None:
    """What the numbers depend on, as the name of a file; None for a device of which nothing is kept."""
    identity = device.backend.identity()
    if identity is None:
        return None
    return digest(
        format=FORMAT, kind=device.kind, description=device.description, features=device.features,
        limits=lasting_limits(device), identity=identity, usual=class_tuning(device),
        names=tuple([one.name for one in fields(Tuning)]),
    )  # fmt: skip


def _parse(found: Any) -> KeptTuning:
    changes = {name: _check_value(name, value) for name, value in found["changes"].items()}
    gains = {str(name): float(gain) for name, gain in found["gains"].items()}
    return KeptTuning(changes, gains, str(found["made"]))


def _check_value(name: str, value: Any) -> Any:
    """A value of a field of `Tuning` as it is there; ValueError for what is none."""
    usual = {one.name: one.default for one in fields(Tuning)}
    if name not in usual:
        raise ValueError(f"{name!r} is no field of a tuning")
    if isinstance(usual[name], int):
        if type(value) is not int or value < 0:
            raise ValueError(f"{name} is {value!r}, not a number")
        return value
    pairs = tuple([(tile, speed) for tile, speed in value])
    if not all(type(tile) is str and type(speed) is int and speed > 0 for tile, speed in pairs):
        raise ValueError(f"{name} is {value!r}, not (name, speed) pairs")
    return pairs


def _warn(path: str, why: str) -> None:
    warnings.warn(f"the tuning in {path} is ignored: {why}. Make it again: weft tune", RuntimeWarning, stacklevel=2)
