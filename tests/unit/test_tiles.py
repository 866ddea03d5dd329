"""Arrays of a thread, fetches and tiles of matrix units: on the emulator against NumPy, and through NVRTC."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.lockstep import FRAGMENTS, Lockstep
from weft.base import dtypes
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index, axis_index
from weft.kernels.ir.language import (
    LAUNCH_RANGES,
    AsyncCopy,
    AwaitCopies,
    Barrier,
    BufferParam,
    Geometry,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    TileLoad,
    TileProduct,
)
from weft.kernels.ir.normalize import normalise
from weft.render.clike import module as clike_module
from weft.render.dialects.tables import CUDA

FLOAT, WORD = dtypes.float32, dtypes.uint32
SIDE, STEP = FRAGMENTS.side, 24  # a tile, and the distance of its rows in the block's array


def one_tile(dtype: dtypes.DType, transposed: tuple[bool, bool], rows: int = SIDE) -> Kernel:
    """c = a @ b of one tile; operands lie in memory row by row, `turned` ones column by column; from row `rows` of what
    is in memory on there are zeros."""
    thread, chunk, element = Axis("thread", 32), Axis("chunk", 2), Axis("element", FRAGMENTS.sums)
    at = axis_index(thread)

    def fetches(name: str) -> Loop:
        row = at // 2
        col = at % 2 * 8 + chunk * 4
        target, source = row * STEP + col, row * SIDE + col
        inside = IndexValue(row, dtypes.int32) < rows
        valid = Op("select", (inside, Literal(4, dtypes.int32), Literal(0, dtypes.int32)), dtypes.int32)
        fetch = AsyncCopy(f"{name}_tile", target, name, source, 4, valid)
        return Loop(chunk, 0, 2, "unrolled", (fetch,))

    def load(name: str, is_turned: bool) -> TileLoad:
        row, col = (1, STEP) if is_turned else (STEP, 1)
        return TileLoad(f"{name}_words", ix.ZERO, f"{name}_tile", ix.ZERO, row, col, name)

    row, col = FRAGMENTS.position(at, axis_index(element))
    cleared = Store("sums", axis_index(element), Literal(0.0, FLOAT))
    stored = Store("c", row * SIDE + col, Load("sums", axis_index(element), FLOAT))
    body: tuple[Stmt, ...] = (
        *[Local(f"{name}_words", WORD, FRAGMENTS.words, "lane") for name in "ab"],
        Local("sums", FLOAT, FRAGMENTS.sums, "lane"),
        fetches("a"),
        fetches("b"),
        Loop(element, 0, FRAGMENTS.sums, "unrolled", (cleared,)),
        AwaitCopies(),
        Barrier(),
        load("a", transposed[0]),
        load("b", transposed[1]),
        TileProduct("sums", ix.ZERO, "a_words", ix.ZERO, "b_words", ix.ZERO, dtype),
        Loop(element, 0, FRAGMENTS.sums, "unrolled", (stored,)),
    )
    shared = tuple(Local(f"{name}_tile", dtype, SIDE * STEP) for name in "ab")
    buffers = (*[BufferParam(name, dtype, False) for name in "ab"], BufferParam("c", FLOAT, True))
    loop = Loop(thread, 0, 32, "lanes", body, 32)
    return Kernel("one_tile", buffers, (), LAUNCH_RANGES, (*shared, loop), geometry=Geometry(32, 32))


def run(kernel: Kernel, a: np.ndarray, b: np.ndarray, **options) -> np.ndarray:
    c = np.zeros(SIDE * SIDE, np.float32)
    Lockstep(**options).launch(normalise(kernel), [a.ravel(), b.ravel(), c], (), 1)
    return c.reshape(SIDE, SIDE)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_a_tile_is_multiplied(dtype, transposed):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIDE, SIDE)).astype(dtype.numpy) for _ in range(2))
    left, right = (x.astype(float).T if t else x.astype(float) for x, t in zip((a, b), transposed, strict=True))
    np.testing.assert_allclose(run(one_tile(dtype, transposed), a, b), left @ right, 1e-5, 1e-5)


def test_what_is_not_valid_is_zero():
    a, b = (np.ones((SIDE, SIDE), np.float16) for _ in range(2))
    expected = np.zeros((SIDE, SIDE))
    expected[:11] = 11
    np.testing.assert_array_equal(run(one_tile(dtypes.float16, (False, False), 11), a, b), expected)


def test_the_emulator_sees_a_fetch_that_was_not_awaited():
    a, b = (np.ones((SIDE, SIDE), np.float16) for _ in range(2))
    kernel = one_tile(dtypes.float16, (False, False))
    (loop,) = [stmt for stmt in kernel.body if isinstance(stmt, Loop)]
    hasty = replace(loop, body=tuple(stmt for stmt in loop.body if not isinstance(stmt, AwaitCopies)))
    broken = replace(kernel, body=(*[stmt for stmt in kernel.body if stmt is not loop], hasty))
    assert (run(broken, a, b) != run(kernel, a, b)).any()


def test_every_element_of_a_tile_has_one_place():
    places = [FRAGMENTS.position(ix.const(lane), ix.const(k)) for lane in range(32) for k in range(FRAGMENTS.sums)]
    assert sorted((row.const, col.const) for row, col in places) == list(np.ndindex(SIDE, SIDE))
    assert FRAGMENTS.position(ix.const(5), ix.const(3)) == (Index((), 9), Index((), 3))


def test_a_dialect_without_copies_of_its_own_copies_in_a_loop():
    plain = replace(CUDA, fetch="", fetched="")
    text = clike_module.render(normalise(one_tile(dtypes.float16, (False, False))), plain)
    assert "fetch" not in text and "for (int i = 0; i < 4; i++) a_tile[" in text


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
def test_compiles(architecture):
    core = pytest.importorskip("cuda.core", reason="NVRTC is not installed")
    forms = [(dtypes.float16, (False, True)), (dtypes.bfloat16, (True, False))]
    text = clike_module.render_all([normalise(one_tile(*form)) for form in forms], CUDA)
    options = core.ProgramOptions(arch=architecture, std="c++17", fma=False)
    assert core.Program(text, code_type="c++", options=options).compile("cubin").code
