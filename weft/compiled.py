"""compiled: `weft.compile`. One function becomes one plan that is replayed.

A `Variant` is the function traced under one set of guards. The replay path is short on purpose: compare a version
number and the arguments, put addresses into the slot table, make one native call.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import tree
from weft.backends.base import Buffer, Device, Slab
from weft.compiler import program as programs
from weft.compiler.cells import EXPOSED, private_copy, retire_exposed
from weft.compiler.evaluate import Entry, check_live, entry_for, evaluate, raise_bad_index
from weft.compiler.report import PlanReport
from weft.compiler.trace import Trace
from weft.counting import COUNTERS
from weft.dtypes import DType, float32, float64, uint32
from weft.errors import DeviceError, GraphError, problem
from weft.graph.build import add, cast, eq, iota, mul
from weft.graph.node import Node, leaf, placeholder
from weft.device import default_device
from weft.state import STATE, VERSION
from weft.tensor import Tensor, from_host

STATIC = (int, bool, str, bytes, type(None))


class Output:
    """One returned tensor: its slot, and the tensor handed out last, which is used again if nobody kept it or a view."""

    __slots__ = ("dtype", "holders", "nbytes", "offset", "shape", "slab", "slot", "tensor")

    def __init__(self, node: Node, slot: int, offset: int):
        self.shape, self.dtype, self.nbytes = node.shape, node.dtype, node.nbytes
        self.slot, self.offset = slot, offset
        self.tensor: Any = None
        self.slab: Slab | None = None
        self.holders = 0  # references to the slab when only this function holds it


class Variant:
    """A traced function: its plan and everything that is bound to it."""

    def __init__(self) -> None:
        self.spec: tuple = ()  # forms of the arguments
        self.grad_enabled = True
        self.version = -1
        self.guards: list[tuple[Callable[[], Any], Any]] = []
        self.grads_before: list[tuple[Any, bool]] = []  # (tensor, was .grad None)
        self.grads_after: list[tuple[Any, Any]] = []  # (tensor, .grad to leave behind)
        self.cells: list[tuple[Any, Buffer, int, bool]] = []  # (tensor, memory, slot or -1, written)
        self.arguments: list[tuple[int, int]] = []  # (position among flat arguments, slot)
        self.scalars: list[tuple[int, int]] = []  # (position among flat arguments, index in scalar memory)
        self.scalar_view: np.ndarray | None = None
        self.draws: list[list] = []  # [generator, state buffer, draws per run, host mirror (key, base)]
        self.outputs: list[Output] = []
        self.structure: Any = None
        self.constants: list[Any] = []
        self.single = False
        self.entry: Entry | None = None
        self.device: Device | None = None
        self.table: Any = None
        self.run: Callable[[Any], None] | None = None
        self.keep: list[tuple[Any, tuple]] = []  # captured tensors and the forms that are taken for granted
        self.status: Slab | None = None
        self.retained: list[Any] = []  # memory that must live as long as the variant
        self.fast: list[tuple] | None = None  # (slot, shape, dtype, device, requires_grad) each, if all are tensors


class Compiled:
    """A function compiled by `weft.compile`; call it like the function."""

    def __init__(self, function: Callable, donate: Sequence[int] = ()):
        functools.update_wrapper(self, function)
        self.function = function
        self.name = getattr(function, "__qualname__", repr(function))
        self.variants: list[Variant] = []
        self.last: Variant | None = None
        self.donate = frozenset(donate)
        self.retraces: list[str] = []  # why each trace after the first was made
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if STATE.trace is not None:
            return self.function(*args, **kwargs)  # inside another compiled function this one is part of it
        with self._lock:
            return self._call(args, kwargs)

    def _call(self, args: tuple, kwargs: dict) -> Any:
        variant = self.last
        if variant is not None and not kwargs and variant.version == VERSION.value and not EXPOSED:
            fast = variant.fast
            if fast is not None and len(fast) == len(args) and STATE.grad_enabled is variant.grad_enabled:
                table = variant.table
                for tensor, (slot, shape, dtype, device, requires_grad) in zip(args, fast, strict=True):
                    if type(tensor) is not Tensor or tensor._requires_grad is not requires_grad:
                        break
                    node = tensor._node
                    if node is None or node.shape != shape or node.dtype is not dtype or node.device is not device:
                        break
                    buffer = node.buffer
                    if buffer is None or buffer.slab.pinned or buffer.state != "live":
                        break
                    table[slot] = buffer.slab.pointer + buffer.offset
                else:
                    return self._finish(variant)
        return self._slow(args, kwargs)

    # --- replay ------------------------------------------------------------------------------------------------------

    def _finish(self, variant: Variant) -> Any:
        """Bind outputs, run, and hand out results."""
        table = variant.table
        if variant.draws:
            self._seed(variant)
        for output in variant.outputs:
            tensor = output.tensor
            if (
                tensor is None
                or sys.getrefcount(tensor) > 3
                or sys.getrefcount(tensor._node) > 2
                or sys.getrefcount(output.slab) > output.holders
            ):
                tensor = None
                self._fresh(variant, output)
        variant.run(table)  # type: ignore[misc]
        if variant.status is not None:
            raise_bad_index(variant.device.backend, variant.status, variant.entry.plan)  # type: ignore[union-attr]
        if variant.single:
            return variant.outputs[0].tensor
        return self._unflatten(variant)

    def _fresh(self, variant: Variant, output: Output) -> None:
        """New tensors on new memory for outputs whose last value somebody kept."""
        device = variant.device
        assert device is not None and variant.entry is not None
        slab = device.backend.allocate(variant.entry.plan.slots[output.slot].nbytes)
        variant.table[output.slot] = slab.pointer
        together = [other for other in variant.outputs if other.slot == output.slot]
        for other in together:
            node = leaf(Buffer(slab, other.offset, other.nbytes), other.shape, other.dtype, device)
            other.tensor, other.slab = Tensor(node), slab
            other.holders = 2 * len(together) + 1  # each output and its buffer, and the question itself

    def _unflatten(self, variant: Variant) -> Any:
        values = iter([output.tensor for output in variant.outputs])
        flat = [next(values) if constant is _TENSOR else constant for constant in variant.constants]
        return tree.unflatten(variant.structure, flat)

    def _seed(self, variant: Variant) -> None:
        """Bring the device's random state in line with the generators, and count this run's draws."""
        for record in variant.draws:
            generator, buffer, count, mirror = record
            now = (generator.key, generator.counter)
            if now != mirror:
                state = np.array([generator.key, generator.counter & 0xFFFFFFFF], dtype=np.uint32)
                buffer.slab.device.backend.upload(buffer, state)
            generator.counter += count
            record[3] = (generator.key, generator.counter)

    # --- anything else -----------------------------------------------------------------------------------------------

    def _slow(self, args: tuple, kwargs: dict) -> Any:
        flat, structure = tree.flatten((args, kwargs))
        flat = [_as_argument(value) for value in flat]
        spec = (structure, tuple([_form(value) for value in flat]))
        retire_exposed()
        variant = next((v for v in self.variants if self._matches(v, spec)), None)
        if variant is None:
            if self.last is not None:
                self.retraces.append(self._difference(self.last, spec))
            variant = self._trace(flat, structure, spec)
            self.variants.append(variant)
        self._bind(variant, flat)
        self.last = variant
        result = self._finish(variant)
        self._leave_grads(variant)
        variant.version = VERSION.value
        self._donate_arguments(args)
        return result

    def _matches(self, variant: Variant, spec: tuple) -> bool:
        return (
            variant.spec == spec
            and variant.grad_enabled == STATE.grad_enabled
            and all((tensor._grad is None) == was_none for tensor, was_none in variant.grads_before)
            and all(read() == value for read, value in variant.guards)
            and all(_cell_form(tensor) == form for tensor, form in variant.keep)
        )

    def _difference(self, variant: Variant, spec: tuple) -> str:
        """In words, what keeps a call from using `variant`."""
        if spec[0] != variant.spec[0]:
            return "the arguments have another structure"
        for position, (old, new) in enumerate(zip(variant.spec[1], spec[1], strict=True)):
            if old != new:
                return f"argument {position} was {_words(old)} and is {_words(new)}"
        if variant.grad_enabled != STATE.grad_enabled:
            return f"gradients are {'on' if STATE.grad_enabled else 'off'} now"
        if any((tensor._grad is None) != was_none for tensor, was_none in variant.grads_before):
            return "a .grad that was None is not, or the other way round"
        if any(read() != value for read, value in variant.guards):
            return "a value that the function branches on has changed"
        return "a captured tensor has another shape, dtype, device or requires_grad"

    def _bind(self, variant: Variant, flat: list[Any]) -> None:
        """Put the addresses of arguments and of rebound cells into the slot table."""
        evaluate([flat[position].node for position, _ in variant.arguments])
        for position, slot in variant.arguments:
            buffer = flat[position].node.buffer
            check_live(buffer)
            if buffer.slab.pinned:
                buffer = private_copy(buffer)
                flat[position] = buffer  # keeps the copy alive until the call is done
            variant.table[slot] = buffer.pointer
        for position, index in variant.scalars:
            assert variant.scalar_view is not None
            variant.scalar_view[index] = flat[position]
        for number, (tensor, buffer, slot, written) in enumerate(variant.cells):
            if tensor._node is not None and tensor._node.buffer is not tensor._buffer:
                evaluate([tensor._node])
                if written:  # assigned from outside: the new value goes into the captured place
                    buffer.slab.device.backend.copy(buffer, tensor._node.buffer)
                    tensor._node = None
                else:
                    tensor._buffer = tensor._node.buffer
            if tensor._buffer is not buffer:
                variant.cells[number] = (tensor, tensor._buffer, slot, written)
                if slot >= 0:
                    variant.table[slot] = tensor._buffer.pointer

    def _leave_grads(self, variant: Variant) -> None:
        for tensor, grad in variant.grads_after:
            if tensor._grad is not grad:
                tensor._grad = grad
                VERSION.bump()

    def _donate_arguments(self, args: tuple) -> None:
        for position in self.donate:
            node = args[position]._node
            if node is not None and node.buffer is not None:
                node.buffer.state = f"donated to {self.name}"

    # --- tracing -----------------------------------------------------------------------------------------------------

    def _trace(self, flat: list[Any], structure: Any, spec: tuple) -> Variant:
        COUNTERS.traces += 1
        trace = Trace(self.name)
        variant = Variant()
        variant.spec, variant.grad_enabled = spec, STATE.grad_enabled
        stand_ins: list[Any] = []
        bound: list[tuple[int, Node, bool]] = []  # (position, placeholder, is scalar)
        device = _device_of(flat)
        with trace:
            for position, value in enumerate(flat):
                if isinstance(value, Tensor):
                    stand_in = Tensor._stand_in(value.shape, value.dtype, value.device, value.requires_grad)
                elif isinstance(value, float):
                    stand_in = Tensor._stand_in((), _scalar_dtype(device), device, False, weak=True)
                else:
                    stand_ins.append(value)
                    continue
                bound.append((position, stand_in._node, isinstance(value, float)))
                stand_ins.append(stand_in)
            args, kwargs = tree.unflatten(structure, stand_ins)
            result = self.function(*args, **kwargs)
            returned, variant.structure = tree.flatten(result)
            outputs = [_result(value) if isinstance(value, Tensor) else None for value in returned]
            kept = self._kept_grads(trace)
            kept_nodes = [grad.node for _, grad, made in kept if made]
        variant.constants = [value if node is None else _TENSOR for value, node in zip(returned, outputs, strict=True)]
        allowed = {id(value) for value in returned} | {id(grad) for _, grad, made in kept if made}
        del args, kwargs, result, stand_ins[:]
        stand_in = None
        result_nodes = [node for node in outputs if node is not None]
        try:
            trace.check_escapes(allowed)
            variant.single = len(returned) == 1 and isinstance(returned[0], Tensor) and tree.is_leaf(variant.structure)
            self._build(variant, trace, bound, result_nodes, kept, kept_nodes)
        except BaseException:
            trace.restore_grads()
            raise
        return variant

    def _kept_grads(self, trace: Trace) -> list[tuple[Any, Any, bool]]:
        """(tensor, its .grad at the end, whether that grad was made in the trace) for every .grad that changed."""
        kept = []
        for tensor, before in trace.grads.values():
            if tensor._grad is not before:
                made = tensor._grad is not None and id(tensor._grad) in trace.made
                kept.append((tensor, tensor._grad, made))
        return kept

    def _build(self, variant: Variant, trace: Trace, bound: list, results: list[Node], kept: list, kept_nodes: list[Node]) -> None:
        """Allocate what the variant owns, compile the program and fill the slot table."""
        cells = list(trace.cells.values())
        device = _one_device(self.name, [*results, *kept_nodes, *[cell.placeholder for cell in cells], *[n for _, n, _ in bound]])
        backend = device.backend
        variant.device = device
        variant.guards = trace.guards
        variant.grads_before = trace.grads_read
        buffers = self._capture(cells)
        # A cell that is only read may be rebound from outside, so its address is looked up at each call.
        bindings = {cell.placeholder: buffers[cell] if buffers[cell].slab.pinned else None for cell in cells}
        for _, node, _scalar in bound:
            bindings[node] = None
        scalar_slab = self._scalar_memory(variant, bound, bindings, backend)
        outputs = list(results)
        targets: dict[int, Node] = {}
        for cell in cells:
            if cell.written:
                targets[len(outputs)] = cell.placeholder
                outputs.append(cell.node)
        self._draw_state(variant, trace, bindings, outputs, targets, backend)
        grad_buffers = self._grad_memory(variant, kept, kept_nodes, bindings, outputs, targets, backend)
        if not outputs:
            raise problem(GraphError, f"weft.compile({self.name})", "a function that returns no tensor and assigns none", "an effect", "return a tensor")
        located = programs.locate([*outputs, *targets.values()], bindings)
        program, leaf_buffers = programs.build(outputs, located, targets)
        entry = variant.entry = entry_for(program, device)
        self._fill_table(variant, entry, program, leaf_buffers, bound, cells, buffers, results, backend)
        variant.grads_after = [(tensor, grad) for tensor, grad, _ in kept]
        variant.keep = [(cell.tensor, _cell_form(cell.tensor)) for cell in cells]
        variant.retained += [scalar_slab, grad_buffers, leaf_buffers]

    def _capture(self, cells: list) -> dict[Any, Buffer]:
        """Give every cell a fixed place. Cells that are written move, slab by slab, into memory that nobody else holds."""
        evaluate([cell.tensor._node for cell in cells if cell.tensor._node is not None])
        moving: list[Any] = []
        for cell in cells:
            tensor = cell.tensor
            if tensor._buffer is None:
                tensor._form = tensor._form_now()[:2]
                tensor._buffer = tensor._node.buffer
            if cell.written and not tensor._buffer.slab.pinned:
                moving.append(tensor)
        for tensors in _apart(moving):
            slab, start = tensors[0]._buffer.slab, tensors[0]._buffer.offset
            stop = tensors[-1]._buffer.offset + tensors[-1]._buffer.nbytes
            backend = slab.device.backend
            own = backend.allocate(stop - start)
            own.pinned = True
            backend.copy(Buffer(own, 0, stop - start), Buffer(slab, start, stop - start))
            for tensor in tensors:
                tensor._buffer = Buffer(own, tensor._buffer.offset - start, tensor._buffer.nbytes)
            VERSION.bump()
        for cell in cells:
            if cell.tensor._buffer.slab.pinned:
                cell.tensor._node = None
        return {cell: cell.tensor._buffer for cell in cells}

    def _scalar_memory(self, variant: Variant, bound: list, bindings: dict, backend: Any) -> Slab | None:
        count = sum(is_scalar for _, _, is_scalar in bound)
        if not count:
            return None
        dtype = next(node.dtype for _, node, is_scalar in bound if is_scalar)
        slab = backend.allocate(dtype.itemsize * count)
        variant.scalar_view = backend.view(Buffer(slab, 0, dtype.itemsize * count), dtype)
        for position, node, is_scalar in bound:
            if is_scalar:
                index = len(variant.scalars)
                variant.scalars.append((position, index))
                bindings[node] = Buffer(slab, dtype.itemsize * index, dtype.itemsize)
        return slab

    def _draw_state(self, variant: Variant, trace: Trace, bindings: dict, outputs: list, targets: dict, backend: Any) -> None:
        """Random state lives on the device; the plan advances it by the number of draws."""
        for generator, state, count in trace.draws.values():
            slab = backend.allocate(8)
            slab.pinned = True
            buffer = Buffer(slab, 0, 8)
            bindings[state] = buffer
            step = mul(cast(eq(iota((2,), 0, state.device), 1), uint32), count)
            targets[len(outputs)] = state
            outputs.append(add(state, step))
            variant.draws.append([generator, buffer, count, None])

    def _grad_memory(self, variant: Variant, kept: list, nodes: list, bindings: dict, outputs: list, targets: dict, backend: Any) -> list:
        """A gradient that stays behind becomes a cell: the tensor keeps its identity, its memory is rewritten."""
        owned = []
        made = [grad for _, grad, is_made in kept if is_made]
        for grad, node in zip(made, nodes, strict=True):
            slab = backend.allocate(node.nbytes)
            slab.pinned = True
            buffer = Buffer(slab, 0, node.nbytes)
            stand_for = placeholder(node.shape, node.dtype, node.device)
            bindings[stand_for] = buffer
            targets[len(outputs)] = stand_for
            outputs.append(node)
            grad._form, grad._buffer, grad._node = (node.shape, node.dtype), buffer, None
            owned.append(buffer)
        return owned

    def _fill_table(self, variant, entry, program, leaf_buffers, bound, cells, buffers, results, backend) -> None:
        plan = entry.plan
        table = variant.table = backend.slot_table(len(plan.slots) + 1)
        slot_of = {node: slot for slot, node in enumerate(program.leaves)}
        for slot, buffer in enumerate(leaf_buffers):
            if buffer is not None:
                table[slot] = buffer.pointer
        for cell in cells:
            if cell.placeholder in slot_of:
                table[slot_of[cell.placeholder]] = buffers[cell].pointer
        variant.arguments = [(position, slot_of[node]) for position, node, is_scalar in bound if not is_scalar and node in slot_of]
        variant.cells = [(cell.tensor, buffers[cell], slot_of.get(cell.placeholder, -1), cell.written) for cell in cells]
        arena = backend.allocate(plan.slots[-2].nbytes)
        status = backend.allocate(max(plan.slots[-1].nbytes, 4))
        table[len(plan.slots) - 2], table[len(plan.slots) - 1] = arena.pointer, status.pointer
        if plan.sites:
            backend.clear(Buffer(status, 0, 4 * len(plan.sites)))
            variant.status = status
        variant.outputs = [Output(node, *place) for node, place in zip(results, entry.outputs, strict=True)]
        variant.run = entry.executable.run
        variant.retained += [arena, status]
        slots = dict(variant.arguments)
        forms = variant.spec[1]
        if all(form[0] == "tensor" for form in forms) and _is_flat(variant.spec[0], len(forms)):
            spare = len(plan.slots)  # where the address of an argument goes that the program does not read
            if not self.donate:
                variant.fast = [(slots.get(k, spare), *form[1:]) for k, form in enumerate(forms)]

    # --- looking inside ----------------------------------------------------------------------------------------------

    @property
    def plan(self) -> PlanReport:
        """The plan of the last call: `kernels()`, `memory()`, and `print(step.plan)`."""
        if self.last is None or self.last.entry is None:
            raise problem(GraphError, f"{self.name}.plan", "a function that was not called yet", "a traced function", "call it once")
        return PlanReport(self.last.entry.plan, self.last.device)


class _Marker:
    """Stands in a result's structure where a tensor goes."""


