"""Layers and tools under torch's names take torch's arguments: the same names and defaults, in the same order."""

import inspect
import math

import pytest
import torch

import weft.nn as nn

LAYERS = [name for name in nn.layers() if isinstance(getattr(torch.nn, name, None), type)]
TOOLS = [name for name in nn.utils.__all__ if inspect.isfunction(getattr(torch.nn.utils, name, None))]
# Arguments of torch that say how it computes something here computed in one way.
HOW = {"foreach"}


def parameters(function):
    return [one for one in inspect.signature(function).parameters.values() if one.name != "self"]


def check_same_arguments(ours, theirs):
    """torch's arguments, positional ones first and in order; ours may have more after them, by keyword only."""
    mine, wanted = parameters(ours), [one for one in parameters(theirs) if one.name not in HOW]
    positional = [one for one in wanted if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    found = [one for one in mine if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [one.name for one in found[: len(positional)]] == [one.name for one in positional]
    named = {one.name: one for one in mine}
    for one in wanted:
        if one.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        assert one.name in named, f"no argument {one.name}"
        given, expected = named[one.name].default, one.default
        if isinstance(expected, (bool, int, float, str, tuple, type(None))):
            both = isinstance(given, (int, float)) and isinstance(expected, (int, float))
            same = math.isclose(given, expected) if both else given == expected
            assert same, f"{one.name}={given!r}, in torch {expected!r}"
        elif expected is inspect.Parameter.empty:
            assert given is expected, f"{one.name} has the default {given!r}, in torch none"


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_made_with_the_arguments_of_torch(name):
    check_same_arguments(getattr(nn, name).__init__, getattr(torch.nn, name).__init__)


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_has_the_arguments_of_torch(name):
    if not hasattr(nn.utils, name):
        pytest.fail(f"nn.utils names {name}, which is not there")
    check_same_arguments(getattr(nn.utils, name), getattr(torch.nn.utils, name))
