"""Layers that are called with lists, arrays or numbers take them as tensors, or say that they expect a tensor."""

import os
import traceback

import numpy as np
import pytest

import weft
import weft.nn as nn

pytestmark = pytest.mark.unit

ROW = [[1.0, 2.0, 3.0, 4.0]]
LAYERS = {
    "Linear": (lambda: nn.Linear(4, 3), ROW),
    "Conv2d": (lambda: nn.Conv2d(1, 2, 3), [[[[1.0] * 5] * 5]]),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), ROW),
    "LSTM": (lambda: nn.LSTM(4, 3), ROW),
    "LayerNorm": (lambda: nn.LayerNorm(4), ROW),
    "Flatten": (nn.Flatten, ROW),
    "Dropout": (nn.Dropout, ROW),
    "Sequential": (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()), ROW),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", [list, dict, np.array, lambda rows: None, lambda rows: 3.0, lambda rows: "text"])
def test_what_is_no_tensor_is_a_tensor_or_an_error_at_the_call(name, kind):
    make, rows = LAYERS[name]
    value = {} if kind is dict else kind(rows)
    if isinstance(value, np.ndarray):
        value = value.astype(np.float32)
    layer = make()
    try:
        result = layer(value)
    except weft.DTypeError as error:
        assert "expected a tensor" in str(error) and f"of type {type(value).__name__}" in str(error)
        files = {os.path.basename(one.filename) for one in traceback.extract_tb(error.__traceback__)}
        assert files == {os.path.basename(__file__)}
    else:
        assert isinstance(value, (np.ndarray, float)) or name == "Dropout"
        assert np.isfinite(np.asarray(result[0] if isinstance(result, tuple) else result)).all()


def test_the_error_has_the_path_of_the_layer():
    with pytest.raises(weft.DTypeError, match=r"^1 \(Linear\(.*\)\): Linear: given an input of type list"):
        nn.Sequential(nn.Identity(), nn.Linear(4, 3))(ROW)


def test_errors_of_the_users_own_code_are_left_alone():
    class Own(nn.Module):
        def forward(self, x):
            return x.nonsense

    for model in (Own(), nn.Sequential(nn.Identity(), Own())):
        with pytest.raises(AttributeError, match="nonsense"):
            model([1.0])
        with pytest.raises(AttributeError, match="nonsense"):
            model(weft.ones(2))
    with pytest.raises(TypeError, match="positional argument"):
        nn.Linear(4, 3)(np.ones((1, 4), np.float32), 1)
