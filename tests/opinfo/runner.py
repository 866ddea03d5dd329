"""Many operators, in several processes."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch

from tests.opinfo.check import Outcome, check_operator


def run(keys: list[str], samples: int | None, seconds: int, jobs: int) -> list[Outcome]:
    """Outcomes in the order of the keys; several processes share the work."""
    if jobs == 1 or len(keys) == 1:
        return [check_operator(key, samples, seconds) for key in keys]
    found: dict[str, Outcome] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(keys)), spawn, initializer=_single_thread) as pool:
        waiting = {pool.submit(check_operator, key, samples, seconds): key for key in keys}
        for done in as_completed(waiting):
            found[waiting[done]] = done.result()
            if sys.stderr.isatty():
                print(f"\r{len(found)} of {len(keys)}", end="", file=sys.stderr, flush=True)
    return [found[key] for key in keys]


def _single_thread() -> None:
    torch.set_num_threads(1)
