"""Values on the host: NumPy arrays that become leaves, and the value of a tensor as an array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.base.dtypes import ALL, DType
from weft.base.dtypes import from_numpy as dtype_from_numpy
from weft.base.errors import CopyError, DTypeError, StorageError, problem
from weft.base.state import STATE
from weft.core.realize import realize, unknown_value_error
from weft.graph.node import Node, leaf
from weft.plan.device import Buffer, Device, missing_dtype

if TYPE_CHECKING:
    from weft.core.cell import TensorCell


def from_host(array: np.ndarray, device: str | Device | None = None, who: str = "from_numpy") -> Node:
    """A leaf node with the bytes of a NumPy array."""
    from weft.core.device import get

    target = get(device)
    dtype = dtype_of_numpy(who, array.dtype)
    if dtype not in target.dtypes:
        raise missing_dtype(who, dtype, target)
    slab = target.backend.upload_new(np.ascontiguousarray(array))
    return leaf(Buffer(slab, 0, array.nbytes), array.shape, dtype, target)


def dtype_of_numpy(who: str, dtype: np.dtype) -> DType:
    """The Weft dtype of a NumPy dtype, or an error."""
    known = dtype_from_numpy(dtype)
    if known is None:
        expected = "one of " + ", ".join(one.name for one in ALL)
        fix = "convert it with array.astype first"
        if dtype.kind in "USO":
            fix += "; texts become numbers with np.unique(array, return_inverse=True)[1]"
        raise problem(DTypeError, who, f"an array of {dtype}", expected, fix)
    return known


def host_array(tensor: TensorCell, copy: bool | None) -> np.ndarray:
    """The value as an array: read-only on the tensor's memory (copy=False, or None where that can be), or on its own.

    Memory that a compiled function rewrites in place is never shared.
    """
    if STATE.trace is not None:
        raise unknown_value_error("numpy()/item()/bool()")
    while True:
        node = tensor.node
        realize([tensor])
        buffer, backend = node.buffer, node.device.backend
        if buffer is None:
            continue  # another thread assigned the tensor meanwhile
        if buffer.state != "live":
            given = f"a tensor whose storage was {buffer.state}"
            raise problem(StorageError, "numpy()", given, "live storage", "clone() the tensor before it is given away")
        window = getattr(backend, "window", None)
        group = buffer.slab.pinned
        if window is not None and not copy and group is None:
            return window(buffer, node.shape, node.dtype)
        if copy is False:
            given = "memory that is the device's own, or that a compiled function writes in place, and copy=False"
            raise problem(CopyError, "numpy", given, "memory that can be shared", "leave copy away")
        if group is None:
            return backend.download(buffer, node.shape, node.dtype)
        with group.lock:
            if node.buffer is buffer:  # else it was rewritten, and the node has a copy
                return backend.download(buffer, node.shape, node.dtype)
