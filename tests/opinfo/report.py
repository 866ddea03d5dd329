"""Outcomes as text: totals, worst operators first, and the details of some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.opinfo.check import Outcome
from tests.opinfo.scope import reason_not_planned

VARIANTS = ("method", "inplace", "operator", "compiled")


def totals(outcomes: Sequence[Outcome]) -> str:
    """How much of torch's table Weft has, and how much of that agrees."""
    present = [one for one in outcomes if one.path]
    planned = [one for one in outcomes if not one.path and not reason_not_planned(one.key)]
    passing = [one for one in present if one.passes_samples()]
    samples = sum(one.tried["call"] for one in present)
    failed = sum(one.failed_samples() for one in present)
    lines = [
        f"operators in torch's table  {len(outcomes)}",
        f"present in Weft             {len(present)}, {sum(one.is_random for one in present)} of them random",
        f"not planned                 {len(outcomes) - len(present) - len(planned)}",
        f"missing                     {len(planned)}",
        f"pass all samples            {len(passing)} of {len(present)} ({_percent(len(passing), len(present))})",
        f"samples that pass           {samples - failed} of {samples} ({_percent(samples - failed, samples)})",
    ]
    for kind in ("gradient", *VARIANTS):
        tried, bad = sum(one.tried[kind] for one in present), sum(len(one.failed(kind)) for one in present)
        lines.append(f"{kind + ' checks':<27} {tried - bad} of {tried} pass")
    errors = [finding for one in present for finding in one.failed("error")]
    silent = sum(finding.what == "silent" for finding in errors)
    tried = sum(one.tried["error"] for one in present)
    lines.append(f"error inputs                {tried}: {silent} silent, {len(errors) - silent} unclear")
    whats = Counter(finding.what for one in present for finding in one.failed("call", "gradient", *VARIANTS))
    lines.append("failures                    " + ", ".join(f"{count} {what}" for what, count in whats.most_common()))
    skipped = sum((one.skipped for one in present), Counter())
    lines.append("samples not run             " + ", ".join(f"{n} {reason}" for reason, n in skipped.most_common(8)))
    return "\n".join(lines)


def worst_first(outcomes: Iterable[Outcome]) -> str:
    """A line for each operator that fails: its samples, its other checks, the first of its failures."""
    failing = [one for one in outcomes if one.findings]
    failing.sort(key=lambda one: (-one.failed_samples(), -len(one.findings), one.key))
    return "\n".join(_line(one) for one in failing)


def details(outcome: Outcome) -> str:
    """Everything about one operator."""
    if not outcome.path:
        reason = reason_not_planned(outcome.key)
        return f"{outcome.key}: Weft has no {outcome.wanted}" + (f" (not planned: {reason})" if reason else "")
    tried = ", ".join(f"{count} {kind}" for kind, count in outcome.tried.items() if count)
    lines = [f"{outcome.key}: weft.{outcome.path}, {tried or 'nothing to try'}, {outcome.seconds:.1f} s"]
    lines += [f"  not run: {count} {reason}" for reason, count in outcome.skipped.items()]
    alike = Counter(finding.alike() for finding in outcome.findings)
    for key, count in alike.items():
        first = next(one for one in outcome.findings if one.alike() == key)
        lines.append(f"  {count} x {first.line()}" if count > 1 else f"  {first.line()}")
    return "\n".join(lines if outcome.findings else [*lines, "  all pass"])


def _line(outcome: Outcome) -> str:
    others = Counter(finding.kind for finding in outcome.findings if finding.kind not in ("call", "gradient"))
    text = f"{outcome.key}: {outcome.failed_samples()}/{outcome.tried['call']} samples"
    text += "".join(f", {count} {kind}" for kind, count in others.items())
    return f"{text} | {outcome.findings[0].line()[:300]}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
