"""compiled: `weft.compile`. One function becomes one plan that is replayed.

The replay path is short on purpose: compare a version number and the arguments, put addresses into the slot table, make
one native call. Everything else (matching guards, tracing, rebinding) is the slow path.
"""

from __future__ import annotations

import copy
import functools
import importlib
import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import tree
from weft.backends.base import Buffer, Slab
from weft.compiler.evaluate import check_live
from weft.compiler.memorymap import MemoryReport
from weft.compiler.report import PlanReport
from weft.compiler.trace import Trace
from weft.counting import COUNTERS
from weft.errors import GraphError, OutOfMemoryError, WeftError, hide_frames, problem
from weft.graph.build import stop_gradient
from weft.graph.node import Node, leaf
from weft.graph.numbers import HostNumber, Tape, numbers_in
from weft.locks import call_holding, new_lock, register
from weft.state import STATE, VERSION
from weft.tensor import Tensor, from_host
from weft.variant import TENSOR, Variant, build, predict

if TYPE_CHECKING:
    from weft.captures import Captures, Watch

STATIC = (int, bool, str, bytes, type(None))
MOST_QUIET_RETRACES = 8  # after so many a warning says why the function is traced again and again
MOST_VARIANTS = 256  # of one function, each with memory of its own; what was not used for longest goes first


class NeedsPlainNumbers(Exception):
    """Numbers that are traced as inputs are part of a shape, or of something else that nodes hold."""

    def __init__(self, entries: set[int]):
        super().__init__(entries)
        self.entries = entries


