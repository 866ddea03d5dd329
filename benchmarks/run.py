"""Weft beside PyTorch (eager and compiled) and JAX: the same steps on the same numbers, in alternating rounds.

    python benchmarks/run.py                        every case, every framework
    python benchmarks/run.py --cases xor mlp        some of them
    python benchmarks/run.py --json results.json    keep the numbers
    python benchmarks/run.py --markdown             print the table for the README

Each framework lives in its own process, limited to the same cores, and computes only on request: round 1 of all
frameworks, then round 2 of all, and so on. The table gives the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cases import BY_NAME, CASES
from command_line import without
from worker import FRAMEWORKS

HERE = Path(__file__).parent
TOLERANCE = 1e-3  # relative; on the loss after the timed steps, or on mean absolute outputs and gradients
FIRST_STEPS = {  # process start to the first loss: title, and the aims with empty and with filled disk caches
    "mlp": ("784-128-10", {"cold": "under 1.5 s", "warm": "under 0.8 s"}),
    "transformer": ("transformer", {"cold": "under 5 s", "warm": "under 1.5 s"}),
}


def environment(threads: int, cache: Path) -> dict[str, str]:
    """The caller's environment with thread counts fixed and every framework's disk cache under `cache`."""
    count = str(threads)
    return os.environ | {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "WEFT_NUM_THREADS": count,
        "WEFT_CACHE_DIR": str(cache / "weft"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "torch"),
        "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PLATFORMS": "cpu",
    }


class Child:
    """A `worker.py` process. `ask` sends one command and waits for its answer."""

    def __init__(self, framework: str, threads: int, cache: Path, log: Any):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), "serve", framework, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(threads, cache),
        )
        self.version = self._answer()["version"]

    def ask(self, do: str, case: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, "case": case}) + "\n")
        self.process.stdin.flush()
        return self._answer()["result"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def run_case(name: str, children: dict[str, Child], rounds: int, pause: float, say: Any) -> dict[str, Any]:
    """All rounds of one case: {framework: {seconds, rounds, prepare_seconds, values} or {error}}."""
    record: dict[str, Any] = {}
    for framework, child in children.items():
        say(f"{name}: {framework} compiles")
        try:
            record[framework] = {"prepare_seconds": child.ask("prepare", name), "rounds": []}
        except RuntimeError as error:
            record[framework] = {"error": str(error)}
    alive = [framework for framework in children if "error" not in record[framework]]
    for number in range(rounds if alive else 0):
        # Rotate, so that no framework always runs right after the same other one.
        for framework in alive[number % len(alive) :] + alive[: number % len(alive)]:
            say(f"{name}: round {number + 1} of {rounds}, {framework}")
            time.sleep(pause)  # idle threads of the previous one go to sleep
            seconds, record[framework]["values"] = children[framework].ask("sample", name)
            record[framework]["rounds"].append(seconds)
    for framework in alive:
        record[framework]["seconds"] = statistics.median(record[framework]["rounds"])
        children[framework].ask("release", name)
    return record


def run_first_step(
    case: str, frameworks: list[str], threads: int, rounds: int, log: Any, say: Any
) -> dict[str, dict[str, Any]]:
    """Process start to the first loss in hand, with empty disk caches (cold) and with filled ones (warm)."""
    records: dict[str, dict[str, Any]] = {
        mode: {name: {"rounds": []} for name in frameworks} for mode in ("cold", "warm")
    }
    for number in range(-1, rounds):  # round -1 brings the installed files into the system's file cache; not counted
        for framework in frameworks:
            with tempfile.TemporaryDirectory() as cache:
                for mode in ("cold", "warm"):
                    say(f"first step of {case}, {mode}: round {number + 1} of {rounds}, {framework}")
                    entry = records[mode][framework]
                    if "error" in entry:
                        continue
                    try:
                        seconds, loss = _time_first_step(case, framework, threads, Path(cache), log)
                    except RuntimeError as error:
                        entry["error"] = str(error)
                        continue
                    if number >= 0:
                        entry["rounds"].append(seconds)
                        entry["seconds"] = statistics.median(entry["rounds"])
                        entry["values"] = [loss]
    return records


def _time_first_step(case: str, framework: str, threads: int, cache: Path, log: Any) -> tuple[float, float]:
    command = [sys.executable, str(HERE / "worker.py"), "first-step", framework, str(threads), case]
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(threads, cache)
    ) as child:
        assert child.stdout is not None
        loss = None
        for line in child.stdout:
            if line.startswith("loss "):
                seconds, loss = time.perf_counter() - start, float(line.split()[1])
                break
        child.communicate()
    if loss is None:
        raise RuntimeError(f"no first step; the process ended with status {child.returncode}")
    return seconds, loss


def disagreement(record: dict[str, Any]) -> float:
    """The largest relative distance between two frameworks' numbers, over all numbers that they gave."""
    lists = [entry["values"] for entry in record.values() if "values" in entry]
    worst = 0.0
    for numbers in zip(*lists, strict=True):
        low, high = min(numbers), max(numbers)
        worst = max(worst, (high - low) / max(abs(high), abs(low), 1e-30))
    return worst


