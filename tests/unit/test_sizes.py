"""Sizes of files and functions: what is larger says why in its docstring, in a sentence with `Long because`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
FOLDERS = ("weft", "tests", "tools", "benchmarks", "examples")
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60
MAX_BRANCHES = 15
REASON = "Long because"


def count_branches(body: list[ast.stmt]) -> int:
    """The branches of some statements, as ruff's PLR0912 counts them; nested functions have counts of their own."""
    total = 0
    for statement in body:
        match statement:
            case ast.If(body=taken, orelse=[ast.If()] as rest):
                total += 1 + count_branches(taken) + count_branches(rest)
            case (
                ast.If(body=taken, orelse=rest) | ast.For(body=taken, orelse=rest) | ast.While(body=taken, orelse=rest)
            ):
                total += 1 + count_branches(taken) + bool(rest) + count_branches(rest)
            case ast.Match(cases=cases):
                total += sum(1 + count_branches(case.body) for case in cases)
            case ast.Try(body=tried, handlers=handlers, orelse=rest, finalbody=last):
                parts = [handler.body for handler in handlers] + [part for part in (rest, last) if part]
                total += count_branches(tried) + sum(1 + count_branches(part) for part in parts)
            case ast.With(body=inner):
                total += count_branches(inner)
    return total


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All functions of a file with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}{node.name}" if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        yield from functions(node, f"{name}." if name else prefix)


def find_oversized(text: str) -> dict[str, str]:
    """What is too large in the text of a file, with its size: '' is the file itself, the others are functions."""
    tree = ast.parse(text)
    found = {}
    lines = text.count("\n")
    if lines > MAX_FILE_LINES and REASON not in (ast.get_docstring(tree) or ""):
        found[""] = f"{lines} lines"
    for name, node in functions(tree):
        lines, branches = (node.end_lineno or node.lineno) - node.lineno + 1, count_branches(node.body)
        is_oversized = lines > MAX_FUNCTION_LINES or branches > MAX_BRANCHES
        if is_oversized and REASON not in (ast.get_docstring(node) or ""):
            found[name] = f"{lines} lines, {branches} branches"
    return found


def test_files_and_functions_are_small_or_say_why_not():
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            where = path.relative_to(ROOT).as_posix()
            found |= {f"{where}:{name}".rstrip(":"): size for name, size in find_oversized(path.read_text()).items()}
    assert not found, f"larger than {MAX_FILE_LINES} lines, {MAX_FUNCTION_LINES} or {MAX_BRANCHES} branches: {found}"


def test_what_is_counted():
    long = "def f():\n" + "    pass\n" * 60
    assert find_oversized(long) == {"f": "61 lines, 0 branches"}
    assert find_oversized(long.removesuffix("    pass\n")) == {}
    assert find_oversized(long.replace("    pass\n", '    """Long because it is a table."""\n', 1)) == {}
    branches = "class C:\n def g(self):\n" + "  if self:\n   pass\n  else:\n   pass\n" * 8
    assert find_oversized(branches) == {"C.g": "33 lines, 16 branches"}
    assert find_oversized("x = 1\n" * 451) == {"": "451 lines"}
    assert find_oversized('"""A table. Long because of its rows."""\n' + "x = 1\n" * 450) == {}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("if a:\n pass\nelif b:\n pass\nelse:\n pass", 3),
        ("for a in b:\n if a:\n  pass\nelse:\n pass", 3),
        ("try:\n pass\nexcept A:\n pass\nexcept B:\n pass\nelse:\n pass\nfinally:\n pass", 4),
        ("match a:\n case 1:\n  pass\n case _:\n  pass", 2),
        ("with a:\n while b:\n  pass", 1),
        ("def f():\n if a:\n  pass", 0),
    ],
)
def test_branches_as_ruff_counts_them(text, count):
    assert count_branches(ast.parse(text).body) == count