class Compiled:
    """A function compiled by `weft.compile`; call it like the function. `retraces` says why it was traced again."""

    def __init__(self, function: Callable, donate: Sequence[int] = ()):
        is_module = hasattr(type(function), "_is_weft_module")
        functools.update_wrapper(self, function, updated=() if is_module else functools.WRAPPER_UPDATES)
        self.function = function
        self.name = getattr(function, "__qualname__", type(function).__name__)
        self.variants: list[Variant] = []
        self.last: Variant | None = None
        self.donate = frozenset(donate)
        self.retraces: list[str] = []
        importlib.import_module("weft.captures")  # what a trace needs is loaded here, not by `import weft`
        self.section = new_lock()  # of the variants and their slot tables; a fork waits until it is free
        self._running: list[Any] = [None]  # the variant that runs, or True on the way there; a list is quick to set
        register(self)
        self._captures: Captures | None = None
        self._numbers: set[int] = set()  # positions of int arguments that have changed: inputs of the next plan
        self._fixed: set[int] = set()  # positions of numbers that the function can only use as they are

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if STATE.trace is not None:
            return self.function(*args, **kwargs)  # inside another compiled function this one is part of it
        with self.section:
            if self._running[0]:
                given = "a call by a finalizer or signal handler while the same thread is inside another call of it"
                raise problem(GraphError, self.name, given, "one call at a time", "make the call after this one")
            try:
                self._running[0] = True
                variant = self.last
                try:
                    if variant is not None and not kwargs:
                        with variant.lock:
                            if variant.other_locks:
                                is_done, result = call_holding(variant.other_locks, self._replay_ready, variant, args)
                                if is_done:
                                    return result
                            elif variant.version == VERSION.value and self._ready(variant, args):
                                return self._replay(variant)
                    return self._slow(args, kwargs)
                except OutOfMemoryError as error:
                    variant = None
                    if not self._gave_up_memory(error):
                        raise
                try:
                    return self._slow(args, kwargs)
                except OutOfMemoryError as error:
                    self._gave_up_memory(error)
                    raise
            except WeftError as error:
                hide_frames(error)
                raise
            finally:
                self._running[0] = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        """Of a model with a compiled method, say: what was compiled for the original is compiled anew."""
        return type(self)(copy.deepcopy(self.function, memo), sorted(self.donate))

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Like functions, those that a module has under their name are pickled by name."""
        name: str = getattr(self, "__qualname__", "")
        known: Any = sys.modules.get(getattr(self, "__module__", ""))
        for part in name.split("."):
            known = getattr(known, part, None)
        return name if known is self else (type(self), (self.function, sorted(self.donate)))

    def _gave_up_memory(self, error: OutOfMemoryError) -> bool:
        """Forget all variants, whose memory another may need; whether there were any. The error holds none of it."""
        found = bool(self.variants)
        self.variants, self.last = [], None
        traceback.clear_frames(error.__traceback__)
        hide_frames(error)
        return found

    @property
    def plan(self) -> PlanReport:
        """The plan of the last call: `kernels()`, `memory()`, and `print(step.plan)`."""
        if self.last is None:
            given = "a function that was not called yet"
            raise problem(GraphError, f"{self.name}.plan", given, "a traced function", "call it once")
        return PlanReport(self.last.entry.plan, self.last.device, self.last.names())

    def memory(self, *args: Any, **kwargs: Any) -> MemoryReport:
        """What a call with these arguments will take: its peak and the map of its arena, before it runs.

        The function is traced and its plan made, as by the first call, which then finds it; nothing is computed but
        the present values of the tensors that it captures.

        >>> step = weft.compile(lambda x: (x @ x).softmax(-1))
        >>> print(step.memory(weft.ones(64, 64)))
        peak 48.0 KiB: inputs and state 16.0 KiB, outputs 16.0 KiB, arena 16.0 KiB
        1 temporary of 16.0 KiB in an arena of 16.0 KiB
              size  kind    steps      tensor
          16.0 KiB  input   all        argument 0
          16.0 KiB  output  all        mul float32[64, 64]
          16.0 KiB  arena   0-1        dot float32[64, 64]
        """
        if STATE.trace is not None:
            raise problem(GraphError, f"{self.name}.memory", "a call inside weft.compile", "a call outside it")
        with self.section:
            flat, spec = _arguments(args, kwargs)
            variant = self._variant(flat, spec)
            if variant.is_fresh:
                variant.take_back_effects()
            return PlanReport(variant.entry.plan, variant.device, variant.names()).memory()

    def predicted(self, *args: Any, **kwargs: Any) -> MemoryReport:
        """The same without a plan that is kept: nothing is compiled or allocated for the call, so it may be one that
        the device has no memory for. What the function captures is computed."""
        if STATE.trace is not None:
            raise problem(GraphError, f"{self.name}.predicted", "a call inside weft.compile", "a call outside it")
        from weft.captures import TRACING

        with self.section:
            flat, spec = _arguments(args, kwargs)
            with TRACING:
                return self._trace(flat, spec, make=predict).report

    # --- replay ------------------------------------------------------------------------------------------------------

    def _ready(self, variant: Variant, args: tuple) -> bool:
        """Whether arguments have the expected forms and what is captured is as it was; if so addresses and numbers are
        where the plan reads them."""
        fast = variant.fast
        if fast is None or len(fast) != len(args) or STATE.grad_enabled is not variant.grad_enabled:
            return False
        if STATE.autocast is not variant.autocast:
            return False
        table = variant.table
        for tensor, (slot, shape, dtype, device, requires_grad) in zip(args, fast):  # noqa: B905 (slower)
            if type(tensor) is not Tensor:
                if slot is None:
                    if type(tensor) is shape and (device or tensor == dtype):
                        continue  # a number, or a constant that is what it was
                    return False
                if not isinstance(tensor, Tensor):  # it may be a parameter
                    return False
            elif slot is None:
                return False
            if tensor._requires_grad is not requires_grad:
                return False
            view = tensor._view
            if view is not None and view.version != view.aliases.version:
                return False
            node = tensor._node
            if node is None or node.shape != shape or node.dtype is not dtype or node.device is not device:
                return False
            buffer = node.buffer
            if buffer is None or buffer.slab.pinned or buffer.state != "live":
                return False
            table[slot] = buffer.slab.pointer + buffer.offset
        check, numbers = variant.check, variant.numbers
        if check is not None and not (check() or variant.captured.verify()):
            return False
        return (numbers is None or numbers.update(args)) and not self.donate

    def _replay_ready(self, variant: Variant, args: tuple) -> tuple[bool, Any]:
        """What a call does that replays the last variant, under its locks: whether it could, and the result."""
        if variant.version == VERSION.value and self._ready(variant, args):
            return True, self._replay(variant)
        return False, None

    def _replay(self, variant: Variant) -> Any:
        """Bind outputs, run, and hand out results. Under the locks of the function and of the variant."""
        device, table = variant.device, variant.table
        tensors: list[Tensor] = []
        for memory, first, offset, nbytes, shape, dtype in variant.outputs:
            if memory is None:  # it lies beside an earlier result
                slab = tensors[first].node.buffer.slab
            else:
                for piece in memory.pieces:
                    if piece.handed_out() is None:  # nobody holds it
                        slab = Slab(*piece.form)
                        piece.handed_out = weakref.ref(slab)
                        break
                else:
                    slab = variant.new_result(memory)
                table[memory.slot] = slab.pointer
            tensors.append(Tensor(leaf(Buffer(slab, offset, nbytes), shape, dtype, device)))
        if variant.words is not None:
            variant.send()
        self._running[0] = variant
        try:
            variant.run(table)
        except OutOfMemoryError:
            variant.take_back()
            raise variant.too_large() from None
        if variant.status is not None:
            variant.watch(variant.status, variant.entry.plan)
        if variant.captured.effects and not variant.is_fresh:
            variant.assign_effects()
        variant.is_fresh = False
        return tensors[0] if variant.single else variant.result(tensors)

    # --- anything else -----------------------------------------------------------------------------------------------

    def _slow(self, args: tuple, kwargs: dict) -> Any:
        flat, spec = _arguments(args, kwargs)
        variant = self._variant(flat, spec)
        result = self._run_bound(variant, flat)
        for position in self.donate:
            node = args[position]._node
            if node is not None and node.buffer is not None:
                # A leaf of its own: other tensors may have the same node, as all tensors of ones do.
                buffer = Buffer(node.buffer.slab, node.buffer.offset, node.buffer.nbytes)
                buffer.state = f"donated to {self.name}"
                args[position]._show(leaf(buffer, node.shape, node.dtype, node.device))
        return result

    def _run_bound(self, variant: Variant, flat: list[Any]) -> Any:
        """Bind arguments and captured tensors to a variant, and run it."""
        variant.resolve(flat)
        return variant.call_bound(flat, self._run_last, variant)

    def _run_last(self, variant: Variant) -> Any:
        """Run a variant that is bound, under its locks; the next call looks at it first."""
        self.last = variant
        try:
            result = self._replay(variant)
        except OutOfMemoryError:
            if variant.is_fresh:
                variant.take_back_effects()  # the function may run once more
            raise
        variant.leave_grads()
        variant.version = VERSION.value if variant.grads_match() else -1  # its own effect may call for another variant
        return result

    def cut_by_fork(self) -> None:
        """In a forked child: another thread was inside, and is not here. What it wrote in place has no value."""
        variant, self._running[0] = self._running[0], None
        self.variants, self.last = [], None
        if isinstance(variant, Variant):
            variant.spoil("half-written when this process was forked")

    def _variant(self, flat: list[Any], spec: tuple) -> Variant:
        """The variant for these arguments, traced now if none is known."""
        variant = self._known(flat, spec)
        if variant is None:
            from weft.captures import TRACING

            with TRACING:  # one trace at a time
                variant = self._traced(flat, spec)
        else:
            self.variants.remove(variant)
        self.variants = [*self.variants[-MOST_VARIANTS + 1 :], variant]
        return variant

    def _traced(self, flat: list[Any], spec: tuple) -> Variant:
        """A new variant, unless one fits now: another thread's trace may have hidden what is captured."""
        variant = self._known(flat, spec)
        if variant is None:
            if self.last is not None:
                self._note_retrace(self.last, flat, spec)
            variant = self._trace(flat, spec)
            self.variants = [known for known in self.variants if not variant.replaces(known)]
        return variant

    def _known(self, flat: list[Any], spec: tuple) -> Variant | None:
        return next((known for known in reversed(self.variants) if known.matches(spec, flat)), None)

    def _note_retrace(self, last: Variant, flat: list[Any], spec: tuple) -> None:
        """Remember why, and which numbers have changed: they become inputs of the next plan."""
        from weft.captures import warn

        self.retraces.append(last.difference(spec, flat))
        if last.spec[0] == spec[0]:
            for position, (old, new) in enumerate(zip(last.spec[1], spec[1], strict=True)):
                if old != new and old[:2] == new[:2] == ("static", int):
                    self._numbers.add(position)
        if self._captures is not None:
            self._captures.inputs.update(last.captured.changed_numbers())
        if len(self.retraces) == MOST_QUIET_RETRACES:
            reasons = "\n".join(f"  {number}. {reason}" for number, reason in enumerate(self.retraces, 1))
            text = f"{self.name} has been traced again {len(self.retraces)} times. `retraces` says why:\n{reasons}"
            warn(text)

    def prepared(self, args: tuple, kwargs: dict, who: str, origins: Any = None) -> tuple[Variant, list[Any]]:
        """A variant that is ready to run, with its program, and the memory of the arguments; for `testing.verify` and
        `weft.profile`, whose `origins` get to know which module made which node."""
        if STATE.trace is not None:
            raise problem(GraphError, f"{who}({self.name})", "a call inside weft.compile", "a call outside it")
        from weft.captures import TRACING

        flat, spec = _arguments(args, kwargs)
        with TRACING:
            variant = self._trace(flat, spec, keep=True, origins=origins)
        variant.resolve(flat)
        variant.call_bound(flat, variant.take_back_effects)
        return variant, flat

    def _trace(
        self, flat: list[Any], spec: tuple, keep: bool = False, make: Callable[..., Any] = build, origins: Any = None
    ) -> Any:
        """Run the function once with placeholders and compile what it did: a `Variant`, or what `make` makes of it.
        With `keep` the variant has its program; `origins` get to know which module made which node."""
        from weft.captures import Captures

        captures = self._captures = self._captures or Captures(self.name, self.function)
        fixed = set(self._fixed), set(captures.fixed)
        try:
            return self._trace_until_plain(captures, flat, spec, keep, make, origins)
        except BaseException:  # nothing was wrong with the numbers
            self._fixed, captures.fixed = fixed
            raise

    def _trace_until_plain(
        self, captures: Captures, flat: list[Any], spec: tuple, keep: bool, make: Callable[..., Any], origins: Any
    ) -> Any:
        """Trace with numbers that may differ from call to call, and again with those as they are that have to be."""
        from weft.captures import Watch

        while True:
            trace = Trace(self.name)
            trace.origins = origins
            watch = Watch(captures, trace.tape)
            numbers = [k for k, value in enumerate(flat) if self._is_input(k, value)]
            outer = STATE.trace, STATE.grad_enabled, STATE.autocast
            try:
                return self._trace_with(trace, watch, flat, spec, numbers, keep, make)
            except NeedsPlainNumbers as error:
                stuck = error.entries
            except TypeError as error:  # something written in C may take only true numbers
                if isinstance(error, WeftError) or not trace.tape.operations:
                    raise
                stuck = set(range(len(trace.tape.operations)))
            except BaseException:  # an interrupt may have come before the `__exit__` of one of them
                STATE.trace, STATE.grad_enabled, STATE.autocast = outer
                watch.end()
                trace.restore_buffers()
                trace.restore_grads()
                raise
            watch.undo()
            watch.fix(stuck)
            needed = trace.tape.needed(list(stuck))  # entries of arguments come first, in the order of `numbers`
            self._fixed.update(position for entry, position in enumerate(numbers) if entry in needed)

    def _is_input(self, position: int, value: Any) -> bool:
        """Whether an argument may be another number at each call of the next plan."""
        if position in self._fixed:
            return False
        return type(value) is float or (type(value) is int and position in self._numbers)

    def _trace_with(
        self, trace: Trace, watch: Watch, flat: list[Any], spec: tuple, numbers: list[int], keep: bool,
        make: Callable[..., Any],
    ) -> Any:  # fmt: skip
        """Trace with the arguments at the positions `numbers` as numbers that may differ from call to call."""
        from weft.inputs import Inputs

        COUNTERS.traces += 1
        with trace:
            args, kwargs, bound, sources = _stand_ins(flat, spec[0], trace.tape, numbers)
            with watch:
                reads = watch.captures.reads
                result = reads.run(self.function, args, kwargs)
                reads.take_modules(trace.modules, trace.training_read, trace.module_writes)
                _write_buffers(trace)
            returned, structure = tree.flatten(result)
            nodes = [value.node if isinstance(value, Tensor) else None for value in returned]
            kept = _kept_grads(trace)
            if trace.tape.hashed:
                made = [*nodes, *[node for _, _, node in kept], *[cell.node for cell in trace.cells.values()]]
                stuck = numbers_in([node for node in made if node is not None])
                if stuck:
                    raise NeedsPlainNumbers(stuck)
        constants = [value if node is None else TENSOR for value, node in zip(returned, nodes, strict=True)]
        single = len(returned) == 1 and nodes[0] is not None and tree.is_leaf(structure)
        allowed = {id(value) for value in returned} | {id(grad) for _, grad, node in kept if node is not None}
        del args, kwargs, result
        forms = [("number", form[1]) if k in numbers else form for k, form in enumerate(spec[1])]
        try:
            trace.check_escapes(allowed)
            trace.tape.used.update(value._index for value in constants if type(value) is HostNumber)
            captured, entries = watch.guards()
            wanted = [*constants, *[value for _, value in captured.effects]]
            wanted = [value for value in wanted if type(value) is HostNumber]
            inputs = Inputs(trace.tape, sources, entries, captured, wanted)
            results = [node for node in nodes if node is not None]
            variant = make(trace, (spec[0], tuple(forms)), bound, results, kept, captured, inputs, keep)
        finally:
            trace.restore_grads()  # the call that follows, if one does, sets the gradients that it computed
        variant.results, variant.structure, variant.single = constants, structure, single
        watch.captures.warn_impure()
        return variant


