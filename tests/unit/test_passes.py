"""The passes of the compiler: what each gives is frozen and as its spec says, and none changes what it was given."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import FunctionType, MappingProxyType, MethodType
from typing import Any

import pytest

import weft
from tests.unit.programs import PROGRAMS, Make
from weft import nn
from weft.base.dtypes import DType, bool_
from weft.compiler import pipeline, spec
from weft.compiler.fusion.fuse import Fusion
from weft.compiler.lowering.lower import LoweredProgram
from weft.compiler.lowering.nests import LoweredNest
from weft.compiler.lowering.schedule import ScheduledProgram
from weft.compiler.memory.storage import Allocation
from weft.compiler.options import Options
from weft.compiler.pipeline import PASSES, Pass
from weft.compiler.program import Program, Write
from weft.compiler.templates.template import ScheduledKernel
from weft.errors import GraphError
from weft.graph.body import Body
from weft.graph.node import Node
from weft.kernels.ir.index import Index
from weft.kernels.ir.language import Geometry, Let, Var
from weft.kernels.ir.nest import copy_nest
from weft.plan.device import Device
from weft.plan.plan import Place, Plan

pytestmark = pytest.mark.unit

# Nodes, indices and the bodies of loops count as a whole: tests of their own say that they never change.
FROZEN = (type(None), bool, int, float, str, bytes, FunctionType, MethodType, type, Device, DType, Node, Body, Index)


def parts_of(value: Any) -> Iterator[Any]:
    """What a frozen structure consists of."""
    if isinstance(value, tuple | frozenset):
        yield from value
    elif isinstance(value, MappingProxyType):
        for key, item in value.items():
            yield key
            yield item
    elif dataclasses.is_dataclass(value):
        yield from [getattr(value, field.name) for field in dataclasses.fields(value)]


def assert_frozen(value: Any) -> None:
    stack, seen = [value], set()
    while stack:
        part = stack.pop()
        if id(part) in seen or isinstance(part, FROZEN):
            continue
        seen.add(id(part))
        is_container = isinstance(part, tuple | frozenset | MappingProxyType)
        if isinstance(part, Mapping) and not part:
            continue  # a default
        is_record = dataclasses.is_dataclass(part) and part.__dataclass_params__.frozen
        assert is_container or is_record or callable(part), f"a {type(part).__name__} in a frozen structure: {part!r}"
        stack.extend(parts_of(part))


def digest_of(value: Any) -> str:
    """A digest of all that a structure consists of, its nodes with their fields included."""
    numbers: dict[int, int] = {}
    digest = hashlib.sha256()
    kept = []  # so that no two parts have one id
    stack = [value]
    while stack:
        part = stack.pop()
        if id(part) in numbers:
            digest.update(b"%d;" % numbers[id(part)])
            continue
        numbers[id(part)] = len(numbers)
        kept.append(part)
        if isinstance(part, Node):
            names = ("op", "attrs", "shape", "dtype", "site", "shown")
            fields = [getattr(part, name, None) for name in names]  # the node of the status words has few
            digest.update(repr((fields, id(getattr(part, "buffer", None)))).encode() + b";")
            stack.extend(getattr(part, "srcs", ()))
        elif isinstance(part, dict | list | set):
            digest.update(f"{type(part).__name__} of {len(part)};".encode())
            stack.extend([*part, *(part.values() if isinstance(part, dict) else ())])
        else:
            found = list(parts_of(part))
            digest.update(f"{type(part).__name__} {len(found)} {'' if found else repr(part)};".encode())
            stack.extend(found)
    return digest.hexdigest()


def captured(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> list[tuple[Program, Options]]:
    """The programs that are compiled while `call` runs."""
    found: list[tuple[Program, Options]] = []
    run_passes = pipeline.run_passes

    def record(program: Program, options: Options) -> Any:
        found.append((program, options))
        return run_passes(program, options)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "run_passes", record)
        patch.setattr("weft.compiler.plan_cache.ACTIVE", False)
        patch.setattr("weft.compiler.realize._plans", type("Empty", (dict,), {"move_to_end": None})())
        call()
    return found


def run_program(name: str) -> Callable[[], object]:
    return lambda: weft.eval(*PROGRAMS[name](Make("cpu", small=True)))


def train_a_recurrent_network() -> None:
    model = nn.GRU(4, 6)
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @weft.compile
    def step(x):
        optimizer.zero_grad()
        y, _ = model(x)
        (y**2).mean().backward()
        optimizer.step()

    step(weft.randn(5, 3, 4))


def sort_and_scatter() -> None:
    x = weft.randn(6, 80)
    values, order = x.sort(dim=-1)
    weft.eval(values.cumsum(-1), weft.zeros(9, 80).index_add(0, weft.tensor([1, 2, 2, 0, 8, 1]), x), order)


CALLS = {
    **{
        name: run_program(name)
        for name in ("softmax_short", "layer_norm", "adam", "rows", "graphs", "windows", "linear")
    },
    "recurrent": train_a_recurrent_network,
    "sort": sort_and_scatter,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_pass_changes_nothing_that_it_was_given(name, monkeypatch):
    compiled = captured(monkeypatch, CALLS[name])
    assert compiled
    for program, options in compiled:
        structure: Any = program
        assert_frozen(structure)
        known = spec.Known()
        for step in PASSES:
            before = digest_of(structure)
            result = step.run(structure, options)
            assert digest_of(structure) == before, f"{step.name} changed its input"
            step.check(result, known)
            structure = result
            assert_frozen(structure)


def structures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What each pass gives for one training step."""
    (program, options), *_ = [
        item for item in captured(monkeypatch, run_program("adam")) if len(item[0].nodes) > 8 and item[0].writes
    ]
    found: dict[str, Any] = {"": program}
    structure: Any = program
    for step in PASSES:
        structure = found[step.name] = step.run(structure, options)
    return found


