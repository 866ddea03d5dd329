"""Captured Python values: what a compiled function reads from globals, closures, defaults and attributes.

`Captures.scan` follows what `reading` found to the values and makes a tree of guards: numbers, strings and containers
of them are compared by value, objects by their type and by those of their attributes that are read, everything else by
identity. Before a replay `Guards.check`, one generated expression, compares identities only; `verify` compares values.

A number that changed is given to the next trace as a `HostNumber`, put in its place while the function runs. Names,
attributes and items that the function assigns are assigned again by each replay.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from weft.base.errors import TraceWarning
from weft.base.locks import new_lock
from weft.graph.numbers import HostNumber, Tape
from weft.jit.code_loads import Reads, belongs_to_library, is_library, loads_of
from weft.jit.guards import (
    CONTAINERS,
    MAX_GUARDED_ITEMS,
    MISSING,
    REGISTRIES,
    Guard,
    Guards,
    is_module,
    is_number,
    is_object,
    is_there,
    is_value,
    items_of,
    owner_of,
    registry_of,
    shape_of,
)

MAX_SEPARATE_GUARDS = 32  # numbers and strings in one container that are guarded one by one and may become inputs

TRACING = new_lock()  # while one thread traces, locations may have stand-ins that no other may read as values

MODULE_INTERNALS = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent", "_training", "_state_hooks"})


def warn(text: str) -> None:
    """A `TraceWarning` at the user's line."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, TraceWarning, stacklevel=level)


def _draws(value: Any) -> bool:
    """Whether a value is a generator of NumPy's, or a function that draws from one."""
    kinds = (type(value), type(getattr(value, "__self__", None)))
    return any(kind.__module__ in ("numpy.random._generator", "numpy.random.mtrand") for kind in kinds)


