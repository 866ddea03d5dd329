"""Captured Python values: what a compiled function reads from globals, closures, defaults and attributes.

`Captures.scan` follows what `reading` found to the values and makes a tree of guards: numbers, strings and containers
of them are compared by value, objects by their type and by those of their attributes that are read, everything else by
identity. Before a replay `Guards.check`, one generated expression, compares identities only; `verify` compares values.

A number that changed is given to the next trace as a `HostNumber`, put in its place while the function runs. Names,
attributes and items that the function assigns are assigned again by each replay.
"""

from __future__ import annotations

import keyword
import operator
import os
import re
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from types import CellType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np

from weft.errors import TraceWarning
from weft.graph.numbers import HostNumber, Tape
from weft.reading import Reads, belongs_to_library, is_library, loads_of
from weft.size import Size
from weft.state import MODULES
from weft.tensor import Tensor

MOST_ITEMS = 4096  # values in one container, or bytes / 16 of one array, that are compared before each call
MOST_SEPARATE = 32  # numbers and strings in one container that are guarded one by one and may become inputs

TRACING = threading.RLock()  # while one thread traces, places may hold stand-ins that no other may take for values


def _unlock() -> None:
    """A thread that traces while another forks is not there in the child."""
    global TRACING
    TRACING = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)

_MISSING = (LookupError, AttributeError, ValueError)  # what was read is not there any more
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_NAME = re.compile(r"\b[a-z]\d+\b")  # in the generated expressions
MODULE_INTERNALS = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent", "_training", "_state_hooks"})
REGISTRIES = ("_parameters", "_buffers", "_modules")  # the dicts of a module
_VALUES = (int, float, complex, str, bytes, type(None), type(...), range)


