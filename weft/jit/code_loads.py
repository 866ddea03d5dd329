"""What a function reads: which globals, closure variables and attributes its code loads, and which other functions of
the user's it calls.

A function is profiled while it is traced: every call of a function that belongs neither to Weft, NumPy, the standard
library nor a package that Weft's backends call is recorded with its code, and what that code loads is found by
disassembling it. Names of attributes are collected without their owners: `captures` looks for them in the objects that
can be reached.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import importlib
import inspect
import os
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

_STDLIB = tuple({sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("platstdlib") + os.sep})
_SITE = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))
_OWN = [os.path.dirname(os.path.dirname(__file__)) + os.sep, os.path.dirname(np.__file__) + os.sep]
# Packages in Python that backends call, during a trace, too: what these keep for themselves is no state of the user's.
# Names that a package of the user's may have as well (cuda, hip) are not among them.
_DRIVERS = ("wgpu", "cffi", "llvmlite", "cuda.bindings", "cuda.core", "cuda.pathfinder", "nvmath", "cudnn", "pyopencl")

_IMPORT = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]

# Methods that only change a container: `log.append(x)` reads nothing of `log`.
_WRITING = frozenset({"append", "appendleft", "extend", "insert", "add", "update", "discard", "clear"})

_CLOCKS = frozenset({"time", "perf_counter", "monotonic", "process_time", "thread_time"})
_DATES = frozenset({"now", "utcnow", "today", "gmtime", "localtime", "ctime"})
_IMPURE_NAMES = {*_CLOCKS, *[f"{name}_ns" for name in _CLOCKS], *_DATES, "urandom", "random", "getrandbits"}
_IMPURE_FILES = {folder + name + ".py": name for folder in _STDLIB for name in ("random", "uuid", "secrets")}
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # may continue after a "return"
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """What a code object and those inside it load and store, by name."""

    code: CodeType
    globals: frozenset[str]
    free: frozenset[str]  # variables of enclosing functions
    attributes: frozenset[str]  # loaded as values
    optional: frozenset[str]  # those of them that an object may lack: `getattr(x, "name", None)`
    methods: frozenset[str]  # loaded to be called
    changed: frozenset[str]  # of any kind: loaded to have a method called that only changes a container
    stored: frozenset[str]  # globals, variables of enclosing functions and attributes that are assigned
    chains: frozenset[tuple[str, str]]  # (global, attribute loaded from it)
    is_dynamic: bool  # it may load attributes by names that are computed


@dataclass(slots=True)
class _Found:
    globals: set[str] = field(default_factory=set)
    free: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    optional: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    chains: set[tuple[str, str]] = field(default_factory=set)


_LIBRARY: dict[int, tuple[CodeType, str]] = {}  # code, and its module if its functions are none of their arguments
_LOADS: weakref.WeakKeyDictionary[CodeType, Loads] = weakref.WeakKeyDictionary()
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
_FREE = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"}
_LOAD = _GLOBAL | _FREE | _ATTRIBUTE
_STORE = {"STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR", "DELETE_GLOBAL", "DELETE_ATTR"}
_SKIPPED = {"CACHE", "EXTENDED_ARG", "PUSH_NULL", "NOP"}


def loads_of(code: CodeType) -> Loads:
    """What `code` loads; what functions and comprehensions inside it load counts as its own."""
    known = _LOADS.get(code)
    if known is None:
        found = _Found()
        _collect(code, found)
        known = _LOADS[code] = Loads(
            code, frozenset(found.globals), frozenset(found.free) & frozenset(code.co_freevars),
            frozenset(found.attributes), frozenset(found.optional), frozenset(found.methods),
            frozenset(found.changed), frozenset(found.stored), frozenset(found.chains),
            bool(found.globals & {"getattr", "vars"}) or "__dict__" in found.attributes,
        )  # fmt: skip
    return known


def _collect(code: CodeType, found: _Found) -> None:
    instructions = [one for one in dis.get_instructions(code) if one.opname not in _SKIPPED]
    for one, after in zip(instructions, [*instructions[1:], None], strict=True):
        name = one.argval
        if one.opname in _STORE:
            found.stored.add(name)
            continue
        if after is not None and _is_method(after) and after.argval in _WRITING and one.opname in _LOAD:
            found.changed.add(name)
            continue
        if one.opname in _GLOBAL:
            found.globals.add(name)
            if after is not None and after.opname in _ATTRIBUTE:
                found.chains.add((name, after.argval))
        elif one.opname in _FREE:
            found.free.add(name)
        elif one.opname in _ATTRIBUTE:
            (found.methods if _is_method(one) else found.attributes).add(name)
    if found.globals & {"getattr", "hasattr", "vars"} or "__dict__" in found.attributes:
        found.attributes.update(_words(code.co_consts))
        if found.globals & {"getattr", "hasattr"}:
            found.optional.update(_words(code.co_consts))
    for const in code.co_consts:
        if isinstance(const, CodeType):
            _collect(const, found)


def _is_method(one: Any) -> bool:
    """Whether an attribute is loaded to be called immediately."""
    if one.opname == "LOAD_METHOD":
        return True
    # From 3.12 on the lowest bit of LOAD_ATTR says so.
    return sys.version_info >= (3, 12) and one.opname in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and bool(one.arg & 1)


def _words(consts: Any) -> Iterator[str]:
    for const in consts:
        if isinstance(const, str) and const.isidentifier():
            yield const
        elif isinstance(const, (tuple, frozenset)):
            yield from _words(const)


def is_library(filename: str) -> bool:
    """Whether code of this file is Weft's, NumPy's, the standard library's or that of a package that backends call."""
    if filename.startswith((*_OWN, "<frozen", *_driver_folders())):
        return True
    return filename.startswith(_STDLIB) and not any(site in filename for site in _SITE)


