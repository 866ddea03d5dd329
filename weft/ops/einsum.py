"""Einsum: sums of products by labels, contracted two operands at a time in an order chosen by shapes.

Every pair becomes a batched matrix product over permuted and reshaped operands, or a fused multiply and sum where a
product would be a thin one. Diagonals are movement.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.base.dtypes import DType
from weft.base.errors import DTypeError, ShapeError, problem
from weft.graph import build
from weft.graph.build import Shape
from weft.graph.node import Node
from weft.ops.common import same_device
from weft.ops.registry import operation


@dataclass(frozen=True, slots=True)
class Labelled:
    """A value whose axes have labels, each once."""

    node: Node
    labels: tuple[str, ...]

    @property
    def extents(self) -> dict[str, int]:
        return dict(zip(self.labels, self.node.shape, strict=True))


@operation("weft")
def einsum(equation: str, *operands: Any) -> Node:
    """The sum of products that `equation` describes: `"ij,jk->ik"` is a matrix product. Labels missing from the output
    are summed over; without `->` the output has those that occur once, in alphabetical order. A label twice in one
    operand takes the diagonal; `...` stands for axes that broadcast. Instead of an equation, a list of labels (numbers
    from 0 to 51) may follow each tensor, and that of the output the last one.

    >>> weft.einsum("ij,ij->i", weft.ones(2, 3), weft.ones(2, 3))
    tensor([3., 3.])
    """
    if isinstance(equation, Node):
        equation, operands = _equation((equation, *operands))
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    nodes = [node for node in operands if isinstance(node, Node)]
    if not nodes or len(nodes) != len(operands):
        raise problem(DTypeError, "einsum", "operands that are not all tensors", "at least one tensor")
    same_device("einsum", nodes)
    _one_dtype(nodes)
    inputs, output = _parse(equation, nodes)
    extents = _extents(equation, inputs, nodes)
    parts = [_simplify_operand(node, labels, extents) for node, labels in zip(nodes, inputs, strict=True)]
    missing = [label for label in output if label not in extents]
    if missing:
        raise _einsum_error(equation, f"the output label {missing[0]!r}", "labels of the operands")
    while True:
        parts = [_sum_out(part, _needed_labels(parts, k, output)) for k, part in enumerate(parts)]
        if len(parts) == 1:
            break
        first, second = _choose_pair(parts, output)
        a, b = parts[first], parts[second]
        others = [part for k, part in enumerate(parts) if k not in (first, second)]
        kept = {label for part in others for label in part.labels} | set(output)
        parts = [*others, _product(a, b, kept)]
    return _arrange(parts[0], output, extents)


def _equation(parts: Sequence[Any]) -> tuple[str, tuple[Node, ...]]:
    """The equation that lists of labels mean, and its tensors."""
    count = len(parts) // 2
    terms = [_term(part) for part in parts[1 : 2 * count : 2]]
    output = "->" + _term(parts[-1]) if len(parts) % 2 else ""
    return ",".join(terms) + output, tuple(parts[: 2 * count : 2])


def _term(labels: Any) -> str:
    letters = string.ascii_uppercase + string.ascii_lowercase
    found = []
    for label in labels if isinstance(labels, (tuple, list)) else [labels]:
        if label is not Ellipsis and not (isinstance(label, int) and 0 <= label < len(letters)):
            raise problem(DTypeError, "einsum", f"the label {label!r}", "numbers from 0 to 51, or ...")
        found.append("..." if label is Ellipsis else letters[label])
    return "".join(found)


def _one_dtype(nodes: Sequence[Node]) -> DType:
    dtype = nodes[0].dtype
    for node in nodes:
        if node.dtype is not dtype or dtype.kind == "b":
            given = f"{dtype.name} and {node.dtype.name}"
            raise problem(DTypeError, "einsum", given, "operands of one number type", "cast one with .to")
    return dtype


def _einsum_error(equation: str, given: str, expected: str) -> Exception:
    return problem(ShapeError, f"einsum {equation!r}", given, expected)


def _parse(equation: str, nodes: Sequence[Node]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """Labels of every operand and of the output. Axes behind `...` get the labels '...1', '...2', counted from the
    last one."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(nodes):
        raise _einsum_error(equation, f"{len(nodes)} operands", f"{len(terms)}, as the equation says")
    inputs, hidden = [], 0
    for term, node in zip(terms, nodes, strict=True):
        labels, extra = _labels(equation, term, len(node.shape))
        inputs.append(labels)
        hidden = max(hidden, extra)
    broadcast = tuple([f"...{k}" for k in range(hidden, 0, -1)])
    if arrow:
        head, dots, tail = right.partition("...")
        _check_letters(equation, head + tail)
        output = (*head, *(broadcast if dots else ()), *tail)
        if len(set(output)) != len(output):
            raise _einsum_error(equation, "an output with a label twice", "each label once")
        return inputs, output
    letters = [label for labels in inputs for label in labels if len(label) == 1]
    return inputs, (*broadcast, *sorted(label for label in set(letters) if letters.count(label) == 1))


def _labels(equation: str, term: str, rank: int) -> tuple[tuple[str, ...], int]:
    head, dots, tail = term.partition("...")
    _check_letters(equation, head + tail)
    extra = rank - len(head) - len(tail)
    if extra < 0 or (extra and not dots):
        raise _einsum_error(equation, f"an operand with {rank} axes for {term!r}", "a label for every axis")
    return (*head, *[f"...{k}" for k in range(extra, 0, -1)], *tail), extra


