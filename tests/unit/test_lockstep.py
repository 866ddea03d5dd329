"""What the lockstep emulator must find: races, barriers and exchanges that lanes miss, accesses that are not aligned.

The same kernel without the mistake passes each time."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.unit.gpu_harness import check_limits
from tests.unit.lockstep import Lockstep, Workgroups
from weft.base.dtypes import float32, int32, int64
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, axis_index
from weft.kernels.ir.language import (
    LAUNCH_RANGES,
    Barrier,
    BufferParam,
    Copy,
    Geometry,
    If,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    Var,
)

pytestmark = pytest.mark.unit

LANES, WORKGROUPS = 64, 3
WORKGROUP, LANE = Axis("workgroup", WORKGROUPS), Axis("lane", LANES)
HERE = WORKGROUP * LANES + LANE
NEXT = (LANE + 1) % LANES
TABLE = Local("table", float32, LANES)
PUT = Store("table", axis_index(LANE), Load("x", HERE, float32))
TAKE = Store("out", HERE, Load("table", NEXT, float32))


def run(*inside: Stmt, arrays: tuple[Local, ...] = (), skew: int = 0, device: Lockstep | None = None) -> np.ndarray:
    """`out` after workgroups ran `inside`, each once."""
    task = Loop(WORKGROUP, Var("begin", int64), Var("end", int64), "task", inside)
    body = (*arrays, Loop(LANE, 0, LANES, "lanes", (task,), LANES))
    params = (BufferParam("x", float32, False), BufferParam("out", float32, True))
    kernel = Kernel("made", params, (), LAUNCH_RANGES, body, {}, Geometry(LANES, LANES))
    device = device or Lockstep(features=("subgroup_operations",), skew=skew)
    memory = [device.memory(4 * WORKGROUPS * LANES).view(np.float32) for _ in range(2)]
    memory[0][:] = np.arange(WORKGROUPS * LANES)
    check_limits(kernel, device.device)
    device.launch(kernel, memory, (), WORKGROUPS)
    return memory[1]


def before(limit: int) -> Op:
    return IndexValue(axis_index(LANE), int32) < limit


def test_adjacent_lanes_meet_at_a_barrier():
    expected = np.roll(np.arange(WORKGROUPS * LANES).reshape(WORKGROUPS, LANES), -1, 1)
    assert run(PUT, Barrier(), TAKE, arrays=(TABLE,)).tolist() == expected.ravel().tolist()


def test_a_read_without_a_barrier():
    with pytest.raises(AssertionError, match="read before a barrier"):
        run(PUT, TAKE, arrays=(TABLE,))


def test_a_write_without_a_barrier():
    """What others still read is written anew."""
    run(PUT, Barrier(), TAKE, Barrier(), PUT, arrays=(TABLE,))
    with pytest.raises(AssertionError, match="written before a barrier"):
        run(PUT, Barrier(), TAKE, PUT, arrays=(TABLE,))


def test_workgroups_never_synchronise_in_a_buffer():
    run(Store("out", HERE, Literal(1.0, float32)), Barrier(), Store("out", HERE, Load("out", HERE, float32)))
    with pytest.raises(AssertionError, match="read before a barrier"):
        run(Store("out", HERE, Literal(1.0, float32)), Barrier(), Let("t", Load("out", ix.ZERO, float32)))


def test_threads_write_one_element():
    run(Store("out", axis_index(WORKGROUP), Literal(1.0, float32)))
    with pytest.raises(AssertionError, match="different values to one element"):
        run(Store("out", axis_index(WORKGROUP), Load("x", HERE, float32)))
    with pytest.raises(AssertionError, match="written before a barrier"):
        run(Store("out", axis_index(WORKGROUP), Literal(1.0, float32)), Store("out", HERE, Literal(2.0, float32)))


def test_a_barrier_that_some_threads_miss():
    run(If(before(LANES), (Barrier(),)))
    with pytest.raises(AssertionError, match="only some lanes reach"):
        run(If(before(32), (Barrier(),)))


def exchanged(distance: int) -> Let:
    return Let("other", Op("exchange", (Load("x", HERE, float32), Literal(distance, int32)), float32))


def test_whole_subgroups_exchange():
    found = run(exchanged(5), Store("out", HERE, Var("other", float32)))
    assert found.tolist() == [float(n ^ 5) for n in range(WORKGROUPS * LANES)]
    run(If(before(32), (exchanged(16),)))
    with pytest.raises(AssertionError, match="lanes of a subgroup diverge"):
        run(If(before(40), (exchanged(16),)))
    with pytest.raises(AssertionError, match="too far"):
        run(exchanged(32))
    with pytest.raises(AssertionError, match="64 lanes in subgroups of 128"):
        run(exchanged(1), device=Lockstep(features=("subgroup_operations",), subgroup_sizes=(128,)))


def test_subgroups_broadcast():
    giver = HERE // 32 % 32

    def broadcast_of(number):
        return Let("other", Op("broadcast", (Load("x", HERE, float32), IndexValue(number, int32)), float32))

    found = run(broadcast_of(giver), Store("out", HERE, Var("other", float32)))
    assert found.tolist() == [float(n // 32 * 32 + n // 32) for n in range(WORKGROUPS * LANES)]
    with pytest.raises(AssertionError, match="lanes of a subgroup diverge"):
        run(If(before(40), (broadcast_of(giver),)))
    with pytest.raises(AssertionError, match="no lane 32"):
        run(broadcast_of(ix.const(32)))


def test_vectors_move_where_memory_is_aligned():
    vector, place = Local("vector", float32, 4, "lane"), HERE // 4 * 4
    copies = (vector, Copy("vector", ix.ZERO, "x", place, 4, float32))
    run(*copies)
    with pytest.raises(AssertionError, match="not aligned"):
        run(*copies, skew=4)
    with pytest.raises(AssertionError, match="by 4"):
        run(vector, Copy("vector", ix.ZERO, "x", place + 2, 4, float32))


def test_a_kernel_asks_for_what_there_is():
    large = Local("large", float32, 5000)
    run(arrays=(large,), device=Lockstep(shared_bytes=20000, static_shared_bytes=20000))
    with pytest.raises(AssertionError, match="20000"):
        run(arrays=(large,), device=Lockstep(shared_bytes=16384))
    with pytest.raises(AssertionError, match="20000"):
        run(arrays=(large,), device=Lockstep(shared_bytes=20000, static_shared_bytes=16384))
    with pytest.raises(AssertionError, match="lanes=64"):
        run(device=Lockstep(workgroup_size=32))


@pytest.mark.parametrize(
    ("mask", "lanes"), [([False], 0), ([True], 4), ([True, False, True, False], 2), (False, 0), (True, 4)]
)
def test_a_condition_on_a_number_before_all_loops_is_one_for_all_lanes(mask, lanes):
    some = SimpleNamespace(everyone=np.arange(4))
    assert len(Workgroups.active(some, np.asarray(mask))) == lanes
