"""What is checked of random graphs, and how many of them are drawn."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from hypothesis import HealthCheck, event, settings

import weft
from tests.backend.random_graphs import Graph, transplant
from weft.base.dtypes import float32
from weft.core.tensor import Tensor
from weft.grad.engine import gradients
from weft.graph import build
from weft.graph.node import Node
from weft.graph.show import show
from weft.optim.flat import pack
from weft.plan.device import Device

FUZZ = int(os.environ.get("WEFT_FUZZ", "0"))
USUAL = 1000


def examples(count):
    """So many of the usual number of graphs."""
    count = max(FUZZ * count // USUAL, 1) if FUZZ else count
    return settings(
        max_examples=count, derandomize=not FUZZ, deadline=None, print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )  # fmt: skip


def values_of(nodes):
    """The values of nodes, computed together."""
    tensors = [Tensor(node) for node in nodes]
    weft.eval(*tensors)
    return [tensor.numpy() for tensor in tensors]


def same_bits(one, two, what):
    assert one.dtype == two.dtype, what
    np.testing.assert_array_equal(widened(one), widened(two), err_msg=what, strict=True)


def widened(array):
    """bfloat16 as float32, which NumPy's comparisons know."""
    return array.astype(np.float32) if array.dtype == weft.bfloat16.numpy else array


def compare(actual, expected, value, text):
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, text
    actual, expected = widened(actual), widened(expected)
    if value.exact or actual.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected, err_msg=text)
    else:
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2 * value.error, err_msg=text)


def against_the_reference(graph: Graph, device: str | Device) -> None:
    nodes = graph.on(device)
    text = show(nodes)
    event(f"operations: {len(text.splitlines()) // 20 * 20}")
    together = values_of(nodes)
    for actual, expected, value in zip(together, values_of(graph.on("reference")), graph.outputs, strict=True):
        compare(actual, expected, value, text)


def alone_together_and_compiled(graph: Graph, device: str | Device) -> None:
    """The bits of a value depend neither on the fusion context nor on being compiled."""
    text = show(graph.on(device))
    together = values_of(graph.on(device))
    for number, (one, node) in enumerate(zip(together, graph.on(device), strict=True)):
        same_bits(values_of([node])[0], one, f"output {number} alone\n{text}")
    leaves = [weft.tensor(array, device=device) for array in graph.leaves.values()]
    places, outputs = list(graph.leaves), graph.outputs

    @weft.compile
    def run(*tensors):
        nodes = transplant(outputs, dict(zip(places, [tensor.node for tensor in tensors], strict=True)))
        return [Tensor(node) for node in nodes]

    for _ in range(2):
        for number, (one, two) in enumerate(zip(together, run(*leaves), strict=True)):
            same_bits(two.numpy(), one, f"output {number} compiled\n{text}")


def writer(graph: Graph, cells: dict[Node, Tensor]) -> Callable[[], list[Tensor]]:
    """A compiled function that computes the graph from `cells` and writes those that it replaces."""
    wanted = [*graph.outputs, *graph.writes.values()]

    @weft.compile
    def run():
        nodes = transplant(wanted, {leaf: cell.node for leaf, cell in cells.items()})
        for leaf, node in zip(graph.writes, nodes[len(graph.outputs) :], strict=True):
            cells[leaf].copy_(Tensor(node))
        return [Tensor(node) for node in nodes[: len(graph.outputs)]]

    return run


def cells_written_in_place(graph: Graph, packed: bool, device: str | Device) -> None:
    """Every value is computed from the old ones, wherever the new ones go; replays go on from there."""
    cells = {leaf: weft.tensor(array, device=device) for leaf, array in graph.leaves.items()}
    wanted = [*graph.outputs, *graph.writes.values()]
    floats = [cell for cell in cells.values() if cell.dtype is float32]
    if packed and floats:  # as an optimizer does: one piece of memory for all
        pack(floats)

    run = writer(graph, cells)
    text = show([value.node for value in wanted])
    for iteration in range(3):
        old = {leaf: weft.tensor(cell.numpy(), device=device).node for leaf, cell in cells.items()}
        expected = values_of(transplant(wanted, old))
        results = [result.numpy() for result in run()] + [cells[leaf].numpy() for leaf in graph.writes]
        for number, (one, two) in enumerate(zip(expected, results, strict=True)):
            same_bits(two, one, f"iteration {iteration}, value {number}\n{text}")
        for leaf, cell in cells.items():
            if leaf not in graph.writes:
                same_bits(cell.numpy(), graph.leaves[leaf], f"iteration {iteration}, a cell that is only read\n{text}")


def gradients_against_the_reference(graph: Graph, device: str | Device) -> None:
    """The gradients of a graph of float64 on a device and on the reference."""
    results = []
    for where in (device, "reference"):
        leaves = {node: weft.tensor(array, device=where).node for node, array in graph.leaves.items()}
        roots = transplant(graph.outputs, leaves)
        floats = [leaf for leaf in leaves.values() if leaf.dtype.kind == "f"]
        found = gradients(roots, [build.like(root, 1.0) for root in roots], floats)
        results.append(values_of([node for node in found if node is not None]))
    for actual, expected in zip(*results, strict=True):
        scale = max(np.abs(expected).max(initial=0.0), 1.0)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9 * scale, err_msg=show(roots))
