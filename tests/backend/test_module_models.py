"""Containers, models of symbols, summaries, and layers by name."""

import pathlib
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch

import weft
import weft.nn as nn
from tests.backend.modules import mlp, same_weights
from tests.backend.test_module import names

pytestmark = pytest.mark.usefixtures("on_each_device")


def test_containers():
    a, b, c = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)
    model = nn.Sequential(a, b)
    assert model.insert(1, c) is model and list(model) == [a, c, b] and names(model.named_children()) == ["0", "1", "2"]
    assert nn.Sequential([a, b])[1] is b and nn.Sequential(OrderedDict(x=a))[0] is a
    assert list(model[1:]) == [c, b] and names(model[1:].named_children()) == ["1", "2"]
    del model[0]
    assert list(model) == [c, b] and names(model.named_children()) == ["0", "1"]
    assert model.pop(-1) is b and len(model) == 1
    assert len(nn.Sequential(a) + nn.Sequential(b)) == 2 and len(nn.Sequential(a) * 3) == 3
    model.extend([a]).append(b)
    assert a in model and len(model) == 3
    with pytest.raises(weft.IndexRangeError):
        model[5]
    layers = nn.ModuleList([a])
    layers += [b]
    layers[0] = c
    assert list(layers) == [c, b] and layers[-1] is b
    table = nn.ModuleDict({"x": a})
    table.update([("y", b)])
    assert table.keys() == ["x", "y"] and "x" in table and table.pop("x") is a and len(table) == 1
    params = nn.ParameterList([weft.ones(1)])
    params.append(weft.zeros(2))
    assert len(params) == 2 and params[-1].shape == (2,) and isinstance(params[0], nn.Parameter)
    named = nn.ParameterDict({"k": weft.ones(1)})
    named["z"] = weft.zeros(1)
    assert named.keys() == ["k", "z"] and "k" in named and named.get("q") is None
    del named["k"]
    assert names(named.named_parameters()) == ["z"]


def test_functional_call():
    model, theirs = mlp(weft), mlp(torch)
    same_weights(model, theirs)
    x = np.ones((2, 4))
    other = {key: value * 2 for key, value in model.state_dict().items()}
    expected = torch.func.functional_call(theirs, {k: v * 2 for k, v in theirs.state_dict().items()}, torch.tensor(x))
    before = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    result = weft.func.functional_call(model, other, (weft.tensor(x),))
    np.testing.assert_allclose(result.detach().numpy(), expected.detach().numpy(), rtol=1e-12)
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[key])
    weight = weft.zeros(8, 4, dtype=weft.float64, requires_grad=True)
    weft.func.functional_call(model, {"0.weight": weight}, weft.tensor(x)).sum().backward()
    assert weight.grad is not None and model[0].weight.grad is None
    with pytest.raises(weft.GraphError, match="nope"):
        weft.func.functional_call(model, {"nope": weight}, weft.tensor(x))
    with pytest.raises(weft.GraphError, match="nothing for"):
        weft.func.functional_call(model, {"0.weight": weight}, weft.tensor(x), strict=True)


def test_no_file_of_the_package_hides_a_name():
    """An import of `weft.nn.x` sets the attribute `x` of `weft.nn`: no function or class may be called so."""
    model = nn.Linear(3, 2)
    assert str(model.summary((3,))) == str(nn.summary(model, (3,)))
    files = {path.stem for path in pathlib.Path(nn.__file__).parent.iterdir()}
    assert files & set(nn.__all__) == set(nn._SUBMODULES)


def test_summary_computes_nothing():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 2)
            self.unused = nn.Linear(9, 9)
            self.register_buffer("calls", weft.zeros(()))

        def forward(self, x):
            self.calls = self.calls + 1
            return self.inner(x), self.inner(x * 2)

    model = Counting()
    model.inner.bias.requires_grad_(False)
    weft.eval(*model.parameters(), *model.buffers())
    before = weft.counters()
    report = nn.summary(model, (4,), batch_size=3)
    assert weft.counters()["plans_run"] == before["plans_run"] and model.calls.item() == 0.0
    assert report.parameters == 4 * 2 + 2 + 9 * 9 + 9 and report.trainable == report.parameters - 2
    text = str(report)
    assert "inner: Linear" in text and "[3, 2] x2" in text and "not called" in text
    assert not model._hooks and "100 parameters (98 trainable, 2 frozen)" in text
    assert nn.summary(model, weft.ones(2, 4)).rows[1].shapes == [(2, 2)]
    with pytest.raises(weft.ShapeError, match="without the batch"):
        nn.summary(model, "x")


