"""WGSL texts as compute pipelines of a wgpu device.

A pipeline has an explicit layout: binding 0 is the uniform with a launch's words, at a dynamic offset, and each buffer
follows as a storage buffer that may be read and written. The machine code is made, and kept on disk, by the graphics
driver.
"""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Sequence
from typing import Any

from weft.backends.webgpu.errors import raise_wgpu_errors
from weft.base.counters import COUNTERS
from weft.base.errors import DeviceError, problem
from weft.plan.device import DeviceLost
from weft.plan.plan import Code
from weft.render.wgsl.module import BINDINGS_COMMENT

MAX_COMPILE_THREADS = 8


class Function:
    """A kernel's pipeline, its layout, how many bindings each buffer has, and the bytes of the words that a launch
    passes."""

    __slots__ = ("argument_bytes", "bindings", "code", "layout", "pipeline", "pointer")

    def __init__(self, code: Code, pipeline: Any, layout: Any, bindings: tuple[int, ...], argument_bytes: int):
        self.code, self.pipeline, self.layout = code, pipeline, layout
        self.bindings, self.argument_bytes = bindings, argument_bytes
        self.pointer = pipeline._internal  # for the calls of an encoder, which are many


class Compiler:
    """The pipelines of one device, each made once."""

    def __init__(self, device: Any):
        self._device = device
        self._functions: dict[tuple, Function] = {}
        self._layouts: dict[tuple[int, int], tuple[Any, Any]] = {}

    def load(self, codes: Sequence[Code]) -> list[Function]:
        """The function of each kernel."""
        keys = [(code.symbol, code.packed) for code in codes]
        missing = {key: code for key, code in zip(keys, codes, strict=True) if key not in self._functions}
        COUNTERS.kernels_reused += len(codes) - len(missing)
        COUNTERS.kernels_compiled += len(missing)
        threads = min(len(missing), MAX_COMPILE_THREADS, os.cpu_count() or 1)
        if threads > 1:
            with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                made = list(pool.map(self.compile_code, missing.values()))
        else:
            made = [self.compile_code(code) for code in missing.values()]
        self._functions |= zip(missing, made, strict=True)
        return [self._functions[key] for key in keys]

    def compile_code(self, code: Code) -> Function:
        """One kernel. A failure names the kernel and shows what wgpu said and the text."""
        text = code.text
        bindings, argument_bytes = _interface(text)
        try:
            with raise_wgpu_errors("compile"):
                layout, pipelines = self._layout(sum(bindings), argument_bytes)
                module = self._module(code.symbol, text)
                stage = {"module": module, "entry_point": code.symbol}
                pipeline = self._device.create_compute_pipeline(label=code.symbol, layout=pipelines, compute=stage)
        except DeviceLost:
            raise
        except DeviceError as error:
            raise _make_error(code, text, error) from error
        return Function(code, pipeline, layout, bindings, argument_bytes)

    def _module(self, name: str, text: str) -> Any:
        """A module without checks of bounds and of endless loops: Weft's kernels need neither, and both keep a driver
        from keeping arrays in registers."""
        create = getattr(lib_functions(), "wgpuDeviceCreateShaderModuleTrusted", None)
        if create is None:
            return self._device.create_shader_module(label=name, code=text)
        return trusted_module(self._device, create, name, text)

    def _layout(self, bindings: int, argument_bytes: int) -> tuple[Any, Any]:
        """The layouts of bind groups and of pipelines with so many bindings of buffers."""
        key = bindings, argument_bytes
        if key not in self._layouts:
            uniform = {"type": "uniform", "has_dynamic_offset": True, "min_binding_size": argument_bytes}
            entries = [{"binding": 0, "visibility": 4, "buffer": uniform}]  # 4: compute
            entries += [
                {"binding": number + 1, "visibility": 4, "buffer": {"type": "storage"}} for number in range(bindings)
            ]
            with raise_wgpu_errors("bind group layout"):
                group = self._device.create_bind_group_layout(entries=entries)
                self._layouts[key] = group, self._device.create_pipeline_layout(bind_group_layouts=[group])
        return self._layouts[key]


def lib_functions() -> Any:
    """wgpu-native's functions, by wgpu's wrappers, which raise what they report."""
    from wgpu.backends.wgpu_native import _api

    return _api.libf


def trusted_module(device: Any, create: Any, name: str, text: str) -> Any:
    """What `device.create_shader_module` makes, with no checks at run time."""
    from wgpu.backends.wgpu_native import GPUShaderModule, ffi, lib

    code, label = ffi.new("char[]", text.encode()), ffi.new("char[]", name.encode())
    source = ffi.new("WGPUShaderSourceWGSL *")
    source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
    source.code.data, source.code.length = code, len(text.encode())
    descriptor = ffi.new("WGPUShaderModuleDescriptor *")
    descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
    descriptor.label.data, descriptor.label.length = label, len(name.encode())
    return GPUShaderModule(name, create(device._internal, descriptor, 0), device)


def _interface(text: str) -> tuple[tuple[int, ...], int]:
    """How many bindings each buffer of a text has, and the bytes of its words."""
    length = text.split("array<vec4<u32>, ", 1)[1].split(">", 1)[0]
    _, found, rest = text.partition(BINDINGS_COMMENT)
    if found:
        return tuple(map(int, rest.partition("\n")[0].split())), 16 * int(length)
    return (1,) * text.count("var<storage, read_write>"), 16 * int(length)


def _make_error(code: Code, text: str, error: DeviceError) -> Exception:
    lines = [f"{number:4d}  {line}" for number, line in enumerate(text.splitlines(), 1)]
    given = f"a kernel that wgpu does not compile:\n{error}\n" + "\n".join(lines) + "\n"
    return problem(DeviceError, code.name, given, fix="this is a fault of Weft: please report it with this text")
