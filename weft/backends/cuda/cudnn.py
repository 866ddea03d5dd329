"""Convolution and attention by NVIDIA's cuDNN, through its own Python package (nvidia-cudnn-frontend).

`Cudnn` is the library on one GPU. For example, the compiler has a `conv` and calls `offer`; cuDNN has an engine for
such shapes (`Graphs.choose`), so a `library` node replaces it, over the weights in cuDNN's order. When the layout of
the sources is known, `configure` returns the config: the call as plain data and the engine as text. `prepare` returns
from it what enqueues the call. `backends.cuda.cudnn_graphs` knows cuDNN; this module has what Weft needs of it.

Images are [N, *space, C] in memory as they are inside Weft, so nothing is transposed between layers. Only weights are
put in another order, [K, *kernel, C / groups], the only one that cuDNN's fast kernels read. Padding that differs on the
two sides of an axis becomes zeros in memory. Attention reads heads wherever they lie. Left to other kernels: float64,
float32 attention, masks and dropout, and convolutions whose channels do not mix.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.backends.cuda.cudnn_graphs import ALIGNMENT_BYTES, Form, Graphs, Operand
from weft.base.dtypes import bfloat16, float16, float32
from weft.base.errors import GraphError, problem
from weft.base.state import SETTINGS
from weft.compiler.fusion.index_map import Strided, row_major
from weft.compiler.passes.library_calls import call, call_several
from weft.graph.attributes import Attention, Geometry
from weft.graph.build import pad, permute, slice_
from weft.graph.evaluations import conv_input_values, conv_values, conv_weight_values
from weft.graph.node import Node
from weft.graph.primitives import make_node
from weft.kernels.numerics import MAX_DEPTHWISE_FILTERS
from weft.plan.plan import Config

CONVOLUTIONS = ("conv", "conv_input", "conv_weight")
HEADS = (0, 2, 1, 3)  # [batch, length, heads, width] as [batch, heads, length, width]


@dataclass(frozen=True, slots=True)
class Found:
    """Which cuDNN there is; `path` names it."""

    path: str


@functools.cache
def find() -> Found | None:
    """cuDNN, where it and its package can be loaded."""
    try:
        return Found(f"cuDNN {importlib.import_module('cudnn').backend_version_string()}")
    except Exception:  # the package raises errors of its own where the library is missing
        return None


def reason() -> str:
    """Why `find` returned None, for `weft doctor`."""
    return (
        "nvidia-cudnn-frontend or cuDNN is not there, so convolution and attention on CUDA run on Weft's own kernels. "
        "Fix: pip install 'weft[cuda]'."
    )


def load(backend: Any) -> Cudnn:
    """The library on the GPU of a `CudaBackend`, which is current."""
    return Cudnn(Graphs(int(backend.driver.stream), backend.allocate, backend.driver.activate))


class Cudnn:
    """cuDNN on one GPU; `graphs` (a `Graphs`) are its execution plans."""

    name = "cudnn"

    def __init__(self, graphs: Any):
        self.graphs = graphs
        self.version: str = graphs.version
        self.failures: tuple[type[Exception], ...] = graphs.failures

    # --- what it computes --------------------------------------------------------------------------------------------

    def offer(self, node: Node, srcs: tuple[Node, ...]) -> Node | Sequence[Node] | None:
        if node.op in CONVOLUTIONS:
            return self._convolution(node, srcs)
        if node.op in ("attention", "attention_backward"):
            return self._attention(node, srcs)
        return None

    def _convolution(self, node: Node, srcs: tuple[Node, ...]) -> Node | None:
        a, b = srcs
        if a.dtype not in (float32, float16, bfloat16) or not (a.size and b.size):
            return None
        space, kernel, channels, filters, (strides, lows, highs, dilations, groups) = _convolution_geometry(node)
        depthwise = groups > 1 and channels == groups and filters // groups <= MAX_DEPTHWISE_FILTERS
        if depthwise or min(*lows, *highs) < 0:
            return None
        extra = [_uneven_padding(*axis) for axis in zip(space, kernel, strides, lows, highs, dilations, strict=True)]
        before, behind = (0, *[low for low, _ in extra], 0), (0, *[high for _, high in extra], 0)
        zeros = tuple([low - more for low, (more, _) in zip(lows, extra, strict=True)])
        if node.op == "conv":
            sources, shape = (pad(a, before, behind), _filters_first(b)), node.shape
        elif node.op == "conv_weight":
            sources, shape = (pad(a, before, behind), b), (filters, *kernel, channels // groups)
        else:
            wide = tuple([low + extent + high for extent, (low, high) in zip(space, extra, strict=True)])
            sources, shape = (a, _filters_first(b)), (node.shape[0], *wide, channels)
        exact = SETTINGS.float32_matmul_precision == "highest"
        if node.op == "conv_input" and a.dtype is float32 and exact:
            return None  # its forward convolutions are faster: 21 ms instead of 28 in a step of ResNet-18 on an H200
        made = call(self.name, node.op, sources, (exact, *zeros, *zeros, *strides, *dilations), shape, node.dtype)
        if not self._supports(made.srcs[0]):
            return None
        if node.op == "conv":
            return made
        if node.op == "conv_weight":
            return permute(made, (*range(1, len(shape)), 0))
        return slice_(made, before, tuple([start + extent for start, extent in zip(before, node.shape, strict=True)]))

    def _attention(self, node: Node, srcs: tuple[Node, ...]) -> Sequence[Node] | None:
        form, (q, k, _) = node.attrs, srcs[:3]
        causal = form.diagonal is not None
        # Its causal mask ends at the last key. Queries that see no key are not its own.
        other = causal and (form.diagonal != k.shape[2] - q.shape[2] or q.shape[2] > k.shape[2])
        if form.masked or form.dropout or other or q.dtype not in (float16, bfloat16):
            return None
        results = node.primitive.results
        assert results is not None, node
        made = call_several(self.name, node.op, srcs, (True, form.scale, causal), results(srcs, form))
        return made if self._supports(made[0].srcs[0]) else None

    def _supports(self, call: Node) -> bool:
        """Whether there is an engine for a call whose sources are row-major."""
        views = [Strided(source, 0, row_major(source.shape)) for source in call.srcs]
        return self.graphs.choose(_form(call, views, [row_major(shape) for shape, _ in call.attrs.results])) is not None

    # --- how it computes ---------------------------------------------------------------------------------------------

    def can_read(self, call: Node, number: int, view: Strided) -> bool:
        return _reaches(call, call.srcs[number].shape, view)

    def can_write(self, call: Node, number: int, view: Strided) -> bool:
        return _reaches(call, call.attrs.results[number][0], view)

    def configure(
        self, call: Node, sources: Sequence[Strided], results: Sequence[tuple[int, ...]]
    ) -> tuple[Config, int, int]:
        form = _form(call, sources, results)
        chosen = self.graphs.choose(form)
        if chosen is None:
            raise problem(GraphError, "cuDNN", f"{form}", "a call that it has an engine for", "WEFT_NO_LIBRARIES=1")
        engine, workspace = chosen
        return (engine, *form.config), workspace, form.flops

    def prepare(self, config: Config) -> Callable[[Sequence[int]], None]:
        engine, *form = config
        return self.graphs.prepare(Form.of(form), engine)

    def run_reference(self, call: Node, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        _, function, (_, *numbers), results = call.attrs
        if function in ("attention", "attention_backward"):
            scale, causal = numbers
            diagonal = call.srcs[1].shape[2] - call.srcs[0].shape[2] if causal else None
            node = make_node(function, call.srcs, Attention(scale, diagonal, False, 0.0, 0))
            assert node.primitive.evaluation is not None, node
            return node.primitive.evaluation(node, arrays, node.dtype.numpy)
        (shape, _), (a, b), rank = results[0], arrays, len(results[0][0]) - 2
        lows, highs, strides, dilations = (tuple(numbers[k * rank : (k + 1) * rank]) for k in range(4))
        how = Geometry(strides, lows, highs, dilations)
        if function == "conv_weight":
            groups = a.shape[-1] // shape[-1]
            return (np.moveaxis(conv_weight_values(a, b, shape[1:-1], how._replace(groups=groups), a.dtype), -1, 0),)
        w = np.moveaxis(b, 0, -1)  # [*kernel, C / groups, K]
        if function == "conv":
            how = how._replace(groups=a.shape[-1] // w.shape[-2])
            return (conv_values(a, w, shape[1:-1], how, a.dtype),)
        how = how._replace(groups=shape[-1] // w.shape[-2])
        return (conv_input_values(a, w, shape[1:-1], how, a.dtype),)


def _reaches(call: Node, shape: tuple[int, ...], view: Strided) -> bool:
    """Whether cuDNN's kernels for `call` take an operand of this shape and layout."""
    size = view.base.dtype.itemsize
    if view.offset * size % ALIGNMENT_BYTES:
        return False
    if call.attrs.function in CONVOLUTIONS or len(shape) != 4:
        return _normalize_strides(shape, view.strides) == row_major(shape)
    *outer, last = zip(shape, view.strides, strict=True)
    return last[1] == 1 and all(
        extent == 1 or (step > 0 and step * size % ALIGNMENT_BYTES == 0) for extent, step in outer
    )


