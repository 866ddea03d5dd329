"""The cases: what is computed, on which numbers, and the aim. NumPy only; every framework gets these very arrays.

A *training* case is a stack of dense layers with one optimizer; a *network* (`networks.py`) is any other model. A
*chain* case is a fixed function of (4096, 1024) numbers with its gradient for a given upstream gradient; a step of it
is one forward and backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from networks import NETWORKS, Network


@dataclass(frozen=True)
class Training:
    """`sizes` of the layers, hidden activation, loss ("mse" or "cross_entropy"), Adam's learning rate.

    A sample of the clock is `steps` steps from the initial parameters, after `warmup` untimed ones: every framework
    computes the very same steps in every round. Tables give the time of `unit` steps.
    """

    name: str
    title: str
    aim: str
    sizes: tuple[int, ...]
    batch: int
    hidden: str
    loss: str
    learning_rate: float
    steps: int
    unit: int
    samples: int  # per round; the best one counts
    warmup: int = 2
    tolerance: float = 1e-3  # relative, between the losses of two frameworks

    def arrays(self) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Initial parameters (weight0 (out, in), bias0 (out,), ...), and (inputs, targets), from a fixed seed."""
        rng = np.random.default_rng(7)
        parameters = {}
        for layer, (wide, narrow) in enumerate(pairwise(self.sizes)):
            bound = 1.0 / np.sqrt(wide)
            parameters[f"weight{layer}"] = rng.uniform(-bound, bound, (narrow, wide)).astype(np.float32)
            parameters[f"bias{layer}"] = rng.uniform(-bound, bound, (narrow,)).astype(np.float32)
        if self.name == "xor":
            x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=np.float32)
            return parameters, (x, np.array([[0], [1], [1], [0]], dtype=np.float32))
        x = rng.random((self.batch, self.sizes[0]), dtype=np.float32)
        if self.loss == "cross_entropy":
            return parameters, (x, rng.integers(0, self.sizes[-1], self.batch))
        return parameters, (x, rng.standard_normal((self.batch, self.sizes[-1]), dtype=np.float32))


@dataclass(frozen=True)
class Chain:
    """A function of x (rows, columns) and, where it has parameters, weight and bias (columns,)."""

    name: str
    title: str
    aim: str
    operations: tuple[str, ...]
    steps: int = 3
    unit: int = 1
    samples: int = 3
    warmup: int = 1
    rows: int = 4096
    columns: int = 1024

    def arrays(self) -> tuple[list[np.ndarray], np.ndarray]:
        """[x, weight, bias] (all of which get gradients) and the upstream gradient."""
        rng = np.random.default_rng(11)
        x = rng.standard_normal((self.rows, self.columns), dtype=np.float32)
        weight = rng.uniform(0.5, 1.5, self.columns).astype(np.float32)
        bias = rng.uniform(-0.5, 0.5, self.columns).astype(np.float32)
        return [x, weight, bias], rng.standard_normal((self.rows, self.columns), dtype=np.float32)


MNIST_LIKE = Training(
    name="mlp",
    title="784-128-10, batch 64, Adam: one step",
    aim="1.8 x the best",
    sizes=(784, 128, 10),
    batch=64,
    hidden="relu",
    loss="cross_entropy",
    learning_rate=1e-3,
    steps=50,
    unit=1,
    samples=5,
)

CASES: tuple[Training | Network | Chain, ...] = (
    Training(
        name="xor",
        title="XOR 2-8-1, Adam: 200 steps",
        aim="5 x JAX, 40 x torch",
        sizes=(2, 8, 1),
        batch=4,
        hidden="tanh",
        loss="mse",
        learning_rate=0.01,
        steps=200,
        unit=200,
        samples=5,
    ),
    MNIST_LIKE,
    Training(
        name="wide",
        title="five 2048-wide layers, batch 256, Adam: one step",
        aim="at least the best",
        sizes=(2048,) * 6,
        batch=256,
        hidden="relu",
        loss="mse",
        learning_rate=1e-4,
        steps=2,
        unit=1,
        samples=1,
    ),
    Chain("softmax", "softmax, 4096 x 1024, forward + backward", "2 x torch", ("softmax",)),
    Chain("layer_norm", "layer norm, 4096 x 1024, forward + backward", "2 x torch", ("layer_norm",)),
    Chain("gelu", "bias + GELU + scale, 4096 x 1024, forward + backward", "2 x torch", ("bias_gelu_scale",)),
    Chain(
        "chain",
        "layer norm, GELU, softmax, 4096 x 1024, forward + backward",
        "2 x torch",
        ("layer_norm", "gelu", "softmax"),
    ),
    *NETWORKS,
)

BY_NAME = {case.name: case for case in CASES}
