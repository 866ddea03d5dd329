"""The arguments of a compiled function: as a flat list, what a plan assumes of them, and placeholders for a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.base import tree
from weft.base.errors import GraphError, problem
from weft.compiler.realize import check_live
from weft.core.host_arrays import from_host
from weft.core.tensor import Tensor
from weft.graph.node import Node
from weft.graph.numbers import Tape

STATIC_TYPES = (int, bool, str, bytes, type(None))


def flatten_arguments(args: tuple, kwargs: dict) -> tuple[list[Any], tuple]:
    """The arguments as a list, and what a plan assumes of them."""
    flat, structure = tree.flatten((args, kwargs))
    flat = [_as_argument(value) for value in flat]
    return flat, (structure, tuple([_form(value) for value in flat]))


def _as_argument(value: Any) -> Any:
    """Tensors for NumPy arrays, Python numbers for NumPy's; a tensor whose memory was given away raises here."""
    if isinstance(value, np.ndarray):
        return Tensor(from_host(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Tensor) and value._node is not None and value._node.buffer is not None:
        check_live(value._node.buffer)
    return value


def _form(value: Any) -> tuple:
    """What a plan assumes of an argument."""
    if isinstance(value, Tensor):
        return ("tensor", *value._form_now(), value.requires_grad)
    if isinstance(value, float):
        return ("static", float, value.hex())
    if isinstance(value, STATIC_TYPES):
        return ("static", type(value), value)
    raise problem(
        GraphError,
        "weft.compile",
        f"an argument of type {type(value).__name__}",
        "tensors, NumPy arrays, numbers, strings, None, and tuples, lists or dicts of them",
        "close over other objects instead of passing them",
    )


def make_placeholders(
    flat: Sequence[Any], structure: Any, tape: Tape, numbers: Sequence[int]
) -> tuple[tuple, dict, list[tuple[int, Node]], list[tuple[int, int]]]:
    """The arguments with placeholders for tensors and for the numbers at some positions, (position, placeholder) of
    each tensor, and (entry of the tape, position) of each number."""
    values: list[Any] = []
    bound: list[tuple[int, Node]] = []
    sources: list[tuple[int, int]] = []
    for position, value in enumerate(flat):
        if isinstance(value, Tensor):
            value = Tensor._trace_input(value.shape, value.dtype, value.device, value.requires_grad)
            bound.append((position, value.node))
        elif position in numbers:
            value = tape.source(value)
            sources.append((value._index, position))
        values.append(value)
    args, kwargs = tree.unflatten(structure, values)
    return args, kwargs, bound, sources