def _convolution_geometry(node: Node) -> tuple:
    """(spatial extents of the input, kernel, channels, filters, geometry) of a convolution or one of its gradients."""
    a, b = node.srcs
    if node.op == "conv":
        return a.shape[1:-1], b.shape[:-2], a.shape[-1], b.shape[-1], node.attrs
    if node.op == "conv_weight":
        return a.shape[1:-1], node.attrs.kernel, a.shape[-1], b.shape[-1], node.attrs.geometry
    return node.attrs.space, b.shape[:-2], node.shape[-1], a.shape[-1], node.attrs.geometry


def _uneven_padding(extent: int, kernel: int, stride: int, low: int, high: int, dilation: int) -> tuple[int, int]:
    """Zeros to put before and behind an axis so that as many as are left, the same on both sides, do the rest."""

    def windows(zeros: int) -> int:
        return (extent + zeros - dilation * (kernel - 1) - 1) // stride

    if windows(2 * low) == windows(low + high):
        return 0, 0
    return low - min(low, high), high - min(low, high)


def _filters_first(w: Node) -> Node:
    """[*kernel, C / groups, K] as [K, *kernel, C / groups]."""
    rank = len(w.shape)
    return permute(w, (rank - 1, *range(rank - 1)))


# --- library nodes as forms ------------------------------------------------------------------------------------------


