"""Checks of kernels and plans against the limits of a GPU, before its driver sees them.

The schedules and templates keep within `Limits`; a kernel that does not is an error of Weft or of a custom kernel, and
is reported with its name instead of failing in the vendor's compiler.
"""

from __future__ import annotations

from weft.base.errors import DeviceError, problem
from weft.kernels.ir.language import Kernel, pool_bytes, shared_arrays
from weft.plan.device import Device
from weft.plan.plan import Launch, Plan, iterate_steps

INT32_LIMIT = 2**31
BOUND_WHOLE = ("input", "output")  # kinds of slots that are one value; of an arena each value is bound alone


def check_kernel(kernel: Kernel, device: Device) -> None:
    """Raise where `kernel` uses more of a workgroup, or other dtypes, than `device` has."""
    limits, geometry = device.limits, kernel.geometry
    if geometry is None:
        raise _exceeds(kernel.name, device, "a kernel without workgroups", "a kernel scheduled for GPUs")
    if geometry.lanes > limits.workgroup_size:
        raise _exceeds(kernel.name, device, f"{geometry.lanes} lanes", f"{limits.workgroup_size}")
    arrays = shared_arrays(kernel.body)
    declared = sum([pool_bytes(one) for one in arrays if one.scope == "workgroup"])
    requested = sum([pool_bytes(one) for one in arrays if one.scope == "launch"])
    if declared > limits.static_shared_bytes or declared + requested > limits.shared_bytes:
        given = f"{declared} bytes of shared memory that it declares, {requested} that come with its launch"
        raise _exceeds(kernel.name, device, given, f"{limits.static_shared_bytes}, and {limits.shared_bytes} in all")
    if limits.storage_buffers and len(kernel.buffers) > limits.storage_buffers:
        raise _exceeds(kernel.name, device, f"{len(kernel.buffers)} buffers", f"{limits.storage_buffers}")
    named = [*[(one.name, one.dtype) for one in kernel.buffers], *[(one.name, one.dtype) for one in kernel.scalars]]
    for name, dtype in named:
        if dtype not in device.dtypes:
            raise _exceeds(kernel.name, device, f"'{name}' of {dtype.name}", "the dtypes of the device")


def check_plan(plan: Plan, device: Device) -> None:
    """Raise where a launch of `plan` counts or binds more than `device` can."""
    limits, int64 = device.limits, device.features.int64_arithmetic
    if int64 and not limits.binding_bytes and limits.offset_alignment == 1:
        return
    for step, _ in iterate_steps(plan.steps):
        if not isinstance(step, Launch):
            continue
        if not int64 and step.extent >= INT32_LIMIT:
            raise _exceeds(step.name, device, f"{step.extent} elements", "fewer than 2**31: it has no 64-bit integers")
        for place in step.places:
            slot = plan.slots[place.slot]
            if limits.binding_bytes and slot.kind in BOUND_WHOLE and slot.nbytes > limits.binding_bytes:
                raise _exceeds(step.name, device, f"a buffer of {slot.nbytes} bytes", f"{limits.binding_bytes}")
            if place.offset % limits.offset_alignment:
                given = f"a buffer at offset {place.offset} of '{slot.label}'"
                raise _exceeds(step.name, device, given, f"multiples of {limits.offset_alignment}")


def _exceeds(who: str, device: Device, given: str, allowed: str) -> Exception:
    return problem(DeviceError, who, f"{given} on {device}", f"at most what {device} has: {allowed}")
