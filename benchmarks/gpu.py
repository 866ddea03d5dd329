"""Weft beside PyTorch (eager, compiled, in a CUDA graph) on a GPU: the same steps on the same numbers, in alternating
rounds, with the share that each reaches of what the device can do.

    python3 benchmarks/gpu.py                                every case
    python3 benchmarks/gpu.py --cases copy rows xor gpt      some of them, or groups: rows, products, training, short
    python3 benchmarks/gpu.py --json FILE --markdown FILE    keep the numbers and the table
    python3 benchmarks/gpu.py --device cpu --tiny            a look without a GPU: tiny sizes, no meaning

Each framework lives in its own process and computes only on request: round 1 of all, then round 2 of all, and so on. A
time is that of many steps from an idle device to an idle device, divided by their number; tables give the median over
the rounds. Memory-bound cases are compared with a copy of 2 GiB that torch makes in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from cases import Training
from command_line import without
from gpu_cases import CASES, GROUPS, Case, Copy, Iterations, Product, shrink
from gpu_worker import FRAMEWORKS
from networks import Network

HERE = Path(__file__).parent
FIRST_STEP = "first-step"
FIRST_STEP_AIM = "within 10 s"


class Child:
    """A `gpu_worker.py` process. `tell` sends a command, `answer` waits for what comes back."""

    def __init__(self, framework: str, options: argparse.Namespace, cache: Path, log: Any):
        self.command = command("serve", framework, options.device, tiny=options.tiny)
        self.log, self.environment = log, environment(cache)
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=self.environment,
        )

    def restart(self) -> None:
        """A new process: after an error on a GPU, nothing else in the old one can be trusted."""
        self.close()
        self.start()
        self.answer()

    def tell(self, do: str, case: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, "case": case}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def ask(self, do: str, case: str = "") -> Any:
        self.tell(do, case)
        return self.answer()["result"]

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def command(mode: str, *words: str, tiny: bool) -> list[str]:
    return [sys.executable, str(HERE / "gpu_worker.py"), mode, *words, *(["--tiny"] if tiny else [])]


def environment(cache: Path) -> dict[str, str]:
    """The caller's environment with the checkout on the path and every disk cache under `cache`."""
    path = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH"))))
    caches = {"WEFT_CACHE_DIR": "weft", "TORCHINDUCTOR_CACHE_DIR": "torch", "TRITON_CACHE_DIR": "triton"}
    return os.environ | {"PYTHONPATH": path} | {name: str(cache / folder) for name, folder in caches.items()}


def worth_it(framework: str, case: Case) -> bool:
    """Whether a framework's way of running says anything new about a case: compiling changes no single product, and
    would make one kernel of a loop; a graph of few large kernels is as fast as these kernels."""
    if "graph" in framework:
        return isinstance(case, Training) or (isinstance(case, Network | Iterations) and "compile" not in framework)
    return framework in ("weft", "torch") or not isinstance(case, Copy | Product | Iterations)


def run_case(name: str, case: Case, children: dict[str, Child], rounds: int, say: Any) -> dict[str, Any]:
    """All rounds of one case: {framework: {seconds, rounds, prepare_seconds, values, ...} or {error}}."""
    record: dict[str, Any] = {}
    taking_part = {framework: child for framework, child in children.items() if worth_it(framework, case)}
    say(f"{name}: {', '.join(taking_part)} prepare")
    for child in taking_part.values():
        child.tell("prepare", name)  # all compile at once
    for framework, child in taking_part.items():
        try:
            record[framework] = {**child.answer()["result"], "rounds": []}
        except (RuntimeError, OSError) as error:
            record[framework] = {"error": str(error)}
    alive = [framework for framework in taking_part if "error" not in record[framework]]
    for number in range(rounds):
        # Rotate, so that no framework always runs right after the same other one.
        first = number % max(len(alive), 1)
        for framework in alive[first:] + alive[:first]:
            entry = record[framework]
            if "error" in entry:
                continue
            try:
                sample = children[framework].ask("sample", name)
                entry["rounds"].append(sample.pop("seconds"))
                entry |= sample
            except (RuntimeError, OSError) as error:
                entry["error"] = str(error)
    for framework, child in taking_part.items():
        if "error" in record[framework]:
            child.restart()
        else:
            record[framework]["seconds"] = statistics.median(record[framework]["rounds"])
            child.ask("release", name)
    return record