def ratio(record: dict[str, Any]) -> tuple[float, str] | None:
    """The best other framework's time over Weft's, and that framework's name."""
    times = {name: entry["seconds"] for name, entry in record.items() if "seconds" in entry}
    if "weft" not in times or len(times) < 2:
        return None
    ours = times.pop("weft")
    best = min(times, key=times.__getitem__)
    return times[best] / ours, best


def machine() -> dict[str, Any]:
    """The processor and system in words; no host names, no paths."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "processor": model,
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
    }


def readable(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1.0:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def table_rows(report: dict[str, Any]) -> list[list[str]]:
    """Header and one row per case: title, a time per framework, the ratio, the aim."""
    frameworks = report["frameworks"]
    rows = [["case", *frameworks, "best other / weft", "aim"]]
    for case in report["cases"].values():
        cells = [
            readable(case["results"][name]["seconds"]) if "seconds" in case["results"].get(name, {}) else "failed"
            for name in frameworks
        ]
        best = ratio(case["results"])
        rows.append([case["title"], *cells, f"{best[0]:.2f} ({best[1]})" if best else "-", case["aim"]])
    return rows


def markdown(report: dict[str, Any]) -> str:
    header, *rows = table_rows(report)
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def show(report: dict[str, Any], console: Console) -> None:
    header, *rows = table_rows(report)
    table = Table(title=f"Median of {report['rounds']} alternating rounds, {report['threads']} threads each")
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for name, case in report["cases"].items():
        for framework, entry in case["results"].items():
            if "error" in entry:
                console.print(f"{name}, {framework}: {entry['error']}", markup=False)
        if case["disagreement"] > TOLERANCE:
            console.print(f"{name}: results DISAGREE by {case['disagreement']:.1e} relative")
    worst = max((case["disagreement"] for case in report["cases"].values()), default=0.0)
    if worst <= TOLERANCE:
        console.print(f"Losses, outputs and gradients agree within {worst:.1e} relative in every case.")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    names = [*BY_NAME, "first-step"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=9, help="alternating rounds (default 9)")
    parser.add_argument("--first-step-rounds", type=int, default=3, help="fresh processes per framework (default 3)")
    parser.add_argument("--threads", type=int, default=2, help="cores and threads per framework (default 2)")
    parser.add_argument("--pause", type=float, default=0.25, help="seconds of rest before each sample (default 0.25)")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--markdown", action="store_true", help="also print the table as Markdown")
    parser.add_argument("--log", type=Path, help="keep what the frameworks print to stderr in this file")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    words = without(sys.argv[1:] if arguments is None else arguments, "--json", "--log")
    console = Console() if sys.stdout.isatty() else Console(width=160)
    report: dict[str, Any] = {
        "date": date.today().isoformat(),
        "command": shlex.join(["python", "benchmarks/run.py", *words]),
        "machine": machine(),
        "threads": options.threads,
        "rounds": options.rounds,
        "frameworks": options.frameworks,
        "versions": {},
        "cases": {},
    }
    with (
        tempfile.TemporaryDirectory() as cache,
        open(options.log or os.devnull, "w") as log,
        console.status("starting") as status,
    ):
        children: dict[str, Child] = {}
        try:
            for framework in options.frameworks:
                status.update(f"starting {framework}")
                try:
                    children[framework] = Child(framework, options.threads, Path(cache) / framework, log)
                    report["versions"][framework] = children[framework].version
                except RuntimeError as error:
                    console.print(f"{framework} is left out: {error}", markup=False)
            report["frameworks"] = list(children)
            for case in CASES:
                if case.name in options.cases and children:
                    results = run_case(case.name, children, options.rounds, options.pause, status.update)
                    report["cases"][case.name] = {"title": case.title, "aim": case.aim, "results": results}
        finally:
            for child in children.values():
                child.close()
        if "first-step" in options.cases and children:
            for case_name, (title, aims) in FIRST_STEPS.items():
                records = run_first_step(
                    case_name, list(children), options.threads, options.first_step_rounds, log, status.update
                )
                for mode, results in records.items():
                    report["cases"][f"first-step-{case_name}-{mode}"] = {
                        "title": f"{title}: process start to first loss, {mode}",
                        "aim": aims[mode],
                        "results": results,
                    }
    for case in report["cases"].values():
        case["disagreement"] = disagreement(case["results"])
    show(report, console)
    if options.markdown:
        print("\n" + markdown(report))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
