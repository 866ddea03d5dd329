"""`torch.utils.checkpoint` by name: functions that are computed again for their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from weft.autograd.function import run_checkpointed
from weft.base.errors import GraphError, problem

__all__ = ["checkpoint", "checkpoint_sequential"]


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Any = None,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """`weft.checkpoint` with PyTorch's options, which choose nothing here: random draws are always the same in the
    recomputation, and the function runs once.

    >>> x = weft.ones(2, requires_grad=True)
    >>> weft.utils.checkpoint.checkpoint(weft.exp, x, use_reentrant=False).sum().backward()
    >>> x.grad
    tensor([2.7183, 2.7183])
    """
    if not callable(function):
        raise problem(GraphError, "checkpoint", f"a {type(function).__name__}", "a function and its arguments")
    return run_checkpointed(function, args, kwargs)


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """The functions (a `Sequential`, or a list) one after the other, in `segments` parts that keep only their inputs.
    The last part is not computed again, as in PyTorch."""
    steps: Sequence[Callable[..., Any]] = list(functions)
    if not 1 <= segments <= len(steps):
        given = f"{segments} segments of {len(steps)} functions"
        raise problem(GraphError, "checkpoint_sequential", given, "from 1 to the number of functions")
    size = len(steps) // segments
    bounds = [*range(0, size * segments, size), len(steps)]

    def run(start: int, stop: int, value: Any) -> Any:
        for step in steps[start:stop]:
            value = step(value)
        return value

    for start, stop in itertools.pairwise(bounds):
        is_last = stop == len(steps)
        input = run(start, stop, input) if is_last else run_checkpointed(run, (start, stop, input), {})
    return input
