"""The search of `weft tune` with probes and a clock that are made up: what is tried, kept and refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from tests.unit.fake_driver import FakeGpu
from weft.base.errors import DeviceError
from weft.base.tuning import Tuning
from weft.plan.device import DeviceLost
from weft.profiling import tune
from weft.profiling.tune import IMPOSSIBLE, INTERRUPTED, KEPT, NO_EFFECT, NO_GAIN, TIMED, WRONG, Search

pytestmark = pytest.mark.unit


class Clock:
    """Seconds that pass when something runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Run:
    form: object
    time: float
    clock: Clock
    bits: bytes = b"same"
    rounds: int = 0

    def seconds(self) -> float:
        self.clock.now += self.time
        self.rounds += 1
        return self.time

    def results(self) -> bytes:
        return self.bits


@dataclass
class Probe:
    """A program that takes `cost(tuning)` seconds; its plan depends on what `form` reads of the tuning."""

    name: str
    cost: Callable[[Tuning], float]
    clock: Clock
    form: Callable[[Tuning], object] = lambda tuning: tuning
    tiles: dict[str, int] = field(default_factory=dict)
    bits: Callable[[Tuning], bytes] = lambda tuning: b"same"
    compiled: list[Tuning] = field(default_factory=list)

    def compile(self, tuning: Tuning) -> Run:
        self.compiled.append(tuning)
        return Run(self.form(tuning), self.cost(tuning), self.clock, self.bits(tuning))


USUAL = Tuning(max_single_elements=64)


def outcomes(found) -> dict[str, str]:
    return {trial.candidate: trial.outcome for trial in found.trials}


def test_a_field_is_kept_where_it_is_clearly_faster():
    clock = Clock()
    cost = {64: 1.0, 128: 0.98, 256: 0.5, 512: 0.49}
    probe = Probe("map", lambda tuning: cost[tuning.workgroup_size], clock, lambda tuning: tuning.workgroup_size)
    usual = replace(USUAL, workgroup_size=64)
    found = Search([probe], usual, {"workgroup_size": (128, 256, 512), "max_tasks": (7,)}, 1e9, clock=clock).run()
    assert found.tuning == replace(usual, workgroup_size=256)
    assert found.times == {"map": (1.0, 0.5)} and found.left_out == 0 and not found.faults
    assert [(trial.candidate, trial.outcome) for trial in found.trials[:4]] == [
        ("workgroup_size = 128", NO_GAIN),
        ("workgroup_size = 256", KEPT),
        ("workgroup_size = 512", NO_GAIN),
        ("max_tasks = 7", NO_EFFECT),
    ]
    assert found.trials[1].gain == pytest.approx(2)
    assert len(found.trials) == 7  # one more pass, in which nothing changed, without the value that is kept


def test_what_makes_one_probe_clearly_slower_is_not_kept():
    clock = Clock()
    fast = Probe("fast", lambda tuning: 1 / tuning.workgroup_size, clock)
    slow = Probe("slow", lambda tuning: 1.0 if tuning.workgroup_size == 1 else 1.1, clock)
    usual = replace(USUAL, workgroup_size=1)
    found = Search([fast, slow], usual, {"workgroup_size": (8,)}, 1e9, clock=clock).run()
    assert found.tuning == usual and outcomes(found) == {"workgroup_size = 8": NO_GAIN}


def test_a_candidate_that_changes_a_bit_is_refused():
    clock = Clock()
    probe = Probe(
        "map", lambda tuning: 1 / tuning.workgroup_size, clock,
        bits=lambda tuning: b"same" if tuning.workgroup_size < 32 else b"other",
    )  # fmt: skip
    usual = replace(USUAL, workgroup_size=1)
    found = Search([probe], usual, {"workgroup_size": (32, 8)}, 1e9, clock=clock).run()
    assert found.tuning.workgroup_size == 8
    assert [(trial.candidate, trial.reason) for trial in found.faults] == [("workgroup_size = 32", "of map")] * 2


def test_a_candidate_that_does_not_run_is_left_out():
    clock = Clock()

    def cost(tuning: Tuning) -> float:
        if tuning.workgroup_size == 32:
            raise DeviceError("out of registers")
        return 1 / tuning.workgroup_size

    usual = replace(USUAL, workgroup_size=1)
    found = Search([Probe("map", cost, clock)], usual, {"workgroup_size": (32, 8)}, 1e9, clock=clock).run()
    assert found.tuning.workgroup_size == 8
    assert found.trials[0].outcome == IMPOSSIBLE and found.trials[0].reason == "out of registers"


