"""What a layer computes on the default device, to compare one device with another: results with gradients, a step of
training, and a compiled call of a layer that does not learn by gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from tests.layers.instances import floats_of, leaves_of, tensors, weighted, with_gradients
from tests.layers.record import Draw, LayerRecord
from weft.base import tree


def learns(record: LayerRecord, layer: Any) -> bool:
    """Whether a layer has parameters that learn by gradients."""
    return record.differentiable and any(param.requires_grad for param in layer.parameters())


def results_and_gradients(record: LayerRecord, layer: Any, dtype: Any = weft.float32) -> list[Any]:
    """The results of a layer, and the gradients of their weighted sum in its inputs and parameters."""
    inputs = _inputs(record, dtype)
    weft.manual_seed(3)
    result = layer(*inputs)
    if record.differentiable and any(leaf.requires_grad for leaf in floats_of(result)):
        weighted(result).backward()
    return [
        *leaves_of(result),
        *[one.grad for one in (*_tensors_in(inputs), *layer.parameters()) if one.grad is not None],
    ]


def make_step(record: LayerRecord, layer: Any, optimizer: Any, compiled: bool) -> Callable[[], weft.Tensor]:
    """One step that draws the results towards fixed random targets."""
    inputs = tensors(record.inputs(Draw()))
    targets = _make_targets(layer, inputs)

    def step() -> weft.Tensor:
        loss = _loss(layer(*inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return weft.compile(step) if compiled else step


def compile_call(record: LayerRecord, layer: Any) -> Callable[[], list[Any]]:
    """A compiled function that gives the results, and the gradients in the inputs of the same loss."""
    inputs = _inputs(record, weft.float32)
    targets = _make_targets(layer, inputs)
    points = [leaf for leaf in _tensors_in(inputs) if leaf.requires_grad]

    def call() -> list[Any]:
        result = layer(*inputs)
        if any(leaf.requires_grad for leaf in floats_of(result)):
            _loss(result, targets).backward()
        grads = [one.grad for one in points if one.grad is not None]
        for one in points:
            one.grad = None
        return [*leaves_of(result), *grads]

    return weft.compile(call)


def _inputs(record: LayerRecord, dtype: Any) -> tuple[Any, ...]:
    return with_gradients(record, dtype) if record.differentiable else tensors(record.inputs(Draw()), dtype)


def _tensors_in(inputs: tuple[Any, ...]) -> list[weft.Tensor]:
    return [leaf for leaf in tree.flatten(inputs)[0] if isinstance(leaf, weft.Tensor)]


def _make_targets(layer: Any, inputs: tuple[Any, ...]) -> list[weft.Tensor]:
    """Random numbers for each result that is one. The state of the layer is left as it is."""
    weft.manual_seed(11)
    random = np.random.default_rng(13)
    with weft.no_grad():
        shapes = [tuple(leaf.shape) for leaf in floats_of(copy.deepcopy(layer)(*inputs))]
    return [weft.tensor(random.normal(size=shape) * 0.1, dtype=weft.float32) for shape in shapes]


def _loss(result: Any, targets: list[weft.Tensor]) -> weft.Tensor:
    losses = [((one - target) ** 2).mean() for one, target in zip(floats_of(result), targets, strict=True)]
    return sum(losses[1:], losses[0])
