"""What the lockstep emulator must find: races, barriers and exchanges that threads miss, accesses that are not aligned.

The same kernel without the mistake passes each time."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.gpu_harness import check_limits
from tests.unit.lockstep import Lockstep
from weft.dtypes import bool_, float32, int32, int64
from weft.kernels import index as ix
from weft.kernels.index import Axis, axis_index
from weft.kernels.language import (
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

THREADS, BLOCKS = 64, 3
BLOCK, THREAD = Axis("block", BLOCKS), Axis("thread", THREADS)
HERE = ix.add(ix.scale(axis_index(BLOCK), THREADS), axis_index(THREAD))
NEXT = ix.remainder(ix.add(axis_index(THREAD), ix.const(1)), THREADS)
TABLE = Local("table", float32, THREADS)
PUT = Store("table", axis_index(THREAD), Load("x", HERE, float32))
TAKE = Store("out", HERE, Load("table", NEXT, float32))


def run(*inside: Stmt, arrays: tuple[Local, ...] = (), skew: int = 0, device: Lockstep | None = None) -> np.ndarray:
    """`out` after blocks of threads went through `inside`, each block once."""
    task = Loop(BLOCK, Var("begin", int64), Var("end", int64), "task", inside)
    body = (*arrays, Loop(THREAD, 0, THREADS, "threads", (task,), THREADS))
    params = (BufferParam("x", float32, False), BufferParam("out", float32, True))
    kernel = Kernel("made", params, (), LAUNCH_RANGES, body, {}, Geometry(THREADS, THREADS))
    device = device or Lockstep(features=("subgroups",), skew=skew)
    memory = [device.memory(4 * BLOCKS * THREADS).view(np.float32) for _ in range(2)]
    memory[0][:] = np.arange(BLOCKS * THREADS)
    check_limits(kernel, device.device)
    device.launch(kernel, memory, (), BLOCKS)
    return memory[1]


def before(limit: int) -> Op:
    return Op("lt", (IndexValue(axis_index(THREAD), int32), Literal(limit, int32)), bool_)


def test_neighbours_meet_behind_a_barrier():
    expected = np.roll(np.arange(BLOCKS * THREADS).reshape(BLOCKS, THREADS), -1, 1)
    assert run(PUT, Barrier(), TAKE, arrays=(TABLE,)).tolist() == expected.ravel().tolist()


def test_a_read_without_a_barrier():
    with pytest.raises(AssertionError, match="read before a barrier"):
        run(PUT, TAKE, arrays=(TABLE,))


def test_a_write_without_a_barrier():
    """What others still read is written anew."""
    run(PUT, Barrier(), TAKE, Barrier(), PUT, arrays=(TABLE,))
    with pytest.raises(AssertionError, match="written before a barrier"):
        run(PUT, Barrier(), TAKE, PUT, arrays=(TABLE,))


def test_blocks_never_meet_in_a_buffer():
    run(Store("out", HERE, Literal(1.0, float32)), Barrier(), Store("out", HERE, Load("out", HERE, float32)))
    with pytest.raises(AssertionError, match="read before a barrier"):
        run(Store("out", HERE, Literal(1.0, float32)), Barrier(), Let("t", Load("out", ix.ZERO, float32)))


def test_threads_write_one_element():
    run(Store("out", axis_index(BLOCK), Literal(1.0, float32)))
    with pytest.raises(AssertionError, match="different values to one element"):
        run(Store("out", axis_index(BLOCK), Load("x", HERE, float32)))
    with pytest.raises(AssertionError, match="written before a barrier"):
        run(Store("out", axis_index(BLOCK), Literal(1.0, float32)), Store("out", HERE, Literal(2.0, float32)))


def test_a_barrier_that_some_threads_miss():
    run(If(before(THREADS), (Barrier(),)))
    with pytest.raises(AssertionError, match="only some threads reach"):
        run(If(before(32), (Barrier(),)))


def exchanged(distance: int) -> Let:
    return Let("other", Op("exchange", (Load("x", HERE, float32), Literal(distance, int32)), float32))


def test_whole_subgroups_exchange():
    found = run(exchanged(5), Store("out", HERE, Var("other", float32)))
    assert found.tolist() == [float(n ^ 5) for n in range(BLOCKS * THREADS)]
    run(If(before(32), (exchanged(16),)))
    with pytest.raises(AssertionError, match="threads of a subgroup part"):
        run(If(before(40), (exchanged(16),)))
    with pytest.raises(AssertionError, match="too far"):
        run(exchanged(32))
    with pytest.raises(AssertionError, match="64 threads in subgroups of 128"):
        run(exchanged(1), device=Lockstep(features=("subgroups",), subgroup=128))


def test_subgroups_broadcast():
    giver = ix.remainder(ix.floordiv(HERE, 32), 32)

    def told(number):
        return Let("other", Op("broadcast", (Load("x", HERE, float32), IndexValue(number, int32)), float32))

    found = run(told(giver), Store("out", HERE, Var("other", float32)))
    assert found.tolist() == [float(n // 32 * 32 + n // 32) for n in range(BLOCKS * THREADS)]
    with pytest.raises(AssertionError, match="threads of a subgroup part"):
        run(If(before(40), (told(giver),)))
    with pytest.raises(AssertionError, match="no thread 32"):
        run(told(ix.const(32)))


def test_neighbours_move_where_memory_is_aligned():
    near, place = Local("near", float32, 4, "thread"), ix.scale(ix.floordiv(HERE, 4), 4)
    copies = (near, Copy("near", ix.ZERO, "x", place, 4, float32))
    run(*copies)
    with pytest.raises(AssertionError, match="not aligned"):
        run(*copies, skew=4)
    with pytest.raises(AssertionError, match="by 4"):
        run(near, Copy("near", ix.ZERO, "x", ix.add(place, ix.const(2)), 4, float32))


def test_a_kernel_asks_for_what_there_is():
    large = Local("large", float32, 5000)
    run(arrays=(large,))
    with pytest.raises(AssertionError, match="20000"):
        run(arrays=(large,), device=Lockstep(shared_bytes=16384))
    with pytest.raises(AssertionError, match="threads=64"):
        run(device=Lockstep(threads=32))
