"""Definition: a kernel that a user wrote, traced for given shapes and dtypes. Pure data and one Python function.

It has two forms of the same function: `kernel`, for backends that compile, and `run_reference`, in NumPy.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.base.digest import digest
from weft.base.dtypes import DType, int64
from weft.base.errors import GraphError, problem
from weft.kernels.cpu.schedule import lanes
from weft.kernels.custom import numpy_eval
from weft.kernels.custom.trace import Recorder, activate
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import LAUNCH_RANGES, Geometry, Kernel, Loop, Reduction, Stmt, Var
from weft.kernels.ir.normalize import normalise
from weft.kernels.numerics import LANES

WORKGROUP_SIZE = 256  # lanes, on GPUs
TASK_WORK = 8192  # operations of a task, at least

Form = tuple[tuple[int, ...], DType]


@dataclass(frozen=True, slots=True)
class Array:
    """An argument that is a tensor. One of no axes is passed to the function as a value."""

    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Number:
    """An argument that is a Python float: a scalar of the kernel, in this dtype."""

    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Static:
    """Any other argument: the function is traced with it. 1, 1.0 and True are equal in Python and different here."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and _with_types(self.value) == _with_types(other.value)

    def __hash__(self) -> int:
        return hash(self.value)


def _with_types(value: Any) -> Any:
    """`value` with the types of all its parts."""
    if isinstance(value, tuple):
        return (type(value), *[_with_types(item) for item in value])
    return (type(value), value.hex() if isinstance(value, float) else value)


Argument = Array | Number | Static


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """Equal definitions make equal nodes: `digest` stands for all that `kernel` says."""

    name: str
    function: Callable[..., Any] = field(repr=False)
    domain: tuple[int, ...]
    arguments: tuple[Argument, ...]
    outputs: tuple[Form, ...]
    kernel: Kernel = field(repr=False)
    extents: tuple[int | None, ...]  # the values of the kernel's scalars, None for the next Python float
    points: int  # that workers share, `chunk` at a time
    chunk: int
    work: int
    digest: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Definition) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def form(self) -> Form:
        """Shape and dtype of the node: several outputs lie one after the other."""
        return self.outputs[0] if len(self.outputs) == 1 else ((sum(self.sizes),), self.outputs[0][1])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each output."""
        return tuple([math.prod(shape) for shape, _ in self.outputs])

    def scalars(self, numbers: Sequence[float]) -> tuple[int | float, ...]:
        """The kernel's scalars, given the Python floats among its arguments."""
        floats = iter(numbers)
        return tuple([next(floats) if value is None else value for value in self.extents])

    def run_reference(self, arrays: Sequence[np.ndarray], numbers: Sequence[float], dtype: np.dtype) -> np.ndarray:
        """The value of the node, in NumPy."""
        flat = np.zeros(sum(self.sizes), dtype)
        results, at = [], 0
        for (shape, own), size in zip(self.outputs, self.sizes, strict=True):
            results.append((flat[at : at + size].reshape(shape), own))
            at += size
        tensors, floats, inputs = iter(arrays), iter(numbers), []
        for argument in self.arguments:
            if isinstance(argument, Array):
                array = next(tensors)
                inputs.append((array, argument.dtype) if argument.shape else array[()])
            elif isinstance(argument, Number):
                inputs.append(dtype.type(next(floats)))
            else:
                inputs.append(argument.value)
        numpy_eval.run(self.function, self.domain, inputs, results)
        return flat.reshape(self.form[0])


