"""What library calls of the records read and write lies within the memory that their plans give them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import weft
from tests.records import RECORDS, Record
from tests.records.cases import cases, results
from tests.unit.fake_cublaslt import Bindings
from tests.unit.fake_cuda import FakeCuda
from tests.unit.fake_cudnn import FakeGraphs
from weft.backends.cuda import cublaslt
from weft.backends.cuda.cudnn import Cudnn
from weft.backends.cuda.cudnn_graphs import Form
from weft.backends.gpu import execution as gpu_execution
from weft.kernels.ir.language import Kernel
from weft.plan.plan import Code, LibraryCall, Product, code_of, iterate_steps

# What lies in memory is whatever lies there: nothing is computed but by the libraries.
pytestmark = [pytest.mark.unit, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

CALLING = ("matmul", "mm", "linear", "einsum", "dot", "conv", "attention", "addmm", "baddbmm", "bilinear")


class Planned(FakeCuda):
    """Kernels have no text: nothing is launched but the libraries."""

    def render(self, kernel: Kernel) -> Code:
        code = code_of(kernel, f"kernel_{len(self.driver.kernels)}", "")
        self.driver.kernels[code.symbol] = kernel
        return code


def matrices(rows: int, columns: int, leading: int, strides: Sequence[int], product: Product) -> int:
    """Elements from the first to the last of all matrices of an operand."""
    return (product.outer - 1) * strides[0] + (product.inner - 1) * strides[1] + (rows - 1) * leading + columns


def needed(call: LibraryCall) -> list[int]:
    """Bytes that a call touches behind each of its places, the workspace left out."""
    if call.library == "cudnn":
        return [operand.nbytes for operand in Form.of(call.config[1:]).operands]
    p = Product(*call.config[:-2])
    a = matrices(*((p.k, p.m) if p.transpose_a else (p.m, p.k)), p.leading_a, p.strides_a, p)
    b = matrices(*((p.n, p.k) if p.transpose_b else (p.k, p.n)), p.leading_b, p.strides_b, p)
    result = p.outer * p.inner * p.m * p.n * p.result.itemsize
    optional = [*([p.n * p.result.itemsize] if p.bias else []), *([result] if p.add else [])]
    return [a * p.operand.itemsize, b * p.operand.itemsize, *optional, result, *([result] if p.keep else [])]


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_operands_lie_within_their_memory(precision, monkeypatch):
    monkeypatch.setattr(cublaslt, "find", lambda: cublaslt.Found(Bindings(), "fake"))
    gpu = Planned(libraries={"cublaslt": cublaslt.CublasLt(stream=7), "cudnn": Cudnn(FakeGraphs())})
    plans, made = [], gpu_execution.GpuExecutable.__init__

    def noted(self, plan, backend) -> None:
        plans.append(plan)
        made(self, plan, backend)

    monkeypatch.setattr(gpu_execution.GpuExecutable, "__init__", noted)
    weft.set_float32_matmul_precision(precision)
    try:
        with weft.device(gpu.device):
            for record in [record for record in RECORDS if any(part in record.name for part in CALLING)]:
                _evaluate(record, precision)
    finally:
        weft.set_float32_matmul_precision("highest")
    checked = {"cublaslt": 0, "cudnn": 0}
    for plan in plans:
        for step, _ in iterate_steps(plan.steps):
            if isinstance(step, LibraryCall):
                sizes = needed(step)
                assert len(step.places) in (len(sizes), len(sizes) + 1)
                for place, nbytes in zip(step.places, sizes, strict=False):
                    assert place.offset + nbytes <= plan.slots[place.slot].nbytes, step
                checked[step.library] += 1
    assert min(checked.values()) > 20, checked


def _evaluate(record: Record, precision: str) -> None:
    """All cases, or those in float32 where the precision is another one: that of the others is not asked for."""
    for case in cases(record):
        if precision == "highest" or case.dtype == "float32":
            weft.eval(*results(case))
