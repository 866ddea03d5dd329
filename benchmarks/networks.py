"""Networks to train beside each other: parameters and data as NumPy arrays, the same for every framework.

`in_weft`, `in_torch` and `in_jax` each have a function of the network's name that computes the loss from the parameters
(a dict) and the inputs. All are trained with Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

Parameters = dict[str, np.ndarray]
Inputs = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Network:
    """A network, its aim, and how it is timed (see `cases.Training`)."""

    name: str
    title: str
    aim: str
    build: Callable[[np.random.Generator], tuple[Parameters, Inputs]]
    learning_rate: float = 1e-3
    steps: int = 3
    unit: int = 1
    samples: int = 1
    warmup: int = 1
    tolerance: float = 1e-3  # relative, between the losses of two frameworks

    def arrays(self) -> tuple[Parameters, Inputs]:
        """Initial parameters by name, and inputs, from a fixed seed."""
        return self.build(np.random.default_rng(7))


def _weight(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Uniform within 1 / sqrt(fan in), for [out, in, *kernel]."""
    bound = 1.0 / np.sqrt(np.prod(shape[1:]))
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def small_cnn(rng: np.random.Generator) -> tuple[Parameters, Inputs]:
    """Two convolutions of 8 and 16 channels, each with ReLU and 2 x 2 max pooling, and a linear layer."""
    parameters = {
        "conv1": _weight(rng, 8, 1, 3, 3),
        "bias1": _zeros(8),
        "conv2": _weight(rng, 16, 8, 3, 3),
        "bias2": _zeros(16),
        "linear": _weight(rng, 10, 16 * 7 * 7),
        "bias3": _zeros(10),
    }
    return parameters, (rng.random((64, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, 64))


def conv3d(rng: np.random.Generator) -> tuple[Parameters, Inputs]:
    """Two 3-D convolutions of 16 and 32 channels with ReLU, average pooling over space, and a linear layer."""
    parameters = {
        "conv1": _weight(rng, 16, 1, 3, 3, 3),
        "bias1": _zeros(16),
        "conv2": _weight(rng, 32, 16, 3, 3, 3),
        "bias2": _zeros(32),
        "linear": _weight(rng, 10, 32),
        "bias3": _zeros(10),
    }
    return parameters, (rng.random((4, 1, 16, 16, 16), dtype=np.float32), rng.integers(0, 10, 4))


RESNET_STAGES = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))  # (channels, stride)


def resnet18(rng: np.random.Generator, batch: int = 32) -> tuple[Parameters, Inputs]:
    """ResNet-18 with the stem for 32 x 32 images (3 x 3, no pooling); batch statistics in every normalisation."""
    parameters: Parameters = {}

    def unit(name: str, inside: int, outside: int, size: int) -> None:
        parameters[f"{name}.conv"] = _weight(rng, outside, inside, size, size)
        parameters[f"{name}.scale"], parameters[f"{name}.shift"] = _ones(outside), _zeros(outside)

    unit("stem", 3, 64, 3)
    inside = 64
    for number, (outside, stride) in enumerate(RESNET_STAGES):
        unit(f"block{number}.1", inside, outside, 3)
        unit(f"block{number}.2", outside, outside, 3)
        if stride != 1:
            unit(f"block{number}.skip", inside, outside, 1)
        inside = outside
    parameters["linear"], parameters["bias"] = _weight(rng, 10, 512), _zeros(10)
    return parameters, (rng.standard_normal((batch, 3, 32, 32), dtype=np.float32), rng.integers(0, 10, batch))


BOTTLENECKS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # (channels inside, blocks, stride of the first)


def resnet50(rng: np.random.Generator, batch: int = 64, size: int = 224) -> tuple[Parameters, Inputs]:
    """ResNet-50 as for ImageNet; batch statistics in every normalisation."""
    parameters: Parameters = {}

    def unit(name: str, inside: int, outside: int, kernel: int) -> None:
        parameters[f"{name}.conv"] = _weight(rng, outside, inside, kernel, kernel)
        parameters[f"{name}.scale"], parameters[f"{name}.shift"] = _ones(outside), _zeros(outside)

    unit("stem", 3, 64, 7)
    inside = 64
    for stage, (width, blocks, _) in enumerate(BOTTLENECKS):
        for number in range(blocks):
            name = f"stage{stage}.{number}"
            unit(f"{name}.1", inside, width, 1)
            unit(f"{name}.2", width, width, 3)
            unit(f"{name}.3", width, 4 * width, 1)
            if number == 0:
                unit(f"{name}.skip", inside, 4 * width, 1)
            inside = 4 * width
    parameters["linear"], parameters["bias"] = _weight(rng, 1000, inside), _zeros(1000)
    images = rng.standard_normal((batch, 3, size, size), dtype=np.float32)
    return parameters, (images, rng.integers(0, 1000, batch))


LAYERS, WIDTH, HEADS, LENGTH, VOCABULARY = 4, 256, 4, 128, 8192