def _driver_folders() -> list[str]:
    """The folders of the packages that backends have loaded."""
    loaded = [sys.modules[name] for name in _DRIVERS if name in sys.modules]
    return [folder + os.sep for package in loaded for folder in getattr(package, "__path__", ())]


def add_library(filename: str) -> None:
    """Count a file, or a folder that ends with a separator, as Weft's: a backend that is stored elsewhere."""
    _OWN.append(filename)


def belongs_to_library(name: str | None) -> bool:
    """Whether a module of this name is Weft's, NumPy's or the standard library's."""
    top = (name or "").partition(".")[0]
    return top in ("weft", "numpy") or top in sys.stdlib_module_names


class Reads:
    """What one compiled function was seen to read, over all its traces."""

    def __init__(self, function: Callable[..., Any]):
        self.codes: dict[tuple[int, int], tuple[Loads, dict[str, Any]]] = {}  # loads, and their globals
        self.functions: dict[int, FunctionType] = {}
        self.objects: dict[int, weakref.ref[Any]] = {}  # arguments of the functions called, such as `self`
        self._made: dict[int, weakref.ref[Any]] = {}  # objects that the function itself made
        self._importing = 0  # the frame of an import in progress
        self._modules: dict[int, weakref.ref[Any]] = {}  # those that were called or looked at
        self.training_read: set[int] = set()  # those of them whose `training` was read, by identity
        self.module_writes: set[tuple[int, str]] = set()  # (identity, attribute) assigned in the last trace
        self.impure: set[str] = set()  # functions called that return another value each time
        self._users: dict[int, CodeType] = {}
        # Calls of functions that are not known yet: by code and what the variables of enclosing functions were; their
        # frames, by identity; those that have ended; and the functions that were found.
        self._unknown: set[tuple[int, ...]] = set()
        self._running: dict[int, FrameType] = {}
        self._ended: list[FrameType] = []
        self._noted: list[weakref.ref[FunctionType]] = []
        self.root = function
        self._begin(function)

    def _begin(self, function: Any) -> None:
        """Register the function itself before it is first run."""
        if isinstance(function, MethodType):
            self._see(function.__self__)
            function = function.__func__
        if not isinstance(function, FunctionType) and not isinstance(function, type):
            self._see(function)
            function = type(function).__call__
        if isinstance(function, FunctionType) and not is_library(function.__code__.co_filename):
            self.functions[id(function)] = function
            self.codes[id(function.__code__), id(function.__globals__)] = (
                loads_of(function.__code__), function.__globals__,
            )  # fmt: skip

    def _see(self, value: Any) -> None:
        known = self.objects.get(id(value)) or self._made.get(id(value))
        if known is None or known() is not value:
            try:
                self.objects[id(value)] = weakref.ref(value)
            except TypeError:
                return  # reachable by another path, or by none that can be followed

    @property
    def is_dynamic(self) -> bool:
        """Whether attributes may be read by names that are not in the code."""
        return any(loads.is_dynamic for loads, _ in self.codes.values())

    def see_module(self, module: Any) -> None:
        """Register an `nn.Module` that the function reads."""
        self._modules[id(module)] = weakref.ref(module)

    def take_modules(self, modules: dict[int, Any], training_read: set[int], writes: set[tuple[int, str]]) -> None:
        """Take over what a trace noted of modules."""
        for module in modules.values():
            self.see_module(module)
        self.training_read |= training_read
        self.module_writes = writes

    def modules(self) -> Iterator[Any]:
        """The modules that were seen, and those that are seen during the iteration."""
        done: set[int] = set()
        while waiting := [key for key in self._modules if key not in done]:
            for key in waiting:
                done.add(key)
                module = self._modules[key]()
                if module is not None:
                    yield module
                else:
                    del self._modules[key]
                    self.training_read.discard(key)

    # ---- while the function runs ---------------------------------------------------------------------------------

    def run(self, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        """Call `function` and note what it reads. (A profiled frame keeps what its variables were: this one ends.)"""
        before = sys.getprofile()
        sys.setprofile(self._event)
        try:
            return function(*args, **kwargs)
        finally:
            sys.setprofile(before if callable(before) else None)
            if before is not None and not callable(before):
                before.enable()  # cProfile's, which is no function
            self._ended += self._running.values()
            self._note_functions()
            self._running.clear()
            self._unknown.clear()
            self._importing = 0

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._importing:  # runs once, and not again in a replay
            if event == "return" and id(frame) == self._importing:
                self._importing = 0
            return
        if frame.f_code is _IMPORT and event == "call":
            self._importing = id(frame)
            return
        if self._ended:
            self._note_functions()
        if event == "call":
            code = frame.f_code
            known = _LIBRARY.get(id(code))
            if known is None and id(code) not in self._users:
                known = self._enter(code)
            if known is None:
                self._call(frame)
            elif known[1] and frame.f_back is not None and id(frame.f_back.f_code) in self._users:
                self.impure.add(f"{known[1]}.{code.co_name}")
        elif event == "return":
            if self._running and id(frame) in self._running and not frame.f_code.co_flags & _SUSPENDED:
                self._ended.append(self._running.pop(id(frame)))  # it has, when the next event comes
        elif event == "c_call" and getattr(argument, "__name__", "") in _IMPURE_NAMES:
            name = _impure_name(argument)
            if name and id(frame.f_code) in self._users:
                self.impure.add(name)

    def _enter(self, code: CodeType) -> tuple[CodeType, str] | None:
        """Code seen for the first time: its entry among the library's, or None if it is the user's."""
        filename = code.co_filename
        if is_library(filename) or any(getattr(callback, "__code__", None) is code for callback in gc.callbacks):
            return _LIBRARY.setdefault(id(code), (code, _IMPURE_FILES.get(filename, "")))
        self._users[id(code)] = code
        return None

    def _call(self, frame: FrameType) -> None:
        code, module = frame.f_code, frame.f_globals
        key = (id(code), id(module))
        if key not in self.codes:
            self.codes[key] = (loads_of(code), module)
            if not code.co_freevars and code.co_name not in _COMPREHENSIONS:
                function = _by_name(code, module)
                if function is not None:
                    self.functions[id(function)] = function
                elif not any(known.__code__ is code for known in self.functions.values()):
                    self._running[id(frame)] = frame
        count = code.co_argcount + code.co_kwonlyargcount
        if code.co_freevars and code.co_name not in _COMPREHENSIONS and not self._is_known(code, frame.f_locals):
            variables = frame.f_locals
            form = (id(code), *[id(variables.get(name, _NOTHING)) for name in code.co_freevars])
            if form not in self._unknown:
                self._unknown.add(form)
                self._running[id(frame)] = frame
        if count:
            variables = frame.f_locals
            for name in code.co_varnames[:count]:
                value = variables.get(name)
                if value is None or type(value) in _PLAIN:
                    continue
                if code.co_name == "__init__" and name == code.co_varnames[0] and id(value) not in self.objects:
                    with contextlib.suppress(TypeError):
                        self._made[id(value)] = weakref.ref(value)
                else:
                    self._see(value)

    # ---- functions with variables or defaults of their own --------------------------------------------------------

    def _is_known(self, code: CodeType, variables: dict[str, Any]) -> bool:
        """Whether a known function of `code` has the variables that a call of it sees."""
        for function in self.functions.values():
            if function.__code__ is code:
                pairs = zip(code.co_freevars, function.__closure__ or (), strict=True)
                if all(_contents(cell) is variables.get(name, _NOTHING) for name, cell in pairs):
                    return True
        return False

    def _note_functions(self) -> None:
        """Note the function objects of the calls that were not known: their closures and defaults belong to them, not
        to their code.

        A frame has no attribute for its function. One that has ended, though, owns a reference to it, which the
        collector sees before those of the variables. The notes are weak, and no frame is kept for longer than needed:
        what the call itself made must be freed when it ends.
        """
        while self._ended:
            frame = self._ended.pop()
            for referent in gc.get_referents(frame):
                if type(referent) is FunctionType and referent.__code__ is frame.f_code:
                    self._noted.append(weakref.ref(referent))
                    break

    def find_functions(self) -> None:
        """Register the functions that were called in the last trace and still exist."""
        for function in [note() for note in self._noted]:
            if function is not None:
                self.functions[id(function)] = function
        self._noted.clear()


_NOTHING = object()


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _NOTHING


_PLAIN = frozenset({
    int, float, bool, str, bytes, tuple, list, dict, set, frozenset, FunctionType, MethodType, ModuleType, np.ndarray,
    type,
})  # fmt: skip


def _by_name(code: CodeType, module: dict[str, Any]) -> FunctionType | None:
    """The function of `code` where its qualified name leads to it."""
    found: Any = None
    for depth, part in enumerate(code.co_qualname.split(".")):
        space = module if depth == 0 else getattr(found, "__dict__", {})
        found = space.get(part)
        if found is None:
            return None
    found = getattr(found, "__func__", None) or getattr(found, "fget", None) or found
    while found is not None and getattr(found, "__code__", None) is not code:
        found = getattr(found, "__wrapped__", None)
    return found if isinstance(found, FunctionType) else None


def _impure_name(function: Any) -> str:
    """The name of a built-in function that returns another value each time, else ''."""
    name, module = function.__name__, getattr(function, "__module__", None)
    owner = getattr(function, "__self__", None)
    if module == "time":
        return f"time.{name}"
    if name == "urandom":
        return "os.urandom"
    if "random" in sys.modules and isinstance(owner, sys.modules["random"].Random):
        return f"random.{name}"
    if isinstance(owner, type) and any(base.__module__ == "datetime" for base in owner.__mro__):
        return f"{owner.__name__}.{name}"
    return ""
