"""`weft.loop`: recurrences. One iteration is traced once, whatever the length, and becomes the body of a `loop` node.

Tensors that the function uses from outside need not be named: whatever does not depend on the state or on the inputs
of the iteration is computed once, before the loop.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from weft.base import tree
from weft.base.dtypes import DType, promote, uint32
from weft.base.errors import DeviceError, GraphError, RangeError, ShapeError, WeftError, problem
from weft.base.state import STATE
from weft.compiler.trace import Trace
from weft.core.cell import LEAVES
from weft.core.creation import as_tensor
from weft.core.realize import realize
from weft.core.tensor import MAX_DEPTH, Tensor
from weft.grad.engine import history
from weft.graph import build
from weft.graph.body import close, final_state, make_loop, stack
from weft.graph.node import Node, placeholder

_differentiable: weakref.WeakSet[Node] = weakref.WeakSet()  # placeholders that a gradient may flow to


class LoopTrace(Trace):
    """The record of one iteration. What it does not know itself, the trace around it knows, or the tensor."""

    where = "weft.loop"

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if self._outer is not None:
            self._outer.contexts.extend(self.contexts)
            self._outer.modules.update(self.modules)
            self._outer.made_modules.update(self.made_modules)
            self._outer.training_read.update(self.training_read)
            self._outer.module_writes.update(self.module_writes)
        self.contexts = []  # gradients are computed later
        super().__exit__(kind, *rest)

    def read(self, tensor: Any) -> Node:
        """The node of a tensor; one from outside is read as if the loop were not there."""
        if id(tensor) in self.made:
            return tensor._present()
        STATE.trace = self._outer
        try:
            return tensor.node
        finally:
            STATE.trace = self

    def write(self, tensor: Any, node: Node) -> None:
        """Assign a tensor made in this iteration; others would have to change at every iteration."""
        if id(tensor) not in self.made:
            raise problem(
                GraphError, "weft.loop", "an assignment to a tensor from outside the function",
                "a function whose only effect is its results", "make the tensor part of the state",
            )  # fmt: skip
        tensor._node = node

    def has_made(self, module: Any) -> bool:
        """Whether the function, or the one around it, made a module itself."""
        return super().has_made(module) or (self._outer is not None and self._outer.has_made(module))

    def note_write(self, module: Any, name: str) -> None:
        """Remember that a plain attribute of a module is assigned."""
        super().note_write(module, name)
        if self._outer is not None:
            self._outer.note_write(module, name)

    def replace_buffer(self, registry: dict[str, Any], name: str, value: Any) -> None:
        """A buffer of a module lies outside, too."""
        self.write(registry[name], value.node)

    def touch_grad(self, tensor: Any, written: bool = False) -> None:
        if self._outer is not None and id(tensor) not in self.made:
            self._outer.touch_grad(tensor, written)

    def guard(self, read: Callable[[], Any]) -> Any:
        return read() if self._outer is None else self._outer.guard(read)

    def present(self, tensor: Any) -> Node | None:
        if self._outer is None or id(tensor) in self.made:
            return tensor._node
        return self._outer.present(tensor)


def loop(
    fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """Apply `state, y = fn(state, x)` once per time step; returns the last state and all `y` stacked on a first axis.

    `init` and `xs` are tensors or nested tuples, lists and dicts of them; every tensor of `xs` has time as its first
    axis, and `x` is one slice of each. Without `xs` (then `x` is None) give `length`. The state keeps its structure,
    shapes and dtypes. `reverse` goes from the last time step to the first; `ys[t]` still belongs to `xs[t]`. A loop of
    length 0 returns `init` and empty `ys`.

    `fn` runs once, on placeholders, so it may not look at values. Tensors from outside are found by themselves and
    get gradients like `init` and `xs`. Random draws inside differ from step to step.

    Sequences of different lengths in one batch: carry the old state on where a sequence has ended.

    >>> lengths, x = weft.tensor([1, 3]), weft.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    >>> def step(total, now):
    ...     t, x = now
    ...     total = weft.where(t < lengths, total + x, total)
    ...     return total, total
    >>> total, totals = weft.loop(step, weft.zeros(2), (weft.arange(3), x))
    >>> total
    tensor([1., 6.])
    """
    first, structure = tree.flatten(init)
    first = [_tensor("init", value) for value in first]
    given, x_structure = ([], None) if xs is None else tree.flatten(xs)
    given = [_tensor("xs", value) for value in given]
    length = _check_length(given, length)
    device = _find_device([*first, *given])
    iteration = _Iteration(fn, first, structure, given, x_structure)
    if iteration.dtypes != [value.dtype for value in first]:  # once more, from a state that holds what it computes
        wide = [value.to(dtype) for value, dtype in zip(first, iteration.dtypes, strict=True)]
        return loop(fn, tree.unflatten(structure, wide), xs, length, reverse)
    iteration.check_escapes()
    ys = iteration.ys
    if length == 0:
        empty = [None if y is None else Tensor(build.full((0, *y.shape), 0, y.dtype, device)) for y in ys]
        return init, tree.unflatten(iteration.y_structure, empty)
    draws = list(iteration.trace.draws.values())
    body, constants, position = iteration.close([state for _, state, _ in draws])
    streams = [_stream(generator.draw(device, length * count), length, count) for generator, _, count in draws]
    srcs = [*[value.node for value in first], *[value.node for value in given], *streams, *constants]
    node = make_loop(body, srcs, length, reverse)
    requires_grad = any(value.requires_grad for value in (*first, *given)) or _any_requires_grad(constants)
    lasts = [_result(final_state(node, k), requires_grad) for k in range(len(first))]
    stacks = [None if y is None else _result(stack(node, position[y]), requires_grad) for y in ys]
    if node.depth > MAX_DEPTH and STATE.trace is None:
        realize([*lasts, *[value for value in stacks if value is not None]])
    return tree.unflatten(structure, lasts), tree.unflatten(iteration.y_structure, stacks)


class _Iteration:
    """One iteration, traced: its placeholders, the new state, and what it gives."""

    def __init__(
        self, fn: Callable[[Any, Any], Any], first: Sequence[Tensor], structure: Any, given: Sequence[Tensor],
        x_structure: Any,
    ):  # fmt: skip
        """Call `fn` on placeholders for a state like `first` and for slices of `given`, which is nested as
        `x_structure` says, or None."""
        self.trace = LoopTrace(getattr(fn, "__qualname__", repr(fn)))
        outer = STATE.trace
        try:
            with self.trace:
                states = [_make_placeholder(value.shape, value) for value in first]
                slices = [_make_placeholder(value.shape[1:], value) for value in given]
                self._inside, self._steps = [value.node for value in states], [value.node for value in slices]
                x = None if x_structure is None else tree.unflatten(x_structure, slices)
                answer = fn(tree.unflatten(structure, states), x)
                del x
                if not isinstance(answer, tuple) or len(answer) != 2:
                    raise problem(GraphError, "weft.loop", f"a {type(answer).__name__} from the function", "(state, y)")
                self.dtypes = [value.dtype for value in first]  # those that the first state has to have
                if STATE.autocast is not None:
                    answer, self.dtypes = _autocast_states(answer, structure, states)
                results, others, self.y_structure = _check_answer(answer, structure, states)
                self._new_states = [value.node for value in results]
                self.ys = [None if value is None else value.node for value in others]
        finally:  # an interrupt may have come before `__exit__`
            STATE.trace = outer
        self._tensors = [*states, *slices, *results, *others]

    def check_escapes(self) -> None:
        """An error where a tensor of the iteration was stored outside the function."""
        self.trace.check_escapes({id(value) for value in self._tensors})
        self._tensors = []

    def close(self, draw_states: Sequence[Node]) -> Any:
        """The body of the loop, the nodes from outside that it reads, and which result each y is."""
        inputs = [*self._steps, *draw_states]
        return close(self._inside, inputs, self._new_states, [y for y in self.ys if y is not None])


def _tensor(who: str, value: Any) -> Tensor:
    try:
        return as_tensor(value)
    except (WeftError, TypeError, ValueError):
        expected = "tensors, or tuples, lists and dicts of them"
        raise problem(GraphError, "weft.loop", f"a {type(value).__name__} in {who}", expected) from None


def _check_length(given: Sequence[Tensor], length: int | None) -> int:
    if any(not value.shape for value in given):
        raise problem(ShapeError, "weft.loop", "a scalar in xs", "tensors with time as first axis", "use init for it")
    found = sorted({value.shape[0] for value in given})
    if len(found) > 1:
        raise problem(ShapeError, "weft.loop", f"xs with first axes of {found}", "one length", "cut or pad them")
    if length is None:
        if not found:
            raise problem(RangeError, "weft.loop", "neither xs nor a length", "one of them", "pass length=")
        return found[0]
    if length < 0:
        raise problem(RangeError, "weft.loop", f"length={length}", "at least 0")
    if found and found[0] != length:
        raise problem(ShapeError, "weft.loop", f"length={length} and xs of length {found[0]}", "the same length")
    return length


def _find_device(tensors: Sequence[Tensor]) -> Any:
    devices = {value.device for value in tensors}
    if not devices:
        raise problem(GraphError, "weft.loop", "no tensor in init and xs", "at least one", "use tensors for the state")
    if len(devices) > 1:
        given = f"tensors on {', '.join(sorted(map(str, devices)))}"
        raise problem(DeviceError, "weft.loop", given, "one device", "move them with .to(device)")
    return devices.pop()


def _make_placeholder(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A placeholder for the state, or for a slice, of one iteration."""
    node = placeholder(shape, like.dtype, like.device)
    requires_grad = like.dtype.kind == "f" and STATE.grad_enabled
    if requires_grad:
        _differentiable.add(node)
    return Tensor(node, requires_grad, is_leaf=False)


