"""Calls of cuDNN as plain data, and their execution plans on one GPU.

A `Form` says what is computed: the function, its numbers and how its operands lie in memory. `Graphs.choose` asks cuDNN
which engine computes it (the first one that is deterministic and exact enough: no search by measuring, so every run
takes the same) and answers with a text; `Graphs.ready` builds that engine's plan, once. Form and text together are the
config of a plan's step, so a stored plan repeats the same kernel.

Operands are in cuDNN's order of axes: images [N, C, *space], filters [K, C / groups, *kernel], attention
[batch, heads, length, width]. Nothing of cuDNN is imported before `Graphs` is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.dtypes import DType, bfloat16, float16, float32

ALIGN = 16  # bytes: what cuDNN's fast kernels expect of addresses


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor in memory: extents and distances between neighbours along each axis, in elements."""

    dtype: DType
    dims: tuple[int, ...]
    strides: tuple[int, ...]


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


class Graphs:
    """cuDNN on the current GPU, with all its work on `stream`."""

    def __init__(self, stream: int):
        import cudnn

        self.cudnn: Any = cudnn
        self.version = cudnn.backend_version_string()
        self.handle = cudnn.create_handle()
        cudnn.set_stream(self.handle, stream)
        self._types = {
            float32: cudnn.data_type.FLOAT, float16: cudnn.data_type.HALF, bfloat16: cudnn.data_type.BFLOAT16,
        }  # fmt: skip
        self._modes = (cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK)
        self._declined = (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError, NotImplementedError)
        self._built: dict[tuple[Form, str], Any] = {}
        self._supported: dict[Form, bool] = {}
        self._chosen: dict[Form, tuple[str, int] | None] = {}

    def supports(self, form: Form) -> bool:
        """Whether cuDNN has an engine for `form`. Engines for attention are compiled when they are chosen, which takes
        half a second, so here it is enough that one is proposed."""
        if not form.function.startswith("attention"):
            return self.choose(form) is not None
        if form not in self._supported:
            self._supported[form] = any(self._planned(form, mode) is not None for mode in self._modes)
        return self._supported[form]

    def choose(self, form: Form) -> tuple[str, int] | None:
        """(engine as text, bytes of workspace) of the first engine that computes `form`; None where there is none."""
        if form not in self._chosen:
            found = (self._first(form, mode) for mode in self._modes)
            self._chosen[form] = next((one for one in found if one is not None), None)
        return self._chosen[form]

    def _planned(self, form: Form, mode: Any) -> Any:
        """The graph of `form` with the engines that cuDNN proposes for it; None where there are none."""
        graph = self._graph(form)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([mode])
        except self._declined:
            return None
        graph.deselect_numeric_notes(self._barred(form))
        return graph

    def _first(self, form: Form, mode: Any) -> tuple[str, int] | None:
        graph = self._planned(form, mode)
        for number, entry in enumerate(graph.plans if graph else ()):
            if entry.cpp_index is None:
                continue  # an engine that cuDNN's Python package compiles itself
            try:
                graph.build_plan_at_index(number)
            except self._declined:
                continue
            engine, knobs = graph.get_engine_and_knobs_at_index(number)
            choice = " ".join(
                [str(engine), *[f"{int(knob)}={value}" for knob, value in sorted(knobs.items(), key=str)]]
            )
            self._built[form, choice] = graph
            return choice, graph.get_workspace_size()
        return None

    def _barred(self, form: Form) -> list[Any]:
        """Notes of engines that are not taken: other bits from run to run, or fewer than the dtype has."""
        note = self.cudnn.numerical_note
        barred = [note.NONDETERMINISTIC, note.REDUCED_PRECISION_REDUCTION]
        barred += [note.WINOGRAD_TILE_6x6, note.WINOGRAD_TILE_13x13]
        if form.operands[0].dtype is float32 and form.exact:
            barred += [note.TENSOR_CORE, note.DOWN_CONVERT_INPUTS]
        return barred

    def ready(self, form: Form, choice: str) -> Callable[[Sequence[int]], None]:
        """What enqueues `form` by the engine `choice`, given addresses: operands in order, then the workspace."""
        graph = self._built.get((form, choice)) or self._rebuilt(form, choice)
        execute, handle = graph.execute, self.handle
        count = len(form.operands)
        uids = tuple(range(1, count + 1))

        def run(addresses: Sequence[int]) -> None:
            execute(dict(zip(uids, addresses, strict=False)), addresses[count] if len(addresses) > count else 0, handle)

        return run

    def _rebuilt(self, form: Form, choice: str) -> Any:
        engine, *knobs = choice.split()
        pairs = [tuple(map(int, knob.split("="))) for knob in knobs]
        graph = self._graph(form)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plan(int(engine), {self.cudnn.knob_type(knob): value for knob, value in pairs})
        graph.build_plan_at_index(graph.get_execution_plan_count() - 1)
        self._built[form, choice] = graph
        return graph

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
