"""Kernels as WGSL text, and their indices in 32 bits, without a runtime."""

from __future__ import annotations

import re

import numpy as np

import weft
from tests.unit.fake_driver import FakeGpu
from tests.unit.webgpu_devices import copied
from weft.base import dtypes
from weft.base.capabilities import Features, Limits
from weft.kernels.gpu.int32_indices import use_int32_indices
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import BufferParam, Geometry, IndexValue, Kernel, Let, Load, Loop, Store, Var
from weft.kernels.ir.normalize import normalise
from weft.nn import functional as F
from weft.plan.device import Device
from weft.plan.plan import Code, code_of
from weft.render.wgsl import int64_pairs
from weft.render.wgsl.module import render
from weft.render.wgsl.operations import Extensions


class Collector(FakeGpu):
    """A device that the compiler takes for a WebGPU one; its kernels are collected as WGSL."""

    def __init__(self):
        super().__init__()
        self.texts: dict[str, str] = {}
        features = Features(workgroups=True, scalar_arguments=True, int64_arithmetic=False)
        kinds = frozenset(dtypes.ALL) - {dtypes.float64}
        self.device = Device("webgpu", 9, self, "no hardware", kinds, features, Limits(storage_buffers=8))

    def render(self, kernel: Kernel) -> Code:
        symbol, text = render(kernel)
        self.texts[symbol] = text
        self.driver.kernels[symbol] = kernel
        return code_of(kernel, symbol, text)


def test_texts_of_a_training_step_have_no_64_bit_types():
    collector = Collector()
    weight = weft.tensor(np.ones((5, 4), np.float32), device=collector.device, requires_grad=True)
    x = weft.tensor(np.ones((3, 4), np.float32), device=collector.device)
    labels = weft.tensor(np.array([0, 1, 4]), device=collector.device)
    F.cross_entropy(F.linear(x, weight), labels).backward()
    weft.eval(weight.grad)
    assert any("vec2<u32>" in text for text in collector.texts.values())  # the labels
    for text in collector.texts.values():
        assert not any(word in text for word in ("i64", "u64", "f64", "?"))


def test_zeros_of_sums_are_hidden():
    """WGSL lets a compiler make `x` of x + 0.0, which is 0.0 where x is -0.0: sorting would not be stable."""
    collector = Collector()
    x = weft.tensor(np.array([0.0, -0.0, 3.0], np.float32), device=collector.device)
    weft.eval(x.sort().indices)
    sums = [line for text in collector.texts.values() for line in text.splitlines() if re.search(r"\b0\.0f", line)]
    assert any("hide_f32(0.0f)" in line for line in sums)
    assert not [line for line in sums if re.search(r"[+-] 0\.0f|\b0\.0f [+-]", line)]


def test_reserved_names_are_changed():
    symbol, text = render(copied("let", dtypes.float32, "fn"))
    assert "var<storage, read_write> let:" not in text and "let_x" in text and "target_x" in text and "fn_x" in text
    assert f"fn {symbol}(" in text


def test_equal_kernels_have_one_name_and_others_another():
    assert render(copied("a", dtypes.float32)) == render(copied("a", dtypes.float32))
    assert render(copied("a", dtypes.float32))[0] != render(copied("a", dtypes.int32))[0]


def test_stores_of_bytes_are_atomic_and_those_of_words_are_not():
    assert "atomicOr(&target_x" in render(copied("a", dtypes.uint8))[1]
    assert "atomic" not in render(copied("a", dtypes.float32))[1]
    assert "array<vec2<u32>>" in render(copied("a", dtypes.int64))[1]
    assert "array<i64>" in render(copied("a", dtypes.int64), Extensions(int64=True))[1]


def test_pairs_call_only_what_is_written_before_them():
    for name in int64_pairs.FUNCTIONS:
        assert set(int64_pairs.dependencies(name)) <= set(int64_pairs.FUNCTIONS)
        assert name not in int64_pairs.dependencies(name)


def lowered(value, ranges=("begin", "end")) -> list[Let]:
    """The definitions of a kernel that stores `value`, with indices in 32 bits."""
    buffers = (BufferParam("a", dtypes.int64, False), BufferParam("out", value.dtype, True))
    store = Store("out", Index((), 0), value)
    kernel = Kernel("k", buffers, (), ranges, (store,), {}, Geometry(256, 1))
    return [stmt for stmt in use_int32_indices(normalise(kernel)).body if isinstance(stmt, Let)]


def test_indices_become_32_bits_and_data_does_not():
    begin, data = Var("begin", dtypes.int64), Load("a", Index((), 0), dtypes.int64)
    assert [let.value.dtype for let in lowered((begin * 8 + 3) < 7)][:2] == [dtypes.int32] * 2
    assert all(let.value.dtype is dtypes.int64 for let in lowered(data * 8))
    mixed = lowered(data + begin)
    assert [let.value.dtype for let in mixed] == [dtypes.int64] * 3  # the load, the cast, the sum


def test_numbers_that_may_leave_32_bits_stay_wide():
    row = IndexValue(Index(((Axis("r", 100), 1),), 0), dtypes.int64)
    loop = Loop(Axis("r", 100), 0, 100, "serial", (Store("out", Index((), 0), row * 10**9),))
    kernel = Kernel("k", (BufferParam("out", dtypes.int64, True),), (), (), (loop,), {}, Geometry(256, 1))
    (made,) = use_int32_indices(normalise(kernel)).body
    assert [let.value.dtype for let in made.body if isinstance(let, Let)][-1] is dtypes.int64
