"""Guards: what a trace relied on, and whether it still holds.

A `Guard` is one location that a compiled function reads (a global, a closure's variable, an attribute, an item) with
the value that was found there. `Guards` has those of one trace: `check`, one generated expression, compares identities
before a replay; `verify` compares values; `difference` says what changed.
"""

from __future__ import annotations

import keyword
import operator
import re
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from types import CellType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np

from weft.base.state import MODULES
from weft.core.size import Size
from weft.core.tensor import Tensor
from weft.jit.code_loads import belongs_to_library

MAX_GUARDED_ITEMS = 4096  # values in one container, or bytes / 16 of one array, that are compared before each call
MISSING = (LookupError, AttributeError, ValueError)  # what was read is not there any more
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_NAME = re.compile(r"\b[a-z]\d+\b")  # in the generated expressions
REGISTRIES = ("_parameters", "_buffers", "_modules")  # the dicts of a module
_VALUES = (int, float, complex, str, bytes, type(None), type(...), range)


def freeze(value: Any) -> Any:
    """What two values must have in common to be the same: type and value, with signs of zeros and NaNs."""
    kind = type(value)
    if isinstance(value, float):
        return kind, value.hex()
    if isinstance(value, complex):
        return kind, value.real.hex(), value.imag.hex()
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if isinstance(value, (tuple, frozenset)) and kind in (tuple, Size, frozenset):
        return kind, kind(freeze(one) for one in value)
    return kind, value if is_value(value) else id(value)


def is_value(value: Any) -> bool:
    return isinstance(value, (*_VALUES, np.generic)) and not isinstance(value, Enum)


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


class Guard:
    """One location and its value. `root` is what the first location of a path is in: a module's names, a cell of a
    closure, a function, an object. `key` is the attribute's name, or the item's index or key; None for a cell."""

    __slots__ = ("form", "is_attribute", "key", "kind", "parent", "path", "root", "value", "versioned")

    def __init__(self, parent: Guard | None, root: Any, key: Any, is_attribute: bool, path: tuple):
        self.parent, self.root, self.key, self.is_attribute, self.path = parent, root, key, is_attribute, path
        self.kind = "identity"  # or value, equal, number, items, all items, object, alias, array, absent
        self.value: Any = None  # what lay there when last looked at
        self.form: Any = None  # what has to stay the same
        self.versioned = False  # is in a module: checked only when the version of all modules has changed

    @property
    def container(self) -> Any:
        return self.root if self.parent is None else self.parent.value

    def fetch(self) -> Any:
        """The value there now, in the container as it was last seen."""
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
        elif (registry := registry_of(container, key)) is not None:
            dict.__setitem__(registry, key, value)
        else:
            owner = owner_of(container, key)
            if isinstance(owner, type):
                type.__setattr__(owner, key, value)
            else:
                object.__setattr__(container, key, value)

    def look(self, value: Any) -> None:
        """Take `value` for what has to stay."""
        self.value = value
        if is_value(value):
            self.kind, self.form = "value", freeze(value)
        elif isinstance(value, np.ndarray):
            self.kind, self.form = "array", _array(value)
        elif isinstance(value, CONTAINERS):
            self.kind, self.form = "items", shape_of(value)
        elif is_object(value):
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
                return value is self.value or (is_value(value) and freeze(value) == self.form)
            case "array":
                return isinstance(value, np.ndarray) and _array(value) == self.form
            case "items":
                return isinstance(value, CONTAINERS) and shape_of(value) == self.form
        return isinstance(value, CONTAINERS) and items_of(value) == self.form

    def has_contents(self) -> bool:
        """Whether the value may change without being replaced. The dicts of a module bump the version themselves."""
        if self.kind not in ("items", "all items", "array"):
            return False
        return not (self.key in REGISTRIES and is_module(self.container))

    def name(self) -> str:
        """The location, as text for messages."""
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
        self.effects = effects  # (location, a HostNumber of the tape or the value) to assign
        self.once = once  # the function changed something that it reads in a way that no replay can repeat
        self._names: dict[str, Any] = {}
        self._used: list[list[str]] = []  # the names that each of the generated functions reads
        self._modules = MODULES.value  # the version of all modules for which these guards hold
        self.assigns_to_modules = any(is_module(guard.container) for guard, _ in effects)
        self.check, self.numbers = self._generate()

    def bump_modules(self) -> None:
        """Make other functions check modules that this function has assigned to. It need not check itself."""
        is_current = self._modules == MODULES.value
        MODULES.bump()
        if is_current:
            self._modules = MODULES.value

    def verify(self) -> bool:
        """Whether every guard holds, by value; then `check` knows the present objects."""
        if self.once:
            return False
        version = MODULES.value
        is_changed = False
        for guard in self.guards:
            if guard.versioned and version == self._modules:
                # The version covers which object is there, not the contents of an array or a container.
                if guard.has_contents():
                    if not guard.accepts(guard.value):
                        return False
                    is_changed = is_changed or guard.kind == "all items"
                continue
            if guard.kind == "absent":
                if is_there(guard):
                    return False
                continue
            try:
                value = guard.fetch()
            except MISSING:
                return False
            if not guard.accepts(value):
                return False
            if value is not guard.value or guard.kind == "all items":  # items may be equal and not the same
                guard.value, is_changed = value, True
        self._modules = version
        if is_changed:
            self._refresh()
        return True

    def difference(self) -> str:
        """In words, the first guard that does not hold; '' if all do."""
        if self.once:
            return "the function changes a container that it reads"
        for guard in self.guards:
            if guard.kind == "absent":
                if is_there(guard):
                    return f"{guard.name()} was not there"
                continue
            try:
                value = guard.fetch()
            except MISSING:
                return f"{guard.name()} is gone"
            if not guard.accepts(value):
                if guard.kind == "value":
                    return f"{guard.name()} was {_shorten(guard.value)} and is {_shorten(value)}"
                return f"{guard.name()} has changed"
            guard.value = value
        return ""

    def changed_numbers(self) -> Iterator[tuple]:
        """The locations whose numbers have changed."""
        for guard in self.guards:
            if guard.kind == "absent":
                continue
            try:
                value = guard.fetch()
            except MISSING:
                return
            if guard.kind == "value" and is_number(value) and is_number(guard.value) and not guard.accepts(value):
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
        space: dict[str, Any] = {"is_": operator.is_, "gone": MISSING, "item": dict.__getitem__, "array": _array}
        for name, text, otherwise in (
            ("check", " and\n  ".join(terms), "False"),
            ("numbers", "".join(f"{found}, " for found in numbers), "None"),
        ):
            # What is compared is in defaults: local variables are the fastest to read.
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
    """What the generated expression checks of a mutable value besides its identity."""
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
    small = value.nbytes <= 16 * MAX_GUARDED_ITEMS and not value.dtype.hasobject
    return value.dtype.str, value.shape, value.tobytes() if small else id(value)