def transformer(rng: np.random.Generator) -> tuple[Parameters, Inputs]:
    """A decoder with learned positions, pre-norm blocks (causal attention, GELU of four times the width)."""
    parameters: Parameters = {
        "tokens": (0.02 * rng.standard_normal((VOCABULARY, WIDTH))).astype(np.float32),
        "positions": (0.02 * rng.standard_normal((LENGTH, WIDTH))).astype(np.float32),
    }
    for layer in range(LAYERS):
        for name, outside, inside in (("qkv", 3, 1), ("out", 1, 1), ("up", 4, 1), ("down", 1, 4)):
            parameters[f"{layer}.{name}"] = _weight(rng, outside * WIDTH, inside * WIDTH)
            parameters[f"{layer}.{name}.bias"] = _zeros(outside * WIDTH)
        for name in ("norm1", "norm2"):
            parameters[f"{layer}.{name}"], parameters[f"{layer}.{name}.bias"] = _ones(WIDTH), _zeros(WIDTH)
    parameters["norm"], parameters["norm.bias"] = _ones(WIDTH), _zeros(WIDTH)
    parameters["head"] = _weight(rng, VOCABULARY, WIDTH)
    tokens = rng.integers(0, VOCABULARY, (8, LENGTH + 1))
    return parameters, (tokens[:, :-1].copy(), tokens[:, 1:].copy())


RECURRENT_LAYERS, HIDDEN, TIME, SENTENCES, WORDS = 2, 256, 64, 32, 10_000


def lstm(rng: np.random.Generator) -> tuple[Parameters, Inputs]:
    """A language model: embedding, two LSTM layers, projection to the vocabulary. Tokens are [time, batch]."""
    bound = 1.0 / np.sqrt(HIDDEN)

    def uniform(*shape: int) -> np.ndarray:
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    parameters: Parameters = {"tokens": rng.standard_normal((WORDS, HIDDEN), dtype=np.float32)}
    for layer in range(RECURRENT_LAYERS):
        for name in ("input", "hidden"):
            parameters[f"{layer}.{name}"] = uniform(4 * HIDDEN, HIDDEN)
            parameters[f"{layer}.{name}.bias"] = uniform(4 * HIDDEN)
    parameters["head"], parameters["head.bias"] = uniform(WORDS, HIDDEN), uniform(WORDS)
    tokens = rng.integers(0, WORDS, (TIME + 1, SENTENCES))
    return parameters, (tokens[:-1].copy(), tokens[1:].copy())


NODES, EDGES, GRAPH_SIZES, GRAPH_HEADS = 20_000, 200_000, (128, 64, 16), 8


def _glorot(rng: np.random.Generator, *shape: int) -> np.ndarray:
    bound = np.sqrt(6 / (shape[0] + shape[-1]))
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def _graph(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random edges [2, EDGES] from sources to targets, features and classes of the nodes."""
    edges = rng.integers(0, NODES, (2, EDGES))
    edges = edges[:, np.argsort(edges[1], kind="stable")]  # by target, as every framework likes them best
    features = rng.standard_normal((NODES, GRAPH_SIZES[0]), dtype=np.float32)
    return edges, features, rng.integers(0, GRAPH_SIZES[-1], NODES)


def gcn(rng: np.random.Generator) -> tuple[Parameters, Inputs]:
    """Two graph convolutions with symmetric normalisation."""
    edges, features, classes = _graph(rng)
    sources, targets = (np.bincount(edges[k], minlength=NODES) + 1.0 for k in (0, 1))
    weights = (1 / np.sqrt(sources[edges[0]] * targets[edges[1]])).astype(np.float32)
    parameters: Parameters = {}
    for layer, (wide, narrow) in enumerate(pairwise(GRAPH_SIZES)):
        parameters[f"weight{layer}"], parameters[f"bias{layer}"] = _glorot(rng, wide, narrow), _zeros(narrow)
    return parameters, (edges, weights, features, classes)


def gat(rng: np.random.Generator) -> tuple[Parameters, Inputs]:
    """Two graph attention layers, of eight heads and of one."""
    parameters: Parameters = {}
    wide, hidden, classes = GRAPH_SIZES
    for layer, (inside, heads, width) in enumerate(((wide, GRAPH_HEADS, hidden // GRAPH_HEADS), (hidden, 1, classes))):
        parameters[f"weight{layer}"] = _glorot(rng, inside, heads * width)
        for end in ("source", "target"):
            parameters[f"{end}{layer}"] = _glorot(rng, heads, width)
        parameters[f"bias{layer}"] = _zeros(heads * width)
    return parameters, _graph(rng)


NETWORKS = (
    Network("cnn", "CNN 1-8-16, 28 x 28, batch 64: one step", "2.5 x the best", small_cnn, steps=20, samples=3),
    Network("resnet18", "ResNet-18, 32 x 32, batch 32: one step", "1.05 x the best", resnet18, steps=1),
    Network("conv3d", "3-D CNN 1-16-32, 16^3, batch 4: one step", "1.5 x the best", conv3d, steps=10, samples=3),
    Network(
        "transformer",
        "transformer, 4 layers, 256 wide, 8 x 128 tokens: one step",
        "1.1 x the best",
        transformer,
        steps=2,
    ),
    Network(
        "lstm",
        "LSTM, 2 layers of 256, 32 x 64 tokens of 10,000: one step",
        "1.3 x the best",
        lstm,
        steps=2,
    ),
    Network("gcn", "GCN, 20,000 nodes, 200,000 edges, 128-64-16: one step", "1.3 x the best", gcn, steps=3),
    Network("gat", "GAT, 8 heads, on the same graph: one step", "3 x the best", gat, steps=3),
)
