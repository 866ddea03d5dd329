"""Module.save and nn.load: architecture and weights; what cannot be described is refused when it is saved."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import random
import weakref
from collections import OrderedDict

import numpy as np
import pytest
import safetensors.torch as oracle

import weft
from weft import nn
from weft.nn.module.arguments import constructor_arguments
from weft.serialization.model_files import build, describe

pytestmark = pytest.mark.unit

F = nn.functional


class Net(nn.Module):
    """A class of the user's."""

    def __init__(self, sizes, act="relu", block=None, *, bias=True):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(a, b, bias) for a, b in itertools.pairwise(sizes)])
        self.sizes, self.act, self.block = sizes, act, block

    def forward(self, x):
        for layer in self.layers:
            x = getattr(F, self.act)(layer(x))
        return x


class Stack(nn.Sequential):
    """A container with a constructor of its own."""

    def __init__(self, width, count=2):
        super().__init__(*[nn.Linear(width, width) for _ in range(count)])


def again(module, path, *inputs, **options):
    """Save and load; everything must be the same."""
    before = weft.get_rng_state()
    module.save(path)
    assert (weft.get_rng_state() == before).all()
    found = nn.load(path, **options)
    assert (weft.get_rng_state() == before).all()
    assert type(found) is type(module) and repr(found) == repr(module)
    own, other = module.state_dict(), found.state_dict()
    assert list(own) == list(other)
    for name, value in own.items():
        assert value.dtype is other[name].dtype and value.numpy().tobytes() == other[name].numpy().tobytes()
    assert [p.requires_grad for p in module.parameters()] == [p.requires_grad for p in found.parameters()]
    assert [m.training for m in module.modules()] == [m.training for m in found.modules()]
    if inputs:
        assert module(*inputs).detach().numpy().tobytes() == found(*inputs).detach().numpy().tobytes()
    return found


def lazy():
    layer = nn.LazyConv2d(3, 2)
    layer(weft.ones(1, 5, 4, 4))
    return layer


def frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    model[0].weight.requires_grad_(False)
    model[1].eval()
    return model


def of_symbols():
    """A model with two inputs, a layer that is called twice, operators, numbers and indices."""
    a, b = nn.Input((4,)), nn.Input((None, 4))
    shared = nn.Linear(4, 4)
    x = shared(a) * 2 - b[:, 0] / 3
    y = 1 - shared(x)[..., 1:3] ** 2
    return nn.Model({"a": a, "b": b}, [y, {"x": -x}])


def of_one_symbol():
    x = nn.Input((3,))
    return nn.Sequential(nn.Model(x, nn.Linear(3, 2)(x) + nn.Linear(3, 2, bias=False)(x)), nn.ReLU())


def grid():
    made = nn.Grid(1, 2, 1)
    made.set_layer(0, 0, 0, nn.Linear(3, 3))
    made.set_layer(0, 1, 0, nn.Linear(3, 2))
    return made


MODELS = {
    "symbols": of_symbols,
    "one symbol": of_one_symbol,
    "grid": grid,
    "layer": lambda: nn.Linear(3, 4, bias=False, activation="gelu"),
    "sequential": lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()),
    "named": lambda: nn.Sequential(OrderedDict(a=nn.Linear(4, 8), b=nn.Dropout(0.3))),
    "appended": lambda: nn.Sequential(nn.Linear(1, 2)).append(nn.Linear(2, 3)),
    "dict": lambda: nn.ModuleDict({"x": nn.Conv2d(3, 4, (3, 2), padding="same"), "y": nn.ModuleList([nn.Tanh()])}),
    "parameters": lambda: nn.ParameterList([weft.ones(2), weft.zeros(3, 1)]),
    "parameter dict": lambda: nn.ParameterDict({"a": weft.ones(2)}),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, activation=F.gelu), 2),
    "transformer": lambda: nn.Transformer(8, 2, 1, 1, 16),
    "wrapped": lambda: nn.Residual(nn.Sequential(nn.Linear(3, 3), nn.ReLU())),
    "lora": lambda: nn.LoRALinear(nn.Linear(3, 2), r=1),
    "lazy": lazy,
    "own": lambda: Net([4, 5, 2]),
    "own with layers": lambda: Net((2, 2), "tanh", nn.Sequential(Net([1, 1], bias=False), nn.LSTM(3, 4)), bias=False),
    "own container": lambda: nn.Sequential(Stack(3), Stack(width=2, count=1)),
    "several": lambda: nn.Sequential(nn.Reshape(2, 3), nn.Activation("leaky_relu", negative_slope=0.2)),
    "tensor argument": lambda: nn.CrossEntropyLoss(weight=weft.tensor([1.0, 2.0])),
    "half": lambda: nn.Sequential(nn.Linear(2, 2), nn.LayerNorm([2])).bfloat16(),
    "frozen": frozen,
    "empty": lambda: nn.Sequential(),
    "changed argument": lambda: Taking([2, 3]),
    "dtype": lambda: nn.Linear(2, 2, dtype=weft.float64),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_come_back(name, tmp_path):
    again(MODELS[name](), tmp_path / "x")


