"""The cell under a tensor: which node holds its value now, how that changes, and how the value is read.

A tensor is read by computing its node, and assigned by rebinding to another node. A leaf that requires grad is
registered with its node whenever it is used, so that `backward()` finds it. A view is read through its base where that
was written, and assigned by assigning its base (`weft.core.views`). While `weft.compile` traces, the trace decides
both.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.base.dtypes import DType
from weft.base.errors import (
    CopyError,
    DeviceError,
    DTypeError,
    NoAxesError,
    ShapeError,
    problem,
)
from weft.base.state import STATE, VERSION
from weft.core.host_arrays import host_array
from weft.core.realize import ASSIGNED, realize, source_of_views
from weft.core.size import Size
from weft.core.views import View, adopt_flags, base_of, refresh, release_views
from weft.graph import build
from weft.graph.layout import permute_value
from weft.graph.node import Node, leaf
from weft.plan.device import Buffer, Device

LEAVES: weakref.WeakKeyDictionary[Node, weakref.ref[Any]] = weakref.WeakKeyDictionary()
# Kinds of nodes that are worth computing once.
MIN_DEFERRED_WRITES = 4  # first assignments to parts of a tensor, which wait until it is read
MAX_DEFERRED_WRITES = 32  # assignments to parts of a tensor that wait at most
BYTES_PER_PLAN_RUN = 1 << 18  # bytes that are copied in about the time that it takes to run a plan
MAX_COPIED_BYTES = 1024  # bytes up to which a copy is cheaper than memory that stays in use


def _leaf_of(node: Node) -> Node:
    """A leaf with the value of `node`."""
    return leaf(node.buffer, node.shape, node.dtype, node.device)


def _leaf_in_order(node: Node) -> Node:
    """`_leaf_of`; but a permuted value stays a permute of its source, so that sums over it keep their order."""
    if node.op != "permute" or node.srcs[0].buffer is None:
        return _leaf_of(node)
    known = permute_value(_leaf_of(node.srcs[0]), node.attrs.order)
    known.buffer = node.buffer
    return known


def _is_detached(update: Node) -> bool:
    """Whether what was written into a window was cut off from a history whose value is not known yet."""
    while update.op in ("permute", "stop_gradient"):
        update = update.srcs[0]
    value = source_of_views(update.srcs[1]) if update.op == "update_slice" else update
    detached = value.op == "stop_gradient" and value.buffer is None and value.srcs[0].buffer is None
    return detached and STATE.grad_enabled


class TensorCell:
    """What every tensor has: a node, flags, and ways to read the value. `Tensor` adds the operations."""

    __slots__ = (
        "__weakref__", "_aliases", "_buffer", "_consumed", "_form", "_grad", "_hooks", "_node", "_owned",
        "_requires_grad", "_view", "_window_writes", "is_leaf", "name", "weak",
    )  # fmt: skip
    # `_hooks` is unset in all tensors but those leaves that have hooks: see `weft.autograd.hooks`.

    def __init__(self, node: Node | None, requires_grad: bool = False, is_leaf: bool = True):
        self._node = node
        if node is not None:
            node.shown = True
        self._requires_grad = requires_grad
        self._grad: Any = None
        self._buffer: Buffer | None = None  # set while a compiled function keeps the value in its own storage
        self._form: tuple[tuple[int, ...], DType] | None = None  # shape and dtype of the contents of `_buffer`
        self._consumed = False  # backward() has used up the history
        self._owned: Node | None = None  # the node registered in LEAVES for this tensor
        self._window_writes = 0  # how often a part of the value was assigned
        self._view: View | None = None  # how it follows from its base
        self._aliases: weakref.ref[Any] | None = None  # the views of this base, if there are any
        self.is_leaf = is_leaf
        self.name: str | None = None
        self.weak = False  # takes the dtype of its partner, as Python numbers do
        if STATE.trace is not None:
            STATE.trace.register_created(self)

    # ---- the cell ----------------------------------------------------------------------------------------------

    @property
    def node(self) -> Node:
        """The node that holds the value now. Reading it under gradients makes a leaf findable for `backward()`."""
        if STATE.trace is not None:
            node = STATE.trace.read(self)
        else:
            view = self._view
            if view is not None and view.version != view.aliases.version:
                refresh(self)
            node = self._node
            if node is None:
                from weft.compiler.cells import expose

                node = expose(self)
        if self._requires_grad and STATE.grad_enabled and (self.is_leaf or self._consumed) and self._owned is not node:
            node = self._own_node(node)
        return node

    def _own_node(self, node: Node) -> Node:
        """Register a node that represents this leaf alone, making one if the present node is shared."""
        owner = LEAVES.get(node)
        other = owner() if owner is not None else None
        if STATE.trace is not None and self._view is not None:
            return node if other is self else STATE.trace.variable(self, node)
        if node.op not in ("buffer", "input", "variable") or (other is not None and other is not self):
            node = build.variable(node)
            if STATE.trace is not None:
                STATE.trace.write(self, node)
            else:
                self._show(node)
        self._register(node)
        self._owned = node if STATE.trace is None else None
        return node

    def _register(self, node: Node) -> None:
        LEAVES[node] = weakref.ref(self)

    def _show(self, node: Node) -> None:
        """`node` is the value from now on."""
        self._node, node.shown = node, True

    def _present(self) -> Node | None:
        """The node of a tensor that is no cell of a trace."""
        view = self._view
        if view is not None and view.version != view.aliases.version:
            refresh(self)
        return self._node

    def _through_base(self) -> Node | None:
        """The node of a view as a movement of its base's node; None for a tensor that is no view."""
        base = base_of(self)
        if base is None:
            return None
        self._requires_grad_now()
        return self._view.derive(base)  # type: ignore[union-attr]

    def _requires_grad_now(self) -> bool:
        """Whether it requires grad; a view whose base was written asks its base, without making a node."""
        view = self._view
        if view is not None and view.version != view.aliases.version:
            adopt_flags(self)
        return self._requires_grad

    def _assign(self, node: Node) -> None:
        """Rebind the cell, or for a view its base."""
        if self._view is not None:
            base = base_of(self)
            if base is not None:
                self._assign_base(base, self._view.write(base.node, node), node)
                return
        reference = self._aliases
        if reference is not None and (aliases := reference()) is not None:
            aliases.note_write(self)
        if STATE.trace is not None:
            STATE.trace.write(self, node)
            return
        self._show(node)
        if node.buffer is None:
            key = id(self)
            ASSIGNED[key] = weakref.ref(self, lambda _: ASSIGNED.pop(key, None))
        if self._buffer is not None:
            VERSION.bump()

    def _assign_window(self, assign: Callable[[], Any]) -> None:
        """Call `assign`, which assigns a part of the value. What is assigned again and again is computed on the way, so
        that a Python loop runs one small plan many times; where copying the value costs more than running a plan, less
        often.

        What a gradient may still flow back from waits, as does what was detached from something not computed yet:
        `losses[i] = loss.detach()` is computed with the step that follows.
        """
        count = self._window_writes = self._window_writes + 1
        if count % MAX_DEFERRED_WRITES == 0 and self._is_waiting():
            realize([self])
        assign()
        if count <= MIN_DEFERRED_WRITES or not self._is_waiting():
            return
        node = self._node
        assert node is not None
        if count % min(node.nbytes // BYTES_PER_PLAN_RUN + 1, MAX_DEFERRED_WRITES) == 0 and not _is_detached(node):
            realize([self])

    def _is_waiting(self) -> bool:
        """Whether the value is not computed, though no gradient will flow back from it."""
        node = self._node
        return STATE.trace is None and node is not None and node.buffer is None and not self._needs_history(node)

    def _assign_base(self, base: TensorCell, whole: Node, part: Node) -> None:
        """Rebind the base of this view to `whole`, in which the view is `part`."""
        base._assign(whole)
        if STATE.trace is None or STATE.trace.is_made(self):
            self._owned = None
            self._show(part)
            self._view.version = self._view.aliases.version  # type: ignore[union-attr]

    def _needs_history(self, node: Node) -> bool:
        """Whether a gradient may still flow back from here."""
        return self._requires_grad and not self.is_leaf and not self._consumed and node.buffer is None

    def _settle(self, node: Node) -> None:
        """Once the value is known, forget a history that no gradient will need."""
        if self._node is node and node.op != "buffer" and (not self._requires_grad or self.is_leaf or self._consumed):
            self._node, self._owned = _leaf_of(node) if self._requires_grad else _leaf_in_order(node), None

    def _forget_node(self) -> None:
        """The value is in memory that a compiled function rewrites; views are derived again when they are read."""
        self._node = None
        if self._aliases is not None:
            release_views(self)

    def _form_now(self) -> tuple[tuple[int, ...], DType, Device]:
        """Shape, dtype and device, without making or registering a node."""
        node = self._node if STATE.trace is None else STATE.trace.present(self)
        if node is not None:
            return node.shape, node.dtype, node.device
        assert self._form is not None and self._buffer is not None
        return (*self._form, self._buffer.slab.device)

    # ---- what it is --------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        return Size(self._form_now()[0])

    @property
    def ndim(self) -> int:
        return len(self._form_now()[0])

    @property
    def dtype(self) -> DType:
        return self._form_now()[1]

    @property
    def device(self) -> Device:
        return self._form_now()[2]

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one extent of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self._form_now()[0])

    def __len__(self) -> int:
        shape = self._form_now()[0]
        if not shape:
            raise problem(NoAxesError, "len", "a scalar tensor", "at least one axis", "use numel()")
        return shape[0]

    # ---- values ------------------------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray:
        """The value as a NumPy array that cannot be written to: values do not change. `x.numpy().copy()` can be.

        The memory is shared where it is the host's and large enough to matter, else copied; the array stays valid and
        keeps its value whatever becomes of the tensor. Reading computes; inside weft.compile it raises.
        """
        array = host_array(self, True if self.numel() * self.dtype.itemsize <= MAX_COPIED_BYTES else None)
        array.flags.writeable = False
        return array

    def item(self) -> float | int | bool:
        """The one element as a Python number."""
        if self.numel() != 1:
            raise problem(ShapeError, "item()", f"shape {self.shape}", "one element", "use tolist() or reduce it first")
        return self.numpy().item()

    def tolist(self) -> Any:
        """The value as nested lists of Python numbers."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = host_array(self, copy)
        if dtype is None or array.dtype == dtype:
            return array
        if copy is False:
            given = f"a {self.dtype.name} tensor as {np.dtype(dtype)}, and copy=False"
            raise problem(CopyError, "numpy", given, "the tensor's own dtype", "leave copy away")
        return array.astype(dtype)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The value for another library, without a copy where that can be: `torch.from_dlpack(x)`. It is read-only."""
        from weft.core.interop import to_dlpack

        return to_dlpack(self, max_version, dl_device, copy)  # type: ignore[arg-type]

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.device.kind not in ("cpu", "reference"):
            raise problem(
                DeviceError, "__dlpack__", f"a tensor on {self.device}", "a tensor on the CPU", "use .to('cpu')"
            )
        return 1, 0  # kDLCPU

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise problem(ShapeError, "bool()", f"shape {self.shape}", "one element", "use .any() or .all()")
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.kind not in "iu":
            raise problem(
                DTypeError, "index", f"a {self.dtype.name} tensor as an int", "an integer tensor of one element"
            )
        return int(self.item())

    def __repr__(self) -> str:
        from weft.core.printing import text

        return text(self)
