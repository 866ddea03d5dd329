"""`weft.compile`: one function becomes one plan that is replayed.

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
from typing import Any

from weft.base.errors import GraphError, OutOfMemoryError, WeftError, hide_frames, problem
from weft.base.locks import call_holding, new_lock, register
from weft.base.state import STATE, VERSION
from weft.compiler.inspect.report import PlanReport
from weft.compiler.memory.report import MemoryReport
from weft.core.tensor import Tensor
from weft.graph.node import leaf
from weft.jit.arguments import flatten_arguments
from weft.jit.tracer import Tracer
from weft.jit.variant import Variant
from weft.jit.variant_builder import predict
from weft.plan.device import Buffer, Slab

MAX_SILENT_RETRACES = 8  # after so many a warning says why the function is traced again and again
MAX_VARIANTS = 256  # of one function, each with memory of its own; the least recently used is removed first


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
        importlib.import_module("weft.jit.captures")  # what a trace needs is loaded here, not by `import weft`
        self.section = new_lock()  # of the variants and their slot tables; a fork waits until it is free
        self._running: list[Any] = [None]  # the variant that runs, or True on the way there; a list is quick to set
        register(self)
        self._tracer = Tracer(self.name, function)

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
                                is_done, result = call_holding(
                                    variant.other_locks, self._replay_if_ready, variant, args
                                )
                                if is_done:
                                    return result
                            elif variant.version == VERSION.value and self._is_ready(variant, args):
                                return self._replay(variant)
                    return self._call_slowly(args, kwargs)
                except OutOfMemoryError as error:
                    variant = None
                    if not self._release_memory(error):
                        raise
                try:
                    return self._call_slowly(args, kwargs)
                except OutOfMemoryError as error:
                    self._release_memory(error)
                    raise
            except WeftError as error:
                hide_frames(error)
                raise
            finally:
                self._running[0] = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        """Of a model with a compiled method, say: what was compiled for the original is compiled again."""
        return type(self)(copy.deepcopy(self.function, memo), sorted(self.donate))

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Like functions, those that a module has under their name are pickled by name."""
        name: str = getattr(self, "__qualname__", "")
        known: Any = sys.modules.get(getattr(self, "__module__", ""))
        for part in name.split("."):
            known = getattr(known, part, None)
        return name if known is self else (type(self), (self.function, sorted(self.donate)))

    def _release_memory(self, error: OutOfMemoryError) -> bool:
        """Forget all variants, whose memory another may need; whether there were any. The error keeps none of it."""
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
            flat, spec = flatten_arguments(args, kwargs)
            variant = self._variant(flat, spec)
            if variant.is_fresh:
                variant.undo_effects()
            return PlanReport(variant.entry.plan, variant.device, variant.names()).memory()

    def predicted(self, *args: Any, **kwargs: Any) -> MemoryReport:
        """The same without a plan that is kept: nothing is compiled or allocated for the call, so it may be one that
        the device has no memory for. What the function captures is computed."""
        if STATE.trace is not None:
            raise problem(GraphError, f"{self.name}.predicted", "a call inside weft.compile", "a call outside it")
        from weft.jit.captures import TRACING

        with self.section:
            flat, spec = flatten_arguments(args, kwargs)
            with TRACING:
                return self._tracer.trace(flat, spec, make=predict).report

    # --- replay ------------------------------------------------------------------------------------------------------

    def _is_ready(self, variant: Variant, args: tuple) -> bool:
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

    def _replay_if_ready(self, variant: Variant, args: tuple) -> tuple[bool, Any]:
        """What a call does that replays the last variant, under its locks: whether it could, and the result."""
        if variant.version == VERSION.value and self._is_ready(variant, args):
            return True, self._replay(variant)
        return False, None

    def _replay(self, variant: Variant) -> Any:
        """Bind outputs, run, and return results. Under the locks of the function and of the variant."""
        device, table = variant.device, variant.table
        tensors: list[Tensor] = []
        for memory, first, offset, nbytes, shape, dtype in variant.outputs:
            if memory is None:  # it is in the memory of an earlier result
                slab = tensors[first].node.buffer.slab
            else:
                for piece in memory.pieces:
                    if piece.last_slab() is None:  # nothing refers to it
                        slab = Slab(*piece.form)
                        piece.last_slab = weakref.ref(slab)
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
            variant.undo_draws()
            raise variant.too_large() from None
        if variant.status is not None:
            variant.watch(variant.status, variant.entry.plan)
        if variant.captured.effects and not variant.is_fresh:
            variant.assign_effects()
        variant.is_fresh = False
        return tensors[0] if variant.single else variant.result(tensors)

    # --- anything else -----------------------------------------------------------------------------------------------

    def _call_slowly(self, args: tuple, kwargs: dict) -> Any:
        flat, spec = flatten_arguments(args, kwargs)
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
        """Run a variant that is bound, under its locks; the next call tries it first."""
        self.last = variant
        try:
            result = self._replay(variant)
        except OutOfMemoryError:
            if variant.is_fresh:
                variant.undo_effects()  # the function may run again
            raise
        variant.set_gradients()
        variant.version = VERSION.value if variant.grads_match() else -1  # its own effect may call for another variant
        return result

    def cut_by_fork(self) -> None:
        """In a forked child: another thread was inside, and is not here. What it wrote in place has no value."""
        variant, self._running[0] = self._running[0], None
        self.variants, self.last = [], None
        if isinstance(variant, Variant):
            variant.mark_invalid("half-written when this process was forked")

    def _variant(self, flat: list[Any], spec: tuple) -> Variant:
        """The variant for these arguments, traced now if none is known."""
        variant = self._find(flat, spec)
        if variant is None:
            from weft.jit.captures import TRACING

            with TRACING:  # one trace at a time
                variant = self._trace_new(flat, spec)
        else:
            self.variants.remove(variant)
        self.variants = [*self.variants[-MAX_VARIANTS + 1 :], variant]
        return variant

    def _trace_new(self, flat: list[Any], spec: tuple) -> Variant:
        """A new variant, unless one fits now: another thread's trace may have hidden what is captured."""
        variant = self._find(flat, spec)
        if variant is None:
            if self.last is not None:
                self._note_retrace(self.last, flat, spec)
            variant = self._tracer.trace(flat, spec)
            self.variants = [known for known in self.variants if not variant.replaces(known)]
        return variant

    def _find(self, flat: list[Any], spec: tuple) -> Variant | None:
        return next((known for known in reversed(self.variants) if known.matches(spec, flat)), None)

    def _note_retrace(self, last: Variant, flat: list[Any], spec: tuple) -> None:
        """Remember why, and which numbers have changed."""
        from weft.jit.captures import warn

        self.retraces.append(last.difference(spec, flat))
        self._tracer.note_changes(last, spec)
        if len(self.retraces) == MAX_SILENT_RETRACES:
            reasons = "\n".join(f"  {number}. {reason}" for number, reason in enumerate(self.retraces, 1))
            text = f"{self.name} has been traced again {len(self.retraces)} times. `retraces` says why:\n{reasons}"
            warn(text)

    def prepare_variant(self, args: tuple, kwargs: dict, who: str, origins: Any = None) -> tuple[Variant, list[Any]]:
        """A variant that is ready to run, with its program, and the memory of the arguments; for `testing.verify` and
        `weft.profile`, whose `origins` record which module made which node."""
        if STATE.trace is not None:
            raise problem(GraphError, f"{who}({self.name})", "a call inside weft.compile", "a call outside it")
        from weft.jit.captures import TRACING

        flat, spec = flatten_arguments(args, kwargs)
        with TRACING:
            variant = self._tracer.trace(flat, spec, keep=True, origins=origins)
        variant.resolve(flat)
        variant.call_bound(flat, variant.undo_effects)
        return variant, flat


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
    "function", "name", "variants", "last", "donate", "retraces", "section", "_running", "_tracer",
})  # fmt: skip


def memory_report(function: Callable, *args: Any, **kwargs: Any) -> MemoryReport:
    """What `function(*args)`, compiled, will take in memory, before it runs; see `Compiled.memory`.

    >>> weft.memory_report(lambda x: x.softmax(-1), weft.ones(4, 8)).peak
    256
    """
    return (function if isinstance(function, Compiled) else Compiled(function)).memory(*args, **kwargs)
