"""Records of the layers over the structure of sequences."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.record import Bad, Case, LayerRecord

K, T, B = 3, 4, 3


# ---- the conditional random field, beside all of its paths ----------------------------------------------------------


def path_score(state: Any, e: np.ndarray, path: Any) -> float:
    """The score of one path over emissions [T, K]."""
    if not len(path):
        return 0.0
    moves = sum(state["transitions"][i, j] for i, j in itertools.pairwise(path))
    return state["start"][path[0]] + sum(e[t, k] for t, k in enumerate(path)) + moves + state["end"][path[-1]]


def kept(e: np.ndarray, mask: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each sequence the steps that count, and their emissions."""
    chosen = np.ones(e.shape[:2], bool) if mask is None else mask
    return [(np.flatnonzero(row), one[row]) for one, row in zip(e, chosen, strict=True)]


def all_paths(e: np.ndarray) -> list[tuple[int, ...]]:
    return list(itertools.product(range(e.shape[1]), repeat=len(e)))


def nll(state: Any, inputs: tuple[Any, ...], training: bool) -> np.ndarray:
    e, tags, mask, reduction = (*inputs, *(None, "mean")[len(inputs) - 2 :])
    losses = []
    for (steps, one), path in zip(kept(e, mask), tags, strict=True):
        scores = np.array([path_score(state, one, other) for other in all_paths(one)])
        total = scores.max() + np.log(np.exp(scores - scores.max()).sum())
        losses.append(total - path_score(state, one, path[steps]))
    return {"mean": np.mean, "sum": np.sum, "none": np.array}[reduction](losses)


def best_paths(state: Any, inputs: tuple[Any, ...], training: bool) -> np.ndarray:
    """Of equal scores the path whose last tag is lowest, then the one before it, and so on."""
    e, mask = inputs[0], inputs[2] if len(inputs) > 2 else None
    found = np.full(e.shape[:2], -1)
    for row, (steps, one) in zip(found, kept(e, mask), strict=True):
        paths = sorted(all_paths(one), key=lambda path: path[::-1])
        scores = [path_score(state, one, path) for path in paths]
        row[steps] = paths[int(np.argmax(scores))]
    return found


def with_tags(draw: Any) -> tuple[Any, ...]:
    return draw.normal(B, T, K), draw.integers(K, B, T)


MASK = np.array([[True, True, True, False], [True, True, True, True], [True, False, False, False]])
HOLES = np.array([[False, True, True, False], [True, False, False, True], [False, False, True, False]])
EMPTY = np.array([[False, False, False, False], [True, True, True, True], [False, False, False, False]])


def check_ties(layer: nn.CRF, inputs: tuple[Any, ...]) -> None:
    """Where all paths have one score, all tags are 0."""
    with weft.no_grad():
        for param in layer.parameters():
            param.zero_()
    np.testing.assert_array_equal(layer.decode(weft.zeros(2, T, K)).numpy(), np.zeros((2, T)))
    emissions = np.random.default_rng(0).integers(0, 2, (40, T, K)).astype(float)
    with weft.no_grad():
        layer.transitions.copy_(weft.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]]))
    state = {key: value.numpy() for key, value in layer.state_dict().items()}
    expected = best_paths(state, (emissions,), True)
    np.testing.assert_array_equal(layer.decode(weft.tensor(emissions, dtype=weft.float32)).numpy(), expected)


