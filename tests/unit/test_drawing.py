"""Pictures: charts and networks as SVG, with what they must show and without overlaps."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

import weft
import weft.nn as nn
from tests.unit.browser import load, needs_browser
from weft.drawing.charts import MAX_POINTS, bar_chart, line_chart
from weft.drawing.layers import Box, arrange
from weft.drawing.memory import memory_map
from weft.drawing.network import draw, trace_network
from weft.drawing.style import axis_labels, number_text, shorten, text_width, ticks

pytestmark = pytest.mark.unit


def parsed(picture):
    return ElementTree.fromstring(picture)


def polylines(picture):
    return re.findall(r'<polyline points="([^"]*)"', picture)


# --- charts ----------------------------------------------------------------------------------------------------------


def test_a_chart_has_axes_legend_and_curves():
    picture = line_chart({"train": [(1, 2.0), (2, 1.0)], "validation": [(1, 2.5), (2, 1.5)]}, "Loss", "epoch", "loss")
    words = ["".join(node.itertext()) for node in parsed(picture).iter() if node.tag.endswith("text")]
    assert {"Loss", "train", "validation", "epoch", "loss", "1", "2"} <= set(words)
    assert len(polylines(picture)) == 2
    width, height = float(parsed(picture).get("width")), float(parsed(picture).get("height"))
    for line in polylines(picture):
        for point in line.split():
            x, y = map(float, point.split(","))
            assert 0 < x <= width and 0 < y < height


def test_values_that_are_not_finite_leave_a_gap():
    points = [(0, 1.0), (1, math.nan), (2, 3.0), (3, 2.0), (4, math.inf), (5, 1.0)]
    assert [len(line.split()) for line in polylines(line_chart({"x": points}, "t", "x", "y"))] == [1, 2, 1]
    assert "no finite values" in line_chart({"x": [(0, math.nan)]}, "t", "x", "y")
    assert "no finite values" in line_chart({}, "t", "x", "y")
    assert "no finite values" in line_chart({"x": [(0, -1.0)]}, "t", "x", "y", log=True)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "values", [[1.0], [5.0, 5.0], [0.0, 1e-9], [1e30, 1e-30], [-3.0, 3.0], [0.95, 0.9501], [1e6, 2.5e6], [3e-7, 4e-7]]
)
def test_ranges_of_all_kinds(values, log):
    picture = line_chart({"x": list(enumerate(values))}, "t", "x", "y", log=log)
    parsed(picture)
    assert "nan" not in picture and "inf" not in picture.replace("no finite", "")


def test_many_points_are_thinned_and_keep_their_extremes():
    points = [(k, math.sin(k / 100)) for k in range(100_000)]
    points[77_777] = (77_777, 9.0)
    (line,) = polylines(line_chart({"x": points}, "t", "x", "y"))
    heights = [float(point.split(",")[1]) for point in line.split()]
    assert len(heights) <= MAX_POINTS + 2
    assert min(heights) < sorted(heights)[5] - 50  # the one that stands out


def test_names_are_escaped():
    picture = line_chart({"<b>&": [(0, 1.0)], "two": [(0, 2.0)]}, "<script>", "x<", "y&")
    parsed(picture)
    assert "<script>" not in picture and "&lt;b&gt;&amp;" in picture


def test_ticks_are_round():
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.13, 0.97, 5) == [0.2, 0.4, 0.6, 0.8]
    assert ticks(3, 3, 5) == [3]
    assert len(ticks(-1e-9, 1e9, 8)) <= 9
    assert axis_labels([0, 2500, 5000, 10000]) == ["0", "2.5k", "5k", "10k"]
    assert [number_text(value) for value in (0, 1e-7, 0.001, 1234, 12345, 2.5e6)] == [
        "0", "1e-07", "0.001", "1234", "12.345k", "2.5M",
    ]  # fmt: skip


def test_bars():
    picture = bar_chart([("a", (1.0, 2.0)), ("b", (0.0, 0.5))], ("forward", "backward"), "Time", " ms")
    words = ["".join(node.itertext()) for node in parsed(picture).iter() if node.tag.endswith("text")]
    assert {"a", "b", "3 ms", "0.5 ms", "forward", "backward"} <= set(words)
    parsed(bar_chart([], (), "nothing"))


def test_the_map_of_memory():
    picture = memory_map([("dot", 0, 1 << 20, 0, 3), ("sum", 1 << 20, 4096, 2, 5)], (1 << 20) + 4096, 6, "Arena")
    assert "dot: 1.0 MiB at 0, steps 0 to 3" in picture and len(polylines(picture)) == 1
    parsed(picture)
    parsed(memory_map([], 0, 0, "Nothing"))


def test_shortened():
    assert shorten("short", 100) == "short"
    cut = shorten("a very long text that does not fit", 80)
    assert cut.endswith("…") and text_width(cut) <= 80


# --- layout ----------------------------------------------------------------------------------------------------------


def inside(one, other):
    return (
        one.x >= other.x - 0.01
        and one.y >= other.y - 0.01
        and one.x + one.width <= other.x + other.width + 0.01
        and one.y + one.height <= other.y + other.height + 0.01
    )


def overlap(one, other):
    return (
        one.x < other.x + other.width
        and other.x < one.x + one.width
        and one.y < other.y + other.height
        and other.y < one.y + one.height
    )


def all_boxes(group):
    for box in group.boxes:
        yield box
        yield from all_boxes(box)


def check_layout(root, edges, lines):
    """Boxes are inside their groups and apart from each other, edges go down, and none passes through a vertex."""
    boxes = list(all_boxes(root))
    for box in boxes:
        assert inside(box, box.outer), (box.name, box.outer.name)
    for group in [root, *[box for box in boxes if box.boxes]]:
        for one, other in itertools.combinations(group.boxes, 2):
            assert not overlap(one, other), (one.name, other.name)
    for source, target in edges:
        assert source.y + source.height <= target.y + 0.01, (source.name, target.name)
    vertices = [box for box in boxes if not box.boxes]
    for line in lines:
        for (x, y), (next_x, next_y) in itertools.pairwise(line.points):
            assert next_y >= y - 0.01
            if abs(x - next_x) < 0.01:  # a straight piece beside boxes
                crossed = [
                    box.name
                    for box in vertices
                    if box.x + 1 < x < box.x + box.width - 1 and y + 1 < box.y + box.height and box.y < next_y - 1
                ]
                assert not crossed, (crossed, line.points)


def vertex(group, name, width=60.0):
    return group.add(Box(name, width, 30.0))


def test_layout_of_a_chain_is_straight():
    root = Box("")
    chain = [vertex(root, str(k), 40 + 17 * (k % 3)) for k in range(6)]
    edges = list(itertools.pairwise(chain))
    lines = arrange(root, edges)
    check_layout(root, edges, lines)
    assert len({round(box.x + box.width / 2, 1) for box in chain}) == 1


def test_layout_of_skips_and_groups():
    root = Box("")
    a = vertex(root, "a")
    group = root.add(Box("group"))
    b, c, d = (vertex(group, name) for name in "bcd")
    inner = group.add(Box("inner"))
    e, f = vertex(inner, "e"), vertex(inner, "f")
    g, h = vertex(root, "g"), vertex(root, "h")
    edges = [(a, b), (a, d), (b, c), (c, d), (d, e), (e, f), (b, f), (f, g), (c, g), (a, h), (g, h), (e, h)]
    check_layout(root, edges, arrange(root, edges))


@pytest.mark.parametrize("seed", range(20))
def test_layout_of_random_graphs(seed):
    import random

    chance = random.Random(seed)
    root = Box("")
    groups = [root]
    for k in range(chance.randrange(4)):
        groups.append(chance.choice(groups).add(Box(f"group {k}")))
    count = chance.randrange(2, 14)
    vertices = [vertex(root, "first")]
    # Calls are nested, so vertices of a group follow each other.
    order = sorted(chance.randrange(len(groups)) for _ in range(count))
    vertices += [vertex(groups[k], f"v{n}", chance.uniform(30, 160)) for n, k in enumerate(order)]
    for group in reversed(groups):
        for box in [one for one in group.boxes if one.name.startswith("group") and not one.boxes]:
            group.boxes.remove(box)
    rank = {box: n for n, box in enumerate(vertices)}
    edges = []
    for one, other in itertools.combinations(vertices, 2):
        if chance.random() < 0.3 and _is_acyclic(root, [*edges, (one, other)]):
            edges.append((one, other))
    assert all(rank[one] < rank[other] for one, other in edges)
    check_layout(root, edges, arrange(root, edges))


def _is_acyclic(root, edges):
    """Whether no group is left and entered again: calls cannot do that."""
    for group in [root, *[box for box in all_boxes(root) if box.boxes]]:
        found = {}
        for one, other in edges:
            if one.is_inside(group) and other.is_inside(group):
                first, last = group.child_towards(one), group.child_towards(other)
                if first is not last:
                    found.setdefault(first, set()).add(last)
        seen, done = set(), set()

        def visit(box, found=found, seen=seen, done=done):
            if box in done:
                return True
            if box in seen:
                return False
            seen.add(box)
            good = all(visit(below) for below in found.get(box, ()))
            done.add(box)
            return good

        if not all(visit(box) for box in list(found)):
            return False
    return True


# --- networks --------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


class Two(nn.Module):
    """Two inputs, nested modules, a layer that is called twice, two outputs."""

    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(10, 8), nn.Sequential(Block(8), Block(8))
        self.other, self.head = nn.Linear(5, 8), nn.Linear(16, 3)

    def forward(self, tokens, x):
        a, b = self.blocks(self.embed(tokens)).mean(1), self.other(x)
        joined = weft.cat([a, b], -1)
        return self.head(joined), self.head(joined * 2)


def network_of(model, *inputs, depth=None):
    return trace_network(model, inputs, depth)


def names(network):
    return [vertex.lines[0] for vertex in network.vertices.values()]


def test_a_network_has_its_layers_shapes_and_operations():
    model = Two()
    network = network_of(model, weft.zeros(2, 4, dtype=weft.int64), weft.zeros(2, 5))
    assert names(network) == [
        "input 0", "input 1", "embed: Embedding", "norm: LayerNorm", "up: Linear", "down: Linear", "+",
        "norm: LayerNorm", "up: Linear", "down: Linear", "+", "other: Linear", "concat", "head: Linear",
        "head: Linear", "output 0", "output 1",
    ]  # fmt: skip
    lines = [" ".join(vertex.lines) for vertex in network.vertices.values()]
    assert "[2, 4, 8] · 80 parameters" in lines[2] and "called again" in lines[14]
    assert network.parameters == sum(param.numel() for param in model.parameters())
    frames = [box.name for box in all_boxes(network.root) if box.boxes]
    assert frames == ["blocks: Sequential", "blocks.0: Block", "blocks.1: Block"]
    by_name = {(source.name, target.name) for source, target in network.edges}
    assert {
        ("embed: Embedding", "norm: LayerNorm"),
        ("embed: Embedding", "+"),
        ("down: Linear", "+"),
        ("concat", "head: Linear"),
    } <= by_name
    picture = draw(network)
    parsed(picture)
    check_layout(network.root, network.edges, [])


def test_depth_closes_modules():
    x = weft.zeros(2, 8)
    model = nn.Sequential(Block(8), nn.Linear(8, 2))
    assert names(network_of(model, x, depth=1)) == ["input", "0: Block", "1: Linear", "output"]
    assert names(network_of(model, x, depth=0)) == ["input", "Sequential", "output"]
    assert "+" in names(network_of(model, x, depth=2))


def test_convolutions_with_skips():
    """Operations on permuted values are drawn between the layers that they are between."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.norm, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            y = self.norm(self.one(x))
            return (y + self.two(y.relu())).mean((2, 3))

    network = network_of(Residual(), weft.zeros(1, 3, 8, 8))
    assert names(network) == ["input", "one: Conv2d", "norm: BatchNorm2d", "two: Conv2d", "+", "output"]
    edges = {(source.name, target.name) for source, target in network.edges}
    assert edges == {
        ("input", "one: Conv2d"), ("one: Conv2d", "norm: BatchNorm2d"), ("norm: BatchNorm2d", "two: Conv2d"),
        ("norm: BatchNorm2d", "+"), ("two: Conv2d", "+"), ("+", "output"),
    }  # fmt: skip


