"""docs/operators.md: every operator of torch's table, what Weft has of it, and why not. Written from the names that
exist, the list of known differences and the groups that are not planned, all of which the tests hold true."""

from __future__ import annotations

import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from tests.opinfo import calls, database
from tests.opinfo.check import RANDOM
from tests.opinfo.misses import MISSES
from tests.opinfo.scope import reason_not_planned

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"

HEAD = """# Operators

Every operator of torch {version}'s own table of tests (OpInfo), and what Weft has of it. This page is generated:
`make opinfo ARGS=--docs` writes it, and a test fails when it is stale.

- **supported**: Weft gives torch's values, gradients, shapes and dtypes on every sample of torch's table that Weft can
  express, for float32, int64 and bool; so do the method, the in-place method and the operator of Python. Arguments that
  torch refuses are refused. A compiled function gives the same bits as the eager one. `make opinfo` checks all of it.
- **differs**: supported, with the exception in the last column.
- **not planned**: listed at the end, by reason.
- **missing**: not there yet.

Random operators draw other numbers than torch, so only shapes and dtypes are compared. Samples with complex numbers,
sparse tensors, memory layouts, `out=` or a generator of torch's are not run.

{totals}
"""


def path_of(info: Any) -> str:
    """Where torch has the function that an operator's samples call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in database.preferred_dtypes(info):
            try:
                sample = next(iter(info.sample_inputs(database.DEVICE, dtype)), None)
                return calls.named_path(info) if sample is None else calls.record(info, sample)[0].path
            except calls.Refused as refused:
                return refused.call.path
            except Exception:  # samples for a GPU only
                continue
    return calls.named_path(info)


def text() -> str:
    """The page."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for miss in MISSES:
        reasons[miss.operator].append(miss.reason)
    rows: dict[str, list[str]] = defaultdict(list)
    groups: dict[str, list[str]] = defaultdict(list)
    counts = dict.fromkeys(("supported", "differs", "not planned", "missing"), 0)
    for key, info in database.operators().items():
        place = calls.locate(path_of(info))
        if place:
            state, why = ("differs", "; ".join(dict.fromkeys(reasons[key]))) if key in reasons else ("supported", "")
            why = why or ("random" if info.name in RANDOM else "")
        elif reason := reason_not_planned(key):
            state = "not planned"
            groups[reason].append(key)
        else:
            state, why = "missing", ""
        counts[state] += 1
        if state != "not planned":
            shown = f"`weft.{place}`" if place else ""
            rows[_section(info.name)].append(f"| `{key}` | {shown} | {state} | {why} |")
    totals = ", ".join(f"{count} {state}" for state, count in counts.items())
    parts = [HEAD.format(version=torch.__version__.partition("+")[0], totals=f"{sum(counts.values())}: {totals}.")]
    for section, lines in rows.items():
        parts.append("\n".join([f"## {section}\n", "| torch | Weft | state | why |", "|---|---|---|---|", *lines, ""]))
    listed = [f"- {reason}: {', '.join(f'`{key}`' for key in keys)}" for reason, keys in sorted(groups.items())]
    parts.append("\n".join(["## Not planned\n", *listed, ""]))
    return "\n".join(parts)


def write() -> None:
    PAGE.write_text(text())


def _section(name: str) -> str:
    package = name.removeprefix("nn.").partition(".")
    return f"torch.{name.rpartition('.')[0]}" if package[1] else "torch and Tensor"
