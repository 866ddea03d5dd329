"""The C-like renderer: golden texts of three kernels, and what must hold for every text.

`WEFT_REGENERATE=1 python -m pytest tests/unit/test_clike.py` writes the golden files anew; look at the difference then.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.gpu_harness import HostBackend
from tests.unit.programs import PROGRAMS, results
from weft.base import dtypes
from weft.errors import GraphError
from weft.kernels.cpu import schedule as cpu_schedule
from weft.kernels.gpu import schedule as gpu_schedule
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index, axis_index
from weft.kernels.ir.language import (
    LAUNCH_RANGES,
    Accumulator,
    BufferParam,
    Geometry,
    IndexValue,
    Kernel,
    Load,
    Loop,
    Op,
    Reduction,
    ScalarParam,
    Store,
    Update,
    Var,
)
from weft.kernels.ir.nest import ColumnSum, Nest, Span
from weft.kernels.ir.normalize import normalise
from weft.render.clike import module as clike_module
from weft.render.clike import operations as clike_operations
from weft.render.clike.operations import Operations
from weft.render.dialects import tables as dialects_tables
from weft.render.dialects.tables import CUDA

GOLDEN = Path(__file__).parents[1] / "golden"
FLOAT, INT = dtypes.float32, dtypes.int64


def op(name, *args):
    return Op(name, args, args[0].dtype)


def buffers(**dtypes_of):
    """Parameters by name; those called out... are written."""
    return tuple(BufferParam(name, dtype, name.startswith("out")) for name, dtype in dtypes_of.items())


def scaled(rows=5, cols=40) -> Nest:
    """out[row, col] = x[row, col] * scale + bias[col], with x stored by columns."""
    row, col = Axis("row", rows), Axis("col", cols)
    place = ix.linearise((axis_index(row), axis_index(col)), (rows, cols))
    transposed = ix.linearise((axis_index(col), axis_index(row)), (cols, rows))
    value = op(
        "add", op("mul", Load("x", transposed, FLOAT), Var("scale", FLOAT)), Load("bias", axis_index(col), FLOAT)
    )
    params = buffers(x=FLOAT, bias=FLOAT, out=FLOAT)
    store = Store("out", place, value)
    return Nest("scaled", row, "lane", col, (), (), (store,), (), (), params, (ScalarParam("scale", FLOAT),), {})


def normed(rows=9, cols=500) -> Nest:
    """out[row] = x[row] / max(abs(x[row])), and those largest values."""
    row, r = Axis("row", rows), Axis("r", cols, "reduce")
    x = Load("x", ix.linearise((axis_index(row), axis_index(r)), (rows, cols)), FLOAT)
    largest = Accumulator("largest", "max", FLOAT)
    final = Store("out", x.index, op("div", x, Var("largest", FLOAT)))
    point = Store("out_max", axis_index(row), Var("largest", FLOAT))
    params = buffers(x=FLOAT, out=FLOAT, out_max=FLOAT)
    stage = ((largest, op("abs", x)),)
    return Nest("normed", row, "inner", None, (Span(r, 0, cols),), (stage,), (point,), (final,), (), params, (), {})


def column_sums(rows=100, cols=12) -> Nest:
    """Sums of the columns of x over chunks of rows."""
    row, r = Axis("row", rows), Axis("r", cols, "reduce")
    x = Load("x", ix.linearise((axis_index(row), axis_index(r)), (rows, cols)), FLOAT)
    column = ColumnSum("out", axis_index(r), cols, Accumulator("", "sum", FLOAT), x)
    scalars = (ScalarParam("points", INT), ScalarParam("per_chunk", INT))
    params = buffers(x=FLOAT, out=FLOAT)
    return Nest("column_sums", row, "inner", None, (Span(r, 0, cols),), (), (), (), (column,), params, scalars, {})


def text_of(nest: Nest, dialect=CUDA, target=gpu_schedule.Target(1024, 32)) -> str:  # noqa: B008
    return clike_module.render(normalise(gpu_schedule.schedule(nest, target)), dialect)


def added(rows=1000, cols=96) -> Nest:
    """out[row, col] = x[row, col] + y[row, col] * bias[col]: enough for tiles."""
    row, col = Axis("row", rows), Axis("col", cols)
    place = ix.linearise((axis_index(row), axis_index(col)), (rows, cols))
    value = op("add", Load("x", place, FLOAT), op("mul", Load("y", place, FLOAT), Load("bias", axis_index(col), FLOAT)))
    params = buffers(x=FLOAT, y=FLOAT, bias=FLOAT, out=FLOAT)
    return Nest("added", row, "lane", col, (), (), (Store("out", place, value),), (), (), params, (), {})


def normed_long(rows=9, cols=6144) -> Nest:
    """`normed` by a block to a row."""
    return replace(normed(rows, cols), name="normed_long")


@pytest.mark.parametrize("make", [scaled, added, normed, normed_long, column_sums])
def test_golden(make):
    path, text = GOLDEN / f"{make.__name__}.cu", text_of(make())
    if os.environ.get("WEFT_REGENERATE"):
        path.write_text(text)
    assert text == path.read_text(), "the kernel changed: see how to regenerate it at the top of this file"


@pytest.fixture(scope="module")
def kernels():
    found = HostBackend("collector", ("subgroup_operations",))
    for program in PROGRAMS.values():
        results(program, found.device)
    return found.kernels


def test_no_value_is_computed_for_nothing(kernels):
    for kernel in kernels:
        text = clike_module.render(kernel, CUDA)
        for name in re.findall(r"(?:const )?\w+ (\w+) = ", text):
            assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{name} is not used in\n{text}"


def test_no_atomics_and_no_promise_about_aliases(kernels):
    text = clike_module.render_all(kernels, CUDA)
    assert "atomic" not in text
    assert "restrict" not in text  # a buffer updated in place is bound twice


def test_equal_kernels_are_printed_once():
    kernel, other = normalise(gpu_schedule.schedule(scaled())), normalise(gpu_schedule.schedule(scaled(7, 3)))
    text = clike_module.render_all([kernel, kernel, other], CUDA)
    assert text.count("{\n    const") == 2
    for one in (kernel, other):
        assert text.count(clike_module.symbol(one, CUDA)) == 1


OPENCL_LIKE = replace(
    CUDA,
    name="like OpenCL",
    header="#pragma OPENCL FP_CONTRACT OFF",
    kernel="__kernel __attribute__((reqd_work_group_size({threads}, 1, 1))) void {name}",
    function="static inline",
    outlined="static inline",
    pointer="__global {type}* {name}",
    local="__local {type} {name}[{size}];",
    private="{type} {name}[{size}];",
    copy="vstore{count}(vload{count}(0, &{source}), 0, &{target});",
    exchange="sub_group_shuffle_xor({value}, {distance})",
    address="(ulong){name}",
    barrier="barrier(CLK_LOCAL_MEM_FENCE);",
    lane="(int)get_local_id(0)",
    workgroup="(int)get_group_id(0)",
    workgroups="(int)get_num_groups(0)",
    types={**CUDA.types, "int64": "long", "uint64": "ulong"},
    suffixes={**CUDA.suffixes, "int64": "L"},
    constants={"inf_float32": "INFINITY", "nan_float32": "NAN", "inf_float64": "INFINITY", "nan_float64": "NAN"},
    calls={
        **{f"{name}_{dtype}": name for name in ("fma", "sqrt", "floor") for dtype in ("float32", "float64")},
        "abs_float32": "fabs",
        "abs_float64": "fabs",
        "mulhi_uint32": "mul_hi",
        "int32_float32": "as_int",
        "float32_int32": "as_float",
        "int64_float64": "as_long",
        "float64_int64": "as_double",
        "uint32_float32": "as_uint",
        "float32_uint32": "as_float",
    },
    functions={
        "float32_of_float16": "static inline float float32_of_float16(ushort a) "
        "{ return vload_half(0, (const half*)&a); }",
        "float16_of_float32": "static inline ushort float16_of_float32(float a) "
        "{ ushort bits; vstore_half_rte(a, 0, (half*)&bits); return bits; }",
    },
)


def test_another_table_is_another_language(kernels):
    text = clike_module.render_all(kernels, OPENCL_LIKE)
    words = set(re.findall(r"\w+", text))
    spoken = re.findall(
        r"\b__\w+",
        " ".join([CUDA.kernel, CUDA.function, CUDA.local, CUDA.barrier, CUDA.exchange, *CUDA.calls.values()]),
    )
    assert not words & {*spoken, "alignas", "copy_near", "threadIdx", "blockIdx", "gridDim", "fmaf", "sqrtf", "fabsf"}


def test_only_the_table_speaks_cuda():
    for module in (clike_module, clike_operations):
        code = Path(module.__file__).read_text()
        assert not re.search(r"__(global|device|shared|syncthreads|int_as_float)|threadIdx|\bfmaf\b", code)
    assert "threadIdx" in Path(dialects_tables.__file__).read_text()


def test_a_kernel_for_cpus_is_refused():
    with pytest.raises(GraphError, match=r"'scaled' without a geometry.*a kernel scheduled for GPU"):
        clike_module.render(normalise(cpu_schedule.schedule(scaled())), CUDA)


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 0.1, 1e-30, 6.0221408e23, 1.1754944e-38, 1e-45, 16777217.0, 3.4e38])
def test_float_literals_keep_their_bits(value):
    for dtype in (dtypes.float32, dtypes.float64):
        text = Operations(CUDA).literal(value, dtype)
        number = dtype.numpy.type(text.strip("()f"))
        assert number.tobytes() == dtype.numpy.type(value).tobytes()
        assert text.endswith(("f", "f)")) == (dtype is dtypes.float32)


def test_literals_without_digits():
    write = Operations(CUDA).literal
    assert write(math.inf, FLOAT) == "__int_as_float(0x7f800000)"
    assert write(-math.inf, FLOAT) == "(-__int_as_float(0x7f800000))"
    assert write(math.nan, dtypes.float64) == "__longlong_as_double(0x7ff8000000000000LL)"
    assert write(1e40, FLOAT) == write(math.inf, FLOAT)
    assert write(-(2**31), dtypes.int32) == "(-2147483647 - 1)"
    assert write(2**32 - 1, dtypes.uint32) == "4294967295u"
    assert write(True, dtypes.bool_) == "true"
    assert write(-0.0, FLOAT) == "(-0.0f)"
    assert np.signbit(np.float32(write(-0.0, FLOAT).strip("()f")))


def position(extent: int, index) -> str:
    """The text that stores `index(i)` for i below `extent`."""
    i = Axis("i", extent)
    store = Store("out", i % 8, IndexValue(index(axis_index(i)), INT))
    return text_of(Nest("position", i, "points", None, (), (), (store,), (), (), buffers(out=INT), (), {}))


def test_indices_are_as_wide_as_they_must_be():
    assert "for (int i = (int)begin +" in position(1 << 30, lambda i: i)
    assert "for (long long i = begin + (long long)(int)blockIdx.x * 256" in position((1 << 30) + 1, lambda i: i)
    assert "(long long)(i * 2)" in position(1000, lambda i: i * 2)
    assert "(long long)((long long)i * 5000)" in position(1 << 20, lambda i: i * 5000)


def test_quotients_round_down():
    """C rounds towards zero, so a value that may be negative is shifted, or moved up by a multiple of the divisor."""
    assert "(-i + 2) >> 2" in position(100, lambda i: (i * -1 + 2) // 4)
    assert "(-i + 2) & 3" in position(100, lambda i: (i * -1 + 2) % 4)
    assert "((-i + 2) + 99) / 3 - 33" in position(100, lambda i: (i * -1 + 2) // 3)
    assert "((-i + 2) + 99) % 3" in position(100, lambda i: (i * -1 + 2) % 3)


def test_a_mask_guards_its_load_and_store():
    i = Axis("i", 100)
    inside = IndexValue(axis_index(i), INT) < 90
    load = Load("x", Index(axis_index(i).terms, 10), FLOAT, inside)
    store = Store("out", axis_index(i), load, inside)
    text = text_of(Nest("masked", i, "points", None, (), (), (store,), (), (), buffers(x=FLOAT, out=FLOAT), (), {}))
    assert re.search(r"= t1 \? x\[i \+ 10\] : 0\.0f;\n +if \(t1\) out\[i\] = t2;", text), text


def test_a_product_is_added_in_one_rounding():
    i, k = Axis("i", 100), Axis("k", 8)
    x, y = Load("x", axis_index(k), FLOAT), Load("y", axis_index(i), FLOAT)
    reduction = Reduction((Accumulator("total", "sum", FLOAT),), (Loop(k, 0, 8, "serial", (Update("total", x, y),)),))
    store = Store("out", axis_index(i), Var("total", FLOAT))
    loop = Loop(i, Var("begin", INT), Var("end", INT), "grid", (reduction, store), 64)
    kernel = Kernel("sums", buffers(x=FLOAT, y=FLOAT, out=FLOAT), (), LAUNCH_RANGES, (loop,), {}, Geometry(64, 1))
    text = clike_module.render(normalise(kernel), CUDA)
    assert re.search(r"total = fmaf\(t\d+, t\d+, total\);", text), text
