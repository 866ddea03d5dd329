"""Records of the containers. Those without forward are used by a small module, written once for both libraries."""

import collections
import itertools

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_torch
from tests.layers.record import Bad, LayerRecord


def sequential(nn):
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def named(nn):
    return nn.Sequential(collections.OrderedDict(first=nn.Linear(4, 5), bend=nn.ReLU(), last=nn.Linear(5, 3)))


def with_list(nn):
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
            self.layers.append(nn.Linear(4, 3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).tanh()
            return x

    return Chain()


def with_dict(nn):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 3)})
            self.heads["c"] = nn.Linear(4, 1)

        def forward(self, x):
            return [head(x) for head in self.heads.values()]

    return Heads()


def with_parameter_list(nn):
    ones = torch.ones if nn is torch.nn else weft.ones

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(ones(4) * k) for k in range(1, 3)])
            self.weights.append(nn.Parameter(ones(1)))

        def forward(self, x):
            for weight in self.weights:
                x = x * weight
            return x

    return Sum()


def with_parameter_dict(nn):
    ones = torch.ones if nn is torch.nn else weft.ones

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterDict({"scale": nn.Parameter(ones(4)), "shift": nn.Parameter(ones(4))})

        def forward(self, x):
            return x * self.weights["scale"] + self.weights["shift"]

    return Scaled()


def grid(nn):
    """Two rows and two columns of one layer each; in torch, the same layers in the order in which they run."""
    parts = [nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Sigmoid()]
    if nn is torch.nn:
        places = itertools.product(range(2), range(2), range(1))
        names = ["_".join(map(str, place)) for place in places]
        return nn.Sequential(collections.OrderedDict(zip(names, parts, strict=True)))
    return nn.Grid(2, 2, 1, parts)


def check_grid():
    """Layers are set at a place, replaced, and run row by row; compiled functions see it."""
    model = nn.Grid(2, 1, 2)
    for number, place in enumerate(model.places()):
        model.set_layer(*place, nn.Lambda(lambda x, k=number: x * 10 + k))
    assert list(model.places()) == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)] and len(model) == 4
    step = weft.compile(lambda x: model(x))
    assert step(weft.tensor([1.0])).item() == model(weft.tensor([1.0])).item() == 10123.0
    model.set_layer(1, 0, 0, nn.Identity())
    assert step(weft.tensor([1.0])).item() == 1013.0


def check_sequential():
    """Lists, add, insert, append, pop, slices, +, * and del, as in torch."""
    parts = [nn.Linear(2, 2) for _ in range(3)]
    model = nn.Sequential(parts)
    assert [one is other for one, other in zip(model, parts, strict=True)] == [True] * 3
    model.add(nn.ReLU()).insert(0, nn.Identity())
    assert [type(one).__name__ for one in model] == ["Identity", "Linear", "Linear", "Linear", "ReLU"]
    assert [type(one).__name__ for one in model[1:3]] == ["Linear", "Linear"]
    assert model[-1] is model[4]
    del model[0]
    assert model.pop(-1).__class__ is nn.ReLU
    assert [name for name, _ in model.named_children()] == ["0", "1", "2"]
    assert len(model + nn.Sequential(nn.ReLU())) == 4
    assert list(model.state_dict()) == [f"{k}.{name}" for k in range(3) for name in ("weight", "bias")]
    model[1] = nn.Tanh()
    x = weft.ones(1, 2)
    np.testing.assert_array_equal(model(x).detach(), parts[2](parts[0](x).tanh()).detach())


def check_compiled_changes():
    """A layer that is put into or taken out of a container is seen by a compiled function."""
    model = nn.Sequential(nn.Identity())
    step = weft.compile(lambda x: model(x))
    x = weft.tensor([-1.0, 2.0])
    assert step(x).tolist() == [-1.0, 2.0]
    model.append(nn.ReLU())
    assert step(x).tolist() == [0.0, 2.0]
    model[1] = nn.Tanh()
    np.testing.assert_allclose(step(x).numpy(), np.tanh([-1.0, 2.0]), rtol=1e-6)
    del model[1]
    assert step(x).tolist() == [-1.0, 2.0]


