"""What fixes bits depends on shapes alone (`kernels.numerics`); what only tunes (`base.tuning.Tuning`) changes none."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.unit.lockstep import Lockstep
from tests.unit.programs import PROGRAMS, Make, results
from weft import nn
from weft.base.tuning import Tuning
from weft.compiler import plan_cache, realize
from weft.compiler.pipeline import assemble
from weft.compiler.program import build, locate
from weft.core.tensor import Tensor
from weft.kernels import numerics
from weft.plan.serialize import pack

pytestmark = pytest.mark.unit


GPU = {
    "features": ("subgroup_operations", "native_functions", "async_copies"),
    "workgroup_size": 1024,
    "subgroup_sizes": (32,),
    "shared_bytes": 232448,
    "static_shared_bytes": 49152,
    "resident_lanes": 2048,
    "registers": 255,
    "resident_registers": 32,
}
# With which programs that an emulator gets through reach what large arrays take.
SMALL_SIZES = Tuning(max_single_elements=40, min_transposed_elements=40, max_sorted_run=32, staged_bytes_per_register=1)

FIELDS = [field.name for field in dataclasses.fields(Tuning)]
GROUPS = 16  # of fields that are changed together


class Recording(Tuning):
    """A tuning that records which of its fields are read."""

    def __getattribute__(self, name: str):
        if name in FIELDS:
            READ.add(name)
        return super().__getattribute__(name)


READ: set[str] = set()


@contextmanager
def tuned(tuning: Tuning) -> Iterator[None]:
    """The CPU with another tuning, and without plans that were made with the usual one."""
    device = weft.get_device("cpu")
    before = device.tuning
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_cache, "ACTIVE", False)
        patch.setattr(realize, "_plans", type(realize._plans)())
        object.__setattr__(device, "tuning", tuning)
        try:
            yield
        finally:
            object.__setattr__(device, "tuning", before)


def order_rows(make: Make) -> list[Tensor]:
    """Sorts by counting and by digits, scans along rows and down columns, rows added into tables."""
    rows, long, table = make(6, 300), make(5000), make(80, 24)
    index = make.labels(9, 200)
    added = weft.zeros(9, 12, device=make.device).index_add(0, index, make(200, 12))
    return [rows.sort(-1)[0], long.sort()[1], (table * 2).cumsum(0), (rows * 3).cumsum(1), added]


def transpose_sums(make: Make) -> list[Tensor]:
    """A transposed read, column sums of stored elements in narrow and wide tables, and several small results."""
    x, wide = make(70, 136), make(70, 2080)
    scaled, doubled = (x - x.mean(-1, keepdim=True)) * 2, wide * 2
    small = [make(5).exp(), make(300, 4).sum(0), make(66000).abs(), make(66000).neg()]
    return [x.transpose(0, 1) * 3, scaled, scaled.sum(0), (x * make(136)).sum(0), doubled, doubled.sum(0), *small]


def normalize_wide_rows(make: Make) -> list[Tensor]:
    """Rows that one subgroup takes, with more values than registers hold twice."""
    x, factors = make(70, 500, grad=True), [make(70, 500) for _ in range(3)]
    weight, bias = make(500, grad=True), make(500, grad=True)
    y = F.layer_norm(x, (500,), weight, bias)
    (y * factors[0] * factors[1] + y.tanh() * factors[2]).sum().backward()
    return [y, x.grad, weight.grad, bias.grad]


def sum_shifts(make: Make) -> list[Tensor]:
    """A value at more indices than it is computed at without looking at its cost."""
    x = make(40) * 2 + 1
    return [sum((x[k : k + 20] for k in range(1, 12)), x[:20])]


def multiply(make: Make) -> list[Tensor]:
    """A product that is no loop inside of another kernel, and one that is not fetched at once."""
    return [make(20, 36) @ make(36, 40), make(20, 36).long() @ make(36, 40).long()]


def train_small_network() -> list[np.ndarray]:
    """Two steps of a network with a convolution, attention, layer norm and an embedding: results and weights."""
    weft.manual_seed(0)
    conv, norm, linear = nn.Conv2d(3, 8, 3), nn.LayerNorm(24), nn.Linear(24, 24)
    table = nn.Embedding(11, 24)
    parts = nn.ModuleList([conv, norm, linear, table])
    optimizer = weft.optim.AdamW(parts.parameters(), lr=0.1)

    @weft.compile
    def step(image, index):
        optimizer.zero_grad()
        pixels = conv(image).relu().reshape(4, 8, 36).transpose(1, 2)
        x = norm(linear(table(index)) * weft.sigmoid(pixels.mean((1, 2)).reshape(4, 1, 1)))
        heads = x.reshape(4, 9, 2, 12).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        loss = (y.softmax(-1) * y.exp().cumsum(-1)).sum() + pixels.var()
        loss.backward()
        optimizer.step()
        return loss, y, x.sort(-1)[0]

    generator = np.random.default_rng(1)
    image = weft.tensor(generator.standard_normal((4, 3, 8, 8)).astype("float32"))
    index = weft.tensor(generator.integers(0, 11, (4, 9)))
    found = [*step(image, index), *step(image, index), *parts.parameters()]
    return [one.detach().numpy().copy() for one in found]


def run_on_cpu(tuning: Tuning) -> list[np.ndarray]:
    with tuned(tuning):
        found = train_small_network() + results(order_rows, "cpu") + results(sum_shifts, "cpu")
        for name in ("softmax_short", "layer_norm", "sums", "graphs", "windows", "adam"):
            found += results(PROGRAMS[name], "cpu", small=True)
    return found


def run_on_gpu(tuning: Tuning) -> list[np.ndarray]:
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_cache, "ACTIVE", False)
        patch.setattr(Lockstep, "tuning", tuning)
        device = Lockstep(**GPU).device
        for program in (
            transpose_sums,
            order_rows,
            normalize_wide_rows,
            multiply,
            PROGRAMS["layer_norm"],
            PROGRAMS["graphs"],
            PROGRAMS["adam"],
        ):
            found += results(program, device, small=True)
    return found


@dataclasses.dataclass
class Usual:
    """Results with the usual tuning, and the fields that were read on the way."""

    run: Callable[[Tuning], list[np.ndarray]]
    tuning: Tuning
    results: list[np.ndarray] = dataclasses.field(default_factory=list)
    read: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        READ.clear()
        self.results = self.run(Recording(*dataclasses.astuple(self.tuning)))
        self.read = frozenset(READ)

    def assert_equal_bits(self, tuning: Tuning) -> None:
        for one, two in zip(self.run(tuning), self.results, strict=True):
            np.testing.assert_array_equal(one, two, err_msg=f"{tuning}")


@pytest.fixture(scope="module")
def cpu() -> Usual:
    return Usual(run_on_cpu, Tuning())


@pytest.fixture(scope="module")
def gpu() -> Usual:
    return Usual(run_on_gpu, SMALL_SIZES)


def test_every_field_of_a_tuning_is_read(cpu, gpu):
    assert not set(FIELDS) - cpu.read - gpu.read


def lowered(name: str, value: Any) -> Any:
    """Another value of a field: a sixteenth, or the smallest tile instead of all."""
    return (("registers 16x16x16/2x2", 1),) if name == "product_speeds" else max(1, value // 16)


@pytest.mark.parametrize("first", range(GROUPS))
def test_no_field_of_a_tuning_changes_a_bit(first, cpu, gpu):
    """Some fields lowered at a time, on the devices that read them."""
    for usual in (cpu, gpu):
        names = [name for name in FIELDS[first::GROUPS] if name in usual.read]
        usual.assert_equal_bits(replace(usual.tuning, **{k: lowered(k, getattr(usual.tuning, k)) for k in names}))


@pytest.mark.parametrize("run", ["cpu", "gpu"])
def test_a_tuning_with_every_field_raised_changes_no_bit(run, request):
    usual = request.getfixturevalue(run)
    usual.assert_equal_bits(Tuning(*[16 * value for value in dataclasses.astuple(usual.tuning)]))


def plan_of(make: Callable[[Make], list], tuning: Tuning):
    """The plan of a program's last results with a tuning, as bytes: kernels compare by identity."""
    with tuned(tuning):
        nodes = [tensor.node for tensor in make(Make("cpu", small=True))]
        nodes = [node for node in nodes if node.buffer is None]
        program, _ = build(nodes, locate(nodes, {}))
        device = weft.get_device("cpu")
        return pack(plan_cache.render_kernels(assemble(program, device)[0], device.backend))


