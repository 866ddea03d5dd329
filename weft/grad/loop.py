"""The gradient of a loop: another loop, from the last iteration back to the first, over what the first one stacked.

Its body is the reverse traversal of the body. Of the values that this needs, states, inputs and the results of
products, reductions and the like are stacked by the first loop; what is cheap (elementwise operations, movement) is
computed again. Gradients of constants are sums over time: where a term is linear in what the body knows (a product, a
sum over a batch, rows added into a table), the sum over time is taken out of the loop and becomes one operation over
stacks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from weft.graph import build
from weft.graph.body import close, final_state, make_loop, stack, substitute
from weft.graph.build import add, dot, expand_to, like, mul, permute, reduce, reshape, scatter_add, slice_, swap_last
from weft.graph.node import Node, placeholder, toposort
from weft.graph.primitives import make_node

Later = Callable[[], Node]  # a node outside the loop, to be made once the loop exists
Engine = Callable[[Sequence[Node], Sequence[Node], Sequence[Node]], "list[Node | None]"]

CHEAP = frozenset({"leaf", "generate", "elementwise", "movement", "update", "concat", "gather"})
MOVED = frozenset({"reshape", "permute", "expand", "slice", "flip"})


def loop_gradients(loop: Node, cotangents: dict[Node, Node], gradients: Engine) -> tuple[Node | None, ...]:
    """One gradient per source of `loop`, given those of its picks. `gradients` is that of the engine."""
    return tuple(_Backward(loop, cotangents, gradients).run())


class _Backward:
    """Collects the states, inputs and wanted values of the backward loop, then makes it."""

    def __init__(self, loop: Node, cotangents: dict[Node, Node], gradients: Engine):
        self.loop, self.gradients = loop, gradients
        self.body, self.length, self.reverse = loop.attrs
        self.states: list[Node] = []
        self.firsts: list[Node] = []
        self.results: list[Node] = []
        self.xs: dict[Node, Node] = {}  # placeholder -> what it is a slice of
        self.wanted: dict[Node, None] = {}  # values to stack
        self.varying: set[Node] = set()
        self.backward: Node | None = None
        self.position: dict[Node, int] = {}
        self.seeds = self._seeds(cotangents)

    def _seeds(self, cotangents: dict[Node, Node]) -> list[tuple[Node, Node]]:
        """(value of the body, its cotangent in one iteration): states' cotangents are the states of the new loop."""
        ends = {pick.attrs.number: g for pick, g in cotangents.items() if pick.attrs.part == "final"}
        seeds = []
        for number, state in enumerate(self.body.states):
            if state.dtype.kind == "f":
                g = placeholder(state.shape, state.dtype, state.device)
                seeds.append((self.body.results[number], g))
                self.states.append(g)
                self.firsts.append(ends.get(number) or like(self.loop.srcs[number], 0.0))
        for pick, total in cotangents.items():
            if pick.attrs.part == "stack":
                value = self.body.nodes[pick.attrs.number]
                seeds.append((value, self._slice_of(total)))
        return seeds

    def _slice_of(self, total: Node) -> Node:
        """A placeholder for one time step of `total`."""
        inner = placeholder(total.shape[1:], total.dtype, total.device)
        self.xs[inner] = total
        return inner

    def run(self) -> list[Node | None]:
        inputs = [node for node in self.body.inputs if node.dtype.kind == "f"]
        found = self.gradients([value for value, _ in self.seeds], [seed for _, seed in self.seeds], inputs)
        slopes = dict(zip(inputs, self._over_residuals(found), strict=True))
        for state, first in zip([s for s in self.body.states if s in slopes], self.firsts, strict=True):
            slope = slopes[state]
            self.results.append(like(first, 0.0) if slope is None else slope)
        carried = len(self.results)
        later: dict[Node, Later | None] = {}
        for x in self.body.xs:
            slope = slopes.get(x)
            later[x] = None if slope is None else self._stack(slope)
        for constant in self.body.constants:
            slope = slopes.get(constant)
            later[constant] = None if slope is None else self._sum(slope)
        body, constants, self.position = close(self.states, list(self.xs), self.results, list(self.wanted))
        srcs = [*self.firsts, *self.xs.values(), *constants]
        self.backward = make_loop(body, srcs, self.length, not self.reverse)
        numbers = iter(range(carried))
        ends = [final_state(self.backward, next(numbers)) if state in slopes else None for state in self.body.states]
        others = [later.get(node) for node in (*self.body.xs, *self.body.constants)]
        return [*ends, *[None if make_it is None else make_it() for make_it in others]]

    # --- what the first loop keeps -----------------------------------------------------------------------------------

    def _over_residuals(self, found: Sequence[Node | None]) -> list[Node | None]:
        """The slopes in terms of this loop's inputs: values that the first loop stacked, and what follows from them."""
        body, loop = self.body, self.loop
        sources = dict(zip(body.inputs, loop.srcs, strict=True))
        kept = self._keep([slope for slope in found if slope is not None])

        def leave(node: Node) -> Node | None:
            if node in body.constants:
                return sources[node]  # `close` makes it a constant of the new loop
            if node in body.xs:
                return self._slice_of(sources[node])
            if node in body.states or node in kept:
                return self._slice_of(stack(loop, body.position[node]))
            return None

        order = toposort([slope for slope in found if slope is not None], kept.__contains__)
        fixed = {node: node for node in (*self.states, *self.xs)}
        new = substitute(order, fixed, leave)
        slopes = [None if slope is None else new[slope] for slope in found]
        self.varying = set(self.states) | set(self.xs)
        for node in toposort([slope for slope in slopes if slope is not None]):
            if any(src in self.varying for src in node.srcs):
                self.varying.add(node)
        return slopes

    def _keep(self, slopes: Sequence[Node]) -> set[Node]:
        """Values of the body that the first loop stacks: what is expensive, or rather the one elementwise value that
        is made of it, if nothing else is. Of `tanh(x + product)` that is the whole."""
        body = set(self.body.nodes)
        kept = {
            node
            for node in body
            if node.op != "loop" and node.primitive.results is None and node.primitive.kind not in CHEAP
        }
        while True:
            users: dict[Node, set[Node]] = {slope: {slope} for slope in slopes}
            for node in toposort(slopes, kept.__contains__):
                for src in node.srcs if node not in kept else ():
                    users.setdefault(src, set()).add(node)
            later = {}
            for node in kept:
                if len(users.get(node, ())) == 1:
                    (user,) = users[node]
                    alike = user.shape == node.shape and user.dtype is node.dtype and user not in kept
                    if user in body and alike and user.primitive.kind == "elementwise":
                        later[node] = user
            if not later:
                return kept
            kept = (kept - later.keys()) | set(later.values())

    # --- over time ---------------------------------------------------------------------------------------------------

    def _sum(self, node: Node) -> Later:
        """The sum of a value over all iterations: outside the loop as far as it is linear there, else as a state."""
        op = node.op
        if node not in self.varying:
            return lambda: mul(node, float(self.length))
        if op == "add":  # often a long chain, one term for each use of the constant
            terms = []
            while node.op == "add" and node in self.varying:
                node, term = node.srcs
                terms.append(self._sum(term))
            first = self._sum(node)
            return lambda: functools.reduce(add, [term() for term in reversed(terms)], first())
        if op in ("neg", "concat"):
            parts = [self._sum(src) for src in node.srcs]
            return lambda: make_node(node.primitive, tuple([part() for part in parts]), node.attrs)
        if op in MOVED or (op == "pad" and node.attrs.value == 0):
            inner = self._sum(node.srcs[0])
            return lambda: make_node(node.primitive, (inner(),), node.attrs)
        if op == "dot":
            a, b = node.srcs
            left, right = self._stack(_transpose(a)), self._stack(b)
            return lambda: dot(swap_last(_join(left())), _join(right()))
        if op == "reduce_sum":
            whole = self._stack(node.srcs[0])
            return lambda: reduce("reduce_sum", whole(), (0, *[axis + 1 for axis in node.attrs.axes]))
        if op == "scatter_add":
            index, rows = self._stack(node.srcs[0]), self._stack(node.srcs[1])
            return lambda: scatter_add(_flatten_time(index()), _flatten_time(rows()), node.attrs.rows)
        total = placeholder(node.shape, node.dtype, node.device)
        number = len(self.states)
        self.states.append(total)
        self.firsts.append(like(node, 0.0))
        self.results.append(add(total, node))
        return lambda: final_state(self._make(), number)

    def _stack(self, node: Node) -> Later:
        """A value at all iterations, [length, ...]; movement is left for outside, where it is free."""
        length = self.length
        if node not in self.varying:
            return lambda: expand_to(node, (length, *node.shape))
        if node in self.xs:
            return lambda: self.xs[node]
        if node.op in MOVED or node.op == "pad":
            inner = self._stack(node.srcs[0])
            return lambda: _move(node, inner())
        self.wanted[node] = None
        return lambda: stack(self._make(), self.position[node])

    def _make(self) -> Node:
        assert self.backward is not None
        return self.backward


