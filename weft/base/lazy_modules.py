"""Packages whose files are loaded when one of their names is first used, so that `import weft` stays quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def load_lazily(
    package: str, contents: Mapping[str, Iterable[str]], submodules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package. `contents` has the names that each file exports, by the
    name of the file ('linear', 'basic.linear') or of a module elsewhere ('weft.autocast'); `submodules` are files that
    are names themselves."""
    files = {file: file if file.startswith("weft.") else f"{package}.{file}" for file in contents}
    where = {name: files[file] for file, names in contents.items() for name in names}
    where_modules = {name: f"{package}.{name}" for name in submodules}
    public = sorted([*where, *where_modules])

    def get(name: str) -> Any:
        if name not in where and name not in where_modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(where.get(name) or where_modules[name])
        value = getattr(module, name) if name in where else module
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: list(public), public
