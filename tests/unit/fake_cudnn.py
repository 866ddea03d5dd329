"""cuDNN as its manual describes it, in NumPy over host memory: what `Graphs` of `cuda/cudnn_graphs.py` is on a GPU.

`FakePackage` is the Python package instead, with engines that compute nothing.
"""

from __future__ import annotations

import ctypes
import enum
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from weft.backends.cuda.cudnn_graphs import ALIGNMENT_BYTES, Form, Operand
from weft.base.dtypes import float32


def window(operand: Operand, address: int) -> np.ndarray:
    """The operand's elements, which can be written to."""
    assert address % ALIGNMENT_BYTES == 0, "cuDNN's kernels expect aligned operands"
    last = sum((extent - 1) * step for extent, step in zip(operand.dims, operand.strides, strict=True))
    nbytes = (last + 1) * operand.dtype.itemsize
    flat = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8).view(operand.dtype.numpy)
    steps = [step * operand.dtype.itemsize for step in operand.strides]
    return np.lib.stride_tricks.as_strided(flat, operand.dims, steps)


class FakeGraphs:
    """`calls` are the forms that ran."""

    version = "fake 1"
    failures = ()

    def __init__(self, refused: Callable[[Form], bool] = lambda form: False):
        self.refused = refused
        self.calls: list[Form] = []
        self.prepared: list[tuple[Form, str]] = []

    def choose(self, form: Form) -> tuple[str, int] | None:
        return None if self.refused(form) or not self._takes(form) else (f"engine of {form.function}", 128)

    def _takes(self, form: Form) -> bool:
        if not form.function.startswith("attention"):  # packed [N, *space, C], filters too: their strides are not read
            return len(form.operands[0].dims) in (4, 5) and all(map(_packed, form.operands))
        wide = {operand.dtype is float32 for operand in form.operands if operand.dims[-1] > 1}
        widths = {operand.dims[-1] for operand in form.operands} - {1}
        return wide == {False} and all(width % 8 == 0 and width <= 256 for width in widths)

    def prepare(self, form: Form, choice: str) -> Callable[[Sequence[int]], None]:
        assert choice == f"engine of {form.function}"
        self.prepared.append((form, choice))

        def run(addresses: Sequence[int]) -> None:
            assert len(addresses) == len(form.operands) + 1
            self.calls.append(form)
            arrays = [window(operand, address) for operand, address in zip(form.operands, addresses, strict=False)]
            wide = [array.astype(np.float64) for array in arrays]
            results = attention(form, wide) if form.function.startswith("attention") else convolution(form, wide)
            for array, result in zip(arrays[-len(results) :], results, strict=True):
                array[...] = result

        return run


def _packed(operand: Operand) -> bool:
    _, c, *space = operand.dims
    steps = np.cumprod([1, c, *reversed(space)])
    return operand.strides == (steps[-1], 1, *reversed(steps[1:-1]))


def convolution(form: Form, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """By its definition: a product for each tap."""
    rank = arrays[0].ndim - 2
    before, behind, strides, dilations = (form.numbers[k * rank : (k + 1) * rank] for k in range(4))
    assert before == behind
    image = np.zeros_like(arrays[2]) if form.function == "conv_input" else arrays[0]
    out = {"conv": arrays[2], "conv_input": arrays[0], "conv_weight": arrays[1]}[form.function]
    filters = arrays[2] if form.function == "conv_weight" else arrays[1]
    padded = np.pad(image, [(0, 0), (0, 0), *[(int(zeros),) * 2 for zeros in before]])
    groups = image.shape[1] // filters.shape[1]
    result = np.zeros_like(arrays[2] if form.function != "conv_input" else padded)
    for group, *tap in itertools.product(range(groups), *map(range, filters.shape[2:])):
        inside, outside = (
            slice(group * n // groups, (group + 1) * n // groups) for n in (image.shape[1], out.shape[1])
        )
        rows = zip(tap, strides, dilations, out.shape[2:], strict=True)
        seen = (slice(None), inside, *[slice(t * d, t * d + s * (n - 1) + 1, s) for t, s, d, n in rows])
        at = (outside, slice(None), *tap)
        if form.function == "conv":
            result[:, outside] += np.einsum("nc...,kc->nk...", padded[seen], filters[at])
        elif form.function == "conv_input":
            result[seen] += np.einsum("nk...,kc->nc...", out[:, outside], filters[at])
        else:
            axes = [0, *range(2, rank + 2)]
            result[at] = np.tensordot(out[:, outside], padded[seen], (axes, axes))
    crop = [slice(int(zeros), int(zeros) + n) for zeros, n in zip(before, image.shape[2:], strict=True)]
    return [result[(slice(None), slice(None), *crop)] if form.function == "conv_input" else result]


def attention(form: Form, arrays: list[np.ndarray]) -> list[np.ndarray]:
    scale, causal = form.numbers
    q, k, v = arrays[:3]
    group = q.shape[1] // k.shape[1]
    keys, values = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = scale * q @ keys.swapaxes(-1, -2)
    if causal:
        scores = np.where(np.tri(*scores.shape[2:], scores.shape[3] - scores.shape[2]), scores, -np.inf)
    logs = np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1, keepdims=True)) + scores.max(-1, keepdims=True)
    if form.function == "attention":
        return [np.exp(scores - logs) @ values, logs]
    out, saved, g = arrays[3:6]
    weights = np.exp(scores - saved)  # by what the forward pass left, as cuDNN does
    slopes = weights * (g @ values.swapaxes(-1, -2) - (g * out).sum(-1, keepdims=True)) * scale
    whole = (slopes @ keys, slopes.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ g)
    return [part.reshape(*x.shape[:2], -1, *x.shape[2:]).sum(2) for part, x in zip(whole, (q, k, v), strict=True)]


