"""A program as another device would run it, for `weft.testing.verify`.

A program is traced for the device of its tensors, and its nodes carry that device. Here the same nodes are made over
placeholders on another one, so that the passes choose that device's kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from weft.base.errors import DeviceError, problem
from weft.compiler.program import Program
from weft.graph.body import Body, body
from weft.graph.node import Node, placeholder
from weft.graph.primitives import make_node
from weft.plan.device import Device


def move_program(program: Program, device: Device) -> Program:
    """The program with all its values on `device`; its leaves have no memory there yet."""
    new = _move_nodes(program.nodes, program.leaves, device)
    nodes, leaves, outputs = (
        tuple([new[node] for node in part]) for part in (program.nodes, program.leaves, program.outputs)
    )
    return replace(program, nodes=nodes, leaves=leaves, outputs=outputs, key=())


def _move_nodes(nodes: Iterable[Node], leaves: Iterable[Node], device: Device) -> dict[Node, Node]:
    new: dict[Node, Node] = {leaf: placeholder(leaf.shape, leaf.dtype, device) for leaf in leaves}
    for node in nodes:
        if node in new:
            continue
        attrs = node.attrs
        if node.op == "loop":
            attrs = attrs._replace(body=_move_body(attrs.body, device))
        if node.op == "custom" and node.device.features.workgroups != device.features.workgroups:
            given = f"a kernel of the user's that was traced for {node.device}"
            raise problem(DeviceError, "verify", given, f"one for {device}", f"move the arguments to {device} first")
        sources = tuple([new[source] for source in node.srcs])
        new[node] = make_node(node.primitive, sources, attrs, dtype=node.dtype, device=device, site=node.site)
    return new


def _move_body(inner: Body, device: Device) -> Body:
    new = _move_nodes(inner.nodes, inner.inputs, device)
    parts = (inner.states, inner.xs, inner.constants, inner.results, inner.others)
    return body(*[[new[node] for node in part] for part in parts])[0]
