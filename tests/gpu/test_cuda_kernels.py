"""The kernels of this version on a real NVIDIA GPU: NVRTC to machine code, launched through cuda.core.

Needs Python, NumPy, pytest, cuda-core and a GPU. Memory is pinned host memory, which the GPU reads and writes too: this
tests kernels, not speed.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.unit.gpu_harness import Executable, HostBackend
from tests.unit.programs import PROGRAMS, assert_equal_results, expected_results, results
from weft.backends.base import Slab
from weft.compiler.plan import Plan
from weft.kernels.language import Kernel
from weft.render import clike
from weft.render.dialects import CUDA

core = pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install 'weft[cuda-compile]'")
try:
    gpu = core.Device(0)
    gpu.set_current()
except Exception as error:  # cuda.core has one error for a missing driver and another for a missing device
    pytest.skip(f"no NVIDIA GPU here: {error}", allow_module_level=True)


class CudaKernels(HostBackend):
    """Launches kernels on the GPU; `blocks` overrides how many."""

    def __init__(self, blocks: int | None = None):
        super().__init__("cuda_kernels")
        self.blocks = blocks
        self.stream = gpu.create_stream()
        self.pinned = core.LegacyPinnedMemoryResource()
        self.loaded: dict[str, object] = {}
        self.symbols: dict[int, str] = {}

    def allocate(self, nbytes: int) -> Slab:
        memory = self.pinned.allocate(max(nbytes, 1))
        pointer = int(memory.handle)
        ctypes.memset(pointer, 0, max(nbytes, 1))
        return Slab(self.device, nbytes, pointer, memory)

    def executable(self, plan: Plan) -> Executable:
        made = super().executable(plan)
        kernels = [kernel for kernel in made.ready.values() if kernel]
        self.symbols.update({id(kernel): clike.symbol(kernel, CUDA) for kernel in kernels})
        fresh = [kernel for kernel in kernels if self.symbols[id(kernel)] not in self.loaded]
        if fresh:
            options = core.ProgramOptions(std="c++17", fma=False, arch=f"sm_{gpu.arch}")
            code = core.Program(clike.render_all(fresh, CUDA), code_type="c++", options=options).compile("cubin")
            for kernel in fresh:
                name = self.symbols[id(kernel)]
                self.loaded[name] = code.get_kernel(name)
        return made

    def launch(self, kernel: Kernel, arrays: list[np.ndarray], scalars: tuple, extent: int) -> None:
        assert kernel.geometry is not None
        config = core.LaunchConfig(grid=self.blocks or kernel.geometry.blocks(extent), block=kernel.geometry.threads)
        numbers = [param.dtype.numpy.type(value) for param, value in zip(kernel.scalars, scalars, strict=True)]
        arguments = [*(array.ctypes.data for array in arrays), *numbers, np.int64(0), np.int64(extent)]
        core.launch(self.stream, config, self.loaded[self.symbols[id(kernel)]], *arguments)
        self.stream.sync()


def on_gpu(name: str, blocks: int | None = None) -> list[np.ndarray]:
    return results(PROGRAMS[name], CudaKernels(blocks).device)


@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees_with_the_reference(name):
    assert_equal_results(on_gpu(name), expected_results(name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_bits_again_and_for_any_number_of_blocks(name):
    first = on_gpu(name)
    for other in (on_gpu(name), on_gpu(name, 1), on_gpu(name, 7)):
        for a, b in zip(first, other, strict=True):
            assert a.tobytes() == b.tobytes()
