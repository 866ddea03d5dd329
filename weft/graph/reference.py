"""Graphs computed with NumPy, node by node: the meaning that every backend is checked against.

A node is computed by the evaluation in its primitive's row; loops and nodes with several results give the values of
what is picked of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.graph.node import Node


def run_reference(node: Node, arrays: Sequence[np.ndarray], float64: bool = False) -> np.ndarray:
    """The value of `node` given the values of its sources, in its dtype (every float as float64 if asked)."""
    evaluation = node.primitive.evaluation
    assert evaluation is not None, node
    wide = float64 and node.dtype.kind == "f"
    work = np.dtype(np.float64) if wide else np.dtype(np.float32) if node.dtype.is_16_bit else node.dtype.numpy
    with np.errstate(all="ignore"):
        if not float64:
            arrays = [
                array.astype(np.float32) if source.dtype.is_16_bit else array
                for source, array in zip(node.srcs, arrays, strict=True)
            ]
        result = np.asarray(evaluation(node, arrays, work), work)
        if node.dtype.is_16_bit and not wide:
            result = result.astype(node.dtype.numpy)
    assert result.shape == node.shape, (node, result.shape)
    return result


def run_all(
    order: Sequence[Node], known: dict[Node, np.ndarray], float64: bool = False,
    check: Callable[[Node, Sequence[np.ndarray]], None] | None = None,
) -> dict[Node, np.ndarray]:  # fmt: skip
    """The values of all nodes of `order` (sources first), given those in `known`. Loops run here, with all their picks.

    `check`, if given, is called with each node before it is evaluated.
    """
    values = dict(known)
    for node in order:
        if node in values:
            continue
        arrays = [values[src] for src in node.srcs]
        if check is not None:
            check(node, arrays)
        if node.op == "loop" or node.primitive.results is not None:
            values[node] = np.zeros((), np.float32)
            picks = [pick for pick in order if pick.op == "pick" and pick.srcs[0] is node]
            if node.op == "loop":
                values.update(_run_loop(node, arrays, picks, float64, check))
            else:
                values.update(_run_several(node, arrays, picks, float64))
        else:
            values[node] = run_reference(node, arrays, float64)
    return values


def _run_several(
    node: Node, arrays: Sequence[np.ndarray], picks: Sequence[Node], float64: bool
) -> dict[Node, np.ndarray]:
    """The picked results of a node that has several; 16-bit floats are computed in float32."""
    evaluation = node.primitive.evaluation
    assert evaluation is not None, node
    wide = [array.astype(np.float32) if array.dtype.itemsize < 4 and array.dtype != bool else array for array in arrays]
    with np.errstate(all="ignore"):
        found = evaluation(node, wide, node.dtype.numpy)
    values = {}
    for pick in picks:
        value = found[pick.attrs.number]
        values[pick] = value.astype(np.float64 if float64 else pick.dtype.numpy)
        assert value.shape == pick.shape, (node, pick, value.shape)
    return values


def _run_loop(
    loop: Node, arrays: Sequence[np.ndarray], picks: Sequence[Node], float64: bool, check: Any
) -> dict[Node, np.ndarray]:
    body, length, reverse = loop.attrs
    states, first = list(arrays[: len(body.states)]), len(body.states) + len(body.xs)
    xs, constants = arrays[len(body.states) : first], arrays[first:]
    stacks: dict[Node, list[np.ndarray]] = {pick: [] for pick in picks if pick.attrs.part == "stack"}
    blocks = {pick: [states[pick.attrs.number]] for pick in picks if pick.attrs.part == "block"}
    for iteration in reversed(range(length)) if reverse else range(length):
        known = dict(zip(body.inputs, (*states, *[x[iteration] for x in xs], *constants), strict=True))
        values = run_all(body.nodes, known, float64, check)
        for pick, stack in stacks.items():
            stack.append(values[body.nodes[pick.attrs.number]])
        states = [values[result] for result in body.results]
        for pick, stack in blocks.items():
            stack.append(states[pick.attrs.number])
    found = {pick: np.stack(stack[::-1] if reverse else stack) for pick, stack in (stacks | blocks).items()}
    return found | {pick: states[pick.attrs.number] for pick in picks if pick.attrs.part == "final"}