def define(
    function: Callable[..., Any],
    domain: tuple[int, ...],
    arguments: Sequence[Argument],
    outputs: Sequence[Form],
    workgroups: bool = False,
) -> Definition:
    """Trace `function(*indices, *arguments, *outputs)`. `workgroups` asks for a kernel for GPUs."""
    name = f"custom_{function.__name__.strip('<>')}"
    names = list(inspect.signature(function).parameters)
    given = [*domain, *arguments, *outputs]
    if len(names) != len(given):
        parts = f"{len(domain)} indices, {len(arguments)} arguments and {len(outputs)} outputs"
        raise problem(
            GraphError, f"kernel {function.__name__}", f"a function of {len(names)} parameters ({', '.join(names)})",
            f"{len(given)}: {parts}", "the indices of a point come first, then the arguments, then the outputs",
        )  # fmt: skip
    recorder = Recorder(function.__name__)
    recorder.never_run = int(0 in domain)
    points, lane, at = _axes(domain, workgroups)
    labels = names[len(domain) :]
    inputs = [_input(recorder, label, argument) for label, argument in zip(labels, arguments, strict=False)]
    results = [
        recorder.array(label, shape, dtype, True)
        for label, (shape, dtype) in zip(labels[len(arguments) :], outputs, strict=True)
    ]
    with activate(recorder):
        function(*[recorder.position(index) for index in at], *inputs, *results)
    if recorder.open_loops:
        raise recorder.error(GraphError, "a loop that is left early", "loops that run to their end", "use where")
    for label, result in zip(labels[len(arguments) :], results, strict=True):
        if not result.stored:
            raise recorder.error(GraphError, f"a function that never assigns to {label!r}", f"{label}[...] = value")
    body = _schedule(recorder, points, lane, workgroups)
    geometry = Geometry(WORKGROUP_SIZE, 1) if workgroups else None
    kernel = Kernel(
        name, tuple(recorder.buffers), tuple([param for param, _ in recorder.scalars.values()]), LAUNCH_RANGES, body,
        recorder.definitions, geometry,
    )  # fmt: skip
    forms = [argument for argument in arguments if not isinstance(argument, Static)]  # those have become code
    key = digest(
        name=name, domain=domain, arguments=forms, outputs=outputs, scalars=recorder.scalars, kernel=normalise(kernel)
    )
    work = recorder.work * (lane.extent if lane is not points else 1)
    chunk = max(-(-TASK_WORK // max(work, 1)), -(-points.extent // 64))
    return Definition(
        function.__name__, function, domain, tuple(arguments), tuple(outputs), kernel,
        tuple([value for _, value in recorder.scalars.values()]),
        points.extent, -(-chunk // LANES) * LANES if lane is points else chunk, work * points.extent, key,
    )  # fmt: skip


def _axes(domain: tuple[int, ...], workgroups: bool) -> tuple[Axis, Axis, tuple[Index, ...]]:
    """The axis that workers share, the one in vector lanes (the same, for one axis), and the indices of a point."""
    if len(domain) < 2 or workgroups:
        points = Axis("i", math.prod(domain))
        return points, points, ix.delinearise(ix.axis_index(points), domain)
    points, lane = Axis("row", math.prod(domain[:-1])), Axis("col", domain[-1])
    return points, lane, (*ix.delinearise(ix.axis_index(points), domain[:-1]), ix.axis_index(lane))


def _input(recorder: Recorder, label: str, argument: Argument) -> Any:
    if isinstance(argument, Array):
        array = recorder.array(label, argument.shape, argument.dtype, False)
        return array if argument.shape else array[()]
    return recorder.number(argument.dtype) if isinstance(argument, Number) else argument.value


def _schedule(recorder: Recorder, points: Axis, lane: Axis, workgroups: bool) -> tuple[Stmt, ...]:
    body = tuple(recorder.blocks[0])
    begin, end = Var("begin", int64), Var("end", int64)
    if workgroups:
        return (Loop(points, begin, end, "grid", body, WORKGROUP_SIZE),)
    contiguous = all(a.is_linear_in(lane) and a.coefficient(lane) in (0, 1) for a in recorder.accesses)
    loops = any(isinstance(stmt, (Loop, Reduction)) for stmt in body)
    has_uneven_loops = any(ix.depends(bound, lane) for bound in recorder.bounds)
    stores_differ = all(ix.depends(offset, lane) for offset in recorder.stores)
    vector = stores_differ and not has_uneven_loops and (contiguous or not loops)
    if lane is points:
        return (Loop(points, begin, end, "vector" if vector else "task", body, LANES if vector else 1),)
    inner = Loop(lane, 0, lane.extent, "vector" if vector else "serial", body, lanes(lane.extent) if vector else 1)
    return (Loop(points, begin, end, "task", (inner,)),)