def run_first_step(options: argparse.Namespace, frameworks: list[str], log: Any, say: Any) -> dict[str, Any]:
    """Process start to the first loss of the GPT in hand, with empty disk caches (cold) and with filled ones (warm)."""
    records: dict[str, Any] = {"cold": {}, "warm": {}}
    for framework in [one for one in frameworks if one in ("weft", "torch", "torch.compile")]:
        with tempfile.TemporaryDirectory() as cache:
            for mode, record in records.items():
                say(f"first step, {mode}: {framework}")
                try:
                    seconds, loss = time_first_step(options, framework, Path(cache), log)
                    record[framework] = {"seconds": seconds, "rounds": [seconds], "values": [loss]}
                except RuntimeError as error:
                    record[framework] = {"error": str(error)}
    return records


def time_first_step(options: argparse.Namespace, framework: str, cache: Path, log: Any) -> tuple[float, float]:
    start = time.perf_counter()
    words = command("first-step", framework, options.device, "gpt", tiny=options.tiny)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(cache)) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("loss "):
                seconds = time.perf_counter() - start
                child.communicate()
                return seconds, float(line.split()[1])
    raise RuntimeError(f"no first step; the process ended with status {child.returncode}")


def disagreement(results: dict[str, Any]) -> float:
    """The largest relative distance between two frameworks' numbers, over all numbers that they gave."""
    lists = [entry["values"] for entry in results.values() if entry.get("values")]
    worst = 0.0
    for numbers in zip(*lists, strict=True):
        low, high = min(numbers), max(numbers)
        worst = max(worst, (high - low) / max(abs(high), abs(low), 1e-30))
    return worst


def reached(case: dict[str, Any], seconds: float, copy: float | None) -> str:
    """What a time means for the device: bytes a second as a share of the copy, or operations a second."""
    if case.get("bytes"):
        rate = case["bytes"] / seconds
        return f"{rate / 1e12:.2f} TB/s" + (f" ({rate / copy:.0%})" if copy else "")
    if case.get("flops"):
        return f"{case['flops'] / seconds / 1e12:.0f} TFLOP/s"
    return "-"


def copy_rate(report: dict[str, Any]) -> float | None:
    """Bytes a second that the best of torch's copies moves."""
    case = report["cases"].get("copy", {"results": {}})
    times = [e["seconds"] for name, e in case["results"].items() if name != "weft" and "seconds" in e]
    return case["bytes"] / min(times) if times else None


