"""Copies of tensors for `copy` and `pickle`.

`copy.deepcopy` gives a leaf of its own with the same value, dtype, device, `requires_grad` and `grad`; a tensor that
occurs several times in what is copied stays one tensor. The result of an operation that requires grad has no deep copy,
as in PyTorch. `copy.copy` gives a leaf with the same value and `requires_grad` and without a gradient, which shares its
elements with the source: writing to the one writes to the other, as in PyTorch.

A pickled tensor is its bytes with their shape, dtype, device and `requires_grad`; history and gradient stay behind, as
in PyTorch. It comes back on the device of that name where there is one, else on the CPU, with a warning.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import numpy as np

from weft.base.dtypes import by_name
from weft.base.errors import DeviceError, GraphError, problem
from weft.base.state import STATE
from weft.compiler.realize import check_live
from weft.core.device import get
from weft.core.host_arrays import from_host, host_array
from weft.core.realize import unknown_value_error
from weft.core.tensor import Tensor
from weft.graph import build
from weft.graph.node import Node, leaf
from weft.plan.device import Device


def shallow_copy(tensor: Tensor) -> Tensor:
    """What `copy.copy` gives."""
    made = tensor.detach()
    made.name = tensor.name
    return made.requires_grad_(tensor._requires_grad)


def deep_copy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """What `copy.deepcopy` gives: memory of its own, or, where the value is not computed yet, the same computation."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if tensor._requires_grad and not tensor.is_leaf:
        given, expected = "the result of an operation that requires grad", "a leaf"
        fix = "copy x.detach() for the value alone, or use x.clone() to keep the history"
        raise problem(GraphError, "copy.deepcopy", given, expected, fix)
    made = memo[id(tensor)] = _like(tensor, _copy_node(_value(tensor)))
    made._grad = copy.deepcopy(tensor.grad, memo)
    return made


def _value(tensor: Tensor) -> Node:
    """The node with the tensor's value; reading it makes no leaf of it that `backward()` would look for."""
    enabled, STATE.grad_enabled = STATE.grad_enabled, False
    try:
        return tensor.node
    finally:
        STATE.grad_enabled = enabled


def _copy_node(node: Node) -> Node:
    if STATE.trace is not None or node.buffer is None:
        return build.stop_gradient(node)
    from weft.compiler.cells import private_copy

    check_live(node.buffer)
    return leaf(private_copy(node.buffer), node.shape, node.dtype, node.device)


def _like(tensor: Tensor, node: Node) -> Tensor:
    made = Tensor(node)
    made.weak, made.name = tensor.weak, tensor.name
    return made.requires_grad_(tensor._requires_grad)


def reduce_tensor(tensor: Tensor, protocol: int) -> tuple[Any, ...]:
    """What `pickle` writes. From protocol 5 on the bytes may be passed without a copy."""
    if STATE.trace is not None:
        raise unknown_value_error("pickle")
    array = np.ascontiguousarray(host_array(tensor, None)).reshape(-1).view(np.uint8)
    data: Any = pickle.PickleBuffer(array.data) if protocol >= 5 else array.tobytes()
    about = (tensor.shape, tensor.dtype.name, tensor.device.name, tensor._requires_grad, tensor.name)
    return rebuild_tensor, (data, *about)


def rebuild_tensor(
    data: Any, shape: tuple[int, ...], dtype: str, device: str, requires_grad: bool, name: str | None
) -> Tensor:
    """The tensor that `reduce_tensor` described. Pickles name this function, by the path that is set below."""
    array = np.frombuffer(data, by_name(dtype).numpy).reshape(shape)
    tensor = Tensor(from_host(array, _device_by_name(device), "pickle"))
    tensor.name = name
    return tensor.requires_grad_(requires_grad)


rebuild_tensor.__module__ = "weft.copying"


def _device_by_name(name: str) -> Device:
    """The device called `name`, or the CPU where this process has none of that name."""
    try:
        return get(name)
    except DeviceError as error:
        warnings.warn(f"pickle: a tensor was saved on {name!r} and is loaded on the CPU ({error})", stacklevel=4)
        return get("cpu")
