"""Every kernel that the records make for an NVIDIA GPU compiles without a warning.

Cases of all records, gradients included, are compiled for a GPU that is not there and has no libraries. Each kernel
goes through the front end of NVRTC and fits a workgroup of the GPU; kernels that together have every form of all are
made into machine code for one architecture and into PTX for two others. test_nvrtc makes machine code for all three of
the templates and of chosen programs.

Records whose turn it is are rendered as they are replayed (`tests/replay`), and compared with what is recorded: one
compilation serves both. That needs no NVRTC.
"""

from __future__ import annotations

import importlib.util

import pytest

import weft
from tests.records import GROUPS, Record
from tests.records.cases import cases
from tests.records.lowering import lower
from tests.replay import record as replay
from tests.unit import nvrtc
from tests.unit.fake_cuda import FakeCuda
from tests.unit.gpu_harness import check_limits
from weft.kernels.ir.language import Kernel

ARCHITECTURES = ("sm_90", "compute_80", "compute_120")
HAS_NVRTC = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None
compiled_forms: set[tuple[str, ...]] = set()  # in kernels of groups that this process compiled without a complaint


def replayed_kernels(records: list[Record]) -> dict[str, Kernel]:
    """The kernels of these records, which are those that are recorded. The device that renders checks their limits."""
    lines, kernels = {}, {}
    for line, rendered in replay.render_programs([(f"record/{one.name}", "gpu") for one in records]):
        lines[line.key] = line
        kernels |= rendered.normal
    recorded = replay.read()
    changed = replay.differences({key: recorded[key] for key in lines if key in recorded}, lines)
    assert not changed, "\n".join(changed)
    return kernels


def other_kernels(records: list[Record]) -> dict[str, Kernel]:
    gpu = FakeCuda()
    with weft.device(gpu.device):
        for record in records:
            for case in cases(record):
                lower(case)
    kernels = gpu.kernels()
    for kernel in kernels.values():
        check_limits(kernel, gpu.device)
    return kernels


@pytest.mark.parametrize("name", GROUPS)
def test_kernels_compile(name):
    turns = set(replay.programs_by_turns())
    replayed = [record for record in GROUPS[name] if (f"record/{record.name}", "gpu") in turns]
    kernels = replayed_kernels(replayed)
    if not HAS_NVRTC:
        pytest.skip("as recorded, but NVRTC is not installed: pip install 'weft[cuda-compile]'")
    kernels |= other_kernels([record for record in GROUPS[name] if (f"record/{record.name}", "gpu") not in turns])
    assert len(kernels) > 20
    found = nvrtc.complaints(kernels, nvrtc.SYNTAX, architectures=("compute_90",))
    assert not found, "\n".join(found[:3])
    forms = set(compiled_forms)
    chosen = nvrtc.representatives(kernels, forms)
    found = nvrtc.complaints(chosen, nvrtc.QUICKLY, architectures=ARCHITECTURES)
    assert not found, "\n".join(found[:3])
    compiled_forms.update(forms)
