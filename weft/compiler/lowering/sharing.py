"""Equal regions are lowered once.

Layers of one form give regions that differ only in the memory that they read and store, in the numbers that are passed
with a launch, and in which draws of random numbers they use. `Sharing` finds the form of a region and builds its
kernel for the first region of each form; the others get the same kernel with their own memory and numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from weft.base.dtypes import DType, float32, uint32
from weft.compiler.fusion.index_map import Indices
from weft.compiler.fusion.region import Region
from weft.compiler.lowering.expressions import STATUS, is_number_name
from weft.compiler.lowering.nests import LoweredNest, kernel_name
from weft.compiler.program import LITERAL
from weft.compiler.templates.template import Called
from weft.graph.node import Node
from weft.kernels.ir import index as ix
from weft.kernels.ir.language import ScalarParam
from weft.plan.plan import Number, Scalar

Build = Callable[[Region], Any]  # the result has `uses`, `scalars` and `sites`, as `nests.LoweredNest` does


class Sharing:
    """What was built for each form of region."""

    def __init__(self) -> None:
        self.built: dict[tuple, tuple[Any, _Form]] = {}

    def lower(self, region: Region, build: Build) -> Any:
        """`build(region)`, or what it gave for an equal region, with the memory and the numbers of this one."""
        if region.anchor is not None and region.anchor.op == "custom":
            return build(region)  # its kernel was made before, and names its own scalars
        form = _Form(region)
        found = self.built.get(form.key)
        if found is None:
            result = build(region)
            self.built[form.key] = result, form
            return result
        result, first = found
        bound = _rebind(result, first, form)
        return build(region) if bound is None else bound


class _Form:
    """The form of a region as a `key`; `nodes` and `numbers` are what differs between regions of one form."""

    def __init__(self, region: Region):
        self.region = region
        self.nodes: dict[Node, int] = {}
        self.numbers: dict[tuple, int] = {}
        rows: list[tuple] = []
        roots = [*region.roots, *region.partials]
        for root in (region.anchor, region.pointers):
            if root is not None:
                roots.append(root)
        known = self.nodes
        stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
        while stack:
            node, done = stack.pop()
            if node in known:
                continue
            if node in region.reads or not node.srcs:
                known[node] = len(known)
                rows.append(self._row(node))
            elif done:
                sources = tuple([known[source] for source in node.srcs])
                known[node] = len(known)
                rows.append((*self._row(node), sources))
            else:
                stack.append((node, True))
                stack.extend([(source, False) for source in reversed(node.srcs) if source not in known])
        for read in region.reads:
            if read not in known:
                known[read] = len(known)
                rows.append(self._row(read))
        self.key = (
            region.form, region.shape, region.reduced, kernel_name(region), tuple(rows),
            tuple([(known[root], root in region.retained, region.strides.get(root)) for root in roots]),
            len(region.roots), len(region.partials), region.anchor is None, region.pointers is None,
            frozenset([self._access(node, at) for node, at in region.accesses]),
        )  # fmt: skip

    def _row(self, node: Node) -> tuple:
        """What a kernel knows about a node: numbers that come with the launch are counted, not named."""
        form = (node.op, node.shape, node.dtype, node.device, node.site)
        if node in self.region.reads:
            return ("read", *form[1:4])
        if node.op == "const":
            return (*form, self._constant(node))
        if node.op == "number":
            return (*form, self._number("number", node.attrs.slot, node.dtype))
        if node.op == "random":
            shape, draw, width = node.attrs
            return (*form, shape, width, self._number("draw", draw, uint32))
        if node.op in ("copy", "input", "buffer"):
            return form  # their attribute only makes each its own node
        return (*form, node.attrs)

    def _constant(self, node: Node) -> str | int:
        value, dtype = node.attrs.value, node.dtype
        if dtype.kind != "f" or value in LITERAL or value != value:
            return repr(value)  # part of the kernel's text
        return self._number("const", repr(value), float32 if dtype.is_16_bit else dtype)

    def _number(self, kind: str, value: Any, dtype: DType) -> int:
        return self.numbers.setdefault((kind, value, dtype), len(self.numbers))

    def _access(self, node: Node, at: Indices) -> tuple:
        loaded = any(axis.kind == "value" for index in at for axis in ix.axes_of(index))
        return self.nodes.get(node, -1), "loaded" if loaded else at


def _rebind(result: Any, first: _Form, other: _Form) -> Any | None:
    """What was built for `first`, for the region of `other`; None where something is not known by its form."""
    if isinstance(result, Called):
        return None
    nodes = list(other.nodes)
    uses: list[Any] = []
    for use in result.uses:
        node = use[0] if isinstance(use, tuple) else use
        number = first.nodes.get(node)
        if number is None and node is not STATUS:
            return None
        bound = node if number is None else nodes[number]
        uses.append((bound, use[1]) if isinstance(use, tuple) else bound)
    if not first.numbers:
        return replace(result, uses=tuple(uses))
    values = list(other.numbers)
    params = (result.nest if isinstance(result, LoweredNest) else result.kernel).scalars
    scalars = [
        _value(values[first.numbers[origin]]) if (origin := _origin(param, scalar)) in first.numbers else scalar
        for param, scalar in zip(params, result.scalars, strict=True)
    ]
    return replace(result, uses=tuple(uses), scalars=tuple(scalars))


def _origin(param: ScalarParam, scalar: Scalar) -> tuple | None:
    """What a scalar that `expressions.Builder` named stands for in `_Form.numbers`; None for extents and the like."""
    if not is_number_name(param.name):
        return None
    if isinstance(scalar, Number):
        return "number", scalar.slot, param.dtype
    if param.dtype is uint32:
        return "draw", scalar, uint32
    return "const", repr(scalar), param.dtype


def _value(origin: tuple) -> Scalar:
    kind, value, _ = origin
    return Number(value) if kind == "number" else value if kind == "draw" else float(value)
