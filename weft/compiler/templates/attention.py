"""Templates of `attention` and `attention_backward`: sources as strided views, and the launches of their kernels."""

from __future__ import annotations

import math
from collections.abc import Collection

from weft.base.dtypes import bool_, uint32
from weft.base.tuning import Tuning
from weft.compiler.fusion.index_map import Strided, row_major
from weft.compiler.fusion.region import Region
from weft.compiler.passes.simplify import simplify
from weft.compiler.templates.template import ScheduledKernel, Template, view_of
from weft.graph.attention import keep_threshold
from weft.graph.attributes import Attention
from weft.graph.composed import COMPOSED
from weft.graph.node import Node, toposort
from weft.graph.primitives import make_node, results_of
from weft.kernels.cpu import attention as kernels
from weft.kernels.cpu.attention import Array, Problem
from weft.kernels.cpu.attention_backward import backward as backward_kernel
from weft.kernels.cpu.gemm import tile_for
from weft.kernels.ir.language import BufferParam
from weft.kernels.numerics import attention_block
from weft.plan.device import Device

Named = tuple[str, Node, int]  # a buffer's name, the value behind it and the element it starts at


def expand_attention(node: Node, srcs: tuple[Node, ...], device: Device) -> list[Node]:
    """The results by the node itself where the device has the templates and rows fit into a task's memory, else by its
    composition."""
    widths = srcs[0].shape[3] + srcs[2].shape[3]
    if device.features.cpu_templates and attention_block(widths, srcs[0].dtype.itemsize) > 1:
        return results_of(make_node(node.primitive, srcs, node.attrs))
    composed = list(COMPOSED[node.op](srcs, node.attrs))
    own = dict(zip(srcs, srcs, strict=True))
    return simplify(toposort(composed, own.__contains__), composed, own)


def forward(node: Node, leaves: Collection[Node]) -> Template:
    """`attention`: a task is a block of queries of one head."""
    sources = Sources(node, leaves)
    q = node.srcs[0]
    outputs = tuple([(name, result, 0) for name, result in zip(("out", "logs"), results_of(node), strict=True)])

    def build(region: Region, device: Device) -> ScheduledKernel:
        problem, buffers, uses = sources.problem(device), *sources.buffers(outputs)
        tasks = math.prod(q.shape[:2]) * problem.query_blocks
        flops = 2 * score_count(node) * (problem.width + problem.value_width + 4)
        kernel = kernels.forward(problem, buffers)
        return ScheduledKernel(kernel, uses, sources.scalars(), tasks, _chunk(tasks, flops, device.tuning), flops)

    return Template(sources.reads, build)


def backward(node: Node, leaves: Collection[Node]) -> Template:
    """`attention_backward`: a task is one head of keys, or one block where there are fewer heads than threads."""
    sources = Sources(node, leaves)
    q, k = node.srcs[:2]
    out, logs, above = (
        row_major_view(node.srcs[-3], leaves),
        row_major_view(node.srcs[-2], leaves),
        view_of(node.srcs[-1], leaves),
    )
    inputs = tuple([(name, view.base, view.offset) for name, view in (("out", out), ("logs", logs), ("g", above))])
    names = ("in_q", "in_k", "in_v")
    outputs = tuple([(name, result, 0) for name, result in zip(names, results_of(node), strict=True)])

    def build(region: Region, device: Device) -> ScheduledKernel:
        problem, buffers, uses = sources.problem(device), *sources.buffers(outputs, inputs)
        tasks = math.prod(k.shape[:2])
        separate = tasks < device.limits.cpu_threads
        split = math.prod(q.shape[:2]) * problem.query_blocks
        kernel = backward_kernel(problem, Array("g", above.strides, q.dtype), buffers, separate)
        scalars, products = sources.scalars(), 3 * problem.width + 2 * problem.value_width + 8
        if separate:
            tasks, scalars = split + tasks * problem.key_blocks, (*scalars, split)
            products += problem.width + problem.value_width + 8
        flops = 2 * score_count(node) * products
        return ScheduledKernel(kernel, uses, scalars, tasks, _chunk(tasks, flops, device.tuning), flops)

    return Template(tuple(dict.fromkeys((*sources.reads, *[base for _, base, _ in inputs]))), build)


def row_major_view(node: Node, leaves: Collection[Node]) -> Strided:
    """A saved result, which must be contiguous."""
    view, own = view_of(node, leaves), row_major(node.shape)
    return view if view.strides == own else Strided(node, 0, own)


class Sources:
    """The sources of one node as the kernels see them."""

    def __init__(self, node: Node, leaves: Collection[Node]):
        self.node = node
        self.form: Attention = node.attrs
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
            arrays.get("mask"), tile_for(device.limits.vector_register_bytes),
        )  # fmt: skip

    def buffers(
        self, outputs: tuple[Named, ...], inputs: tuple[Named, ...] = ()
    ) -> tuple[tuple[BufferParam, ...], tuple[tuple[Node, int], ...]]:
        """Parameters of a kernel that also reads `inputs` and writes `outputs`, and the nodes that they read or
        write."""
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
    return count if node.attrs.diagonal is None else count // 2


def _chunk(tasks: int, flops: int, tuning: Tuning) -> int:
    """Tasks that a worker takes at a time."""
    return max(1, min(tuning.attention_task_flops * tasks // max(flops, 1), tasks // 16))