def compile(function: Callable | None = None, *, donate: Sequence[int] = ()) -> Any:
    """Compile a function of tensors into one replayed plan.

    Tensors that the function reads from outside are captured as cells; what it assigns is written in place. Float
    arguments are inputs of the plan, and so are ints and captured numbers from their second value on, unless they
    decide a branch or a shape: then another value is another trace, as it is for bools, strings and containers.
    `donate` names positions of arguments whose memory may not be used after the call. Results carry no history:
    differentiate inside.

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
    if not callable(function):
        raise problem(GraphError, "weft.compile", f"a {type(function).__name__}", "a function of tensors")
    return (CompiledModule if hasattr(type(function), "_is_weft_module") else Compiled)(function, donate)


class CompiledModule(Compiled):
    """A module compiled by `weft.compile`: it is called like the module and has its attributes and methods."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["function"], name)
        if name in _RETURN_SELF:  # `model = weft.compile(model).eval()` is still compiled

            @functools.wraps(value)
            def call(*args: Any, **kwargs: Any) -> CompiledModule:
                value(*args, **kwargs)
                return self

            return call
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN_NAMES or name.startswith("__"):
            object.__setattr__(self, name, value)
        else:
            setattr(self.function, name, value)


_RETURN_SELF = frozenset({
    "train", "eval", "to", "type", "float", "double", "half", "bfloat16", "cpu", "cuda", "requires_grad_", "apply",
})  # fmt: skip
_OWN_NAMES = frozenset({
    "function", "name", "variants", "last", "donate", "retraces", "section", "_running", "_captures", "_numbers",
    "_fixed",
})  # fmt: skip


