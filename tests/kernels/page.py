"""docs/kernels.md: every kernel of the list, the operation that provides it, and what covers it on each backend."""

from __future__ import annotations

from pathlib import Path

from tests.devices.named_tests import NAMED
from tests.kernels import coverage
from tests.kernels.names import CATALOGUE, COUNTS, Kernel
from tests.layers import executed_layers

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
GPU_RECORDS = "tests/gpu/test_records.py"
OTHERS = {"opencl": "OpenCL", "webgpu": "WebGPU", "hip": "HIP"}
NOT_SHOWN = "?"

HEAD = """# Kernels

The {total} kernels of the list that Weft is measured by, and the operation that provides each. Kernels are not written
one by one: operations are compositions of primitives, gradients follow by rule, and the compiler makes kernels of what
it fuses. This page is generated: `make kernels` writes it, and a test fails when it is stale, when a record, test or
operation that it names does not exist, and when a record does not call the operation.

- *record* is a record of tests/records: values and gradients against torch or closed forms, in all its dtypes, eager
  and compiled, on the CPU by `make test`, and on a GPU by `make test-gpu` ({gpu_records}).
- *layer* is a record of the layer harness (tests/layers), which runs on every device.
- A path is a test. One that is named for CUDA runs on the CPU and on a GPU.
- OpenCL and WebGPU: ✓ means that the records (tests/devices/test_records.py), layers (tests/devices/test_layers.py)
  or, where there are none, the tests (tests/devices/test_kernels.py) that are named for the CPU pass there, by
  `make test-devices` on devices that the CPU emulates: PoCL and lavapipe. A question mark: not yet shown.
- HIP: c means that the kernels of the same records, layers or tests are compiled for gfx90a
  (tests/devices/test_hip_kernels.py); the text of the records' kernels runs on the CPU
  (tests/devices/test_hip_execution.py). No kernel was ever executed on an AMD GPU.
"""


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


def choose_mark(kernel: Kernel, backend: str) -> str:
    """Whether a kernel was executed on a backend that has no cell of words, or compiled for it. Records and named tests
    are all run there; of layers, devices.json has those that were."""
    if kernel.records:
        is_shown = True
    elif kernel.layers:
        is_shown = set(kernel.layers) <= set(executed_layers.layers(backend))
    else:
        is_shown = set(kernel.tests) <= set(NAMED)
    return ("c" if backend == "hip" else "✓") if is_shown else NOT_SHOWN


def _is_of_gpus(test: str) -> bool:
    return coverage.has_test(test) and coverage.runs_on_gpus(test)


def text() -> str:
    """The page."""
    parts = [HEAD.format(total=sum(COUNTS), gpu_records=GPU_RECORDS)]
    head = ["kernel", "Weft", "CPU", "CUDA", *OTHERS.values()]
    for category, kernels in CATALOGUE.items():
        rows = [
            [kernel.name, provided(kernel), covered(kernel, False), covered(kernel, True),
             *[choose_mark(kernel, backend) for backend in OTHERS]]
            for kernel in kernels
        ]  # fmt: skip
        lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
        parts.append(
            "\n".join([f"## {category} ({len(kernels)})\n", lines[0], "|---" * len(head) + "|", *lines[1:], ""])
        )
    return "\n".join(parts)


def write() -> None:
    PAGE.write_text(text())
