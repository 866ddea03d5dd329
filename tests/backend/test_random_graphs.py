"""Random graphs through the whole compiler, with the spec on after every pass, against the reference interpreter.

The tests below draw 2,000 graphs, the same ones each time. `make fuzz GRAPHS=20000` (or `WEFT_FUZZ=20000 pytest
tests/backend/test_random_graphs.py`) draws so many others, divided among the tests in the same way.
"""

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import weft
from tests.backend.random_graphs import Graph, graphs, transplant
from tests.records import RECORDS, Inputs, flat
from weft.compiler import assemble
from weft.dtypes import float32, float64
from weft.grad.checkpoint import segment
from weft.grad.engine import gradients
from weft.graph import build, primitives
from weft.graph.node import toposort
from weft.graph.show import show
from weft.optim.flat import pack
from weft.tensor import Tensor

FUZZ = int(os.environ.get("WEFT_FUZZ", "0"))
USUAL = 2000


def examples(count):
    """So many of the usual number of graphs."""
    count = max(FUZZ * count // USUAL, 1) if FUZZ else count
    return settings(
        max_examples=count, derandomize=not FUZZ, deadline=None, print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def spec_after_every_pass():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "CHECK", True)
        yield


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


@examples(800)
@given(graphs())
def test_against_the_reference(graph: Graph):
    against_the_reference(graph)


@examples(200)
@given(graphs(least=20, most=50))
def test_large_graphs_against_the_reference(graph: Graph):
    against_the_reference(graph)


def against_the_reference(graph: Graph):
    nodes = graph.on("cpu")
    text = show(nodes)
    event(f"operations: {len(text.splitlines()) // 20 * 20}")
    together = values_of(nodes)
    for actual, expected, value in zip(together, values_of(graph.on("reference")), graph.outputs, strict=True):
        compare(actual, expected, value, text)


@examples(250)
@given(graphs(most=15))
def test_alone_together_and_compiled_are_the_same_bits(graph: Graph):
    text = show(graph.on("cpu"))
    together = values_of(graph.on("cpu"))
    for number, (one, node) in enumerate(zip(together, graph.on("cpu"), strict=True)):
        same_bits(values_of([node])[0], one, f"output {number} alone\n{text}")
    leaves = [weft.tensor(array, device="cpu") for array in graph.leaves.values()]

    @weft.compile
    def run(*tensors):
        nodes = transplant(graph.outputs, dict(zip(graph.leaves, [tensor.node for tensor in tensors], strict=True)))
        return [Tensor(node) for node in nodes]

    for _ in range(2):
        for number, (one, two) in enumerate(zip(together, run(*leaves), strict=True)):
            same_bits(two.numpy(), one, f"output {number} compiled\n{text}")


@examples(300)
@given(graphs(most=12, writes=True), st.booleans())
def test_cells_written_in_place(graph: Graph, packed: bool):
    """Every value is computed from the old ones, wherever the new ones go; replays go on from there."""
    cells = {leaf: weft.tensor(array, device="cpu") for leaf, array in graph.leaves.items()}
    wanted = [*graph.outputs, *graph.writes.values()]
    floats = [cell for cell in cells.values() if cell.dtype is float32]
    if packed and floats:  # as an optimizer does: one piece of memory for all
        pack(floats)

    @weft.compile
    def run():
        nodes = transplant(wanted, {leaf: cell.node for leaf, cell in cells.items()})
        for leaf, node in zip(graph.writes, nodes[len(graph.outputs) :], strict=True):
            cells[leaf].copy_(Tensor(node))
        return [Tensor(node) for node in nodes[: len(graph.outputs)]]

    text = show([value.node for value in wanted])
    for turn in range(3):
        old = {leaf: weft.tensor(cell.numpy(), device="cpu").node for leaf, cell in cells.items()}
        expected = values_of(transplant(wanted, old))
        results = [result.numpy() for result in run()] + [cells[leaf].numpy() for leaf in graph.writes]
        for number, (one, two) in enumerate(zip(expected, results, strict=True)):
            same_bits(two, one, f"turn {turn}, value {number}\n{text}")
        for leaf, cell in cells.items():
            if leaf not in graph.writes:
                same_bits(cell.numpy(), graph.leaves[leaf], f"turn {turn}, a cell that is only read\n{text}")


@examples(300)
@given(graphs(most=12, floats=float64, smooth=True))
def test_gradients_against_the_reference(graph: Graph):
    """Reverse mode makes other graphs than people write. In double precision the two sides are as good as equal."""
    results = []
    for device in ("cpu", "reference"):
        leaves = {node: weft.tensor(array, device=device).node for node, array in graph.leaves.items()}
        roots = transplant(graph.outputs, leaves)
        floats = [leaf for leaf in leaves.values() if leaf.dtype.kind == "f"]
        found = gradients(roots, [build.like(root, 1.0) for root in roots], floats)
        results.append(values_of([node for node in found if node is not None]))
    for actual, expected in zip(*results, strict=True):
        scale = max(np.abs(expected).max(initial=0.0), 1.0)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-9 * scale, err_msg=show(roots))


@examples(150)
@given(graphs(most=12, smooth=True))
def test_gradients_of_checkpoints_have_the_same_bits(graph: Graph):
    results = []
    for covered in (False, True):
        leaves = {node: weft.tensor(array, device="cpu").node for node, array in graph.leaves.items()}
        roots = transplant(graph.outputs, leaves)
        if covered:
            part = segment(roots, list(leaves.values()), 0)
            roots = [primitives.make("checkpoint", (root,), (part,)) for root in roots]
        floats = [leaf for leaf in leaves.values() if leaf.dtype.kind == "f"]
        found = gradients(roots, [build.like(root, 1.0) for root in roots], floats)
        results.append(values_of([node for node in found if node is not None]))
    for actual, expected in zip(*results, strict=True):
        same_bits(actual, expected, show(roots))


def operations(nodes):
    """The names of all primitives that `nodes` are made of, those inside loops too."""
    found = {node.op for node in nodes}
    return found.union(*[operations(node.attrs[0].nodes) for node in nodes if node.op == "loop"])


def test_every_primitive_is_drawn_or_recorded():
    """A primitive that no graph and no record has is checked by nobody: add it to `random_operations`."""
    found = set()

    @settings(examples(1), max_examples=200, derandomize=True, database=None)
    @given(graphs(), graphs(most=12, smooth=True))
    def collect(graph: Graph, smooth: Graph):
        roots = [value.node for value in smooth.outputs]
        leaves = [leaf for leaf in smooth.leaves if leaf.dtype.kind == "f"]
        slopes = gradients(roots, [build.like(root, 1.0) for root in roots], leaves)
        ends = [value.node for value in graph.outputs] + [node for node in slopes if node is not None]
        found.update(operations(toposort(ends)))

    collect()
    for record in RECORDS:
        inputs = Inputs(record.samples[0], record.dtypes[0], requires_grad=False)
        results = flat(record.fn(*inputs.weft_args, **record.samples[0].kwargs))
        found.update(operations(toposort([result.node for result in results if isinstance(result, Tensor)])))
    every = {name for names, *_ in primitives._ROWS for name in names.split()}
    assert sorted(every - found) == []
