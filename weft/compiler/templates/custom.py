"""The template of `custom`: a kernel that a user wrote, over contiguous memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from weft.compiler.fusion.index_map import row_major
from weft.compiler.fusion.region import Region
from weft.compiler.templates.template import ScheduledKernel, Template, view_of
from weft.graph.node import Node
from weft.kernels.ir.language import Kernel, Loop
from weft.plan.device import Device


def custom(node: Node, leaves: Collection[Node]) -> Template:
    """Inputs that are no contiguous run of something stored are copied first."""
    definition, _, numbers = node.attrs
    uses: list[tuple[Node, int]] = []
    for source in node.srcs:
        view = view_of(source, leaves)
        if not source.size:
            uses.append((node, 0))  # never read
        elif view.strides == row_major(source.shape):
            uses.append((view.base, view.offset))
        else:
            uses.append((source, 0))
    reads = tuple(dict.fromkeys([base for base, _ in uses if base is not node]))
    at = 0
    for size in definition.sizes:
        uses.append((node, at))
        at += size

    def build(region: Region, device: Device) -> ScheduledKernel:
        scalars = definition.scalars([float.fromhex(number) for number in numbers])
        kernel = _limit_lanes(definition.kernel, device.limits.workgroup_size)
        return ScheduledKernel(kernel, tuple(uses), scalars, definition.points, definition.chunk, definition.work)

    return Template(reads, build)


def _limit_lanes(kernel: Kernel, most: int) -> Kernel:
    """A kernel in workgroups of `most` lanes at most: it is a loop over the lanes of all workgroups."""
    geometry = kernel.geometry
    if geometry is None or geometry.lanes <= most:
        return kernel
    (loop,) = kernel.body
    assert isinstance(loop, Loop) and loop.kind == "grid"
    return replace(kernel, body=(replace(loop, width=most),), geometry=replace(geometry, lanes=most))
