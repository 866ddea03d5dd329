"""`weft config schema`: the JSON Schema of networks and runs. `weft config check FILE` says whether a file is right."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from weft import config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    actions = parser.add_subparsers(metavar="action", required=True, dest="action")
    actions.add_parser("schema", help="print the JSON Schema (draft 2020-12) of networks and runs")
    check = actions.add_parser("check", help="say whether a file describes a network or a run")
    check.add_argument("config", type=Path, help="a JSON or TOML file")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the schema as it is, for editors; or check a file."""
    if options.action == "schema":
        json.dump(config.schema(), sys.stdout, indent=1, ensure_ascii=False)
        print()
        return 0
    what = config.check(options.config)
    console.print(f"{options.config}: {what}", markup=False)
    return 0
