"""`weft layers [NAME]`: the catalogue of layers, or one layer with its equation, shapes and an example."""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
import re
from importlib import resources
from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = ("forward", "backward", "update", "resident")


def catalogue() -> dict[str, dict[str, Any]]:
    """All layers by name, as `make layers` wrote them."""
    return json.loads(resources.files("weft.nn").joinpath("catalogue.json").read_text("utf-8"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("name", nargs="?", help="a layer by any of its names, such as Linear, DenseLayer or L026")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the table, or one layer; 1 where there is none of that name."""
    found = catalogue()
    if options.name is None:
        _print_table(found, console)
        return 0
    name = find(found, options.name)
    if name is None:
        wanted = options.name.lower()
        similar = [one for one in found if wanted and wanted in one.lower()]
        hint = f" Names with it: {', '.join(similar)}." if similar else _did_you_mean(found, wanted)
        text = f"weft layers: no layer is called {options.name!r}.{hint} `weft layers` lists all."
        console.print(text, markup=False)
        return 1
    _print_layer(name, found[name], console)
    return 0


def _did_you_mean(found: dict[str, dict[str, Any]], wanted: str) -> str:
    """The nearest of all names and aliases."""
    names = {one.lower(): one for key, entry in found.items() for one in (*entry["aliases"], key)}
    similar = difflib.get_close_matches(wanted, names, 3)
    return f" Did you mean {' or '.join(names[one] for one in similar)}?" if similar else ""


def find(found: dict[str, dict[str, Any]], name: str) -> str | None:
    """The layer that has a name, an alias, or a number of the specification."""
    wanted = name.replace("_", "").lower()
    for key, entry in found.items():
        if wanted in [one.replace("_", "").lower() for one in (key, *entry["number"].split(), *entry["aliases"])]:
            return key
    return None


def _print_table(found: dict[str, dict[str, Any]], console: Console) -> None:
    """Family by family: name, number and what a layer computes, a line each."""
    width = max(map(len, found))
    family = ""
    for name, entry in found.items():
        if entry["family"] != family:
            family = entry["family"]
            console.print(f"\n{family.replace('_', ' ')}", style="bold")
        line = f"  {name:<{width}}  {entry['number']:<4}  {_first(entry['equation'])}"
        console.print(line, markup=False, no_wrap=True, overflow="ellipsis", crop=True)
    console.print(f"\n{len(found)} layers. `weft layers NAME` shows one.")


def _first(text: str) -> str:
    """The first sentence."""
    return re.split(r"(?<!\bal)(?<!\.\.)\. (?=[A-Z`])", text)[0].rstrip(".") + "."


def _print_layer(name: str, entry: dict[str, Any], console: Console) -> None:
    import weft.nn as nn

    cls = getattr(nn, name)
    console.print(f"nn.{name}{_signature(cls)}", markup=False)
    console.print()
    console.print(inspect.getdoc(cls) or "", markup=False)
    console.print()
    rows = {
        "number": entry["number"],
        "also called": ", ".join(entry["aliases"]),
        "parameters": ", ".join(entry["parameters"]),
        "buffers": ", ".join(entry["buffers"]),
        "learns by": entry["learns"],
        "checked against": entry["oracle"],
    }
    for backend, cells in entry["backends"].items():
        if len(set(cells)) == 1 and cells[0] not in ("yes", "-"):
            rows[backend] = cells[0]
            continue
        rows[backend] = ", ".join(_cell(what, cell) for what, cell in zip(COLUMNS, cells, strict=True))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, text in rows.items():
        if text:
            table.add_row(key, text)
    console.print(table, markup=False)


def _signature(cls: type) -> str:
    """The arguments of a class, without the quotes of postponed annotations."""
    parameters = list(inspect.signature(cls).parameters.values())
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in parameters]
    return str(inspect.Signature(plain))


def _cell(what: str, cell: str) -> str:
    return what if cell == "yes" else f"no {what}" if cell == "-" else f"{what}: {cell}"