def readable(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1.0:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def table(report: dict[str, Any]) -> str:
    """Markdown: a row per case with a time per framework, the best other time over Weft's, and what Weft reached."""
    frameworks, copy = report["frameworks"], copy_rate(report)
    lines = [["case", *frameworks, "best torch / weft", "weft reaches", "aim"]]
    lines.append(["---"] * len(lines[0]))
    for case in report["cases"].values():
        times = {name: entry["seconds"] for name, entry in case["results"].items() if "seconds" in entry}
        failed = {name for name, entry in case["results"].items() if "error" in entry}
        cells = [readable(times[n]) if n in times else "failed" if n in failed else "" for n in frameworks]
        ours = times.pop("weft", None)
        best = min(times, key=times.__getitem__) if times else None
        ratio = f"{times[best] / ours:.2f} ({best})" if ours and best else "-"
        lines.append([case["title"], *cells, ratio, reached(case, ours, copy) if ours else "-", case["aim"]])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def remarks(report: dict[str, Any]) -> list[str]:
    """What failed, what does not agree, and how much memory the GPT took."""
    found = []
    for name, case in report["cases"].items():
        found += [f"{name}, {n}: {e['error'].splitlines()[0]}" for n, e in case["results"].items() if "error" in e]
        if case["disagreement"] > case["tolerance"]:
            found.append(f"{name}: results DISAGREE by {case['disagreement']:.1e} relative")
        if case.get("tokens"):
            for framework, entry in case["results"].items():
                if "seconds" in entry:
                    losses = ", ".join(f"{loss:.4f}" for loss in entry["values"])
                    speed, memory = case["tokens"] / entry["seconds"], entry.get("memory", 0) / 2**30
                    found.append(f"{name}, {framework}: {speed:,.0f} tokens/s, {memory:.1f} GiB, losses {losses}")
    return found


def document(report: dict[str, Any]) -> str:
    """The report as a Markdown file."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    head = f"# Weft beside PyTorch on {report['device']}, {report['date']}\n\n`{report['command']}`\n\n"
    middle = f"{versions}, Python {report['python']}. Median of {report['rounds']} alternating rounds.\n\n"
    return head + middle + table(report) + "\n\n" + "".join(f"- {line}\n" for line in remarks(report))


def keep(report: dict[str, Any], options: argparse.Namespace) -> None:
    """Write what is known by now, so that a run that is cut short leaves something."""
    for case in report["cases"].values():
        case["disagreement"] = disagreement(case["results"])
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(document(report))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    names = [*CASES, FIRST_STEP]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=[*names, *GROUPS], default=names, metavar="CASE",
                        help=", ".join([*GROUPS, *names]))  # fmt: skip
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS[:-1]), metavar="NAME",
                        help=f"{', '.join(FRAMEWORKS)} (default: all but the last)")  # fmt: skip
    parser.add_argument("--device", default="cuda", help="cuda (default) or cpu")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds (default 5)")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--log", type=Path, help="keep what the frameworks print to stderr in this file")
    options = parser.parse_args(arguments)
    options.cases = list(dict.fromkeys(one for name in options.cases for one in GROUPS.get(name, [name])))
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    words = without(sys.argv[1:] if arguments is None else arguments, "--json", "--markdown", "--log")
    report: dict[str, Any] = {
        "date": date.today().isoformat(),
        "command": f'make bench-gpu ARGS="{shlex.join(words)}"',
        "python": sys.version.split()[0],
        "device": options.device,
        "rounds": options.rounds,
        "frameworks": options.frameworks,
        "versions": {},
        "cases": {},
    }
    with tempfile.TemporaryDirectory() as cache, open(options.log or os.devnull, "w") as log:
        children = {name: Child(name, options, Path(cache) / name, log) for name in options.frameworks}
        try:
            for framework, child in list(children.items()):
                try:
                    report["versions"][framework.split(" ")[0].split(".")[0]] = child.answer()["version"]
                    report["device"] = child.ask("describe") if options.device != "cpu" else "a CPU"
                except RuntimeError as error:
                    say(f"{framework} is left out: {error}")
                    children.pop(framework).close()
            report["frameworks"] = list(children)
            for name in options.cases:
                if name == FIRST_STEP or not children:
                    continue
                case = shrink(CASES[name]) if options.tiny else CASES[name]
                results = run_case(name, case, children, options.rounds, say)
                about = {
                    key: getattr(case, key)
                    for key in ("title", "aim", "bytes", "flops", "tokens")
                    if hasattr(case, key)
                }
                report["cases"][name] = {**about, "tolerance": case.tolerance, "results": results}
                keep(report, options)
        finally:
            for child in children.values():
                child.close()
        if FIRST_STEP in options.cases:
            for mode, results in run_first_step(options, list(children), log, say).items():
                title = f"GPT: process start to the first loss, {mode}"
                about = {"title": title, "aim": FIRST_STEP_AIM, "tolerance": 2e-3, "results": results}
                report["cases"][f"{FIRST_STEP}-{mode}"] = about
    keep(report, options)
    print(document(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
