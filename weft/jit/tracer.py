"""Tracing: the function runs once with placeholders, and what it did becomes a `Variant`.

Numbers may be inputs of the plan, which differ from call to call; those that turn out to decide a shape or a branch are
constants, for which the function is traced again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.base import tree
from weft.base.counters import COUNTERS
from weft.base.errors import GraphError, WeftError, problem
from weft.base.state import STATE
from weft.compiler.trace import Trace
from weft.core.tensor import Tensor
from weft.graph.build import stop_gradient
from weft.graph.node import Node
from weft.graph.numbers import HostNumber, numbers_in
from weft.jit.arguments import make_placeholders
from weft.jit.variant import TENSOR, Variant
from weft.jit.variant_builder import build

if TYPE_CHECKING:
    from weft.jit.captures import Captures, Watch


class NeedsPlainNumbers(Exception):
    """Numbers that are traced as inputs are part of a shape, or of something else that nodes hold."""

    def __init__(self, entries: set[int]):
        super().__init__(entries)
        self.entries = entries


class Tracer:
    """Traces one function, and records over all its traces which numbers are inputs of the next plan."""

    __slots__ = ("captures", "changing", "fixed", "function", "name")

    def __init__(self, name: str, function: Callable):
        self.name, self.function = name, function
        self.captures: Captures | None = None
        self.changing: set[int] = set()  # positions of int arguments that have changed: inputs of the next plan
        self.fixed: set[int] = set()  # positions of numbers that the function can only use as they are

    def note_changes(self, last: Variant, spec: tuple) -> None:
        """Numbers that are not those of the last call become inputs of the next plan."""
        if last.spec[0] == spec[0]:
            for position, (old, new) in enumerate(zip(last.spec[1], spec[1], strict=True)):
                if old != new and old[:2] == new[:2] == ("static", int):
                    self.changing.add(position)
        if self.captures is not None:
            self.captures.inputs.update(last.captured.changed_numbers())

    def trace(
        self, flat: list[Any], spec: tuple, keep: bool = False, make: Callable[..., Any] = build, origins: Any = None
    ) -> Any:
        """Run the function once with placeholders and compile what it did: a `Variant`, or what `make` makes of it.
        With `keep` the variant has its program; `origins` record which module made which node."""
        from weft.jit.captures import Captures

        captures = self.captures = self.captures or Captures(self.name, self.function)
        fixed = set(self.fixed), set(captures.fixed)
        try:
            return self._trace_until_plain(captures, flat, spec, keep, make, origins)
        except BaseException:  # nothing was wrong with the numbers
            self.fixed, captures.fixed = fixed
            raise

    def _trace_until_plain(
        self, captures: Captures, flat: list[Any], spec: tuple, keep: bool, make: Callable[..., Any], origins: Any
    ) -> Any:
        """Trace with numbers that may differ from call to call, and again with those as they are that have to be."""
        from weft.jit.captures import Watch

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
            needed = trace.tape.find_needed(list(stuck))  # entries of arguments come first, in the order of `numbers`
            self.fixed.update(position for entry, position in enumerate(numbers) if entry in needed)

    def _is_input(self, position: int, value: Any) -> bool:
        """Whether an argument may be another number at each call of the next plan."""
        if position in self.fixed:
            return False
        return type(value) is float or (type(value) is int and position in self.changing)

    def _trace_with(
        self, trace: Trace, watch: Watch, flat: list[Any], spec: tuple, numbers: list[int], keep: bool,
        make: Callable[..., Any],
    ) -> Any:  # fmt: skip
        """Trace with the arguments at the positions `numbers` as numbers that may differ from call to call."""
        from weft.jit.inputs import Inputs

        COUNTERS.traces += 1
        with trace:
            args, kwargs, bound, sources = make_placeholders(flat, spec[0], trace.tape, numbers)
            with watch:
                reads = watch.captures.reads
                result = reads.run(self.function, args, kwargs)
                trace.release_modules()
                reads.take_modules(trace.modules, trace.training_read, trace.module_writes)
                _write_buffers(trace)
            returned, structure = tree.flatten(result)
            nodes = [value.node if isinstance(value, Tensor) else None for value in returned]
            gradients = _find_changed_gradients(trace)
            _refuse_numbers(trace, [*nodes, *[node for _, _, node in gradients]])
        constants = [value if node is None else TENSOR for value, node in zip(returned, nodes, strict=True)]
        single = len(returned) == 1 and nodes[0] is not None and tree.is_leaf(structure)
        allowed = {id(value) for value in returned} | {id(grad) for _, grad, node in gradients if node is not None}
        del args, kwargs, result
        forms = [("number", form[1]) if k in numbers else form for k, form in enumerate(spec[1])]
        try:
            trace.check_escapes(allowed)
            trace.tape.used.update(value._index for value in _host_numbers(constants))
            captured, entries = watch.guards()
            needed = _host_numbers([*constants, *[value for _, value in captured.effects]])
            inputs = Inputs(trace.tape, sources, entries, captured, needed)
            results = list(filter(None, nodes))
            variant = make(trace, (spec[0], tuple(forms)), bound, results, gradients, captured, inputs, keep)
        finally:
            trace.restore_grads()  # the call that follows, if one does, sets the gradients that it computed
        variant.results, variant.structure, variant.single = constants, structure, single
        watch.captures.warn_impure()
        return variant


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


def _host_numbers(values: list[Any]) -> list[HostNumber]:
    return [value for value in values if type(value) is HostNumber]


def _refuse_numbers(trace: Trace, results: list[Node | None]) -> None:
    """Where a result or what the function wrote has numbers as attributes, those cannot differ from call to call."""
    if trace.tape.hashed:
        made = [*results, *[cell.node for cell in trace.cells.values()]]
        stuck = numbers_in([node for node in made if node is not None])
        if stuck:
            raise NeedsPlainNumbers(stuck)


def _find_changed_gradients(trace: Trace) -> list[tuple[Any, Any, Node | None]]:
    """(tensor, .grad at the end, its node if it was made in the trace) for every .grad that the function changed."""
    changed = []
    for tensor, before in trace.grads.values():
        grad = tensor._grad
        if grad is not before:
            changed.append((tensor, grad, grad.node if grad is not None and id(grad) in trace.made else None))
    return changed