@pytest.mark.parametrize(
    ("program", "name", "value"),
    [("elementwise", "max_tasks", 2), ("softmax_short", "max_operations", 1), ("layer_norm", "max_values", 2)],
)
def test_a_tuning_is_used(program, name, value):
    usual = plan_of(PROGRAMS[program], Tuning(min_task_bytes=1))
    assert plan_of(PROGRAMS[program], Tuning(min_task_bytes=1)) == usual
    assert plan_of(PROGRAMS[program], Tuning(min_task_bytes=1, **{name: value})) != usual


def test_rules_of_numerics_depend_on_shapes_alone():
    """The module imports nothing that knows of a device, a setting or the environment, and reads no file."""
    tree = ast.parse(Path(numerics.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "math", "dataclasses"}
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(functions) >= 6
    for function in functions:
        kinds = {ast.unparse(argument.annotation) for argument in function.args.args if argument.annotation}
        assert kinds <= {"int", "bool", "tuple[int, ...]", "tuple[bool, bool]", "Pieces"}, function.name


def test_cuts_cover_a_reduction_once():
    for shape, axes in [((4, 65536), (1,)), ((70000, 300), (0,)), ((3, 40000, 2), (1, 2)), ((500, 20), (0,))]:
        for pieces in (numerics.CPU_PIECES, numerics.GPU_PIECES):
            cut = numerics.split_reduction(shape, axes, pieces)
            assert cut is not None
            axis, length, count = cut
            assert axis in axes and count > 1
            assert (count - 1) * (length - 1) < shape[axis] <= count * length  # some may be one shorter
    assert numerics.split_reduction((4, 100), (1,), numerics.CPU_PIECES) is None
