"""Templates of `attention` and `attention_backward`: sources as strided views, and the launches of their kernels."""

from __future__ import annotations

import math
from collections.abc import Collection

from weft.backends.base import Device
from weft.compiler.access import Strided, row_major
from weft.compiler.region import Region
from weft.compiler.simplify import simplify
from weft.compiler.template import Built, Template, view_of
from weft.dtypes import bool_, uint32
from weft.graph.attention import Attrs, keep_threshold
from weft.graph.composed import COMPOSED
from weft.graph.node import Node, toposort
from weft.graph.primitives import make, results_of
from weft.kernels import attention as kernels
from weft.kernels.attention import Array, Problem
from weft.kernels.attention_backward import backward as backward_kernel
from weft.kernels.language import BufferParam
from weft.kernels.product import tile_for

Named = tuple[str, Node, int]  # a buffer's name, the value behind it and the element it starts at

TASK_FLOPS = 200_000  # a task is worth at least about this much


def expand_attention(node: Node, srcs: tuple[Node, ...], device: Device) -> list[Node]:
    """The results by the node itself where the device has the templates and rows fit into a task's memory, else by its
    composition."""
    widths = srcs[0].shape[3] + srcs[2].shape[3]
    if "templates" in device.features and kernels.block_of(widths, srcs[0].dtype) > 1:
        return results_of(make(node.op, srcs, node.attrs))
    composed = list(COMPOSED[node.op](srcs, node.attrs))
    own = dict(zip(srcs, srcs, strict=True))
    return simplify(toposort(composed, own.__contains__), composed, own)


def forward(node: Node, leaves: Collection[Node]) -> Template:
    """`attention`: a task is a block of queries of one head."""
    sources = Sources(node, leaves)
    q = node.srcs[0]
    outputs = tuple([(name, result, 0) for name, result in zip(("out", "logs"), results_of(node), strict=True)])

    def build(region: Region, device: Device) -> Built:
        problem, buffers, uses = sources.problem(device), *sources.buffers(outputs)
        tasks = math.prod(q.shape[:2]) * problem.query_blocks
        flops = 2 * score_count(node) * (problem.width + problem.value_width + 4)
        kernel = kernels.forward(problem, buffers)
        return Built(kernel, uses, sources.scalars(), tasks, _chunk(tasks, flops), flops)

    return Template(sources.reads, build)


def backward(node: Node, leaves: Collection[Node]) -> Template:
    """`attention_backward`: a task is one head of keys, or one block where there are fewer heads than threads."""
    sources = Sources(node, leaves)
    q, k = node.srcs[:2]
    out, logs, above = (
        in_order(node.srcs[-3], leaves),
        in_order(node.srcs[-2], leaves),
        view_of(node.srcs[-1], leaves),
    )
    inputs = tuple([(name, view.base, view.offset) for name, view in (("out", out), ("logs", logs), ("g", above))])
    names = ("in_q", "in_k", "in_v")
    outputs = tuple([(name, result, 0) for name, result in zip(names, results_of(node), strict=True)])

    def build(region: Region, device: Device) -> Built:
        problem, buffers, uses = sources.problem(device), *sources.buffers(outputs, inputs)
        tasks = math.prod(k.shape[:2])
        apart = tasks < device.limits.get("threads", 1)
        split = math.prod(q.shape[:2]) * problem.query_blocks
        kernel = backward_kernel(problem, Array("g", above.strides, q.dtype), buffers, apart)
        scalars, products = sources.scalars(), 3 * problem.width + 2 * problem.value_width + 8
        if apart:
            tasks, scalars = split + tasks * problem.key_blocks, (*scalars, split)
            products += problem.width + problem.value_width + 8
        flops = 2 * score_count(node) * products
        return Built(kernel, uses, scalars, tasks, _chunk(tasks, flops), flops)

    return Template(tuple(dict.fromkeys((*sources.reads, *[base for _, base, _ in inputs]))), build)


def in_order(node: Node, leaves: Collection[Node]) -> Strided:
    """A saved result, which must lie in order."""
    view, own = view_of(node, leaves), row_major(node.shape)
    return view if view.strides == own else Strided(node, 0, own)


class Sources:
    """The sources of one node as the kernels see them."""

    def __init__(self, node: Node, leaves: Collection[Node]):
        self.node = node
        self.form = Attrs(*node.attrs)
        names = ["q", "k", "v"] + ["mask"] * self.form.masked
        self.views: dict[str, Strided] = {
            name: view_of(source, leaves, name != "mask") for name, source in zip(names, node.srcs, strict=False)
        }
        self.state = node.srcs[3 + self.form.masked] if self.form.dropout else None
        bases = [view.base for view in self.views.values()] + ([] if self.state is None else [self.state])
        self.reads = tuple(dict.fromkeys(bases))

    def problem(self, device: Device) -> Problem:
        q, k, v = self.node.srcs[:3]
        arrays = {
            name: Array(name, view.strides, bool_ if view.base.dtype is bool_ else q.dtype)
            for name, view in self.views.items()
        }
        return Problem(
            q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3], q.dtype, self.form.diagonal,
            self.form.dropout > 0, math.prod(q.shape[:3]) * k.shape[2] > 2**34, arrays["q"], arrays["k"], arrays["v"],
            arrays.get("mask"), tile_for(device.limits.get("vector_bytes", 2048)),
        )  # fmt: skip

    def buffers(
        self, outputs: tuple[Named, ...], inputs: tuple[Named, ...] = ()
    ) -> tuple[tuple[BufferParam, ...], tuple[tuple[Node, int], ...]]:
        """Parameters of a kernel that also reads `inputs` and writes `outputs`, and what stands behind them."""
        params = [BufferParam(name, view.base.dtype, False) for name, view in self.views.items()]
        uses = [(view.base, view.offset) for view in self.views.values()]
        if self.state is not None:
            params.append(BufferParam("state", uint32, False))
            uses.append((self.state, 0))
        params += [BufferParam(name, node.dtype, False) for name, node, _ in inputs]
        params += [BufferParam(name, node.dtype, True) for name, node, _ in outputs]
        uses += [(node, offset) for _, node, offset in (*inputs, *outputs)]
        return tuple(params), tuple(uses)

    def scalars(self) -> tuple[int | float, ...]:
        dropout = self.form.dropout
        more = (self.form.draw, keep_threshold(dropout), 1.0 / (1.0 - dropout)) if dropout else ()
        return (self.form.scale, *more)


def score_count(node: Node) -> int:
    """Scores that are computed; half of the square where a query sees only keys before it."""
    q, k = node.srcs[:2]
    count = math.prod(q.shape[:3]) * k.shape[2]
    return count if Attrs(*node.attrs).diagonal is None else count // 2


def _chunk(tasks: int, flops: int) -> int:
    """Tasks that a worker takes at a time."""
    return max(1, min(TASK_FLOPS * tasks // max(flops, 1), tasks // 16))
