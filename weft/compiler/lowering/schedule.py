"""The pass from nests to kernels of the kernel language, with the tasks that their points are divided into.

How loops are mapped to hardware is in `weft.kernels`; this module chooses the schedule of the device, and decides which
results bypass the caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from weft.base.dtypes import DType
from weft.compiler.fusion.region import Region
from weft.compiler.lowering.expressions import STATUS
from weft.compiler.lowering.lower import LoweredProgram, LoweredRegion
from weft.compiler.lowering.nests import LoweredNest
from weft.compiler.lowering.sorting import LoweredKernel
from weft.compiler.lowering.tasks import points_per_ordering_task, points_per_task, traffic_of
from weft.compiler.memory.storage import ALIGN, Allocation
from weft.compiler.options import Options
from weft.compiler.templates.template import Called, ScheduledKernel
from weft.kernels.cpu import schedule as cpu_schedule
from weft.kernels.gpu import schedule as gpu_schedule
from weft.kernels.ir.language import Kernel
from weft.kernels.ir.nest import Nest


@dataclass(frozen=True, slots=True)
class ScheduledProgram:
    """The kernels of an allocation's regions, in their order (of a matrix product: its epilogue, None without one; None
    for a loop); the bytes that each region reads and writes; the kernels that copy elements."""

    allocation: Allocation
    kernels: tuple[ScheduledKernel | Called | None, ...]
    traffic: tuple[int, ...]
    copies: Mapping[DType, Kernel]


def schedule_kernels(lowered: LoweredProgram, options: Options) -> ScheduledProgram:
    """Map every nest to the hardware of the device."""
    scheduler = _Scheduler(lowered.allocation, options)
    regions = lowered.allocation.regions
    traffic = tuple([traffic_of(region) for region in regions])
    kernels = tuple([scheduler.kernel_of(*each) for each in zip(lowered.regions, regions, traffic, strict=True)])
    copies = {dtype: scheduler.schedule(nest) for dtype, nest in lowered.copies.items()}
    return ScheduledProgram(lowered.allocation, kernels, traffic, MappingProxyType(copies))


class _Scheduler:
    """Schedules nests; regions that share a nest share its kernel."""

    def __init__(self, allocation: Allocation, options: Options):
        device = options.device
        self.regions, self.storage = allocation.regions, allocation.storage
        self.tuning, self.has_workgroups = device.tuning, device.features.workgroups
        self.streams = not options.is_loop_body  # whether large results may bypass the caches
        self.target = gpu_schedule.target_of(device.features, device.limits, device.tuning)
        # By identity of a nest and what is written past the caches; the nest is kept, so that no other can have it.
        self.scheduled: dict[tuple[int, tuple[bool, ...]], tuple[Nest, Kernel]] = {}

    def kernel_of(self, lowered: LoweredRegion, region: Region, moved: int) -> ScheduledKernel | Called | None:
        """The kernel of a region that moves so many bytes."""
        if isinstance(lowered, LoweredNest):
            kernel = self._shared_kernel(lowered)
            chunk = points_per_task(lowered, moved, region, self.tuning)
        elif isinstance(lowered, LoweredKernel):
            kernel = lowered.kernel
            chunk = points_per_ordering_task(lowered, moved, self.tuning)
        else:
            return lowered
        uses = tuple([(node, 0) for node in lowered.uses])
        return ScheduledKernel(kernel, uses, lowered.scalars, lowered.points, chunk, lowered.flops, lowered.sites)

    def schedule(self, nest: Nest) -> Kernel:
        return (
            gpu_schedule.schedule(nest, self.target)
            if self.has_workgroups
            else cpu_schedule.schedule(nest, self.tuning)
        )

    def _shared_kernel(self, lowered: LoweredNest) -> Kernel:
        nest = lowered.nest
        streamed = () if lowered.tile else self._streamed_buffers(lowered)
        key = (id(nest), streamed)
        if key not in self.scheduled:
            if lowered.tile:
                kernel = self._schedule_tile(lowered)
            else:
                pairs = zip(nest.buffers, streamed, strict=True)
                kernel = self.schedule(
                    replace(nest, buffers=tuple([replace(param, stream=stream) for param, stream in pairs]))
                )
            self.scheduled[key] = nest, kernel
        return self.scheduled[key][1]

    def _schedule_tile(self, lowered: LoweredNest) -> Kernel:
        assert lowered.tile is not None
        if self.has_workgroups:
            return gpu_schedule.schedule_tile(lowered.nest, *lowered.tile, target=self.target)
        return cpu_schedule.schedule_tile(lowered.nest, *lowered.tile)

    def _streamed_buffers(self, lowered: LoweredNest) -> tuple[bool, ...]:
        """Which buffers are large results that no later step reads: better kept out of the caches."""
        found = []
        for param, node in zip(lowered.nest.buffers, lowered.uses, strict=True):
            large = (
                self.streams and param.written and node is not STATUS and node.nbytes >= self.tuning.min_streamed_bytes
            )
            value, offset = self.storage.locate(node) if large else (node, 0)
            aligned = large and value in self.storage.outputs and offset % ALIGN == 0
            read = aligned and any(node in region.reads or value in region.reads for region in self.regions)
            found.append(aligned and not read)
        return tuple(found)