def warn(text: str) -> None:
    """A `TraceWarning` at the user's line."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, TraceWarning, stacklevel=level)


def frozen(value: Any) -> Any:
    """What two values must have in common to be the same: type and value, with signs of zeros and NaNs."""
    kind = type(value)
    if isinstance(value, float):
        return kind, value.hex()
    if isinstance(value, complex):
        return kind, value.real.hex(), value.imag.hex()
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if isinstance(value, (tuple, frozenset)) and kind in (tuple, Size, frozenset):
        return kind, kind(frozen(one) for one in value)
    return kind, value if _is_value(value) else id(value)


def _is_value(value: Any) -> bool:
    return isinstance(value, (*_VALUES, np.generic)) and not isinstance(value, Enum)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


class Guard:
    """One place and what lies there. `root` is what the first place of a path is in: a module's names, a cell of a
    closure, a function, an object. `key` is the attribute's name, or the item's index or key; None for a cell."""

    __slots__ = ("form", "is_attribute", "key", "kind", "parent", "path", "root", "value", "versioned")

    def __init__(self, parent: Guard | None, root: Any, key: Any, is_attribute: bool, path: tuple):
        self.parent, self.root, self.key, self.is_attribute, self.path = parent, root, key, is_attribute, path
        self.kind = "identity"  # or value, equal, number, items, all items, object, alias, array, absent
        self.value: Any = None  # what lay there when last looked at
        self.form: Any = None  # what has to stay the same
        self.versioned = False  # lies in a module: looked at only when the version of all modules has changed

    @property
    def container(self) -> Any:
        return self.root if self.parent is None else self.parent.value

    def fetch(self) -> Any:
        """What lies there now, in the container as it was last seen."""
        container = self.container
        if isinstance(container, CellType):
            return container.cell_contents
        if self.is_attribute:
            return getattr(container, self.key)
        return dict.__getitem__(container, self.key) if isinstance(container, dict) else container[self.key]

    def put(self, value: Any) -> None:
        """Put a value there, past any method that a class defines for it."""
        container, key = self.container, self.key
        if isinstance(container, CellType):
            container.cell_contents = value
        elif not self.is_attribute:
            if isinstance(container, dict):
                dict.__setitem__(container, key, value)
            elif isinstance(container, tuple):
                items = [*container[:key], value, *container[key + 1 :]]
                if self.parent is None:
                    raise TypeError("a tuple of its own cannot be changed")
                self.parent.value = type(container)(*items) if hasattr(container, "_fields") else tuple(items)
                self.parent.put(self.parent.value)
            else:
                container[key] = value
        elif isinstance(container, ModuleType):
            container.__dict__[key] = value
        elif isinstance(container, FunctionType):
            setattr(container, key, value)
        elif (registry := _registry_of(container, key)) is not None:
            dict.__setitem__(registry, key, value)
        else:
            owner = _owner(container, key)
            if isinstance(owner, type):
                type.__setattr__(owner, key, value)
            else:
                object.__setattr__(container, key, value)

    def look(self, value: Any) -> None:
        """Take `value` for what has to stay."""
        self.value = value
        if _is_value(value):
            self.kind, self.form = "value", frozen(value)
        elif isinstance(value, np.ndarray):
            self.kind, self.form = "array", _array(value)
        elif isinstance(value, _CONTAINERS):
            self.kind, self.form = "items", _shape(value)
        elif _is_object(value):
            self.kind, self.form = "object", type(value)
        else:
            self.kind, self.form = "identity", id(value)

    def accepts(self, value: Any) -> bool:
        """Whether `value`, found there now, is as good as what was there."""
        match self.kind:
            case "identity":
                return value is self.value
            case "alias":
                return value is (self.value if self.form is None else self.form.value)
            case "number":
                return type(value) is self.form
            case "equal":
                return value == self.form
            case "object":
                return type(value) is self.form
            case "value":
                return value is self.value or (_is_value(value) and frozen(value) == self.form)
            case "array":
                return isinstance(value, np.ndarray) and _array(value) == self.form
            case "items":
                return isinstance(value, _CONTAINERS) and _shape(value) == self.form
        return isinstance(value, _CONTAINERS) and _items(value) == self.form

    def has_contents(self) -> bool:
        """Whether the value may change without being replaced. The dicts of a module bump the version themselves."""
        if self.kind not in ("items", "all items", "array"):
            return False
        return not (self.key in REGISTRIES and _is_module(self.container))

    def name(self) -> str:
        """The place, for people."""
        if self.parent is None:
            kind, _, word = self.path
            return f"{kind} {word}"
        return self.parent.name() + (f".{self.key}" if self.is_attribute else f"[{self.key!r}]")


class Guards:
    """All guards of one variant, parents before children, and what a call assigns.

    `check()` says whether all objects are those that were seen last; `numbers()` fetches those that are inputs of the
    plan, in order, or is None where one is gone.
    """

    def __init__(self, guards: list[Guard], effects: list[tuple[Guard, Any]], once: bool):
        self.guards = guards
        self.effects = effects  # (place, a HostNumber of the tape or the value) to assign
        self.once = once  # the function changed something that it reads in a way that no replay can repeat
        self._names: dict[str, Any] = {}
        self._used: list[list[str]] = []  # the names that each of the generated functions reads
        self._modules = MODULES.value  # the version of all modules for which these guards hold
        self.assigns_to_modules = any(_is_module(guard.container) for guard, _ in effects)
        self.check, self.numbers = self._generate()

    def bump_modules(self) -> None:
        """Let others look at modules that this function has assigned to. It need not look itself."""
        is_current = self._modules == MODULES.value
        MODULES.bump()
        if is_current:
            self._modules = MODULES.value

    def verify(self) -> bool:
        """Whether every guard holds, by value; then `check` knows the present objects."""
        if self.once:
            return False
        version = MODULES.value
        for guard in self.guards:
            if guard.versioned and version == self._modules:
                # The version covers which object lies there. What lies inside an array or a container it does not.
                if guard.has_contents() and not guard.accepts(guard.value):
                    return False
                continue
            if guard.kind == "absent":
                if _is_there(guard):
                    return False
                continue
            try:
                value = guard.fetch()
            except _MISSING:
                return False
            if not guard.accepts(value):
                return False
            guard.value = value
        self._modules = version
        self._refresh()
        return True

    def difference(self) -> str:
        """In words, the first guard that does not hold; '' if all do."""
        if self.once:
            return "the function changes a container that it reads"
        for guard in self.guards:
            if guard.kind == "absent":
                if _is_there(guard):
                    return f"{guard.name()} was not there"
                continue
            try:
                value = guard.fetch()
            except _MISSING:
                return f"{guard.name()} is gone"
            if not guard.accepts(value):
                if guard.kind == "value":
                    return f"{guard.name()} was {_short(guard.value)} and is {_short(value)}"
                return f"{guard.name()} has changed"
            guard.value = value
        return ""

    def changed_numbers(self) -> Iterator[tuple]:
        """The places whose numbers are others now."""
        for guard in self.guards:
            if guard.kind == "absent":
                continue
            try:
                value = guard.fetch()
            except _MISSING:
                return
            if guard.kind == "value" and _is_number(value) and _is_number(guard.value) and not guard.accepts(value):
                yield guard.path
            elif guard.kind != "value":
                if not guard.accepts(value):
                    return
                guard.value = value

    def _present(self) -> dict[str, Any]:
        """What the generated expression compares with."""
        names: dict[str, Any] = {}
        for number, guard in enumerate(self.guards):
            names[f"v{number}"] = guard.value
            if guard.kind == "items" and isinstance(guard.value, dict):
                names[f"k{number}"] = list(guard.value)
            elif guard.kind == "all items":
                names[f"k{number}"] = tuple(guard.value)
                if isinstance(guard.value, dict):
                    names[f"i{number}"] = tuple(guard.value.values())
        return names

    def _refresh(self) -> None:
        """Let the generated functions know the present objects."""
        names = self._names
        names.update(self._present())
        for function, used in zip((self.check, self.numbers), self._used, strict=True):
            function.__defaults__ = tuple([names[name] for name in used])

    def _generate(self) -> tuple[Callable[[], bool], Callable[[], tuple | None]]:
        index = {id(guard): number for number, guard in enumerate(self.guards)}
        names, terms, numbers = self._names, ["False" if self.once else "True"], []
        names.update(self._present())
        for number, guard in enumerate(self.guards):
            if guard.parent is None:
                holder = f"r{number}"
                names[holder] = guard.root
            else:
                holder = f"v{index[id(guard.parent)]}"
            here, found = f"v{number}", _expression(guard, holder, number, names)
            if guard.kind == "absent":
                if not guard.versioned:
                    terms.append(f"not hasattr({holder}, {guard.key!r})")
            elif guard.kind == "number":
                numbers.append(found)
            elif not guard.versioned and not (isinstance(guard.container, tuple) and not guard.is_attribute):
                terms.append(f"{found} is {here}")  # the items of a tuple never change
            if guard.has_contents():
                terms += _contents(guard, here, number, names)
        space: dict[str, Any] = {"is_": operator.is_, "gone": _MISSING, "item": dict.__getitem__, "array": _array}
        for name, text, otherwise in (
            ("check", " and\n  ".join(terms), "False"),
            ("numbers", "".join(f"{found}, " for found in numbers), "None"),
        ):
            # What is compared lies in defaults: local variables are the fastest to reach.
            used = [one for one in dict.fromkeys(_NAME.findall(text)) if one in names]
            self._used.append(used)
            parameters = ", ".join(f"{one}=None" for one in used)
            exec(f"def {name}({parameters}):\n try:\n  return ({text})\n except gone:\n  return {otherwise}", space)
            space[name].__defaults__ = tuple([names[one] for one in used])
        return space["check"], space["numbers"]


def _expression(guard: Guard, holder: str, number: int, names: dict[str, Any]) -> str:
    """How the generated expression fetches a value."""
    if isinstance(guard.container, CellType):
        return f"{holder}.cell_contents"
    if guard.is_attribute:
        if guard.key.isidentifier() and not keyword.iskeyword(guard.key):
            return f"{holder}.{guard.key}"
        names[f"f{number}"] = operator.attrgetter(guard.key)
        return f"f{number}({holder})"
    plain = type(guard.key) in (int, str)
    if not plain:
        names[f"q{number}"] = guard.key
    key = repr(guard.key) if plain else f"q{number}"
    if isinstance(guard.container, dict) and type(guard.container) is not dict:
        return f"item({holder}, {key})"
    return f"{holder}[{key}]"


def _contents(guard: Guard, here: str, number: int, names: dict[str, Any]) -> list[str]:
    """What the generated expression asks of a mutable value besides being the same object."""
    if guard.kind == "array":
        names[f"b{number}"] = guard.form
        return [f"array({here}) == b{number}"]
    if guard.kind not in ("items", "all items") or isinstance(guard.value, (tuple, frozenset)):
        return []
    if guard.kind == "items":
        if type(guard.form[1]) is tuple:
            return [f"[*{here}] == k{number}"]
        return [f"len({here}) == {guard.form[1]}"]
    terms = [f"len({here}) == len(k{number})", f"all(map(is_, {here}, k{number}))"]
    return [*terms, f"all(map(is_, {here}.values(), i{number}))"] if isinstance(guard.value, dict) else terms


def _array(value: np.ndarray) -> tuple:
    """What has to stay of an array; of a large one only its form (`Captures` says so)."""
    small = value.nbytes <= 16 * MOST_ITEMS and not value.dtype.hasobject
    return value.dtype.str, value.shape, value.tobytes() if small else id(value)


def _shape(value: Any) -> tuple:
    """What has to stay of a container whose items have guards of their own, or cannot have any."""
    if isinstance(value, dict) and len(value) <= MOST_ITEMS:
        return type(value), tuple(frozen(key) for key in value)
    return type(value), len(value)


def _items(value: Any) -> tuple:
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(frozen(one) for one in value)
    keys = tuple(frozen(key) for key in value)
    return type(value), keys, tuple(frozen(one) for one in value.values()) if isinstance(value, dict) else ()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_object(value: Any) -> bool:
    """Whether attributes of a value can be followed: those of Weft's and NumPy's own objects are not looked at."""
    if isinstance(value, (Tensor, Enum, FunctionType)) or _is_module(value):
        return False
    if isinstance(value, ModuleType):
        return not belongs_to_library(value.__name__)
    if isinstance(value, type):
        return not belongs_to_library(value.__module__)
    if isinstance(value, partial):
        return True
    if isinstance(value, _CONTAINERS):
        return False
    if (type(value).__module__ or "").partition(".")[0] in ("weft", "numpy", "builtins"):
        return False
    return hasattr(value, "__dict__") or any("__slots__" in vars(base) for base in type(value).__mro__)


def _is_there(guard: Guard) -> bool:
    """Whether an attribute that was absent is there: of a module's method, among its own attributes."""
    if _is_module(guard.container) and guard.kind == "absent" and hasattr(type(guard.container), guard.key):
        return guard.key in guard.container.__dict__
    return hasattr(guard.container, guard.key)


