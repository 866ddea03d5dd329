"""Template: a kernel written by hand for one primitive, and the views through which it reads memory.

A primitive of kind 'template' is a region of its own. Its template says which values must be in memory, then builds
the kernel. What it reads are views with strides: a chain of movement over something stored costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.compiler.fusion.index_map import Strided, as_strided, row_major
from weft.graph.node import Node
from weft.kernels.ir.language import Kernel
from weft.plan.device import Device
from weft.plan.plan import Config, Scalar

if TYPE_CHECKING:
    from weft.compiler.fusion.region import Region


@dataclass(frozen=True, slots=True)
class ScheduledKernel:
    """A finished kernel. `uses` holds, for each of its buffers, the stored value and the element that it starts at."""

    kernel: Kernel
    uses: tuple[tuple[Node, int], ...]
    scalars: tuple[Scalar, ...]
    extent: int  # tasks, of which each worker takes `chunk` at a time
    chunk: int
    flops: int
    sites: tuple[str, ...] = ()  # lines of the user whose indices it checks


@dataclass(frozen=True, slots=True)
class Called:
    """A finished call of a vendor's library; `uses` as in `ScheduledKernel`, results last."""

    library: str
    name: str
    config: Config
    uses: tuple[tuple[Node, int], ...]
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Template:
    """What one node needs in memory, and the builder of its kernel from the finished region. With `joins`, values that
    are computed from the result element by element become part of the kernel. `scratch` gives the bytes of memory that
    it needs while it runs. `replaces` is what it reads whole that its result may be written over."""

    reads: tuple[Node, ...]
    build: Callable[[Region, Device], ScheduledKernel | Called]
    joins: bool = False
    scratch: Callable[[Region], int] | None = None
    replaces: Node | None = None


MakeTemplate = Callable[[Node, Collection[Node]], Template]  # from a node and the leaves of its program


def view_of(node: Node, leaves: Collection[Node], contiguous: bool = True) -> Strided:
    """`node` as a view of memory that exists anyway; else as memory of its own, which the compiler then fills.

    With `contiguous` the elements of the last axis must be contiguous. On GPUs a view has no negative strides: elements
    before a buffer's start cannot be reached where buffers are bound, not addressed.
    """
    view = as_strided(node, leaves)
    if view is not None and node.device.features.workgroups and min(view.strides, default=0) < 0:
        view = None
    if view is None or (contiguous and node.shape and node.shape[-1] > 1 and view.strides[-1] != 1):
        return Strided(node, 0, row_major(node.shape))
    return view
