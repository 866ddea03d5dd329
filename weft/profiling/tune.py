"""The search of `weft tune`: which tuning computes some probes fastest on a device, in a bounded time.

A `Probe` is a program that can be compiled with any `Tuning`; a `Run` is what it becomes: comparable, timed, with
results. The search starts with the tuning of the device's class and tries candidates, each against the best so far:

1. Speeds of tiles (`Tuning.product_speeds`). Products are timed with each tile that finds room. Speeds are fitted to
   these times, so that the cost model of `kernels.gpu.product_tiles` chooses for each probe a tile that was fast.
2. Fields, by coordinate descent: one field at a time takes each of a few values.

What an earlier search found is the first candidate.

A candidate is timed in rounds that alternate with those of the best so far, on the probes whose plans differ; the least
time counts. It is kept only where it is clearly faster (`MARGIN`) and makes no probe clearly slower, twice. At the end
what is kept is timed against the class's tuning once more. Results of each candidate are compared bit for bit: one that
changes them is refused, and reported as a fault of Weft. When the seconds are over, and after Ctrl-C, what was found
until then counts.

It knows neither devices nor files: `weft.profiling.tune_probes` has the probes of a device, `weft.plan.kept_tuning` the
files.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from weft.base.errors import WeftError
from weft.base.tuning import Tuning
from weft.plan.device import is_of_lost_device

MARGIN = 0.03  # by which a candidate must be faster, and a probe may be slower
ROUNDS = 5  # of a comparison
MAX_SLOWDOWN = 1.5  # times the time of the best so far after which a candidate gets no more rounds
PASSES = 2  # through the fields; another one only where the last changed something
SPEED_UNIT = 1000  # the speed of the fastest tile
LEAST_SECONDS = 1e-12  # of a run, where the device's clock is too coarse to see it

KEPT, NO_GAIN, NO_EFFECT = "kept", "no gain", "no effect"
TIMED, IMPOSSIBLE, WRONG = "timed", "does not run here", "changes results"
INTERRUPTED = "interrupted"


class Run(Protocol):
    """A probe compiled with one tuning."""

    @property
    def form(self) -> Any:
        """The plan, as something that is equal where the device would do the same."""

    def seconds(self) -> float:
        """The time of a run, measured now."""

    def results(self) -> bytes:
        """The bits of all results."""


class Probe(Protocol):
    """A program to be timed. `tiles` are, for a matrix product, the tiles that it can be computed with, and time times
    speed with each (`compiler.templates.gemm.tiles_for`)."""

    @property
    def name(self) -> str: ...
    @property
    def tiles(self) -> Mapping[str, int]: ...
    def compile(self, tuning: Tuning) -> Run: ...


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate, what became of it, and how many times faster it was than the best so far."""

    candidate: str
    outcome: str
    gain: float = 1.0
    reason: str = ""


@dataclass(slots=True)
class Found:
    """What a search found: `times` are the seconds of each probe with the tuning of the device's class and with
    `tuning`. `left_out` counts candidates for which there was no time. `is_interrupted` where Ctrl-C ended it."""

    tuning: Tuning
    trials: list[Trial] = field(default_factory=list)
    times: dict[str, tuple[float, float]] = field(default_factory=dict)
    left_out: int = 0
    is_interrupted: bool = False

    @property
    def faults(self) -> list[Trial]:
        """Candidates that changed results, which none may."""
        return [trial for trial in self.trials if trial.outcome == WRONG]


Runs = dict[str, Run]  # by probe