def refuses(check: Callable[[Any, spec.Known], None], structure: Any, words: str) -> None:
    with pytest.raises(GraphError, match=words):
        check(structure, spec.Known())


def test_the_spec_refuses_wrong_programs(monkeypatch):
    program = structures(monkeypatch)["canonicalize"]
    refuses(spec.check_program, replace(program, nodes=program.nodes[::-1]), "sources before users")
    refuses(spec.check_program, replace(program, nodes=program.nodes[:1]), "one of the program's nodes")
    refuses(spec.check_program, replace(program, writes=(Write(10**6, 0),)), "numbers of an output and of a leaf")
    refuses(spec.check_program, replace(program, overlaps=((0, 0, 4),)), "a leaf inside the other")


def test_the_spec_refuses_wrong_fusions(monkeypatch):
    fusion: Fusion = structures(monkeypatch)["fuse"]
    first, *others = fusion.regions
    itself = replace(first, before=first.bit)
    refuses(spec.check_fusion, replace(fusion, regions=(itself, *others)), "no cycle")
    refuses(spec.check_fusion, replace(fusion, regions=(replace(first, roots=(), partials=()), *others)), "no results")
    refuses(spec.check_fusion, replace(fusion, regions=(first, first)), "a number for each")
    stored = {node: writers for node, writers in fusion.stored.items() if node not in first.reads}
    refuses(spec.check_fusion, replace(fusion, stored=stored), "reads of what is stored")
    later = next(region for region in fusion.regions if region.before)
    eager = replace(later, before=0)
    stored = {n: tuple([eager if w is later else w for w in writers]) for n, writers in fusion.stored.items()}
    regions = tuple([eager if region is later else region for region in fusion.regions])
    refuses(spec.check_fusion, replace(fusion, regions=regions, stored=stored), "writers before")


def test_the_spec_refuses_wrong_allocations(monkeypatch):
    found = structures(monkeypatch)
    scheduled: Allocation = found["schedule steps"]
    refuses(spec.check_schedule, replace(scheduled, regions=scheduled.regions[::-1]), "dependencies first")
    laid_out: Allocation = found["lay out arena"]
    storage = laid_out.storage
    assert len(storage.intervals) > 1
    overlapping = tuple([replace(one, offset=0, first=0, last=9) for one in storage.intervals])
    refuses(spec.check_layout, replace(laid_out, storage=replace(storage, intervals=overlapping)), "do not overlap")
    refuses(spec.check_layout, replace(laid_out, storage=replace(storage, arena={})), "a slot or a part of the arena")
    refuses(spec.check_layout, replace(laid_out, storage=replace(storage, arena_bytes=1)), "inside 1 bytes")


