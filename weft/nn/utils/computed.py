"""Attributes of a module that are computed from its parameters whenever they are read.

`compute(module, "weight", rule)` makes `module.weight` the result of `rule.value(module)`: parametrizations and weight
normalization are such rules. Nothing is kept between reads, so an optimizer's update and a compiled step see the
parameters as they are. The module gets a class that derives from its own and has the attributes as properties; modules
with the same attributes share it.
"""

from __future__ import annotations

import functools
from typing import Any, Protocol

from weft.base.errors import GraphError, problem
from weft.base.state import MODULES
from weft.nn.module import Module
from weft.nn.parameter import is_lazy


class Rule(Protocol):
    """How an attribute is computed, and what assigning to it does."""

    is_parametrization: bool

    def value(self, module: Any) -> Any:
        """The attribute."""

    def assign(self, module: Any, value: Any) -> None:
        """Make the attribute `value`."""


def rules(module: Module) -> dict[str, Rule]:
    """The computed attributes of a module."""
    return module.__dict__.get("_computed", {})


def compute(module: Module, name: str, rule: Rule) -> None:
    """Let `rule` compute the attribute `name`, which nothing else may be called."""
    _set_rules(module, {**rules(module), name: rule})


def stop_computing(module: Module, name: str) -> None:
    """Take the attribute away."""
    _set_rules(module, {other: rule for other, rule in rules(module).items() if other != name})


def plain_class(module: Module) -> type:
    """The class of a module without computed attributes."""
    return type(module).__dict__.get("_plain_class", type(module))


def need_shape(who: str, module: Module, name: str, tensor: Any) -> None:
    """Raise for a tensor of a lazy module that was not called yet."""
    if is_lazy(tensor):
        given = f"{name!r} of {type(module).__name__}, which has no shape yet"
        raise problem(GraphError, who, given, "a tensor with a shape", "call the module once before")


def _set_rules(module: Module, new: dict[str, Rule]) -> None:
    plain = plain_class(module)
    if new:
        module.__dict__["_computed"] = new
        is_parametrized = any(rule.is_parametrization for rule in new.values())
        module.__class__ = _class_with(plain, tuple(sorted(new)), is_parametrized)
    else:
        del module.__dict__["_computed"]
        module.__class__ = plain
    MODULES.bump()


@functools.cache
def _class_with(plain: type, names: tuple[str, ...], is_parametrized: bool) -> type:
    """`plain` with properties for computed attributes."""
    space: dict[str, Any] = {name: _property(name) for name in names}
    space |= {"_plain_class": plain, "__reduce_ex__": _reduce, "__module__": plain.__module__, "__doc__": plain.__doc__}
    return type(f"Parametrized{plain.__name__}" if is_parametrized else plain.__name__, (plain,), space)


def _property(name: str) -> property:
    def read(self: Any) -> Any:
        return rules(self)[name].value(self)

    def assign(self: Any, value: Any) -> None:
        rules(self)[name].assign(self, value)

    return property(read, assign, doc=f"{name}, computed from parameters")


def _reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
    """For pickle: the class is made again from the one that a file of Python holds."""
    names = tuple(sorted(rules(self)))
    return _rebuild, (plain_class(self), names, type(self).__name__ != plain_class(self).__name__), self.__getstate__()


def _rebuild(plain: type, names: tuple[str, ...], is_parametrized: bool) -> Any:
    """An empty module; pickled files name this function: it stays where it is."""
    made: Any = _class_with(plain, names, is_parametrized)
    return made.__new__(made)
