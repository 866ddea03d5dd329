"""Speed of any device in one minute: `python benchmarks/device_speed.py --device opencl:0`.

Prints the rate of a float32 matrix product, of kernels that only move memory, what the host spends on each kernel of a
compiled function that is replayed, and the time of 200 training steps of a network for XOR. The best of several rounds
counts; results are compared with NumPy's. `--small` is for devices that the CPU emulates.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import weft
import weft.nn as nn

sys.path.insert(0, str(Path(__file__).parent))
import command_line

sys.path.pop(0)

ROUNDS = 5
PRODUCTS = 32  # of the chain that measures the host
REPLAYS = 20  # of that chain, before the device is waited for
XOR_STEPS = 200


def best(work: Callable[[], Any], wait: Callable[[], None], times: int) -> float:
    """Seconds of one call of `work`, of `times` in a row, in the best round."""
    for _ in range(12):  # compiled, and replayed from here on
        work()
    wait()
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(times):
            work()
        wait()
        rounds.append((time.perf_counter() - start) / times)
    return min(rounds)


def measure_product(size: int, times: int, wait: Callable[[], None]) -> str:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    x, y = weft.tensor(a), weft.tensor(b)
    product = weft.compile(lambda: x @ y)
    error = np.abs(product().numpy()[:8] - a[:8] @ b).max() / np.sqrt(size)
    assert error < 1e-4, error
    seconds = best(product, wait, times)
    return f"float32 product {size}^3: {2 * size**3 / seconds / 1e12:8.3f} TFLOP/s  ({seconds * 1e3:.3f} ms)"


def measure_memory(nbytes: int, times: int, wait: Callable[[], None]) -> list[str]:
    x = weft.arange(nbytes // 4, dtype=weft.float32)
    y = weft.ones(nbytes // 4)
    weft.eval(x, y)
    cases: list[tuple[str, Callable[[], weft.Tensor], int]] = [
        ("negate", lambda: -x, 2),
        ("add", lambda: x + y, 3),
        ("gelu", lambda: nn.functional.gelu(x), 2),
        ("sum", lambda: x.sum(), 1),
        ("softmax of rows", lambda: x.reshape(-1, 1024).softmax(-1), 2),
    ]
    lines = []
    for name, work, moved in cases:
        seconds = best(weft.compile(work), wait, times)
        lines.append(f"{name:>16} of {nbytes >> 20} MiB: {moved * nbytes / seconds / 1e9:8.1f} GB/s")
    return lines


def measure_host(size: int, wait: Callable[[], None]) -> str:
    """The time in which the host enqueues a chain of products, each of which waits for the one before. Where products
    of 64 and of 256 differ, the host waited for the device, whose queue was full."""
    w = weft.tensor(np.random.default_rng(1).standard_normal((size, size), dtype=np.float32) / size)

    @weft.compile
    def chain() -> weft.Tensor:
        x = w
        for _ in range(PRODUCTS):
            x = x @ w
        return x

    for _ in range(12):
        chain()
    wait()
    rounds = []
    for _ in range(ROUNDS):
        before = weft.counters()["launches"]
        start = time.perf_counter()
        for _ in range(REPLAYS):
            chain()
        spent = time.perf_counter() - start
        wait()
        launches = weft.counters()["launches"] - before
        rounds.append((spent / launches, launches // REPLAYS))
    seconds, launches = min(rounds)
    return f"host per replayed kernel, products {size}^3: {seconds * 1e6:.2f} us  ({launches} kernels a call)"


def measure_xor(wait: Callable[[], None]) -> str:
    weft.manual_seed(0)
    x = weft.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = weft.tensor([[0.0], [1.0], [1.0], [0.0]])
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = weft.optim.Adam(model.parameters(), lr=0.05)

    @weft.compile
    def step() -> weft.Tensor:
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(12):
        loss = step()
    wait()
    start = time.perf_counter()
    for _ in range(XOR_STEPS):
        loss = step()
    final = loss.item()
    spent = time.perf_counter() - start
    assert final < 0.1, final
    return f"{XOR_STEPS} steps of XOR: {spent * 1e3:.1f} ms  (loss {final:.2g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="gpu", type=command_line.find_device)
    parser.add_argument("--small", action="store_true", help="sizes for devices that the CPU emulates")
    options = parser.parse_args()
    device = options.device
    size, nbytes, times = (256, 4 << 20, 2) if options.small else (4096, 512 << 20, 10)
    with weft.device(device):
        wait = device.backend.synchronise
        print(f"{device}: {device.description}")
        print(measure_product(size, times, wait), flush=True)
        for line in measure_memory(nbytes, times, wait):
            print(line, flush=True)
        for side in (64,) if options.small else (64, 256):
            print(measure_host(side, wait), flush=True)
        print(measure_xor(wait), flush=True)


if __name__ == "__main__":
    main()
