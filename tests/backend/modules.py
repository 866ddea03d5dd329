"""Small models for the tests of modules, written once for Weft and torch: `network(nn)` takes either."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

import weft


def mlp(library: Any, sizes: tuple[int, ...] = (4, 8, 3)) -> Any:
    """Linear layers with tanh between them, in float64."""
    nn = library.nn
    layers: list[Any] = []
    for count, (before, after) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Tanh()] if count else []
        layers.append(nn.Linear(before, after))
    return nn.Sequential(*layers).double()


def same_weights(ours: Any, theirs: Any) -> None:
    """Give a model of Weft the weights of a model of torch."""
    ours.load_state_dict(theirs.state_dict())


def assert_same_state(ours: Any, theirs: Any, rtol: float = 1e-9) -> None:
    expected = theirs.state_dict()
    found = ours.state_dict()
    assert list(found) == list(expected)
    for key, value in found.items():
        np.testing.assert_allclose(value.numpy(), expected[key].numpy(), rtol=rtol, atol=1e-12, err_msg=key)


def batches(count: int, *shape: int, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=shape) for _ in range(count)]


def both(array: np.ndarray) -> tuple[weft.Tensor, torch.Tensor]:
    return weft.tensor(array), torch.tensor(array)
