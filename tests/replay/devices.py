"""Devices that render plans and run nothing: a CPU with AVX2, an NVIDIA GPU with and without libraries, other GPUs.

What they render follows from the program alone: features and limits are fixed here, whatever machine this is.
"""

from __future__ import annotations

from typing import Any

from tests.unit.fake_cuda import HOPPER
from tests.unit.fake_cudnn import FakeGraphs
from tests.unit.gpu_harness import HostBackend, Products, check_limits
from weft.backends.cuda import backend as cuda_backend
from weft.backends.cuda.cudnn import Cudnn
from weft.backends.null import NullExecutable
from weft.base import dtypes
from weft.base.capabilities import Features, Limits
from weft.base.tuning import Tuning
from weft.kernels.ir.language import Kernel
from weft.kernels.ir.normalize import normalise
from weft.plan.device import Device
from weft.plan.plan import Code, Plan, code_of
from weft.plan.protocols import Library
from weft.render.clike import module as clike_module
from weft.render.dialects.tables import CUDA
from weft.render.llvm import module as llvm_module

AVX2 = Limits(cpu_threads=8, vector_register_bytes=512)


class Renderer(HostBackend):
    """A device of any description. Inputs are where they were put; every result is zero."""

    def __init__(
        self, kind: str, features: Features, limits: Limits, libraries: dict[str, Library] | None = None,
        tuning: Tuning = Tuning(),  # noqa: B008
    ):  # fmt: skip
        super().__init__(kind)
        every = frozenset(dtypes.ALL)
        self.kernels: dict[str, Kernel] = {}  # all that was rendered, in normal form, by symbol
        self.device = Device(kind, 0, self, "", every, features, limits, libraries or {}, tuning=tuning)

    def render(self, kernel: Kernel) -> Code:  # type: ignore[override]
        normal = normalise(kernel)
        if self.device.features.workgroups:
            check_limits(kernel, self.device)
            (symbol,), text = clike_module.render_with_symbols([normal], CUDA)
        else:
            text = llvm_module.render(normal)
            symbol = llvm_module.symbol_of(text)
        self.kernels[symbol] = normal
        return code_of(kernel, symbol, text)

    def executable(self, plan: Plan) -> Any:
        return NullExecutable(plan)


def cpu() -> Device:
    return Renderer("cpu", Features(cpu_templates=True, scalar_arguments=True, small_products=True), AVX2).device


def gpu() -> Device:
    """An NVIDIA GPU on which everything is computed by our own kernels."""
    return Renderer("cuda", cuda_backend.FEATURES, HOPPER).device


def gpu_with_libraries() -> Device:
    return Renderer(
        "cuda", cuda_backend.FEATURES, HOPPER, {"products": Products(), "cudnn": Cudnn(FakeGraphs())}
    ).device


DEVICES = {"cpu": cpu, "gpu": gpu, "gpu+libraries": gpu_with_libraries}
