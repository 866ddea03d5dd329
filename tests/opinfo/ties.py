"""Indices that torch does not define: which of several equal elements a sort, a selection or a median names.

In their place the elements are compared that the indices name, in Weft's result and in torch's.
"""

from __future__ import annotations

from typing import Any

import torch

import weft
from tests.opinfo.calls import Call

# The position of the parameter `dim`.
UNDEFINED = {"sort": 1, "argsort": 1, "topk": 2, "kthvalue": 2, "median": 1, "nanmedian": 1, "mode": 1}


def without_ties(name: str, call: Call, ours: list[Any], theirs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Results with elements for undefined indices."""
    source = call.args[0] if call.args else None
    if name not in UNDEFINED or not isinstance(source, torch.Tensor) or not source.ndim:
        return ours, theirs
    if theirs[-1].dtype is not torch.int64 or (len(theirs) == 1 and name != "argsort") or call.kwargs.get("stable"):
        return ours, theirs
    place = UNDEFINED[name]
    dim = call.kwargs.get("dim", call.args[place] if len(call.args) > place else -1)
    named = [_elements(source, torch.from_numpy(ours[-1].numpy().copy()), dim), _elements(source, theirs[-1], dim)]
    return [*ours[:-1], weft.tensor(named[0].numpy())], [*theirs[:-1], named[1]]


def _elements(source: torch.Tensor, indices: torch.Tensor, dim: int) -> torch.Tensor:
    if indices.ndim < source.ndim:
        indices = indices.unsqueeze(dim)
    return source.detach().gather(dim, indices)
