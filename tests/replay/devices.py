"""Devices that render plans and run nothing: a CPU with AVX2, an NVIDIA GPU with and without libraries, other GPUs.

What they render follows from the program alone: features and limits are fixed here, whatever machine this is.
"""

from __future__ import annotations

from typing import Any

from tests.unit.fake_cuda import HOPPER
from tests.unit.fake_cudnn import FakeGraphs
from tests.unit.gpu_harness import HostBackend, Products, check_limits
from weft import dtypes
from weft.backends import cuda
from weft.backends.base import Device, Library
from weft.backends.null import NullExecutable
from weft.backends.vendor.cudnn import Cudnn
from weft.compiler.plan import Code, Plan, code_of
from weft.kernels.language import Kernel
from weft.kernels.normal import normalise
from weft.render import clike, llvm
from weft.render.dialects import CUDA

AVX2 = {"vector_bytes": 512, "threads": 8}


class Renderer(HostBackend):
    """A device of any description. Inputs are where they were put; every result is zero."""

    def __init__(
        self, kind: str, features: frozenset[str], limits: dict[str, int], libraries: dict[str, Library] | None = None
    ):
        super().__init__(kind)
        self.device = Device(kind, 0, self, "", frozenset(dtypes.ALL), features, limits, libraries or {})

    def render(self, kernel: Kernel) -> Code:  # type: ignore[override]
        if "blocks" in self.device.features:
            check_limits(kernel, self.device)
            (symbol,), text = clike.named([normalise(kernel)], CUDA)
        else:
            text = llvm.render(normalise(kernel))
            symbol = llvm.symbol_of(text)
        return code_of(kernel, symbol, text)

    def executable(self, plan: Plan) -> Any:
        return NullExecutable(plan)


def cpu() -> Device:
    return Renderer("cpu", frozenset({"templates", "numbers", "small products"}), AVX2).device


def gpu() -> Device:
    """An NVIDIA GPU on which everything is computed by our own kernels."""
    return Renderer("cuda", cuda.FEATURES, HOPPER).device


def gpu_with_libraries() -> Device:
    return Renderer("cuda", cuda.FEATURES, HOPPER, {"products": Products(), "cudnn": Cudnn(FakeGraphs())}).device


DEVICES = {"cpu": cpu, "gpu": gpu, "gpu+libraries": gpu_with_libraries}