@pytest.mark.parametrize("name", MODELS)
def test_copies_can_be_saved_too(name, tmp_path):
    model = MODELS[name]()
    again(copy.deepcopy(model), tmp_path / "x")
    if name != "encoder" and name != "transformer":  # whose activation is a function that pickle cannot find
        again(pickle.loads(pickle.dumps(model)), tmp_path / "x")


def test_results_are_the_same(tmp_path):
    again(Net([4, 5, 2]), tmp_path / "x", weft.randn(3, 4))
    again(of_one_symbol(), tmp_path / "x", weft.randn(2, 3))
    again(grid(), tmp_path / "x", weft.randn(2, 3))
    model, inputs = of_symbols(), (weft.randn(2, 4), weft.randn(2, 5, 4))
    found = again(model, tmp_path / "x")
    for (y, rest), (other, more) in [(model(*inputs), found(b=inputs[1], a=inputs[0]))]:
        assert (y == other).all() and (rest["x"] == more["x"]).all()
    again(MODELS["encoder"]().eval(), tmp_path / "x", weft.randn(3, 1, 8))


def test_other_programs_and_weft_read_the_weights(tmp_path):
    model = Net([4, 5, 2])
    model.save(tmp_path / "x.safetensors")
    assert set(oracle.load_file(tmp_path / "x.safetensors")) == set(model.state_dict())
    assert set(weft.load(tmp_path / "x.safetensors")) == set(model.state_dict())
    other = Net([4, 5, 2])
    assert other.load(tmp_path / "x.safetensors").missing_keys == []
    assert (other.layers[0].weight == model.layers[0].weight).all()


def test_extra_state_is_kept(tmp_path):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def get_extra_state(self):
            return {"calls": self.calls, "seen": (1, 2)}

        def set_extra_state(self, state):
            self.calls = state["calls"]
            assert state["seen"] == (1, 2)

    model = Counting()
    model.calls = 5
    model.save(tmp_path / "x")
    assert nn.load(tmp_path / "x").calls == 5


class Needs(nn.Module):
    def __init__(self, thing=None):
        super().__init__()
        self.thing = thing


class Once(nn.Module):
    made = False

    def __init__(self, size):
        super().__init__()
        if Once.made:
            raise KeyError("only once")
        Once.made = True


class Taking(nn.Module):
    """Changes the list that it is given."""

    def __init__(self, sizes):
        super().__init__()
        self.weight = nn.Parameter(weft.ones(sizes.pop()))


def changed(make, change):
    model = make()
    change(model)
    return model


def tied():
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    return model


def replace_layer(model):
    model.layers[0] = nn.Linear(3, 4)


def change_rate(model):
    model.p = 0.1


def add_layer(model):
    model.more = nn.Linear(1, 1)


