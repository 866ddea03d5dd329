"""`nn.plot`, a model as a picture: layers with shapes and parameters, and what flows between them.

The model is called once with placeholders, computing nothing. A layer of the catalogue, or a module without modules
inside, is drawn as one box: its result is replaced by fresh placeholders, so whatever the graph has above those was
computed between boxes. Where two branches meet there, an operation is drawn (+, concat, ...). Modules around others are
frames. `drawing.layers` computes the positions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.base import files, tree
from weft.base.errors import GraphError, RangeError, ShapeError, problem
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.drawing.layers import MARGIN, Box, Line, arrange
from weft.drawing.style import colour, escape, picture, shorten, text, text_width
from weft.jit.recording import Recording, placeholders
from weft.nn.graph_model import Input, Model, display_paths
from weft.nn.module import Module
from weft.nn.summarize import _placeholder

FRAMES = ("weft.nn.containers", "weft.nn.graph_model")  # whose modules are frames, not layers
SIGNS = {"add": "+", "sub": "−", "mul": "×", "div": "÷", "concat": "concat", "dot": "@", "select": "where"}
MAX_TEXT_WIDTH = 310.0  # width of the longest line in a box
PADDING, LINE = 12.0, 16.0
FAMILIES = {
    "linear": 0, "convolution": 1, "convolution_variants": 1, "lazy_layers": 1, "activation": 2, "named_activation": 2,
    "softmax": 2, "normalization": 3, "batch_and_instance_norm": 3, "recurrent": 4, "attention": 4, "rotary": 4,
    "transformer": 4, "pooling": 5, "adaptive_pooling": 5, "embedding": 6, "dropout": 7,
}  # fmt: skip


@dataclass
class Vertex:
    """What a box shows: a layer (its name, kind, settings, shapes of results, parameters), an operation, an input or an
    output."""

    kind: str  # 'layer', 'operation', 'input' or 'output'
    lines: list[str]
    family: int | None = None
    sources: list[Box] = field(default_factory=list)


class Network:
    """What `trace_network` found: vertices and frames as boxes, the edges between them, and how many parameters."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root = Box("")
        self.vertices: dict[Box, Vertex] = {}
        self.edges: list[tuple[Box, Box]] = []
        self.parameters = 0

    def add(self, group: Box, vertex: Vertex) -> Box:
        """A vertex in a frame, with edges from its sources."""
        box = group.add(Box(vertex.lines[0]))
        self.vertices[box] = vertex
        self.edges += [(source, box) for source in dict.fromkeys(vertex.sources)]
        return box


