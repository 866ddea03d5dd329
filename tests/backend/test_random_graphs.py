"""Random graphs through the whole compiler, with the spec on after every pass, against the reference interpreter.

The tests below draw 1,000 graphs, the same ones each time; those of the first have nearly every primitive. `make fuzz
GRAPHS=20000` (or `WEFT_FUZZ=20000 pytest tests/backend/test_random_graphs.py`) draws so many others, divided among the
tests in the same way.
"""

from contextlib import nullcontext

from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.backend.random_checks import (
    FUZZ,
    against_the_reference,
    alone_together_and_compiled,
    cells_written_in_place,
    examples,
    gradients_against_the_reference,
    same_bits,
    values_of,
)
from tests.backend.random_graphs import Graph, graphs, transplant
from tests.quick_code import quick_code
from tests.records import RECORDS, Inputs, flat
from weft.base.dtypes import float64
from weft.core.tensor import Tensor
from weft.grad.checkpoint import segment
from weft.grad.engine import gradients
from weft.graph import build, primitives
from weft.graph.node import toposort
from weft.graph.show import show

code = nullcontext if FUZZ else quick_code  # of half of the graphs; the others have what LLVM makes for users


def test_against_the_reference():
    drawn = set()

    @examples(400)
    @given(graphs())
    def check(graph: Graph):
        drawn.update(operations(toposort([value.node for value in graph.outputs])))
        against_the_reference(graph, "cpu")

    check()
    if not FUZZ:  # which may be few; records have the others, see below
        assert len(drawn) >= 75, sorted(set(primitives.PRIMITIVES) - drawn)


@examples(100)
@given(graphs(least=20, most=50))
def test_large_graphs_against_the_reference(graph: Graph):
    with code():
        against_the_reference(graph, "cpu")


@examples(125)
@given(graphs(most=15))
def test_alone_together_and_compiled_are_the_same_bits(graph: Graph):
    alone_together_and_compiled(graph, "cpu")


@examples(150)
@given(graphs(most=12, writes=True), st.booleans())
def test_cells_written_in_place(graph: Graph, packed: bool):
    with code():
        cells_written_in_place(graph, packed, "cpu")


@examples(150)
@given(graphs(most=12, floats=float64, smooth=True))
def test_gradients_against_the_reference(graph: Graph):
    """Reverse mode makes other graphs than people write. In double precision the two sides are as good as equal."""
    with code():
        gradients_against_the_reference(graph, "cpu")


@examples(75)
@given(graphs(most=12, smooth=True))
def test_gradients_of_checkpoints_have_the_same_bits(graph: Graph):
    results = []
    for covered in (False, True):
        leaves = {node: weft.tensor(array, device="cpu").node for node, array in graph.leaves.items()}
        roots = transplant(graph.outputs, leaves)
        if covered:
            part = segment(roots, list(leaves.values()), 0)
            roots = [primitives.make_node("checkpoint", (root,), (part,)) for root in roots]
        floats = [leaf for leaf in leaves.values() if leaf.dtype.kind == "f"]
        found = gradients(roots, [build.like(root, 1.0) for root in roots], floats)
        results.append(values_of([node for node in found if node is not None]))
    for actual, expected in zip(*results, strict=True):
        same_bits(actual, expected, show(roots))


def operations(nodes):
    """The names of all primitives that `nodes` are made of, those inside loops too."""
    found = {node.op for node in nodes}
    return found.union(*[operations(node.attrs.body.nodes) for node in nodes if node.op == "loop"])


def test_every_primitive_is_drawn_or_recorded():
    """A primitive that no graph and no record has is checked by nobody: add it to `random_operations`."""
    found = set()

    @settings(examples(1), max_examples=500, derandomize=True, database=None)
    @given(graphs(), graphs(most=12, smooth=True))
    def collect(graph: Graph, smooth: Graph):
        roots = [value.node for value in smooth.outputs]
        leaves = [leaf for leaf in smooth.leaves if leaf.dtype.kind == "f"]
        slopes = gradients(roots, [build.like(root, 1.0) for root in roots], leaves)
        ends = [value.node for value in graph.outputs] + [node for node in slopes if node is not None]
        found.update(operations(toposort(ends)))

    collect()
    for record in RECORDS:
        for sample in (record.samples[0], record.samples[-1]):
            inputs = Inputs(sample, record.dtypes[0], requires_grad=False)
            results = flat(record.fn(*inputs.weft_args, **sample.kwargs))
            found.update(operations(toposort([result.node for result in results if isinstance(result, Tensor)])))
    every = set(primitives.PRIMITIVES)
    every -= {"replace_rows"}  # made by optimizers in compiled functions only: tests/unit/test_row_updates.py
    assert sorted(every - found) == []