class _Scan:
    """One traversal from the names in the code to the values that they refer to."""

    def __init__(self, reads: Reads, complain: Callable[[str, str], None]):
        self.reads, self.complain = reads, complain
        self.guards: list[Guard] = []
        self._roots: set[tuple[int, str]] = set()
        self._seen: dict[int, Guard | None] = {}  # by identity, where an object was first found
        self._waiting: deque[tuple[Guard | None, Any]] = deque()
        self.attributes = _union(loads.attributes for loads, _ in reads.codes.values())
        self.optional = _union(loads.optional for loads, _ in reads.codes.values())
        self.methods = _union(loads.methods for loads, _ in reads.codes.values()) - self.attributes
        self.changed = _union(loads.changed for loads, _ in reads.codes.values()) - self.attributes

    def run(self) -> list[Guard]:
        for loads, module in list(self.reads.codes.values()):
            for name in sorted(loads.globals | loads.changed):
                if name in module and not (name not in loads.globals and isinstance(module[name], CONTAINERS)):
                    self._root("the global", module, name, False)
        for function in list(self.reads.functions.values()):
            self._function(function)
        self._follow()
        for key, reference in list(self.reads.objects.items()):
            value = reference()
            if value is None:
                del self.reads.objects[key]
            elif is_module(value):
                self.reads.see_module(value)
            elif is_object(value) and id(value) not in self._seen:
                self._seen[id(value)] = None
                self._children(None, value)
                self._follow()
        for module in self.reads.modules():
            self._module(module)
            self._follow()
        return self.guards

    def _module(self, module: Any) -> None:
        """Guards for what a function may have read from a module: hooks, parameters, buffers and submodules, numbers
        and other attributes. Of a class of the user's those attributes that the code names, else all."""
        self._seen[id(module)] = None
        space, word = module.__dict__, f"the {type(module).__qualname__}'s"
        names = {"__class__", "_hooks", *REGISTRIES}
        if id(module) in self.reads.training_read:
            names.add("_training")
        by_name = self.attributes | self.methods | self.changed
        everything = self.reads.is_dynamic or any(
            base.__module__.startswith("weft.") and not base.__module__.startswith("weft.nn.module.")
            for base in type(module).__mro__
        )
        names |= {name for name in space if (everything or name in by_name) and name not in MODULE_INTERNALS}
        for name in sorted(names):
            self._guard_version(module, name, word)
        for name in sorted({"forward", *by_name} - names):
            self._method(module, name, word)
        for registry in REGISTRIES:
            for name in space[registry]:
                self._guard_version(module, name, word)
        if type(module).__module__.partition(".")[0] != "weft":
            for name, found in _attributes(module, by_name - names):
                if not is_module(found):
                    self._child(None, module, name, True, found)  # of its class
        for name in sorted(self.optional):
            if not hasattr(module, name):
                self._guard_absence(None, module, name)
                self.guards[-1].versioned = True

    def _method(self, module: Any, name: str, word: str) -> None:
        """A method is that of the class, and no other was assigned to the module, nor to a class of the user's."""
        owner = next((base for base in type(module).__mro__ if name in vars(base)), None)
        if owner is None or not hasattr(type(vars(owner)[name]), "__get__"):
            return
        own = Guard(None, module, name, True, (word, id(module), name))
        own.kind, own.versioned = "absent", True
        self.guards.append(own)
        if not belongs_to_library(owner.__module__) and (id(owner), name) not in self._roots:
            self._roots.add((id(owner), name))
            guard = Guard(None, type(module), name, True, ("the class", id(owner), f"{owner.__qualname__}.{name}"))
            guard.value = guard.fetch()
            self.guards.append(guard)

    def _guard_version(self, module: Any, name: str, word: str) -> None:
        guard = Guard(None, module, name, True, (word, id(module), name))
        guard.versioned = True
        value = guard.fetch()
        if name == "_hooks":
            guard.kind, guard.value, guard.form = "equal", value, value
            self.guards.append(guard)
        elif name == "__class__":
            guard.value = value
            self.guards.append(guard)
        elif name in REGISTRIES:
            guard.kind, guard.value, guard.form = "items", value, shape_of(value)
            self.guards.append(guard)
        else:
            self._add(guard, value)

    def _follow(self) -> None:
        while self._waiting:
            self._children(*self._waiting.popleft())

    def _function(self, function: FunctionType) -> None:
        loads = loads_of(function.__code__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            changed = name in loads.changed and name not in loads.free
            if name in loads.free or changed:
                self._root("the variable", cell, name, False, skip_containers=changed)
        for name, kind in (("__defaults__", "the defaults of"), ("__kwdefaults__", "the keyword defaults of")):
            if getattr(function, name):
                self._root(kind, function, name, True, word=function.__qualname__)

    def _root(
        self, kind: str, root: Any, name: str, is_attribute: bool, skip_containers: bool = False, word: str = ""
    ) -> None:
        if (id(root), name) in self._roots:
            return
        self._roots.add((id(root), name))
        guard = Guard(None, root, name, is_attribute, (kind, id(root), word or name))
        try:
            value = guard.fetch()
        except MISSING:
            return
        if not (skip_containers and isinstance(value, CONTAINERS)):
            self._add(guard, value)

    def _add(self, guard: Guard, value: Any) -> None:
        guard.look(value)
        self.guards.append(guard)
        if guard.kind in ("items", "object"):
            if id(value) not in self._seen:
                self._seen[id(value)] = guard
                self._waiting.append((guard, value))
            else:  # its contents have guards already, where it was found first
                guard.kind, guard.form = "alias", self._seen[id(value)]
        elif guard.kind == "array" and value.nbytes > 16 * MAX_GUARDED_ITEMS:
            self.complain(guard.name(), f"an array of {value.nbytes} bytes, whose elements are not compared")
        elif guard.kind == "identity":
            if _draws(value):
                self.reads.impure.add("numpy.random")
            elif is_module(value) and not (guard.versioned and registry_of(guard.container, guard.key) is not None):
                self.reads.see_module(value)  # a variable, an attribute or an item that the code names

    def _child(self, parent: Guard | None, container: Any, key: Any, is_attribute: bool, value: Any) -> None:
        if parent is None:
            path: tuple = (f"the {type(container).__qualname__}'s", id(container), key)
            self._add(Guard(None, container, key, is_attribute, path), value)
        else:
            self._add(Guard(parent, None, key, is_attribute, (*parent.path, key)), value)

    def _children(self, guard: Guard | None, value: Any) -> None:
        if isinstance(value, CONTAINERS) and guard is not None:
            self._container(guard, value)
        elif isinstance(value, partial):
            for name in ("func", "args", "keywords"):
                self._child(guard, value, name, True, getattr(value, name))
        else:
            for name, found in _attributes(value, self.attributes | self.methods | self.changed):
                called = name in self.methods and name not in self.changed
                if not (called and not callable(found)) and not (
                    name in self.changed and isinstance(found, CONTAINERS)
                ):
                    self._child(guard, value, name, True, found)
            for name in sorted(self.optional):
                if not hasattr(value, name):
                    self._guard_absence(guard, value, name)

    def _guard_absence(self, parent: Guard | None, container: Any, name: str) -> None:
        path = (f"the {type(container).__qualname__}'s", id(container)) if parent is None else parent.path
        guard = Guard(parent, container if parent is None else None, name, True, (*path, name))
        guard.kind = "absent"
        self.guards.append(guard)

    def _container(self, guard: Guard, value: Any) -> None:
        items = list(value.values() if isinstance(value, dict) else value)
        plain = all(map(is_value, items))
        if isinstance(value, dict):
            plain = plain and all(map(is_value, value))
        if len(items) > MAX_GUARDED_ITEMS:
            self.complain(guard.name(), f"a {type(value).__name__} of {len(items)} values, which are not compared")
        elif isinstance(value, (set, frozenset)) or (plain and len(items) > MAX_SEPARATE_GUARDS):
            guard.kind, guard.form = "all items", items_of(value)
        else:
            for key, found in value.items() if isinstance(value, dict) else enumerate(value):
                self._child(guard, value, key, False, found)


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)


