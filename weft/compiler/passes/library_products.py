"""Matrix products that a vendor's library computes, with their epilogues.

On a device with a `ProductLibrary`, `absorb` turns each `dot` that the library takes into a `product`, a node that only
the compiler makes, and absorbs into it what the library does at little cost: a vector added to each row, another matrix
added, a constant factor, ReLU, GELU. Where a gradient needs what GELU was given, a `product_pair` stores both. These
are regions of their own: `matmul_layout.operands` says how they read their factors, results are memory, and the
library fixes the algorithm when the plan is made. What is not absorbed the fuser computes from the result, together
with whatever else it finds there.

For `relu(x @ w + b)`, `decompose` leaves dot -> add -> select; `absorb` makes product(x, w), then
product(x, w, b), then the same with 'relu', if nothing else reads the values between; `template` gives the LibraryCall.

In 16 bits the library rounds once, at its end, where separate nodes would each round; a product that is stored as
float32, like the gradient of a weight that was cast, is not rounded at all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.base.dtypes import DType, float32
from weft.compiler.fusion.index_map import Strided, as_strided, row_major
from weft.compiler.fusion.region import Region
from weft.compiler.fusion.views import base_of
from weft.compiler.passes.activations import Activation, activations
from weft.compiler.passes.library_calls import library_of
from weft.compiler.passes.simplify import reshape, transpose
from weft.compiler.primitives import PRODUCT, PRODUCT_PAIR, ProductOptions
from weft.compiler.program import product_precision
from weft.compiler.templates.matmul_layout import before_widening, operands
from weft.compiler.templates.template import Called, Template
from weft.graph.node import Node
from weft.graph.primitives import Primitive, make_node, results_of
from weft.plan.device import Device
from weft.plan.plan import Product
from weft.plan.protocols import ProductLibrary

GELU_MULTIPLE = 8  # columns: libraries store what GELU was given in rows of so many


@dataclass(frozen=True, slots=True)
class Parts:
    """A `product` taken apart: what it multiplies, and its epilogue."""

    a: Node
    b: Node
    dtype: DType
    bias: Node | None = None
    c: Node | None = None
    alpha: float = 1.0
    activation: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.a.shape[:-1], self.b.shape[-1])

    @property
    def node(self) -> Node:
        return self._make(PRODUCT)

    @property
    def pair(self) -> list[Node]:
        """The product with its activation, and what the activation was given."""
        return results_of(self._make(PRODUCT_PAIR))

    def _make(self, row: Primitive) -> Node:
        sources = [source for source in (self.a, self.b, self.bias, self.c) if source is not None]
        attrs = ProductOptions(self.dtype, self.bias is not None, self.c is not None, self.alpha, self.activation)
        return make_node(row, tuple(sources), attrs)


def parts_of(product: Node) -> Parts:
    dtype, bias, add, alpha, activation = product.attrs
    a, b, *rest = product.srcs
    return Parts(a, b, dtype, rest[0] if bias else None, rest[-1] if add else None, alpha, activation)


# --- absorbing -------------------------------------------------------------------------------------------------------


def absorb(nodes: list[Node], outputs: Sequence[Node], leaves: Collection[Node], device: Device) -> Sequence[Node]:
    """The outputs with library products in place of `dot`s. `nodes` is topologically sorted."""
    library = library_of(device)
    if library is None or not any(node.op == "dot" for node in nodes):
        return outputs
    return _Absorber(nodes, outputs, leaves, library).run()


def _twins(nodes: Sequence[Node]) -> dict[Node, Node]:
    """Products that are the transpose of an earlier one, which has other users."""
    first: dict[tuple[Node, ...], Node] = {}
    found = {}
    for node in nodes:
        if node.op == "dot":
            a, b = node.srcs
            earlier = first.get((transpose(b), transpose(a)))
            if earlier is None:
                first[node.srcs] = node
            else:
                found[node] = earlier
    return found


class _Absorber:
    """One traversal of a graph. `new` maps its nodes to their replacements."""

    def __init__(self, nodes: list[Node], outputs: Sequence[Node], leaves: Collection[Node], library: ProductLibrary):
        self.nodes, self.outputs, self.leaves, self.library = nodes, outputs, set(leaves), library
        self.new: dict[Node, Node] = {}
        self.made: dict[Node, Node] = {}  # the products among them, before they are reshaped
        self.users: dict[Node, list[Node]] = {}
        for node in nodes:
            for source in () if node in self.leaves else node.srcs:
                self.users.setdefault(source, []).append(node)
        self.twins = _twins(nodes)
        for twin, first in self.twins.items():
            self.users.setdefault(first, []).append(twin)
        self.wanted = set(outputs)
        self.activations = {found.argument: found for found in activations(nodes, self.leaves)}

    def run(self) -> list[Node]:
        for node in self.nodes:
            if node in self.leaves or not node.srcs:
                self.new[node] = node
                continue
            if node in self.new:
                continue  # the result of an activation that a product has absorbed
            srcs = tuple([self.new[source] for source in node.srcs])
            rule = RULES.get(node.op)
            found = rule(self, node, srcs) if rule else None
            if found is not None:
                if base_of(found).op == "product":
                    self.made[node] = base_of(found)
            else:
                found = node
                if srcs != node.srcs:
                    found = make_node(
                        node.primitive, srcs, node.attrs, dtype=node.dtype, device=node.device, site=node.site
                    )
            self.new[node] = found
            if node in self.activations:
                self._activate(self.activations[node])
        return [self.new[node] for node in self.outputs]

    def _activate(self, found: Activation) -> None:
        """Let the product that is the argument of an activation compute that too.

        ReLU needs no second result: its argument is positive where its result is, and nothing else may read it.
        """
        parts = self.find_product(found.argument)
        if parts is None or not self.takes(parts, found.name):
            return
        argument, result = found.argument, found.result
        users = {user for user in self.users.get(argument, ()) if user not in found.inside}
        others = users | ({argument} & self.wanted)
        active = replace(parts, activation=found.name)
        if found.name == "relu":
            if not others:
                self.new[argument] = self.new[result] = reshape(active.node, argument.shape)
            return
        for node in found.inside - {result}:
            others |= {user for user in self.users[node] if user not in found.inside} | ({node} & self.wanted)
        if parts.shape[-1] % GELU_MULTIPLE:
            return
        if others:
            self.new[result], self.new[argument] = [reshape(one, argument.shape) for one in active.pair]
        else:
            self.new[result] = reshape(active.node, argument.shape)

    def find_single_use(self, node: Node) -> Parts | None:
        """The product whose result `node` of the old graph is, reshaped perhaps, if it has just one user."""
        once = node not in self.leaves and node not in self.wanted and len(self.users[node]) == 1
        return self.find_product(node) if once else None

    def find_product(self, node: Node) -> Parts | None:
        """The product whose result `node` of the old graph is, reshaped perhaps, if that has no user but `node`."""
        while node not in self.leaves:
            if node in self.made:
                return parts_of(self.made[node])
            source = node.srcs[0] if node.op == "reshape" else node
            if source is node or source in self.wanted or len(self.users[source]) != 1:
                return None
            node = source
        return None

    def is_stored(self, node: Node) -> bool:
        """Whether `node` of the old graph needs memory whatever is fused: as a result, or as a part of a whole."""
        if node in self.wanted:
            return True
        users = self.users.get(node, [])
        return bool(users) and all(
            user.op == "concat" or (user.op == "reshape" and self.is_stored(user)) for user in users
        )

    def takes(self, parts: Parts, what: str) -> bool:
        return not parts.activation and what in self.library.epilogues(parts.a.dtype)


def _product(absorber: _Absorber, node: Node, srcs: tuple[Node, ...]) -> Node | None:
    """The plain product. Factors that were widened from 16 bits are read as they were: the products are the same."""
    if node.dtype.kind != "f":
        return None
    if node in absorber.twins:
        return transpose(absorber.new[absorber.twins[node]])
    a, b = [before_widening(source, absorber.leaves) for source in srcs]
    if node.dtype is not float32 or a.dtype is not b.dtype or not a.dtype.is_16_bit:
        a, b = srcs
    *batch, m, k = a.shape
    if not absorber.library.can_multiply(a.dtype, math.prod(batch), m, b.shape[-1], k):
        return None
    return Parts(a, b, node.dtype).node


def _sum(absorber: _Absorber, node: Node, srcs: tuple[Node, ...]) -> Node | None:
    """A product plus a vector along its rows, or plus a matrix that is in memory anyway."""
    for of, other in ((node.srcs[0], srcs[1]), (node.srcs[1], srcs[0])):
        parts = absorber.find_single_use(of)
        if parts is None:
            continue
        shape = parts.shape
        row = _repeated_row(other, shape[-1])
        if row is not None and parts.bias is None and absorber.takes(parts, "bias"):
            return reshape(replace(parts, bias=row).node, node.shape)
        behind = other
        while behind.op == "reshape" and behind not in absorber.leaves:
            behind = behind.srcs[0]
        stored = behind in absorber.leaves or behind.op == "product"
        if stored and parts.c is None and absorber.takes(parts, "add"):
            return reshape(replace(parts, c=reshape(other, shape)).node, node.shape)
    return None


def _repeated_row(node: Node, extent: int) -> Node | None:
    """The vector of `extent` elements that `node` repeats along all axes but its last."""
    source = node.srcs[0] if node.op == "expand" else node
    if source.size == extent and source.shape[-1:] == node.shape[-1:] == (extent,):
        return reshape(source, (extent,))
    return None


def _absorb_scale(absorber: _Absorber, node: Node, srcs: tuple[Node, ...]) -> Node | None:
    """A product times a constant."""
    for of, other in ((node.srcs[0], srcs[1]), (node.srcs[1], srcs[0])):
        factor = other
        while factor.op in ("expand", "reshape") and factor not in absorber.leaves:
            factor = factor.srcs[0]
        if factor.op == "const" and math.isfinite(factor.attrs.value):
            return _times(absorber, of, factor.attrs.value)
    return None


def _times(absorber: _Absorber, of: Node, factor: float) -> Node | None:
    parts = absorber.find_single_use(of)
    if parts is None or parts.bias is not None or parts.c is not None or parts.activation:
        return None
    return reshape(replace(parts, alpha=parts.alpha * factor).node, of.shape)


def _cast(absorber: _Absorber, node: Node, srcs: tuple[Node, ...]) -> Node | None:
    """A product of 16-bit factors that is rounded to their dtype, or stored as float32."""
    parts = absorber.find_single_use(node.srcs[0])
    if parts is None or not parts.a.dtype.is_16_bit or node.dtype not in (parts.a.dtype, float32):
        return None
    if node.dtype is float32 and not absorber.is_stored(node):
        return None
    if parts.bias is not None or parts.c is not None or parts.activation:
        return None
    return reshape(replace(parts, dtype=node.dtype).node, node.shape)


RULES: Mapping[str, Callable[[_Absorber, Node, tuple[Node, ...]], Node | None]] = {
    "dot": _product,
    "add": _sum,
    "mul": _absorb_scale,
    "neg": lambda absorber, node, srcs: _times(absorber, node.srcs[0], -1.0),
    "cast": _cast,
}


# --- the call --------------------------------------------------------------------------------------------------------


def template(node: Node, leaves: Collection[Node]) -> Template:
    """The template of `product` and `product_pair`."""
    parts, results = parts_of(node), results_of(node) or [node]
    factors = operands(node, leaves)
    others = [_as_contiguous(source, leaves) for source in (parts.bias, parts.c) if source is not None]
    read = [(view.base, view.offset) for view in factors.views] + [(view.base, view.offset) for view in others]
    *batch, m, n = parts.shape
    count, k = math.prod(batch), parts.a.shape[-1]
    wanted = Product(
        parts.a.dtype, parts.dtype, count // factors.inner, factors.inner, m, n, k,
        factors.a.transposed, factors.b.transposed, factors.a.leading, factors.b.leading, *factors.strides,
        product_precision(node.device), parts.alpha, parts.bias is not None, parts.c is not None, parts.activation,
        len(results) == 2,
    )  # fmt: skip
    library = library_of(node.device)
    assert library is not None
    arranged = functools.cache(lambda: library.configure_product(wanted))

    def build(region: Region, device: Device) -> Called:
        uses = (*read, *[(result, 0) for result in results])
        words = [word for word, said in (("bias", wanted.bias), ("add", wanted.add)) if said]
        name = "_".join(["product", "x".join(map(str, (*batch, m, n, k))), *words, *filter(None, [wanted.activation])])
        return Called(library.name, name, arranged()[0], uses, 2 * count * m * n * k)

    bases = [base for base, _ in read]
    added, at = read[-1]
    fits = (added.size, added.dtype, at) == (node.size, node.dtype, 0)
    in_place = parts.c is not None and fits and bases.count(added) == 1
    return Template(
        tuple(dict.fromkeys(bases)), build, scratch=lambda region: arranged()[1], replaces=added if in_place else None
    )


def _as_contiguous(node: Node, leaves: Collection[Node]) -> Strided:
    """`node` as contiguous memory: its own memory if that is contiguous, else memory that the compiler fills."""
    view = as_strided(node, leaves)
    if view is None or any(
        extent > 1 and step != plain
        for extent, step, plain in zip(node.shape, view.strides, row_major(node.shape), strict=True)
    ):
        return Strided(node, 0, row_major(node.shape))
    return view
