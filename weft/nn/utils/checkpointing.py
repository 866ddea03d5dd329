"""Gradient checkpointing of modules: what they compute is computed again for their gradients instead of kept."""

from __future__ import annotations

from weft.base.errors import GraphError, RangeError, problem
from weft.nn.containers import Sequential
from weft.nn.module import Module


def checkpoint(module: Module, enabled: bool = True, segments: int | None = None) -> Module:
    """Let a module keep only its inputs for its gradient and compute the rest again; returns the module. The same as
    `module.checkpoint = True`. With `segments`, a `Sequential` does so in that many parts, of which one at a time is
    computed again. Results and gradients are the same to the last bit, dropout included.

    >>> block = weft.nn.Sequential(weft.nn.Linear(2, 8), weft.nn.Tanh(), weft.nn.Linear(8, 2))
    >>> weft.nn.utils.checkpoint(block).checkpoint
    True
    """
    if not isinstance(module, Module):
        given, fix = f"a {type(module).__name__}", "use weft.checkpoint for functions"
        raise problem(GraphError, "nn.utils.checkpoint", given, "a module", fix)
    if segments is not None and (segments < 1 or not isinstance(module, Sequential)):
        given = f"segments={segments} for a {type(module).__name__}"
        raise problem(RangeError, "nn.utils.checkpoint", given, "at least 1, for a Sequential")
    module.checkpoint = False if not enabled else segments if segments is not None and segments > 1 else True
    return module
