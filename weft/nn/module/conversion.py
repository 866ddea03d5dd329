"""Modes of a module, and its parameters and buffers on other devices or with other dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from weft.autograd import no_grad
from weft.base.dtypes import DType
from weft.base.errors import DTypeError, problem
from weft.base.state import MODULES
from weft.core.tensor import Tensor, destination
from weft.nn.module.traversal import ModuleTraversal

if TYPE_CHECKING:
    from weft.nn.module.module import Module

Self = TypeVar("Self", bound="ModuleConversion")


class ModuleConversion(ModuleTraversal):
    """What sets or changes all parameters and buffers of a `Module`."""

    def train(self: Self, mode: bool = True) -> Self:
        """Set training mode for this module and all below it."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.training = mode
        for child in self.children():
            child.train(mode)
        return self

    def eval(self: Self) -> Self:
        """Set evaluation mode: `train(False)`."""
        return self.train(False)

    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Ask for gradients in all parameters, or freeze them."""
        for param in self.parameters():
            param.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters, or set them to zero."""
        for param in self.parameters():
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad.detach().zero_()

    def apply(self: Self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` with every module below this one, and with this one last."""
        for child in self.children():
            child.apply(fn)
        module: Any = self
        fn(module)
        return self

    @no_grad()
    def _apply(self: Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Give every parameter, its gradient and every buffer the value `fn(tensor)`. Parameters keep their identity,
        so that optimizers go on with them; a buffer that changes is another tensor: the old one may be somebody's."""
        modules = list(self.modules()) if recurse else [self]
        params = {id(one): one for module in modules for one in module._parameters.values() if one is not None}
        buffers: dict[int, tuple[Tensor, Tensor]] = {}  # old and new; shared ones stay shared
        for param in params.values():
            for tensor in (param, param._grad):
                if tensor is not None:
                    old = tensor.detach()
                    new = fn(old)
                    if new is not old:
                        tensor._assign(new.node)
        for module in modules:
            for name, old in module._buffers.items():
                if old is not None:
                    new = buffers.setdefault(id(old), (old, fn(old)))[1]
                    if new is not old:
                        dict.__setitem__(module._buffers, name, new)
        MODULES.bump()
        return self

    def to(self: Self, *args: Any, **kwargs: Any) -> Self:
        """Move all parameters and buffers: `to(device)`, `to(dtype)`, `to(device, dtype)`, `to(tensor)`. Floating-point
        values change their dtype, integers only their device."""
        dtype, device, _ = destination(args, kwargs)
        if dtype is not None and dtype.kind != "f":
            raise problem(DTypeError, "Module.to", f"the dtype {dtype.name}", "a floating-point dtype")
        return self._apply(lambda tensor: _convert(tensor, dtype, device))

    def type(self: Self, dst_type: Any) -> Self:
        """All parameters and buffers in another dtype."""
        return self._apply(lambda tensor: tensor.to(dst_type))

    def float(self: Self) -> Self:
        """Floating-point values as float32."""
        return self.to(_dtype_by_name("float32"))

    def double(self: Self) -> Self:
        """Floating-point values as float64."""
        return self.to(_dtype_by_name("float64"))

    def half(self: Self) -> Self:
        """Floating-point values as float16."""
        return self.to(_dtype_by_name("float16"))

    def bfloat16(self: Self) -> Self:
        """Floating-point values as bfloat16."""
        return self.to(_dtype_by_name("bfloat16"))

    def cpu(self: Self) -> Self:
        """Move to the CPU."""
        return self.to("cpu")

    def cuda(self: Self, device: Any = None) -> Self:
        """Move to an NVIDIA GPU: the first, or the one of that number or name."""
        return self._apply(lambda tensor: tensor.cuda(device))


def _dtype_by_name(name: str) -> DType:
    from weft.base.dtypes import by_name

    return by_name(name)


def _convert(tensor: Tensor, dtype: DType | None, device: Any) -> Tensor:
    moved = tensor if dtype is None or tensor.dtype.kind != "f" else tensor.to(dtype)
    return moved if device is None else moved.to(device)
