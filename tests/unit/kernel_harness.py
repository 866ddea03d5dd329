"""Runs kernels written by hand on NumPy arrays, and short words to write them with."""

from __future__ import annotations

import ctypes

from weft.backends.cpu.backend import CpuBackend
from weft.backends.cpu.execution import argument_words, compile_kernels
from weft.base import dtypes
from weft.base.dtypes import from_numpy
from weft.kernels.ir.language import BufferParam, Kernel, Load, Op, Var
from weft.plan.plan import Launch, Place, Plan

FLOAT, INT = dtypes.float32, dtypes.int64
begin, end = Var("begin", INT), Var("end", INT)
backend = CpuBackend()


def op(name, *args):
    return Op(name, args, args[0].dtype)


def binary(name, a, b):
    return Op(name, (a, b), dtypes.bool_)


def load(buffer, index, dtype=FLOAT):
    return Load(buffer, index, dtype)


def table(arrays):
    """A slot table with the addresses of NumPy arrays."""
    slots = backend.slot_table(len(arrays))
    for number, array in enumerate(arrays):
        assert array.flags.c_contiguous
        slots[number] = array.ctypes.data
    return slots


def kernel_of(name, inputs, outputs, body, definitions=None):
    buffers = [BufferParam(key, from_numpy(array.dtype), False) for key, array in inputs.items()]
    buffers += [BufferParam(key, from_numpy(array.dtype), True) for key, array in outputs.items()]
    return Kernel(name, tuple(buffers), (), ("begin", "end"), body, definitions or {})


def launch_of(kernel, extent, chunk=None, scalars=(), work=1 << 30, places=None):
    places = places or tuple(Place(number, 0) for number in range(len(kernel.buffers)))
    return Launch(kernel, places, scalars, extent, chunk or max(extent, 1), work, 0)


def run(name, inputs, outputs, body, extent, definitions=None):
    """Run a kernel over [0, extent)."""
    call(name, inputs, outputs, body, (0, extent), definitions)


def call(kernel, inputs, outputs, body, span, definitions=None, scalars=()):
    """Call a kernel's function once, over a range that may start anywhere."""
    if isinstance(kernel, str):
        kernel = kernel_of(kernel, inputs, outputs, body, definitions)
    arrays = [*inputs.values(), *outputs.values()]
    function = ctypes.CFUNCTYPE(None)(compile_kernels([kernel])[0])
    words = argument_words(launch_of(kernel, 1, scalars=scalars))
    function(table(arrays), words, (ctypes.c_int64 * 2)(*span))


def plan_of(*steps):
    return Plan(steps, (), (), "test")
