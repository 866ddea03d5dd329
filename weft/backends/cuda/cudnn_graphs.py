"""Calls of cuDNN as plain data, and their execution plans on one GPU.

A `Form` says what is computed: the function, its numbers and how its operands lie in memory. `Graphs.choose` asks cuDNN
which engine computes it (the first one that is deterministic and exact enough: no search by measuring, so every run
takes the same) and answers with a text; `Graphs.ready` builds that engine's plan, once. Form and text together are the
config of a plan's step, so a stored plan repeats the same kernel.

Operands are in cuDNN's order of axes: images [N, C, *space], filters [K, C / groups, *kernel], attention
[batch, heads, length, width]. Nothing of cuDNN is imported before `Graphs` is made.
"""

from __future__ import annotations

import atexit
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakMethod, WeakSet, WeakValueDictionary

from weft.backends.cuda.driver import call
from weft.base.dtypes import DType, bfloat16, float16, float32
from weft.base.errors import DeviceError, problem
from weft.base.locks import new_lock
from weft.plan.device import Slab

ALIGNMENT_BYTES = 16  # bytes: what cuDNN's kernels expect of addresses
CHANNEL_MULTIPLE = 16  # that make whole vectors
RESULTS = {"conv": 1, "conv_input": 1, "conv_weight": 1, "attention": 2, "attention_backward": 3}
MAX_RECENT_PLANS = 64  # execution plans that are kept although they do not run yet


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor in memory: extents and strides of each axis, in elements."""

    dtype: DType
    dims: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """From the first element to the last."""
        steps = zip(self.dims, self.strides, strict=True)
        return (1 + sum((extent - 1) * step for extent, step in steps)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Form:
    """One call. `exact` keeps float32 products in float32. `operands` are sources, then results.

    Numbers of a convolution: zeros before, zeros behind, strides and dilations, each for all spatial axes.
    Of attention: the scale, and whether it is causal, with the last query at the last key.
    """

    function: str
    exact: bool
    numbers: tuple[int | float, ...]
    operands: tuple[Operand, ...]

    @property
    def config(self) -> tuple:
        """The form as plain data."""
        packed = [(operand.dtype, *operand.dims, *operand.strides) for operand in self.operands]
        return (self.function, self.exact, self.numbers, *packed)

    @staticmethod
    def of(config: Sequence) -> Form:
        """The form that `config` is made of."""
        function, exact, numbers, *packed = config
        operands = []
        for dtype, *extents in packed:
            rank = len(extents) // 2
            operands.append(Operand(dtype, tuple(extents[:rank]), tuple(extents[rank:])))
        return Form(function, exact, tuple(numbers), tuple(operands))

    @property
    def flops(self) -> int:
        """Multiplications and additions, where causal attention counts the scores that it needs."""
        a, b = self.operands[0].dims, self.operands[1].dims
        if self.function in ("conv", "conv_input"):
            pixels = self.operands[2 if self.function == "conv" else 0].dims
            return 2 * math.prod(pixels) * math.prod(b[1:])
        if self.function == "conv_weight":
            return 2 * math.prod(b) * math.prod(self.operands[2].dims[1:])
        scores = math.prod(a[:3]) * b[2] // (2 if self.numbers[1] else 1)
        width, value_width = a[3], self.operands[2].dims[3]
        return 2 * scores * (width + value_width if self.function == "attention" else 3 * width + 2 * value_width)


class Graphs:
    """cuDNN on the current GPU, with all its work on `stream` and its memory from `allocate`; `activate` makes the GPU
    current again, in whatever thread a plan is made. A handle of cuDNN serves one thread at a time: `lock`."""

    def __init__(self, stream: int, allocate: Callable[[int], Slab], activate: Callable[[], None] = lambda: None):
        import cudnn

        self.cudnn: Any = cudnn
        self.version = cudnn.backend_version_string()
        self.handle, self.lock = cudnn.create_handle(), new_lock()
        self.stream, self.allocate, self.activate = stream, allocate, activate
        cudnn.set_stream(self.handle, stream)
        self._types = {
            float32: cudnn.data_type.FLOAT, float16: cudnn.data_type.HALF, bfloat16: cudnn.data_type.BFLOAT16,
        }  # fmt: skip
        self.failures = (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError, NotImplementedError)
        self._built: WeakValueDictionary[tuple[Form, str], Any] = WeakValueDictionary()  # plans that somebody runs
        self._recent: deque[Any] = deque(maxlen=MAX_RECENT_PLANS)  # and those that are about to run
        self._chosen: dict[Form, tuple[str, int] | None] = {}
        self._calls: WeakSet[_Call] = WeakSet()
        atexit.register(_call_method, WeakMethod(self.drop_graphs))

    def drop_graphs(self) -> None:
        """At the end of the process: what is alive after the package's own end it reports as leaked, in fifty lines."""
        with self.lock:
            self._recent.clear()
            for one in list(self._calls):
                one.graph = None

    def choose(self, form: Form) -> tuple[str, int] | None:
        """(engine as text, bytes of workspace) of the first engine that computes `form`; None where there is none."""
        with self.lock:
            if form not in self._chosen:
                self.activate()
                found = (self._first(form, mode) for mode in self._modes(form))
                self._chosen[form] = next((one for one in found if one is not None), None)
            return self._chosen[form]

    def _modes(self, form: Form) -> tuple:
        """The heuristics to try, in order. B is the better one for float32 alone, and forward alone (on an H200, in
        ResNet-18: 7.9 ms of convolutions instead of 10.2, but 11.4 of weight gradients instead of 8.6). It is asked
        where channels fill whole vectors, as those do."""
        modes, (image, filters, *_) = self.cudnn.heur_mode, form.operands
        whole = all(extent % CHANNEL_MULTIPLE == 0 for extent in (image.dims[1], *filters.dims[:2]))
        better = form.function == "conv" and image.dtype is float32 and whole
        return (modes.B, modes.A, modes.FALLBACK) if better else (modes.A, modes.FALLBACK)

    def _build_graph(self, form: Form, mode: Any) -> Any:
        """The graph of `form` with the engines that cuDNN proposes for it; None where there are none."""
        graph = self._graph(form)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([mode])
        except self.failures:
            return None
        graph.deselect_numeric_notes(self._excluded_notes(form))
        return graph

    def _first(self, form: Form, mode: Any) -> tuple[str, int] | None:
        graph = self._build_graph(form, mode)
        for number, entry in enumerate(graph.plans if graph else ()):
            if entry.cpp_index is None:
                continue  # an engine that cuDNN's Python package compiles itself
            try:
                graph.build_plan_at_index(number)
            except self.failures:
                continue
            choice = _name(graph, number)
            self._keep(form, choice, graph)
            return choice, graph.get_workspace_size()
        return None

    def _excluded_notes(self, form: Form) -> list[Any]:
        """Notes of engines that are not taken: other bits from run to run, or fewer than the dtype has."""
        note = self.cudnn.numerical_note
        barred = [note.NONDETERMINISTIC, note.REDUCED_PRECISION_REDUCTION]
        barred += [note.WINOGRAD_TILE_6x6, note.WINOGRAD_TILE_13x13]
        if form.function == "conv":
            barred.append(note.FFT)  # it is ranked first, but slower and larger than the next
        if form.operands[0].dtype is float32 and form.exact:
            barred += [note.TENSOR_CORE, note.DOWN_CONVERT_INPUTS]
        return barred

    def prepare(self, form: Form, choice: str) -> Callable[[Sequence[int]], None]:
        """What enqueues `form` by the engine `choice`, given addresses: operands in order, then the workspace."""
        with self.lock:
            made = _Call(self, form, self._built.get((form, choice)) or self._rebuild(form, choice))
            self._calls.add(made)
            return made

    def _rebuild(self, form: Form, choice: str) -> Any:
        """The engine that an earlier process took: by its number and knobs, or found among those proposed now, since
        cuDNN does not accept every knob that it reports."""
        self.activate()
        engine, *knobs = choice.split()
        pairs = [tuple(map(int, knob.split("="))) for knob in knobs]
        graph = self._graph(form)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plan(int(engine), {self.cudnn.knob_type(knob): value for knob, value in pairs})
            graph.build_plan_at_index(graph.get_execution_plan_count() - 1)
        except self.failures:
            graph = self._find_again(form, choice)
        self._keep(form, choice, graph)
        return graph

    def _find_again(self, form: Form, choice: str) -> Any:
        for mode in self._modes(form):
            graph = self._build_graph(form, mode)
            for number, entry in enumerate(graph.plans if graph else ()):
                if entry.cpp_index is not None and _name(graph, number) == choice:
                    graph.build_plan_at_index(number)
                    return graph
        given = f"a plan with engine {choice} for {form.function}, which this cuDNN does not offer"
        raise problem(DeviceError, "cuDNN", given, "a plan made here", "clear the cache: weft cache clear")

    def _keep(self, form: Form, choice: str, graph: Any) -> None:
        self._built[form, choice] = graph
        self._recent.append(graph)

    # --- forms as graphs of cuDNN ------------------------------------------------------------------------------------

    def _graph(self, form: Form) -> Any:
        kind = self._types[form.operands[0].dtype]
        wide = self.cudnn.data_type.FLOAT
        graph = self.cudnn.pygraph(
            io_data_type=kind, intermediate_data_type=wide, compute_data_type=wide, handle=self.handle
        )
        build = {"attention": self._attention, "attention_backward": self._attention_backward}.get(form.function)
        results = build(graph, form) if build else self._convolution(graph, form)
        first = len(form.operands) - len(results)
        for number, result in enumerate(results, first):
            operand = form.operands[number]
            result.set_output(True).set_dim(list(operand.dims)).set_stride(list(operand.strides))
            result.set_data_type(self._types[operand.dtype]).set_uid(number + 1)
        return graph

    def _sources(self, graph: Any, form: Form, count: int) -> list[Any]:
        return [
            graph.tensor(
                dim=list(operand.dims), stride=list(operand.strides), data_type=self._types[operand.dtype], uid=number
            )
            for number, operand in enumerate(form.operands[:count], 1)
        ]

    def _convolution(self, graph: Any, form: Form) -> list[Any]:
        rank = len(form.operands[0].dims) - 2
        parts = [[int(n) for n in form.numbers[k * rank : (k + 1) * rank]] for k in range(4)]
        how = dict(zip(("pre_padding", "post_padding", "stride", "dilation"), parts, strict=True))
        a, b = self._sources(graph, form, 2)
        if form.function == "conv":
            return [graph.conv_fprop(image=a, weight=b, **how)]
        if form.function == "conv_input":
            return [graph.conv_dgrad(loss=a, filter=b, **how)]
        return [graph.conv_wgrad(image=a, loss=b, **how)]

    def _masking(self, form: Form) -> dict[str, Any]:
        scale, causal = form.numbers
        if not causal:
            return {"attn_scale": scale}
        queries, keys = form.operands[0].dims[2], form.operands[1].dims[2]
        return {"attn_scale": scale, "use_causal_mask" if queries == keys else "use_causal_mask_bottom_right": True}

    def _attention(self, graph: Any, form: Form) -> list[Any]:
        q, k, v = self._sources(graph, form, 3)
        out, logs = graph.sdpa(q=q, k=k, v=v, generate_stats=True, **self._masking(form))
        return [out, logs]

    def _attention_backward(self, graph: Any, form: Form) -> list[Any]:
        q, k, v, out, logs, g = self._sources(graph, form, 6)
        return list(
            graph.sdpa_backward(
                q=q, k=k, v=v, o=out, dO=g, stats=logs, use_deterministic_algorithm=True, **self._masking(form)
            )
        )