def test_supports_names_the_layers_that_prevent_it():
    class Cpu(nn.Module):
        def prevents(self, device, training):
            return "needs gradients on the host" if training else None

        def forward(self, x):
            return x

    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Cpu()))
    assert model.supports("cpu", training=False)
    answer = model.supports("cpu")
    assert not answer and list(answer.reasons) == ["1.0"] and "1.0: needs gradients" in str(answer)
    missing = model.supports("cuda:77")
    assert not missing and "given 'cuda:77'" in str(missing) and list(missing.reasons) == [""]


def test_get_finds_layers_by_any_name():
    for name in ("Linear", "linear", "DenseLayer", "Dense", "dense_layer", "FullyConnectedLayer"):
        assert nn.get(name) is nn.Linear
    with pytest.raises(weft.RangeError, match="weft layers"):
        nn.get("NoSuchLayer")


def test_models_of_symbols():
    x, z = nn.Input((4,)), nn.Input((4,))
    shared = nn.Linear(4, 4)
    hidden = shared(x)
    skip = hidden + x
    y = shared(skip) * 2 - z
    model = nn.Model([x, z], {"y": y, "hidden": hidden})
    assert len(list(model.parameters())) == 2 and y.shape == (None, 4)
    a, b = weft.randn(3, 4), weft.randn(3, 4)
    result = model(a, b)
    expected = shared(shared(a) + a) * 2 - b
    np.testing.assert_allclose(result["y"].detach().numpy(), expected.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(model([a, b])["y"].detach().numpy(), expected.detach().numpy(), rtol=1e-6)
    step = weft.compile(lambda a, b: model(a, b)["y"].sum())
    assert step(a, b).item() == pytest.approx(expected.sum().item(), rel=1e-5)
    assert nn.summary(model, (4,), (4,)).parameters == 20
    with pytest.raises(weft.ShapeError, match=r"input_0.*\[3, 5\].*\[batch, 4\]"):
        model(weft.ones(3, 5), b)
    with pytest.raises(weft.GraphError, match="not among the inputs"):
        nn.Model(x, y)
    with pytest.raises(weft.GraphError, match=r"1 inputs.*2"):
        model(a)
    assert nn.Input((None, 3))(weft.ones(2, 7, 3)).shape == (2, 7, 3)


def test_summaries_of_ordinary_models():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            self.last = x * 2
            return x

    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), Counting()).double()
    assert nn.summary(model, (4,)).rows[-1].shapes == [(1, 3)]
    assert model.training and model[2].calls == 0 and not hasattr(model[2], "last")


def test_inputs_of_a_model_by_name():
    a, b = nn.Input((1,)), nn.Input((1,))
    model = nn.Model({"a": a, "b": b}, a - b)
    one, two = weft.ones(1, 1), weft.full((1, 1), 2.0)
    assert model(two, b=one).item() == model(b=one, a=two).item() == model({"b": one, "a": two}).item() == 1.0
    with pytest.raises(weft.GraphError, match="inputs a"):
        model(two, a=one)
    with pytest.raises(weft.GraphError, match="typo"):
        model(one, two, typo=3)


def test_symbols_of_several_results_powers_and_parts():
    x = nn.Input((3, 4))
    rows, _ = nn.LSTM(4, 2, batch_first=True)(x)
    model = nn.Model(x, {"square": rows**2, "first": rows[:, 0]})
    assert "several results" in repr(nn.LSTM(4, 2, batch_first=True)(x))
    again = pickle.loads(pickle.dumps(model))
    value = weft.ones(2, 3, 4)
    for key, result in model(value).items():
        np.testing.assert_allclose(again(value)[key].detach().numpy(), result.detach().numpy())
