"""Conditions in WGSL are joined by `&` and `|`. wgpu makes branches of `&&` and `||`, and SwiftShader, Vulkan on a CPU,
takes twice as long to compile a loop for each of them: a softmax of 300 numbers did not end in minutes."""

from __future__ import annotations

import re

import numpy as np
import pytest

import weft
from tests.unit.test_wgsl import Collector
from weft.backends.webgpu import byte_copies
from weft.base import dtypes
from weft.nn import functional as F
from weft.render.wgsl import functions, int64_pairs
from weft.render.wgsl.operations import Extensions, Operations

BRANCHES = re.compile(r"&&|\|\|")


def test_operators_and_comparisons_of_bool():
    operations, texts = Operations(Extensions()), ["a", "b"]
    found = [operations.arithmetic(name, texts, dtypes.bool_) for name in ("and", "or")]
    found += [operations.compare(name, texts, dtypes.bool_) for name in ("lt", "le")]
    assert found == ["a & b", "a | b", "!a & b", "!a | b"]


def test_helper_functions():
    texts = [*functions.BODIES.values(), *functions.FUNCTIONS.values(), *functions.FLOAT16.values()]
    texts += [*int64_pairs.FUNCTIONS.values(), byte_copies.CODE.text, byte_copies.CLEAR.text]
    assert not [text for text in texts if BRANCHES.search(text)]
    assert "if (" not in functions.FUNCTIONS["fma_of_parts"]  # of which an exponential has several


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.conv2d(x[None, None], weft.ones(1, 1, 3, 3, device=x.device), padding=1),
        lambda x: (x % 0.7).softmax(-1) @ x.T,
        lambda x: x.sort(-1)[0].cummax(-1)[0],
        lambda x: x.to(weft.int64).clamp(-2, 3).max(-1)[0],
    ],
    ids=["conv2d", "product", "sort", "int64"],
)
def test_kernels(function):
    collector = Collector()
    x = weft.tensor(np.linspace(-3, 3, 7 * 33, dtype=np.float32).reshape(7, 33), device=collector.device)
    weft.eval(function(x))
    assert collector.texts
    assert not [line for text in collector.texts.values() for line in text.splitlines() if BRANCHES.search(line)]
