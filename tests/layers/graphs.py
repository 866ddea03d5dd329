"""What the records of graph layers have in common: a small graph, edge cases, wrong inputs and properties of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from tests.layers.instances import arrays_of, assert_close, floats_of, make_layer, tensors
from tests.layers.record import Bad, Case, Draw, LayerRecord

NODES = 6
# An edge twice, a self-loop, and node 5 without edges.
EDGES = np.array([[0, 1, 0, 2, 3, 4, 2, 0, 1, 4], [1, 0, 1, 2, 2, 3, 4, 3, 4, 0]])
COUNT = EDGES.shape[1]
NO_EDGES = np.zeros((2, 0), np.int64)
LONELY = np.array([[1, 3, 3], [3, 1, 3]])  # of 6 nodes, two have edges

Inputs = Callable[[Draw, int, np.ndarray], tuple[Any, ...]]


def x_and_edges(draw: Draw, nodes: int, edges: np.ndarray) -> tuple[Any, ...]:
    return draw.normal(nodes, 4), edges


def with_weights(draw: Draw, nodes: int, edges: np.ndarray) -> tuple[Any, ...]:
    return draw.normal(nodes, 4), edges, draw.uniform(edges.shape[1], low=0.3)


def with_attributes(draw: Draw, nodes: int, edges: np.ndarray) -> tuple[Any, ...]:
    return draw.normal(nodes, 4), edges, draw.normal(edges.shape[1], 3)


def two_kinds(draw: Draw, nodes: int, edges: np.ndarray) -> tuple[Any, ...]:
    """Different nodes at the two ends of the edges, and more targets than sources."""
    return (draw.normal(nodes, 4), draw.normal(nodes + 2, 4)), edges


# ---- properties of all graph layers ---------------------------------------------------------------------------------


def same_with_adjacency(record: LayerRecord) -> None:
    """An Adjacency gives the bits of an edge_index, compiled too, and then nothing is sorted: neither forward nor
    backward, nor for the gradients of edge weights and features."""
    x, edges, *rest = tensors(record.inputs(Draw()), requires_grad=True)
    layer = make_layer(record).eval()
    graph = weft.adjacency(edges, x.shape[0])

    def step(x: Any, edges: Any, *rest: Any) -> Any:
        points = [one for one in (x, *rest) if isinstance(one, weft.Tensor)]

        def loss(*points: Any) -> Any:
            return sum((leaf**2).sum() for leaf in floats_of(layer(points[0], edges, *points[1:])))

        return layer(x, edges, *rest), weft.grad(loss, tuple(range(len(points))))(*points)

    compiled = weft.compile(step)
    expected = arrays_of(step(x, edges, *rest))
    for ours in (step(x, graph, *rest), compiled(x, graph, *rest)):
        for one, other in zip(arrays_of(ours), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    names = [kernel.name for kernel in compiled.plan.kernels()]
    assert not [name for name in names if "sort" in name or "scatter" in name], names

    parameters = list(layer.parameters())
    if not parameters:
        return
    optimizer = weft.optim.SGD(parameters, lr=0.1)

    def train(x: Any, graph: Any, *rest: Any) -> Any:
        loss = (layer(x, graph, *rest) ** 2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    trained = weft.compile(train)
    trained(x.detach(), graph, *[one.detach() for one in rest])
    names = [kernel.name for kernel in trained.plan.kernels()]
    assert not [name for name in names if "sort" in name or "scatter" in name], names


def same_with_dense(record: LayerRecord) -> None:
    """A dense matrix gives the numbers of its edges; a layer with edge weights takes its values for them."""
    x = weft.tensor(Draw().normal(NODES, 4), dtype=weft.float32)
    dense = np.zeros((NODES, NODES), np.float32)
    dense[EDGES[1], EDGES[0]] = Draw(3).uniform(COUNT, low=0.3)
    target, source = np.nonzero(dense)
    pairs = weft.tensor(np.stack([source, target]))
    layer = make_layer(record).eval()
    rest = [weft.tensor(dense[target, source])] if record.name in ("MessagePassing", "GCNConv", "DiffusionConv") else []
    assert_close(layer(x, weft.tensor(dense)), layer(x, pairs, *rest), 1e-6, 1e-6, record.id)
    assert_close(layer(x, weft.tensor(dense != 0)), layer(x, pairs), 1e-6, 1e-6, record.id)


def one_node(record: LayerRecord, inputs: Inputs) -> None:
    """One node, without edges and with two self-loops."""
    for edges in (NO_EDGES, np.zeros((2, 2), np.int64)):
        compare(record, inputs(Draw(), 1, edges))


def compare(record: LayerRecord, inputs: Any) -> None:
    assert record.oracle is not None
    layer = make_layer(record)
    state = {key: value.double().numpy() for key, value in layer.double().state_dict().items()}
    result = layer(*tensors(inputs, weft.float64))
    assert_close(result, record.oracle(state, inputs, True), 1e-9, 1e-9, record.id)


def variants(name: str, *options: tuple[Callable[[], Any], Any, Inputs]) -> Callable[[], None]:
    """Options that need no acceptance list of their own: values in float64, with all kinds of edges."""

    def check() -> None:
        for make, oracle, inputs in options:
            record = LayerRecord(name=name, make=make, inputs=lambda draw: (), oracle=oracle)
            for edges in (EDGES, LONELY, NO_EDGES):
                compare(record, inputs(Draw(), NODES, edges))

    return check


def graph_record(inputs: Inputs = x_and_edges, dense: bool = True, **fields: Any) -> LayerRecord:
    """A record with the edge cases, wrong inputs and checks that all layers on (x, edge_index, ...) have."""

    def wrong_index(value: int, row: int) -> Bad:
        edges = EDGES.copy()
        edges[row, 3] = value
        return Bad(
            call=lambda layer: layer(*tensors(inputs(Draw(), NODES, edges))),
            match=rf"the index {value}",
            error=weft.IndexRangeError,
        )

    def call(nodes: int, change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], Any]:
        return lambda layer: layer(*change(list(tensors(inputs(Draw(), nodes, EDGES)))))

    bad = [
        wrong_index(6, 0),
        wrong_index(6, 1),
        wrong_index(-1, 0),
        wrong_index(-2, 1),
        Bad(call=call(NODES, lambda a: [a[0], a[1][0], *a[2:]]), match=r"edge index of shape", error=weft.ShapeError),
        Bad(
            call=call(NODES, lambda a: [a[0], weft.adjacency(EDGES, 9), *a[2:]]),
            match="9 sources and 9 targets.*expected 6 and 6",
            error=weft.ShapeError,
        ),
        Bad(
            call=call(NODES, lambda a: [a[0], weft.ones(5, 5), *a[2:]]),
            match=r"dense adjacency of shape \(5, 5\); expected \(6, 6\)",
            error=weft.ShapeError,
        ),
        *fields.pop("bad", ()),
    ]
    made = LayerRecord(
        inputs=lambda draw: inputs(draw, NODES, EDGES),
        traits=fields.pop("traits", frozenset({"graph"})),
        edges={
            "empty graph": Case(inputs=lambda draw: inputs(draw, NODES, NO_EDGES)),
            "isolated nodes": Case(inputs=lambda draw: inputs(draw, NODES, LONELY)),
            **fields.pop("edges", {}),
        },
        bad=bad,
        **fields,
    )
    checks: dict[str, Any] = {
        "adjacency": lambda: same_with_adjacency(made),
        "one node": lambda: one_node(made, inputs),
        **made.checks,
    }
    if dense:
        checks["dense"] = lambda: same_with_dense(made)
    return dataclasses.replace(made, checks=checks)


WRONG_RANK = Bad(
    call=lambda layer: layer(weft.ones(4), weft.tensor(EDGES)),
    match=r"node features of shape \(4,\); expected \[nodes, 4\]",
    error=weft.ShapeError,
)
WRONG_WIDTH = Bad(
    call=lambda layer: layer(weft.ones(NODES, 5), weft.tensor(EDGES)),
    match=r"node features of shape \(6, 5\); expected \[nodes, 4\]",
    error=weft.ShapeError,
)
WRONG_ATTRIBUTES = Bad(
    call=lambda layer: layer(weft.ones(NODES, 4), weft.tensor(EDGES), weft.ones(COUNT, 2)),
    match=r"edge features of shape \(10, 2\); expected \[edges, 3\]",
    error=weft.ShapeError,
)
FEW_ATTRIBUTES = Bad(
    call=lambda layer: layer(weft.ones(NODES, 4), weft.tensor(EDGES), weft.ones(COUNT - 1, 3)),
    match=r"values of shape \(9, 3\) for 10 edges",
    error=weft.ShapeError,
)


def gradient_of_ties(make: Callable[[], Any]) -> Callable[[], None]:
    """The gradient of a maximum goes to the first edge of equals, in the order that was given."""

    def check() -> None:
        x = weft.tensor([[2.0], [2.0], [2.0], [0.0]], requires_grad=True)
        edges = weft.tensor([[2, 0, 1], [3, 3, 3]])
        layer = make()
        weft.nn.MessagePassing.propagate(layer, edges, x=x, edge_weight=None).sum().backward()
        assert x.grad.tolist() == [[0.0], [0.0], [1.0], [0.0]]

    return check


def sum_at(index: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """Rows added up by number."""
    out = np.zeros((count, *rows.shape[1:]))
    np.add.at(out, index, rows)
    return out