def _is_module(value: Any) -> bool:
    """Whether a value is an `nn.Module`, which has guards of its own."""
    return hasattr(type(value), "_is_weft_module")


def _registry_of(module: Any, name: str) -> dict[str, Any] | None:
    """Which of its dicts a module has a parameter, buffer or submodule in; None for any other attribute."""
    if not _is_module(module):
        return None
    return next((module.__dict__[one] for one in REGISTRIES if name in module.__dict__[one]), None)


def _owner(value: Any, name: str) -> Any:
    """Who holds an attribute that is a plain value: `value` itself, or the class that has it; None if nobody does."""
    if name in getattr(value, "__dict__", ()) and not isinstance(value, type):
        return value
    for base in value.__mro__ if isinstance(value, type) else type(value).__mro__:
        found = vars(base).get(name, _MISSING)
        if found is not _MISSING:
            if isinstance(found, MemberDescriptorType):
                return value
            return None if hasattr(type(found), "__get__") else base
    return None


def _draws(value: Any) -> bool:
    """Whether a value is a generator of NumPy's, or a function that draws from one."""
    kinds = (type(value), type(getattr(value, "__self__", None)))
    return any(kind.__module__ in ("numpy.random._generator", "numpy.random.mtrand") for kind in kinds)


class _Scan:
    """One walk from what the code names to the values that lie there."""

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
                if name in module and not (name not in loads.globals and isinstance(module[name], _CONTAINERS)):
                    self._root("the global", module, name, False)
        for function in list(self.reads.functions.values()):
            self._function(function)
        self._follow()
        for key, reference in list(self.reads.objects.items()):
            value = reference()
            if value is None:
                del self.reads.objects[key]
            elif _is_module(value):
                self.reads.see_module(value)
            elif _is_object(value) and id(value) not in self._seen:
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
            base.__module__.startswith("weft.") for base in type(module).__mro__[:-2]
        )
        names |= {name for name in space if (everything or name in by_name) and name not in MODULE_INTERNALS}
        for name in sorted(names):
            self._versioned(module, name, word)
        for name in sorted({"forward", *by_name} - names):
            self._method(module, name, word)
        for registry in REGISTRIES:
            for name in space[registry]:
                self._versioned(module, name, word)
        if type(module).__module__.partition(".")[0] != "weft":
            for name, found in _attributes(module, by_name - names):
                if not _is_module(found):
                    self._child(None, module, name, True, found)  # of its class
        for name in sorted(self.optional):
            if not hasattr(module, name):
                self._absent(None, module, name)
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

    def _versioned(self, module: Any, name: str, word: str) -> None:
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
            guard.kind, guard.value, guard.form = "items", value, _shape(value)
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
        except _MISSING:
            return
        if not (skip_containers and isinstance(value, _CONTAINERS)):
            self._add(guard, value)

    def _add(self, guard: Guard, value: Any) -> None:
        guard.look(value)
        self.guards.append(guard)
        if guard.kind in ("items", "object"):
            if id(value) not in self._seen:
                self._seen[id(value)] = guard
                self._waiting.append((guard, value))
            else:  # what lies in it has guards already, where it was found first
                guard.kind, guard.form = "alias", self._seen[id(value)]
        elif guard.kind == "array" and value.nbytes > 16 * MOST_ITEMS:
            self.complain(guard.name(), f"an array of {value.nbytes} bytes, whose elements are not compared")
        elif guard.kind == "identity":
            if _draws(value):
                self.reads.impure.add("numpy.random")
            elif _is_module(value) and not (guard.versioned and _registry_of(guard.container, guard.key) is not None):
                self.reads.see_module(value)  # a variable, an attribute or an item that the code names

    def _child(self, parent: Guard | None, container: Any, key: Any, is_attribute: bool, value: Any) -> None:
        if parent is None:
            path: tuple = (f"the {type(container).__qualname__}'s", id(container), key)
            self._add(Guard(None, container, key, is_attribute, path), value)
        else:
            self._add(Guard(parent, None, key, is_attribute, (*parent.path, key)), value)

    def _children(self, guard: Guard | None, value: Any) -> None:
        if isinstance(value, _CONTAINERS) and guard is not None:
            self._container(guard, value)
        elif isinstance(value, partial):
            for name in ("func", "args", "keywords"):
                self._child(guard, value, name, True, getattr(value, name))
        else:
            for name, found in _attributes(value, self.attributes | self.methods | self.changed):
                called = name in self.methods and name not in self.changed
                if not (called and not callable(found)) and not (
                    name in self.changed and isinstance(found, _CONTAINERS)
                ):
                    self._child(guard, value, name, True, found)
            for name in sorted(self.optional):
                if not hasattr(value, name):
                    self._absent(guard, value, name)

    def _absent(self, parent: Guard | None, container: Any, name: str) -> None:
        path = (f"the {type(container).__qualname__}'s", id(container)) if parent is None else parent.path
        guard = Guard(parent, container if parent is None else None, name, True, (*path, name))
        guard.kind = "absent"
        self.guards.append(guard)

    def _container(self, guard: Guard, value: Any) -> None:
        items = list(value.values() if isinstance(value, dict) else value)
        plain = all(map(_is_value, items))
        if isinstance(value, dict):
            plain = plain and all(map(_is_value, value))
        if len(items) > MOST_ITEMS:
            self.complain(guard.name(), f"a {type(value).__name__} of {len(items)} values, which are not compared")
        elif isinstance(value, (set, frozenset)) or (plain and len(items) > MOST_SEPARATE):
            guard.kind, guard.form = "all items", _items(value)
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
        elif _owner(value, name) is not None:
            try:
                yield name, getattr(value, name)
            except AttributeError:
                continue  # a slot that holds nothing


