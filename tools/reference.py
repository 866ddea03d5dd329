"""The API reference of the documentation site, from signatures and docstrings of the imported package.

One page per public module. Pages are made when the site is built (tools/site_hooks.py) and are not checked in; the
examples in docstrings are doctests, which `make test` runs. Names come from `__all__`, so that operations, which the
table of operations defines at import time, are there like everything else.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# Module -> what its page is called in the navigation.
MODULES = {
    "weft": "weft",
    "weft.Tensor": "Tensor",
    "weft.nn": "nn: layers and losses",
    "weft.nn.functional": "nn.functional",
    "weft.nn.init": "nn.init",
    "weft.nn.utils": "nn.utils",
    "weft.optim": "optim",
    "weft.optim.lr_scheduler": "optim.lr_scheduler",
    "weft.data": "data",
    "weft.train": "train",
    "weft.autograd": "autograd",
    "weft.func": "func",
    "weft.amp": "amp",
    "weft.linalg": "linalg",
    "weft.special": "special",
    "weft.serialization": "serialization",
    "weft.generation": "generation",
    "weft.testing": "testing",
    "weft.report": "report",
}
MAX_LINE = 80  # characters of a signature on one line
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def resolve(name: str) -> Any:
    """The module or class of a dotted name."""
    if name == "weft.Tensor":
        return importlib.import_module("weft").Tensor
    return importlib.import_module(name)


def public_names(owner: Any) -> list[str]:
    """What a module exports by `__all__`, or defines itself; the methods and properties of a class."""
    if isinstance(owner, type):
        return sorted(name for name in dir(owner) if not name.startswith("_") and getattr(owner, name).__doc__)
    exported = getattr(owner, "__all__", None)
    if exported is None:
        exported = [name for name, value in vars(owner).items() if getattr(value, "__module__", "") == owner.__name__]
    return sorted(name for name in exported if not name.startswith("_"))


class Words:
    """An annotation that was written as text, shown without quotes."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __repr__(self) -> str:
        return self.words


def unquoted(found: inspect.Signature) -> inspect.Signature:
    """The signature with annotations that print as they are written in the source."""

    def plain(annotation: Any) -> Any:
        return Words(annotation) if isinstance(annotation, str) else annotation

    parameters = [one.replace(annotation=plain(one.annotation)) for one in found.parameters.values()]
    return found.replace(parameters=parameters, return_annotation=plain(found.return_annotation))


def signature(value: Any) -> str:
    """The parameters as users write them, without addresses of objects; empty for what cannot be called."""
    if not callable(value):
        return ""
    try:
        found = unquoted(inspect.signature(value))
    except (TypeError, ValueError):
        return "(...)"
    line = ADDRESS.sub("", str(found))
    if len(line) <= MAX_LINE:
        return line
    result = "" if found.return_annotation is found.empty else line[line.rindex(") -> ") + 1 :]
    lines, names = [], list(found.parameters.values())
    for position, one in enumerate(names):
        is_first_keyword = one.kind is one.KEYWORD_ONLY and not any(
            other.kind in (other.KEYWORD_ONLY, other.VAR_POSITIONAL) for other in names[:position]
        )
        lines += ["    *,"] if is_first_keyword else []
        lines.append(f"    {ADDRESS.sub('', str(one))},")
        if one.kind is one.POSITIONAL_ONLY and (one is names[-1] or names[position + 1].kind is not one.kind):
            lines.append("    /,")
    return "\n".join(["(", *lines, f"){result}"])


def body(docstring: str) -> str:
    """A docstring as Markdown: examples become Python blocks, indented text below a line stays a paragraph.

    >>> body("One sentence.\\n\\n>>> 1 + 1\\n2\\n\\nMore.").splitlines()
    ['One sentence.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'More.']
    """
    lines: list[str] = []
    is_example = False
    for line in inspect.cleandoc(docstring).splitlines():
        if not is_example and line.startswith(">>>"):
            lines += [] if not lines or not lines[-1] else [""]
            lines.append("```pycon")
            is_example = True
        elif is_example and not line.strip():
            lines.append("```")
            is_example = False
        lines.append(line)
    return "\n".join([*lines, "```"] if is_example else lines).rstrip()


def entry(owner: str, name: str, value: Any, level: int = 2) -> str:
    """Heading, signature and docstring of one name."""
    parameters = signature(value)
    lines = [f"{'#' * level} `{name}`", ""]
    if parameters:
        prefix = "class " if isinstance(value, type) else ""
        lines += ["```python", f"{prefix}{owner}.{name}{parameters}", "```", ""]
    if value.__doc__:
        lines += [body(value.__doc__), ""]
    return "\n".join(lines)


def page(name: str) -> str:
    """The page of one module."""
    owner = resolve(name)
    lines = [f"# {name}", "", body(owner.__doc__ or ""), ""]
    plain = []
    for member in public_names(owner):
        value = getattr(owner, member)
        if inspect.ismodule(value):
            continue
        if callable(value) or isinstance(value, property):
            lines.append(entry(name, member, value))
        else:
            plain.append(member)
    if plain:
        lines += ["## Values", "", ", ".join(f"`{one}`" for one in plain), ""]
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """All pages, by their path in the site."""
    return {f"api/{name}.md": page(name) for name in MODULES}


if __name__ == "__main__":
    for path, text in pages().items():
        print(f"{path:36} {len(text):>9,} characters")
