"""Measures every advice of docs/performance.md: the time before and after following it, in alternating rounds.

`make advice` prints one line per advice; ARGS="--json FILE" writes all rounds. An advice is a pair of functions that do
the same work; a ratio is the median over rounds of before / after, so that a busy machine slows both sides. Advice
about memory is a pair of numbers of bytes, which are predicted and do not vary.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import weft  # noqa: E402
import weft.nn.functional as F  # noqa: E402
from weft import nn  # noqa: E402

Pair = tuple[Callable[[], Any], Callable[[], Any]]
ADVICE: dict[str, Callable[[], Pair]] = {}  # what to do instead -> the two functions
Bytes = Callable[[], tuple[int, int]]


def advice(words: str) -> Callable[[Callable[[], Pair]], Callable[[], Pair]]:
    """Enters a pair of functions into the table."""

    def enter(make: Callable[[], Pair]) -> Callable[[], Pair]:
        ADVICE[words] = make
        return make

    return enter


def mlp() -> tuple[nn.Module, Any, weft.Tensor, weft.Tensor]:
    """The 784-128-10 network with Adam and a batch of 64."""
    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, weft.optim.Adam(model.parameters(), lr=1e-3), weft.randn(64, 784), weft.randint(0, 10, (64,))


def training_step() -> tuple[Callable[..., weft.Tensor], weft.Tensor, weft.Tensor]:
    model, optimizer, x, y = mlp()

    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, x, y


def repeated(count: int, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call so many times; the last result is read."""

    def run() -> Any:
        for _ in range(count - 1):
            call()
        return call().item()

    return run


@advice("compile the training step")
def compile_step() -> Pair:
    eager, x, y = training_step()
    other, a, b = training_step()
    compiled = weft.compile(other)
    return repeated(20, lambda: eager(x, y)), repeated(20, lambda: compiled(a, b))