def _check_answer(
    answer: tuple, structure: Any, states: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor | None], Any]:
    """The new state's tensors, those of y, and y's structure, checked."""
    returned, new_structure = tree.flatten(_align_keys(answer[0], structure))
    if new_structure != structure:
        raise problem(
            GraphError, "weft.loop", "a new state of another structure than the old one",
            "the same nesting of tuples, lists and dicts", "return the state as it came",
        )  # fmt: skip
    results = [_tensor("the new state", value) for value in returned]
    for number, (old, new) in enumerate(zip(states, results, strict=True)):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise problem(
                ShapeError, "weft.loop",
                f"a state that was {old.dtype.name}{list(old.shape)} and is {new.dtype.name}{list(new.shape)} after one"
                f" iteration (number {number})",
                "shape and dtype that stay", "cast or broadcast init first",
            )  # fmt: skip
    leaves, y_structure = tree.flatten(answer[1])
    others = [None if value is None else _tensor("y", value) for value in leaves]
    return results, others, y_structure


def _autocast_states(answer: tuple, structure: Any, states: Sequence[Tensor]) -> tuple[tuple, list[DType]]:
    """Under autocast an iteration may compute its state in another float dtype than it came in: `answer` with states
    that are no wider than they came, and the dtypes that the first state has to have so that they keep theirs."""
    returned, new_structure = tree.flatten(_align_keys(answer[0], structure))
    if new_structure != structure or any(not isinstance(value, Tensor) for value in returned):
        return answer, [state.dtype for state in states]
    dtypes = []
    for number, (old, new) in enumerate(zip(states, returned, strict=True)):
        if old.dtype.kind == new.dtype.kind == "f" and old.dtype is not new.dtype:
            dtypes.append(promote(old.dtype, new.dtype) or old.dtype)
            returned[number] = new.to(old.dtype)
        else:
            dtypes.append(old.dtype)
    return (tree.unflatten(structure, returned), answer[1]), dtypes


