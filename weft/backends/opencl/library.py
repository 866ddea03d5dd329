"""The functions of OpenCL that the driver calls, by name through ctypes, and the errors they report.

The loader is the one that pyopencl brings, which also finds PoCL where `pyopencl[pocl]` is installed; without pyopencl
it is the system's. Functions are called directly, not through pyopencl's objects: an enqueued kernel then costs a
single call and no event.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import re
from typing import Any

from weft.base.errors import DeviceError, OutOfMemoryError, problem
from weft.plan.device import DeviceLost

# Numbers of cl.h.
DEVICE_TYPE_CPU, DEVICE_TYPE_GPU, DEVICE_TYPE_ALL = 2, 4, 0xFFFFFFFF
MEM_READ_WRITE = 1
QUEUE_PROFILING = 2
FP_CORRECTLY_ROUNDED = 128  # division and square root of float32
EVENT_STATUS, COMPLETE = 0x11D3, 0
PROFILING_END = 0x1283
PROGRAM_BINARY_SIZES, PROGRAM_BINARIES, PROGRAM_BUILD_LOG = 0x1165, 0x1166, 0x1183
PLATFORM_NAME = 0x902
SUBGROUP_SIZES = 0x4108
POCL = "Portable Computing Language"  # the name of its platform
DEVICE_QUERIES: dict[str, tuple[int, Any]] = {  # name -> (number, type); bytes: text
    "type": (0x1000, ctypes.c_uint64),
    "compute_units": (0x1002, ctypes.c_uint32),
    "workgroup_size": (0x1004, ctypes.c_size_t),
    "largest_allocation": (0x1010, ctypes.c_uint64),
    "float32": (0x101B, ctypes.c_uint64),
    "memory": (0x101F, ctypes.c_uint64),
    "local_memory": (0x1023, ctypes.c_uint64),
    "is_available": (0x1027, ctypes.c_uint32),
    "has_compiler": (0x1028, ctypes.c_uint32),
    "name": (0x102B, bytes),
    "vendor": (0x102C, bytes),
    "driver": (0x102D, bytes),
    "version": (0x102F, bytes),
    "extensions": (0x1030, bytes),
    "platform": (0x1031, ctypes.c_size_t),
    "float64": (0x1032, ctypes.c_uint64),
    "shares_host_memory": (0x1035, ctypes.c_uint32),
    "language": (0x103D, bytes),
    "max_subgroups": (0x105C, ctypes.c_uint32),  # of a workgroup
}

STATUSES = {
    -1: "DEVICE_NOT_FOUND", -2: "DEVICE_NOT_AVAILABLE", -3: "COMPILER_NOT_AVAILABLE",
    -4: "MEM_OBJECT_ALLOCATION_FAILURE", -5: "OUT_OF_RESOURCES", -6: "OUT_OF_HOST_MEMORY", -8: "MEM_COPY_OVERLAP",
    -11: "BUILD_PROGRAM_FAILURE", -14: "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", -30: "INVALID_VALUE",
    -34: "INVALID_CONTEXT", -36: "INVALID_COMMAND_QUEUE", -38: "INVALID_MEM_OBJECT", -42: "INVALID_BINARY",
    -45: "INVALID_PROGRAM_EXECUTABLE", -46: "INVALID_KERNEL_NAME", -48: "INVALID_KERNEL", -49: "INVALID_ARG_INDEX",
    -50: "INVALID_ARG_VALUE", -51: "INVALID_ARG_SIZE", -52: "INVALID_KERNEL_ARGS", -54: "INVALID_WORK_GROUP_SIZE",
    -55: "INVALID_WORK_ITEM_SIZE", -61: "INVALID_BUFFER_SIZE", -1001: "PLATFORM_NOT_FOUND_KHR",
    -9999: "an illegal access to memory",
}  # fmt: skip
OUT_OF_MEMORY = (-4, -6, -61)
LOST = (-2, -14, -34, -36, -9999)  # what is reported, from any call, once a device does not respond any more
LOST_WHEN_WAITING = ("clFinish", "clEnqueueReadBuffer", "clWaitForEvents")  # OUT_OF_RESOURCES there means the same

_HANDLE, _SIZE, _INT, _POINTER = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_void_p
_WAIT_LIST = (_INT, _POINTER, _POINTER)  # how many events to wait for, which, and where the event of the call goes
_INFO = (_INT, _SIZE, _POINTER, _POINTER)
_CALLS: dict[str, tuple[Any, ...]] = {  # the arguments of functions that return a status
    "clGetPlatformIDs": (_INT, _POINTER, _POINTER),
    "clGetPlatformInfo": (_HANDLE, *_INFO),
    "clGetDeviceIDs": (_HANDLE, ctypes.c_uint64, _INT, _POINTER, _POINTER),
    "clGetDeviceInfo": (_HANDLE, *_INFO),
    "clReleaseContext": (_HANDLE,),
    "clReleaseCommandQueue": (_HANDLE,),
    "clReleaseMemObject": (_HANDLE,),
    "clReleaseProgram": (_HANDLE,),
    "clRetainProgram": (_HANDLE,),
    "clReleaseKernel": (_HANDLE,),
    "clReleaseEvent": (_HANDLE,),
    "clBuildProgram": (_HANDLE, _INT, _POINTER, ctypes.c_char_p, _POINTER, _POINTER),
    "clGetProgramInfo": (_HANDLE, *_INFO),
    "clGetProgramBuildInfo": (_HANDLE, _HANDLE, *_INFO),
    "clSetKernelArg": (_HANDLE, _INT, _SIZE, _POINTER),
    "clEnqueueNDRangeKernel": (_HANDLE, _HANDLE, _INT, _POINTER, _POINTER, _POINTER, *_WAIT_LIST),
    "clEnqueueReadBuffer": (_HANDLE, _HANDLE, _INT, _SIZE, _SIZE, _POINTER, *_WAIT_LIST),
    "clEnqueueWriteBuffer": (_HANDLE, _HANDLE, _INT, _SIZE, _SIZE, _POINTER, *_WAIT_LIST),
    "clEnqueueCopyBuffer": (_HANDLE, _HANDLE, _HANDLE, _SIZE, _SIZE, _SIZE, *_WAIT_LIST),
    "clEnqueueFillBuffer": (_HANDLE, _HANDLE, _POINTER, _SIZE, _SIZE, _SIZE, *_WAIT_LIST),
    "clEnqueueMarkerWithWaitList": (_HANDLE, *_WAIT_LIST),
    "clEnqueueBarrierWithWaitList": (_HANDLE, *_WAIT_LIST),
    "clWaitForEvents": (_INT, _POINTER),
    "clGetEventInfo": (_HANDLE, *_INFO),
    "clGetEventProfilingInfo": (_HANDLE, *_INFO),
    "clFlush": (_HANDLE,),
    "clFinish": (_HANDLE,),
}
_CREATES: dict[str, tuple[Any, ...]] = {  # those of functions that return a handle, before the place of the status
    "clCreateContext": (_POINTER, _INT, _POINTER, _POINTER, _POINTER),
    "clCreateCommandQueue": (_HANDLE, _HANDLE, ctypes.c_uint64),
    "clCreateBuffer": (_HANDLE, ctypes.c_uint64, _SIZE, _POINTER),
    "clCreateProgramWithSource": (_HANDLE, _INT, _POINTER, _POINTER),
    "clCreateProgramWithBinary": (_HANDLE, _INT, _POINTER, _POINTER, _POINTER, _POINTER),
    "clCreateKernel": (_HANDLE, ctypes.c_char_p),
}


@functools.cache
def loader() -> ctypes.CDLL:
    """The library; ImportError where there is none."""
    try:
        import pyopencl._cl as extension  # its loader is among what it is linked to

        return _with_types(ctypes.CDLL(extension.__file__))
    except Exception as error:  # a damaged package raises anything
        name = ctypes.util.find_library("OpenCL")
        if name is None:
            why = "" if isinstance(error, ModuleNotFoundError) else f"{type(error).__name__}: "
            raise ImportError(f"there is neither pyopencl nor a loader of the system ({why}{error})") from error
    try:
        return _with_types(ctypes.CDLL(name))
    except (OSError, AttributeError) as error:  # AttributeError: a function of OpenCL 1.2 is missing
        raise ImportError(f"the loader of the system, {name}, cannot be used ({error})") from error


def _with_types(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, arguments in _CALLS.items():
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = ctypes.c_int32
    for name, arguments in _CREATES.items():
        getattr(library, name).argtypes = (*arguments, _POINTER)
        getattr(library, name).restype = _HANDLE
    return library


def call(name: str, *args: Any) -> None:
    """A function that returns a status; raises what that means."""
    status = getattr(loader(), name)(*args)
    if status:
        raise make_error(name, status)


def create(name: str, *args: Any) -> int:
    """A function that makes something; returns its handle."""
    status = ctypes.c_int32()
    handle = getattr(loader(), name)(*args, ctypes.addressof(status))
    if status.value or not handle:
        raise make_error(name, status.value)
    return handle


def make_error(name: str, status: int) -> Exception:
    """The error for a status of a function."""
    words = f"{STATUSES.get(status, 'an error')} ({status})"
    if status in OUT_OF_MEMORY:
        return problem(OutOfMemoryError, name, words, "free memory on the device")
    is_lost = status in LOST or (status == -5 and name in LOST_WHEN_WAITING)
    return problem(DeviceLost if is_lost else DeviceError, name, words, "success")


def subgroup_sizes(device: int) -> list[int]:
    """The sizes of subgroups that kernels can ask for; none where they cannot ask."""
    try:
        data = read("clGetDeviceInfo", device, SUBGROUP_SIZES)
    except DeviceError:
        return []
    return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]


def platforms() -> list[int]:
    """The handles of all platforms, each once (a driver may be registered twice); none where none is installed."""
    count = ctypes.c_uint32()
    status = loader().clGetPlatformIDs(0, None, ctypes.addressof(count))
    if status == -1001 or not count.value:
        return []
    handles = (ctypes.c_void_p * count.value)()
    call("clGetPlatformIDs", count.value, handles, None)
    return list(dict.fromkeys([handle for handle in handles if handle]))


def devices(platform: int) -> list[int]:
    """The handles of all devices of a platform."""
    count = ctypes.c_uint32()
    if loader().clGetDeviceIDs(platform, DEVICE_TYPE_ALL, 0, None, ctypes.addressof(count)) or not count.value:
        return []
    handles = (ctypes.c_void_p * count.value)()
    call("clGetDeviceIDs", platform, DEVICE_TYPE_ALL, count.value, handles, None)
    return [handle for handle in handles if handle]


def platform_name(platform: int) -> str:
    return text_of(read("clGetPlatformInfo", platform, PLATFORM_NAME))


def query(device: int, name: str) -> Any:
    """One of `DEVICE_QUERIES`; 0 or an empty text where the device does not know it."""
    number, kind = DEVICE_QUERIES[name]
    try:
        data = read("clGetDeviceInfo", device, number)
    except DeviceError:
        return "" if kind is bytes else 0
    return text_of(data) if kind is bytes else int.from_bytes(data[: ctypes.sizeof(kind)], "little")


def version(device: int) -> tuple[int, int]:
    """The version of OpenCL that a device has; its text is 'OpenCL 3.0 ...'."""
    found = re.match(r"OpenCL (\d+)\.(\d+)", query(device, "version"))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def read(name: str, *handles_and_number: int) -> bytes:
    """What a function of the kind `clGet...Info` says."""
    size = ctypes.c_size_t()
    call(name, *handles_and_number, 0, None, ctypes.addressof(size))
    data = ctypes.create_string_buffer(size.value)
    call(name, *handles_and_number, size.value, data, None)
    return data.raw


def text_of(data: bytes) -> str:
    return data.split(b"\0")[0].decode(errors="replace").strip()
