"""The networks of `benchmarks/same_training.py` against torch: the same losses from the same weights, on the CPU, which
is what the command compares every device with; and what the command reports."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import weft

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import same_training
from same_training import CLASSES, FEATURES, GROUPS, LENGTH, NODES, WIDTH, WORDS, Row

sys.path.pop(0)


def cnn_in_torch() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.AvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(16 * 3 * 3, CLASSES),
    )  # fmt: skip


class TransformerInTorch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(WORDS, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.out = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        h = self.tokens(x) + self.positions(torch.arange(LENGTH))
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        return self.out(self.norm(self.encoder(h, mask=mask))).reshape(-1, WORDS)


class ConvolutionInTorch(torch.nn.Module):
    """Kipf and Welling's equation with a dense matrix."""

    def __init__(self, inside: int, outside: int):
        super().__init__()
        self.lin, self.bias = torch.nn.Linear(inside, outside, bias=False), torch.nn.Parameter(torch.zeros(outside))

    def forward(self, x, normalized):
        return normalized @ self.lin(x) + self.bias


class GcnInTorch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = ConvolutionInTorch(FEATURES, 32), ConvolutionInTorch(32, GROUPS)
        matrix = np.zeros((NODES, NODES), np.float32)
        for source, target in same_training.draw_edges().T:
            matrix[target, source] += source != target  # edges that are there twice count twice
        matrix += np.eye(NODES, dtype=np.float32)
        scale = matrix.sum(1) ** -0.5
        self.normalized = torch.tensor(scale[:, None] * matrix * scale)

    def forward(self, x):
        return self.second(self.first(x, self.normalized).relu(), self.normalized)


IN_TORCH = {
    "CNN": (cnn_in_torch, same_training.make_cnn),
    "transformer": (TransformerInTorch, lambda: same_training.Transformer(dropout=0.0)),  # drawn by other generators
    "GCN": (GcnInTorch, same_training.GCN),
}


@pytest.mark.parametrize("name", IN_TORCH)
def test_losses_are_those_of_torch(name):
    make_theirs, make_ours = IN_TORCH[name]
    losses = same_training.train(name, "cpu", make_ours).losses
    weft.manual_seed(same_training.SEED)
    theirs = make_theirs()
    weights = {key: torch.from_numpy(value.numpy().copy()) for key, value in make_ours().state_dict().items()}
    left = theirs.load_state_dict(
        {key: value for key, value in weights.items() if key not in ("places", "mask", "edges")}
    )
    assert not left.missing_keys and not left.unexpected_keys
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=3e-3, weight_decay=0.01)
    batches, expected = same_training.draw_batches(name), []
    for number in range(same_training.STEPS):
        x, y = map(torch.from_numpy, batches[number % same_training.BATCHES])
        loss = torch.nn.functional.cross_entropy(theirs(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(losses, expected, 0, 1e-5)
    assert losses[-1] < losses[0] - 0.1


def test_the_command_prints_and_writes_every_row(tmp_path, capsys):
    out = tmp_path / "report.json"
    assert same_training.main(["--devices", "cpu", "cpu", "--networks", "GCN", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert [row["device"] for row in report["rows"]] == ["cpu", "cpu"] and str(tmp_path) not in report["command"]
    assert all(len(row["losses"]) == same_training.STEPS for row in report["rows"])
    assert "| GCN | cpu | " in capsys.readouterr().out


GOOD = Row("CNN", "opencl:0", True, 2.0, 1.0, 1e-4, True, 0, 0, [2.0, 1.0])


@pytest.mark.parametrize(
    "change",
    [{"difference": 1.1e-4}, {"difference": float("nan")}, {"has_same_bits": False}, {"uploads": 1}, {"downloads": 1}],
    ids=str,
)
def test_the_command_fails_where_training_is_not_the_same(change, monkeypatch, capsys):
    monkeypatch.setattr(same_training, "train", lambda name, device: None)
    monkeypatch.setattr(same_training, "compare", lambda name, device, expected: GOOD)
    assert same_training.main(["--devices", "cpu", "--networks", "CNN"]) == 0
    monkeypatch.setattr(same_training, "compare", lambda name, device, expected: replace(GOOD, **change))
    assert same_training.main(["--devices", "cpu", "--networks", "CNN"]) == 1
    assert "not the same training: CNN on opencl:0" in capsys.readouterr().err
