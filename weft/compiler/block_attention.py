"""block_attention: attention by kernels of our own, on devices with blocks where no library takes it.

`expand` turns `attention` into `block_attention` and its gradient into `block_attention_backward`, nodes that only the
compiler makes. They read their sources as views (`attention.Sources`), 16-bit floats as they are. The gradient needs,
beside the saved logarithms, the mean of each query's gradient, which is a sum over rows like any other.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from weft.backends.base import Device
from weft.compiler.attention import Sources, expand_attention, in_order, score_count
from weft.compiler.region import Region
from weft.compiler.template import Built, Template, view_of
from weft.dtypes import float32
from weft.graph import attention as meaning
from weft.graph import build
from weft.graph.evaluate import SEVERAL
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES, Primitive, make, results_of, several
from weft.kernels import gpu_attention
from weft.kernels.attention import Array, Problem
from weft.kernels.gpu_attention import Cut
from weft.kernels.gpu_attention_backward import backward as backward_kernel

SHARED = 49152  # bytes of a block's arrays on a device that does not say


def expand(node: Node, srcs: tuple[Node, ...], device: Device) -> list[Node]:
    """The results of `attention` or `attention_backward`: by blocks where rows fit, else as on other devices."""
    if "blocks" not in device.features or not _fits(srcs, device):
        return expand_attention(node, srcs, device)
    if node.op == "attention":
        return results_of(make("block_attention", srcs, node.attrs))
    *forward, out, logs, g = srcs
    wide = float32 if g.dtype.is_narrow else g.dtype
    products = build.mul(build.cast(build.permute(out, (0, 2, 1, 3)), wide), build.cast(g, wide))
    means = build.reduce("reduce_sum", products, (3,))
    return results_of(make("block_attention_backward", (*forward, logs, means, g), node.attrs))


def _fits(srcs: tuple[Node, ...], device: Device) -> bool:
    q, k, v = srcs[:3]
    widths, lengths = (q.shape[3], v.shape[3]), (q.shape[2], k.shape[2])
    return gpu_attention.cut_of(widths, lengths, q.dtype, "mma" in device.features, _shared(device)) is not None


def _shared(device: Device) -> int:
    return device.limits.get("shared_bytes", SHARED)


def _cut(problem: Problem, device: Device) -> Cut:
    widths, lengths = (problem.width, problem.value_width), (problem.queries, problem.keys)
    cut = gpu_attention.cut_of(widths, lengths, problem.q.dtype, "mma" in device.features, _shared(device))
    assert cut is not None, problem
    return cut


def forward(node: Node, leaves: Collection[Node]) -> Template:
    """`block_attention`: a task is a block of queries of one head."""
    sources, q = Sources(node, leaves), node.srcs[0]
    outputs = tuple([(name, result, 0) for name, result in zip(("out", "logs"), results_of(node), strict=True)])

    def build_(region: Region, device: Device) -> Built:
        problem, buffers, uses = sources.problem(device), *sources.buffers(outputs)
        cut = _cut(problem, device)
        tasks = math.prod(q.shape[:2]) * cut.blocks(problem.queries)
        flops = 2 * score_count(node) * (problem.width + problem.value_width + 4)
        return Built(gpu_attention.forward(problem, cut, buffers), uses, sources.scalars(), tasks, 1, flops)

    return Template(sources.reads, build_)


def backward(node: Node, leaves: Collection[Node]) -> Template:
    """`block_attention_backward`: blocks of queries, then blocks of keys."""
    sources = Sources(node, leaves)
    q, k = node.srcs[:2]
    logs, means, above = (
        in_order(node.srcs[-3], leaves),
        in_order(node.srcs[-2], leaves),
        view_of(node.srcs[-1], leaves),
    )
    views = (("logs", logs), ("means", means), ("g", above))
    inputs = tuple([(name, view.base, view.offset) for name, view in views])
    names = ("in_q", "in_k", "in_v")
    outputs = tuple([(name, result, 0) for name, result in zip(names, results_of(node), strict=True)])

    def build_(region: Region, device: Device) -> Built:
        problem, buffers, uses = sources.problem(device), *sources.buffers(outputs, inputs)
        cut = _cut(problem, device)
        split = math.prod(q.shape[:2]) * cut.blocks(problem.queries)
        tasks = split + math.prod(k.shape[:2]) * cut.blocks(problem.keys)
        flops = 2 * score_count(node) * (5 * problem.width + 4 * problem.value_width)
        kernel = backward_kernel(problem, Array("g", above.strides, q.dtype), cut, buffers)
        return Built(kernel, uses, (*sources.scalars(), split), tasks, 1, flops)

    return Template(tuple(dict.fromkeys((*sources.reads, *[base for _, base, _ in inputs]))), build_)


def _backward_results(srcs: tuple[Node, ...], attrs: tuple) -> tuple[meaning.Shaped, ...]:
    return tuple([((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), x.dtype) for x in srcs[:3]])


for _name, _results in (("block_attention", meaning.results), ("block_attention_backward", _backward_results)):
    PRIMITIVES[_name] = Primitive(_name, "template", None, several(_results), None, _results)
SEVERAL["block_attention"] = meaning.evaluate_attention
SEVERAL["block_attention_backward"] = meaning.evaluate_backward
