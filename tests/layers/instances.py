"""Instances of layers for the checks, their inputs as tensors, and results as arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from tests.layers.record import Draw, LayerRecord
from weft.base import tree


def make_layer(record: LayerRecord, make: Callable[[], Any] | None = None, seed: int = 1) -> Any:
    """An instance whose parameters are all random: a scale that starts as 1 would hide a missing factor."""
    weft.manual_seed(seed)
    layer = (make or record.make)().train(record.training)
    random = np.random.default_rng(seed)
    with weft.no_grad():
        for param in layer.parameters():
            if param.dtype.kind == "f":
                noise = random.normal(size=tuple(param.shape)) * 0.1
                param.add_(weft.tensor(noise, dtype=param.dtype))
    return layer


def tensors(values: Any, dtype: Any = weft.float32, requires_grad: bool = False) -> Any:
    """Arrays in nested containers as tensors; floats in `dtype`."""
    leaves, structure = tree.flatten(values)
    made = []
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            is_float = leaf.dtype.kind == "f"
            leaf = weft.tensor(leaf, dtype=dtype) if is_float else weft.tensor(leaf)
            if is_float and requires_grad:
                leaf.requires_grad_()
        made.append(leaf)
    return tree.unflatten(structure, made)


def with_gradients(record: LayerRecord, dtype: Any) -> tuple[Any, ...]:
    """The record's inputs as tensors; those that are no constants require grad."""
    return tuple(
        tensors(value, dtype, requires_grad=number not in record.constants)
        for number, value in enumerate(record.inputs(Draw()))
    )


def leaves_of(value: Any) -> list[Any]:
    """The arrays and tensors in a result, in order; sequences that are objects are taken apart."""
    found = []
    for leaf in tree.flatten(value)[0]:
        if leaf is None:
            continue
        if hasattr(leaf, "data") and hasattr(leaf, "batch_sizes"):  # a packed sequence
            leaf = leaf.data
        found.append(leaf)
    return found


def arrays_of(value: Any) -> list[np.ndarray]:
    """The numbers in a result of Weft, torch or NumPy, as arrays."""
    found = []
    for leaf in leaves_of(value):
        if hasattr(leaf, "detach"):
            leaf = leaf.detach()
        if isinstance(leaf, weft.Tensor) and leaf.dtype.is_16_bit:
            leaf = leaf.float()
        found.append(leaf.numpy() if hasattr(leaf, "numpy") else np.asarray(leaf))
    return found


def state_of(layer: Any) -> dict[str, np.ndarray]:
    """The state_dict as arrays; floats in float64."""
    found = {}
    for key, value in layer.state_dict().items():
        array = np.array(value.float() if value.dtype.is_16_bit else value)
        found[key] = array.astype(np.float64) if array.dtype.kind == "f" else array
    return found


def assert_close(given: Any, expected: Any, rtol: float, atol: float, what: str) -> None:
    ours, theirs = arrays_of(given), arrays_of(expected)
    assert len(ours) == len(theirs), f"{what}: {len(ours)} results, the oracle has {len(theirs)}"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one.shape == other.shape, f"{what}: result {number} has shape {one.shape}, the oracle's {other.shape}"
        if one.dtype.kind in "iub":
            np.testing.assert_array_equal(one, other, err_msg=f"{what}: result {number}")
        else:
            scale = float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
            np.testing.assert_allclose(
                one, other, rtol=rtol, atol=max(atol, rtol * 0.1 * scale), err_msg=f"{what}: result {number}"
            )


def floats_of(result: Any) -> list[weft.Tensor]:
    """The results that have a gradient."""
    return [leaf for leaf in leaves_of(result) if isinstance(leaf, weft.Tensor) and leaf.dtype.kind == "f"]


def weighted(result: Any, seed: int = 5) -> weft.Tensor:
    """A number that depends on every element of the results, each with a weight of its own."""
    random = np.random.default_rng(seed)
    total = None
    for leaf in floats_of(result):
        weights = weft.tensor(random.uniform(0.5, 1.5, tuple(leaf.shape)), dtype=leaf.dtype)
        part = (leaf * weights).sum()
        total = part if total is None else total + part
    assert total is not None, "no floating-point result"
    return total