def memory_report(function: Callable, *args: Any, **kwargs: Any) -> MemoryReport:
    """What `function(*args)`, compiled, will take in memory, before it runs; see `Compiled.memory`.

    >>> weft.memory_report(lambda x: x.softmax(-1), weft.ones(4, 8)).peak
    256
    """
    return (function if isinstance(function, Compiled) else Compiled(function)).memory(*args, **kwargs)


def _arguments(args: tuple, kwargs: dict) -> tuple[list[Any], tuple]:
    """The arguments as a list, and what a plan takes for granted of them."""
    flat, structure = tree.flatten((args, kwargs))
    flat = [_as_argument(value) for value in flat]
    return flat, (structure, tuple([_form(value) for value in flat]))


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
    """What a plan takes for granted of an argument."""
    if isinstance(value, Tensor):
        return ("tensor", *value._form_now(), value.requires_grad)
    if isinstance(value, float):
        return ("static", float, value.hex())
    if isinstance(value, STATIC):
        return ("static", type(value), value)
    raise problem(
        GraphError,
        "weft.compile",
        f"an argument of type {type(value).__name__}",
        "tensors, NumPy arrays, numbers, strings, None, and tuples, lists or dicts of them",
        "close over other objects instead of passing them",
    )


def _stand_ins(
    flat: Sequence[Any], structure: Any, tape: Tape, numbers: Sequence[int]
) -> tuple[tuple, dict, list[tuple[int, Node]], list[tuple[int, int]]]:
    """The arguments with placeholders for tensors and for the numbers at some positions, (position, placeholder) of
    each tensor, and (entry of the tape, position) of each number."""
    values: list[Any] = []
    bound: list[tuple[int, Node]] = []
    sources: list[tuple[int, int]] = []
    for position, value in enumerate(flat):
        if isinstance(value, Tensor):
            value = Tensor._stand_in(value.shape, value.dtype, value.device, value.requires_grad)
            bound.append((position, value.node))
        elif position in numbers:
            value = tape.source(value)
            sources.append((value._index, position))
        values.append(value)
    args, kwargs = tree.unflatten(structure, values)
    return args, kwargs, bound, sources


def _write_buffers(trace: Trace) -> None:
    """Write what the function assigned to buffers of modules into those that the modules have. All values are those of
    the end of the function: two buffers may have changed places."""
    found = trace.restore_buffers()
    for name, buffer, value in found:
        if buffer is None or value is None:
            given = f"the buffer {name!r}, which is {'None' if buffer is None else 'set to None'}"
            expected = "a buffer that has a value before the call and after it"
            raise problem(GraphError, f"weft.compile({trace.name})", given, expected, "give it a tensor before")
    replaced = [(buffer, Tensor(stop_gradient(value.node))) for _, buffer, value in found]
    for buffer, value in replaced:
        buffer.copy_(value)


def _kept_grads(trace: Trace) -> list[tuple[Any, Any, Node | None]]:
    """(tensor, .grad at the end, its node if it was made in the trace) for every .grad that the function changed."""
    kept = []
    for tensor, before in trace.grads.values():
        grad = tensor._grad
        if grad is not before:
            kept.append((tensor, grad, grad.node if grad is not None and id(grad) in trace.made else None))
    return kept
