"""Stubs for type checkers and editors, from the table of operations: `make stubs` writes them, a test compares them.

`weft/names/functions.pyi`, `weft/nn/functional.pyi` and `weft/special.pyi` have the functions,
`weft/core/methods.pyi` the methods of `Tensor`, the `__init__.pyi` of `nn`, `nn.utils` and `optim` what these packages
export, `contents.py` of nn, optim, data and train (`tools/contents.py`) which file has which names, and
`tests/artifacts/public-names.txt` all public names.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools import contents  # noqa: E402

if __name__ == "__main__":
    contents.main()  # before the packages are loaded, which read it

import weft  # noqa: E402
from weft.core.method_registry import PROPERTIES, REGISTERED  # noqa: E402
from weft.core.signatures import users_signature  # noqa: E402
from weft.names.namespaces import function_of, functions  # noqa: E402
from weft.ops.registry import OPERATIONS, Operation, entries  # noqa: E402

HEAD = '''"""Written by `make stubs` from the table of operations; not to be edited."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, overload

from weft.base.dtypes import DTypeLike
from weft.random.generator import Generator
from weft.core.tensor import Tensor
from weft.plan.device import Device
'''
RESULTS = "from weft.core.methods import {names}\n"
KEYWORDS = inspect.Parameter.KEYWORD_ONLY
REST = inspect.Parameter.VAR_POSITIONAL


def results() -> dict[str, type]:
    """The named tuples that operations return, by name."""
    found: dict[str, type] = {}
    for entry in OPERATIONS:
        annotation = inspect.signature(entry.function).return_annotation
        space = inspect.unwrap(entry.function).__globals__
        for word in re.findall(r"\w+", str(annotation)):
            value = space.get(word)
            if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
                found[word] = value
    return dict(sorted(found.items()))


def _parameter(parameter: inspect.Parameter) -> str:
    star = "*" if parameter.kind is REST else ""
    annotation = "Any" if parameter.annotation is parameter.empty else str(parameter.annotation)
    default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
    return f"{star}{parameter.name}: {annotation}{default}"


def _default(value: Any) -> str:
    return repr(value) if isinstance(value, (bool, int, float, str, tuple, type(None))) else "..."


def _text(parameters: list[inspect.Parameter], result: str, method: bool) -> str:
    parts = ["self"] if method else []
    starred = False
    for parameter in parameters:
        if parameter.kind is KEYWORDS and not starred:
            parts.append("*")
            starred = True
        starred = starred or parameter.kind is REST
        parts.append(_parameter(parameter))
    return f"({', '.join(parts)}) -> {result}"


def signatures(function: Callable[..., Any], entry: Operation, method: bool, inplace: bool = False) -> Iterator[str]:
    """The signatures of one name; several are overloads."""
    if entry.overloads:
        for text in entry.overloads:
            text = re.sub(r"^\(\w+: Tensor(, )?", r"(self\1", text) if method else text
            yield re.sub(r"-> .*", "-> Tensor", text) if inplace else text
        return
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if method:
        parameters = parameters[1:]
    result = "Any" if signature.return_annotation is signature.empty else str(signature.return_annotation)
    if inplace:
        result = "Tensor"
    flag = next((one for one in parameters if one.name == "return_indices"), None)
    if flag is not None and "|" in result:
        single, several = (part.strip() for part in result.split("|"))
        for value, kind in (("False", single), ("True", several)):
            annotation = f"Literal[{value}]"
            place = parameters.index(flag)
            after = [one.replace(kind=KEYWORDS) for one in parameters[place + 1 :]]
            if value == "False":
                changed = [flag.replace(annotation=annotation)]
            else:
                changed = [flag.replace(annotation=annotation, default=flag.empty, kind=KEYWORDS)]
            yield _text([*parameters[:place], *changed, *after], kind, method)
        return
    yield _text(parameters, result, method)
    rest = next((one for one in parameters if one.kind is REST and str(one.annotation).startswith("int")), None)
    if rest is not None:  # `permute(dims=(1, 0))`
        place = parameters.index(rest)
        named = rest.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="Sequence[int]")
        yield _text([*parameters[:place], named, *parameters[place + 1 :]], result, method)


def _definition(name: str, texts: list[str], doc: str | None, indent: str = "") -> str:
    lines = []
    for text in texts:
        if len(texts) > 1:
            lines.append(f"{indent}@overload")
        lines.append(f"{indent}def {name}{text}:")
        summary = (doc or "").strip()
        if summary:
            body = "\n".join([f"{indent}    {line.strip()}".rstrip() for line in summary.split("\n")])
            lines.append(f'{indent}    """{body.strip()}"""')
        lines.append(f"{indent}    ...")
    return "\n".join(lines) + "\n"


def _summary(function: Callable[..., Any]) -> str:
    """The first paragraph of a docstring."""
    return (inspect.getdoc(function) or "").split("\n\n")[0]


def function_stub(place: str) -> str:
    """The functions of one place."""
    found = functions(place)
    used = [
        _definition(name, list(signatures(found[name], entry, False)), _summary(found[name]))
        for name, entry in sorted(entries(place), key=lambda pair: pair[0])
    ]
    body = "\n".join(used)
    names = [name for name in results() if re.search(rf"\b{name}\b", body)]
    listed = "".join([f"    {name!r},\n" for name in sorted(found)])
    imports = RESULTS.format(names=", ".join(f"{name} as {name}" for name in names)) if names else ""
    return f"{HEAD}{imports}\n__all__ = [\n{listed}]\n\n{body}"


def method_stub() -> str:
    """The class with the methods of `Tensor`."""
    lines = []
    for name, kind in results().items():
        fields = "".join([f"    {field}: Tensor\n" for field in kind._fields])  # type: ignore[attr-defined]
        lines.append(f"class {name}(NamedTuple):\n{fields}")
    lines.append("class TensorMethods:\n")
    methods: dict[str, str] = {}
    for entry in OPERATIONS:
        function = function_of(entry)
        doc = _summary(function)
        for name in entry.names:
            if "method" in entry.namespaces:
                methods[name] = _definition(name, list(signatures(function, entry, True)), doc, "    ")
            if "inplace" in entry.namespaces:
                texts = list(signatures(function, entry, True, inplace=True))
                methods[name + "_"] = _definition(name + "_", texts, f"`{name}`, in place.", "    ")
        for name in entry.operators:
            count = len(inspect.signature(function).parameters)
            text = "(self) -> Tensor" if count == 1 else "(self, other: Any) -> Tensor"
            methods[name] = _definition(name, [text], None, "    ")
    for name, function in REGISTERED.items():
        signature = users_signature(function)
        text = _text(list(signature.parameters.values())[1:], str(signature.return_annotation), True)
        decorator = "    @property\n" if name in PROPERTIES else ""
        methods[name] = decorator + _definition(name, [text], _summary(function), "    ")
    lines += [methods[name] for name in sorted(methods)]
    return HEAD + "\n" + "\n".join(lines)


def contents_stub(package: str) -> str:
    """A package whose files are loaded when one of their names is first used."""
    space = importlib.import_module(package)
    lines = ['"""Written by `make stubs` from the table of contents; not to be edited."""\n']
    lines += [f"from {package} import {name} as {name}" for name in getattr(space, "_SUBMODULES", ())]
    for file, names in {**getattr(space, "_OTHERS", {}), **space.CONTENTS}.items():
        module = file if file.startswith("weft.") else f"{package}.{file}"
        lines += [f"from {module} import {name} as {name}" for name in names]
    return "\n".join([*lines, "", "CONTENTS: dict[str, tuple[str, ...]]", ""])


def names() -> str:
    """Every public name, one a line: a diff of this file shows what users gain or lose."""
    spaces = {
        "weft": weft, "weft.nn": weft.nn, "weft.nn.functional": weft.nn.functional, "weft.linalg": weft.linalg,
        "weft.optim": weft.optim, "weft.func": weft.func, "weft.nn.init": weft.nn.init,
    }  # fmt: skip
    lines = []
    for place, space in spaces.items():
        public = getattr(space, "__all__", None) or [name for name in vars(space) if is_public(space, name)]
        lines += [f"{place}.{name}" for name in public]
    lines += [f"weft.Tensor.{name}" for name in dir(weft.Tensor) if not name.startswith("_")]
    return "".join([f"{line}\n" for line in sorted(lines)])


def is_public(space: Any, name: str) -> bool:
    value = getattr(space, name)
    return not name.startswith("_") and inspect.isfunction(value) and value.__module__ == space.__name__


FILES: dict[str, Callable[[], str]] = {
    **{f"weft/{package}/contents.py": functools.partial(contents.text, package) for package in contents.PACKAGES},
    "weft/names/functions.pyi": lambda: function_stub("weft"),
    "weft/core/methods.pyi": method_stub,
    "weft/nn/functional.pyi": lambda: function_stub("functional"),
    "tests/artifacts/public-names.txt": names,
    "weft/nn/__init__.pyi": lambda: contents_stub("weft.nn"),
    "weft/nn/utils/__init__.pyi": lambda: contents_stub("weft.nn.utils"),
    "weft/optim/__init__.pyi": lambda: contents_stub("weft.optim"),
    "weft/special.pyi": lambda: function_stub("special"),
}


def main() -> None:
    for name, make in FILES.items():
        (ROOT / name).write_text(make())
        print(name)


if __name__ == "__main__":
    main()
