"""template: kernels written by hand for one primitive, and how they read memory.

A primitive of kind 'template' is a region of its own. Its template says which values must lie in memory, then builds
the kernel. What it reads are views with strides: a chain of movement over something stored costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.backends.base import Device
from weft.compiler.access import MOVEMENT, address, row_major, source_index
from weft.compiler.plan import Scalar
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES
from weft.kernels import index as ix
from weft.kernels.index import Axis
from weft.kernels.language import Kernel

if TYPE_CHECKING:
    from weft.compiler.region import Region


@dataclass(frozen=True, slots=True)
class Built:
    """A finished kernel. `uses` holds, for each of its buffers, the stored value and the element that it starts at."""

    kernel: Kernel
    uses: tuple[tuple[Node, int], ...]
    scalars: tuple[Scalar, ...]
    extent: int  # tasks, of which each worker takes `chunk` at a time
    chunk: int
    flops: int
    sites: tuple[str, ...] = ()  # lines of the user whose indices it checks


@dataclass(frozen=True, slots=True)
class Template:
    """What one node needs in memory, and the builder of its kernel from the finished region. With `joins`, values that
    are computed from the result element by element become part of the kernel."""

    reads: tuple[Node, ...]
    build: Callable[[Region, Device], Built]
    joins: bool = False


MakeTemplate = Callable[[Node, Collection[Node]], Template]  # from a node and the leaves of its program


@dataclass(frozen=True, slots=True)
class Strided:
    """A value as strides into the memory of `base`: element [i, j, ...] lies at offset + i * strides[0] + ..."""

    base: Node
    offset: int
    strides: tuple[int, ...]


def strided(node: Node, leaves: Collection[Node], contiguous: bool = True) -> Strided:
    """`node` as a view of what lies in memory anyway; else as memory of its own, which the compiler then fills.

    With `contiguous` the elements of the last axis must be neighbours.
    """
    axes = [Axis(f"v{k}", extent) for k, extent in enumerate(node.shape)]
    at = tuple([ix.axis_index(axis) for axis in axes])
    base = node
    while base.op in MOVEMENT and base not in leaves and base.op not in ("pad", "fold_terms", "copy"):
        at = source_index(base, at)[0]
        base = base.srcs[0]
    whole = Strided(node, 0, row_major(node.shape))
    if base not in leaves and (base.op in ("pad", "fold_terms") or PRIMITIVES[base.op].kind == "generate"):
        return whole
    position = address(at, row_major(base.shape), 0)
    if not all(position.linear_in(axis) for axis in axes):
        return whole
    strides = tuple([position.coefficient(axis) for axis in axes])
    if contiguous and node.shape and node.shape[-1] > 1 and strides[-1] != 1:
        return whole
    return Strided(base, position.const, strides)
