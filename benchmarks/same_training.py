"""The same training on every device: `python benchmarks/same_training.py`.

A small CNN (convolutions, batch norm, pooling), a small transformer (embedding, causal attention, layer norm, dropout)
and a graph convolutional network are trained with AdamW for 20 compiled steps, each from the same seed, on every device
that is here, or on those that `--devices` names. The table has the first and the last loss, the largest difference from
the CPU's losses, whether two runs give the same bits (losses and parameters), and how many tensors were uploaded or
downloaded in replayed steps. The command fails with 1 where a loss differs by more than 1e-4 or is not finite, where
two runs differ, or where a replayed step moves a tensor. `--json FILE` writes all losses.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import weft
import weft.nn as nn
import weft.nn.functional as F
from weft.errors import DeviceError

sys.path.insert(0, str(Path(__file__).parent))
from command_line import find_device, without
from run import machine

sys.path.pop(0)

KINDS = ("cpu", "cuda", "hip", "opencl", "webgpu")
STEPS = 20
BATCHES = 4  # that the steps go through in turn
FIRST_REPLAY = 10  # steps before this one compile, and capture what is replayed
SEED = 0
TOLERANCE = 1e-4  # between a loss and the CPU's
CLASSES = 10
WORDS, LENGTH, WIDTH = 31, 12, 32
NODES, EDGES, FEATURES, GROUPS = 60, 240, 16, 4

# --- the networks ----------------------------------------------------------------------------------------------------


def make_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(16 * 3 * 3, CLASSES),
    )  # fmt: skip


class Transformer(nn.Module):
    """Predicts each next token. `dropout` is 0 only where another framework computes the same losses."""

    def __init__(self, dropout: float = 0.1):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
        self.register_buffer("places", weft.arange(LENGTH))
        self.register_buffer("mask", weft.ones(LENGTH, LENGTH, dtype=weft.bool).triu(1))

    def forward(self, x: weft.Tensor) -> weft.Tensor:  # [batch, length] -> [batch * length, words]
        h = self.tokens(x) + self.positions(self.places)  # [batch, length, width]
        return self.out(self.norm(self.encoder(h, mask=self.mask))).reshape(-1, WORDS)


class GCN(nn.Module):
    """Two convolutions over one graph, whose adjacency the layers normalise."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", weft.tensor(draw_edges()))
        self.first, self.second = nn.GCNConv(FEATURES, 32), nn.GCNConv(32, GROUPS)

    def forward(self, x: weft.Tensor) -> weft.Tensor:  # [nodes, features] -> [nodes, groups]
        return self.second(self.first(x, self.edges).relu(), self.edges)


