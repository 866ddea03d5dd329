"""Modules whose parameters have no values yet."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from weft.autograd import no_grad
from weft.base.errors import RangeError, problem
from weft.core.creation import empty
from weft.nn.module import Module
from weft.random.generator import get_rng_state, set_rng_state

Made = TypeVar("Made", bound=Module)


def skip_init(module_cls: type[Made], *args: Any, **kwargs: Any) -> Made:
    """`module_cls(*args, **kwargs)` with parameters and buffers of any values: none is drawn or computed. For models
    whose weights are loaded next.

    >>> weft.nn.utils.skip_init(weft.nn.Linear, 3, 2).weight.shape
    (2, 3)
    """
    if not (isinstance(module_cls, type) and issubclass(module_cls, Module)):
        raise problem(RangeError, "skip_init", f"{module_cls!r}", "a class of modules")
    if "device" not in inspect.signature(module_cls).parameters:
        given = f"{module_cls.__name__}, which has no argument device"
        raise problem(RangeError, "skip_init", given, "a class whose constructor has one, as all layers do")
    state = get_rng_state()
    module = module_cls(*args, **kwargs)  # lazy: what its parameters start with is recorded, and computed when read
    set_rng_state(state)
    with no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor._assign(empty(tuple(tensor.shape), device=tensor.device, dtype=tensor.dtype).node)
    return module
