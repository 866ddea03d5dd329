"""Where a value is in a configuration, and the checks that name the location when a value is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from weft.base.errors import ConfigError, problem
from weft.nn.bounds import LARGEST_SIZE


@dataclass(frozen=True)
class Location:
    """A value's path: `Location("net.json").at("layers").at(3)` prints as `net.json: layers[3]`."""

    source: str = ""
    path: str = ""

    def at(self, key: str | int) -> Location:
        """The location of an entry of a dict or list."""
        if isinstance(key, int):
            return Location(self.source, f"{self.path}[{key}]")
        return Location(self.source, f"{self.path}.{key}" if self.path else key)

    def __str__(self) -> str:
        where = self.path or "the top level"
        return f"{self.source}: {where}" if self.source else where

    def fail(self, given: str, expected: str = "", fix: str = "") -> NoReturn:
        """Raise a ConfigError that names this location."""
        raise problem(ConfigError, str(self), given, expected, fix) from None


def display(value: Any) -> str:
    """A value for an error message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def kind_of(value: Any) -> str:
    """What a value of the tree is called in JSON."""
    if isinstance(value, bool):
        return "a boolean"
    names: dict[type, str] = {
        dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number", type(None): "null",
    }  # fmt: skip
    return names.get(type(value), f"a {type(value).__name__}")


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The name that is most like `name`, if one is."""
    by_form: dict[str, str] = {}
    for one in names:
        by_form.setdefault(one.replace("_", "").lower(), one)
    found = difflib.get_close_matches(name.replace("_", "").lower(), by_form, 1, 0.6)
    return by_form[found[0]] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The advice for a name that is unknown; '' where none is like it."""
    found = nearest_name(name, names)
    return f"the nearest name is {found!r}" if found else ""


def object_at(location: Location, value: Any, what: str = "an object") -> dict[str, Any]:
    """The dict at a location."""
    if not isinstance(value, Mapping):
        location.fail(f"{kind_of(value)}, {display(value)}", what)
    return dict(value)


def check_keys(
    location: Location, given: Mapping[str, Any], known: Sequence[str], required: Sequence[str] = ()
) -> None:
    """Refuse keys that are unknown and say which are missing."""
    for key in given:
        if key not in known:
            location.at(key).fail("an unknown key", f"one of {', '.join(known)}", did_you_mean(key, known))
    missing = [key for key in required if key not in given]
    if missing:
        location.fail(f"no {missing[0]!r}", f"the keys {', '.join(required)}", f"add {missing[0]!r}")


def integer(location: Location, value: Any, minimum: int = -LARGEST_SIZE, maximum: int = LARGEST_SIZE) -> int:
    """A whole number within bounds; 3.0 is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        location.fail(f"{kind_of(value)}, {display(value)}", "a whole number")
    if not minimum <= value <= maximum:
        bounds = f"at least {minimum}" if value < minimum else f"at most {maximum}"
        location.fail(display(value), f"a whole number of {bounds}")
    return value


def number(
    location: Location,
    value: Any,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
) -> float:
    """A number within bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        location.fail(f"{kind_of(value)}, {display(value)}", "a number")
    if above is not None and not value > above:
        location.fail(display(value), f"a number above {above:g}")
    if minimum is not None and value < minimum:
        location.fail(display(value), f"a number of at least {minimum:g}")
    if maximum is not None and value > maximum:
        location.fail(display(value), f"a number of at most {maximum:g}")
    return value


def string(location: Location, value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        location.fail(f"{kind_of(value)}, {display(value)}", "a string")
    return value


def boolean(location: Location, value: Any) -> bool:
    """True or false; 0 and 1 are none."""
    if not isinstance(value, bool):
        location.fail(f"{kind_of(value)}, {display(value)}", "true or false")
    return value


def choice(location: Location, value: Any, choices: Iterable[str]) -> str:
    """One of some strings."""
    names = list(choices)
    if string(location, value) not in names:
        location.fail(display(value), f"one of {', '.join(names)}", did_you_mean(value, names))
    return value


def array(location: Location, value: Any, what: str = "a list") -> list[Any]:
    """A list."""
    if not isinstance(value, (list, tuple)):
        location.fail(f"{kind_of(value)}, {display(value)}", what)
    return list(value)
