"""Layers that have a name of torch.nn: the same arguments in the same order, with the same defaults; the same repr."""

import inspect

import numpy as np
import pytest
import torch

import weft.nn as nn
from tests.layers.instances import arrays_of, floats_of, make_layer, tensors
from tests.layers.record import Draw
from tests.layers.records import records

SHARED = sorted(name for name in nn.layers() if hasattr(torch.nn, name))
FAMILIES = (
    "activation", "softmax", "dropout", "utility", "padding", "linear", "pooling", "adaptive_pooling", "upsampling",
    "distance",
)  # fmt: skip
WORDIER = ("FractionalMaxPool2d", "FractionalMaxPool3d")  # torch's show nothing
SHARED_REPR = [
    name for name, entry in nn.layers().items()
    if name in SHARED and name not in WORDIER and (entry.family in FAMILIES or name in ("Sequential", "ModuleList"))
]  # fmt: skip
PAIRS = [
    pytest.param(record, record.oracle.torch_module, id=record.id)
    for record in records()
    if getattr(record.oracle, "torch_module", None) is not None and record.name in SHARED_REPR
]


def arguments(function):
    """Names and defaults of what is given by position or name; `*args` that take nothing do not count. A function as a
    default is compared by its name."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = list(inspect.signature(function).parameters.values())[1:]
    defaults = [one.default.__name__ if inspect.isfunction(one.default) else one.default for one in found]
    return [(one.name, default) for one, default in zip(found, defaults, strict=True) if one.kind not in kinds]


@pytest.mark.parametrize("name", SHARED)
def test_constructors_have_torchs_arguments(name):
    ours, theirs = arguments(getattr(nn, name).__init__), arguments(getattr(torch.nn, name).__init__)
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize("name", SHARED)
def test_forward_has_torchs_arguments(name):
    ours, theirs = arguments(getattr(nn, name).forward), arguments(getattr(torch.nn, name).forward)
    if getattr(nn, name).forward is not nn.Module.forward:
        assert [one for one, _ in ours[: len(theirs)]] == [one for one, _ in theirs]


@pytest.mark.parametrize(("record", "make"), PAIRS)
def test_repr_is_torchs(record, make):
    assert repr(record.make()) == repr(make())


EMPTY = [
    pytest.param(record, id=record.id)
    for record in records()
    if record.name in nn.layers()
    and nn.layers()[record.name].family in FAMILIES
    and "batch" in record.traits
    and "without batch" not in record.variant
    and not record.name.startswith("Fractional")  # whose records have samples for two images
]


@pytest.mark.parametrize("record", EMPTY)
def test_an_empty_batch_gives_results_of_the_same_form(record):
    """No rows in, no rows out: the other extents are those of a batch of two; the gradient is empty, too."""

    def rows(count):
        axes = record.batch_axes or [0] * len(inputs)
        return (
            tuple(
                one.take(np.arange(count), axis)
                if isinstance(one, np.ndarray) and one.ndim and axis is not None
                else one
                for one, axis in zip(inputs, axes, strict=False)
            )
            + inputs[len(axes) :]
        )

    inputs = record.inputs(Draw())
    layer = make_layer(record)
    given = tensors(rows(0), requires_grad=True)
    results, expected = layer(*given), arrays_of(layer(*tensors(rows(1))))
    for one, other in zip(arrays_of(results), expected, strict=True):
        assert len(one.shape) == len(other.shape)
        assert one.size == 0 or other.ndim == 0
        changed = [k for k, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)) if a != b]
        assert len(changed) <= 1
    if record.differentiable:
        sum((one.sum() for one in floats_of(results)[1:]), floats_of(results)[0].sum()).backward()
        assert given[0].grad is None or given[0].grad.shape == given[0].shape
