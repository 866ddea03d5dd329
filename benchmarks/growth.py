"""How long programs that grow take to their first result, cold: `make bench-compile`, or `python benchmarks/growth.py`.

Each program of `PROGRAMS` is a function of its size. It runs in a process and with a disk cache of its own; the table
has seconds from the call to the result, what was compiled, and the aim. Wall time and processor time of the process
are both shown: on a machine with other work the second is the one to compare. `tests/backend/test_compile_growth.py`
asserts that the work grows linearly.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import unet
import weft
import weft.nn.functional as F


def assign_elements(n: int) -> Any:
    x = weft.zeros(n)
    for i in range(1, n):
        x[i] = x[i - 1] * 0.5 + 1
    return x.numpy()


def scale_columns(n: int) -> Any:
    x = weft.ones(8, n)
    for k in range(n):
        x[:, k] *= 2
    return x.numpy()


def factorize(n: int) -> Any:
    """Matrix factorisation by stochastic gradient descent, row by row."""
    rng = np.random.default_rng(0)
    users, items = (weft.tensor(rng.normal(size=(rows, 4)).astype(np.float32)) for rows in (20, 30))
    for _ in range(n):
        i, j, rating = int(rng.integers(20)), int(rng.integers(30)), float(rng.normal())
        user, item = users[i].clone(), items[j].clone()
        error = rating - (user * item).sum()
        users[i] = user + 0.01 * error * item
        items[j] = item + 0.01 * error * user
    return users.numpy(), items.numpy()


def game_of_life(n: int) -> Any:
    rng = np.random.default_rng(0)
    x = weft.tensor((rng.random((32, 32)) < 0.3).astype(np.float32))
    shifts = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]
    for _ in range(n):
        neighbours = sum(x.roll(shift, (0, 1)) for shift in shifts)
        x = ((neighbours == 3) | ((x == 1) & (neighbours == 2))).float()
    return x.numpy()


def lazy_parameters(n: int) -> Any:
    """An optimizer over parameters that are not computed yet."""
    params = [weft.randn(32, 32).mul(0.2).detach().requires_grad_() for _ in range(n)]
    return weft.optim.AdamW(params, lr=1e-3)


def mlp(n: int) -> Any:
    layers = [(_parameter(32, 32), weft.zeros(32).requires_grad_()) for _ in range(n)]
    optimizer = weft.optim.AdamW([tensor for layer in layers for tensor in layer], lr=1e-3)

    def step(x, y):
        optimizer.zero_grad()
        for w, b in layers:
            x = F.relu(F.linear(x, w, b))
        return _train(((x - y) ** 2).mean(), optimizer)

    x = weft.randn(16, 32)
    return weft.compile(step)(x, x).item()


def transformer(n: int, width: int = 16) -> Any:
    shapes = {
        "gain1": (width,), "bias1": (width,), "qkv": (3 * width, width), "out": (width, width), "gain2": (width,),
        "bias2": (width,), "up": (4 * width, width), "up_bias": (4 * width,), "down": (width, 4 * width),
        "down_bias": (width,),
    }  # fmt: skip
    layers = [{name: _parameter(*shape) for name, shape in shapes.items()} for _ in range(n)]
    optimizer = weft.optim.AdamW([tensor for layer in layers for tensor in layer.values()], lr=1e-3)

    def step(x, y):
        optimizer.zero_grad()
        for p in layers:
            h = F.layer_norm(x, (width,), p["gain1"], p["bias1"])
            q, k, v = (t.reshape(2, 8, 2, width // 2).transpose(1, 2) for t in F.linear(h, p["qkv"]).chunk(3, -1))
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + F.linear(seen.transpose(1, 2).reshape(2, 8, width), p["out"])
            h = F.layer_norm(x, (width,), p["gain2"], p["bias2"])
            x = x + F.linear(F.gelu(F.linear(h, p["up"], p["up_bias"])), p["down"], p["down_bias"])
        return _train(((x - y) ** 2).mean(), optimizer)

    x = weft.randn(2, 8, width)
    return weft.compile(step)(x, x).item()


def stack(n: int) -> Any:
    x = weft.randn(16)
    return weft.stack([(x + i).tanh() for i in range(n)]).numpy()


def concatenate(n: int) -> Any:
    x = weft.randn(n, 4)
    return weft.cat([x[i] * 2 for i in range(n)]).numpy()


def unary_chain(n: int) -> Any:
    def chain(x):
        for _ in range(n):
            x = x.sin()
        return x

    return weft.compile(chain)(weft.randn(64)).numpy()


def unary_chain_gradient(n: int) -> Any:
    x = weft.randn(64).requires_grad_()
    y = x
    for _ in range(n):
        y = y.sin()
    y.sum().backward()
    return x.grad.numpy()


def convolutions(n: int) -> Any:
    weights = [weft.randn(16, 16, 3, 3).mul(0.1).detach() for _ in range(n)]

    def run(x):
        for w in weights:
            x = F.relu(F.conv2d(x, w, padding=1))
        return x

    return weft.compile(run)(weft.randn(2, 16, 16, 16)).numpy()


def runge_kutta(n: int, stacked: bool = False) -> Any:
    y, system, h = weft.tensor([1.0, 0.0]), weft.tensor([[0.0, 1.0], [-1.0, 0.0]]), 0.01
    states = []
    for _ in range(n):
        k1 = system @ y
        k2 = system @ (y + h / 2 * k1)
        k3 = system @ (y + h / 2 * k2)
        k4 = system @ (y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        states.append(y)
    return (weft.stack(states) if stacked else y).numpy()


def runge_kutta_stacked(n: int) -> Any:
    return runge_kutta(n, True)


def diffusion(n: int) -> Any:
    """A training step of a U-Net with time embedding, over `n` resolutions."""
    return unet.step_of(n)


def sums_of_neighbours(n: int) -> Any:
    x = weft.randn(2 * n)
    for _ in range(n):
        x = x[1:] + x[:-1]
    return x.numpy()


def tree_of_sums(n: int) -> Any:
    values = [weft.randn(16) * i for i in range(n)]
    while len(values) > 1:
        pairs = [a + b for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[2 * len(pairs) :]
    return values[0].numpy()


def unrolled_lstm(n: int) -> Any:
    w = _parameter(64, 32)
    h, c, xs = weft.zeros(4, 16), weft.zeros(4, 16), weft.randn(n, 4, 16)
    for t in range(n):
        i, f, o, u = F.linear(weft.cat([xs[t], h], 1), w).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * u.tanh()
        h = o.sigmoid() * c.tanh()
    h.sum().backward()
    return w.grad.numpy()


def residual_layers(n: int) -> Any:
    """Layers so small that their products are loops of kernels, each added to the state before it."""
    w, b = _parameter(5, 5), _parameter(5)
    x = weft.randn(5, 5)
    for _ in range(n):
        x = x + 0.01 * (x @ w + b).tanh()
    x.square().sum().backward()
    return w.grad.numpy(), b.grad.numpy()


def gated_states(n: int) -> Any:
    """A recurrence by hand whose state is a mixture of all states before it."""
    w, u = _parameter(6, 6), _parameter(6, 6)
    h, xs = weft.zeros(4, 6), weft.randn(n, 4, 6)
    for t in range(n):
        gate = (h @ u).sigmoid()
        h = (1 - gate) * h + gate * (h @ w + xs[t]).tanh()
    h.sum().backward()
    return w.grad.numpy(), u.grad.numpy()


def transposed_reshapes(n: int) -> Any:
    x = weft.randn(4, 6)
    for _ in range(n):
        x = x.T.reshape(4, 6) + 1
    return x.numpy()


def gathers(n: int) -> Any:
    x, index = weft.arange(50), weft.arange(50).flip(0)
    for _ in range(n):
        x = x[index]
    return x.numpy()


def assignments_gradient(n: int) -> Any:
    w, x = weft.tensor([0.5]).requires_grad_(), weft.zeros(n)
    for i in range(1, n):
        x[i] = x[i - 1] * w[0] + 1
    x.sum().backward()
    return w.grad.numpy()


def _parameter(*shape: int) -> Any:
    return weft.randn(*shape).mul(0.1).detach().requires_grad_()


def _train(loss: Any, optimizer: Any) -> Any:
    loss.backward()
    optimizer.step()
    return loss


@dataclass(frozen=True)
class Case:
    run: Callable[[int], Any]
    size: int
    before: str  # seconds before kernels had a bounded size, two cores
    aim: float | None  # seconds


PROGRAMS = [
    Case(assign_elements, 1000, "never", 3),
    Case(scale_columns, 16, "minutes", 2),
    Case(factorize, 200, "never", 3),
    Case(game_of_life, 100, "never", 2),
    Case(lazy_parameters, 100, "62", 1),
    Case(lazy_parameters, 5000, "over 150", 5),
    Case(mlp, 100, "93", 4),
    Case(transformer, 50, "28 to 43", 6),
    Case(stack, 200, "19", 1),
    Case(concatenate, 5000, "180", 3),
    Case(unary_chain, 1000, "120", 3),
    Case(convolutions, 12, "6.5", 2),
    Case(diffusion, 2, "23", 5),
    Case(runge_kutta, 1000, "17", 3),
    Case(runge_kutta_stacked, 1000, "63", 5),
    Case(residual_layers, 80, "16", 3),
]


def measure(name: str, size: int) -> dict[str, float]:
    """In this process: seconds, processor seconds, kernels compiled and plans made by one run."""
    run = globals()[name]
    started, used, before = time.perf_counter(), time.process_time(), weft.counters()
    run(size)
    after = weft.counters()
    return {
        "seconds": time.perf_counter() - started,
        "processor": time.process_time() - used,
        "kernels": after["kernels_compiled"] - before["kernels_compiled"],
        "plans": after["plans_built"] - before["plans_built"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of programs")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SIZE"), help="measure in this process, print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return
    print(f"{'program':24}{'size':>6}{'seconds':>9}{'processor':>11}{'kernels':>9}{'plans':>7}{'before':>11}{'aim':>6}")
    for case in PROGRAMS:
        name = case.run.__name__
        if options.only and name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "WEFT_CACHE_DIR": cache}
            command = [sys.executable, __file__, "--one", name, str(case.size)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        print(
            f"{name:24}{case.size:6}{found['seconds']:9.2f}{found['processor']:11.2f}{found['kernels']:9}"
            f"{found['plans']:7}{case.before:>11}{case.aim:6}",
            flush=True,
        )


if __name__ == "__main__":
    main()
