"""docs/kernels.md: every kernel of the list, the operation that provides it, and what covers it on each backend."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tests.kernels import coverage
from tests.kernels.names import CATALOGUE, COUNTS, Kernel

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
GPU_RECORDS = "tests/gpu/test_records.py"
OTHERS = {"opencl": "OpenCL", "webgpu": "WebGPU", "hip": "HIP"}

HEAD = """# Kernels

The {total} kernels of the list that Weft is measured by, and the operation that provides each. Kernels are not written
one by one: operations are compositions of primitives, gradients follow by rule, and the compiler makes kernels of what
it fuses. This page is generated: `make kernels` writes it, and a test fails when it is stale, when a record, test or
operation that it names does not exist, and when a record does not call the operation.

- *record* is a record of tests/records: values and gradients against torch or closed forms, in all its dtypes, eager
  and compiled, on the CPU by `make test`, and on a GPU by `make test-gpu` ({gpu_records}).
- *layer* is a record of the layer harness (tests/layers), which runs on every device.
- A path is a test. One that is named for CUDA runs on the CPU and on a GPU.
{others}
"""


COMPILED = "- For HIP, the kernels of all records are compiled (tests/devices/test_hip_kernels.py), never executed."


def others() -> str:
    """What is known of the backends that have no column."""
    absent = [name for module, name in OTHERS.items() if importlib.util.find_spec(f"weft.backends.{module}") is None]
    return f"- There is no backend yet for {', '.join(absent)}: no kernel is covered there." if absent else COMPILED


def provided(kernel: Kernel) -> str:
    """The operation, in words."""
    operation = f"`weft.{kernel.operation}`"
    text = f"gradient of {operation}" if kernel.gradient else operation
    return f"{text}: {kernel.remark}" if kernel.remark else text


def covered(kernel: Kernel, gpu: bool) -> str:
    """What covers a kernel on the CPU or on a GPU."""
    parts = [f"record {name}" for name in kernel.records]
    parts += [f"`{test}`" for test in kernel.tests if not gpu or _is_of_gpus(test)]
    parts += [f"layer {name}" for name in kernel.layers]
    return ", ".join(parts)


def _is_of_gpus(test: str) -> bool:
    return coverage.has_test(test) and coverage.runs_on_gpus(test)


def text() -> str:
    """The page."""
    parts = [HEAD.format(total=sum(COUNTS), gpu_records=GPU_RECORDS, others=others())]
    for category, kernels in CATALOGUE.items():
        rows = [
            f"| {kernel.name} | {provided(kernel)} | {covered(kernel, False)} | {covered(kernel, True)} |"
            for kernel in kernels
        ]
        parts.append("\n".join([f"## {category} ({len(kernels)})\n", "| kernel | Weft | CPU | CUDA |",
                                "|---|---|---|---|", *rows, ""]))  # fmt: skip
    return "\n".join(parts)


def write() -> None:
    PAGE.write_text(text())
