"""Checks of kernels and plans against the limits of a GPU, before its driver sees them.

The schedules and templates keep within `Limits`; a kernel that does not is an error of Weft or of a custom kernel, and
is reported with its name instead of failing in the vendor's compiler.
"""

from __future__ import annotations

from weft.base.errors import DeviceError, exceeds_allocation, problem, size_text
from weft.kernels.ir.language import Kernel, pool_bytes, shared_arrays
from weft.plan.device import Device
from weft.plan.plan import Launch, Plan, iterate_steps

INT32_LIMIT = 2**31


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
    bindings = sum([one.bindings for one in kernel.buffers])
    if limits.storage_buffers and bindings > limits.storage_buffers:
        raise _too_many_bindings(kernel, bindings, device)
    named = [*[(one.name, one.dtype) for one in kernel.buffers], *[(one.name, one.dtype) for one in kernel.scalars]]
    for name, dtype in named:
        if dtype not in device.dtypes:
            raise _exceeds(kernel.name, device, f"'{name}' of {dtype.name}", "the dtypes of the device")


def check_whole_buffers(kernel: Kernel, device: Device) -> None:
    """Raise where a buffer has several bindings: pointers of C need none."""
    most = max([one.bindings for one in kernel.buffers], default=1)
    if most > 1:
        raise _exceeds(kernel.name, device, f"a buffer in {most} bindings", "one binding of a buffer")


def check_plan(plan: Plan, device: Device) -> None:
    """Raise where a launch of `plan` counts further than `device` can, or binds where it cannot."""
    limits, int64 = device.limits, device.features.int64_arithmetic
    for temporary in plan.arena:
        if temporary.nbytes > (limits.allocation_bytes or temporary.nbytes):
            raise exceeds_allocation(f"{device}, {temporary.label}", temporary.nbytes, limits.allocation_bytes)
    if int64 and limits.offset_alignment == 1:
        return
    for step, _ in iterate_steps(plan.steps):
        if not isinstance(step, Launch):
            continue
        if not int64 and step.extent >= INT32_LIMIT:
            raise _exceeds(step.name, device, f"{step.extent} elements", "fewer than 2**31: it has no 64-bit integers")
        for place in step.places:
            if place.offset % limits.offset_alignment:
                given = f"a buffer at offset {place.offset} of '{plan.slots[place.slot].label}'"
                raise _exceeds(step.name, device, given, f"multiples of {limits.offset_alignment}")


def _too_many_bindings(kernel: Kernel, bindings: int, device: Device) -> Exception:
    limits, buffers = device.limits, len(kernel.buffers)
    if bindings == buffers:
        return _exceeds(kernel.name, device, f"{buffers} buffers", f"{limits.storage_buffers}")
    given = f"{buffers} buffers on {device}, {bindings} bindings of {size_text(limits.part_bytes)}"
    expected = f"at most {limits.storage_buffers} bindings of a kernel"
    return problem(DeviceError, kernel.name, given, expected, "divide the largest tensors, or use another device")


def _exceeds(who: str, device: Device, given: str, allowed: str) -> Exception:
    return problem(DeviceError, who, f"{given} on {device}", f"at most what {device} has: {allowed}")