def test_plot_writes_a_file_and_changes_nothing(tmp_path):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.LSTM(8, 3))
    state = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    before = weft.get_rng_state().tolist()
    picture = nn.plot(model, tmp_path / "net.svg", input_shape=(4,), batch_size=3)
    assert (tmp_path / "net.svg").read_text() == picture and "3: LSTM" in picture
    assert model.training and all((value.numpy() == state[name]).all() for name, value in model.state_dict().items())
    assert all(not module._hooks for module in model.modules())
    assert weft.get_rng_state().tolist() == before


def test_plot_says_what_is_wrong(tmp_path):
    model = nn.Linear(4, 2)
    with pytest.raises(weft.ShapeError, match="no input_shape"):
        nn.plot(model, tmp_path / "net.svg")
    with pytest.raises(weft.RangeError, match=r"ends in \.svg"):
        nn.plot(model, tmp_path / "net.png", input_shape=(4,))
    with pytest.raises(weft.GraphError, match="a Module"):
        nn.plot(lambda x: x, input_shape=(4,))
    with pytest.raises(weft.ShapeError):
        nn.plot(model, input_shape=(5,))
    assert not any(module._hooks for module in model.modules())


@needs_browser
def test_pictures_in_a_browser(tmp_path):
    (tmp_path / "net.svg").write_text(nn.plot(Two(), input_shape=[(4,), (5,)], dtypes=[weft.int64]))
    (tmp_path / "chart.svg").write_text(line_chart({"a": [(0, 1.0), (1, 2.0)]}, "Loss", "epoch", "loss"))
    for name, words in (("net.svg", "blocks.1: Block"), ("chart.svg", "Loss")):
        page = load(tmp_path / name, tmp_path / "profile")
        assert page.complaints == [] and words in page.document and "parsererror" not in page.document


def test_layers_of_the_catalogue_that_have_layers_are_opened_on_demand():
    """A TransformerEncoder is a box inside another model, unless a depth asks for more; as the model it is open."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    shape = (3, 8)
    alone, inside = nn.plot(encoder, input_shape=shape), nn.plot(nn.Sequential(encoder), input_shape=shape)
    assert "1: TransformerEncoderLayer" in alone and "ReLU" not in alone
    assert "0: TransformerEncoder" in inside and "TransformerEncoderLayer" not in inside
    deep = nn.plot(nn.Sequential(encoder), input_shape=shape, depth=9)
    assert "self_attn: MultiheadAttention" in deep and "out_proj" not in deep
    assert "linear1: Linear" in deep and "linear1: Linear" not in nn.plot(encoder, input_shape=shape, depth=2)


def test_the_title_fits_in_bold():
    drawn = nn.plot(nn.Linear(3, 4), input_shape=(3,))
    title = "Linear: 16 parameters"
    assert float(ElementTree.fromstring(drawn).get("viewBox").split()[2]) >= 32 + 1.12 * text_width(title, 14)
    assert text_width(title, 14, bold=True) == pytest.approx(1.12 * text_width(title, 14))