def _form(call: Node, sources: Sequence[Strided], results: Sequence[tuple[int, ...]]) -> Form:
    """The call of cuDNN, given the memory layout of the sources and the strides of the results."""
    _, function, (exact, *numbers), made = call.attrs
    lie = [(source.shape, source.dtype, view.strides) for source, view in zip(call.srcs, sources, strict=True)]
    lie += [(shape, dtype, steps) for (shape, dtype), steps in zip(made, results, strict=True)]
    shapes = [(shape, dtype, _normalize_strides(shape, steps)) for shape, dtype, steps in lie]
    if function in CONVOLUTIONS:
        flat = len(shapes[0][0]) == 3  # cuDNN has no convolution over one axis: over two, the first of extent 1
        if flat:
            numbers = [n for k, number in enumerate(numbers) for n in (0 if k < 2 else 1, number)]
        operands = [Operand(dtype, _image(shape, flat, 1), _image(steps, flat, None)) for shape, dtype, steps in shapes]
        return Form(function, exact, tuple(numbers), tuple(operands))
    merged = {"attention": (3,), "attention_backward": (3, 6, 7, 8)}[function]
    operands = []
    for number, (shape, dtype, steps) in enumerate(shapes):
        if len(shape) == 3:
            shape, steps = (*shape, 1), (*steps, 1)
        order = HEADS if number in merged else range(4)
        operands.append(Operand(dtype, tuple([shape[k] for k in order]), tuple([steps[k] for k in order])))
    return Form(function, exact, tuple(numbers), tuple(operands))


def _normalize_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides with those of axes of extent 1, which mean nothing, as in row-major memory."""
    return tuple([own if n == 1 else step for n, step, own in zip(shape, strides, row_major(shape), strict=True)])


def _image(axes: tuple[int, ...], flat: bool, between: int | None) -> tuple[int, ...]:
    """Extents or distances of [N, *space, C] as [N, C, *space]; `between` is that of the axis put in before a single
    one, by default the first axis's own."""
    first, *space, last = axes
    more = [first if between is None else between] if flat else []
    return (first, last, *more, *space)