class _Recorder:
    """Follows one call of a model by hooks."""

    def __init__(self, model: Module, depth: int | None):
        self.network = Network(type(model).__name__)
        self.model, self.depth = model, depth
        self.paths = {id(module): path for path, module in model.named_modules()}
        shown = display_paths(model)
        self.names = {id(module): shown.get(path, path) for path, module in model.named_modules()}
        self.frames: list[Box] = [self.network.root]
        self.closed: list[Module] = []  # layers being called: what they call is not seen
        self.boxes: dict[Any, Box | None] = {}  # by node: the box that its value comes from
        self.seen: set[int] = set()  # layers drawn already
        self.counted: set[int] = set()

    def is_layer(self, module: Module) -> bool:
        """Whether a module is drawn as one box."""
        if not any(True for _ in module.children()):
            return True
        depth = len(self.paths[id(module)].split(".")) if self.paths[id(module)] else 0
        if self.depth is not None and depth >= max(self.depth, 0):
            return True
        where = type(module).__module__
        if not where.startswith("weft.nn.") or where in FRAMES:
            return False
        # A layer of the catalogue with parameters of its own, such as attention, computes more than its layers do.
        is_opened = self.depth is not None or module is self.model
        return not is_opened or any(True for _ in module.parameters(recurse=False))

    def before(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.closed:
            self.closed.append(module)
            return
        if isinstance(module, Input):
            return  # the box of what the model is given stands for it
        for tensor in _tensors((args, kwargs)):
            self.box_of(tensor.node)  # operations before the call belong to the frame around it
        if self.is_layer(module):
            self.closed.append(module)
        elif module is not self.model:
            name = self.names[id(module)]
            frame = self.frames[-1].add(Box(f"{name}: {type(module).__name__}"))
            frame.width = text_width(frame.name, 12) + 2 * MARGIN + 8
            self.frames.append(frame)

    def after(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        if not self.closed and isinstance(module, Input):
            return None
        if not self.closed:
            for tensor in _tensors(result):
                self.box_of(tensor.node)
            if module is not self.model:
                frame = self.frames.pop()
                if not frame.boxes:  # nothing in it is drawn
                    self.frames[-1].boxes.remove(frame)
            return None
        self.closed.pop()
        if self.closed:
            return None
        sources = [box for tensor in _tensors((args, kwargs)) if (box := self.box_of(tensor.node)) is not None]
        vertex = self._layer(module, [tuple(tensor.shape) for tensor in _tensors(result)], sources)
        box = self.network.add(self.frames[-1], vertex)
        replaced = placeholders(result)
        for tensor in _tensors(replaced):
            self.boxes[tensor.node] = box
        return replaced

    def _layer(self, module: Module, shapes: Sequence[tuple[int, ...]], sources: list[Box]) -> Vertex:
        kind, name = type(module).__name__, self.names[id(module)].rpartition(".")[2]
        lines = [f"{name}: {kind}" if name else kind]
        settings = module.extra_repr()
        if settings:
            lines.append(settings)
        lines.append(" ".join(str(list(shape)) for shape in shapes[:3]) + (" ..." if len(shapes) > 3 else ""))
        count = self._count(module)
        if id(module) in self.seen:
            lines[-1] += " · called again"
        elif count:
            lines[-1] += f" · {count:,} parameters"
        self.seen.add(id(module))
        return Vertex("layer", lines, FAMILIES.get(type(module).__module__.rpartition(".")[2]), sources)

    def _count(self, module: Module) -> int:
        fresh = [param for param in module.parameters() if id(param) not in self.counted]
        self.counted.update(map(id, fresh))
        return sum(param.numel() for param in fresh)

    def box_of(self, root: Any) -> Box | None:
        """The box that a value comes from; where values of several boxes meet, operations are drawn."""
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self.boxes:
                stack.pop()
                continue
            missing = [source for source in node.srcs if source not in self.boxes]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            found = list(dict.fromkeys(box for source in node.srcs if (box := self.boxes[source]) is not None))
            if len(found) < 2:
                self.boxes[node] = found[0] if found else None
            else:
                vertex = Vertex("operation", [SIGNS.get(node.op, node.op.replace("_", " "))], None, found)
                self.boxes[node] = self.network.add(self.frames[-1], vertex)
        return self.boxes[root]


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree.flatten(values)[0] if isinstance(leaf, Tensor)]


@entry_point
def trace_network(model: Module, inputs: Sequence[Tensor], depth: int | None = None) -> Network:
    """The boxes and edges of a model that is called with placeholders of these inputs."""
    recorder = _Recorder(model, depth)
    network = recorder.network
    handles: list[Any] = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(recorder.before, with_kwargs=True))
        handles.append(module.register_forward_hook(recorder.after, with_kwargs=True))
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with Recording(network.name):
            stand_ins = placeholders(tuple(inputs))
            for number, tensor in enumerate(stand_ins):
                name = "input" if len(stand_ins) == 1 else f"input {number}"
                if isinstance(model, Model) and model._input_names:
                    name = f"input {model._input_names[number]}"
                vertex = Vertex("input", [name, str(list(tensor.shape))])
                recorder.boxes[tensor.node] = network.add(network.root, vertex)
            results = _tensors(model(*stand_ins))
            for number, tensor in enumerate(results):
                box = recorder.box_of(tensor.node)
                name = "output" if len(results) == 1 else f"output {number}"
                vertex = Vertex("output", [name, str(list(tensor.shape))], None, [] if box is None else [box])
                network.add(network.root, vertex)
    finally:
        for module in training:
            module.training = True
        for handle in handles:
            handle.remove()
    network.parameters = sum(param.numel() for param in model.parameters())
    return network


@entry_point
def plot(
    model: Module,
    path: str | os.PathLike[str] | None = None,
    input_shape: Any = None,
    *,
    batch_size: int = 1,
    dtypes: Sequence[Any] | None = None,
    depth: int | None = None,
) -> str:
    """Draw a model as SVG: its layers with shapes and parameters, top to bottom. Returns the picture, and writes it to
    `path` if one is given. Nothing is computed.

    `input_shape` is the shape of one sample without the batch, or a tensor, or a list of these for several inputs, with
    `dtypes` where they are not the model's own. Modules inside others are framed; `depth` is how many levels of modules
    are opened (all, unless given; then layers of Weft's own inside the model stay closed).

    >>> model = weft.nn.Sequential(weft.nn.Linear(4, 8), weft.nn.ReLU(), weft.nn.Linear(8, 2))
    >>> picture = weft.nn.plot(model, input_shape=(4,))
    >>> "1: ReLU" in picture and "40 parameters" in picture
    True
    """
    if not isinstance(model, Module):
        raise problem(GraphError, "nn.plot", f"a {type(model).__name__}", "a Module")
    if path is not None and not str(path).endswith(".svg"):
        raise problem(RangeError, "nn.plot", f"the path {str(path)!r}", "a name that ends in .svg")
    if input_shape is None:
        given = "no input_shape"
        expected = "the shape of a sample without the batch, such as (3, 32, 32), or a list of shapes"
        raise problem(ShapeError, "nn.plot", given, expected, "nn.plot(model, 'net.svg', input_shape=(3, 32, 32))")
    several = isinstance(input_shape, (list, tuple)) and not all(isinstance(size, int) for size in input_shape)
    shapes: Iterable[Any] = input_shape if several else [input_shape]
    kinds = list(dtypes or [])
    like = next((param for param in model.parameters() if param.dtype.kind == "f"), None)
    inputs = [
        shape
        if isinstance(shape, Tensor)
        else _placeholder(shape, batch_size, kinds[k] if k < len(kinds) else None, like)
        for k, shape in enumerate(shapes)
    ]
    drawn = draw(trace_network(model, inputs, depth))
    if path is not None:
        files.write("plot", path, drawn)
    return drawn