class Captures:
    """What one compiled function captures, over all its traces."""

    def __init__(self, name: str, function: Callable[..., Any]):
        self.name = name
        self.reads = Reads(function)
        self.inputs: set[tuple] = set()  # places whose numbers have changed: the next trace takes them as inputs
        self.fixed: set[tuple] = set()  # places where no stand-in can be put
        self._warned: set[str] = set()

    def scan(self) -> list[Guard]:
        return _Scan(self.reads, self._complain).run()

    def fix(self, paths: Iterable[tuple]) -> None:
        self.fixed.update(paths)

    def takes(self, guard: Guard) -> bool:
        """Whether a number is to be an input of the plan."""
        return guard.path in self.inputs and guard.path not in self.fixed and _is_number(guard.value)

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
                if self.captures.takes(guard):
                    number = self.tape.source(guard.value)
                    try:
                        guard.put(number)
                    except (TypeError, AttributeError):
                        self.captures.fix([guard.path])
                        continue
                    self.sources[guard.path] = number
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self._end()

    def undo(self) -> None:
        """Take back what the function has assigned: it is going to run once more."""
        for guard, _ in reversed(self._assigned):
            guard.put(guard.value)

    def fix(self, entries: Iterable[int]) -> None:
        """Give the next trace those captured numbers as they are that the entries of the tape depend on."""
        needed = set(self.tape.needed(list(entries)))
        self.captures.fix(path for path, number in self.sources.items() if number._index in needed)

    def _end(self) -> None:
        """Take the stand-ins away, and note what the function has assigned."""
        self.tape.close()
        for guard in self.before:
            if guard.kind == "absent":
                self._changed = self._changed or _is_there(guard)
                continue
            try:
                now = guard.fetch()
            except _MISSING:
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
                elif guard.kind == "alias" or isinstance(now, _CONTAINERS) or _is_object(now):
                    self._changed = True  # what lies in a new object is not known
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
                if _is_module(guard.root):
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
                    continue  # nobody asked for it
            kept.append(guard)
        effects = [(targets[path], value) for path, (_, value) in assigned.items() if path in targets]
        return Guards(kept, effects, once), inputs