def _align_keys(value: Any, structure: Any) -> Any:
    """`value` with the keys of its dicts in the order of those in `structure`, where they are the same keys."""
    if isinstance(structure, dict) and isinstance(value, dict) and value.keys() == structure.keys():
        return {key: _align_keys(value[key], inner) for key, inner in structure.items()}
    if isinstance(structure, (tuple, list)) and type(value) is type(structure) and len(value) == len(structure):
        parts = [_align_keys(part, inner) for part, inner in zip(value, structure, strict=True)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _stream(drawn: tuple[Node, int], length: int, count: int) -> Node:
    """The state of a random generator at each iteration, [length, 2]: (key, base + start + iteration * count)."""
    state, start = drawn
    flat = (2 * length,)  # one axis, so that a kernel is for any length
    position = build.iota(flat, 0, state.device)
    offset = build.mul(build.binary("mod", position, 2), build.add(build.mul(build.div(position, 2), count), start))
    states = build.reshape(build.expand_to(state, (length, 2)), flat)
    return build.reshape(build.add(states, build.cast(offset, uint32)), (length, 2))


def _any_requires_grad(nodes: Sequence[Node]) -> bool:
    for node in history(nodes):
        owner = LEAVES.get(node)
        tensor = owner() if owner is not None else None
        if (tensor is not None and tensor._requires_grad) or node in _differentiable:
            return True
    return False


def _result(node: Node, requires_grad: bool) -> Tensor:
    requires_grad = requires_grad and node.dtype.kind == "f"
    if requires_grad and not STATE.grad_enabled:
        node, requires_grad = build.stop_gradient(node), False
    return Tensor(node, requires_grad, is_leaf=not requires_grad)
