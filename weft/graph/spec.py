"""What a legal graph is. Tests check it after every compiler pass; users never pay for it."""

from __future__ import annotations

from collections.abc import Iterable

from weft.dtypes import ALL
from weft.errors import GraphError, problem
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES

_VALUE_TYPES = {"b": bool, "i": int, "u": int, "f": float}


def check(nodes: Iterable[Node]) -> None:
    """Raise GraphError at the first node, below any of `nodes`, that breaks a rule.

    A legal node has a primitive of the table, the right number of sources on its own device, hashable attributes in
    normal form, and the shape and dtype that the primitive's rule derives. No node is below itself.
    """
    state: dict[Node, str] = {}  # 'open' while its sources are walked, then 'done'
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if state.get(node) == "done":
            continue
        if state.get(node) == "open":
            state[node] = "done"
            _check_node(node)
            continue
        state[node] = "open"
        stack.append(node)
        if node.op == "loop":
            stack.extend(node.attrs[0].nodes)
        for src in node.srcs:
            if state.get(src) == "open":
                raise _illegal(node, f"a cycle through {src!r}", "an acyclic graph")
            stack.append(src)


def _check_node(node: Node) -> None:
    primitive = PRIMITIVES.get(node.op)
    if primitive is None:
        raise _illegal(node, f"the operation {node.op!r}", "a primitive of graph/primitives.py")
    if node.dtype not in ALL:
        raise _illegal(node, f"the dtype {node.dtype!r}", "one of dtypes.ALL")
    if not _is_shape(node.shape):
        raise _illegal(node, f"the shape {node.shape!r}", "a tuple of ints that are not negative")
    if primitive.arity not in (None, len(node.srcs)) or (primitive.arity is None and not node.srcs):
        raise _illegal(node, f"{len(node.srcs)} sources", f"{primitive.arity or 'at least one'}")
    near = node.srcs[:1] if node.op == "result" else node.srcs  # a history may lie on another device
    if any(src.device is not node.device for src in near):
        raise _illegal(node, f"sources on {[str(src.device) for src in node.srcs]}", f"all on {node.device}")
    if not isinstance(node.attrs, tuple) or not _hashable(node.attrs):
        raise _illegal(node, f"the attributes {node.attrs!r}", "a hashable tuple")
    if node.op == "const" and type(node.attrs[0]) is not _VALUE_TYPES[node.dtype.kind]:
        raise _illegal(node, f"the value {node.attrs[0]!r}", f"a Python value of the kind of {node.dtype.name}")
    if node.op == "flip" and list(node.attrs[0]) != sorted(set(node.attrs[0])):
        raise _illegal(node, f"the axes {node.attrs[0]}", "sorted axes, each once")
    if primitive.kind == "leaf":
        return
    try:
        derived = primitive.shape_rule(node.srcs, node.attrs, node.dtype)
    except (AssertionError, ValueError, TypeError, IndexError) as error:
        raise _illegal(node, f"sources {node.srcs} with attributes {node.attrs}", "what its rule accepts") from error
    if derived != (node.shape, node.dtype):
        shape, dtype = derived
        raise _illegal(node, f"{node.dtype.name}{list(node.shape)}", f"{dtype.name}{list(shape)} by its rule")


def _illegal(node: Node, given: str, expected: str) -> Exception:
    return problem(GraphError, f"graph spec, node {node!r}", given, expected)


def _is_shape(shape: object) -> bool:
    return isinstance(shape, tuple) and all(type(extent) is int and extent >= 0 for extent in shape)


def _hashable(attrs: tuple) -> bool:
    try:
        hash(attrs)
    except TypeError:
        return False
    return True
