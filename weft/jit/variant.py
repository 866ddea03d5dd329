"""Variant: a function traced under one set of guards, with its plan, its memory and its slot table.

`weft.jit.variant_builder` makes one from a finished trace. What a replay needs is prepared in it: `Compiled` only
compares, fills in addresses and runs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.base import tree
from weft.base.dtypes import DType
from weft.base.errors import OutOfMemoryError
from weft.base.locks import WriteGroup, call_holding, locks_of, new_lock
from weft.base.state import SETTINGS, STATE, VERSION
from weft.compiler import program as programs
from weft.compiler.cells import groups_of, retire, steady_copy, write_back
from weft.compiler.memory.report import too_large
from weft.compiler.realize import Entry, check_live, realize_nodes
from weft.core.tensor import Tensor
from weft.jit.result_memory import ResultMemory
from weft.plan.device import Buffer, Device, HostWords, Slab

if TYPE_CHECKING:
    from weft.jit.guards import Guards
    from weft.jit.inputs import Inputs


class Variant:
    """What one trace became. `spec` is (structure, forms) of the arguments; lists are in the order of the trace."""

    def __init__(
        self, name: str, spec: tuple, captured: Guards, inputs: Inputs, device: Device, entry: Entry, table: Any
    ):
        self.name = name
        self.spec = spec
        self.captured = captured  # what the function reads from Python's own variables
        self.numbers = inputs or None  # those that the host computes before each run
        self.check = captured.check if captured.guards or captured.once else None
        self.is_fresh = True  # no run was made yet: what the function assigns, its trace has assigned
        self.device = device
        self.entry = entry
        self.table = table
        self.run: Callable[[Any], None] = entry.executable.run
        self.watch: Callable[[Slab, Any], None] = device.backend.watch
        self.grad_enabled = STATE.grad_enabled
        self.autocast = STATE.autocast
        self.precision = programs.product_precision(device)
        self.default_dtype = SETTINGS.default_dtype
        self.version = -1
        self.guards: list[tuple[Callable[[], Any], Any]] = []
        self.grads_before: list[tuple[Any, Any]] = []  # (tensor, its .grad as the function saw it first)
        self.grads_after: list[tuple[Any, Any]] = []  # (tensor, .grad to leave behind)
        self.grads_made: list[Any] = []  # those of them whose memory the plan rewrites
        self.cells: list[tuple[Any, Buffer, int, bool]] = []  # (tensor, memory, slot or -1, written)
        self.forms: list[tuple[Any, tuple]] = []  # captured tensors and what is taken for granted of them
        self.arguments: list[tuple[int, int]] = []  # (position among flat arguments, slot)
        self.words: HostWords | None = None  # what the host writes before each run: numbers, states of generators
        self.draws: list[tuple[Any, np.ndarray, int]] = []  # (generator, memory of its state, draws per run)
        # (memory, or None where it is that of output number `first`, first, offset, nbytes, shape, dtype) each
        self.outputs: list[tuple[ResultMemory | None, int, int, int, tuple[int, ...], DType]] = []
        # Locked from the check of the version to the end of a run: that of the first group, and those of the others.
        self.lock: Any = new_lock()
        self.other_locks: tuple[Any, ...] = ()
        self.groups: set[WriteGroup] = set()  # of the memory that a run writes in place, or reads while others write it
        self.results: list[Any] = []  # leaves of the result: constants, numbers, and TENSOR where an output goes
        self.structure: Any = None
        self.single = False  # the result is one tensor
        self.status: Slab | None = None
        # For each argument of a plain call (slot, shape, dtype, device, requires_grad), or for one that is no tensor
        # (None, type, value, whether any value will do, None).
        self.fast: list[tuple] | None = None
        self.leaf_buffers: list[Buffer | None] = []  # the memory of each leaf of the program; None for an argument
        self.program: programs.Program | None = None  # kept only for `testing.verify`
        self.retained: list[Any] = []  # memory that must live as long as the variant

    def matches(self, spec: tuple, flat: list[Any]) -> bool:
        """Whether every guard holds; if so, the inputs of the plan are written."""
        return (
            self.spec[0] == spec[0]
            and all(map(_fits, self.spec[1], spec[1]))
            and self.grad_enabled == STATE.grad_enabled
            and self.autocast is STATE.autocast
            and self.precision == programs.product_precision(self.device)
            and self.default_dtype is SETTINGS.default_dtype
            and self.grads_match()
            and all(read() == value for read, value in self.guards)
            and all(cell_form(tensor) == form for tensor, form in self.forms)
            and self.captured.verify()
            and (self.numbers is None or self.numbers.update(flat))
        )

    def replaces(self, other: Variant) -> bool:
        """Whether this variant serves every call that `other` does: the same arguments, of which some are any number
        here, and nothing that depends on the values of numbers."""
        return (
            self.numbers is not None
            and self.numbers.is_general
            and self.spec[0] == other.spec[0]
            and all(map(_fits, self.spec[1], other.spec[1]))
            and self.grad_enabled == other.grad_enabled
            and self.autocast is other.autocast
            and self.precision == other.precision
            and self.default_dtype is other.default_dtype
            and {guard.path for guard in self.captured.guards} <= {guard.path for guard in other.captured.guards}
            and [id(tensor) for tensor, _ in self.forms] == [id(tensor) for tensor, _ in other.forms]
        )

    def assign_effects(self) -> None:
        """Assign what the function assigns to variables, attributes and items that it reads."""
        for guard, value in self.captured.effects:
            guard.put(value if self.numbers is None else self.numbers.value_of(value))
        if self.captured.assigns_to_modules:  # other compiled functions are to look
            current = self.version == VERSION.value
            self.captured.bump_modules()
            if current:
                self.version = VERSION.value

    def undo_effects(self) -> None:
        """What the trace assigned is as it was, since no run follows: the next run assigns it."""
        for guard, _ in reversed(self.captured.effects):
            guard.put(guard.value)
        self.is_fresh = False

    def grads_match(self) -> bool:
        """Whether each .grad that the function looked at is None, or not, as it was then."""
        return all((tensor._grad is None) == (before is None) for tensor, before in self.grads_before)

    def difference(self, spec: tuple, flat: Sequence[Any]) -> str:
        """The first guard that does not hold, in words."""
        if spec[0] != self.spec[0]:
            return "the arguments have another structure"
        for position, (old, new) in enumerate(zip(self.spec[1], spec[1], strict=True)):
            if not _fits(old, new):
                return f"argument {position} was {_describe_form(old)} and is {_describe_form(new)}"
        if self.grad_enabled != STATE.grad_enabled:
            return f"gradients are {'on' if STATE.grad_enabled else 'off'} now"
        if self.autocast is not STATE.autocast:
            return f"it was traced {self.autocast or 'without autocast'} and runs {STATE.autocast or 'without it'}"
        if self.precision != programs.product_precision(self.device):
            return f"the precision of float32 products was {self.precision!r}"
        if self.default_dtype is not SETTINGS.default_dtype:
            return f"the default dtype was {self.default_dtype.name}"
        if not self.grads_match():
            return "a .grad that was None is not, or the other way round"
        if any(read() != value for read, value in self.guards):
            return "a value that the function branches on has changed"
        if any(cell_form(tensor) != form for tensor, form in self.forms):
            return "a captured tensor has another shape, dtype, device or requires_grad"
        reason = self.captured.difference()
        return reason or ("nothing has changed" if self.numbers is None else self.numbers.difference(flat))

    def resolve(self, flat: list[Any]) -> None:
        """Compute what the run will read, and replace each tensor of `flat` by its memory: it is kept until
        the call is done, whatever becomes of the tensor. Called without the lock, as other groups may be read."""
        realize_nodes([flat[position].node for position, _ in self.arguments])
        for position, _ in self.arguments:
            node = flat[position].node
            check_live(node.buffer)
            flat[position] = steady_copy(node)
        for tensor, before in self.grads_before:
            grad = tensor._grad
            if before is not None and grad is not before:  # another gradient: its value moves into the captured one
                before._assign(grad.node)
                tensor._grad = before
        pending = [tensor._node for tensor, _, _, _ in self.cells]
        realize_nodes([node for node in pending if node is not None and node.buffer is None])

    def _relock(self) -> None:
        """Make the locks cover the memory that the captured tensors have now."""
        groups = self._groups_now()
        if groups != self.groups:
            locks = locks_of(groups) or (new_lock(),)
            self.lock, self.other_locks = locks[0], locks[1:]
            self.groups = groups  # last: an interrupt before leaves this to be done

    def _groups_now(self) -> set[WriteGroup]:
        return groups_of(itertools.chain([tensor for tensor, _, _, _ in self.cells], self.grads_made))

    def call_bound(self, flat: list[Any], function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)` with arguments and captured tensors bound, under the locks."""

        def call() -> tuple[bool, Any]:
            return (True, function(*args)) if self._bind(flat) else (False, None)

        while True:
            self._relock()
            is_done, result = call_holding((self.lock, *self.other_locks), call)
            if is_done:
                return result

    def _bind(self, flat: list[Any]) -> bool:
        """Put the addresses of arguments and of rebound cells into the slot table, under the lock. False where another
        thread moved a captured tensor to memory that the lock does not cover."""
        if not self._groups_now() <= self.groups:
            return False
        retire(self.groups)
        if self.numbers is not None and self.is_fresh:  # else `matches` wrote them
            self.numbers.write()
        for position, slot in self.arguments:
            self.table[slot] = flat[position].pointer
        for number, (tensor, buffer, slot, written) in enumerate(self.cells):
            write_back(tensor)
            current = tensor._buffer
            if current is not buffer:
                if current.slab.pinned is not None and current.slab.pinned not in self.groups:
                    return False
                self.cells[number] = (tensor, current, slot, written)
                if slot >= 0:
                    self.table[slot] = current.pointer
        retire(self.groups)  # leaves that the lines above made
        return True

    def send(self) -> None:
        """Put scalars and the generators' present state where the plan reads them, and count this run's draws."""
        assert self.words is not None
        for generator, state, count in self.draws:
            if STATE.generator is not None:
                generator = generator._present()
            state[0], state[1] = generator.key, generator.counter & 0xFFFFFFFF
            generator.counter += count
        self.words.send()

    def undo_draws(self) -> None:
        """Take back the draws of a run that did not happen."""
        for generator, _, count in self.draws:
            generator._present().counter -= count

    def input_buffers(self, flat: Sequence[Any]) -> dict[int, Buffer]:
        """The memory of each leaf before the next run, inside `call_bound(flat, ...)` or after it."""
        for generator, state, _ in self.draws:
            generator = generator._present()
            state[0], state[1] = generator.key, generator.counter & 0xFFFFFFFF
        if self.words is not None:
            self.words.send()
        found = {slot: buffer for slot, buffer in enumerate(self.leaf_buffers) if buffer is not None}
        found |= {slot: buffer for _, buffer, slot, _ in self.cells if slot >= 0}
        return found | {slot: flat[position] for position, slot in self.arguments}

    def new_result(self, memory: ResultMemory) -> Slab:
        """More memory for results, where all that there is is in use."""
        slab = self.allocate(memory.slot)
        memory.add_piece(slab)
        return slab

    def allocate(self, slot: int) -> Slab:
        """Memory for a slot of the plan; where there is none, the error says what the whole plan takes."""
        backend, form = self.device.backend, self.entry.plan.slots[slot]
        with contextlib.suppress(OutOfMemoryError):
            return (backend.arena if form.kind == "arena" else backend.allocate)(form.nbytes)
        raise self.too_large()

    def too_large(self) -> Exception:
        """The error for a device without the memory for a run; the memory of results is released."""
        for memory, *_ in self.outputs:
            if memory is not None:
                memory.pieces = []
        shapes = [form[1] for form in self.spec[1] if form[0] == "tensor"]
        return too_large(self.name, self.entry.plan, self.names(), self.device, shapes)

    def mark_invalid(self, state: str) -> None:
        """Note that the memory which a run writes in place has no value: reading it raises."""
        written = [buffer for _, buffer, _, is_written in self.cells if is_written]
        for buffer in [*written, *[grad._buffer for grad in self.grads_made]]:
            buffer.state = state

    def names(self) -> dict[int, str]:
        """The inputs in words: tensors by their names, arguments by their positions."""
        found = {slot: f"argument {position}" for position, slot in self.arguments}
        for tensor, _, slot, written in self.cells:
            shape, dtype, _ = tensor._form_now()
            found[slot] = tensor.name or f"{'updated' if written else 'captured'} {dtype.name}{list(shape)}"
        for slot, whole in enumerate(self.leaf_buffers):
            if whole is not None and slot not in found:
                for kind, buffers in self._captured_buffers().items():
                    count = sum(part.slab is whole.slab for part in buffers)
                    if count:
                        found[slot] = f"{count} {kind} in one piece"
        return found

    def _captured_buffers(self) -> dict[str, list[Buffer]]:
        """The memory of what the function keeps, by kind."""
        return {
            "captured tensors": [buffer for _, buffer, _, written in self.cells if not written],
            "updated tensors": [buffer for _, buffer, _, written in self.cells if written],
            "gradients": [grad._buffer for grad in self.grads_made],
        }

    def set_gradients(self) -> None:
        """Set the gradients that the function computed; what was assigned to them since is overwritten."""
        for grad in self.grads_made:
            grad._forget_node()
        for tensor, grad in self.grads_after:
            if tensor._grad is not grad:
                tensor._grad = grad
                VERSION.bump()

    def result(self, tensors: list[Tensor]) -> Any:
        """What the function returns, with this run's tensors in it."""
        values = iter(tensors)
        leaves = [next(values) if leaf is TENSOR else leaf for leaf in self.results]
        if self.numbers is not None:
            leaves = list(map(self.numbers.value_of, leaves))
        return tree.unflatten(self.structure, leaves)


class _Marker:
    """Stands in a result's structure where a tensor goes."""


TENSOR = _Marker()


def cell_form(tensor: Tensor) -> tuple:
    """What a variant takes for granted of a captured tensor."""
    return (*tensor._form_now(), tensor._requires_grad)


def _fits(known: tuple, form: tuple) -> bool:
    """Whether an argument of a form is what a trace took for granted: the form itself, or any number of a type."""
    return known == form or (known[0] == "number" and form[0] == "static" and form[1] is known[1])


def _describe_form(form: tuple) -> str:
    """A form of an argument in words."""
    if form[0] == "tensor":
        return f"{form[2].name}{list(form[1])} on {form[3]}" + (" with grad" if form[4] else "")
    if form[0] == "number":
        return f"a number of type {form[1].__name__}"
    return "a float" if form[1] is float else repr(form[2])