REFUSED = {
    "a function": (lambda: nn.Linear(2, 2, activation=lambda x: x), "argument 'activation' is a function"),
    "inside": (lambda: nn.Sequential(nn.Lambda(lambda x: x)), "a Lambda whose argument 'function' is a function"),
    "an object": (lambda: Needs(object()), "argument 'thing' is, or contains, a object"),
    "in a list": (lambda: Needs([1, open]), "argument 'thing' is a function, open"),
    "an iterator": (lambda: Needs(iter([1])), "list_iterator"),
    "a large tensor": (lambda: Needs(weft.zeros(70_000)), "a weft.Tensor"),
    "a device": (lambda: Needs(weft.get_device("cpu")), "argument 'thing' is a device"),
    "a layer replaced": (lambda: changed(lambda: Net([3, 3]), replace_layer), "whose layer at 'layers.0' is"),
    "an attribute changed": (lambda: changed(lambda: nn.Dropout(0.5), change_rate), r"Dropout\(p=0.1, .*\(p=0.5"),
    "a layer added": (lambda: changed(lambda: Net([3, 3]), add_layer), "whose layer at 'more' is"),
    "tied later": (tied, "whose sharing at '1.weight' is the same as '0.weight'"),
    "parametrized": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), "its class was changed since"),
    "made once only": (lambda: Once(3), "whose constructor fails when it is called again .*only once"),
    "without a shape": (lambda: nn.LazyLinear(3), "has no shape yet"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_lost_is_refused(name, tmp_path):
    make, message = REFUSED[name]
    with pytest.raises(weft.WeftError, match=message):
        make().save(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_random_streams_are_left_alone(tmp_path):
    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(weft.tensor(np.random.rand(3) + random.random()))  # noqa: NPY002

    model = Drawing()
    before = np.random.get_state()[2], random.getstate()  # noqa: NPY002
    again(model, tmp_path / "x")
    assert (np.random.get_state()[2], random.getstate()) == before  # noqa: NPY002


def test_classes_are_found_among_those_that_exist(tmp_path):
    def make():
        class Local(nn.Module):
            def __init__(self, size):
                super().__init__()
                self.weight = nn.Parameter(weft.ones(size))

        return Local

    cls = make()
    cls(3).save(tmp_path / "x")
    again(cls(3), tmp_path / "x")
    other = make()  # the same name twice
    with pytest.raises(weft.FileFormatError, match=r"of which there are 2 here.*classes=\[TheClass\]"):
        nn.load(tmp_path / "x")
    assert type(nn.load(tmp_path / "x", classes=[other])) is other
    weft.serialization.save_tensors(
        tmp_path / "y", {}, {"weft.model": '{"weft.model":{"architecture":{"type":"os.system"},"frozen":[],"eval":[]}}'}
    )
    with pytest.raises(weft.FileFormatError, match=r"the class 'os\.system', of which there are 0 here"):
        nn.load(tmp_path / "y")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ('{"type": "Linear"}', "cannot be made"),
        ('{"type": "Linear", "in_features": "a", "out_features": 2}', "cannot be made.*empty: given 'a'"),
        ('{"type": "Linear", "in_features": 1000000000, "out_features": 1000000000}', "do not fit"),
        ('{"type": "Linear", "in_features": 2, "out_features": 2, "other": 1}', "cannot be made"),
        ('{"type": 3}', "for a layer"),
        ("[]", "for a layer"),
        ('{"type": "Linear", "in_features": 2, "out_features": 2, "activation": {"$function": "__doc__"}}', "function"),
        ('{"type": "Sequential", "modules": 3}', "cannot be made.*add_module"),
    ],
)
def test_architectures_that_are_wrong(tree, message, tmp_path):
    text = '{"weft.model":{"architecture":%s,"frozen":[],"eval":[]}}' % tree  # noqa: UP031
    weft.serialization.save_tensors(tmp_path / "x", {"weight": weft.ones(3, 3)}, {"weft.model": text})
    with pytest.raises(weft.WeftError, match=message) as caught:
        nn.load(tmp_path / "x")
    assert nn.Linear(2, 3)(weft.ones(1, 2)).shape == (1, 3) and caught.value  # which may still hold a huge model


def test_files_without_an_architecture(tmp_path):
    weft.save({"weight": weft.ones(1)}, tmp_path / "x")
    with pytest.raises(weft.FileFormatError, match=r"weights and no architecture.*call model\.load"):
        nn.load(tmp_path / "x")


# ---- what is remembered ---------------------------------------------------------------------------------------------


