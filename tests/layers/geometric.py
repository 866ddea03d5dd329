"""torch_geometric as an oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.layers.oracles import load, to_torch
from tests.layers.record import Oracle

geometric, utils = load("torch_geometric.nn"), load("torch_geometric.utils")

__all__ = ["geometric", "of_module", "utils"]

State = Mapping[str, np.ndarray]


def of_module(make: Callable[[], Any], convert: Callable[[State], Mapping[str, Any]], call: Any = None) -> Oracle:
    """A module made by `make`, in float64, whose state_dict is all of `convert(state)`. `call(module, *inputs)`
    replaces a plain call."""

    def oracle(state: State, inputs: tuple[Any, ...], training: bool) -> Any:
        module = make().double().train(training)
        module.load_state_dict(to_torch({key: np.asarray(value) for key, value in convert(state).items()}))
        given = to_torch(inputs)
        return module(*given) if call is None else call(module, *given)

    return oracle
