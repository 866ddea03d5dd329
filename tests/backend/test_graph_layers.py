"""Graph layers: what they cost beside plain tensor code, the sort of an edge_index in the plan, and the same bits."""

import numpy as np
import pytest
import torch  # noqa: F401  (as in the records: without it this file is not collected)

import weft
import weft.nn as nn
import weft.nn.functional as F
from tests.backend.test_graph_ops import EDGES, HEADS, NODES, WIDE, WIDTH, edges, stored
from weft.functional.adjacency import sort_edges

RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(NODES, WIDE)).astype(np.float32)
G = RANDOM.normal(size=(NODES, HEADS * WIDTH)).astype(np.float32)


def gat(**options):
    weft.manual_seed(0)
    return nn.GATConv(WIDE, WIDTH, heads=HEADS, **options)


def plain_gat(x, graph, att_src, att_dst, bias, weight):
    """The layer of the benchmark (benchmarks/networks_weft.py), with the shapes of GATConv's parameters."""
    h = F.linear(x, weight).reshape(-1, HEADS, WIDTH)
    scores = graph.sources((h * att_src).sum(-1)) + graph.targets((h * att_dst).sum(-1))
    shares = graph.softmax(F.leaky_relu(scores, 0.2))
    return weft.aggregate(h, graph, shares).flatten(1) + bias


def training(layer, function):
    """A compiled step of training that also changes its input: forward, all gradients, SGD. With the step, what it
    changes."""
    x = nn.Parameter(weft.tensor(X))
    changed = [x, *layer.parameters()]
    optimizer = weft.optim.SGD(changed, lr=0.1)

    def step(g, graph):
        out = function(x, graph)
        (out * g).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return out

    return weft.compile(step), changed


def names(step):
    return [kernel.name for kernel in step.plan.kernels()]


# ---- what it costs --------------------------------------------------------------------------------------------------


def test_a_gat_layer_costs_what_plain_code_costs():
    graph, g = weft.adjacency(edges(), NODES), weft.tensor(G)
    one, other = gat(add_self_loops=False), gat(add_self_loops=False)
    step, changed = training(one, one)
    plain, expected = training(
        other, lambda x, graph: plain_gat(x, graph, other.att_src, other.att_dst, other.bias, other.lin.weight)
    )
    np.testing.assert_array_equal(step(g, graph).numpy(), plain(g, graph).numpy())
    for ours, theirs in zip(changed, expected, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert names(step) == names(plain)
    assert len(names(step)) <= 14, names(step)
    assert step.plan.bytes == plain.plan.bytes
    assert step.plan.memory().arena_bytes == plain.plan.memory().arena_bytes
    forward = weft.compile(lambda x, graph: one(x, graph))
    plain_forward = weft.compile(
        lambda x, graph: plain_gat(x, graph, one.att_src, one.att_dst, one.bias, one.lin.weight)
    )
    x = weft.tensor(X)
    np.testing.assert_array_equal(forward(x, graph).numpy(), plain_forward(x, graph).numpy())
    assert names(forward) == names(plain_forward)
    assert forward.plan.bytes == plain_forward.plan.bytes


def test_self_loops_of_attention_store_no_features_of_edges():
    graph, g = weft.adjacency(edges(), NODES), weft.tensor(G)
    layer = gat()
    step, _ = training(layer, layer)
    step(g, graph)
    assert not [label for label in stored(step.plan) if f"[{EDGES}, {HEADS}, {WIDTH}]" in label]
    assert not [label for label in stored(step.plan) if f"[{EDGES}, {HEADS * WIDTH}]" in label]
    other = gat(add_self_loops=False)
    plain, _ = training(other, other)
    plain(g, graph)
    assert len(names(step)) <= len(names(plain)) + 2, names(step)
    assert step.plan.bytes <= 1.4 * plain.plan.bytes, (step.plan.bytes, plain.plan.bytes)
    forward, without = [weft.compile(lambda x, graph, one=one: one(x, graph)) for one in (layer, other)]
    for one in (forward, without):
        one(weft.tensor(X), graph)
    assert len(names(forward)) == len(names(without)) == 4, names(forward)


def test_a_gcn_layer_is_a_product_and_one_kernel_over_edges():
    weft.manual_seed(0)
    layer = nn.GCNConv(WIDE, 16, add_self_loops=False, normalize=False)
    graph, weights = weft.adjacency(edges(), NODES), weft.ones(EDGES)
    ours = weft.compile(lambda x, graph, weights: layer(x, graph, weights))
    plain = weft.compile(
        lambda x, graph, weights: weft.aggregate(F.linear(x, layer.lin.weight), graph, weights[graph.edge]) + layer.bias
    )
    x = weft.tensor(X)
    np.testing.assert_array_equal(ours(x, graph, weights).numpy(), plain(x, graph, weights).numpy())
    assert len(names(ours)) == len(names(plain)) == 2, (names(ours), names(plain))
    assert ours.plan.bytes == plain.plan.bytes


# ---- edge_index: sorted in the plan ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 13])
def test_edges_sorted_in_a_plan_are_those_of_the_host(count):
    pairs = edges(2, 7, count)
    expected = weft.adjacency(pairs, 7)
    traced = weft.compile(lambda pairs: weft.adjacency(pairs, 7))
    for graph in (sort_edges(weft.tensor(pairs), 7), traced(weft.tensor(pairs))):
        for name, one, other in zip(expected._fields, graph, expected, strict=True):
            assert one.dtype is other.dtype
            np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=name)


