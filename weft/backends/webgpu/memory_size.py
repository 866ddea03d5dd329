"""How much memory a GPU has, which WebGPU does not say.

Vulkan does: its loader, which wgpu uses too, is asked for the GPU with the numbers of vendor and model that wgpu
gives. A GPU that is integrated in the processor, or emulated by it, has the processor's memory.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import Any, NamedTuple

from weft.base import host_memory

LOADERS = {"win32": "vulkan-1.dll", "darwin": "libvulkan.1.dylib"}  # elsewhere libvulkan.so.1
HOST_MEMORY_TYPES = ("CPU", "IntegratedGPU")  # of adapters
SUCCESS, INSTANCE_CREATE_INFO, DEVICE_LOCAL = 0, 1, 1
STRUCTURE_BYTES = 4096  # more than VkPhysicalDeviceProperties (824) and VkPhysicalDeviceMemoryProperties (520) have
IDS_AT, HEAP_COUNT_AT, HEAPS_AT, HEAP_BYTES = 8, 260, 264, 16  # in these


class VulkanDevice(NamedTuple):
    """The numbers of a GPU's vendor and model, and the bytes of memory of its own."""

    vendor: int
    model: int
    nbytes: int


def memory_size(info: Any) -> int:
    """The bytes of memory of an adapter, from wgpu's `info` of it; `host_memory.UNKNOWN` where nothing says it."""
    if info["adapter_type"] in HOST_MEMORY_TYPES:
        return host_memory.memory()[1]
    found = [one.nbytes for one in vulkan_devices() if one[:2] == (info["vendor_id"], info["device_id"])]
    return max(found, default=0) or host_memory.UNKNOWN


def vulkan_devices() -> list[VulkanDevice]:
    """The devices of Vulkan; none where there is no loader or no driver."""
    try:
        loader = ctypes.CDLL(LOADERS.get(sys.platform, "libvulkan.so.1"))
        create, destroy = loader.vkCreateInstance, loader.vkDestroyInstance
        list_devices = loader.vkEnumeratePhysicalDevices
        get_properties, get_memory = loader.vkGetPhysicalDeviceProperties, loader.vkGetPhysicalDeviceMemoryProperties
    except (OSError, AttributeError):
        return []
    pointer = ctypes.c_void_p
    for function, arguments in [(create, 3), (destroy, 2), (list_devices, 3), (get_properties, 2), (get_memory, 2)]:
        function.argtypes = [pointer] * arguments
    request = (ctypes.c_uint64 * 8)(INSTANCE_CREATE_INFO)  # no extensions, no layers
    instance, count = pointer(), ctypes.c_uint32()
    if create(ctypes.addressof(request), None, ctypes.addressof(instance)) != SUCCESS:
        return []
    try:
        list_devices(instance, ctypes.addressof(count), None)
        handles = (pointer * max(count.value, 1))()
        if list_devices(instance, ctypes.addressof(count), ctypes.addressof(handles)) != SUCCESS:
            return []
        return [_describe(get_properties, get_memory, handle) for handle in handles[: count.value]]
    finally:
        destroy(instance, None)


def _describe(get_properties: Any, get_memory: Any, handle: int | None) -> VulkanDevice:
    vendor, model = struct.unpack_from("=2I", _read(get_properties, handle), IDS_AT)
    return VulkanDevice(vendor, model, local_bytes(_read(get_memory, handle)))


def _read(function: Any, handle: int | None) -> bytes:
    """The structure that a function fills for a device."""
    data = ctypes.create_string_buffer(STRUCTURE_BYTES)
    function(handle, ctypes.addressof(data))
    return data.raw


def local_bytes(properties: bytes) -> int:
    """The bytes of all heaps that are the device's own, of a VkPhysicalDeviceMemoryProperties."""
    (count,) = struct.unpack_from("=I", properties, HEAP_COUNT_AT)
    heaps = [struct.unpack_from("=QI", properties, HEAPS_AT + HEAP_BYTES * number) for number in range(count)]
    return sum(size for size, flags in heaps if flags & DEVICE_LOCAL)