def _check_letters(equation: str, text: str) -> None:
    for letter in text:
        if not (letter.isalpha() and letter.isascii()):
            raise _einsum_error(equation, f"the label {letter!r}", "letters, ',', '->' and '...'")


def _extents(equation: str, inputs: Sequence[tuple[str, ...]], nodes: Sequence[Node]) -> dict[str, int]:
    extents: dict[str, int] = {}
    for labels, node in zip(inputs, nodes, strict=True):
        for label, extent in zip(labels, node.shape, strict=True):
            known = extents.get(label, 1)
            if 1 not in (known, extent) and known != extent:
                raise _einsum_error(equation, f"extents {known} and {extent} for label {label!r}", "equal ones, or 1")
            extents[label] = extent if known == 1 else known
    return extents


def _simplify_operand(node: Node, labels: tuple[str, ...], extents: dict[str, int]) -> Labelled:
    """An operand with each label once, and none for axes of extent 1 that broadcast."""
    wide = [k for k, label in enumerate(labels) if node.shape[k] != 1 or extents[label] == 1]
    node = build.reshape(node, tuple([node.shape[k] for k in wide]))
    names = [labels[k] for k in wide]
    for label in dict.fromkeys(names):
        while names.count(label) > 1:
            first = names.index(label)
            second = names.index(label, first + 1)
            node = diagonal_of(node, first, second)
            del names[second], names[first]
            names.append(label)
    return Labelled(node, tuple(names))


def diagonal_of(x: Node, first: int, second: int) -> Node:
    """Elements with equal indices on two axes of one extent, which become the last axis."""
    rest = [axis for axis in range(len(x.shape)) if axis not in (first, second)]
    extent, outer = x.shape[first], tuple([x.shape[axis] for axis in rest])
    square = build.permute(x, (*rest, first, second))
    flat = build.reshape(square, (*outer, extent * extent))
    starts, stops = (0,) * (len(outer) + 1), flat.shape
    return build.slice_(flat, starts, stops, (*[1] * len(outer), extent + 1))


def _needed_labels(parts: Sequence[Labelled], number: int, output: Sequence[str]) -> set[str]:
    return {label for k, part in enumerate(parts) if k != number for label in part.labels} | set(output)


def _sum_out(part: Labelled, needed: set[str]) -> Labelled:
    """Sum over labels that no other operand has."""
    axes = [axis for axis, label in enumerate(part.labels) if label not in needed]
    if not axes:
        return part
    kept = tuple([label for label in part.labels if label in needed])
    return Labelled(build.reduce("reduce_sum", part.node, axes), kept)


def _choose_pair(parts: Sequence[Labelled], output: Sequence[str]) -> tuple[int, int]:
    """The pair whose product grows memory least; of those, the one with the fewest operations."""
    best: tuple[tuple[int, int], tuple[int, int]] | None = None
    for first in range(len(parts)):
        for second in range(first + 1, len(parts)):
            a, b = parts[first], parts[second]
            union = {**a.extents, **b.extents}
            others = {label for k, part in enumerate(parts) if k not in (first, second) for label in part.labels}
            result = math.prod(n for label, n in union.items() if label in others or label in output)
            cost = (result - a.node.size - b.node.size, math.prod(union.values()))
            if best is None or cost < best[0]:
                best = (cost, (first, second))
    assert best is not None
    return best[1]


def _product(a: Labelled, b: Labelled, kept: set[str]) -> Labelled:
    """Two operands as one, over the labels that are still needed."""
    shared = [label for label in a.labels if label in b.labels]
    batch, inner = [label for label in shared if label in kept], [label for label in shared if label not in kept]
    rows, columns = ([label for label in part.labels if label not in shared] for part in (a, b))
    extents = {**a.extents, **b.extents}

    def size(labels: Sequence[str]) -> int:
        return math.prod(extents[label] for label in labels)

    result = (*batch, *rows, *columns)
    if not inner or min(size(rows), size(columns)) == 1 or a.node.dtype.kind != "f":
        full = (*batch, *rows, *columns, *inner)
        shape = tuple([extents[label] for label in full])
        wide = build.mul(_spread(a, full, shape), _spread(b, full, shape))
        return Labelled(build.reduce("reduce_sum", wide, range(len(result), len(full))), result)
    left = _group(a, (batch, rows, inner), size)
    right = _group(b, (batch, inner, columns), size)
    product = build.dot(left, right)
    return Labelled(build.reshape(product, tuple([extents[label] for label in result])), result)


def _group(part: Labelled, groups: tuple[list[str], list[str], list[str]], size) -> Node:
    """An operand as [*batch, rows, columns]."""
    batch, rows, columns = groups
    order = [part.labels.index(label) for group in groups for label in group]
    shape: Shape = (*[size([label]) for label in batch], size(rows), size(columns))
    return build.reshape(build.permute(part.node, order), shape)


def _spread(part: Labelled, labels: Sequence[str], shape: Shape) -> Node:
    """An operand with all of `labels` as axes, repeated where it has none."""
    order = [part.labels.index(label) for label in labels if label in part.labels]
    thin = tuple([n if label in part.labels else 1 for label, n in zip(labels, shape, strict=True)])
    return build.expand(build.reshape(build.permute(part.node, order), thin), shape)


def _arrange(part: Labelled, output: Sequence[str], extents: dict[str, int]) -> Node:
    present = [label for label in output if label in part.labels]
    node = build.permute(part.node, [part.labels.index(label) for label in present])
    thin = tuple([extents[label] if label in part.labels else 1 for label in output])
    return build.expand(build.reshape(node, thin), tuple([extents[label] for label in output]))
