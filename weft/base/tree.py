"""Nested tuples, lists and dicts: take the leaves out, put others in. Anything else is a leaf."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

LEAF = object()


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """The leaves in order, and the structure they came from.

    >>> flatten({"b": 1, "a": (2, [3])})[0]
    [1, 2, 3]
    """
    leaves: list[Any] = []
    return leaves, _take(tree, leaves)


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """The structure with other leaves.

    >>> leaves, structure = flatten({"b": 1, "a": (2, [3])})
    >>> unflatten(structure, [10 * leaf for leaf in leaves])
    {'b': 10, 'a': (20, [30])}
    """
    return _restore(structure, iter(leaves))


def is_leaf(structure: Any) -> bool:
    """Whether the structure is a single leaf.

    >>> is_leaf(flatten(1)[1]), is_leaf(flatten([1])[1])
    (True, False)
    """
    return structure is LEAF


def _take(tree: Any, leaves: list[Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _take(value, leaves) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return _rebuild(tree, [_take(value, leaves) for value in tree])
    leaves.append(tree)
    return LEAF


def _restore(structure: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(structure, dict):
        return {key: _restore(value, leaves) for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        return _rebuild(structure, [_restore(value, leaves) for value in structure])
    return next(leaves)


def _rebuild(like: Any, items: list[Any]) -> Any:
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
