"""Attention by kernels of our own, on GPUs, where no library computes it.

`expand` replaces `attention` by `block_attention` and its gradient by `block_attention_backward`, primitives of the
compiler alone. They read their sources as views (`attention.Sources`), 16-bit floats as they are. The gradient needs,
in addition to the saved logarithms, the mean of each query's gradient, which is a sum over rows like any other.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from weft.base.capabilities import Limits
from weft.base.dtypes import float32
from weft.compiler.fusion.region import Region
from weft.compiler.primitives import BLOCK_ATTENTION, BLOCK_ATTENTION_BACKWARD, AttentionGradients
from weft.compiler.templates.attention import Sources, expand_attention, row_major_view, score_count
from weft.compiler.templates.template import ScheduledKernel, Template, view_of
from weft.graph import build
from weft.graph.attributes import Attention
from weft.graph.node import Node
from weft.graph.primitives import make_node, results_of
from weft.kernels.cpu.attention import Array, Problem
from weft.kernels.gpu import attention as gpu_attention
from weft.kernels.gpu.attention import Cut
from weft.kernels.gpu.attention_backward import backward as backward_kernel
from weft.plan.device import Device

# Multiplications for each score of a kernel that computes these gradients: as often as each width.
PRODUCTS = {(0, 1, 2): (5, 4), (0,): (2, 1), (1, 2): (2, 2), (1,): (2, 1), (2,): (1, 1)}


def expand(node: Node, srcs: tuple[Node, ...], device: Device) -> list[Node]:
    """The results of `attention` or `attention_backward`: by blocks where rows fit, else as on other devices."""
    if not device.features.workgroups or not _fits(srcs, device):
        return expand_attention(node, srcs, device)
    if node.op == "attention":
        return results_of(make_node(BLOCK_ATTENTION, srcs, node.attrs))
    *forward, out, logs, g = srcs
    wide = float32 if g.dtype.is_16_bit else g.dtype
    products = build.mul(build.cast(build.permute(out, (0, 2, 1, 3)), wide), build.cast(g, wide))
    means = build.reduce("reduce_sum", products, (3,))
    return _gradients(node.attrs, forward, logs, means, g, device.limits)


def _gradients(form: Attention, forward: list[Node], logs: Node, means: Node, g: Node, limits: Limits) -> list[Node]:
    """The gradients of q, k and v by one kernel, or by as many as it takes where the bindings of a kernel are
    limited."""
    results = forward[:3]

    def fits(*groups: tuple[int, ...]) -> bool:
        most = max([limits.count_total_bindings(results[part].nbytes for part in parts) for parts in groups])
        read = limits.count_total_bindings(source.nbytes for source in sources)
        return read + most <= (limits.storage_buffers or math.inf)

    singles: tuple[tuple[int, ...], ...] = ((0,), (1,), (2,))
    sources, packed = (*forward, logs, means, g), False
    if not fits(*singles):
        sources, packed = (*forward, build.concat([logs, means], 2), g), True
    choices: tuple[tuple[tuple[int, ...], ...], ...] = (((0, 1, 2),), ((0,), (1, 2)))
    groups = next((choice for choice in choices if fits(*choice)), singles)
    calls = [AttentionGradients(*form, parts, packed) for parts in groups]
    return [result for attrs in calls for result in results_of(make_node(BLOCK_ATTENTION_BACKWARD, sources, attrs))]


def _fits(srcs: tuple[Node, ...], device: Device) -> bool:
    q, k, v = srcs[:3]
    widths, lengths = (q.shape[3], v.shape[3]), (q.shape[2], k.shape[2])
    return (
        gpu_attention.cut_of(widths, lengths, q.dtype, next(iter(device.features.matrix_units), None), device.limits)
        is not None
    )


def _cut(problem: Problem, device: Device) -> Cut:
    widths, lengths = (problem.width, problem.value_width), (problem.queries, problem.keys)
    cut = gpu_attention.cut_of(
        widths, lengths, problem.q.dtype, next(iter(device.features.matrix_units), None), device.limits
    )
    assert cut is not None, problem
    return cut


def forward(node: Node, leaves: Collection[Node]) -> Template:
    """`block_attention`: a task is a block of queries of one head."""
    sources, q = Sources(node, leaves), node.srcs[0]
    outputs = tuple([(name, result, 0) for name, result in zip(("out", "logs"), results_of(node), strict=True)])

    def build_(region: Region, device: Device) -> ScheduledKernel:
        problem, buffers, uses = sources.problem(device), *sources.buffers(outputs)
        cut = _cut(problem, device)
        tasks = math.prod(q.shape[:2]) * cut.blocks(problem.queries)
        flops = 2 * score_count(node) * (problem.width + problem.value_width + 4)
        return ScheduledKernel(gpu_attention.forward(problem, cut, buffers), uses, sources.scalars(), tasks, 1, flops)

    return Template(sources.reads, build_)


def backward(node: Node, leaves: Collection[Node]) -> Template:
    """`block_attention_backward`: blocks of queries, then blocks of keys, or one of the two."""
    sources = Sources(node, leaves)
    (q, k), parts = node.srcs[:2], node.attrs.parts
    saved = ("logs",) if node.attrs.packed else ("logs", "means")
    above = view_of(node.srcs[-1], leaves)
    values = node.srcs[-1 - len(saved) : -1]
    views = [(name, row_major_view(value, leaves)) for name, value in zip(saved, values, strict=True)]
    inputs = tuple([(name, view.base, view.offset) for name, view in (*views, ("g", above))])
    names = [("in_q", "in_k", "in_v")[part] for part in parts]
    outputs = tuple([(name, result, 0) for name, result in zip(names, results_of(node), strict=True)])

    def build_(region: Region, device: Device) -> ScheduledKernel:
        problem, buffers, uses = sources.problem(device), *sources.buffers(outputs, inputs)
        cut = _cut(problem, device)
        split = math.prod(q.shape[:2]) * cut.blocks(problem.queries) if 0 in parts else 0
        tasks = split + (math.prod(k.shape[:2]) * cut.blocks(problem.keys) if parts != (0,) else 0)
        products = PRODUCTS[parts]
        flops = 2 * score_count(node) * (products[0] * problem.width + products[1] * problem.value_width)
        more = (split,) if 0 in parts and len(parts) > 1 else ()
        kernel = backward_kernel(problem, Array("g", above.strides, q.dtype), cut, buffers, node.attrs.packed)
        return ScheduledKernel(kernel, uses, (*sources.scalars(), *more), tasks, 1, flops)

    return Template(tuple(dict.fromkeys((*sources.reads, *[base for _, base, _ in inputs]))), build_)
