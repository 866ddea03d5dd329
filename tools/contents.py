"""`contents.py` of packages whose files are loaded when one of their names is used: `make stubs` writes it, a test
compares it.

A file of weft.nn exports what `@layer(...)` or `@export` decorates, and other names that are assigned to such a class;
a file of weft.optim, weft.data or weft.train what its `__all__` says. Files are read, not imported: the packages find
their names by what is written here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DECORATORS = ("layer", "export")
HEAD = '''"""The files of weft.{package} and the names that they export. Written by `make stubs`; not to be edited."""

CONTENTS: dict[str, tuple[str, ...]] = {{
'''


def decorated(text: str) -> list[str]:
    """The names that a file exports by decorators."""
    found: list[str] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            if any(_name(decorator) in DECORATORS for decorator in node.decorator_list):
                found.append(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in found:
            found += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [name for name in found if not name.startswith("_")]


def _name(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.id if isinstance(called, ast.Name) else ""


def listed(text: str) -> list[str]:
    """The names in the `__all__` of a file."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and _is_all(node.targets[0]):
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def _is_all(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id == "__all__"


# What is read in the files of each package, and the files that are names themselves (`weft.optim.lr_scheduler`).
PACKAGES: dict[str, tuple[Callable[[str], list[str]], tuple[str, ...]]] = {
    "nn": (decorated, ()),
    "optim": (listed, ("lr_scheduler", "swa_utils")),
    "data": (listed, ("digits", "transforms")),
    "train": (listed, ()),
}


def contents(package: str) -> dict[str, list[str]]:
    """The names by the file, the package's own files first."""
    folder, (read, submodules) = ROOT / "weft" / package, PACKAGES[package]
    paths = sorted(folder.rglob("*.py"), key=lambda path: (len(path.parts), path))
    inside = [path for path in paths if path.name != "__init__.py" or read is decorated]
    files = {path: path.relative_to(folder).with_suffix("").parts for path in inside}
    found = {".".join(parts): read(path.read_text()) for path, parts in files.items() if parts[0] not in submodules}
    return {file: sorted(names) for file, names in found.items() if names}


def text(package: str) -> str:
    """The file."""
    rows = []
    for file, names in contents(package).items():
        exported = f'"{names[0]}",' if len(names) == 1 else "".join(f'\n        "{name}",' for name in names) + "\n    "
        rows.append(f'    "{file}": ({exported}),\n')
    return HEAD.format(package=package) + "".join(rows) + "}\n"


def main() -> None:
    for package in PACKAGES:
        path = ROOT / "weft" / package / "contents.py"
        path.write_text(text(package))
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
