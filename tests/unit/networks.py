"""Small networks to train on any device: an MLP, a CNN, an LSTM, a transformer and a graph attention network, AdamW.

`Training` has the parameters, the data and the step, compiled or not. Sizes are small for tests, but large enough that
products, convolutions and attention go to a library where a device has one. With `narrow`, networks compute in that
dtype from parameters of float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft
import weft.nn.functional as F
from weft.core.tensor import Tensor

Parameters = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Network:
    """Shapes of the parameters, the data of one batch, and the loss of both."""

    shapes: Shapes
    data: Callable[[np.random.Generator], tuple]
    loss: Callable[..., Tensor]


def linear(p: Parameters, name: str, x: Tensor) -> Tensor:
    return F.linear(x, p[name], p[f"{name}.bias"])


def dense(name: str, outside: int, inside: int) -> Shapes:
    return {name: (outside, inside), f"{name}.bias": (outside,)}


def mlp_loss(p: Parameters, x: Tensor, y: Tensor) -> Tensor:
    x = F.dropout(F.relu(linear(p, "first", x)), 0.1, True)
    return F.cross_entropy(linear(p, "last", F.gelu(linear(p, "middle", x))), y)


MLP = Network(
    dense("first", 128, 64) | dense("middle", 96, 128) | dense("last", 10, 96),
    lambda rng: (rng.standard_normal((64, 64), dtype=np.float32), rng.integers(0, 10, 64)),
    mlp_loss,
)


def cnn_loss(p: Parameters, x: Tensor, y: Tensor) -> Tensor:
    x = F.max_pool2d(F.relu(F.conv2d(x, p["conv1"], p["conv1.bias"], padding=1)), 2)
    x = F.conv2d(x, p["conv2"], stride=2, padding=1)
    x = F.relu(F.batch_norm(x, None, None, p["scale"], p["shift"], training=True))
    return F.cross_entropy(linear(p, "last", x.flatten(1)), y)


CNN = Network(
    {"conv1": (8, 3, 3, 3), "conv1.bias": (8,), "conv2": (16, 8, 3, 3), "scale": (16,), "shift": (16,)}
    | dense("last", 10, 16 * 4 * 4),
    lambda rng: (rng.standard_normal((8, 3, 16, 16), dtype=np.float32), rng.integers(0, 10, 8)),
    cnn_loss,
)

WORDS, WIDTH, HEADS, LENGTH, LAYERS = 97, 64, 4, 32, 2


def lstm_loss(p: Parameters, x: Tensor, y: Tensor) -> Tensor:
    """Tokens are [time, batch]."""
    x = F.embedding(x, p["tokens"])
    first = weft.zeros(x.shape[1], WIDTH, dtype=x.dtype, device=x.device)

    def step(state: tuple[Tensor, Tensor], x: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        h, c = state
        i, f, g, o = (x + h @ p["hidden"].T).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return (h, c), h

    _, seen = weft.loop(step, (first, first), linear(p, "input", x))
    return F.cross_entropy(linear(p, "head", seen.reshape(-1, WIDTH)), y.reshape(-1))


def tokens(*shape: int) -> Callable[[np.random.Generator], tuple]:
    return lambda rng: (rng.integers(0, WORDS, shape), rng.integers(0, WORDS, shape))


LSTM = Network(
    {"tokens": (WORDS, WIDTH), "hidden": (4 * WIDTH, WIDTH)}
    | dense("input", 4 * WIDTH, WIDTH)
    | dense("head", WORDS, WIDTH),
    tokens(12, 8),
    lstm_loss,
)


def transformer_loss(p: Parameters, x: Tensor, y: Tensor) -> Tensor:
    batch, length = x.shape

    def norm(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), p[name], p[f"{name}.bias"])

    x = F.embedding(x, p["tokens"]) + p["positions"]
    for layer in map(str, range(LAYERS)):
        qkv = linear(p, layer + "qkv", norm(layer + "norm1", x)).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + F.dropout(linear(p, layer + "out", seen), 0.1, True)
        x = x + linear(p, layer + "down", F.gelu(linear(p, layer + "up", norm(layer + "norm2", x))))
    logits = F.linear(norm("norm", x), p["tokens"])
    return F.cross_entropy(logits.reshape(batch * length, WORDS), y.reshape(-1))


def transformer_shapes() -> Shapes:
    shapes: Shapes = {"tokens": (WORDS, WIDTH), "positions": (LENGTH, WIDTH)}
    for layer in map(str, range(LAYERS)):
        shapes |= dense(layer + "qkv", 3 * WIDTH, WIDTH) | dense(layer + "out", WIDTH, WIDTH)
        shapes |= dense(layer + "up", 4 * WIDTH, WIDTH) | dense(layer + "down", WIDTH, 4 * WIDTH)
        shapes |= {f"{layer}norm{part}{kind}": (WIDTH,) for part in (1, 2) for kind in ("", ".bias")}
    return shapes | {"norm": (WIDTH,), "norm.bias": (WIDTH,)}


TRANSFORMER = Network(transformer_shapes(), tokens(4, LENGTH), transformer_loss)

NODES, EDGES = 300, 2000


def gat_loss(p: Parameters, graph: Any, x: Tensor, y: Tensor) -> Tensor:
    def layer(number: int, x: Tensor) -> Tensor:
        source, target = p[f"source{number}"], p[f"target{number}"]
        x = (x @ p[f"weight{number}"]).reshape(-1, *source.shape)
        scores = graph.sources((x * source).sum(-1)) + graph.targets((x * target).sum(-1))
        return weft.aggregate(x, graph, graph.softmax(F.leaky_relu(scores, 0.2))).flatten(1) + p[f"bias{number}"]

    return F.cross_entropy(layer(1, F.elu(layer(0, x))), y)


def gat_data(rng: np.random.Generator) -> tuple:
    graph = weft.adjacency(rng.integers(0, NODES, (2, EDGES)), NODES)
    return graph, rng.standard_normal((NODES, 32), dtype=np.float32), rng.integers(0, 5, NODES)


GAT = Network(
    {"weight0": (32, 64), "source0": (8, 8), "target0": (8, 8), "bias0": (64,)}
    | {"weight1": (64, 5), "source1": (1, 5), "target1": (1, 5), "bias1": (5,)},
    gat_data,
    gat_loss,
)

NETWORKS = {"mlp": MLP, "cnn": CNN, "lstm": LSTM, "transformer": TRANSFORMER, "gat": GAT}


class Training:
    """A network on the default device with its optimizer. `step(*data)` is one step of training, and gives the loss."""

    def __init__(self, name: str, compiled: bool = True, narrow: weft.base.dtypes.DType | None = None, seed: int = 3):
        network, rng = NETWORKS[name], np.random.default_rng(seed)
        weft.manual_seed(seed)
        self.parameters = {
            name: weft.tensor((rng.standard_normal(shape) * 0.2).astype(np.float32), requires_grad=True)
            for name, shape in network.shapes.items()
        }
        self.optimizer = weft.optim.AdamW(list(self.parameters.values()), lr=1e-3)
        self.data = [weft.tensor(part) if isinstance(part, np.ndarray) else part for part in network.data(rng)]
        if narrow is not None:
            self.data = [part.to(narrow) if _is_float(part) else part for part in self.data]
        graphs = [part for part in self.data if not isinstance(part, Tensor)]  # compiled functions capture them
        self.tensors = [part for part in self.data if isinstance(part, Tensor)]

        def step(*data: Tensor) -> Tensor:
            parameters = self.parameters
            if narrow is not None:
                parameters = {name: p.to(narrow) for name, p in parameters.items()}
            loss = network.loss(parameters, *graphs, *data)
            self.optimizer.zero_grad()
            loss.backward()
            weft.optim.clip_grad_norm_(list(self.parameters.values()), 1.0)
            self.optimizer.step()
            return loss

        self._step = weft.compile(step) if compiled else step

    def step(self) -> Tensor:
        return self._step(*self.tensors)

    def state(self) -> list[np.ndarray]:
        """All parameters as they are now."""
        return [p.detach().numpy().copy() for p in self.parameters.values()]


def _is_float(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype.is_floating_point
