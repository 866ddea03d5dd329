"""Kernels of the op suite under compute-sanitizer: `make sanitize-gpu`.

Runs the programs that make every kind of kernel and the first case of every record under memcheck, racecheck and
synccheck. Several processes share the work; any error of the checker, or of a program, is a failure. `--only matmul`
chooses by name.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

SHARES = 8
LINES = 40
RAN = "programs that ran:"


def work() -> Iterator[tuple[str, Callable[[], None]]]:
    """What is run, by name."""
    import weft
    from tests.records import RECORDS
    from tests.records.cases import Case, cases, results
    from tests.unit.programs import PROGRAMS
    from tests.unit.programs import results as computed

    device = weft.get_device("cuda")
    for name, program in PROGRAMS.items():
        yield name, lambda program=program: computed(program, device, small=True)

    def run(case: Case) -> None:
        with weft.device(device):
            outputs = results(case)
            weft.eval(*outputs)
            for output in outputs:
                output.numpy()

    for record in RECORDS:
        first = {case.gradient: case for case in reversed(list(cases(record))) if case.dtype == record.dtypes[0]}
        for case in first.values():
            yield record.name, lambda case=case: run(case)


def run_share(share: int, only: str) -> None:
    """One of `SHARES` parts of the work, in this process."""
    wanted = only.split(",")
    count = 0
    for number, (name, compute) in enumerate(work()):
        if number % SHARES == share and any(part in name for part in wanted):
            compute()
            count += 1
    print(f"{RAN} {count}")


def check(tool: str, only: str) -> bool:
    """All shares under one tool of the checker, concurrently."""
    started = time.perf_counter()
    command = ["compute-sanitizer", f"--tool={tool}", "--error-exitcode=9", "--print-limit=3", sys.executable, "-m"]
    command += ["tests.gpu.sanitize", f"--only={only}"]

    def share(number: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, f"--share={number}"], capture_output=True, text=True, env=dict(os.environ))

    with ThreadPoolExecutor(SHARES) as pool:
        done = list(pool.map(share, range(SHARES)))
    ran = [line for one in done for line in one.stdout.splitlines() if line.startswith(RAN)]
    count = sum(int(line.removeprefix(RAN)) for line in ran)
    failed = [one for one in done if one.returncode != 0]
    found = f"failed in {len(failed)} of {SHARES} parts" if failed else "no errors"
    print(f"{tool}: {found}, {count} programs, {time.perf_counter() - started:.0f} s")
    for one in failed[:2]:
        shown = [line for line in one.stdout.splitlines() if "Host Frame" not in line or ".py:" in line]
        print("\n".join([*shown[:LINES], *one.stderr.splitlines()[-LINES // 4 :]]))
    return not failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=int, help="run one share of the work, without the checker")
    parser.add_argument("--only", default="", help="parts of names, with commas")
    parser.add_argument("--tools", default="memcheck,racecheck,synccheck")
    given = parser.parse_args()
    if given.share is not None:
        run_share(given.share, given.only)
        return 0
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on PATH; it comes with the CUDA toolkit")
        return 1
    good = [check(tool, given.only) for tool in given.tools.split(",")]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