def _move(node: Node, x: Node) -> Node:
    """The movement of `node`, on values with time as an additional first axis."""
    length, op, attrs = x.shape[0], node.op, node.attrs
    if op == "reshape":
        return reshape(x, (length, *attrs.shape))
    if op == "permute":
        return permute(x, (0, *[axis + 1 for axis in attrs.order]))
    if op == "expand":
        return make_node("expand", (x,), ((length, *attrs.shape),))
    if op == "slice":
        starts, stops, steps = attrs
        return slice_(x, (0, *starts), (length, *stops), (1, *steps))
    if op == "flip":
        return build.flip(x, [axis + 1 for axis in attrs.axes])
    lows, highs, value = attrs
    return build.pad(x, (0, *lows), (0, *highs), value)


def _transpose(node: Node) -> Node:
    """The matrix transpose, without moving there and back."""
    rank = len(node.shape)
    swapped = (*range(rank - 2), rank - 1, rank - 2)
    return node.srcs[0] if node.op == "permute" and node.attrs.order == swapped else swap_last(node)


def _join(x: Node) -> Node:
    """[time, *batch, rows, columns] as [*batch, time * rows, columns]."""
    rank = len(x.shape)
    moved = permute(x, (*range(1, rank - 2), 0, rank - 2, rank - 1))
    return reshape(moved, (*x.shape[1:-2], x.shape[0] * x.shape[-2], x.shape[-1]))


def _flatten_time(x: Node) -> Node:
    """Time and the first axis as one."""
    return reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))
