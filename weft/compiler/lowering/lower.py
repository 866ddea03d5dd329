"""The pass from regions with memory to nests of loops.

A region becomes a nest, which a schedule then maps to hardware, or at once a kernel where its loops are written by
hand. Regions of one form share what they became (`lowering.sharing`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from weft.base.dtypes import DType
from weft.compiler.fusion.region import Region
from weft.compiler.lowering.gpu_sorting import GPU_ORDERINGS
from weft.compiler.lowering.nests import LoweredNest, lower, lower_epilogue
from weft.compiler.lowering.segments import lower_scatter, lower_segment
from weft.compiler.lowering.sharing import Sharing
from weft.compiler.lowering.sorting import ORDERINGS, LoweredKernel
from weft.compiler.memory.storage import Allocation
from weft.compiler.options import Options
from weft.compiler.templates.template import Called, ScheduledKernel
from weft.kernels.ir.nest import Nest, copy_nest
from weft.plan.device import Device

LoweredRegion = LoweredNest | LoweredKernel | ScheduledKernel | Called | None


@dataclass(frozen=True, slots=True)
class LoweredProgram:
    """What the regions of an allocation became, in their order: a nest; a kernel, of scans, sorts and templates; a call
    of a library; None for a matrix product without an epilogue and for a loop, whose body is a plan already. `copies`
    are the nests that copy elements from one place to another."""

    allocation: Allocation
    regions: tuple[LoweredRegion, ...]
    copies: Mapping[DType, Nest]


def lower_regions(allocation: Allocation, options: Options) -> LoweredProgram:
    """Write what each region computes as loops over expressions of the kernel language."""
    sharing = Sharing()
    lowered = tuple([_lower_region(region, sharing, options.device) for region in allocation.regions])
    copied = {leaf.dtype: copy_nest(leaf.dtype) for _, leaf, _ in allocation.storage.copies}
    for body in allocation.bodies.values():
        states = len(body.loop.attrs.body.states)
        copied |= {source.dtype: copy_nest(source.dtype) for source in body.loop.srcs[:states]}
    return LoweredProgram(allocation, lowered, MappingProxyType(copied))


def _lower_region(region: Region, sharing: Sharing, device: Device) -> LoweredRegion:
    if region.form == "loop":
        return None
    if region.form == "dot":
        has_epilogue = any(root is not region.anchor for root in region.roots)
        return sharing.lower(region, lower_epilogue) if has_epilogue else None
    if region.template is not None:
        build = region.template.build
        return sharing.lower(region, lambda region: build(region, device))
    if region.form in ORDERINGS:
        orderings = GPU_ORDERINGS if device.features.workgroups else ORDERINGS
        return sharing.lower(region, orderings[region.form])
    return sharing.lower(region, {"scatter": lower_scatter, "segment": lower_segment}.get(region.form, lower))
