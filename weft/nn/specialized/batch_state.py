"""State of a layer that has one row for every row of a batch: traces, chains, cells."""

from __future__ import annotations

from collections.abc import Callable

from weft.autograd import no_grad
from weft.base.errors import ShapeError, problem
from weft.base.state import STATE
from weft.core.realize import realize
from weft.core.tensor import Tensor
from weft.nn.module import Module


def set_rows(module: Module, values: dict[str, Tensor]) -> None:
    """Assign buffers. Where the number of rows stays, they are written in place, so that compiled functions go on."""
    with no_grad():
        for name, value in values.items():
            old = getattr(module, name)
            if old.shape == value.shape:
                old.copy_(value)
            else:
                setattr(module, name, value)


def fit_rows(module: Module, rows: int, make: Callable[[int], dict[str, Tensor]]) -> None:
    """Give `module` new state, the buffers `make(rows)`, where what it has is for another number of rows. A compiled
    function cannot change the shape of a buffer: there it raises."""
    names = make(0)
    if all(len(getattr(module, name)) == rows for name in names):
        return
    if STATE.trace is not None:
        count = len(getattr(module, next(iter(names))))
        given, expected = f"{rows} rows inside {STATE.trace.where}", f"{count}, as many as its state has"
        fix = f"call reset(batch_size={rows}) first"
        raise problem(ShapeError, type(module).__name__, given, expected, fix)
    set_rows(module, make(rows))


def compute_now(*tensors: Tensor) -> None:
    """Compute a new state, unless it is being traced: a chain of steps whose results are not read does not grow."""
    if STATE.trace is None:
        realize(tensors)
