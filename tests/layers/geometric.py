"""torch_geometric as an oracle. It warns when it is imported, which tests treat as an error."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.layers.oracles import to_torch
from tests.layers.record import Oracle

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch_geometric.nn as geometric
    import torch_geometric.utils as utils

__all__ = ["geometric", "of_module", "utils"]

State = Mapping[str, np.ndarray]


def of_module(make: Callable[[], Any], convert: Callable[[State], Mapping[str, Any]], call: Any = None) -> Oracle:
    """A module made by `make`, in float64, whose state_dict is `convert(state)`: all of its keys. `call(module, *inputs)`
    replaces a plain call."""

    def oracle(state: State, inputs: tuple[Any, ...], training: bool) -> Any:
        module = make().double().train(training)
        module.load_state_dict(to_torch({key: np.asarray(value) for key, value in convert(state).items()}))
        given = to_torch(inputs)
        return module(*given) if call is None else call(module, *given)

    return oracle