def test_layers_on_one_edge_index_sort_it_once():
    weft.manual_seed(0)
    model = nn.ModuleList([nn.GCNConv(WIDE, 8), nn.SAGEConv(8, 8), nn.GATConv(8, 4, heads=2)])
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1)

    def step(x, pairs):
        for layer in model:
            x = layer(x, pairs).relu()
        (x**2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled = weft.compile(step)
    compiled(weft.tensor(X), weft.tensor(edges()))
    assert len([name for name in names(compiled) if "sort" in name]) == 2, names(compiled)  # by target, by source
    compiled(weft.tensor(X), weft.adjacency(edges(), NODES))
    assert not [name for name in names(compiled) if "sort" in name or "scatter" in name], names(compiled)


def test_a_dense_matrix_is_refused_inside_a_compiled_function():
    layer = nn.GCNConv(2, 2)
    with pytest.raises(weft.errors.WeftError, match="nonzero"):
        weft.compile(lambda x, dense: layer(x, dense))(weft.ones(3, 2), weft.eye(3))


def test_the_gradient_reaches_the_values_of_a_dense_matrix():
    weft.manual_seed(0)
    layer = nn.GCNConv(2, 2).double()
    x = weft.tensor(RANDOM.normal(size=(3, 2)))
    dense = np.array([[0.0, 0.5, 0.0], [0.3, 0.2, 0.9], [0.0, 0.0, 0.0]])

    def loss(values):
        full = weft.zeros(3, 3, dtype=weft.float64).index_put(
            (weft.tensor([0, 1, 1, 1]), weft.tensor([1, 0, 1, 2])), values
        )
        return (layer(x, full) ** 2).sum()

    assert weft.testing.gradcheck(loss, [weft.tensor(dense[dense != 0])])


# ---- Adjacency ------------------------------------------------------------------------------------------------------


def test_values_are_reordered_and_transposed():
    pairs = edges(3, 9, 25)
    graph, values = weft.adjacency(pairs, 9), RANDOM.normal(size=(25, 2))
    given = weft.tensor(values)
    ordered = graph.reorder(given)
    np.testing.assert_array_equal(ordered.numpy(), values[np.argsort(pairs[1], kind="stable")])
    np.testing.assert_array_equal(graph.rows().numpy(), np.sort(pairs[1]))
    turned, expected = graph.transposed(), weft.adjacency(pairs[::-1].copy(), 9)
    for name in ("rowptr", "colptr"):
        np.testing.assert_array_equal(getattr(turned, name).numpy(), getattr(expected, name).numpy())
    np.testing.assert_array_equal(graph.by_source(ordered).numpy(), turned.reorder(given).numpy())
    np.testing.assert_array_equal(turned.col.numpy(), pairs[1][turned.edge.numpy()])
    np.testing.assert_array_equal(turned.rows().numpy(), pairs[0][turned.edge.numpy()])
    np.testing.assert_array_equal(turned.edge_inverse.numpy()[turned.edge.numpy()], np.arange(25))
    np.testing.assert_array_equal(turned.col.numpy()[turned.order.numpy()], np.sort(pairs[1]))
    np.testing.assert_array_equal(turned.order_inverse.numpy()[turned.order.numpy()], np.arange(25))
    for one, other in zip(turned.transposed(), graph, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_gradients_of_gradients_of_reordered_values():
    graph = weft.adjacency(edges(4, 5, 12), 5)
    x, values = [weft.tensor(RANDOM.normal(size=shape)) for shape in [(5, 2), (12,)]]

    def layer(x, values):
        turned = graph.transposed()
        ordered = graph.reorder(values)
        one, other = weft.aggregate(x, graph, ordered), weft.aggregate(x, turned, graph.by_source(ordered))
        return ((one + other) ** 3).sum()

    def first(x, values):
        a, b = weft.grad(layer, (0, 1))(x, values)
        return (a * a).sum() + (b**2).sum()

    assert weft.testing.gradcheck(layer, [x, values])
    assert weft.testing.gradcheck(first, [x, values])


def test_two_kinds_of_nodes_between_sources_and_targets():
    weft.manual_seed(0)
    pairs = np.array([[0, 3, 3, 1], [1, 0, 1, 1]])  # four sources, two targets
    layer = nn.SAGEConv(3, 2).double()
    x = weft.tensor(RANDOM.normal(size=(4, 3))), weft.tensor(RANDOM.normal(size=(2, 3)))
    expected = layer(x, weft.tensor(pairs))
    assert expected.shape == (2, 2)
    np.testing.assert_array_equal(layer(x, weft.adjacency(pairs, 2, 4)).numpy(), expected.numpy())
    with pytest.raises(weft.ShapeError, match="4 sources and 4 targets; expected 4 and 2"):
        layer(x, weft.adjacency(pairs, 4))


# ---- the base class -------------------------------------------------------------------------------------------------


class Gated(nn.MessagePassing):
    """Every part overridden; `scale` goes to the update."""

    def __init__(self):
        super().__init__("sum")
        self.lin = nn.Linear(2, 2)

    def forward(self, x, edge_index, edge_attr, scale):
        return self.propagate(edge_index, x=x, h=self.lin(x), edge_attr=edge_attr, scale=scale)

    def message(self, x_i, h_j, edge_attr):
        return (x_i * h_j).sigmoid() * edge_attr

    def aggregate(self, messages, graph):
        return weft.segment_reduce(messages, graph.rowptr, "mean") + 1.0

    def update(self, aggregated, x, scale):
        return aggregated * scale + x


@pytest.mark.parametrize("sort", [False, True])
def test_a_layer_with_its_own_message_aggregate_and_update(sort):
    weft.manual_seed(0)
    layer, pairs = Gated().double(), edges(5, 4, 7)
    x, attributes = RANDOM.normal(size=(4, 2)), RANDOM.normal(size=(7, 2))
    h = x @ layer.lin.weight.detach().numpy().T + layer.lin.bias.detach().numpy()
    messages = attributes / (1 + np.exp(-x[pairs[1]] * h[pairs[0]]))
    expected = np.ones((4, 2))
    for node in range(4):
        if (pairs[1] == node).any():
            expected[node] += messages[pairs[1] == node].mean(0)
    graph = weft.adjacency(pairs, 4) if sort else weft.tensor(pairs)
    run = weft.compile(lambda *given: layer(*given))
    actual = run(weft.tensor(x), graph, weft.tensor(attributes), 2.0)
    np.testing.assert_allclose(actual.numpy(), expected * 2 + x, rtol=1e-12)


# ---- the same bits --------------------------------------------------------------------------------------------------


def test_large_graphs_give_the_same_bits_each_time():
    count, nodes = 100_000, 3_000
    pairs = edges(6, nodes, count)
    x = RANDOM.normal(size=(nodes, 8)).astype(np.float32)
    weights = RANDOM.random(count).astype(np.float32)

    def run(graph):
        weft.manual_seed(0)
        model = nn.ModuleList([nn.GCNConv(8, 8), nn.GATConv(8, 4, heads=2)])
        given, weight = [weft.tensor(one, requires_grad=True) for one in (x, weights)]
        out = model[1](model[0](given, graph, weight).relu(), graph)
        (out**2).sum().backward()
        return [one.numpy() for one in (out.detach(), given.grad, weight.grad, *[p.grad for p in model.parameters()])]

    graph = weft.adjacency(pairs, nodes)
    first = run(graph)
    for again in (run(graph), run(weft.tensor(pairs))):
        for one, other in zip(again, first, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_layer_on_float32_takes_weights_of_float64():
    layer = nn.GCNConv(2, 3)
    weights = weft.tensor([0.5, 2.0], dtype=weft.float64)
    assert layer(weft.ones(3, 2), weft.tensor([[0, 1], [1, 2]]), weights).dtype is weft.float32


# ---- small and wrong ------------------------------------------------------------------------------------------------

LAYERS = {
    "MessagePassing": lambda: nn.MessagePassing("max"),
    "MPNNConv": lambda: nn.MPNNConv(3, 2),
    "GCNConv": lambda: nn.GCNConv(3, 2),
    "SAGEConv": lambda: nn.SAGEConv(3, 2),
    "GINConv": lambda: nn.GINConv(3, 2),
    "DirectedGraphConv": lambda: nn.DirectedGraphConv(3, 2),
    "GATConv": lambda: nn.GATConv(3, 2),
    "GATv2Conv": lambda: nn.GATv2Conv(3, 2),
    "GraphTransformerLayer": lambda: nn.GraphTransformerLayer(3, 2, heads=2),
    "PNAConv": lambda: nn.PNAConv(3, 2, [0, 1]),
    "DiffusionConv": lambda: nn.DiffusionConv(3, 2, kind="random_walk"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_no_nodes_and_indices_of_int32(name):
    weft.manual_seed(0)
    layer = LAYERS[name]().eval()
    x = weft.ones(0, 3, requires_grad=True)
    out = layer(x, weft.tensor(np.zeros((2, 0), np.int64)))
    assert out.shape == (0, 3 if name == "MessagePassing" else 2)
    out.sum().backward()
    assert all(p.grad is None or not np.isnan(p.grad.numpy()).any() for p in layer.parameters())
    pairs, x = edges(7, 4, 9), weft.tensor(RANDOM.normal(size=(4, 3)), dtype=weft.float32)
    expected = layer(x, weft.tensor(pairs)).numpy()
    np.testing.assert_array_equal(layer(x, weft.tensor(pairs.astype(np.int32))).numpy(), expected)


@pytest.mark.parametrize("row", [0, 1])
def test_an_index_that_int32_would_wrap_round_is_refused(row):
    pairs = np.array([[0, 1, 2], [1, 2, 0]])
    pairs[row, 1] = 2**32 + 1
    for run in (layer := nn.SAGEConv(2, 2), weft.compile(lambda *given: layer(*given))):
        with pytest.raises(weft.IndexRangeError, match="given the index"):
            run(weft.tensor(X[:3, :2]), weft.tensor(pairs)).numpy()


def test_errors_of_what_layers_are_given():
    class Lacking(nn.MessagePassing):
        def message(self, x_j, z_i):
            return x_j * z_i

    x, pairs = weft.ones(3, 2), weft.tensor([[0], [1]])
    with pytest.raises(
        weft.RangeError, match=r"Lacking.propagate: given values named x, edge_weight; expected one for"
    ):
        Lacking()(x, pairs)
    with pytest.raises(weft.RangeError, match="given the name 'rellu'"):
        nn.GCNConv(2, 2, activation="rellu")(x, pairs)
    with pytest.raises(weft.GraphError, match="without the number of graphs"):
        weft.compile(lambda x, batch: nn.global_add_pool(x, batch))(x, weft.tensor([0, 0, 1]))
    with pytest.raises(weft.ShapeError, match="edges of type list"):
        nn.GCNConv(2, 2)(x, [[0], [1]])
    layer = nn.Sequential(nn.Linear(2, 3))
    layer.conv = nn.GCNConv(4, 2)
    with pytest.raises(weft.ShapeError, match=r"node features of shape \(3, 2\); expected \[nodes, 4\]"):
        layer.conv(x, pairs)


def test_a_graph_moves_to_another_device():
    graph = weft.adjacency(edges(0, 4, 5), 4).to("reference")
    assert {part.device.kind for part in graph} == {"reference"}
    x = weft.ones(4, 2, device="reference")
    assert weft.aggregate(x, graph).sum().item() == 10.0
