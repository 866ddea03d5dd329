"""What is known to differ from torch, and why: the test of the samples reads this list.

A line is an operator, a kind of check ('call', 'gradient', 'method', 'inplace', 'operator', 'compiled' or 'error'), how
many checks of that kind fail, and the reason. Anything that fails and is not listed fails the test; so does a line
that is no longer true. A wrong value or gradient cannot be listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tests.opinfo.check import Finding, Outcome

ALLOWED = ("number",)  # on purpose: an operand may be a number wherever a tensor of one element may be
NEVER = ("value", "gradient", "shape", "parts", "crashed", "timeout")  # never excused


class Miss(NamedTuple):
    operator: str
    kind: str
    count: int
    reason: str


SHAPE_STAYS = "no in-place form: a tensor keeps its shape; assign the result"

MISSES: tuple[Miss, ...] = (
    Miss("squeeze", "inplace", 6, SHAPE_STAYS),
    Miss("squeeze/multiple", "inplace", 6, SHAPE_STAYS),
    Miss("unsqueeze", "inplace", 6, SHAPE_STAYS),
    Miss("transpose", "inplace", 6, SHAPE_STAYS),
    Miss("t", "inplace", 6, SHAPE_STAYS),
)


def problems(outcomes: Iterable[Outcome], complete: bool) -> list[str]:
    """What fails and is not listed, and what is listed and fails no more. The latter is known of complete runs only:
    others try a part of the samples."""
    listed = {(miss.operator, miss.kind): miss for miss in MISSES}
    found: list[str] = []
    for outcome in outcomes:
        kinds = dict.fromkeys([one.kind for one in outcome.findings if one.what not in ALLOWED])
        kinds |= dict.fromkeys(kind for key, kind in listed if key == outcome.key)
        for kind in kinds:
            failed = [one for one in outcome.failed(kind) if one.what not in ALLOWED]
            found += _judge(outcome.key, kind, failed, listed.get((outcome.key, kind)), complete)
    return found


def suggestions(outcomes: Iterable[Outcome]) -> str:
    """Lines for the list above, of everything that may be listed; the reasons are still to be written."""
    lines = []
    for outcome in outcomes:
        failed = [one for one in outcome.findings if one.what not in (*ALLOWED, *NEVER)]
        for kind, count in Counter(one.kind for one in failed).items():
            first = next(one for one in failed if one.kind == kind)
            lines.append(f"    Miss({outcome.key!r}, {kind!r}, {count}, {first.text!r}),")
    return "\n".join(lines)


def _judge(key: str, kind: str, failed: list[Finding], miss: Miss | None, complete: bool) -> list[str]:
    wrong = [one for one in failed if one.what in NEVER]
    if wrong:
        return [f"{key}: {len(wrong)} wrong: {wrong[0].line()}"]
    if miss is None:
        return [f"{key}: {len(failed)} of kind {kind} not listed: {failed[0].line()}"]
    if len(failed) > miss.count:
        return [f"{key}: {len(failed)} of kind {kind}, listed are {miss.count}: {failed[-1].line()}"]
    if complete and len(failed) < miss.count:
        return [f"{key}: {len(failed)} of kind {kind}, listed are {miss.count}: change or remove the line"]
    return []
