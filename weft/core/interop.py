"""Values in and out without copies: NumPy arrays, and DLPack for every other library.

A tensor's value never changes, so memory can be shared as long as nothing writes to it. What goes out is marked
read-only. What comes in stays the giver's: Weft never writes to it, keeps it alive, and reads it when a value is
computed, so **do not write to an array that you shared** while a tensor made of it, or anything not yet computed from
it, is in use. `weft.tensor(array)` copies, and is the one to take where that cannot be promised.
"""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.base.dtypes import DType, DTypeLike, as_dtype, bfloat16
from weft.base.errors import CopyError, DeviceError, DTypeError, GraphError, problem
from weft.base.state import STATE
from weft.core.creation import tensor
from weft.core.device import get
from weft.core.host_arrays import dtype_of_numpy, from_host, host_array
from weft.core.tensor import Tensor
from weft.graph.node import Node, leaf
from weft.plan.device import Buffer, Device

# From dlpack.h. NumPy writes and reads the capsules; only the code of a dtype that it does not know is set here.
CPU_DEVICES = (1, 3)  # kDLCPU, and kDLCUDAHost: memory of the host that a GPU may read
UINT_CODE, BFLOAT_CODE = 1, 4
VERSION = (1, 0)


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.argtypes, _capsule_name.restype = (ctypes.py_object,), ctypes.c_char_p
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


def _read_capsule(capsule: Any) -> _DLTensor:
    """The description of the tensor in a capsule that has not been consumed yet."""
    name = _capsule_name(capsule)
    address = _capsule_pointer(capsule, name)
    return _Versioned.from_address(address).tensor if name == b"dltensor_versioned" else _DLTensor.from_address(address)


class GivenCapsule:
    """A capsule in the form in which NumPy takes it."""

    def __init__(self, capsule: Any):
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


# --- in --------------------------------------------------------------------------------------------------------------


def from_numpy(array: np.ndarray) -> Tensor:
    """A tensor on the memory of `array`, in its dtype; a copy where the memory cannot be shared (it is not contiguous).

    Do not write to the array while the tensor is in use; `weft.tensor(array)` copies.

    >>> weft.from_numpy(np.arange(3))
    tensor([0, 1, 2])
    """
    if not isinstance(array, np.ndarray):
        raise problem(
            DTypeError, "from_numpy", f"a {type(array).__name__}", "a NumPy array", "use weft.tensor for other data"
        )
    return Tensor(_adopt("from_numpy", array, dtype_of_numpy("from_numpy", array.dtype), get(None), None))


def from_dlpack(x: Any, *, device: str | Device | None = None, copy: bool | None = None) -> Tensor:
    """A tensor on the memory of another library's array: anything with `__dlpack__`, such as a torch tensor.

    copy=None copies only where the memory cannot be shared, True always, False never (CopyError where it would have
    to). Do not write to the array while the tensor is in use.

    >>> weft.from_dlpack(np.ones(2))
    tensor([1., 1.], dtype=weft.float64)
    """
    if isinstance(x, Tensor):
        return _of_tensor("from_dlpack", x, device, copy)
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise problem(
            DTypeError, "from_dlpack", f"a {type(x).__name__}", "an object with __dlpack__", "use weft.tensor"
        )
    kind = int(x.__dlpack_device__()[0])
    if kind not in CPU_DEVICES:
        given = f"memory of device type {kind} in DLPack's numbering"
        raise problem(DeviceError, "from_dlpack", given, "memory of the CPU", "move it to the CPU first")
    try:
        capsule = x.__dlpack__(max_version=VERSION)
    except TypeError:  # a library from before version 1
        capsule = x.__dlpack__()
    about = _read_capsule(capsule)
    is_bfloat = (about.code, about.bits, about.lanes) == (BFLOAT_CODE, 16, 1)
    named = f"code {about.code} with {about.bits} bits"
    if is_bfloat:
        about.code = UINT_CODE
    try:
        array = np.from_dlpack(GivenCapsule(capsule))
    except (RuntimeError, BufferError, ValueError) as error:
        raise problem(DTypeError, "from_dlpack", f"an array of DLPack's dtype {named}", "a dtype of Weft") from error
    dtype = bfloat16 if is_bfloat else dtype_of_numpy("from_dlpack", array.dtype)
    return Tensor(_adopt("from_dlpack", array, dtype, get(device), copy))