# --- the picture -----------------------------------------------------------------------------------------------------


@entry_point
def draw(network: Network) -> str:
    """A network as SVG text."""
    for box, vertex in network.vertices.items():
        vertex.lines = [shorten(line, MAX_TEXT_WIDTH, _size(k)) for k, line in enumerate(vertex.lines)]
        if vertex.kind == "operation":
            box.height, box.width = 26.0, max(26.0, text_width(vertex.lines[0]) + 14)
        else:
            widest = max(text_width(line, _size(k)) for k, line in enumerate(vertex.lines))
            box.width, box.height = widest + 2 * PADDING + 6, LINE * len(vertex.lines) + 12
    lines = arrange(network.root, network.edges)
    title = f"{network.name}: {network.parameters:,} parameters"
    width, height = max(network.root.width, text_width(title, 14, bold=True) + 40), network.root.height + 40
    shift = (width - network.root.width) / 2
    frames = [_frame(box, depth) for box, depth in _frames(network.root)]
    vertices = [_vertex(box, vertex) for box, vertex in network.vertices.items()]
    arrow = (
        '<defs><marker id="weft-arrow" viewBox="0 0 8 8" refX="7.2" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0.8 L8 4 L0 7.2 z" fill="{colour("soft")}"/>'
        "</marker></defs>"
    )
    content = [*frames, *[_line(line) for line in lines], *vertices]
    moved = [
        arrow,
        text(16, 24, title, size=14, bold=True),
        f'<g transform="translate({shift:.1f} 36)">',
        *content,
        "</g>",
    ]
    return picture(width, height, title, moved)


def _size(line: int) -> float:
    """Of the font, as far as widths go: the first line is larger, and bold."""
    return 14.0 if line == 0 else 11.0


def _frames(root: Box) -> list[tuple[Box, int]]:
    """All frames, outer before inner, with their depth."""
    found = []
    stack = [(box, 0) for box in root.boxes if box.boxes]
    while stack:
        box, depth = stack.pop()
        found.append((box, depth))
        stack.extend([(inner, depth + 1) for inner in box.boxes if inner.boxes])
    return sorted(found, key=lambda pair: pair[1])


def _frame(box: Box, depth: int) -> str:
    rect = (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="8" '
        f'fill="{colour("ink")}" fill-opacity="0.035" stroke="{colour("line")}"/>'
    )
    return rect + text(box.x + 10, box.y + 17, box.name, fill="soft")


def _vertex(box: Box, vertex: Vertex) -> str:
    middle = box.x + box.width / 2
    bounds = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    if vertex.kind == "operation":
        shape = f'<rect {bounds} rx="13" fill="{colour("paper")}" stroke="{colour("soft")}"/>'
        return shape + text(middle, box.y + 17.5, vertex.lines[0], "middle")
    if vertex.kind in ("input", "output"):
        shape = f'<rect {bounds} rx="{box.height / 2:.1f}" fill="{colour("paper")}" stroke="{colour("soft")}"/>'
    else:
        bar = colour("soft") if vertex.family is None else colour(vertex.family)
        shape = (
            f'<rect {bounds} rx="5" fill="{colour("panel")}" stroke="{colour("line")}"/>'
            f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="5" height="{box.height:.1f}" rx="2.5" fill="{bar}"/>'
        )
    words = [
        text(middle, box.y + 19 + LINE * k, line, "middle", "ink" if k == 0 else "soft", 13 if k == 0 else 11, k == 0)
        for k, line in enumerate(vertex.lines)
    ]
    return f"<g><title>{escape(' / '.join(vertex.lines))}</title>{shape}{''.join(words)}</g>"


def _line(line: Line) -> str:
    """A smooth curve through the points; straight down where it passes a rank."""
    (x, y), *rest = line.points
    path = [f"M{x:.1f} {y:.1f}"]
    for next_x, next_y in rest:
        if abs(next_x - x) < 0.5:
            path.append(f"L{next_x:.1f} {next_y:.1f}")
        else:
            bend = (next_y - y) * 0.5
            path.append(f"C{x:.1f} {y + bend:.1f} {next_x:.1f} {next_y - bend:.1f} {next_x:.1f} {next_y:.1f}")
        x, y = next_x, next_y
    end = ' marker-end="url(#weft-arrow)"' if line.is_last else ""
    return f'<path d="{" ".join(path)}" fill="none" stroke="{colour("soft")}" stroke-width="1.3"{end}/>'