def check_dict():
    """keys, values, items, in, len, update, pop, clear."""
    modules = nn.ModuleDict([("a", nn.ReLU()), ("b", nn.Tanh())])
    assert list(modules.keys()) == list(modules) == ["a", "b"]
    assert [type(one).__name__ for one in modules.values()] == ["ReLU", "Tanh"]
    modules.update({"c": nn.Identity()})
    assert "c" in modules
    assert len(modules) == 3
    assert type(modules.pop("a")) is nn.ReLU
    assert [key for key, _ in modules.items()] == ["b", "c"]
    modules.clear()
    assert len(modules) == 0


def check_parameters():
    """Tensors become parameters; indices and keys are those of torch's."""
    values = nn.ParameterList([weft.ones(2), nn.Parameter(weft.zeros(3))])
    assert [isinstance(one, nn.Parameter) for one in values] == [True, True]
    assert values[-1].shape == (3,)
    values[0] = weft.zeros(4)
    values += [weft.ones(1)]
    assert [tuple(one.shape) for one in values] == [(4,), (3,), (1,)]
    assert [tuple(one.shape) for one in values[1:]] == [(3,), (1,)]
    named = nn.ParameterDict(parameters={"a": weft.ones(2)})
    named["b"] = weft.ones(3)
    assert list(named) == ["a", "b"]
    assert isinstance(named.pop("a"), nn.Parameter)
    assert named.get("a") is None
    assert named.setdefault("b") is named["b"]
    assert named.copy()["b"] is named["b"]
    assert [name for name, _ in named.named_parameters()] == ["b"]
    named.clear()
    assert len(named) == len(list(named.parameters())) == 0


def record(name, make, variant="", **entries):
    return LayerRecord(
        name=name,
        variant=variant,
        make=lambda: make(nn),
        inputs=lambda draw: (draw.normal(3, 4),),
        oracle=of_torch(lambda: make(torch.nn)),
        **entries,
    )


RECORDS = [
    record(
        "Sequential",
        sequential,
        checks={"as a list": check_sequential, "compiled": check_compiled_changes},
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3)), match=r"\[2, 3\].*\[\*, 4\]", error=weft.ShapeError),
            Bad(call=lambda layer: layer[7], match="index 7 into 3", error=IndexError),
            Bad(call=lambda layer: nn.Sequential([3]), match="int.*Module", error=TypeError),
        ],
    ),
    record("Sequential", named, "named", no_bad="as numbered"),
    record(
        "Grid",
        grid,
        checks={"places": check_grid},
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3)), match=r"\[2, 3\].*\[\*, 4\]", error=weft.ShapeError),
            Bad(call=lambda layer: layer.set_layer(2, 0, 0, nn.ReLU()), match="row=2.*0 to 1", error=IndexError),
            Bad(call=lambda layer: nn.Grid(1, 1, 1)(weft.ones(1)), match="no layer at row 0", error=weft.GraphError),
        ],
    ),
    record(
        "ModuleList",
        with_list,
        bad=[
            Bad(call=lambda layer: layer.layers(weft.ones(1)), match="forward", error=NotImplementedError),
            Bad(call=lambda layer: layer.layers.append(3), match="int.*Module", error=TypeError),
        ],
    ),
    record(
        "ModuleDict",
        with_dict,
        checks={"as a dict": check_dict},
        bad=[
            Bad(call=lambda layer: layer.heads["x"], match="x", error=KeyError),
            Bad(call=lambda layer: layer.heads.update({"x": 3}), match="int.*Module", error=TypeError),
        ],
    ),
    record(
        "ParameterList",
        with_parameter_list,
        checks={"as a list": check_parameters},
        bad=[Bad(call=lambda layer: layer.weights[5], match="index 5 into 3", error=IndexError)],
    ),
    record(
        "ParameterDict",
        with_parameter_dict,
        bad=[Bad(call=lambda layer: layer.weights["x"], match="x", error=KeyError)],
    ),
]