def asarray(
    data: Any, dtype: DTypeLike | None = None, *, device: str | Device | None = None, copy: bool | None = None
) -> Tensor:
    """`data` as a tensor: a tensor, a NumPy array, anything with `__dlpack__`, or numbers and nested lists.

    copy=None shares memory where that is possible, True copies, False raises CopyError where a copy would be needed.
    Do not write to an array that is shared.

    >>> weft.asarray([[1, 2], [3, 4]]).shape
    (2, 2)
    """
    dtype = None if dtype is None else as_dtype("asarray", dtype)
    if isinstance(data, Tensor):
        found = _of_tensor("asarray", data, device, copy)
    elif isinstance(data, np.ndarray):
        found = Tensor(_adopt("asarray", data, dtype_of_numpy("asarray", data.dtype), get(device), copy))
    elif hasattr(data, "__dlpack__") and not isinstance(data, np.generic):
        found = from_dlpack(data, device=device, copy=copy)
    elif copy is False:
        raise _needs_copy("asarray", f"a {type(data).__name__}")
    else:
        return tensor(data, dtype=dtype, device=device)
    if dtype is None or found.dtype is dtype:
        return found
    if copy is False:
        raise _needs_copy("asarray", f"{found.dtype.name} as {dtype.name}")
    return found.to(dtype)


def _of_tensor(who: str, x: Tensor, device: str | Device | None, copy: bool | None) -> Tensor:
    target = x.device if device is None else get(device)
    if copy is False and target is not x.device:
        raise _needs_copy(who, f"a tensor on {x.device} for {target}")
    found = x.detach() if target is x.device else x.detach().to(target)
    return found.clone() if copy else found


def _adopt(who: str, array: np.ndarray, dtype: DType, device: Device, copy: bool | None) -> Node:
    """A leaf on the memory of `array`, or on a copy of it."""
    adopt = getattr(device.backend, "adopt", None)
    possible = adopt is not None and array.flags.c_contiguous and array.flags.aligned and array.size > 0
    if adopt is not None and possible and not copy:
        return leaf(Buffer(adopt(array), 0, array.nbytes), array.shape, dtype, device)
    if copy is False and array.size:
        raise _needs_copy(who, "an array that is not contiguous" if adopt is not None else f"memory of {device}")
    return from_host(array.view(dtype.numpy) if array.dtype != dtype.numpy else array, device)


def array_leaf(who: str, array: np.ndarray, dtype: DType, device: Device) -> Node:
    """A leaf on the memory of an array that nothing writes to, such as a file's, or on a copy where the device needs
    one."""
    return _adopt(who, array, dtype, device, None)


def _needs_copy(who: str, given: str) -> Exception:
    return problem(CopyError, who, f"{given}, and copy=False", "memory that can be shared as it is", "leave copy away")


# --- functions of NumPy ----------------------------------------------------------------------------------------------

# NumPy's functions of elements ("ufuncs") by their names there and Weft's: operators of Python, or functions of `weft`.
_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "true_divide": operator.truediv,
    "divide": operator.truediv, "floor_divide": operator.floordiv, "remainder": operator.mod, "power": operator.pow,
    "matmul": operator.matmul, "less": operator.lt, "less_equal": operator.le, "greater": operator.gt,
    "greater_equal": operator.ge, "equal": operator.eq, "not_equal": operator.ne, "bitwise_and": operator.and_,
    "bitwise_or": operator.or_, "bitwise_xor": operator.xor, "left_shift": operator.lshift,
    "right_shift": operator.rshift, "negative": operator.neg, "absolute": operator.abs, "invert": operator.invert,
}  # fmt: skip
_ELEMENTWISE = {
    **{name: name for name in (
        "sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt",
        "square", "reciprocal", "sign", "floor", "ceil", "trunc", "isnan", "isinf", "isfinite", "maximum", "minimum",
        "logical_and", "logical_or", "logical_xor", "logical_not", "fmod", "hypot", "logaddexp", "copysign",
    )},
    "rint": "round", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh",
    "arccosh": "acosh", "arctanh": "atanh",
}  # fmt: skip
# NumPy's functions that are methods of its arrays, as methods of tensors; the others get arrays with the values.
_METHODS = {
    np.sum: "sum", np.mean: "mean", np.prod: "prod", np.max: "amax", np.amax: "amax", np.min: "amin", np.amin: "amin",
    np.any: "any", np.all: "all", np.argmax: "argmax", np.argmin: "argmin", np.var: "var", np.std: "std",
    np.reshape: "reshape", np.squeeze: "squeeze", np.swapaxes: "swapaxes", np.clip: "clamp", np.round: "round",
}  # fmt: skip
_METHOD_ARGUMENTS = frozenset({"axis", "keepdims", "dtype", "ddof", "decimals"})
_ABOUT = {np.shape: lambda x: x.shape, np.ndim: lambda x: x.ndim, np.size: lambda x: x.numel()}
_OTHER_NAMES = {"concatenate": "cat"}


