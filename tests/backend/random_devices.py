"""Random GPUs, for hypothesis: what GPUs differ in, and thresholds so low that small graphs reach every
form of the GPU schedule. Kernels are run by `lockstep`, which also looks for races."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from tests.unit.lockstep import Lockstep
from weft.base.errors import OutOfMemoryError
from weft.base.tuning import Tuning
from weft.kernels import numerics
from weft.kernels.gpu import sort as gpu_sort
from weft.plan.device import Device

# Sizes from which larger forms are taken, and values for which a few dozen elements are large: of a module, or a field
# of a tuning. Programs of the replay have their numbers: order and count stay.
THRESHOLDS = (
    (numerics, "MAX_SERIAL_ROW", 4),
    (Tuning, "max_single_elements", 32),
    (Tuning, "min_transposed_elements", 32),
    (numerics, "MIN_SEGMENT_COLUMNS", 4),
    (numerics, "MIN_SEGMENT_ELEMENTS", 16),
    (numerics, "MIN_GROUPED_ROWS", 9),
    (numerics, "MIN_LONG_COLUMN", 33),
    (numerics, "MAX_SUBGROUP_ROW", 64),
    (numerics, "ROW_ELEMENTS_PER_LANE", 2),
    (numerics, "MAX_REGISTER_ELEMENTS", 1),
    (numerics, "MAX_ELEMENTS_IN_FLIGHT", 2),
    (numerics, "LONG_OPEN_ROW", 64),
    (numerics, "MIN_SHARED_ELEMENTS", 16),
    (Tuning, "max_sorted_run", 16),
    (numerics, "MAX_LANE_SCAN", 4),
    (numerics, "MAX_SERIAL_SCAN", 32),
    (numerics, "MIN_PARALLEL_LINES", 8),
    (numerics, "MIN_PARALLEL_ROWS", 4),
    (numerics, "MAX_SCAN_TILES", 1),
    (numerics, "MAX_UNSORTED_ROWS", 2),
    (numerics, "MIN_PIECEWISE_ROWS", 8),
    (gpu_sort, "MIN_TILE_WORDS", 32),
    (numerics, "MAX_FUSED_PRODUCT", 64),
    (numerics, "MAX_UNSPLIT_ROWS", 8),
    (numerics, "MIN_SPLIT_ELEMENTS", 256),
    (numerics, "MIN_CHUNK_ELEMENTS", 64),
    (numerics, "MIN_PART_LENGTH", 16),
)


# Large enough for all of these, and for several blocks.
LARGE_SHAPES = [(130, 33), (300, 17), (1100,), (3, 700), (2, 70, 33), (65, 64), (1500,), (1024,)]


@dataclass(frozen=True)
class Gpu:
    """One description of a device; `low` are the numbers of the thresholds that are low."""

    features: tuple[str, ...]
    limits: tuple[tuple[str, Any], ...]
    skew: int
    low: frozenset[int]

    @property
    def tuning(self) -> Tuning:
        low = [THRESHOLDS[number] for number in self.low]
        return Tuning(**{name: value for owner, name, value in low if owner is Tuning})

    @contextmanager
    def thresholds(self) -> Iterator[None]:
        """The low ones of modules are set, and the tuning of emulated devices."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lockstep, "tuning", self.tuning)
            for owner, name, value in [THRESHOLDS[number] for number in self.low]:
                if owner is not Tuning:
                    patch.setattr(owner, name, value)
            yield

    @contextmanager
    def device(self) -> Iterator[Device]:
        """Where a device with these limits refuses a graph, another one is drawn."""
        with self.thresholds():
            try:
                yield Lockstep(features=self.features, skew=self.skew, **dict(self.limits)).device
            except (OutOfMemoryError, AssertionError) as error:
                assume(not self.may_refuse(str(error)))
                raise

    def may_refuse(self, text: str) -> bool:
        """Whether an error is one that docs/devices.md allows: of a value that is larger than an allocation, or of an
        operation whose values need more bindings than a kernel has, where a value may need several."""
        has_parts = dict(self.limits).get("binding_bytes", 0) > 0
        return "in one allocation" in text or (has_parts and re.match(r"\S+: \d+ bindings\b", text) is not None)


def draw_gpu(draw) -> Gpu:
    """CUDA's own kind, and what others have: other subgroups or none, less memory, fewer threads."""

    def one_of(*options):
        return draw(st.sampled_from(options))

    subgroup = one_of(32, 32, 0, 16, 64)
    features = [name for name in ("scalar_arguments", "native_functions", "async_copies") if draw(st.booleans())]
    features += ["subgroup_operations"] if subgroup else []
    units = {32: ["matrix_units", "wmma"], 64: ["mfma"]}.get(subgroup, [])
    features += [one_of(*units)] if units and draw(st.booleans()) else []
    limits = {
        "workgroup_size": one_of(1024, 256),
        "shared_bytes": one_of(232448, 49152, 16384),
        "static_shared_bytes": 49152,
        "access_bytes": one_of(16, 4),
        "processors": one_of(132, 2),
    }
    if subgroup:
        limits["subgroup_sizes"] = (subgroup,)
    low = draw(st.sampled_from([frozenset(), frozenset(range(len(THRESHOLDS))), None]))
    if low is None:
        low = draw(st.frozensets(st.integers(0, len(THRESHOLDS) - 1)))
    return Gpu(tuple(features), tuple(limits.items()), one_of(0, 0, 8), low)


# Buffers of a kernel, bytes of a binding and of an allocation; 0: any number.
# The least that gradients of attention take are 7 buffers.
LIMITED_MEMORY = ((8, 0, 0), (7, 0, 1 << 16), (64, 4096, 1 << 16), (12, 1 << 14, 1 << 16), (8, 1 << 15, 0))


def draw_limited_gpu(draw) -> Gpu:
    """The same with what WebGPU guarantees and no more: 256 lanes (or 384, or 64), 16 KiB of shared memory, few buffers
    for a kernel, no 64-bit integers and mostly no subgroups; or with bindings so small that large values take several.
    A launch has at most as many workgroups as WebGPU guarantees, or so few that each has to take more than its part."""
    gpu = draw_gpu(draw)
    buffers, binding, allocation = draw(st.sampled_from(LIMITED_MEMORY))
    limits = {
        **dict(gpu.limits), "workgroup_size": draw(st.sampled_from([256, 256, 384, 64])),
        "shared_bytes": 16384, "static_shared_bytes": 16384,
        "storage_buffers": buffers, "binding_bytes": binding, "allocation_bytes": allocation,
        "workgroups": draw(st.sampled_from([65535, 65535, 6])),
    }  # fmt: skip
    features = [*gpu.features, "no int64_arithmetic"]
    if draw(st.sampled_from([True, True, False])):
        limits.pop("subgroup_sizes", None)
        features = [name for name in features if name not in ("subgroup_operations", "matrix_units", "wmma", "mfma")]
    return replace(gpu, features=tuple(features), limits=tuple(limits.items()))


gpus = st.composite(draw_gpu)
limited_gpus = st.composite(draw_limited_gpu)