def shape_of(value: Any) -> tuple:
    """What has to stay of a container whose items have guards of their own, or cannot have any."""
    if isinstance(value, dict) and len(value) <= MAX_GUARDED_ITEMS:
        return type(value), tuple(freeze(key) for key in value)
    return type(value), len(value)


def items_of(value: Any) -> tuple:
    if isinstance(value, (set, frozenset)):
        return type(value), frozenset(freeze(one) for one in value)
    keys = tuple(freeze(key) for key in value)
    return type(value), keys, tuple(freeze(one) for one in value.values()) if isinstance(value, dict) else ()


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def is_object(value: Any) -> bool:
    """Whether attributes of a value can be followed: those of Weft's and NumPy's own objects are not looked at."""
    if isinstance(value, (Tensor, Enum, FunctionType)) or is_module(value):
        return False
    if isinstance(value, ModuleType):
        return not belongs_to_library(value.__name__)
    if isinstance(value, type):
        return not belongs_to_library(value.__module__)
    if isinstance(value, partial):
        return True
    if isinstance(value, CONTAINERS):
        return False
    if (type(value).__module__ or "").partition(".")[0] in ("weft", "numpy", "builtins"):
        return False
    return hasattr(value, "__dict__") or any("__slots__" in vars(base) for base in type(value).__mro__)


def is_there(guard: Guard) -> bool:
    """Whether an attribute that was absent is there: of a module's method, among its own attributes."""
    if is_module(guard.container) and guard.kind == "absent" and hasattr(type(guard.container), guard.key):
        return guard.key in guard.container.__dict__
    return hasattr(guard.container, guard.key)


def is_module(value: Any) -> bool:
    """Whether a value is an `nn.Module`, which has guards of its own."""
    return hasattr(type(value), "_is_weft_module")


def registry_of(module: Any, name: str) -> dict[str, Any] | None:
    """Which of its dicts a module has a parameter, buffer or submodule in; None for any other attribute."""
    if not is_module(module):
        return None
    return next((module.__dict__[one] for one in REGISTRIES if name in module.__dict__[one]), None)


def owner_of(value: Any, name: str) -> Any:
    """The owner of an attribute that is a plain value: `value` itself, or the class that has it; None if there is
    none."""
    if name in getattr(value, "__dict__", ()) and not isinstance(value, type):
        return value
    for base in value.__mro__ if isinstance(value, type) else type(value).__mro__:
        found = vars(base).get(name, MISSING)
        if found is not MISSING:
            if isinstance(found, MemberDescriptorType):
                return value
            return None if hasattr(type(found), "__get__") else base
    return None