def test_the_spec_refuses_wrong_lowerings(monkeypatch):
    lowered: LoweredProgram = structures(monkeypatch)["lower regions"]
    first, *others = lowered.regions
    assert isinstance(first, LoweredNest) and others
    param, *params = first.nest.buffers
    refuses(spec.check_lowered, replace(lowered, regions=()), "one for each")
    of_bools = replace(first.nest, buffers=(replace(param, dtype=bool_), *params))
    for wrong, words in (
        (None, "a nest or a kernel"),
        (replace(first, uses=first.uses[1:]), "one per parameter"),
        (replace(first, scalars=(*first.scalars, 1)), "one per parameter"),
        (replace(first, nest=of_bools), "its dtype"),
        (replace(first, nest=replace(first.nest, vector_axis="")), "the vector axis ''"),
    ):
        refuses(spec.check_lowered, replace(lowered, regions=(wrong, *others)), words)
    copy = replace(copy_nest(bool_), point_stores=())
    refuses(spec.check_lowered, replace(lowered, copies=MappingProxyType({bool_: copy})), "nest copy_bool.* no stores")


def test_the_spec_refuses_wrong_schedules(monkeypatch):
    scheduled: ScheduledProgram = structures(monkeypatch)["schedule kernels"]
    first, *others = scheduled.kernels
    assert isinstance(first, ScheduledKernel) and others
    elsewhere = replace(first.kernel, geometry=Geometry(32, 1), body=())
    unknown = replace(first.kernel, body=(Let("a", Var("b", bool_)),))
    refuses(spec.check_scheduled, replace(scheduled, kernels=()), "one for each")
    for wrong, words in (
        (replace(first, uses=first.uses[1:]), "one per parameter"),
        (replace(first, chunk=0), "points in chunks"),
        (replace(first, kernel=elsewhere), "a kernel for its own"),
        (replace(first, kernel=unknown), "the variable 'b'"),
    ):
        refuses(spec.check_scheduled, replace(scheduled, kernels=(wrong, *others)), words)
    refuses(spec.check_scheduled, replace(scheduled, copies=MappingProxyType({bool_: unknown})), "the variable 'b'")


def test_the_spec_refuses_wrong_plans(monkeypatch):
    plan: Plan
    compiled = structures(monkeypatch)["emit plan"]
    plan = compiled.plan
    launch = next(step for step in plan.steps if hasattr(step, "kernel"))
    for wrong, words in {
        replace(launch, places=launch.places[:-1]): "one per buffer",
        replace(launch, places=(Place(10**6, 0), *launch.places[1:])): "slot 1000000",
        replace(launch, places=(Place(0, 1 << 40), *launch.places[1:])): "a byte of the slot",
        replace(launch, chunk=0): "points in chunks",
        replace(launch, kernel=replace(launch.kernel, body=(Let("a", Var("b", bool_)),))): "the variable 'b'",
    }.items():
        refuses(spec.check_plan, replace(compiled, plan=replace(plan, steps=(wrong,))), words)


def test_the_suite_checks_after_every_pass(monkeypatch):
    program, options = captured(monkeypatch, run_program("softmax_short"))[0]
    wrong = Pass("wrong", lambda program, options: replace(program, nodes=program.nodes[::-1]), spec.check_program)
    assert pipeline.CHECK
    with pytest.raises(GraphError, match="sources before users"):
        pipeline.run_passes(program, options, (wrong,))
    monkeypatch.setattr(pipeline, "CHECK", False)  # as users have it
    assert pipeline.run_passes(program, options, (wrong,)).nodes == program.nodes[::-1]


def test_every_pass_has_a_name_and_a_check():
    assert len({step.name for step in PASSES}) == len(PASSES)
    assert all(step.check.__module__ == spec.__name__ for step in PASSES)
