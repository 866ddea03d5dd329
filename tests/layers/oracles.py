"""Oracles of layers: torch's modules in float64, with the layer's own weights."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from tests.layers.record import Oracle


class _Missing:
    """Stands for a package that is not installed: what needs it is skipped."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        pytest.skip(f"{self._name} is not installed: pip install 'weft[test]'")


def load(name: str) -> Any:
    """An optional oracle. Those that warn when they are imported are let warn; GPU machines may not have them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = torch.index_select
        try:
            return importlib.import_module(name)
        except ImportError:
            return _Missing(name)
        finally:
            torch.index_select = before  # torch_geometric puts its own there, which refuses what torch takes


def to_torch(value: Any) -> Any:
    """NumPy arrays in nested containers as torch tensors."""
    import torch

    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, (list, tuple)):
        return type(value)(to_torch(one) for one in value)
    if isinstance(value, dict):
        return {key: to_torch(one) for key, one in value.items()}
    return value


def of_torch(make: Callable[[], Any], rename: Callable[[str], str] | None = None, call: Any = None) -> Oracle:
    """A torch module made by `make`, in float64, loaded with the layer's state_dict (strictly: the keys must be the
    same, after `rename` where the layer's keys are others). `call(module, *inputs)` replaces a plain call."""

    def oracle(state: Mapping[str, np.ndarray], inputs: tuple[Any, ...], training: bool) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch has to say about its own arguments
            return run(state, inputs, training)

    def run(state: Mapping[str, np.ndarray], inputs: tuple[Any, ...], training: bool) -> Any:
        module = make().double().train(training)
        module.load_state_dict({(rename or str)(key): to_torch(np.asarray(value)) for key, value in state.items()})
        given = to_torch(inputs)
        return module(*given) if call is None else call(module, *given)

    oracle.torch_module = make if rename is None and call is None else None  # type: ignore[attr-defined]
    return oracle


def of_function(function: Callable[..., Any]) -> Oracle:
    """An oracle for a layer without state: `function(*inputs)` on torch tensors in float64."""

    def oracle(state: Mapping[str, np.ndarray], inputs: tuple[Any, ...], training: bool) -> Any:
        return function(*to_torch(inputs))

    return oracle


def of_numpy(function: Callable[..., Any]) -> Oracle:
    """An oracle in NumPy: `function(state, *inputs)` on float64 arrays."""

    def oracle(state: Mapping[str, np.ndarray], inputs: tuple[Any, ...], training: bool) -> Any:
        return function(state, *inputs)

    return oracle
