"""The plan of a GPT's training step on a GPU with libraries, made without one: what it launches and what it moves."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.unit.fake_cuda import HOPPER
from tests.unit.fake_cudnn import FakeGraphs
from tests.unit.gpu_harness import gpu_features
from weft.backends.cuda.cudnn import Cudnn
from weft.backends.null import NullBackend
from weft.base import dtypes
from weft.plan.device import Device
from weft.plan.plan import LibraryCall, iterate_steps

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from gpt import TINY_GPT
from gpt_weft import GptRunner

sys.path.pop(0)

pytestmark = pytest.mark.unit

CASE = replace(TINY_GPT, layers=3, width=256, heads=4, vocabulary=1152, words=1000, length=160, batch=8)
TOKENS, WIDTH = CASE.tokens, CASE.width


class Products:
    """A library that computes every product, with what cuBLASLt can do on the way."""

    name, version = "products", "1"

    def offer(self, node: Any, srcs: Any) -> None:
        """Nothing but products."""

    def can_multiply(self, *product: Any) -> bool:
        return True

    def epilogues(self, dtype: Any) -> frozenset[str]:
        return frozenset({"add", "bias", "relu", "gelu"})

    def configure_product(self, product: Any) -> tuple[tuple, int]:
        return product.config, 0


class Gpu(NullBackend):
    """A device like an H200 that runs nothing."""

    def __init__(self) -> None:
        super().__init__()
        features = gpu_features("subgroup_operations", "scalar_arguments", "float16_attention")
        libraries: dict[str, Any] = {"products": Products(), "cudnn": Cudnn(FakeGraphs())}
        self._device = Device("null", 0, self, "", frozenset(dtypes.ALL), features, HOPPER, libraries)

    def render(self, kernel: Any) -> Any:
        return kernel


@pytest.fixture(scope="module")
def plan():
    with pytest.MonkeyPatch.context() as patch, weft.device(Gpu().devices()[0]):
        patch.setattr(
            "weft.compiler.lowering.batch_launches.join_launches", lambda steps, *_: list(steps)
        )  # each kernel by its name
        runner = GptRunner(CASE)
        runner.step(*runner.inputs)
        return runner.step.plan


def steps(plan: Any) -> list[Any]:
    return [step for step, _ in iterate_steps(plan.plan.steps)]


def large(plan: Any) -> list[Any]:
    """Kernels, not library calls, that move at least as much as the residual stream twice."""
    return [step for step in steps(plan) if not isinstance(step, LibraryCall) and step.bytes >= 2 * 4 * TOKENS * WIDTH]


def names(found: Sequence[Any]) -> list[str]:
    return [step.name for step in found]


def test_nothing_is_copied_or_transposed(plan):
    wrong = [name for name in names(steps(plan)) if "copy" in name or "permute" in name or "concat" in name]
    assert not wrong, wrong


def test_libraries_compute_products_and_attention(plan):
    calls = names([step for step in steps(plan) if isinstance(step, LibraryCall)])
    assert calls.count("attention") == calls.count("attention_backward") == CASE.layers
    assert sum(name.startswith("product") for name in calls) == 3 * (4 * CASE.layers + 1)


def test_large_kernels_of_a_layer(plan):
    """Forward: two norms, each with the sum before it; backward: two norms, and GELU with its bias gradient. Beside the
    layers: the last norm, the loss in one kernel, the embedding's gradients and the update."""
    found = [name for name in names(large(plan)) if str(TOKENS) in name]
    assert len(found) <= 5 * CASE.layers + 6, found
    logits = [name for name in names(steps(plan)) if f"{TOKENS}x{CASE.vocabulary}" in name]
    assert sum(not name.startswith("product") for name in logits) == 1, logits


def test_norms_move_what_they_must(plan):
    """Forward: the stream and what is added to it, in; the stream and the norm in bfloat16, out. Backward: the stream,
    its gradient and that of the norm, in; its gradient in both dtypes, out."""
    stream = 4 * TOKENS * WIDTH
    norms = [step for step in large(plan) if step.name.startswith("rows") and step.name.endswith(f"x{WIDTH}")]
    forward = sorted(step.bytes / stream for step in norms if "part_sum" not in step.name)
    backward = sorted(step.bytes / stream for step in norms if "part_sum" in step.name)
    assert len(forward) >= 2 * CASE.layers and len(backward) == 2 * CASE.layers + 1  # the first has no sum before it
    assert forward[len(forward) // 2] <= 3.2 and backward[len(backward) // 2] <= 4.4


def test_the_update_is_one_kernel_that_shares_its_powers(plan):
    (update,) = [step for step in steps(plan) if step.name.startswith("map_div_sqrt")]
    count = sum(math.prod(shape) for shape in CASE.shapes().values())
    assert update.extent == count and update.bytes <= 1.01 * 28 * count
    assert "pow" not in update.name


def test_memory_is_what_the_backward_pass_needs(plan):
    """For each layer and token, in units of its width and two bytes: the stream twice (4), norms (2), q, k, v (3),
    attention (1), GELU's input and output (8)."""
    kept = CASE.layers * TOKENS * WIDTH * 2 * (4 + 2 + 3 + 1 + 8)
    logits = 2 * TOKENS * CASE.vocabulary
    weights = 2 * sum(shape[0] * shape[1] for shape in CASE.shapes().values() if len(shape) == 2)
    assert plan.memory().arena_bytes <= 1.35 * (kept + 2 * logits + 3 * weights)


def test_small_sums_and_casts_of_all_layers_share_launches(plan):
    """Weights of one shape are cast eight at a time, and so are the last steps of column sums."""
    found = [name for name in names(steps(plan)) if name.startswith(("map_cast", "cols_sum"))]
    assert max(found.count(name) for name in found) <= 2, found
