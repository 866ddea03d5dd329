"""What is known to differ from torch, and why: the test of the samples reads this list.

A line is an operator, a kind of check ('call', 'gradient', 'method', 'inplace', 'operator', 'compiled' or 'error'), how
many checks of that kind fail, and the reason. Anything that fails and is not listed fails the test; so does a line
that is no longer true. A wrong value or gradient cannot be listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tests.opinfo.check import Finding, Outcome

NEVER = ("value", "gradient", "shape", "parts", "crashed", "timeout")  # never excused


class Miss(NamedTuple):
    operator: str
    kind: str
    count: int
    reason: str


MISSES: tuple[Miss, ...] = ()


def problems(outcomes: Iterable[Outcome], complete: bool) -> list[str]:
    """What fails and is not listed, and what is listed and fails no more. The latter is known of complete runs only:
    others try a part of the samples."""
    listed = {(miss.operator, miss.kind): miss for miss in MISSES}
    found: list[str] = []
    for outcome in outcomes:
        kinds = dict.fromkeys([one.kind for one in outcome.findings])
        kinds |= dict.fromkeys(kind for key, kind in listed if key == outcome.key)
        for kind in kinds:
            failed = outcome.failed(kind)
            found += _judge(outcome.key, kind, failed, listed.get((outcome.key, kind)), complete)
    return found


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
