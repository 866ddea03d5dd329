"""What tensors report beside shape, dtype and device, and tensors made like another: small methods that no
operation is behind. `Tensor` inherits them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft.base.dtypes import DTypeLike
from weft.base.errors import DTypeError, GraphError, IndexRangeError, ShapeError, problem
from weft.base.state import STATE
from weft.core.strides import contiguous_strides
from weft.core.views import base_of, resolve

if TYPE_CHECKING:
    from weft.core.tensor import Tensor

NUMBERS = (bool, int, float, np.generic)


class TensorAttributes:
    """Attributes and small methods of `Tensor`."""

    __slots__ = ()

    # ---- in texts and tests ------------------------------------------------------------------------------------

    def __format__(self: Any, spec: str) -> str:
        """As PyTorch: a tensor without axes is formatted as its number, `f"{loss:.3f}"`; others only print."""
        if not self.ndim and not (STATE.trace is not None and not spec):
            return format(self.item(), spec)
        if spec:
            given = f"the format {spec!r} for a tensor of shape {self.shape}"
            raise problem(DTypeError, "format", given, "a tensor without axes", "format x.item(), or the elements")
        return str(self)

    def __contains__(self: Any, element: Any) -> bool:
        """Whether any element equals a number, or what a tensor is after broadcasting."""
        if isinstance(element, complex):
            return not element.imag and element.real in self
        if not isinstance(element, (TensorAttributes, *NUMBERS)):
            raise problem(DTypeError, "in", f"a {type(element).__name__}", "a number or a tensor")
        return bool((self == element).any().item())

    def _repr_html_(self) -> str | None:
        """What a notebook shows: a small vector or matrix as a table, any other tensor as text."""
        from weft.core.printing import html

        return html(self)  # type: ignore[arg-type]

    # ---- memory, in PyTorch's terms -----------------------------------------------------------------------------

    def stride(self: Any, dim: int | None = None) -> Any:
        """The stride of each axis, or of one, in elements: in a view, over the memory of its base.

        >>> weft.ones(2, 3).t().stride()
        (1, 3)
        """
        view = resolve(self)
        strides = contiguous_strides(self.shape) if view is None else view.strides()
        if strides is None:
            raise problem(GraphError, "stride", "a view by an index tensor", "a view by numbers and slices")
        if dim is None:
            return strides
        if not -len(strides) <= dim < len(strides):
            raise problem(IndexRangeError, "stride", f"axis {dim}", f"one of the {len(strides)} axes")
        return strides[dim]

    def storage_offset(self: Any) -> int:
        """Where the first element lies in the memory of the base that the tensor is a view of."""
        view = resolve(self)
        offset = 0 if view is None else view.offset()
        if offset is None:
            raise problem(GraphError, "storage_offset", "a view by an index tensor", "a view by numbers and slices")
        return offset

    def is_contiguous(self: Any) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        if resolve(self) is None or not self.numel():
            return True
        pairs = zip(self.shape, self.stride(), contiguous_strides(self.shape), strict=True)
        return all(extent == 1 or stride == wanted for extent, stride, wanted in pairs)

    def element_size(self: Any) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def itemsize(self: Any) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self: Any) -> int:
        """Bytes of all elements."""
        return self.numel() * self.dtype.itemsize

    def nelement(self: Any) -> int:
        """The number of elements."""
        return self.numel()

    def ndimension(self: Any) -> int:
        """The number of axes."""
        return self.ndim

    # ---- kinds and devices --------------------------------------------------------------------------------------

    def is_floating_point(self: Any) -> bool:
        """Whether the elements are floats."""
        return self.dtype.kind == "f"

    def is_signed(self: Any) -> bool:
        """Whether the dtype has negative numbers."""
        return self.dtype.kind in "if"

    @property
    def is_cuda(self: Any) -> bool:
        """Whether the tensor is on an NVIDIA GPU."""
        return self.device.kind == "cuda"

    @property
    def is_cpu(self: Any) -> bool:
        """Whether the tensor is on the CPU."""
        return self.device.kind == "cpu"

    def get_device(self: Any) -> int:
        """The number of the NVIDIA GPU that the tensor is on; -1 elsewhere."""
        return self.device.index if self.is_cuda else -1

    # ---- the value without its history ---------------------------------------------------------------------------

    @property
    def data(self: Any) -> Tensor:
        """The value without its history, sharing its elements: writing to it writes to the tensor, without gradients.
        Assigning `x.data = y` gives `x` the value of `y`, in its shape and dtype, and leaves the rest as it is; unlike
        in PyTorch, `x` and `y` do not share their elements afterwards."""
        return self.detach()

    @data.setter
    def data(self: Any, value: Any) -> None:
        if not _is_tensor(value):
            raise problem(DTypeError, "data", f"a {type(value).__name__}", "a tensor", "convert it with weft.tensor")
        if _shows(value, self):
            return  # `x.data += y` has written already when it assigns
        if (value.shape, value.dtype) == (self.shape, self.dtype):
            with _without_gradients():
                self.copy_(value if value.device is self.device else value.to(self.device))
            return
        if STATE.trace is not None or base_of(self) is not None or (self._aliases is not None and self._aliases()):
            forms = [f"{one.dtype.name}{list(one.shape)}" for one in (value, self)]
            where = f"inside {STATE.trace.where}" if STATE.trace is not None else "of a tensor that has views"
            raise problem(ShapeError, "data", f"{forms[0]} {where}", f"its form, {forms[1]}")
        if self._requires_grad and value.dtype.kind != "f":
            given = f"a {value.dtype.name} tensor for one that requires grad"
            raise problem(DTypeError, "data", given, "a float tensor")
        with _without_gradients():
            _rebind(self, value.detach().node)

    # ---- tensors like this one -----------------------------------------------------------------------------------

    def new_tensor(
        self: Any, data: Any, *, dtype: DTypeLike | None = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        """`weft.tensor(data)` in the dtype and on the device of this tensor."""
        from weft.core.creation import new_tensor

        return new_tensor(self, data, dtype, device, requires_grad)

    def new_full(
        self: Any,
        size: Any,
        fill_value: float,
        *,
        dtype: DTypeLike | None = None,
        device: Any = None,
        requires_grad: bool = False,
    ) -> Tensor:
        """One number everywhere, in the dtype and on the device of this tensor."""
        from weft.core.creation import new_full

        return new_full(self, size, fill_value, dtype, device, requires_grad)

    def new_zeros(
        self: Any, *size: Any, dtype: DTypeLike | None = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        """Zeros in the dtype and on the device of this tensor: `x.new_zeros(2, 3)`."""
        from weft.core.creation import new_full

        return new_full(self, size, 0, dtype, device, requires_grad)

    def new_ones(
        self: Any, *size: Any, dtype: DTypeLike | None = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        """Ones in the dtype and on the device of this tensor."""
        from weft.core.creation import new_full

        return new_full(self, size, 1, dtype, device, requires_grad)

    def new_empty(
        self: Any, *size: Any, dtype: DTypeLike | None = None, device: Any = None, requires_grad: bool = False
    ) -> Tensor:
        """Zeros, as `weft.empty`, in the dtype and on the device of this tensor."""
        from weft.core.creation import new_full

        return new_full(self, size, 0, dtype, device, requires_grad)


class _without_gradients:
    """Inside, operations record no gradients."""

    def __enter__(self) -> None:
        self._outer, STATE.grad_enabled = STATE.grad_enabled, False

    def __exit__(self, *error: object) -> None:
        STATE.grad_enabled = self._outer


def _rebind(tensor: Any, node: Any) -> None:
    """Give a tensor a value of another form."""
    tensor._assign(node)
    tensor._owned = None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TensorAttributes)


def _shows(view: Any, tensor: Any) -> bool:
    """Whether `view` is all of `tensor` without its history."""
    found = view._view
    if found is None or not found.is_detached or found.parent is not tensor._view:
        return view is tensor
    if tensor._view is not None:
        return found.aliases is tensor._view.aliases
    return tensor._aliases is not None and found.aliases is tensor._aliases()
