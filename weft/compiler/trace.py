"""Trace: what a function did while `weft.compile` watched it.

A tensor that existed before is a *cell*: its first read makes a placeholder, every assignment is remembered, and the
function's effect is "new values for these cells". The trace never touches the cells themselves, so a function that
raises half-way leaves everything as it was.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

from weft.base.dtypes import uint32
from weft.base.errors import GraphError, problem
from weft.base.state import STATE
from weft.graph.build import variable
from weft.graph.node import Node, placeholder
from weft.graph.numbers import Tape


class Cell:
    """One tensor from outside: its placeholder, its present node, and whether it was assigned."""

    __slots__ = ("node", "placeholder", "tensor", "written")

    def __init__(self, tensor: Any, node: Node):
        self.tensor = tensor
        self.placeholder = node
        self.node = node
        self.written = False


class Trace:
    """The record of one run of a function with placeholders."""

    where = "weft.compile"

    def __init__(self, name: str):
        self.name = name
        self.cells: dict[int, Cell] = {}
        self.made: dict[int, weakref.ref] = {}
        self.grads: dict[int, tuple[Any, Any]] = {}  # tensors whose .grad was looked at, and what it was
        self.grads_read: list[tuple[Any, Any]] = []  # those looked at before they were set, and what they were
        self.draws: dict[tuple, tuple[Any, Node, int]] = {}  # generators: state placeholder and number of draws
        self.guards: list[tuple[Callable[[], Any], Any]] = []
        self.views: dict[int, Any] = {}  # views from outside that were read
        self.leaf_views: dict[tuple[int, Node], Node] = {}  # nodes for views that are leaves, by what they show
        self.tape = Tape()  # numbers that differ from call to call
        self.modules: dict[int, Any] = {}  # modules that were called or looked at, by identity
        self.made_modules: dict[int, weakref.ref[Any]] = {}  # those that the function made itself
        self.module_writes: set[tuple[int, str]] = set()  # (identity, attribute) of plain attributes assigned to them
        self.training_read: set[int] = set()  # those of them whose `training` was asked for
        self.buffers: dict[
            tuple[int, str], tuple[dict[str, Any], str, Any]
        ] = {}  # of modules: where, and what was there
        self.origins: Any = None  # `compiler.inspect.origins.Origins` of what is profiled: which module made which node
        self.contexts: list[Any] = []  # of calls with a gradient of their own: what they hold ends with the trace
        self._outer: Any = None
        self._grad_enabled = True
        self._autocast: Any = None

    def __enter__(self) -> Trace:
        self._outer, STATE.trace = STATE.trace, self
        self._grad_enabled, self._autocast = STATE.grad_enabled, STATE.autocast
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        STATE.trace = self._outer
        STATE.grad_enabled = self._grad_enabled  # a replay would not switch it: `set_grad_enabled` ends here
        STATE.autocast = self._autocast
        for context in self.contexts:
            context.__dict__.clear()
        self.restore_buffers()
        if kind is not None:
            self.restore_grads()

    # Called by Tensor while this trace is active.

    def read(self, tensor: Any) -> Node:
        """The node of a tensor: its own if it was made here, else the cell's present value; a view from outside is read
        through its base."""
        cell = self.cells.get(id(tensor))
        if cell is not None:
            return cell.node
        if id(tensor) in self.made:
            return tensor._present()
        if tensor._view is not None:
            node = tensor._through_base()
            if node is not None:
                if id(tensor) not in self.views:
                    self.views[id(tensor)] = tensor
                    self.guard(tensor._requires_grad_now)
                return node
        return self._cell(tensor).node

    def is_made(self, tensor: Any) -> bool:
        """Whether a tensor was made here."""
        return id(tensor) in self.made

    def variable(self, tensor: Any, node: Node) -> Node:
        """A node for a view that is a leaf which requires grad, registered so that `backward()` finds it."""
        key = (id(tensor), node)
        if key not in self.leaf_views:
            self.leaf_views[key] = variable(node)
            tensor._register(self.leaf_views[key])
        return self.leaf_views[key]

    def write(self, tensor: Any, node: Node) -> None:
        """Assign a tensor inside the trace."""
        if id(tensor) in self.made:
            tensor._node = node
            return
        cell = self.cells.get(id(tensor)) or self._cell(tensor)
        cell.node = node
        cell.written = True

    def is_written(self, tensor: Any) -> bool:
        """Whether a tensor from outside was assigned here."""
        cell = self.cells.get(id(tensor))
        return cell is not None and cell.written

    def register_created(self, tensor: Any) -> None:
        """Remember a tensor made here; it may leave only as a result or an assignment."""
        key = id(tensor)
        self.made[key] = weakref.ref(tensor, lambda _: self.made.pop(key, None))

    def touch_grad(self, tensor: Any, written: bool = False) -> None:
        """Remember what `.grad` was before the function looked at it or set it.

        Whether it was None matters only to a function that looked before it set.
        """
        if id(tensor) not in self.made and id(tensor) not in self.grads:
            self.grads[id(tensor)] = (tensor, tensor._grad)
            if not written:
                self.grads_read.append((tensor, tensor._grad))

    def draw(self, generator: Any, device: Any, count: int = 1) -> tuple[Node, int]:
        """The state node and the number of the first of `count` random draws."""
        key = (id(generator), device)
        known = self.draws.get(key)
        state, drawn = (known[1], known[2]) if known else (placeholder((2,), uint32, device), 0)
        self.draws[key] = (generator, state, drawn + count)
        return state, drawn

    def guard(self, read: Callable[[], Any]) -> Any:
        """A value that the function branches on: read it now, and trace again when it changes."""
        value = read()
        self.guards.append((read, value))
        return value

    def present(self, tensor: Any) -> Node | None:
        """The node of a tensor as far as it is known, without making it a cell."""
        cell = self.cells.get(id(tensor))
        return cell.node if cell is not None else tensor._node

    def _cell(self, tensor: Any) -> Cell:
        shape, dtype, device = tensor._form_now()
        cell = self.cells[id(tensor)] = Cell(tensor, placeholder(shape, dtype, device))
        return cell

    def has_made(self, module: Any) -> bool:
        """Whether the function made a module itself."""
        reference = self.made_modules.get(id(module))
        return reference is not None and reference() is module

    def release_modules(self) -> None:
        """Let go of the modules that the function made. Those that nothing else refers to end here: the next call makes
        them anew, and what was assigned to them is no state."""
        for key in self.made_modules:
            self.modules.pop(key, None)
        kept = {key: reference() for key, reference in self.made_modules.items()}
        self.modules.update({key: module for key, module in kept.items() if module is not None})

    def note_write(self, module: Any, name: str) -> None:
        """Remember that a plain attribute of a module is assigned."""
        self.module_writes.add((id(module), name))

    def replace_buffer(self, registry: dict[str, Any], name: str, value: Any) -> None:
        """Let a module have another tensor as its buffer until the trace ends. What was read from it before stays what
        it was, as it does without a trace."""
        self.buffers.setdefault((id(registry), name), (registry, name, registry[name]))
        dict.__setitem__(registry, name, value)

    def first_buffer(self, registry: dict[str, Any], name: str) -> Any:
        """What a buffer was before the function replaced it."""
        _, _, first = self.buffers.get((id(registry), name), (registry, name, registry[name]))
        return first

    def restore_buffers(self) -> list[tuple[str, Any, Any]]:
        """Give modules their buffers back; returns for each its name, itself and what the function put in its place."""
        replaced = [(name, first, registry[name]) for registry, name, first in self.buffers.values()]
        for registry, name, first in self.buffers.values():
            dict.__setitem__(registry, name, first)
        self.buffers = {}
        return replaced

    def restore_grads(self) -> None:
        for tensor, grad in self.grads.values():
            tensor._grad = grad

    def check_escapes(self, allowed: set[int]) -> None:
        """Raise if a tensor made here is still reachable although it was neither returned nor assigned.

        What leaves is a value of its own: the tensors that it was a view of in here end with the trace.
        """
        for key in allowed:
            reference = self.made.get(key)
            tensor = None if reference is None else reference()
            if tensor is not None:
                tensor._view = None
            del tensor
        if not any(key not in allowed for key in self.made):
            return
        gc.collect()
        for key, reference in list(self.made.items()):
            tensor = reference()
            if tensor is not None and key not in allowed:
                holders = [type(holder).__name__ for holder in gc.get_referrers(tensor)]
                shape, dtype, _ = tensor._form_now()
                del tensor
                raise problem(
                    GraphError, f"{self.where}({self.name})",
                    f"a tensor of shape {shape} and {dtype} made inside the function that is still held outside it"
                    f" (by a {', '.join(holders[:3]) or 'reference'})",
                    "tensors made inside to be returned or assigned to a tensor from outside",
                    "return it, or keep it with `cell.copy_(value)` on a tensor made before",
                )  # fmt: skip