@advice("compile the update too, not the gradients alone")
def compile_whole_step() -> Pair:
    model, optimizer, x, y = mlp()

    @weft.compile
    def gradients(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    def partly() -> weft.Tensor:
        loss = gradients(x, y)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step, a, b = training_step()
    compiled = weft.compile(step)
    return repeated(20, partly), repeated(20, lambda: compiled(a, b))


@advice("keep few batch shapes: 8 steps of one size, not of 8 sizes never seen")
def few_shapes() -> Pair:
    step, _, _ = training_step()
    compiled = weft.compile(step)
    x, y = weft.randn(4096, 784), weft.randint(0, 10, (4096,))
    seen = iter(range(65, 4096))

    def steps(sizes: Iterable[int]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", weft.TraceWarning)  # which says the same
            for size in sizes:
                compiled(x[:size], y[:size]).item()

    return lambda: steps(itertools.islice(seen, 8)), lambda: steps([64] * 8)


@advice("write a recurrence with weft.loop: first result of 100 steps in time")
def loop_first() -> Pair:
    width = iter(range(32, 2000))

    def cell(h: weft.Tensor, x: weft.Tensor) -> tuple[weft.Tensor, weft.Tensor]:
        h = (h * 0.9 + x).tanh()
        return h, h

    def python_loop() -> None:
        xs = weft.ones(100, 8, next(width))
        h = weft.zeros(8, xs.shape[2])
        for x in xs:
            h, _ = cell(h, x)
        h.numpy()

    def weft_loop() -> None:
        xs = weft.ones(100, 8, next(width))
        weft.loop(cell, weft.zeros(8, xs.shape[2]), xs)[0].numpy()

    return python_loop, weft_loop


@advice("sort a graph's edges once, with weft.adjacency")
def sorted_edges() -> Pair:
    weft.manual_seed(0)
    edges, x = weft.randint(0, 2000, (2, 20000)), weft.randn(2000, 64)
    layer = nn.GCNConv(64, 64)
    graph = weft.adjacency(edges, num_nodes=2000)
    run = weft.compile(lambda x, graph: layer(x, graph).sum())
    fixed = weft.compile(lambda x: layer(x, graph).sum())
    return repeated(5, lambda: run(x, edges)), repeated(5, lambda: fixed(x))


@advice("compile the evaluation, too")
def compiled_evaluation() -> Pair:
    model, _, x, _ = mlp()
    predict = weft.compile(lambda x: model(x).argmax(1).sum())

    def recorded() -> int:
        with weft.no_grad():
            for _ in range(20):
                found = model(x).argmax(1).sum().item()
        return found

    return recorded, lambda: [predict(x).item() for _ in range(20)]


@advice("let processes share the disk cache: start to first loss")
def disk_cache() -> Pair:
    program = ("import sys; sys.path[:0] = sys.argv[1:]; import advice; step, x, y = advice.training_step(); "
               "advice.weft.compile(step)(x, y).item()")  # fmt: skip
    kept = tempfile.mkdtemp(prefix="weft-advice-")

    def start(folder: str) -> None:
        environment = os.environ | {"WEFT_CACHE_DIR": folder}
        command = [sys.executable, "-c", program, str(ROOT), str(ROOT / "benchmarks")]
        subprocess.run(command, check=True, env=environment)

    def cold() -> None:
        with tempfile.TemporaryDirectory() as folder:
            start(folder)

    return cold, lambda: start(kept)


def attention_memory() -> tuple[int, int]:
    """Temporaries of forward and backward over 4 x 8 heads of 512 x 64."""
    q, k, v = (weft.randn(4, 8, 512, 64, requires_grad=True) for _ in range(3))

    def composed(q: weft.Tensor, k: weft.Tensor, v: weft.Tensor) -> weft.Tensor:
        return ((q @ k.transpose(-1, -2) / 8.0).softmax(-1) @ v).square().sum()

    def fused(q: weft.Tensor, k: weft.Tensor, v: weft.Tensor) -> weft.Tensor:
        return F.scaled_dot_product_attention(q, k, v).square().sum()

    def arena(fn: Callable[..., weft.Tensor]) -> int:
        return weft.memory_report(lambda *args: weft.grad(fn(*args), args), q, k, v).arena_bytes

    return arena(composed), arena(fused)


def checkpoint_memory() -> tuple[int, int]:
    """Temporaries of a training step of 12 encoder layers, without and with checkpoints of each."""
    weft.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(128, nhead=4, dim_feedforward=512, batch_first=True) for _ in range(12)]
    model = nn.Sequential(*layers)
    x = weft.randn(8, 128, 128)

    def step(x: weft.Tensor) -> weft.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    def arena(is_checkpointed: bool) -> int:
        for layer in layers:
            layer.checkpoint = is_checkpointed
        return weft.memory_report(step, x).arena_bytes

    return arena(False), arena(True)


MEMORY: dict[str, Bytes] = {
    "memory: call scaled_dot_product_attention, not its composition": attention_memory,
    "memory: checkpoint the layers of a deep network": checkpoint_memory,
}


def measure(make: Callable[[], Pair], rounds: int) -> list[tuple[float, float]]:
    """Seconds before and after, for each round."""
    before, after = make()
    before(), after()  # compile
    found = []
    for number in range(rounds):
        seconds = {}
        for which in ((before, after), (after, before))[number % 2]:
            begin = time.perf_counter()
            which()
            seconds[which] = time.perf_counter() - begin
        found.append((seconds[before], seconds[after]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only advice with one of these words")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="write all rounds to this file")
    arguments = parser.parse_args()
    record: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "load": os.getloadavg(),
                              "rounds": arguments.rounds,
                              "advice": {}}  # fmt: skip
    for words, make in ADVICE.items():
        if arguments.words and not any(word in words for word in arguments.words):
            continue
        times = measure(make, arguments.rounds)
        ratio = statistics.median(before / after for before, after in times)
        least = [min(column) * 1e3 for column in zip(*times, strict=True)]
        record["advice"][words] = {"ratio": round(ratio, 2), "seconds": times}
        print(f"{ratio:8.2f} x   {least[0]:9.2f} ms -> {least[1]:9.2f} ms   {words}", flush=True)
    for words, sizes in MEMORY.items():
        if arguments.words and not any(word in words for word in arguments.words):
            continue
        before, after = sizes()
        record["advice"][words] = {"ratio": round(before / after, 2), "bytes": (before, after)}
        print(f"{before / after:8.2f} x   {before / 1e6:9.2f} MB -> {after / 1e6:9.2f} MB   {words}", flush=True)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
