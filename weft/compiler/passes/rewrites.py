"""The passes over the graph, each from a program to a new program with the same meaning.

What each of them does is in a module of its own; this one has what the pipeline calls.
"""

from __future__ import annotations

import math
from dataclasses import replace

from weft.compiler.fusion.views import window_base
from weft.compiler.options import Options
from weft.compiler.passes.canonicalize import copy_of, decompose, number_for, numbers_for
from weft.compiler.passes.expand import expand_slice_updates, expand_templates
from weft.compiler.passes.library_products import absorb
from weft.compiler.passes.loops import last_entries, rebuild_loops
from weft.compiler.passes.row_writes import expand_replaced_rows
from weft.compiler.passes.simplify import reshape, simplify
from weft.compiler.program import Program
from weft.compiler.templates.gemm import tile_products
from weft.graph.node import Node, placeholder, toposort


def expand_row_writes(program: Program, options: Options) -> Program:
    """Writes of rows as writes in place where the options allow it, else as a choice for all elements."""
    return program.with_outputs(expand_replaced_rows(program, options.rows_in_place))


def expand_updates(program: Program, options: Options) -> Program:
    """Writes into slices, slices with open starts, and input gradients of convolutions as simpler nodes."""
    starts = numbers_for(program.positions)
    nodes = options.watch(program.nodes)
    return program.with_outputs(expand_slice_updates(nodes, program.outputs, program.leaves, options.device, starts))


def simplify_program(program: Program, options: Options) -> Program:
    """The program in simpler form, over placeholders for its leaves: a plan serves every program of the same form."""
    placeholders = {leaf: placeholder(leaf.shape, leaf.dtype, leaf.device) for leaf in program.leaves}
    numbers = {node: number_for(node, slot) for slot, node in enumerate(program.numbers)}
    outputs = simplify(options.watch(program.nodes), program.outputs, {**placeholders, **numbers})
    leaves = tuple(placeholders.values())
    nodes = tuple(toposort(outputs, set(leaves).__contains__))
    return replace(program, nodes=nodes, leaves=leaves, outputs=tuple(outputs), numbers=(), positions=())


def prepare_loops(program: Program, options: Options) -> Program:
    """Loops with simplified bodies and without what is not used of them."""
    return program.with_outputs(rebuild_loops(options.watch(program.nodes), program.outputs, set(program.leaves)))


def expand_primitives(program: Program, options: Options) -> Program:
    """Convolutions and attention as library calls, nodes with a template, or simpler nodes."""
    nodes = options.watch(program.nodes)
    return program.with_outputs(expand_templates(nodes, program.outputs, program.leaves, options.device))


def canonicalize(program: Program, options: Options) -> Program:
    """Reductions, products and concatenations in the few forms that the fuser accepts; this fixes orders of
    addition."""
    leaves = set(program.leaves)
    separate = {_contiguous_base(node, leaves) for node in program.outputs} if options.is_loop_body else ()
    return program.with_outputs(decompose(options.watch(program.nodes), program.outputs, leaves, separate))


def call_product_libraries(program: Program, options: Options) -> Program:
    """Matrix products as calls of the device's library, with the epilogues of the library."""
    nodes = options.watch(program.nodes)
    return program.with_outputs(absorb(nodes, program.outputs, program.leaves, options.device))


def tile_gpu_products(program: Program, options: Options) -> Program:
    """The other matrix products of a GPU as products of workgroups."""
    if not options.device.features.workgroups:
        return program
    return program.with_outputs(tile_products(options.watch(program.nodes), program.outputs, program.leaves))


def separate_outputs(program: Program, options: Options) -> Program:
    """Copies of outputs that would otherwise have no memory of their own: leaves, and values that are returned, or
    written to a leaf, more than once."""
    leaves = set(program.leaves)
    own: set[Node] = set()
    written = {write.output for write in program.writes}
    copies = _copies(program, leaves) if written else {}
    entries = last_entries([node for node in program.nodes if node.op == "pick"])
    outputs = list(program.outputs)
    for position, node in enumerate(outputs):
        base = _contiguous_base(node, leaves)
        waits = base.op == "after" or window_base(node, leaves).op == "after"
        if base in leaves or waits or base in entries or (options.is_loop_body and base in own):
            outputs[position] = copy_of(node)
        elif position in written and node in own:
            found = copies.get(base)
            outputs[position] = reshape(found.pop(), node.shape) if found else copy_of(node)
        own.update((node, base))
    return program.with_outputs(outputs)


def _copies(program: Program, leaves: set[Node]) -> dict[Node, list[Node]]:
    """Copies of whole values that the graph has anyway, as contiguous parts of concatenations, the last one first."""
    found: dict[Node, list[Node]] = {}
    for node in reversed(program.nodes):
        if node.op == "concat" and math.prod(node.shape[: node.attrs.axis]) == 1:
            for part in reversed(node.srcs):
                if part.op == "copy":
                    found.setdefault(_contiguous_base(part.srcs[0], leaves), []).append(part)
    return found


def _contiguous_base(node: Node, leaves: set[Node]) -> Node:
    while node not in leaves and node.op == "reshape":
        node = node.srcs[0]
    return node
