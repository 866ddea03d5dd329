"""Random devices with blocks, for hypothesis: what GPUs differ in, and thresholds so low that small graphs reach every
form of the GPU schedule. Kernels are run by `lockstep`, which also looks for races."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st

from tests.unit.lockstep import Lockstep
from weft.backends.base import Device
from weft.compiler import block_product, decompose, order_blocks
from weft.kernels import block_sorts, gpu_columns, gpu_lanes, gpu_long, gpu_map, gpu_rows, gpu_tile, gpu_turned

# Sizes from which larger forms are taken, and values for which a few dozen elements are large.
THRESHOLDS = (
    (gpu_tile, "SHORT", 4),
    (gpu_map, "FEW", 32),
    (gpu_turned, "FEW", 32),
    (gpu_lanes, "WIDE", 4),
    (gpu_lanes, "MANY", 16),
    (gpu_columns, "FEW_ROWS", 9),
    (gpu_columns, "MANY_ROWS", 33),
    (gpu_rows, "SUBGROUP_ROW", 64),
    (gpu_rows, "PER_THREAD", 2),
    (gpu_rows, "PRIVATE", 1),
    (gpu_long, "IN_FLIGHT", 2),
    (gpu_rows, "LONG", 64),
    (gpu_rows, "WIDE", 16),
    (order_blocks, "RUN", 16),
    (order_blocks, "LINES", 4),
    (order_blocks, "SERIAL", 32),
    (order_blocks, "MANY", 8),
    (order_blocks, "ROWS", 4),
    (order_blocks, "TILES", 1),
    (order_blocks, "WALKED", 2),
    (order_blocks, "PIECES", 8),
    (block_sorts, "LEAST", 32),
    (decompose, "SMALL_DOT", 64),
    (decompose, "COLUMNS_ALONE", 8),
    (decompose, "LONG", 256),
    (decompose, "PER_CHUNK", 64),
    (block_product, "SHORTEST", 16),
)


# Large enough for all of these, and for several blocks.
LARGE_SHAPES = [(130, 33), (300, 17), (1100,), (3, 700), (2, 70, 33), (65, 64), (1500,), (1024,)]


@dataclass(frozen=True)
class Gpu:
    """One description of a device; `low` are the numbers of the thresholds that are low."""

    features: tuple[str, ...]
    limits: tuple[tuple[str, int], ...]
    skew: int
    low: frozenset[int]

    @contextmanager
    def thresholds(self) -> Iterator[None]:
        """The low ones are set."""
        with pytest.MonkeyPatch.context() as patch:
            for number in self.low:
                patch.setattr(*THRESHOLDS[number])
            yield

    @contextmanager
    def device(self) -> Iterator[Device]:
        with self.thresholds():
            yield Lockstep(features=self.features, skew=self.skew, **dict(self.limits)).device


def draw_gpu(draw) -> Gpu:
    """CUDA's own kind, and what others have: other subgroups or none, less memory, fewer threads."""

    def one_of(*options):
        return draw(st.sampled_from(options))

    subgroup = one_of(32, 32, 0, 16, 64)
    features = [name for name in ("numbers", "functions", "fetch") if draw(st.booleans())]
    features += ["subgroups"] if subgroup else []
    features += ["mma"] if subgroup == 32 and draw(st.booleans()) else []
    limits = {
        "threads": one_of(1024, 256),
        "shared_bytes": one_of(232448, 49152, 16384),
        "vector_bytes": one_of(16, 4),
        "processors": one_of(132, 2),
    }
    if subgroup:
        limits["subgroup"] = subgroup
    low = draw(st.sampled_from([frozenset(), frozenset(range(len(THRESHOLDS))), None]))
    if low is None:
        low = draw(st.frozensets(st.integers(0, len(THRESHOLDS) - 1)))
    return Gpu(tuple(features), tuple(limits.items()), one_of(0, 0, 8), low)


gpus = st.composite(draw_gpu)
