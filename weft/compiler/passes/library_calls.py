"""Expensive nodes that a vendor's library computes.

`ask_libraries` asks the libraries of a device before a node is expanded in another way; what they offer is made of
`library` nodes, which only the compiler makes. A `library` is a region of its own: its sources are views of memory, its
result is memory, and `Library.configure` fixes its config (algorithm included) and workspace when the plan is made.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

from weft.base.dtypes import DType
from weft.compiler.fusion.index_map import Strided, row_major
from weft.compiler.fusion.region import Region
from weft.compiler.primitives import LIBRARY, LibraryFunction
from weft.compiler.templates.template import Called, Template, view_of
from weft.graph.node import Node
from weft.graph.primitives import make_node, results_of
from weft.plan.device import Device
from weft.plan.plan import Config
from weft.plan.protocols import ProductLibrary


def ask_libraries(node: Node, srcs: tuple[Node, ...], device: Device) -> Sequence[Node] | None:
    """What the first library that computes `node` offers for its value, or for each of its results; None without
    one."""
    for library in device.libraries.values():
        found = library.offer(node, srcs)
        if found is not None:
            return (found,) if isinstance(found, Node) else found
    return None


def library_of(device: Device) -> ProductLibrary | None:
    """The library that computes matrix products on `device`."""
    return next((library for library in device.libraries.values() if isinstance(library, ProductLibrary)), None)


def call(
    library: str, function: str, srcs: tuple[Node, ...], options: tuple, shape: tuple[int, ...], dtype: DType
) -> Node:
    """A value that `library` computes; `options` are plain data of its own."""
    return call_several(library, function, srcs, options, ((shape, dtype),))[0]


def call_several(
    library: str,
    function: str,
    srcs: tuple[Node, ...],
    options: tuple,
    results: tuple[tuple[tuple[int, ...], DType], ...],
) -> list[Node]:
    """The values that one call of `library` computes, with these shapes and dtypes."""
    return results_of(make_node(LIBRARY, srcs, LibraryFunction(library, function, options, results)))


def template(node: Node, leaves: Collection[Node]) -> Template:
    """The template of `library`."""
    library = node.device.libraries[node.attrs.library]
    views = [view_of(source, leaves, contiguous=False) for source in node.srcs]
    for number, source in enumerate(node.srcs):
        if not library.can_read(node, number, views[number]):
            views[number] = Strided(source, 0, row_major(source.shape))
    results = results_of(node)
    uses = (*[(view.base, view.offset) for view in views], *[(result, 0) for result in results])

    @functools.cache
    def arrange_strides(strides: tuple[tuple[int, ...], ...]) -> tuple[Config, int, int]:
        return library.configure(node, views, strides)

    def arrange(region: Region) -> tuple[Config, int, int]:
        return arrange_strides(tuple([region.strides.get(result) or row_major(result.shape) for result in results]))

    def build(region: Region, device: Device) -> Called:
        config, _, flops = arrange(region)
        return Called(library.name, node.attrs.function, config, uses, flops)

    return Template(tuple(dict.fromkeys(view.base for view in views)), build, scratch=lambda region: arrange(region)[1])
