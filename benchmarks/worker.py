"""One framework in one process, controlled over a pipe: one JSON object per line in, one per line out.

`prepare` builds a case and runs its first steps; `sample` times it once; `values` gives numbers to compare between the
frameworks. Nothing here knows a case or a framework by heart.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# name -> (module beside this file, the function in it that makes a runner of a case)
FRAMEWORKS = {
    "weft": ("in_weft", "make"),
    "torch": ("in_torch", "make"),
    "torch.compile": ("in_torch", "make_compiled"),
    "jax": ("in_jax", "make"),
}


def limit_cores(threads: int) -> None:
    """Keep this process on the first `threads` cores, so that every thread pool in it has that size."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


class Worker:
    def __init__(self, framework: str, threads: int):
        from cases import BY_NAME

        module, maker = FRAMEWORKS[framework]
        self.module: Any = importlib.import_module(module)
        self.make = getattr(self.module, maker)
        self.cases = BY_NAME
        self.version = self.module.prepare(threads)
        self.runners: dict[str, Any] = {}

    def prepare(self, name: str) -> float:
        """Build the case and run its untimed steps twice, so that nothing is left to compile. Seconds taken."""
        start = time.perf_counter()
        self.runners[name] = runner = self.make(self.cases[name])
        for _ in range(2):
            runner.reset()
            self.module.finish(runner.run(self.cases[name].warmup))
        return time.perf_counter() - start

    def sample(self, name: str) -> tuple[float, list[float]]:
        """Seconds of one unit of the case, best of its samples; and the numbers that the last step gave."""
        case, runner = self.cases[name], self.runners[name]
        best = float("inf")
        for _ in range(case.samples):
            runner.reset()
            self.module.finish(runner.run(case.warmup))
            start = time.perf_counter()
            result = runner.run(case.steps)
            self.module.finish(result)
            best = min(best, time.perf_counter() - start)
        return best / case.steps * case.unit, runner.values(result)

    def release(self, name: str) -> None:
        self.runners.pop(name, None)


def serve(start: Callable[[], Any]) -> None:
    """Answer commands with the methods of the worker that `start` makes, until the pipe closes. Whatever a framework
    prints goes to stderr, never into the answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields: Any) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    try:
        worker = start()
    except Exception as error:
        answer(error=f"{type(error).__name__}: {error}")
        return
    answer(version=worker.version)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(result=getattr(worker, command["do"])(command["case"]))
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}")


def first_step(framework: str, threads: int, case: str) -> None:
    """Import, build the network of `case`, run one step, read its loss, and say so: the parent holds the clock."""
    worker = Worker(framework, threads)
    runner = worker.make(worker.cases[case])
    runner.reset()
    print("loss", runner.values(runner.run(1))[0], flush=True)


if __name__ == "__main__":
    mode, framework, threads, *rest = sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]
    limit_cores(threads)
    if mode == "serve":
        serve(lambda: Worker(framework, threads))
    else:
        first_step(framework, threads, *rest)