def _attributes(value: Any, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Those of `names` that `value` has as plain attributes, in its dict, its slots or its class."""
    for name in sorted(names):
        if isinstance(value, ModuleType):
            if name in value.__dict__:
                yield name, value.__dict__[name]
        elif owner_of(value, name) is not None:
            try:
                yield name, getattr(value, name)
            except AttributeError:
                continue  # a slot that holds nothing


class Captures:
    """What one compiled function captures, over all its traces."""

    def __init__(self, name: str, function: Callable[..., Any]):
        self.name = name
        self.reads = Reads(function)
        self.inputs: set[tuple] = set()  # locations whose numbers have changed: the next trace takes them as inputs
        self.fixed: set[tuple] = set()  # locations where no stand-in can be put
        self._warned: set[str] = set()

    def scan(self) -> list[Guard]:
        return _Scan(self.reads, self._complain).run()

    def fix(self, paths: Iterable[tuple]) -> None:
        self.fixed.update(paths)

    def takes(self, guard: Guard) -> bool:
        """Whether a number is to be an input of the plan."""
        return guard.path in self.inputs and guard.path not in self.fixed and is_number(guard.value)

    def _complain(self, place: str, what: str) -> None:
        self._warn(f"large {place}", f"{self.name} reads {place}: {what}. A later change inside it is not seen; pass it"
                   " as an argument, or as a tensor.")  # fmt: skip

    def warn_impure(self) -> None:
        for loads, module in self.reads.codes.values():
            for name, attribute in loads.chains:
                if attribute == "random" and module.get(name) is np:
                    self.reads.impure.add("numpy.random")
        for name in sorted(self.reads.impure):
            self._warn(
                f"impure {name}",
                f"{self.name} calls {name} while it is traced: every later call repeats the value of this one. Pass the"
                " value as an argument, or draw with weft.rand.",
            )

    def _warn(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warn(text)


class Watch:
    """One trace: what lay where before it, and what it left there. While it lasts, captured numbers that have changed
    before are numbers of the tape."""

    def __init__(self, captures: Captures, tape: Tape):
        self.captures, self.tape = captures, tape
        self.before: list[Guard] = []
        self.sources: dict[tuple, HostNumber] = {}  # by path, the stand-ins
        self._assigned: list[tuple[Guard, Any]] = []
        self._changed = False

    def __enter__(self) -> Watch:
        self.before = self.captures.scan()
        try:
            for guard in self.before:
                self._replace(guard)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    def _replace(self, guard: Guard) -> None:
        """Put a stand-in where a number is that may differ from call to call."""
        if not self.captures.takes(guard):
            return
        number = self.tape.source(guard.value)
        try:
            guard.put(number)
        except (TypeError, AttributeError):
            self.captures.fix([guard.path])
            return
        self.sources[guard.path] = number

    def undo(self) -> None:
        """Undo what the function has assigned: it is going to run again."""
        for guard, _ in reversed(self._assigned):
            guard.put(guard.value)

    def fix(self, entries: Iterable[int]) -> None:
        """Give the next trace those captured numbers as they are that the entries of the tape depend on."""
        needed = set(self.tape.find_needed(list(entries)))
        self.captures.fix(path for path, number in self.sources.items() if number._index in needed)

    def end(self) -> None:
        """Take the stand-ins away, and note what the function has assigned. Once more does no harm."""
        self.tape.close()
        for guard in self.before:
            if guard.kind == "absent":
                self._changed = self._changed or is_there(guard)
                continue
            try:
                now = guard.fetch()
            except MISSING:
                self._changed = True
                continue
            stand_in = self.sources.get(guard.path)
            if now is stand_in and stand_in is not None:
                guard.put(guard.value)
            elif guard.kind in ("items", "all items", "array"):
                same = guard.accepts(now)
                self._changed = self._changed or not same
                if not isinstance(now, tuple):  # a tuple may be one with stand-ins in it
                    self._changed = self._changed or now is not guard.value
                guard.value = now
            elif now is not guard.value:
                if type(now) is HostNumber:
                    self.tape.used.add(now._index)
                    guard.put(self.tape.values[now._index])
                elif guard.kind == "alias" or isinstance(now, CONTAINERS) or is_object(now):
                    self._changed = True  # the contents of a new object are not known
                self._assigned.append((guard, now))

    def guards(self) -> tuple[Guards, list[int]]:
        """The guards for the variant that was traced, and the entries of the tape that `Guards.numbers` fetches."""
        self.captures.reads.find_functions()
        before = {guard.path: guard for guard in self.before}
        assigned = {guard.path: (guard, value) for guard, value in self._assigned}
        stored = _union(loads.stored for loads, _ in self.captures.reads.codes.values())
        kept: list[Guard] = []
        inputs: list[int] = []
        targets: dict[tuple, Guard] = {}
        once = self._changed
        for guard in self.captures.scan():
            old, number = before.get(guard.path), self.sources.get(guard.path)
            if old is None:
                # What was there first is not known.
                if is_module(guard.root):
                    once = once or (id(guard.root), guard.key) in self.captures.reads.module_writes
                else:
                    once = once or (guard.key in stored and guard.kind != "object")
            elif guard.path in assigned:
                targets[guard.path] = guard
                guard.kind, guard.value, guard.form, guard.versioned = old.kind, old.value, old.form, False
            if number is not None:
                guard.kind, guard.form = "number", type(self.tape.values[number._index])
                if number._index in self.tape.used or guard.path in assigned:
                    inputs.append(number._index)
                else:
                    continue  # it was not read
            kept.append(guard)
        effects = [(targets[path], value) for path, (_, value) in assigned.items() if path in targets]
        return Guards(kept, effects, once), inputs