def draw_edges() -> np.ndarray:
    """[2, edges]: sources and targets, four of five in one group."""
    rng = np.random.default_rng(SEED)
    sources, other = rng.integers(0, NODES, (2, EDGES))
    own = (sources + GROUPS * rng.integers(1, NODES // GROUPS, EDGES)) % NODES
    return np.stack([sources, np.where(rng.random(EDGES) < 0.8, own, other)])


def draw_images(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Images [16, 3, 12, 12] whose brightness says their class."""
    y = rng.integers(0, CLASSES, 16)
    x = rng.standard_normal((16, 3, 12, 12), dtype=np.float32) + (y / CLASSES).astype(np.float32).reshape(-1, 1, 1, 1)
    return x, y


def draw_tokens(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [8, length] of which each follows from the one before, and the next ones [8 * length]."""
    text = (rng.integers(0, WORDS, (8, 1)) + 3 * np.arange(LENGTH + 1)) % WORDS
    return text[:, :-1].copy(), text[:, 1:].reshape(-1)


def draw_nodes(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Features [nodes, features] that are shifted by the node's group."""
    y = np.arange(NODES) % GROUPS
    x = rng.standard_normal((NODES, FEATURES), dtype=np.float32)
    x[:, :GROUPS] += np.eye(GROUPS, dtype=np.float32)[y]
    return x, y


Draw = Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Draw]] = {
    "CNN": (make_cnn, draw_images),
    "transformer": (Transformer, draw_tokens),
    "GCN": (GCN, draw_nodes),
}


def draw_batches(name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The batches that every device, and every framework, gets."""
    rng = np.random.default_rng(SEED + 1)
    return [NETWORKS[name][1](rng) for _ in range(BATCHES)]


# --- training --------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Of one network on one device: the losses, all parameters at the end, and tensors moved in replayed steps."""

    losses: list[float]
    parameters: list[np.ndarray]
    uploads: int
    downloads: int

    def has_same_bits(self, other: Outcome) -> bool:
        mine, others = ([np.array(one.losses), *one.parameters] for one in (self, other))
        return all(a.tobytes() == b.tobytes() for a, b in zip(mine, others, strict=True))


def train(name: str, device: Any, make: Callable[[], nn.Module] | None = None) -> Outcome:
    """`STEPS` steps of a network from its seed; `make` builds it otherwise."""
    with weft.device(device):
        weft.manual_seed(SEED)
        model = (make or NETWORKS[name][0])()
        optimizer = weft.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
        batches = [tuple(map(weft.tensor, batch)) for batch in draw_batches(name)]

        @weft.compile
        def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        losses, before = [], {}
        for number in range(STEPS):
            if number == FIRST_REPLAY:
                before = weft.counters()
            losses.append(step(*batches[number % BATCHES]))
        after = weft.counters()
        moved = [after[key] - before[key] for key in ("uploads", "downloads")]
        return Outcome([loss.item() for loss in losses], [one.numpy() for one in model.parameters()], *moved)


# --- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A network on a device, beside the CPU."""

    network: str
    device: str
    is_software: bool
    first_loss: float
    last_loss: float
    difference: float  # the largest from a loss of the CPU
    has_same_bits: bool  # twice
    uploads: int  # in replayed steps
    downloads: int
    losses: list[float]

    def is_good(self) -> bool:
        return self.difference <= TOLERANCE and self.has_same_bits and not self.uploads and not self.downloads


def compare(name: str, device: Any, expected: Outcome) -> Row:
    """Train twice on a device."""
    first, second = train(name, device), train(name, device)
    difference = float(np.abs(np.subtract(first.losses, expected.losses)).max())  # NaN is not within the tolerance
    return Row(
        name, str(device), device.is_software, first.losses[0], first.losses[-1], difference,
        first.has_same_bits(second), first.uploads, first.downloads, first.losses,
    )  # fmt: skip


def find_devices() -> list[Any]:
    """The first of each kind that is here."""
    found = []
    for kind in KINDS:
        try:
            found.append(weft.get_device(kind))
        except DeviceError as error:
            print(f"{kind} is not here: {error}", file=sys.stderr)
    return found


def markdown(rows: Sequence[Row]) -> str:
    """The table of README.md."""
    heads = ["network", "device", "loss, first step", f"loss, step {STEPS}", "largest difference from the CPU"]
    heads += ["same bits twice", "tensors moved in replayed steps"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        device = f"{row.device} (software)" if row.is_software else row.device
        lines.append(
            f"| {row.network} | {device} | {row.first_loss:.6f} | {row.last_loss:.6f} | {row.difference:.2g} "
            f"| {'yes' if row.has_same_bits else 'no'} | {row.uploads + row.downloads} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--devices",
        nargs="+",
        default=[],
        type=find_device,
        metavar="NAME",
        help="cpu opencl webgpu:1 ...; default: all",
    )
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--json", metavar="FILE", help="write every loss, the machine and the devices")
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(words)
    devices = options.devices or find_devices()
    rows = []
    for name in options.networks:
        expected = train(name, "cpu")
        rows += [compare(name, device, expected) for device in devices]
    print(markdown(rows))
    for device in devices:
        print(f"{device}: {device.description}{', emulated by the CPU' if device.is_software else ''}")
    if options.json:
        report = {
            "date": str(date.today()),
            "command": shlex.join(["python", "benchmarks/same_training.py", *without(words, "--json")]),
            "machine": machine(),
            "devices": {str(device): device.description for device in devices},
            "rows": [asdict(row) for row in rows],
        }
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    bad = [f"{row.network} on {row.device}" for row in rows if not row.is_good()]
    if bad:
        print(f"not the same training: {', '.join(bad)}", file=sys.stderr)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
