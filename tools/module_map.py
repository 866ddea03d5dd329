"""docs/modules.md: every module with the first sentence of its docstring, by package. `make modules` writes the page, a
test compares it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "modules.md"

# The packages in the order of imports: each imports only from those before it (tests/unit/test_imports.py).
ORDER = (
    "base", "graph", "ops", "grad", "kernels", "render", "plan", "compiler", "backends", "core", "autograd", "jit",
    "random", "functional", "names", "signal", "nn", "optim", "data", "utils", "serialization", "amp", "cuda",
    "drawing", "profiling", "train", "report", "config", "cli",
)  # fmt: skip

HEAD = """# Modules

Written by `make modules` from the docstrings of the modules; not to be edited. Packages are in the order of imports:
each imports only from those above it. [architecture.md](architecture.md) follows one operation through them.
"""


def summary(path: Path) -> str:
    """The first sentence of a module's docstring.

    >>> summary(Path(__file__))
    'docs/modules.md: every module with the first sentence of its docstring, by package.'
    """
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    found = re.match(r".*?[.:](?=\s+[A-Z`]|$)", text)
    return (found[0] if found else text).rstrip(":")


def packages() -> list[str]:
    """All folders below weft/ that have modules, in the order of the page."""
    found = {path.parent.relative_to(ROOT / "weft").as_posix() for path in (ROOT / "weft").rglob("*.py")}
    unknown = {name.partition("/")[0] for name in found} - {".", *ORDER}
    if unknown:
        raise SystemExit(f"tools/module_map.py: ORDER lacks {', '.join(sorted(unknown))}")
    return sorted(found, key=lambda name: (ORDER.index(name.partition("/")[0]) if name != "." else -1, name))


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for name in packages():
        folder = ROOT / "weft" / name
        lines += [f"## weft/{'' if name == '.' else name + '/'}", ""]
        if (folder / "__init__.py").exists():
            lines += [summary(folder / "__init__.py"), ""]
        files = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        if files:
            lines += ["| file | |", "|---|---|"]
            lines += [f"| `{path.name}` | {summary(path)} |".replace("|  |", "| |") for path in files] + [""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.relative_to(ROOT))
