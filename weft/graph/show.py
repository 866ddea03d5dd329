"""A graph as text, one line per node, sources before users. For people; nothing reads it back."""

from __future__ import annotations

from collections.abc import Iterable

from weft.graph.node import Node, toposort


def show(roots: Iterable[Node]) -> str:
    """The graph below `roots`: number, type, operation, sources by number, attributes. Results are marked with `<-`.

    >>> import weft
    >>> with weft.device("reference"):
    ...     print(show([(weft.ones(2) + 1).node]))
    %0 = float32[] const 1.0
    %1 = float32[1] reshape %0 ((1,),)
    %2 = float32[2] expand %1 ((2,),)
    %3 = float32[2] add %2 %2  <-
    """
    roots = list(roots)
    numbers: dict[Node, int] = {}
    lines = []
    for node in toposort(roots):
        number = numbers[node] = len(numbers)
        sources = [f"%{numbers[src]}" for src in node.srcs if src in numbers]
        detail = [str(node.attrs.value if node.op == "const" else tuple(node.attrs))] if node.attrs else []
        text = " ".join([f"%{number} = {node.dtype.name}{list(node.shape)}", node.op, *sources, *detail])
        if node.buffer is not None and node.srcs:
            text += "  (computed)"
        if node in roots:
            text += "  <-"
        lines.append(text)
    return "\n".join(lines)