def numpy_operator(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of NumPy's that works element by element: Weft's own where there is one, with gradients and inside
    `weft.compile`. Others, and other ways to call one (`out=`, `np.add.reduce`), compute with NumPy what a tensor then
    holds; that has no gradient, and no values while a function is traced."""
    name = ufunc.__name__
    apply = _OPERATORS.get(name) or getattr(sys.modules["weft"], _ELEMENTWISE.get(name, ""), None)
    device = next((x.device for x in inputs if isinstance(x, Tensor)), None)
    if apply is not None and method == "__call__" and not kwargs and device is not None:
        return apply(*[_as_operand(x, device) for x in inputs])
    if STATE.trace is not None:
        raise _no_tensor(name)
    if device is None or any(isinstance(x, Tensor) for x in kwargs.get("out", ())):
        raise problem(DTypeError, f"numpy.{name}", "a weft.Tensor as out=", "a NumPy array", "assign the result")
    if any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        raise problem(GraphError, f"numpy.{name}", "a tensor that requires grad", "one that does not", "use x.detach()")
    result = getattr(ufunc, method)(*[_as_arrays(x) for x in inputs], **kwargs)
    if kwargs.get("out") is not None:
        return result
    found = [Tensor(from_host(np.asarray(x), device)) for x in (result if isinstance(result, tuple) else (result,))]
    return tuple(found) if isinstance(result, tuple) else found[0]


def _as_operand(x: Any, device: Device) -> Any:
    """A tensor for an array, a Python number for one of NumPy's."""
    if isinstance(x, np.generic):
        return x.item()
    return Tensor(from_host(x, device)) if isinstance(x, np.ndarray) else x


def numpy_function(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of NumPy's: of those that are methods of its arrays, the tensor's method. The others get the values;
    while a function is traced there are none."""
    about = _ABOUT.get(function)
    if about is not None and len(args) == 1 and not kwargs:
        return about(args[0])
    if args and isinstance(args[0], Tensor):
        if function in _METHODS and kwargs.keys() <= _METHOD_ARGUMENTS and (len(args) <= 2 or function in _LONG):
            return _method(function, args[0], args[1:], kwargs)
        if function in (np.transpose, np.ravel, np.cumsum, np.cumprod) and kwargs.keys() <= {"axis", "axes"}:
            return _flat_method(function, args[0], *args[1:], **kwargs)
    if STATE.trace is not None:
        raise _no_tensor(function.__name__)
    return function(*_as_arrays(args), **{key: _as_arrays(value) for key, value in kwargs.items()})


_LONG = (np.clip, np.swapaxes)  # methods with two arguments


def _method(function: Any, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A method of a tensor with NumPy's arguments."""
    if function in (np.mean, np.var, np.std) and not x.is_floating_point():
        x = x.double()  # as NumPy does
    if function in (np.var, np.std):
        kwargs = {**kwargs, "correction": kwargs.get("ddof", 0)}
        kwargs.pop("ddof", None)
    if function is np.round and args:
        kwargs, args = {"decimals": args[0]}, ()
    args = tuple(tuple(one) if isinstance(one, list) else one for one in args)
    return getattr(x, _METHODS[function])(*args, **{key: value for key, value in kwargs.items() if value is not None})


def _flat_method(function: Any, x: Tensor, axis: Any = None, axes: Any = None) -> Tensor:
    """Functions for which no axis means all: of a transpose, in reverse order; of a scan, one after the other."""
    if function is np.transpose:
        order = axis if axes is None else axes
        return x.permute(*(range(x.ndim)[::-1] if order is None else order))
    if function is np.ravel:
        return x.reshape(-1)
    scan = "cumsum" if function is np.cumsum else "cumprod"
    return getattr(x.reshape(-1), scan)(0) if axis is None else getattr(x, scan)(axis)


def _as_arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.numpy()
    return type(value)(map(_as_arrays, value)) if type(value) in (tuple, list) else value


def _no_tensor(name: str) -> Exception:
    public = sys.modules["weft"]
    inside = f" inside {STATE.trace.where}, where values are not known yet"
    own = next((one for one in (_OTHER_NAMES.get(name, name), name) if callable(getattr(public, one, None))), None)
    other = "compute it before the call"
    fix = f"use weft.{own}, or {other}" if own else other
    return problem(DTypeError, f"numpy.{name}", f"a weft.Tensor{inside}", "NumPy arrays", fix)


# --- out -------------------------------------------------------------------------------------------------------------


def to_dlpack(
    x: Tensor, max_version: tuple[int, int] | None, dl_device: tuple[int, int] | None, copy: bool | None
) -> Any:
    """The capsule of a tensor, read-only. A library that does not know the mark (before version 1) gets a copy."""
    device = x.__dlpack_device__()  # raises for one that is not on the CPU, as NumPy does not ask first
    if dl_device is not None and tuple(map(int, dl_device)) != device:
        raise problem(DeviceError, "__dlpack__", f"device {dl_device}", f"{device}", "use .to('cpu')")
    understood = max_version is not None and max_version[0] >= VERSION[0]
    if not understood and copy is False:
        raise _needs_copy("__dlpack__", "a reader that knows no read-only memory")
    array = host_array(x, True if not understood else copy)
    raw = array.view(np.uint16) if x.dtype is bfloat16 else array
    capsule = raw.__dlpack__(max_version=VERSION) if understood else raw.__dlpack__()
    if x.dtype is bfloat16:
        _read_capsule(capsule).code = BFLOAT_CODE
    return capsule