# --- the package -----------------------------------------------------------------------------------------------------


@dataclass
class Engine:
    """One that cuDNN proposes for any graph."""

    number: int
    knobs: dict[int, int] = field(default_factory=dict)
    notes: frozenset[str] | set[str] = frozenset()
    builds: bool = True


class Tensor:
    def set_output(self, value: bool) -> Tensor:
        return self

    set_dim = set_stride = set_data_type = set_uid = set_output


class FakePackage:
    """As much of the package `cudnn` as Weft calls; `executed` are (engine, operands, workspace, handle)."""

    heur_mode = enum.Enum("heur_mode", "A B FALLBACK")
    data_type = enum.Enum("data_type", "FLOAT HALF BFLOAT16")
    numerical_note = enum.Enum(
        "numerical_note",
        "NONDETERMINISTIC REDUCED_PRECISION_REDUCTION TENSOR_CORE DOWN_CONVERT_INPUTS "
        "WINOGRAD_TILE_6x6 WINOGRAD_TILE_13x13 FFT",
    )
    knob_type = enum.IntEnum("knob_type", "K1 K2 K3 K4")

    class cudnnGraphNotSupportedError(Exception):
        pass

    def __init__(self):
        self.engines: list[Engine] = []
        self.executed: list[tuple] = []
        self.asked: list[str] = []

    def backend_version_string(self) -> str:
        return "9.9"

    def create_handle(self) -> SimpleNamespace:
        return SimpleNamespace(stream=0)

    def set_stream(self, handle: SimpleNamespace, stream: int) -> None:
        handle.stream = stream

    def pygraph(self, **options: Any) -> FakeGraph:
        return FakeGraph(self, options["handle"])


class FakeGraph:
    def __init__(self, package: FakePackage, handle: SimpleNamespace):
        self.package, self.handle = package, handle
        self.plans: list[SimpleNamespace] = []
        self.barred: set[str] = set()
        self.built: Engine | None = None

    def validate(self) -> None:
        pass

    def build_operation_graph(self) -> None:
        pass

    def tensor(self, **options: Any) -> Tensor:
        return Tensor()

    def conv_fprop(self, **options: Any) -> Tensor:
        return Tensor()

    def create_execution_plans(self, modes: list) -> None:
        self.package.asked += [mode.name for mode in modes]
        self.plans += [SimpleNamespace(engine=engine, cpp_index=0) for engine in self.package.engines]

    def create_execution_plan(self, number: int, knobs: dict) -> None:
        engine = next(engine for engine in self.package.engines if engine.number == number and engine.knobs == knobs)
        self.plans.append(SimpleNamespace(engine=engine, cpp_index=0))

    def get_execution_plan_count(self) -> int:
        return len(self.plans)

    def deselect_numeric_notes(self, notes: list) -> None:
        self.barred |= {note.name for note in notes}

    def build_plan_at_index(self, number: int) -> None:
        engine = self.plans[number].engine
        if not engine.builds or engine.notes & self.barred:
            raise self.package.cudnnGraphNotSupportedError
        self.built = engine

    def get_engine_and_knobs_at_index(self, number: int) -> tuple[int, dict]:
        engine = self.plans[number].engine
        return engine.number, {self.package.knob_type(knob): value for knob, value in engine.knobs.items()}

    def get_workspace_size(self) -> int:
        return 64

    def execute(self, operands: dict[int, int], workspace: int, handle: SimpleNamespace) -> None:
        self.package.executed.append((self.built.number, operands, workspace, f"handle on {handle.stream}"))
