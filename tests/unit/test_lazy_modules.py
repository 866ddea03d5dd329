"""Lazy modules: the first input gives the sizes of their parameters."""

import copy
import pickle

import numpy as np
import pytest

import weft
import weft.nn as nn
from weft.nn.lazy import LazyModuleMixin, is_lazy
from weft.nn.parameter import UninitializedBuffer, UninitializedParameter


def weights():
    """A state_dict of a Linear(3, 2)."""
    return {"weight": np.arange(6.0).reshape(2, 3), "bias": np.array([1.0, -1.0])}


def test_the_first_call_makes_the_plain_class_and_keeps_the_parameters():
    layer = nn.LazyLinear(2)
    weight, bias = layer.weight, layer.bias
    assert repr(weight) == "<UninitializedParameter>"
    assert layer.has_uninitialized_params()
    result = layer(weft.ones(5, 3))
    assert type(layer) is nn.Linear
    assert layer.weight is weight
    assert layer.bias is bias
    assert type(weight) is nn.Parameter
    assert weight.shape == (2, 3)
    assert weight.requires_grad
    assert weight.is_leaf
    result.sum().backward()
    np.testing.assert_array_equal(weight.grad, np.full((2, 3), 5.0))
    assert abs(weight.detach().numpy()).max() <= 1 / np.sqrt(3)
    assert len(np.unique(weight.detach().numpy())) == 6


def test_a_seed_gives_the_values_of_the_plain_layer():
    weft.manual_seed(4)
    lazy = nn.LazyLinear(2)
    lazy(weft.ones(1, 3))
    weft.manual_seed(4)
    plain = nn.Linear(3, 2)
    np.testing.assert_array_equal(lazy.weight.detach(), plain.weight.detach())
    np.testing.assert_array_equal(lazy.bias.detach(), plain.bias.detach())


def test_a_state_dict_gives_the_shapes():
    layer = nn.LazyLinear(2)
    layer.load_state_dict(weights())
    assert not layer.has_uninitialized_params()
    np.testing.assert_allclose(layer(weft.ones(1, 3)).detach(), [[4.0, 11.0]])
    assert (type(layer), layer.in_features) == (nn.Linear, 3)
    layer.load_state_dict(weights())


def test_weights_that_were_loaded_are_checked_against_the_first_input():
    layer = nn.LazyLinear(2)
    layer.load_state_dict(weights())
    with pytest.raises(weft.ShapeError, match=r"in_features=4.*expected in_features=3"):
        layer(weft.ones(1, 4))


def test_a_state_dict_of_some_parameters_is_not_enough():
    layer = nn.LazyLinear(2)
    layer.load_state_dict({"weight": weights()["weight"]}, strict=False)
    with pytest.raises(weft.errors.GraphError, match="LazyLinear: given values for weight only"):
        layer(weft.ones(1, 3))


def test_a_summary_counts_what_the_first_call_makes():
    shared = nn.LazyLinear(4, bias=False)
    table = nn.summary(nn.Sequential(nn.LazyLinear(4), shared, shared, nn.LazyLinear(2)), (3,))
    assert table.parameters == table.trainable == (3 * 4 + 4) + 4 * 4 + (4 * 2 + 2)
    assert [row.kind for row in table.rows] == ["Sequential", "Linear", "Linear", "Linear"]


def test_the_size_is_not_known_before():
    weight = nn.LazyLinear(2).weight
    for ask in (lambda: weight.shape, lambda: weight.numel()):
        with pytest.raises(weft.ShapeError, match="call the module once"):
            ask()


def test_states_without_shapes():
    empty = nn.LazyLinear(2).state_dict()
    assert all(is_lazy(value) for value in empty.values())
    layer = nn.LazyLinear(2)
    layer.load_state_dict(empty)
    assert layer.has_uninitialized_params()
    with pytest.raises(weft.ShapeError, match="UninitializedParameter"):
        nn.Linear(3, 2).load_state_dict(empty)


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_are_lazy_too(twin):
    layer = nn.LazyLinear(2, dtype=weft.float64)
    other = twin(layer)
    assert other(weft.ones(1, 4, dtype=weft.float64)).shape == (1, 2)
    assert other.weight.dtype == weft.float64
    assert layer.has_uninitialized_params()


def test_a_move_before_the_first_call_counts():
    layer = nn.LazyLinear(2).double()
    assert layer(weft.ones(1, 3, dtype=weft.float64)).dtype == weft.float64
    assert layer.bias.dtype == weft.float64


def test_inside_a_compiled_function():
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    step = weft.compile(lambda x: model(x))
    x = weft.ones(2, 3)
    results = [np.array(step(x)) for _ in range(3)]
    assert [type(one) for one in model] == [nn.Linear, nn.ReLU, nn.Linear]
    for result in results:
        np.testing.assert_allclose(result, model(x).detach(), rtol=1e-6)
    assert step.retraces == []


def test_in_a_model_of_symbols():
    x = nn.Input((3,))
    layer = nn.LazyLinear(2)
    model = nn.Model(x, layer(x))
    assert (type(layer), layer.in_features) == (nn.Linear, 3)
    assert model(weft.ones(4, 3)).shape == (4, 2)


def test_hooks_are_called_after_the_shapes_are_known():
    layer, seen = nn.LazyLinear(2), []
    layer.register_forward_pre_hook(lambda module, args: seen.append(tuple(module.weight.shape)))
    layer(weft.ones(1, 3))
    assert seen == [(2, 3)]


class _Half(LazyModuleMixin, nn.Module):
    """A lazy module that stays what it is, and forgets one of its parameters."""

    def __init__(self, forget):
        super().__init__()
        self.forget = forget
        self.scale = UninitializedParameter()
        self.shift = UninitializedBuffer()

    def initialize_parameters(self, x):
        if self.has_uninitialized_params():
            self.scale.materialize(x.shape[1:])
            nn.init.ones_(self.scale)
            if not self.forget:
                self.shift.materialize(x.shape[1:])
                nn.init.zeros_(self.shift)

    def forward(self, x):
        return x * self.scale + self.shift


def test_a_lazy_module_of_ones_own():
    layer = _Half(forget=False)
    for _ in range(2):
        np.testing.assert_array_equal(layer(weft.full((2, 3), 2.0)).detach(), np.full((2, 3), 2.0))
    assert [type(layer.scale), type(layer.shift)] == [nn.Parameter, nn.Buffer]
    assert sorted(layer.state_dict()) == ["scale", "shift"]
    with pytest.raises(weft.errors.GraphError, match="_Half: given parameters without a shape"):
        _Half(forget=True)(weft.ones(2, 3))


def test_an_optimizer_needs_shapes():
    with pytest.raises(weft.ShapeError, match="call the module once"):
        weft.optim.SGD(nn.LazyLinear(2).parameters(), lr=0.1)


@pytest.mark.parametrize("shape", [4, None, "34", (4, "a"), 1.5])
def test_the_shape_of_an_input_is_a_tuple(shape):
    with pytest.raises(weft.errors.ShapeError, match="Input: given shape="):
        nn.Input(shape)
