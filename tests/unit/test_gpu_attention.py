"""Attention on GPUs: results and gradients in every form against the NumPy interpreter, and its machine code."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.unit.fake_cuda import HOPPER
from tests.unit.lockstep import FRAGMENTS, Lockstep
from tests.unit.test_gpu_product import compiled
from weft.base import dtypes
from weft.kernels.cpu.attention import Array, Problem
from weft.kernels.cpu.gemm import tile_for
from weft.kernels.gpu import attention as gpu_attention
from weft.kernels.gpu.attention_backward import backward
from weft.kernels.ir.language import BufferParam, Kernel
from weft.kernels.ir.normalize import normalise
from weft.render.clike import module as clike_module
from weft.render.dialects.tables import CUDA

MMA = ("matrix_units", "float16_attention")


def attended(device, lengths=(17, 18), widths=(8, 8), heads=(1, 1), dtype="float32", mask=None, **options):
    """The result and the gradients of q, k, v, of one form of attention on `device`."""
    (queries, keys), (width, value_width), (many, few) = lengths, widths, heads
    rng = np.random.default_rng(0)
    shapes = ((1, many, queries, width), (1, few, keys, width), (1, few, keys, value_width))
    kind = dtypes.by_name(dtype).numpy
    arrays = [rng.standard_normal(shape).astype(kind) for shape in (*shapes, (1, many, queries, value_width))]
    weft.manual_seed(3)
    q, k, v = (weft.tensor(array, device=device, requires_grad=True) for array in arrays[:3])
    if mask is not None:
        values = rng.standard_normal((1, 1, queries, keys))
        options["attn_mask"] = weft.tensor(values > -0.5 if mask == "bool" else values.astype(kind), device=device)
    y = F.scaled_dot_product_attention(q, k, v, enable_gqa=many != few, **options)
    (y * weft.tensor(arrays[3], device=device)).sum().backward()
    return [result.numpy().astype(float) for result in (y, q.grad, k.grad, v.grad)]


FORMS = {
    "plain": {},
    "several blocks": {"lengths": (18, 50), "widths": (12, 20)},
    "causal": {"lengths": (20, 20), "is_causal": True},
    "causal, more keys": {"lengths": (18, 35), "is_causal": True},  # the last are seen by no query
    "causal, more queries": {"lengths": (34, 17), "is_causal": True},
    "causal to the last, more keys": {"lengths": (18, 35), "causal": "bottom_right"},
    "causal to the last, more queries": {"lengths": (34, 17), "causal": "bottom_right"},  # the first see no key
    "bool mask": {"mask": "bool", "is_causal": True},
    "bias": {"mask": "float"},
    "grouped heads": {"heads": (4, 2), "lengths": (5, 19)},
    "dropout": {"dropout_p": 0.3},
    "wide": {"lengths": (3, 17), "widths": (70, 131)},
    "one query": {"lengths": (1, 40), "widths": (5, 7)},
}


def assert_close(found, expected, tolerance: float) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, tolerance, tolerance * max(np.abs(b).max(), 1))


def uses_blocks(device) -> bool:
    return sum(kernel.name.startswith("attention") for kernel in device.kernels) >= 2


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form):
    device = Lockstep(shared_bytes=49152)
    assert_close(attended(device.device, **FORMS[form]), attended("reference", **FORMS[form]), 2e-5)
    assert uses_blocks(device)


@pytest.mark.parametrize(("unit", "lanes"), [("mfma", 64), ("wmma", 32)])
@pytest.mark.parametrize("form", ["causal, more keys", "wide"])
def test_matrix_units_of_other_layouts(form, unit, lanes):
    device = Lockstep(features=(unit, "float16_attention"), shared_bytes=65536, subgroup_sizes=(lanes,))
    given = FORMS[form] | {"dtype": "float16"}
    assert_close(attended(device.device, **given), attended("reference", **given), 4e-3)
    assert uses_blocks(device) and any(kernel.geometry.lanes >= lanes for kernel in device.kernels)


@pytest.mark.parametrize("form", ["several blocks", "causal, more keys", "bias", "grouped heads", "dropout", "wide"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_matrix_units(form, dtype):
    device = Lockstep(features=MMA, shared_bytes=49152)
    given = FORMS[form] | {"dtype": dtype}
    assert_close(attended(device.device, **given), attended("reference", **given), 4e-3 if dtype == "float16" else 3e-2)
    assert uses_blocks(device) and any("tile_product" in clike_module.render(kernel, CUDA) for kernel in device.kernels)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_dtypes_one_by_one(dtype):
    device = Lockstep(features=("float16_attention",))
    found = attended(device.device, dtype=dtype)
    assert_close(found, attended("reference", dtype=dtype), 1e-13 if dtype == "float64" else 3e-2)
    assert uses_blocks(device)


def test_bits_do_not_depend_on_the_grid():
    given = FORMS["causal, more keys"] | {"dropout_p": 0.2}
    first = attended(Lockstep().device, **given)
    one_block = attended(Lockstep(1).device, **given)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, one_block, strict=True))


def test_memory_grows_with_the_length_alone():
    """Also where every device without workgroups would store scores: no kernel writes Tq x Tk elements."""
    device = Lockstep()
    attended(device.device, lengths=(33, 33))
    assert not any(kernel.name.startswith("product") for kernel in device.kernels)


def test_heads_that_are_too_wide_are_composed():
    device = Lockstep()
    given = {"lengths": (4, 5), "widths": (300, 8)}
    assert_close(attended(device.device, **given), attended("reference", **given), 2e-5)
    assert not uses_blocks(device)


def test_workgroups_fit_into_what_a_device_has():
    for nbytes in (16384, 49152, 232448):
        for width in (16, 64, 128, 256):
            for dtype in (dtypes.float32, dtypes.bfloat16):
                cut = gpu_attention.cut_of(
                    (width, width), (1024, 1024), dtype, FRAGMENTS.unit, replace(HOPPER, shared_bytes=nbytes)
                )
                if cut is not None:
                    assert all(shared_bytes(kernel) <= nbytes for kernel in kernels(dtype, width, cut))
    assert (
        gpu_attention.cut_of((64, 64), (1024, 1024), dtypes.float32, None, replace(HOPPER, shared_bytes=49152))
        is not None
    )


def shared_bytes(kernel: Kernel) -> int:
    arrays = [stmt for stmt in kernel.body if type(stmt).__name__ == "Local"]
    return sum(-(-array.size * array.dtype.itemsize // 16) * 16 for array in arrays)


def kernels(dtype, width: int, cut=None, **options) -> list[Kernel]:
    """Forward and backward of 12 causal heads with 1024 queries and keys."""
    cut = cut or gpu_attention.cut_of((width, width), (1024, 1024), dtype, FRAGMENTS.unit, HOPPER)
    arrays = [Array(name, (12 * 1024 * width, 1024 * width, width, 1), dtype) for name in "qkvg"]
    tile = tile_for(2048)
    problem = Problem(12, 12, 1024, 1024, width, width, dtype, True, False, False, *arrays[:3], None, tile)
    wide = dtypes.float32 if dtype.is_16_bit else dtype
    sources = [BufferParam(name, dtype, False) for name in "qkv"]
    results = [BufferParam("out", dtype, True), BufferParam("logs", wide, True)]
    saved = [BufferParam("logs", wide, False), BufferParam("means", wide, False), BufferParam("g", dtype, False)]
    gradients = [BufferParam(name, dtype, True) for name in ("in_q", "in_k", "in_v")]
    return [
        gpu_attention.forward(problem, cut, (*sources, *results)),
        backward(problem, arrays[3], cut, (*sources, *saved, *gradients)),
    ]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_registers_suffice(dtype, width, architecture):
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed")
    shared = 101376 if architecture == "sm_120" else 166912
    cut = gpu_attention.cut_of(
        (width, width), (1024, 1024), dtype, FRAGMENTS.unit, replace(HOPPER, shared_bytes=shared)
    )
    for kernel in kernels(dtype, width, cut):
        said = compiled(nvrtc, clike_module.render(normalise(kernel), CUDA), architecture)
        (spilled,) = re.findall(r"(\d+) bytes spill stores", said)
        assert int(spilled) <= 16, said  # next to nothing: a few addresses


def test_flipped_rows_are_put_in_order():
    """No kernel reads before the beginning of a buffer."""
    x, v = (
        np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((3, 1, 5, 7), (3, 1, 5, 2))
    )

    def attend(device):
        q = weft.tensor(x, device=device).flip(2)
        return F.scaled_dot_product_attention(q, q, weft.tensor(v, device=device)).numpy()

    np.testing.assert_allclose(attend(Lockstep().device), attend("reference"), 1e-5, 1e-6)
