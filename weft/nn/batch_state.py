"""State of a layer that has one row for every row of a batch: traces, chains, cells."""

from __future__ import annotations

from collections.abc import Callable

from weft.errors import ShapeError, problem
from weft.nn.module import Module
from weft.state import STATE
from weft.tensor import Tensor


def fit_rows(module: Module, rows: int, make: Callable[[int], dict[str, Tensor]]) -> None:
    """Give `module` new state, the buffers `make(rows)`, where what it has is for another number of rows. A compiled
    function cannot change the shape of a buffer: there it raises."""
    names = make(0)
    if all(len(getattr(module, name)) == rows for name in names):
        return
    if STATE.trace is not None:
        held = len(getattr(module, next(iter(names))))
        who = type(module).__name__
        given, expected = f"{rows} rows inside {STATE.trace.where}", f"{held}, as many as its state has"
        raise problem(ShapeError, who, given, expected, f"call reset(batch_size={rows}) first")
    for name, value in make(rows).items():
        setattr(module, name, value)
