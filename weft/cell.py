"""The cell under a tensor: which node holds its value now, how that changes, and how the value is read.

A tensor is read by computing its node, and assigned by rebinding to another node. A leaf that requires grad is
registered with its node whenever it is used, so that `backward()` finds it. A view is read through its base where that
was written, and assigned by assigning its base (`weft.views`). While `weft.compile` traces, the trace decides both.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from weft.backends.base import Buffer, Device
from weft.dtypes import DType
from weft.errors import CopyError, DeviceError, DTypeError, GraphError, NoAxesError, ShapeError, StorageError, problem
from weft.graph import build
from weft.graph.body import together
from weft.graph.layout import permuted
from weft.graph.node import Node, leaf, toposort
from weft.graph.primitives import PRIMITIVES, results_of
from weft.references import count_references
from weft.size import Size
from weft.state import STATE, VERSION
from weft.views import View, adopt_flags, base_of, refresh, release_views

LEAVES: weakref.WeakKeyDictionary[Node, weakref.ref[Any]] = weakref.WeakKeyDictionary()
# Kinds of nodes that are worth computing once.
HEAVY = frozenset({
    "dot", "conv", "template", "loop", "pick", "scan", "sort", "put", "scatter", "segment", "reduce", "fold",
})  # fmt: skip
FEW = 8  # operations in a row that are computed again rather than stored
VIEWS = ("reshape", "permute", "expand", "slice")
FEW_WRITES = 4  # first assignments to parts of a tensor, which wait until it is read
MOST_WRITES = 32  # assignments to parts of a tensor that wait at most
COPIED_BYTES = 1 << 18  # what is copied in about the time that it takes to run a plan
SMALL = 1024  # bytes up to which a copy is cheaper than memory that stays in use
_consumed: list[weakref.ref[Any]] = []
_assigned: dict[int, weakref.ref[Any]] = {}  # cells assigned in place whose value was not computed yet
_companions: weakref.WeakKeyDictionary[Node, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()  # `compute_with`


def remember_consumed(tensor: TensorCell) -> None:
    """Note that `backward()` has used up the history of `tensor`, whose value may still be wanted."""
    tensor._consumed = True
    if STATE.trace is None:
        if tensor._node is not None and tensor._node.buffer is not None:
            tensor._settle(tensor._node)
        _consumed[:] = [ref for ref in _consumed if ref() is not None]
        _consumed.append(weakref.ref(tensor))


def take_consumed() -> list[Any]:
    """The live tensors whose history a `backward()` used up and whose value nobody has read yet; the list is emptied.

    An optimizer evaluates them together with its update, so that reading the loss afterwards computes nothing twice.
    """
    alive = [tensor for ref in _consumed if (tensor := ref()) is not None]
    _consumed.clear()
    return [tensor for tensor in alive if tensor._node is not None and tensor._node.buffer is None]


def compute_with(cells: Iterable[TensorCell], value: TensorCell) -> None:
    """Let `cells`, which were assigned in place, be computed together with `value`, or with what is made of it.

    For state that nobody reads in a training loop, such as running statistics: it would wait for many steps, and keep
    everything that it was made of.
    """
    if STATE.trace is None and value._node is not None and value._node.buffer is None:
        _companions.setdefault(value._node, []).extend([weakref.ref(cell) for cell in cells])


def evaluate(tensors: Iterable[TensorCell]) -> None:
    """Compute the values of several tensors as one program: `weft.eval(a, b)`.

    Computed with them: cells that were assigned in place and lie on the way, or belong to it (`compute_with`); below a
    tensor that `backward()` may still be called on, the values that its gradient will read; and what took more than a
    little arithmetic and somebody else holds. So nothing is computed twice.
    """
    tensors = list(tensors)
    if STATE.trace is not None:
        raise inside_compile("eval()")
    nodes = [tensor.node for tensor in tensors]
    waiting = [node for node in nodes if node.buffer is None]
    if waiting:
        from weft.compiler.evaluate import evaluate as compute  # the compiler is loaded when a value is first needed

        cells = _assigned_below(waiting)
        tensors += cells
        nodes += [cell._node for cell in cells]
        waiting += [cell._node for cell in cells]
        later = [node for tensor, node in zip(tensors, nodes, strict=True) if tensor._needs_history(node)]
        compute(waiting, [*needed_later(later), *together(waiting), *_below_permutes(waiting), *held(waiting)])
    for tensor, node in zip(tensors, nodes, strict=True):
        tensor._settle(node)


def _assigned_below(roots: list[Node]) -> list[Any]:
    """Cells that were assigned in place and lie on the way to `roots`, or are computed with something that does; from
    now on they count as computed."""
    if not _assigned:
        return []
    on_the_way = set(toposort(roots))
    if _companions:
        nodes = [node for node in list(_companions) if node in on_the_way]
        taken = [cell for node in nodes for ref in _companions.pop(node, ()) if (cell := ref()) is not None]
        roots = [*roots, *[cell._node for cell in taken if id(cell) in _assigned]]
        on_the_way = set(toposort(roots)) if taken else on_the_way
    references = list(_assigned.values())  # at once: other threads assign, too
    cells = [cell for ref in references if (cell := ref()) is not None and cell._node in on_the_way]
    for cell in cells:
        _assigned.pop(id(cell), None)
    return cells


def _known(node: Node) -> Node:
    """A leaf with the value of `node`."""
    return leaf(node.buffer, node.shape, node.dtype, node.device)


def _known_in_order(node: Node) -> Node:
    """`_known`; but a permuted value stays a permute of what lies below it, so that sums over it keep their order."""
    if node.op != "permute" or node.srcs[0].buffer is None:
        return _known(node)
    known = permuted(_known(node.srcs[0]), node.attrs[0])
    known.buffer = node.buffer
    return known


def _below_permutes(nodes: list[Node]) -> list[Node]:
    """Values that are not computed yet and that `nodes` show in another order."""
    return [node.srcs[0] for node in nodes if node.op == "permute" and node.srcs[0].buffer is None]


def needed_later(roots: list[Node]) -> list[Node]:
    """Uncomputed values below `roots` that a gradient will read: products (and attention) with operands, reductions.

    What a checkpoint covers will be computed again from its inputs.
    """
    found: dict[Node, None] = {}
    proxies: set[Node] = set()  # what only the derivative is taken of
    order = toposort(roots, lambda node: node.buffer is not None or node.op in ("stop_gradient", "checkpoint"))
    inputs = [given for node in order if node.op == "checkpoint" for given in node.attrs[0].inputs]
    if inputs:
        found.update(dict.fromkeys([node for node in inputs if node.buffer is None and node.srcs]))
        found.update(dict.fromkeys(needed_later(inputs)))
    for node in order:
        if node.op == "surrogate":
            proxies.add(node.srcs[1])
        if node.buffer is None and PRIMITIVES[node.op].kind in ("dot", "conv", "template"):
            found.update(dict.fromkeys(results_of(node) or [node]))
            for source in node.srcs:
                source = _under_views(source)
                if source.buffer is None and source.srcs:
                    found[source] = None
        elif node.buffer is None and node.op.startswith(("reduce_", "segment_", "scatter_")):
            found[node] = None
        elif node.buffer is None and node.op == "update_slice":
            value = _under_views(node.srcs[1])  # later reads of the window look for it, see `graph.updates`
            if value.buffer is None and value.srcs and 2 * value.size <= node.size:
                found[value] = None
    return [node for node in found if node not in proxies]


def held(roots: list[Node]) -> list[Node]:
    """Values on the way to `roots` that somebody else holds, a tensor or what was not asked for yet, and that are not
    just a few operations on what is computed: from now on they are read. Of what lies inside one operation, such as
    the exponentials of a softmax, only what was dear itself: its gradient computes the rest again.

    Who holds a node is known from the references to it: those beyond what the nodes on the way have.
    """
    order = toposort(roots)
    known = Counter([id(source) for node in order for source in node.srcs])
    known.update({id(root): len(order) for root in roots})
    references = count_references(order)  # before there are names for nodes here
    busy: set[int] = set()  # nodes behind which work waits
    found: list[Node] = []
    for node, count in zip(order, references, strict=True):
        if node.buffer is not None:
            continue
        if node.op == "checkpoint":
            return []  # what it covers is to be forgotten
        others = count > known[id(node)]
        waits = _is_heavy(node) or node.depth > FEW or any(id(source) in busy for source in node.srcs)
        several = PRIMITIVES[node.op].results or node.op == "loop"  # it has no value of its own
        value = _under_views(node)
        if others and waits and not several and (node.shown or value.shown or _is_heavy(value)):
            found.append(value)
        elif waits:
            busy.add(id(node))
    return found


def _is_heavy(node: Node) -> bool:
    return PRIMITIVES[node.op].kind in HEAVY


def _under_views(node: Node) -> Node:
    """The value that a view shows."""
    while node.op in VIEWS and node.buffer is None:
        node = node.srcs[0]
    return node


def _is_detached(update: Node) -> bool:
    """Whether what was written into a window was cut off from a history whose value is not known yet."""
    while update.op in ("permute", "stop_gradient"):
        update = update.srcs[0]
    value = _under_views(update.srcs[1]) if update.op == "update_slice" else update
    detached = value.op == "stop_gradient" and value.buffer is None and value.srcs[0].buffer is None
    return detached and STATE.grad_enabled


def host_array(tensor: TensorCell, copy: bool | None) -> np.ndarray:
    """The value as an array: read-only on the tensor's memory (copy=False, or None where that can be), or on its own.

    Memory that a compiled function rewrites in place is never shared.
    """
    if STATE.trace is not None:
        raise inside_compile("numpy()/item()/bool()")
    while True:
        node = tensor.node
        evaluate([tensor])
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


def inside_compile(who: str) -> Exception:
    """The error for reading a value while a function is traced."""
    given = f"a tensor inside {STATE.trace.where}, where values are not known yet"
    return problem(GraphError, who, given, "only operations on tensors", "return the tensor, or choose with weft.where")


class TensorCell:
    """What every tensor has: a node, flags, and ways to read the value. `Tensor` adds the operations."""

    __slots__ = (
        "__weakref__", "_aliases", "_buffer", "_consumed", "_form", "_grad", "_hooks", "_node", "_owned",
        "_requires_grad", "_view", "_window_writes", "is_leaf", "name", "weak",
    )  # fmt: skip
    # `_hooks` is unset in all tensors but those leaves that have hooks: see `weft.hooks`.

    def __init__(self, node: Node | None, requires_grad: bool = False, is_leaf: bool = True):
        self._node = node
        if node is not None:
            node.shown = True
        self._requires_grad = requires_grad
        self._grad: Any = None
        self._buffer: Buffer | None = None  # set while a compiled function keeps the value in its own storage
        self._form: tuple[tuple[int, ...], DType] | None = None  # shape and dtype of what lies in `_buffer`
        self._consumed = False  # backward() has used up the history
        self._owned: Node | None = None  # the node registered in LEAVES for this tensor
        self._window_writes = 0  # how often a part of the value was assigned
        self._view: View | None = None  # how it follows from its base
        self._aliases: weakref.ref[Any] | None = None  # the views of this base, if there are any
        self.is_leaf = is_leaf
        self.name: str | None = None
        self.weak = False  # takes the dtype of its partner, as Python numbers do
        if STATE.trace is not None:
            STATE.trace.created(self)

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
            node = self._own(node)
        return node

    def _own(self, node: Node) -> Node:
        """Register a node that stands for this leaf alone, making one if the present node is shared."""
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
            aliases.written(self)
        if STATE.trace is not None:
            STATE.trace.write(self, node)
            return
        self._show(node)
        if node.buffer is None:
            key = id(self)
            _assigned[key] = weakref.ref(self, lambda _: _assigned.pop(key, None))
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
        if count % MOST_WRITES == 0 and self._is_waiting():
            evaluate([self])
        assign()
        if count <= FEW_WRITES or not self._is_waiting():
            return
        node = self._node
        assert node is not None
        if count % min(node.nbytes // COPIED_BYTES + 1, MOST_WRITES) == 0 and not _is_detached(node):
            evaluate([self])

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
            self._node, self._owned = _known(node) if self._requires_grad else _known_in_order(node), None

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
        array = host_array(self, True if self.numel() * self.dtype.itemsize <= SMALL else None)
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
        from weft.interop import to_dlpack

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
        from weft.printing import text

        return text(self)