def _name(graph: Any, number: int) -> str:
    """An engine and its knobs as text."""
    engine, knobs = graph.get_engine_and_knobs_at_index(number)
    return " ".join([str(engine), *[f"{int(knob)}={value}" for knob, value in sorted(knobs.items(), key=str)]])


def _call_method(method: WeakMethod[Callable[[], None]]) -> None:
    """Call a method, if its object is still there."""
    found = method()
    if found is not None:
        found()


class _Call:
    """What enqueues a call. Operands at odd addresses (parts of what a user holds, parameters that lie one after the
    other) are read and written in memory that is kept for the next time, and copied from and to where they lie."""

    def __init__(self, graphs: Graphs, form: Form, graph: Any):
        self.graphs, self.form, self.graph = graphs, form, graph
        self.count = len(form.operands)
        self.sources = self.count - RESULTS[form.function]
        self.uids = tuple(range(1, self.count + 1))
        self.copies: dict[int, Slab] = {}  # by operand

    def __call__(self, addresses: Sequence[int]) -> None:
        bits = 0
        for address in addresses:
            bits |= address
        aligned = (
            [self._align_operand(number, address) for number, address in enumerate(addresses)]
            if bits % ALIGNMENT_BYTES
            else addresses
        )
        workspace = aligned[self.count] if len(aligned) > self.count else 0
        with self.graphs.lock:
            self.graph.execute(dict(zip(self.uids, aligned, strict=False)), workspace, self.graphs.handle)
        for number in range(self.sources, self.count):
            if aligned[number] != addresses[number]:
                self._copy(addresses[number], aligned[number], number)

    def _align_operand(self, number: int, address: int) -> int:
        """Where an operand is read or written: aligned memory that has its bytes, those between its elements too."""
        if address % ALIGNMENT_BYTES == 0 or number >= self.count:
            return address
        if number not in self.copies:
            self.copies[number] = self.graphs.allocate(self.form.operands[number].nbytes)
        self._copy(self.copies[number].pointer, address, number)
        return self.copies[number].pointer

    def _copy(self, target: int, source: int, number: int) -> None:
        call("cuMemcpyDtoDAsync", target, source, self.form.operands[number].nbytes, self.graphs.stream)