@pytest.mark.parametrize("call", [lambda work: work(), lambda work: FakeGpu().call_in_order(work)])
def test_a_device_that_is_lost_ends_the_search_with_the_candidate_that_lost_it(call):
    """Whether the driver's error arrives, or what the backend makes of it."""
    clock, trials = Clock(), []

    def lose() -> None:
        raise DeviceLost("the device does not answer")

    def cost(tuning: Tuning) -> float:
        if tuning.workgroup_size == 32:
            call(lose)
        return 1 / tuning.workgroup_size

    probe, usual = Probe("map", cost, clock), replace(USUAL, workgroup_size=1)
    search = Search([probe], usual, {"workgroup_size": (8, 32, 16)}, 1e9, clock=clock, report=trials.append)
    with pytest.raises(DeviceError, match="does not answer"):
        search.run()
    assert [trial.candidate for trial in trials] == ["workgroup_size = 8", "workgroup_size = 32"]


def test_times_that_the_clock_cannot_see_say_nothing():
    """A run of less than a tick takes 0 seconds, by what a device says."""

    def search(cost: Callable[[Tuning], float]):
        probes = [Probe("none", lambda tuning: 0.0, clock, form=lambda tuning: 0), Probe("map", cost, clock)]
        return Search(probes, replace(USUAL, workgroup_size=1), {"workgroup_size": (8,)}, 1e9, clock=clock).run()

    clock = Clock()
    for cost in (lambda tuning: 0.0, lambda tuning: 1e-3 if tuning.workgroup_size == 1 else 0.0):
        found = search(cost)
        assert found.tuning.workgroup_size == 1 and outcomes(found) == {"workgroup_size = 8": NO_GAIN}
        assert all(before == after > 0 for before, after in found.times.values()), "rates are work by seconds"
    assert search(lambda tuning: 1 / tuning.workgroup_size).tuning.workgroup_size == 8


def test_an_interrupt_ends_the_search_with_what_was_found_until_then():
    clock, interrupts = Clock(), []

    class Interrupted(Run):
        def seconds(self) -> float:
            interrupts.append(1)
            raise KeyboardInterrupt

    class InterruptedProbe(Probe):
        def compile(self, tuning: Tuning) -> Run:
            run = super().compile(tuning)
            return Interrupted(run.form, run.time, clock) if tuning.workgroup_size == 32 else run

    usual = replace(USUAL, workgroup_size=1)
    probe = InterruptedProbe("map", lambda tuning: 1 / tuning.workgroup_size, clock)
    found = Search([probe], usual, {"workgroup_size": (8, 32, 16)}, 1e9, clock=clock).run()
    assert found.is_interrupted and len(interrupts) == 1
    assert found.tuning.workgroup_size == 8 and found.times == {"map": (1.0, 0.125)}
    assert [trial.outcome for trial in found.trials] == [KEPT, INTERRUPTED]


def test_the_search_ends_when_its_seconds_are_over():
    clock = Clock()
    probe = Probe("map", lambda tuning: 1.0 / tuning.workgroup_size, clock)
    usual = replace(USUAL, workgroup_size=1)
    values = (2, 4, 8, 16)
    found = Search([probe], usual, {"workgroup_size": values}, 1.0, clock=clock).run()
    assert found.tuning.workgroup_size == 2 and found.left_out == 3  # the first candidate took all
    found = Search([probe], usual, {"workgroup_size": values}, 0.0, clock=clock).run()
    assert found.tuning == usual and found.left_out == 4 and not found.trials


def test_what_is_kept_must_stay_faster():
    """Times that were good by chance: at the end all is timed once more."""
    clock, count = Clock(), []

    class Lucky(Run):
        def seconds(self) -> float:
            count.append(1)
            return 0.5 if len(count) <= 2 * tune.ROUNDS else 1.0

    class LuckyProbe(Probe):
        def compile(self, tuning: Tuning) -> Run:
            return Run(1, 1.0, clock) if tuning == USUAL else Lucky(2, 1.0, clock)

    found = Search([LuckyProbe("map", lambda tuning: 1.0, clock)], USUAL, {"max_tasks": (7,)}, 1e9, clock=clock).run()
    assert found.trials[0].outcome == KEPT
    assert found.trials[-1].candidate == "all that was kept" and found.trials[-1].outcome == NO_GAIN
    assert found.tuning == USUAL and found.times == {"map": (1.0, 1.0)}