def check_marginals() -> None:
    """The gradient of log Z in the emissions is the probability of each tag at each step."""
    weft.manual_seed(0)
    layer, draw = nn.CRF(K).double(), np.random.default_rng(1)
    e = weft.tensor(draw.normal(size=(B, T, K)), requires_grad=True)
    layer.log_partition(e, weft.tensor(HOLES)).sum().backward()
    state = {key: value.numpy() for key, value in layer.state_dict().items()}
    expected = np.zeros((B, T, K))
    for row, (steps, one) in zip(expected, kept(e.detach().numpy(), HOLES), strict=True):
        scores = np.array([path_score(state, one, path) for path in all_paths(one)])
        shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        for path, share in zip(all_paths(one), shares, strict=True):
            row[steps, path] += share
    np.testing.assert_allclose(e.grad.numpy(), expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(e.grad.numpy().sum(2), HOLES.astype(float), atol=1e-12)


def check_long() -> None:
    """500 steps in float32: log Z is that of the recursion in float64."""
    weft.manual_seed(0)
    layer, e = nn.CRF(5), np.random.default_rng(1).normal(size=(2, 500, 5)).astype(np.float32)
    start, end, moves = (param.detach().numpy().astype(float) for param in (layer.start, layer.end, layer.transitions))
    alpha = start + e[:, 0]
    for t in range(1, 500):
        alpha = np.logaddexp.reduce(alpha[:, :, None] + moves, 1) + e[:, t]
    expected = np.logaddexp.reduce(alpha + end, 1)
    np.testing.assert_allclose(layer.log_partition(weft.tensor(e)).detach().numpy(), expected, rtol=1e-6)


def check_tagger() -> None:
    """A tagger learns what the words alone do not tell: the word 2 is inside of a name (tag 2) after a name's beginning
    (word and tag 1), and outside (tag 0) after the word 0."""
    begins = np.random.default_rng(0).integers(0, 2, (24, 3))
    words = np.stack([begins, np.full((24, 3), 2)], 2).reshape(24, 6)
    tags = np.stack([begins, 2 * begins], 2).reshape(24, 6)
    weft.manual_seed(0)
    table, crf = weft.zeros(3, K).requires_grad_(), nn.CRF(K)
    optimizer = weft.optim.Adam([table, *crf.parameters()], lr=0.1)

    @weft.compile
    def step(words: weft.Tensor, tags: weft.Tensor) -> weft.Tensor:
        loss = crf(table[words], tags)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    given = weft.tensor(words), weft.tensor(tags)
    losses = [step(*given).item() for _ in range(100)]
    assert losses[0] > 5.0 and losses[-1] < 0.1, losses[-1]
    np.testing.assert_array_equal(crf.decode(table[given[0]]).numpy(), tags)
    assert (table[given[0]].argmax(2).numpy() != tags).any()


CRF_BAD = [
    Bad(call=lambda layer: layer(weft.ones(2, 3, K, dtype=weft.float64)), match="float64 for a layer of float32"),
    Bad(call=lambda layer: layer(weft.ones(2, 3, K + 1)), match=r"\[2, 3, 4\].*num_tags = 3", error=weft.ShapeError),
    Bad(call=lambda layer: layer(weft.ones(2, 0, K)), match="T of at least 1", error=weft.ShapeError),
    Bad(call=lambda layer: layer(weft.ones(1, 2, K), weft.tensor([[0, 3]])), match="the index 3", error=IndexError),
    Bad(call=lambda layer: layer(weft.ones(1, 2, K), weft.tensor([0, 1])), match=r"tags of shape \[2\]"),
    Bad(call=lambda layer: layer(weft.ones(1, 2, K), weft.ones(1, 2)), match="integers", error=weft.DTypeError),
    Bad(call=lambda layer: layer(weft.ones(1, 2, K), mask=weft.ones(2, 1)), match=r"a mask of shape \[2, 1\]"),
    Bad(call=lambda layer: layer.nll(weft.ones(1, 2, K), weft.tensor([[0, 1]]), None, "max"), match="'none'"),
    Bad(call=lambda layer: nn.CRF(0), match="num_tags=0", error=weft.RangeError),
]

SEQUENCE = frozenset({"batch", "sequence"})
RECORDS = [
    LayerRecord(
        name="CRF",
        make=lambda: nn.CRF(K),
        inputs=with_tags,
        oracle=nll,
        traits=SEQUENCE | {"mask"},
        edges={
            "all-masked rows": Case(inputs=lambda draw: (*with_tags(draw), EMPTY)),
        },
        bad=CRF_BAD,
        checks={"marginals": check_marginals, "long sequences": check_long, "a tagger": check_tagger},
    ),
    LayerRecord(
        name="CRF",
        variant="mask",
        make=lambda: nn.CRF(K),
        inputs=lambda draw: (*with_tags(draw), MASK, "sum"),
        oracle=nll,
        traits=SEQUENCE,
        no_bad="as without a mask",
    ),
    LayerRecord(
        name="CRF",
        variant="holes in the mask",
        make=lambda: nn.CRF(K),
        inputs=lambda draw: (*with_tags(draw), HOLES, "none"),
        oracle=nll,
        traits=frozenset({"batch"}),
        edges={"nan": "the NaN may be in a step that does not count"},
        no_bad="as without a mask",
    ),
    LayerRecord(
        name="CRF",
        variant="decode",
        make=lambda: nn.CRF(K),
        inputs=lambda draw: (draw.normal(B, T, K), None, HOLES),
        oracle=best_paths,
        traits=SEQUENCE | {"mask", "order"},
        differentiable=False,
        edges={
            "all-masked rows": Case(inputs=lambda draw: (draw.normal(B, T, K), None, EMPTY)),
            "ties": Case(check=check_ties),
            "nan": "tags have no NaN",
        },
        bf16="rounding may change which path is best",
        no_bad="as without a mask",
    ),
]


# ---- a module at every time step ------------------------------------------------------------------------------------


def by_step(state: Any, inputs: tuple[Any, ...], training: bool) -> torch.Tensor:
    """A loop over the time steps."""
    (x,) = (torch.from_numpy(one) for one in inputs)
    weight, bias = (torch.from_numpy(np.asarray(state[f"module.{name}"])) for name in ("weight", "bias"))
    return torch.stack([torch.nn.functional.linear(x[:, t], weight, bias) for t in range(x.shape[1])], 1)


def check_several() -> None:
    """Several inputs and outputs, with more axes."""

    class Both(nn.Module):
        def forward(self, x, y):
            return {"sum": x.sum((1, 2)) + y, "twice": 2 * x}

    x, y = weft.randn(2, 3, 4, 5), weft.randn(2, 3)
    found = nn.TimeDistributed(Both())(x, y)
    np.testing.assert_allclose(found["sum"].numpy(), x.numpy().sum((2, 3)) + y.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found["twice"].numpy(), 2 * x.numpy())


RECORDS.append(
    LayerRecord(
        name="TimeDistributed",
        make=lambda: nn.TimeDistributed(nn.Linear(4, 3)),
        inputs=lambda draw: (draw.normal(2, 5, 4),),
        oracle=by_step,
        traits=SEQUENCE,
        bad=[
            Bad(call=lambda layer: layer(weft.ones(4)), match=r"\[4\].*\[B, T\] first", error=weft.ShapeError),
            Bad(call=lambda layer: layer(weft.ones(2, 3, 5)), match=r"module \(Linear.*6, 5.*4", error=weft.ShapeError),
        ],
        checks={"several inputs and outputs": check_several},
    )
)
