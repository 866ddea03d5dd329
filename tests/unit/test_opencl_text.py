"""OpenCL: how kernels are printed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import weft
import weft.nn.functional as F
from tests.unit.opencl_printing import Printed
from weft.backends.opencl import compile as opencl_compile
from weft.render.dialects.opencl import OPENCL, SUBGROUPS, with_subgroups

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Kernels of products, rows, columns, sorting, attention, 16-bit floats and copies."""
    gpu = Printed()
    with weft.device(gpu.device):
        x, y = weft.ones(70, 66), weft.ones(66, 130)
        q = weft.ones(2, 3, 17, 8)
        narrow = weft.ones(40, 300, dtype=weft.float16)
        weft.eval(x, y, q, narrow)
        results = [
            x @ y, x.softmax(1), x.sum(0), x.sort(1)[0], x.T.contiguous(), narrow.sum(1), (narrow * 2).bfloat16(),
            F.scaled_dot_product_attention(q, q, q), (x > 0).any(1), weft.ones(3000, 700).softmax(1),
        ]  # fmt: skip
        for result in results:
            weft.eval(result)
    return [code.text for code in gpu.codes]


def body_of(text: str) -> list[str]:
    return text[text.index("__kernel") :].splitlines()[2:-1]


def test_nothing_of_cuda_is_printed(texts):
    assert len(texts) >= 10
    cuda = re.compile(r"\w<\d|template|__shared__|__device__|threadIdx|long long|unsigned|alignas|asm")
    for text in texts:
        assert not cuda.search(text), text


def test_buffers_are_memory_objects_with_offsets(texts):
    for text in texts:
        head = text[text.index("__kernel") :].splitlines()[0]
        names = re.findall(r"__global (?:const )?\w+\* (\w+)_base, ulong \1_at", head)
        assert names and head.count("__global") == len(names)
        for name in names:
            assert re.search(rf"\* {name} = \(__global .*\)\(\(__global char\*\){name}_base \+ {name}_at\);", text)


def test_shared_arrays_stand_at_the_top_of_the_kernel(texts):
    """The language allows them nowhere else."""
    shared = 0
    for text in texts:
        lines = body_of(text)
        last = max([number for number, line in enumerate(lines) if "__local " in line and "[" in line], default=-1)
        declared = [line for line in lines[: last + 1] if re.match(r"    __local \w+ \w+\[\d+\]", line)]
        shared += len(declared)
        assert all(re.match(r"    __(local|global) ", line) for line in lines[: len(declared)])
        assert not [line for line in lines[len(declared) :] if re.match(r"\s*__local \w+ \w+\[", line)]
    assert shared > 5


def test_contraction_is_off(texts):
    assert all(text.startswith("#pragma OPENCL FP_CONTRACT OFF\n") for text in texts)


def test_reserved_words_are_no_names(texts):
    reserved = re.compile(rf"\b({'|'.join(OPENCL.reserved)})\b")
    assert not [line for text in texts for line in body_of(text) if reserved.search(line)]
    assert any("half_" in text for text in texts)  # the sort's axis


def test_merged_texts_define_each_function_once(texts):
    merged = opencl_compile.merge(texts)
    defined = re.findall(r"^(?:__attribute__\(\(noinline\)\) )?static \w+ (\w+)\(", merged, re.M)
    assert len(set(defined)) == len(defined) > 5
    kernels = {re.search(r"void (\w+)\(", text)[1] for text in texts}
    assert set(re.findall(r"^__kernel .* void (\w+)\(", merged, re.M)) == kernels


def test_rows_exchange_values_in_subgroups():
    gpu = Printed()
    gpu.dialect = with_subgroups(16)
    limits = replace(gpu.device.limits, subgroup_sizes=(16,))
    gpu.device = replace(gpu.device, features=replace(gpu.device.features, subgroup_operations=True), limits=limits)
    with weft.device(gpu.device):
        x = weft.ones(40, 500)
        weft.eval(x.softmax(1), (x > 0).all(1))
    text = "".join(code.text for code in gpu.codes)
    assert "(float)sub_group_shuffle_xor((float)" in text
    assert "__kernel __attribute__((intel_reqd_sub_group_size(16))) " in text and "shuffle_xor((bool)" not in text
    assert f"#ifdef {SUBGROUPS}\n#pragma OPENCL EXTENSION {SUBGROUPS} : enable\n#endif" in text
    opencl_compile.merge([code.text for code in gpu.codes])  # texts have one header