class Search:
    """One search. `fields` has the values to try of each field of `Tuning`, `earlier` is what another search found;
    `report` gets each trial."""

    def __init__(
        self, probes: Sequence[Probe], usual: Tuning, fields: Mapping[str, Sequence[int]], seconds: float,
        earlier: Tuning | None = None, clock: Callable[[], float] = time.monotonic,
        report: Callable[[Trial], None] | None = None,
    ):  # fmt: skip
        self.probes = {probe.name: probe for probe in probes}
        self.usual, self.earlier, self.fields, self.report = usual, earlier, fields, report
        self._clock, self._end = clock, clock() + seconds
        self.found = Found(usual)
        self._results: dict[str, bytes] = {}  # of each probe with the usual tuning
        self._best: Runs = {}  # with the tuning that is the best so far

    def run(self) -> Found:
        """Search. Ctrl-C ends the search with what was found until then; a second one is raised."""
        self._best = {name: probe.compile(self.usual) for name, probe in self.probes.items()}
        usual = dict(self._best)
        self._results = {name: run.results() for name, run in usual.items()}
        try:
            self._try_candidates()
        except KeyboardInterrupt:
            self.found.is_interrupted = True
            self._note(Trial("the search", INTERRUPTED))
        self._confirm(usual)
        return self.found

    def _try_candidates(self) -> None:
        if self.earlier is not None and self.earlier != self.usual:
            self._try("what was kept before", self.earlier)
        for form in dict.fromkeys([_form(tile) for probe in self.probes.values() for tile in probe.tiles]):
            self._search_tiles(form)
        for _ in range(PASSES):
            if not self._search_fields() or self._is_over():
                break

    # --- tiles ---

    def _search_tiles(self, form: str) -> None:
        """Time every tile of a form, and try speeds that are fitted to the times. Without the times of some, products
        of other shapes would get tiles that are too large or too small for them."""
        probes = [probe for probe in self.probes.values() if any(_form(tile) == form for tile in probe.tiles)]
        names = [tile for tile in probes[0].tiles if all(tile in probe.tiles for probe in probes)]
        times: dict[str, list[float]] = {}  # of a tile on each probe, where that of the best so far is 1
        for number, name in enumerate(names):
            if self._is_over():
                self.found.left_out += len(names) - number
                return
            measured = self._measure(f"tile {name}", self._with_speeds(form, {name: SPEED_UNIT}), probes)
            if measured is not None:
                gains, _ = measured
                times[name] = [1 / gains.get(probe.name, 1.0) for probe in probes]
                self._note(Trial(f"tile {name}", TIMED if gains else NO_EFFECT, geometric_mean(gains.values())))
        if len(times) > 1 and any(time != 1.0 for each in times.values() for time in each):
            work = {name: [probe.tiles[name] for probe in probes] for name in times}
            self._try(f"speeds of {form}", self._with_speeds(form, fit_speeds(times, work)))

    def _with_speeds(self, form: str, speeds: Mapping[str, int]) -> Tuning:
        """The best tuning so far with these tiles of a form, and no others of it."""
        others = [pair for pair in self.found.tuning.product_speeds if _form(pair[0]) != form]
        return replace(self.found.tuning, product_speeds=(*others, *speeds.items()))

    # --- fields ---

    def _search_fields(self) -> bool:
        """Try each value of each field; whether one was kept."""
        is_changed = False
        for name, values in self.fields.items():
            for value in values:
                if value == getattr(self.found.tuning, name):
                    continue
                if self._is_over():
                    self.found.left_out += 1
                else:
                    change: dict[str, Any] = {name: value}
                    is_changed |= self._try(f"{name} = {value}", replace(self.found.tuning, **change))
        return is_changed

    # --- one candidate ---

    def _try(self, text: str, tuning: Tuning) -> bool:
        """Time a candidate, and keep it if it is clearly faster; whether it is."""
        measured = self._measure(text, tuning, list(self.probes.values()))
        if measured is None:
            return False
        gains, runs = measured
        if is_clearly_faster(gains.values()):  # twice: noise is rarely the same again
            gains = {name: min(gain, _gain(self._best[name], runs[name])) for name, gain in gains.items()}
        is_kept = is_clearly_faster(gains.values())
        self._note(Trial(text, KEPT if is_kept else NO_GAIN if gains else NO_EFFECT, geometric_mean(gains.values())))
        if is_kept:
            self.found.tuning, self._best = tuning, runs
        return is_kept

    def _measure(self, text: str, tuning: Tuning, probes: Sequence[Probe]) -> tuple[dict[str, float], Runs] | None:
        """How many times faster than the best so far a tuning is on each probe whose plan differs, and its runs of all
        probes; None, with a trial that says why, where it is no candidate."""
        try:
            runs = dict(self._best)
            for probe in probes:
                run = probe.compile(tuning)
                if run.form != self._best[probe.name].form:
                    runs[probe.name] = run
            changed = [name for name, run in runs.items() if run is not self._best[name]]
            wrong = [name for name in changed if runs[name].results() != self._results[name]]
            if wrong:
                self._note(Trial(text, WRONG, reason=f"of {', '.join(wrong)}"))
                return None
            gains = {name: _gain(self._best[name], runs[name]) for name in changed}
        except WeftError as error:
            self._note(Trial(text, IMPOSSIBLE, reason=str(error)))
            if is_of_lost_device(error):  # nothing runs there any more in this process
                raise
            return None
        return gains, runs

    def _confirm(self, usual: Runs) -> None:
        """Time what was kept against the usual tuning, and drop it where it is not clearly faster after all."""
        times: dict[str, tuple[float, float]] = {}
        for name, before in usual.items():
            after = self._best[name]
            if after is before:
                least = max(min(before.seconds() for _ in range(ROUNDS)), LEAST_SECONDS)
                times[name] = least, least
            else:
                times[name] = time_alternately(before, after)
        gains = [before / after for name, (before, after) in times.items() if self._best[name] is not usual[name]]
        if self.found.tuning != self.usual and not is_clearly_faster(gains):
            self._note(Trial("all that was kept", NO_GAIN, geometric_mean(gains)))
            self.found.tuning, times = self.usual, {name: (before, before) for name, (before, _) in times.items()}
        self.found.times = times

    def _is_over(self) -> bool:
        return self._clock() >= self._end

    def _note(self, trial: Trial) -> None:
        self.found.trials.append(trial)
        if self.report is not None:
            self.report(trial)


