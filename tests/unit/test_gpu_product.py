"""Matrix products on GPUs: layouts, dtypes and tails against NumPy, epilogues, and what NVRTC makes of the tiles."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.unit.fake_cuda import HOPPER
from tests.unit.lockstep import FRAGMENTS, Lockstep
from weft.backends.hip import backend as hip_backend
from weft.base import dtypes
from weft.base.capabilities import Limits
from weft.compiler.templates.gemm import tiles_for
from weft.kernels import numerics
from weft.kernels.gpu import gemm as gpu_gemm
from weft.kernels.gpu.matrix_unit import Fragments
from weft.kernels.gpu.product_tiles import TILES, Product, Tiling, strided_operand, tiling
from weft.kernels.ir import index as ix
from weft.kernels.ir.language import LAUNCH_RANGES, BufferParam, Kernel, ScalarParam, Store
from weft.kernels.ir.normalize import normalise
from weft.kernels.math import float16
from weft.render.clike import module as clike_module
from weft.render.dialects.tables import CUDA

MMA = ("matrix_units",)
TRANSPOSES = list(itertools.product((False, True), repeat=2))


def kernel(dtype, m: int, n: int, k: int, transposed=(False, False), choice: Tiling | None = None, batch: int = 1):
    """(kernel, tiles) of a contiguous product that stores its result in `c`."""
    left = strided_operand("a", dtype, 1 if transposed[0] else k, m if transposed[0] else 1, [(batch, m * k)])
    right = strided_operand("b", dtype, k if transposed[1] else 1, 1 if transposed[1] else n, [(batch, k * n)])
    product = Product(left, right, batch, m, n, k)
    choice = choice or tiling(product, FRAGMENTS.unit, 132, HOPPER)

    def finish(number, row, column, value):
        value = float16.pack(float16.round_to(value, dtype), dtype) if dtype.is_16_bit else value
        return [Store("c", ix.linearise((number, row, column), (batch, m, n)), value)]

    body, geometry = gpu_gemm.body(product, choice, finish, HOPPER)
    buffers = tuple(BufferParam(name, dtype, name == "c") for name in "abc")
    rows = (ScalarParam("rows", dtypes.int32),)
    return Kernel("product", buffers, rows, LAUNCH_RANGES, body, geometry=geometry), choice.count(product)


def numbers(dtype, *shape: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape) * 3
    return values.astype(dtype.numpy)


def launched(device, dtype, shape: tuple[int, int, int], transposed, choice=None, batch: int = 1) -> np.ndarray:
    m, n, k = shape
    made, count = kernel(dtype, m, n, k, transposed, choice, batch)
    a, b = numbers(dtype, batch, m, k), numbers(dtype, batch, k, n, seed=1)
    arrays = [
        np.ascontiguousarray(x.swapaxes(1, 2) if t else x).ravel() for x, t in zip((a, b), transposed, strict=True)
    ]
    c = np.zeros(batch * m * n, dtype.numpy)
    device.launch(normalise(made), [*arrays, c], (m,), count)
    expected = a.astype(float) @ b.astype(float)
    tolerance = {2: 1e-2 if dtype is dtypes.bfloat16 else 2e-3, 4: 1e-6, 8: 1e-14}.get(dtype.itemsize, 0)
    np.testing.assert_allclose(c.reshape(batch, m, n).astype(float), expected, tolerance, tolerance * k)
    return c


SMALL_TILES = Tiling(16, 16, 8, 4, 2, None, 1.0)
WIDE_TILES = Tiling(8, 32, 4, 2, 4, None, 1.0)
UNITS = Tiling(32, 32, 32, 16, 32, FRAGMENTS, 1.0)
DEEP_TILES = Tiling(16, 16, 8, 4, 2, None, 1.0, 4)
PREFETCHING_TILES = replace(SMALL_TILES, prefetches=True)  # as without asynchronous copies


@pytest.mark.parametrize("transposed", TRANSPOSES)
@pytest.mark.parametrize("shape", [(16, 16, 8), (19, 37, 21), (3, 70, 4), (33, 5, 1)])
@pytest.mark.parametrize(
    "choice", [SMALL_TILES, WIDE_TILES, DEEP_TILES, PREFETCHING_TILES], ids=["small", "wide", "deep", "next"]
)
def test_registers(choice, shape, transposed):
    launched(Lockstep(), dtypes.float32, shape, transposed, choice)


@pytest.mark.parametrize("transposed", TRANSPOSES)
@pytest.mark.parametrize("dtype", [dtypes.float64, dtypes.float16, dtypes.bfloat16, dtypes.int32, dtypes.int64])
def test_other_dtypes(dtype, transposed):
    launched(
        Lockstep(),
        dtype,
        (9, 18, 11),
        transposed,
        SMALL_TILES if dtype.itemsize > 2 else Tiling(16, 16, 8, 2, 4, None, 1),
    )


@pytest.mark.parametrize("transposed", TRANSPOSES)
@pytest.mark.parametrize("shape", [(32, 32, 32), (37, 41, 50), (5, 70, 16)])
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_matrix_units(dtype, shape, transposed):
    launched(Lockstep(), dtype, shape, transposed, UNITS)


@pytest.mark.parametrize("transposed", TRANSPOSES)
@pytest.mark.parametrize("unit", [hip_backend.MFMA, hip_backend.WMMA], ids=["mfma", "wmma"])
def test_matrix_units_of_other_layouts(unit, transposed):
    device = Lockstep(features=("mfma" if unit is hip_backend.MFMA else "wmma",))
    launched(
        device, dtypes.float16, (37, 41, 50), transposed, replace(UNITS, fragments=Fragments(unit), prefetches=True)
    )


def test_bits_depend_on_neither_tile_nor_grid():
    one = launched(Lockstep(), dtypes.float32, (20, 36, 30), (False, False), SMALL_TILES, batch=3)
    for workgroups, choice in ((1, SMALL_TILES), (2, WIDE_TILES), (7, DEEP_TILES), (3, PREFETCHING_TILES)):
        other = launched(Lockstep(workgroups), dtypes.float32, (20, 36, 30), (False, False), choice, batch=3)
        assert one.tobytes() == other.tobytes()


# --- through the compiler --------------------------------------------------------------------------------------------


def on(device, array: np.ndarray, **options) -> weft.Tensor:
    return weft.tensor(array, device=device.device, **options)


@pytest.mark.parametrize("features", [(), MMA], ids=["fma", "mma"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_what_follows_is_part_of_the_kernel(dtype, features):
    device = Lockstep(features=features)
    x, w, bias = numbers(dtype, 2, 11, 24), numbers(dtype, 20, 24, seed=1), numbers(dtype, 20, seed=2)
    y = F.relu(F.linear(*(on(device, array) for array in (x, w, bias)))).reshape(22, 20) * 2
    found = y.numpy().astype(float)
    wide = [array.astype(float) for array in (x, w, bias)]
    expected = np.maximum(wide[0] @ wide[1].T + wide[2], 0).reshape(22, 20) * 2
    tolerance = 3e-2 if dtype is dtypes.bfloat16 else 1e-5
    np.testing.assert_allclose(found, expected, tolerance, tolerance * 20)
    assert [kernel.name.split("_")[0] for kernel in device.kernels] == ["product"]


def test_batches_are_read_where_they_lie():
    """Heads split by movement: [B, T, H, D] with H before T is a view with two levels of batches."""
    device = Lockstep()
    q, k = numbers(dtypes.float32, 2, 9, 3, 20), numbers(dtypes.float32, 2, 17, 3, 20, seed=1)
    scores = on(device, q).transpose(1, 2) @ on(device, k).transpose(1, 2).transpose(2, 3)
    expected = np.einsum("bthd,bshd->bhts", q.astype(float), k.astype(float))
    np.testing.assert_allclose(scores.numpy(), expected, 1e-5, 1e-4)
    assert len(device.kernels) == 1


def test_gradients_of_a_layer():
    device = Lockstep()
    arrays = numbers(dtypes.float32, 18, 24), numbers(dtypes.float32, 24, 24, seed=1)
    x, w = (on(device, array, requires_grad=True) for array in arrays)
    ((x @ w).tanh() ** 2).sum().backward()
    a, b = (array.astype(float) for array in arrays)
    y = np.tanh(a @ b)
    slope = 2 * y * (1 - y * y)
    np.testing.assert_allclose(x.grad.numpy(), slope @ b.T, 1e-4, 1e-4)
    np.testing.assert_allclose(w.grad.numpy(), a.T @ slope, 1e-4, 1e-4)


def test_long_sums_of_few_tiles_are_cut(monkeypatch):
    monkeypatch.setattr(numerics, "MIN_PART_LENGTH", 16)
    device = Lockstep()
    a, b = numbers(dtypes.float32, 18, 128), numbers(dtypes.float32, 128, 17, seed=1)
    for left, right in ((on(device, a), on(device, b)), (on(device, a.T.copy()).T, on(device, b.T.copy()).T)):
        found = (left @ right) * 2
        np.testing.assert_allclose(found.numpy(), 2 * (a.astype(float) @ b), 1e-5, 1e-3)
    names = [kernel.name for kernel in device.kernels]
    assert [name.split("_")[0] for name in names[:2]] == ["product", "cols"] and len(names) == 4, names


@pytest.mark.parametrize(
    "shape, parts",
    [
        ((64, 128, 784), 14),  # small, so of 56 each: at least 48, and multiples of 4
        ((64, 128, 256), 1),  # short enough for one loop
        ((64, 10, 1021), 1),  # nothing divides it
        ((768, 768, 16384), 4),  # 36 tiles of 128 x 128
        ((4096, 4096, 4096), 1),
        ((1, 1, 1 << 20), 16),
    ],
)
def test_shapes_say_how_sums_are_cut(shape, parts):
    assert numerics.gpu_product_parts(*shape) == parts


def test_a_small_product_is_fetched_at_once():
    """As many stages as steps of k, without asking for memory with the launch."""
    for m, n, k in ((64, 10, 128), (64, 128, 10), (784, 128, 64), (128, 10, 64), (64, 128, 56)):
        for transposed in TRANSPOSES:
            made, count = kernel(dtypes.float32, m, n, k, transposed)
            product = Product(
                strided_operand("a", dtypes.float32, k, 1), strided_operand("b", dtypes.float32, 1, n), 1, m, n, k
            )
            choice = tiling(product, FRAGMENTS.unit, 132, replace(HOPPER, shared_bytes=HOPPER.static_shared_bytes))
            assert choice.stages == -(-k // choice.depth) and choice.lanes == 256 and count <= 132
            assert made.geometry.shared == 0


@pytest.mark.parametrize("transposed", TRANSPOSES)
@pytest.mark.parametrize("shape", [(33, 70, 40), (64, 10, 128), (20, 9, 10), (5, 3, 300)])
def test_small_products(shape, transposed):
    launched(Lockstep(), dtypes.float32, shape, transposed)


def test_contiguous_elements_are_fetched_together_where_all_rows_allow_it():
    assert [strided_operand("a", dtypes.float32, step, 1).vector for step in (784, 10, 7)] == [4, 2, 1]
    assert strided_operand("a", dtypes.bfloat16, 1, 12).vector == 4
    assert strided_operand("a", dtypes.float32, 8, 1, [(3, 18)]).vector == 2


ALL_TILES = [(form, tile) for form, tiles in TILES.items() for tile in tiles]


@pytest.mark.parametrize("form, tile", ALL_TILES, ids=[f"{form} {tile.name}" for form, tile in ALL_TILES])
def test_bits_are_the_same_with_every_tile_that_is_searched(form, tile):
    dtype = dtypes.float32 if form == "registers" else dtypes.bfloat16
    usual = SMALL_TILES if form == "registers" else UNITS
    tile = replace(tile, fragments=FRAGMENTS if form == "units" else None, stages=2)
    for transposed, choice in (((False, False), tile), ((True, False), replace(tile, prefetches=True))):
        one = launched(Lockstep(), dtype, (37, 70, 36), transposed, usual)
        assert launched(Lockstep(), dtype, (37, 70, 36), transposed, choice).tobytes() == one.tobytes()


def plain_product(m: int, n: int, k: int, dtype=dtypes.float32) -> Product:
    return Product(strided_operand("a", dtype, k, 1), strided_operand("b", dtype, 1, n), 1, m, n, k)


def test_measured_speeds_choose_the_tile():
    product = plain_product(2048, 2048, 512)
    usual = tiling(product, FRAGMENTS.unit, 132, HOPPER)
    assert usual.name == "128x128x16/8x8"
    for form, tile in ALL_TILES:
        name = f"{form} {tile.name}"
        chosen = tiling(product, FRAGMENTS.unit, 132, HOPPER, speeds=((name, 5),))
        assert chosen.name == (tile.name if form == "registers" else usual.name)  # others are of another form
    slow_and_fast = (("registers 128x128x16/8x8", 10), ("registers 64x64x16/4x4", 1000))
    assert tiling(product, FRAGMENTS.unit, 132, HOPPER, speeds=slow_and_fast).name == "64x64x16/4x4"
    halves = plain_product(2048, 2048, 512, dtypes.bfloat16)
    assert tiling(halves, FRAGMENTS.unit, 132, HOPPER, speeds=(("units 64x64x64/32x32", 1),)).name == "64x64x64/32x32"


@pytest.mark.parametrize("k", [8, 16, 24, 20])
def test_the_sign_of_a_sum_that_underflows_depends_on_no_tile(k):
    """A step beyond the end of k adds zeros, which make 0 of -0: tiles with longer or shorter steps are left out."""
    signs = set()
    for _, tile in [pair for pair in ALL_TILES if pair[0] == "registers"]:
        product = plain_product(4096, 4096, k)
        chosen = tiling(product, None, 132, HOPPER, speeds=((f"registers {tile.name}", 1),))
        made, count = kernel(dtypes.float32, 4, 4, k, choice=chosen)
        a, b, c = np.full(4 * k, -1e-30, np.float32), np.full(4 * k, 1e-30, np.float32), np.ones(16, np.float32)
        Lockstep().launch(normalise(made), [a, b, c], (4,), count)
        assert not c.any()
        signs.add(bool(np.signbit(c).any()))
    assert signs == {k % 16 == 0}


def test_a_tile_without_room_leaves_the_choice_to_the_defaults():
    limits = Limits(workgroup_size=256, shared_bytes=16384, static_shared_bytes=16384)
    speeds = (("registers 128x256x8/8x16", 1000), ("registers unknown", 1000))
    product = plain_product(2048, 2048, 512)
    assert tiling(product, None, 64, limits, False, speeds) == tiling(product, None, 64, limits, False)


def test_small_and_wide_products_have_tiles_of_their_own():
    speeds = tuple([(f"{form} {tile.name}", 1000 + number) for number, (form, tile) in enumerate(ALL_TILES)])
    for product in (plain_product(64, 64, 64), plain_product(2048, 2048, 64, dtypes.float64)):
        assert tiling(product, None, 132, HOPPER, True, speeds) == tiling(product, None, 132, HOPPER)


@pytest.mark.parametrize("features", [(), MMA], ids=["fma", "mma"])
@pytest.mark.parametrize("channels, dtype", [(8, "float32"), (3, "float32"), (8, "bfloat16")])
def test_windows_are_read_by_their_indices(channels, dtype, features):
    """A convolution and both its gradients: the elements under its windows are never stored."""
    device = Lockstep(features=features)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, channels, 6, 5)), rng.standard_normal((12, channels, 3, 3)) / 5
    found = []
    for where in (device.device, "reference"):
        a, b = (weft.tensor(array, dtype=dtypes.by_name(dtype), device=where, requires_grad=True) for array in (x, w))
        y = F.conv2d(a, b, padding=1, stride=(1, 2))
        (y * y).sum().backward()
        found.append([result.numpy().astype(float) for result in (y, a.grad, b.grad)])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(
            ours, theirs, 1e-4 if dtype == "float32" else 5e-2, 1e-4 if dtype == "float32" else 0.2
        )
    maps = [kernel.name.split("_")[-1] for kernel in device.kernels if kernel.name.startswith("map")]
    assert max(math.prod(map(int, shape.split("x"))) for shape in maps) < 2 * 6 * 3 * 9 * channels


def test_integers():
    device = Lockstep()
    a, b = numbers(dtypes.int64, 22, 21), numbers(dtypes.int64, 21, 23, seed=1)
    np.testing.assert_array_equal((on(device, a) @ on(device, b)).numpy(), a @ b)


def test_another_number_of_rows_is_the_same_kernel():
    device = Lockstep()
    w = on(device, numbers(dtypes.float32, 24, 24))
    for rows in (20, 27):
        (on(device, numbers(dtypes.float32, rows, 24)) @ w).numpy()
    assert len(device.kernels) == 2 and len({clike_module.symbol(kernel, CUDA) for kernel in device.kernels}) == 1


# --- machine code ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.float64])
def test_large_tiles_stay_in_registers(dtype, architecture):
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed")
    for transposed in TRANSPOSES:
        made, _ = kernel(dtype, 4096, 4096, 4096, transposed)
        said = compiled(nvrtc, clike_module.render(normalise(made), CUDA), architecture)
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in said, said


def compiled(nvrtc, text: str, architecture: str) -> str:
    """What the assembler says about a kernel."""
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], [])
    options = [f"-arch={architecture}".encode(), b"-std=c++17", b"-fmad=false", b"--ptxas-options=-v"]
    nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.decode()


def test_tiles_of_a_product_in_parts():
    """Few rows, long sums: every part has tiles of its own."""
    device = Lockstep(features=MMA, processors=132, workgroup_size=1024, shared_bytes=232448).device
    parts = numerics.gpu_product_parts(32, 256, 8192)
    found = tiles_for(device, dtypes.float32, 32, 256, 8192)
    assert parts > 1 and found["registers 16x16x16/2x2"] == -(-parts * 2 * 16 // 132) * 16 * 16
    assert tiles_for(device, dtypes.float32, 64, 64, 64) == {} == tiles_for(device, dtypes.float64, 2048, 2048, 64)
    halves = tiles_for(device, dtypes.bfloat16, 2048, 2048, 512)
    assert halves["units 128x128x32/64x64"] == 2 * 128 * 128 and all(name.startswith("units ") for name in halves)