_TENSOR = _Marker()


def compile(function: Callable | None = None, *, donate: Sequence[int] = ()) -> Any:  # noqa: A001
    """Compile a function of tensors into one replayed plan.

    Tensors that the function reads from outside are captured as cells; what it assigns is written in place. Float
    arguments are device scalars, int, bool and str arguments are constants of the plan. `donate` names positions of
    arguments whose memory may not be used after the call. Results carry no history: differentiate inside.

    >>> import weft
    >>> w = weft.ones(3)
    >>> @weft.compile
    ... def step(x):
    ...     w.add_(x)
    ...     return w.sum()
    >>> step(weft.ones(3)).item(), step(weft.ones(3)).item()
    (6.0, 9.0)
    """
    if function is None:
        return functools.partial(compile, donate=donate)
    return Compiled(function, donate)


# --- helpers ---------------------------------------------------------------------------------------------------------


def _as_argument(value: Any) -> Any:
    """Tensors for NumPy arrays, Python numbers for NumPy's; a tensor whose memory was given away raises here."""
    if isinstance(value, np.ndarray):
        return Tensor(from_host(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor) and value._node is not None and value._node.buffer is not None:
        check_live(value._node.buffer)
    return value


def _form(value: Any) -> tuple:
    if isinstance(value, Tensor):
        shape, dtype, device = value._form_now()
        return ("tensor", shape, dtype, device, value.requires_grad)
    if isinstance(value, float):
        return ("float",)
    if isinstance(value, STATIC):
        return ("static", type(value), value)
    raise problem(
        GraphError, "weft.compile", f"an argument of type {type(value).__name__}",
        "tensors, NumPy arrays, numbers, strings, None, and tuples, lists or dicts of them",
        "close over other objects instead of passing them",
    )  # fmt: skip


def _cell_form(tensor: Tensor) -> tuple:
    """What a variant takes for granted of a captured tensor."""
    return (*tensor._form_now(), tensor._requires_grad)


def _words(form: tuple) -> str:
    """A form of an argument for people."""
    if form[0] == "tensor":
        return f"{form[2].name}{list(form[1])} on {form[3]}" + (" with grad" if form[4] else "")
    return "a float" if form[0] == "float" else repr(form[2])


def _apart(tensors: list[Any]) -> list[list[Any]]:
    """Tensors grouped so that those of a group lie side by side in one slab, without overlap, in order of address."""
    groups: list[list[Any]] = []
    waiting = sorted(tensors, key=lambda tensor: (id(tensor._buffer.slab), tensor._buffer.offset))
    while waiting:
        group, rest = [waiting[0]], []
        for tensor in waiting[1:]:
            last = group[-1]._buffer
            same = tensor._buffer.slab is last.slab
            if same and tensor._buffer.offset >= last.offset + last.nbytes and last.nbytes:
                group.append(tensor)
            else:
                rest.append(tensor)
        groups.append(group)
        waiting = rest
    return groups


def _scalar_dtype(device: Device) -> DType:
    """What a float argument is held in: as precise as the device has it, since it takes its partner's dtype anyway."""
    return float64 if float64 in device.dtypes else float32


def _result(tensor: Tensor) -> Node:
    """The node of a result; a number that met no tensor becomes float32, as it would have."""
    return cast(tensor.node, float32) if tensor.weak and tensor.dtype is float64 else tensor.node


def _is_flat(structure: Any, count: int) -> bool:
    """Whether the arguments were `count` plain positional values."""
    return structure == tree.flatten((tuple(range(count)), {}))[1]


def _device_of(flat: list[Any]) -> Device:
    from weft.device import default_device
    return next((value.device for value in flat if isinstance(value, Tensor)), default_device())


def _one_device(name: str, nodes: list[Node]) -> Device:
    devices = {node.device for node in nodes}
    if len(devices) > 1:
        raise problem(
            DeviceError, f"weft.compile({name})", f"tensors on {', '.join(sorted(map(str, devices)))}", "one device", "move them with .to(device)"
        )
    return devices.pop()
