"""Torch's table of operators with samples of their arguments, and those samples, the same in every run."""

from __future__ import annotations

import functools
import importlib.util
import random
import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

DEVICE = "cpu"
DTYPES = {"float32": torch.float32, "int64": torch.int64, "bool": torch.bool}


@functools.cache
def operators() -> dict[str, Any]:
    """Every OpInfo by `name`, or `name/variant` where torch tests several ways to call one function."""
    if importlib.util.find_spec("expecttest") is None:  # torch takes nothing but a base class of its tests from there
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_utils
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.opinfo import core
    # For each sample torch looks for its own running test in all frames of the stack, with their modules and source
    # files, which takes 0.1 s in a process with thousands of modules. None of its tests runs here.
    for module in (common_utils, core):
        module.extract_test_fn = lambda: None
    return {key_of(info): info for info in op_db}


def key_of(info: Any) -> str:
    return f"{info.name}/{info.variant_test_name}" if info.variant_test_name else info.name


def dtypes_of(info: Any) -> list[str]:
    """Those of the tested dtypes that torch supports for an operator."""
    supported = info.supported_dtypes(DEVICE)
    return [name for name, dtype in DTYPES.items() if dtype in supported]


def preferred_dtypes(info: Any) -> list[Any]:
    """All dtypes of an operator: the tested ones first, then the others by name."""
    first = [DTYPES[name] for name in dtypes_of(info)]
    return first + sorted(set(info.supported_dtypes(DEVICE)) - set(first), key=str)


def samples_of(info: Any, dtype: str, limit: int | None = None) -> list[Any]:
    """Samples of an operator's arguments; with gradients where torch has them."""
    wanted = dtype == "float32" and info.supports_autograd and torch.float32 in info.supported_backward_dtypes(DEVICE)
    _seed()
    samples = _first(info.sample_inputs(DEVICE, DTYPES[dtype], requires_grad=wanted), limit)
    if getattr(info.gradcheck_wrapper, "__name__", "") == "gradcheck_wrapper_hermitian_input":
        for sample in samples:  # of functions of symmetric matrices: torch's own tests make them so
            given = sample.input.detach()
            sample.input = (given + given.mT).requires_grad_(sample.input.requires_grad)
    return samples


def error_samples_of(info: Any) -> list[Any]:
    """Arguments that torch refuses."""
    if info.error_inputs_func is None:
        return []
    _seed()
    return [one.sample_input for one in info.error_inputs(DEVICE)]


def _first(samples: Iterator[Any], limit: int | None) -> list[Any]:
    """All samples, or `limit` of them spread over the list: its first ones are often the simplest."""
    listed = list(samples)
    if limit is None or len(listed) <= limit:
        return listed
    return [listed[round(place)] for place in np.linspace(0, len(listed) - 1, limit)]


def _seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  # torch's samples draw from it
