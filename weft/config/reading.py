"""Text, files and dicts to one tree: dicts with string keys, lists, strings, finite numbers, booleans, None."""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.base.errors import ConfigError, problem
from weft.config.locations import Location, kind_of

MAX_BYTES = 64 * 2**20  # of a file
MAX_DEPTH = 64  # of nesting

Source = str | os.PathLike[str] | Mapping[str, Any] | list[Any]


def read(source: Source) -> tuple[Any, Location]:
    """The tree and its location: of a dict or list, of a path, or of a text in JSON or TOML.

    A string is a text if it has a `{`, a `=` or a line break, or begins with `[`; else it is a path, and so is one
    line that ends in .json or .toml. A `pathlib.Path` is always a path.

    >>> weft.config.read('{"type": "ReLU"}')[0] == weft.config.read("type = 'ReLU'")[0]
    True
    """
    if isinstance(source, (Mapping, list, tuple)):
        location = Location("")
        return check_tree(source, location), location
    if isinstance(source, str) and _is_text(source):
        return _parse(source, Location(""), None), Location("")
    if not isinstance(source, (str, os.PathLike)):
        given, expected = f"a {type(source).__name__}", "a text, a dict, a list or a path"
        raise problem(ConfigError, "from_config", given, expected)
    path = Path(source)
    location = Location(path.name)
    return _parse(_text_of(path), location, path.suffix.lower()), location


def _is_text(source: str) -> bool:
    if "\n" not in source and source.lower().endswith((".json", ".toml")):
        return False
    return any(sign in source for sign in "{=\n") or source.lstrip().startswith("[")


def _text_of(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise problem(ConfigError, str(path), f"a file that cannot be read ({reason})", "a JSON or TOML file") from None
    if len(content) > MAX_BYTES:
        raise problem(ConfigError, str(path), f"more than {MAX_BYTES // 2**20} MiB", "a smaller file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        given = f"bytes that are no UTF-8 text, from byte {error.start} on"
        raise problem(ConfigError, path.name, given, "a JSON or TOML file in UTF-8") from None


def _parse(text: str, location: Location, suffix: str | None) -> Any:
    """Parse by the suffix of the file, else by the look of the text."""
    if suffix == ".toml":
        return check_tree(_toml(text, location), location)
    first = text.lstrip()[:1]
    if suffix == ".json" or first == "{":
        return check_tree(_json(text, location), location)
    if first == "[":  # a list in JSON, or a table in TOML
        try:
            return check_tree(_json(text, location), location)
        except ConfigError as error:
            try:
                return check_tree(tomllib.loads(text), location)
            except (tomllib.TOMLDecodeError, RecursionError):
                raise error from None
    return check_tree(_toml(text, location), location)


def _json(text: str, location: Location) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                location.fail(f"the key {key!r} twice in one object", "each key once")
            found[key] = value
        return found

    def constant(name: str) -> Any:
        location.fail(f"the number {name}", "finite numbers")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=constant)
    except json.JSONDecodeError as error:
        where = f"text that is no JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        raise problem(ConfigError, location.source or "from_config", where, "JSON") from None
    except RecursionError:
        location.fail(f"more than {MAX_DEPTH} levels of nesting", "fewer")
    except ConfigError:
        raise
    except ValueError as error:  # whole numbers of more digits than Python reads
        location.fail(f"a value that cannot be read ({error})", "JSON")


def _toml(text: str, location: Location) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        given = f"text that is no TOML: {error}"
        raise problem(ConfigError, location.source or "from_config", given, "JSON or TOML") from None
    except RecursionError:
        location.fail(f"more than {MAX_DEPTH} levels of nesting", "fewer")
    except ValueError as error:
        location.fail(f"a value that cannot be read ({error})", "TOML")


def check_tree(value: Any, location: Location, depth: int = 0) -> Any:
    """A copy of the tree; refuses what JSON does not have."""
    if depth > MAX_DEPTH:
        location.fail(f"more than {MAX_DEPTH} levels of nesting", "fewer")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            location.fail(f"the number {value}", "finite numbers")
        return float(value)
    if isinstance(value, (list, tuple)):
        return [check_tree(one, location.at(k), depth + 1) for k, one in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                location.fail(f"a key that is {kind_of(key)}, {key!r}", "strings as keys")
        return {key: check_tree(one, location.at(key), depth + 1) for key, one in value.items()}
    location.fail(f"{kind_of(value)}, {value!r}", "strings, numbers, booleans, null, lists and objects")
