"""What a legal graph is. Tests check it after every compiler pass; users never pay for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.base.dtypes import ALL
from weft.base.errors import GraphError, problem
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES, Primitive

_VALUE_TYPES = {"b": bool, "i": int, "u": int, "f": float}


def check(nodes: Iterable[Node], primitives: Mapping[str, Primitive] = PRIMITIVES) -> None:
    """Raise GraphError at the first node, below any of `nodes`, that breaks a rule.

    A legal node has a row of the table `primitives`, the right number of sources on its own device, its attributes
    hashable and in normal form, and the shape and dtype that the row's rule derives. No node is below itself.
    """
    state: dict[Node, str] = {}  # 'open' while its sources are visited, then 'done'
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if state.get(node) == "done":
            continue
        if state.get(node) == "open":
            state[node] = "done"
            check_node(node, primitives)
            continue
        state[node] = "open"
        stack.append(node)
        if node.op == "loop":
            stack.extend(node.attrs.body.nodes)
        for src in node.srcs:
            if state.get(src) == "open":
                raise _illegal_node(node, f"a cycle through {src!r}", "an acyclic graph")
            stack.append(src)


def check_node(node: Node, primitives: Mapping[str, Primitive] = PRIMITIVES) -> None:
    """Raise GraphError if a node, whose sources are legal, breaks a rule."""
    primitive, attrs = node.primitive, node.attrs
    if primitives.get(node.op) is not primitive:
        raise _illegal_node(node, f"the operation {node.op!r}", "a primitive of the table")
    if node.dtype not in ALL:
        raise _illegal_node(node, f"the dtype {node.dtype!r}", "one of dtypes.ALL")
    if not _is_shape(node.shape):
        raise _illegal_node(node, f"the shape {node.shape!r}", "a tuple of ints that are not negative")
    if primitive.arity not in (None, len(node.srcs)) or (primitive.arity is None and not node.srcs):
        raise _illegal_node(node, f"{len(node.srcs)} sources", f"{primitive.arity or 'at least one'}")
    local = node.srcs[:1] if node.op == "result" else node.srcs  # a history may be on another device
    if any(src.device is not node.device for src in local):
        raise _illegal_node(node, f"sources on {[str(src.device) for src in node.srcs]}", f"all on {node.device}")
    if not _is_record(attrs, primitive.attributes) or not _is_hashable(attrs):
        expected = f"a {primitive.attributes.__name__} of hashable values"
        raise _illegal_node(node, f"the attributes {node.attrs!r}", expected)
    if node.op == "const" and type(attrs.value) is not _VALUE_TYPES[node.dtype.kind]:
        raise _illegal_node(node, f"the value {attrs.value!r}", f"a Python value of the kind of {node.dtype.name}")
    if node.op == "flip" and list(attrs.axes) != sorted(set(attrs.axes)):
        raise _illegal_node(node, f"the axes {attrs.axes}", "sorted axes, each once")
    if primitive.kind == "leaf":
        return
    try:
        derived = primitive.shape_rule(node.srcs, node.attrs, node.dtype)
    except (AssertionError, ValueError, TypeError, IndexError) as error:
        raise _illegal_node(
            node, f"sources {node.srcs} with attributes {node.attrs}", "what its rule accepts"
        ) from error
    if derived != (node.shape, node.dtype):
        shape, dtype = derived
        raise _illegal_node(node, f"{node.dtype.name}{list(node.shape)}", f"{dtype.name}{list(shape)} by its rule")


def _illegal_node(node: Node, given: str, expected: str) -> Exception:
    return problem(GraphError, f"graph spec, node {node!r}", given, expected)


def _is_record(attrs: object, kind: type[tuple]) -> bool:
    return type(attrs) is kind


def _is_shape(shape: object) -> bool:
    return isinstance(shape, tuple) and all(type(extent) is int and extent >= 0 for extent in shape)


def _is_hashable(attrs: tuple) -> bool:
    try:
        hash(attrs)
    except TypeError:
        return False
    return True