def _form(tile: str) -> str:
    return tile.partition(" ")[0]


def geometric_mean(ratios: Any) -> float:
    """The geometric mean; 1 of nothing.

    >>> geometric_mean([2.0, 0.5, 8.0])
    2.0
    """
    logs = [math.log(ratio) for ratio in ratios]
    return round(math.exp(sum(logs) / len(logs)), 9) if logs else 1.0


def is_clearly_faster(gains: Any) -> bool:
    """Whether probes that became so many times faster are, on the whole, and none is clearly slower.

    >>> is_clearly_faster([1.2, 0.99]), is_clearly_faster([1.01, 1.02]), is_clearly_faster([1.5, 0.9])
    (True, False, False)
    """
    gains = list(gains)
    return bool(gains) and geometric_mean(gains) >= 1 + MARGIN and min(gains) >= 1 - MARGIN


def time_alternately(one: Run, other: Run) -> tuple[float, float]:
    """The least seconds of each, in rounds of both. A second one that is much slower gets fewer rounds. Where the clock
    is too coarse for one of them, nothing is known: both get the same."""
    first = second = math.inf
    for number in range(ROUNDS):
        first, second = min(first, one.seconds()), min(second, other.seconds())
        if number and second > MAX_SLOWDOWN * first:
            break
    if min(first, second) <= 0:
        first = second = max(first, second, LEAST_SECONDS)
    return first, second


def _gain(one: Run, other: Run) -> float:
    """How many times faster the other is."""
    first, second = time_alternately(one, other)
    return first / second


def fit_speeds(times: Mapping[str, Sequence[float]], work: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Speeds of tiles, with which the cost model chooses fast ones: `times` and `work` have one entry for each probe.
    Fitted to each probe, and to all of them on average; taken are those whose choices take the least time.

    >>> fit_speeds({"large": [1.0, 4.0], "small": [2.0, 1.0]}, {"large": [8, 8], "small": [8, 2]})
    {'large': 1000, 'small': 707}
    """
    probes = range(len(next(iter(times.values()))))
    on_probe = [{name: work[name][probe] / times[name][probe] for name in times} for probe in probes]
    relative = [{name: speed / max(each.values()) for name, speed in each.items()} for each in on_probe]
    average = {name: geometric_mean([each[name] for each in relative]) for name in times}

    def total(speeds: Mapping[str, float]) -> float:
        chosen = [min(times, key=lambda name: work[name][probe] / speeds[name]) for probe in probes]
        return geometric_mean([times[name][probe] for probe, name in zip(probes, chosen, strict=True)])

    best = min([average, *relative], key=total)
    fastest = max(best.values())
    return {name: max(1, round(SPEED_UNIT * speed / fastest)) for name, speed in best.items()}