def test_an_earlier_tuning_is_the_first_candidate():
    clock = Clock()
    probe = Probe("map", lambda tuning: 1 / tuning.max_tasks, clock)
    earlier = replace(USUAL, max_tasks=2 * USUAL.max_tasks)
    found = Search([probe], USUAL, {"max_tasks": (1,)}, 0.0, earlier, clock).run()
    assert found.tuning == earlier and outcomes(found) == {"what was kept before": KEPT} and found.left_out == 1


def test_only_plans_that_differ_are_timed_and_slow_ones_briefly():
    clock, runs = Clock(), []

    class Recorded(Probe):
        def compile(self, tuning: Tuning) -> Run:
            runs.append(super().compile(tuning))
            return runs[-1]

    probe = Recorded("map", lambda tuning: float(tuning.max_tasks), clock, lambda tuning: tuning.max_tasks)
    usual = replace(USUAL, max_tasks=1)
    Search([probe], usual, {"workgroup_size": (1,), "max_tasks": (9,)}, 1e9, clock=clock).run()
    assert [run.rounds for run in runs] == [tune.ROUNDS + 2, 0, 2]


# --- tiles -----------------------------------------------------------------------------------------------------------

TILES = {"registers big": 100, "registers small": 120}


def tile_of(tuning: Tuning, work: dict[str, int], default: str) -> str:
    """What the cost model would choose."""
    named = [(work[name] / speed, name) for name, speed in tuning.product_speeds if name in work]
    return min(named)[1] if named else default


def product(name: str, times: dict[str, float], work: dict[str, int], clock: Clock) -> Probe:
    def choice(tuning: Tuning) -> str:
        return tile_of(tuning, work, "registers big")

    return Probe(name, lambda tuning: times[choice(tuning)], clock, choice, work)


def test_speeds_of_tiles_are_fitted_to_times():
    clock = Clock()
    large = product("large", {"registers big": 1.0, "registers small": 0.8}, TILES, clock)
    few = product("few rows", {"registers big": 1.0, "registers small": 0.4}, {**TILES, "registers small": 40}, clock)
    other = Probe("map", lambda tuning: 1.0, clock, lambda tuning: 0)
    found = Search([large, few, other], USUAL, {}, 1e9, clock=clock).run()
    assert outcomes(found) == {
        "tile registers big": NO_EFFECT, "tile registers small": TIMED, "speeds of registers": KEPT
    }  # fmt: skip
    speeds = dict(found.tuning.product_speeds)
    assert speeds["registers small"] == tune.SPEED_UNIT > speeds["registers big"]
    assert found.times == {"large": (1.0, 0.8), "few rows": (1.0, 0.4), "map": (1.0, 1.0)}


def test_speeds_are_not_kept_where_the_default_tile_is_fastest():
    clock = Clock()
    probe = product("large", {"registers big": 1.0, "registers small": 2.0}, TILES, clock)
    found = Search([probe], USUAL, {}, 1e9, clock=clock).run()
    assert found.tuning == USUAL and outcomes(found)["speeds of registers"] == NO_EFFECT


def test_products_of_a_library_have_no_tiles_to_search():
    clock = Clock()
    probe = Probe("large", lambda tuning: 1.0, clock, lambda tuning: "library", dict(TILES))
    found = Search([probe], USUAL, {}, 1e9, clock=clock).run()
    assert outcomes(found) == {"tile registers big": NO_EFFECT, "tile registers small": NO_EFFECT}


def test_forms_of_tiles_are_searched_apart():
    clock = Clock()
    one = product("float32", {"registers big": 1.0, "registers small": 0.5}, TILES, clock)
    units = {"units big": 100, "units small": 100}
    two = product("bfloat16", {"registers big": 1.0, "units big": 1.0, "units small": 0.5}, units, clock)
    found = Search([one, two], USUAL, {}, 1e9, clock=clock).run()
    assert {name for name, _ in found.tuning.product_speeds} == {*TILES, *units}
    assert found.times == {"float32": (1.0, 0.5), "bfloat16": (1.0, 0.5)}
    assert WRONG not in outcomes(found).values()


def test_tiles_for_which_there_is_no_time_are_counted():
    clock = Clock()
    probe = product("large", {"registers big": 1.0, "registers small": 0.5}, TILES, clock)
    found = Search([probe], USUAL, {}, 0.0, clock=clock).run()
    assert found.left_out == 2 and found.tuning == USUAL
    more = {**TILES, "registers third": 100}
    probe = product("large", {"registers big": 1.0, "registers small": 0.5, "registers third": 1.0}, more, clock)
    found = Search([probe], USUAL, {}, 1.0, clock=clock).run()
    assert found.left_out == 1 and found.tuning == USUAL  # two of three were timed: no speeds are fitted