def test_arguments_have_names_and_are_as_they_were_given():
    assert constructor_arguments(Net([1, 2], block=None, bias=False)) == {"sizes": [1, 2], "block": None, "bias": False}
    assert constructor_arguments(nn.Reshape(2, 3)) == {"shape": [2, 3]}
    assert constructor_arguments(nn.Activation("elu", alpha=2.0)) == {"name": "elu", "alpha": 2.0}
    assert constructor_arguments(lazy())["in_channels"] == 5
    inner = nn.Linear(1, 1)
    assert constructor_arguments(nn.Residual(inner))["fn"] is inner
    with pytest.raises(weft.GraphError, match="was not made by calling its class"):
        bare = nn.Linear(1, 1)
        del bare.__dict__["_call"]
        constructor_arguments(bare)


def test_a_prototype_does_not_stay_in_memory():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.25)
    encoder = nn.TransformerEncoder(layer, 2)
    gone = weakref.ref(layer)
    del layer
    gc.collect()
    assert gone() is None
    made = constructor_arguments(encoder)["encoder_layer"]
    assert constructor_arguments(made) == {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0.25}


def test_large_arguments_do_not_stay_in_memory():
    weight = weft.zeros(300, 300)
    layer = nn.Embedding(300, 300, _weight=weight)
    gone = weakref.ref(weight)
    del weight
    gc.collect()
    assert gone() is None and layer.weight.shape == (300, 300)


def test_abstract_classes_and_mixins_still_work():
    import abc

    class Base(nn.Module, abc.ABC):
        @abc.abstractmethod
        def forward(self, x): ...

    class Mixed(Base):
        def __init__(self, n):
            super().__init__()
            self.n = n

        def forward(self, x):
            return x * self.n

    assert Mixed(3)(weft.ones(1)).item() == 3.0 and constructor_arguments(Mixed(n=2)) == {"n": 2}
    with pytest.raises(TypeError, match="abstract"):
        Base()
    with pytest.raises(TypeError):
        nn.Linear(1, 2, 3, 4, 5, 6, 7, 8)


def catalogue():
    """Layers of the catalogue that can be made with sizes alone."""
    found = {}
    for name, entry in nn.layers().items():
        for args in ((), (4,), (4, 4), (4, 4, 2), (4, 2, 4), (4, 4, 4, 4)):
            try:
                found[name] = entry.cls(*args), args
                break
            except Exception:
                continue
    return found


def test_every_layer_of_the_catalogue_that_sizes_make_is_described():
    state = weft.get_rng_state()
    layers = catalogue()
    refused = []
    for name, (layer, _) in layers.items():
        try:
            tree = describe(layer)
        except weft.WeftError as error:
            refused.append((name, str(error)))
            continue
        assert repr(build(tree)) == repr(layer), name
    weft.set_rng_state(state)
    assert len(layers) > 150 and refused == []


def test_numbers_of_a_file_are_bounded():
    tree = {"type": "LSTM", "input_size": 2, "hidden_size": 3, "num_layers": 2}
    assert build(tree).num_layers == 2
    with pytest.raises(weft.FileFormatError, match=r"LSTM with num_layers = 1000000000; expected .* 0 to 1000"):
        build(tree | {"num_layers": 10**9})
    with pytest.raises(weft.FileFormatError, match="Linear with in_features"):
        build({"type": "Linear", "in_features": 2**70, "out_features": 2})


def test_functions_are_called_with_symbols_alone():
    """A file cannot let Python compute with numbers of its own."""
    x = nn.Input((3,))
    tree = describe(nn.Model(x, x**2.0))
    assert build(tree)(weft.full((1, 3), 3.0)).tolist() == [[9.0] * 3]
    (call,) = (one for one in tree["calls"] if one[1])
    call[1] = (10, 10)
    with pytest.raises(weft.FileFormatError, match="without a symbol"):
        build(tree)


def test_a_file_names_no_other_file(tmp_path):
    (tmp_path / "net.json").write_text('{"type": "ReLU"}')
    with pytest.raises(weft.FileFormatError, match="a str as configuration"):
        build({"config": str(tmp_path / "net.json")})
    assert isinstance(build({"config": {"type": "ReLU"}}), nn.ReLU)
