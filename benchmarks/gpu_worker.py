"""One framework on one device in one process, controlled over a pipe (see `worker.serve`).

gpu_worker.py serve FRAMEWORK DEVICE [--tiny]              answer `prepare`, `sample` and `release` for a case
gpu_worker.py first-step FRAMEWORK DEVICE CASE [--tiny]    run one step and print its loss
"""

from __future__ import annotations

import sys
import time
from typing import Any

from gpu_cases import CASES, Case, Iterations, shrink
from worker import serve

FRAMEWORKS = ("weft", "torch", "torch.compile", "torch graph", "torch.compile graph", "torch autotuned")
LONG = 0.1  # seconds that a sample of a case without state should take
MOST = 500  # steps in it


class Worker:
    def __init__(self, framework: str, device: str, tiny: bool):
        if framework == "weft":
            import gpu_weft

            self.module: Any = gpu_weft
            self.make = gpu_weft.make
        else:
            import gpu_torch
            from torch_modes import MODES

            self.module = gpu_torch
            self.make = lambda case: gpu_torch.make(case, MODES[framework])
        self.version = self.module.prepare(device)
        self.tiny = tiny
        self.runners: dict[str, Any] = {}
        self.steps: dict[str, int] = {}

    def case(self, name: str) -> Case:
        return shrink(CASES[name]) if self.tiny else CASES[name]

    def describe(self, name: str) -> str:
        return self.module.describe()

    def prepare(self, name: str) -> dict[str, Any]:
        """Build the case and run it until nothing is left to compile. What that took, and the numbers to compare."""
        start = time.perf_counter()
        case = self.case(name)
        self.runners[name] = runner = self.make(case)
        runner.reset()
        result = runner.run(getattr(case, "warmup", 1))
        self.module.finish()
        record: dict[str, Any] = {"prepare_seconds": time.perf_counter() - start}
        if not hasattr(case, "steps"):
            record["values"] = runner.values(result)
        result = None
        self._seconds(runner, 3)  # the first repetitions may still capture something
        self.steps[name] = getattr(case, "steps", 0) or min(max(int(LONG / self._seconds(runner, 3)), 3), MOST)
        return record

    def sample(self, name: str) -> dict[str, Any]:
        """Seconds of one unit of the case, best of its samples."""
        case, runner, steps = self.case(name), self.runners[name], self.steps[name]
        best = float("inf")
        for _ in range(getattr(case, "samples", 1)):
            runner.reset()
            if hasattr(case, "warmup"):
                runner.run(case.warmup)
            best = min(best, self._seconds(runner, steps))
        record: dict[str, Any] = {"seconds": best * getattr(case, "unit", 1)}
        if hasattr(case, "steps"):
            record["values"] = runner.values(self.result)
        if hasattr(runner, "memory"):
            record["memory"] = runner.memory()
        if isinstance(case, Iterations):
            record["seconds"] /= case.count
        self.result = None
        return record

    def _seconds(self, runner: Any, steps: int) -> float:
        """Of a step among `steps`, from an idle device to an idle device."""
        self.result = None
        self.module.finish()
        start = time.perf_counter()
        self.result = runner.run(steps)
        self.module.finish()
        return (time.perf_counter() - start) / steps

    def release(self, name: str) -> None:
        self.result = None
        self.runners.pop(name, None)
        self.module.release()


def first_step(framework: str, device: str, case: str, tiny: bool) -> None:
    """Import, build the network of `case`, run one step, read its loss, and say so: the parent holds the clock."""
    worker = Worker(framework, device, tiny)
    runner = worker.make(worker.case(case))
    runner.reset()
    print("loss", runner.run(1).item(), flush=True)


if __name__ == "__main__":
    small = "--tiny" in sys.argv
    mode, *rest = (word for word in sys.argv[1:] if word != "--tiny")
    if mode == "serve":
        serve(lambda: Worker(*rest, tiny=small))
    else:
        first_step(*rest, tiny=small)
