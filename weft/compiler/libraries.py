"""libraries: heavy nodes that a vendor's library computes.

`offered` asks the libraries of a device before a node is expanded in another way; what they offer is made of `library`
nodes, which only the compiler makes. A `library` is a region of its own: its sources are views of memory, its result is
memory, and `Library.arrange` fixes its config (algorithm included) and workspace when the plan is made.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

import numpy as np

from weft.backends.base import Device, ProductLibrary
from weft.compiler.access import Strided, row_major
from weft.compiler.plan import Config
from weft.compiler.region import Region
from weft.compiler.template import Called, Template, view_of
from weft.dtypes import DType
from weft.graph.evaluate import SEVERAL
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES, Primitive, make, results_of, several


def offered(node: Node, srcs: tuple[Node, ...], device: Device) -> Sequence[Node] | None:
    """What the first library that computes `node` puts in the place of its value, or of each of its results."""
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
    return results_of(make("library", srcs, (library, function, options, results)))


def template(node: Node, leaves: Collection[Node]) -> Template:
    """The template of `library`."""
    library = node.device.libraries[node.attrs[0]]
    views = [view_of(source, leaves, contiguous=False) for source in node.srcs]
    for number, source in enumerate(node.srcs):
        if not library.reads(node, number, views[number]):
            views[number] = Strided(source, 0, row_major(source.shape))
    results = results_of(node)
    uses = (*[(view.base, view.offset) for view in views], *[(result, 0) for result in results])

    @functools.cache
    def arranged(region: Region) -> tuple[Config, int, int]:
        steps = [region.strides.get(result) or row_major(result.shape) for result in results]
        return library.arrange(node, views, steps)

    def build(region: Region, device: Device) -> Called:
        config, _, flops = arranged(region)
        return Called(library.name, node.attrs[1], config, uses, flops)

    return Template(
        tuple(dict.fromkeys(view.base for view in views)), build, scratch=lambda region: arranged(region)[1]
    )


def _results(srcs: tuple[Node, ...], attrs: tuple) -> tuple[tuple[tuple[int, ...], DType], ...]:
    return attrs[3]


def _evaluate(node: Node, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    return node.device.libraries[node.attrs[0]].evaluate(node, arrays)


SEVERAL["library"] = _evaluate
PRIMITIVES["library"] = Primitive("library", "template", None, several(_results), None, _results)
