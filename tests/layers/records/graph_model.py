"""Records of models that are made by calling layers on symbols."""

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_function, to_torch
from tests.layers.record import Bad, LayerRecord


def skip_and_shared():
    """A layer that is called twice, a skip, two outputs."""
    x = nn.Input((4,))
    shared = nn.Linear(4, 4)
    a = shared(x)
    b = shared(nn.ReLU()(a)) + x
    return nn.Model(x, [b, nn.Linear(4, 2)(b * 2)])


def skip_and_shared_oracle(state, inputs, training):
    (x,) = to_torch(inputs)
    weights = [to_torch(value) for value in state.values()]
    first, second = weights[:2], weights[2:]
    a = torch.nn.functional.linear(x, *first)
    b = torch.nn.functional.linear(a.relu(), *first) + x
    return [b, torch.nn.functional.linear(b * 2, *second)]


def several_inputs():
    """Two inputs of different shapes, one of them with a free extent; a part of a tuple."""
    x, y = nn.Input((4,)), nn.Input((None, 3))
    left, right = nn.Split(2)(x)
    pooled = nn.Mean(1)(y)
    return nn.Model([x, y], {"sum": nn.Add()(left, right), "joined": nn.Concat()(x, pooled), "signs": -x / 2 - 1})


def several_inputs_oracle(x, y):
    left, right = x.chunk(2, -1)
    return {"sum": left + right, "joined": torch.cat([x, y.mean(1)], 1), "signs": -x / 2 - 1}


def check_symbols():
    """A symbol knows its shape; nothing is computed; parameters of shared layers are counted once."""
    x = nn.Input((3, 8, 8))
    y = nn.Flatten()(nn.MaxPool2d(2)(x))
    assert y.shape == (None, 48)
    model = skip_and_shared()
    assert len(list(model.parameters())) == 4
    assert model.training
    model.eval()
    assert not any(module.training for module in model.modules())


def check_in_use():
    """A model of symbols trains, compiled, to the weights of the same model by hand."""
    weft.manual_seed(0)
    x = nn.Input((3,))
    hidden, last = nn.Linear(3, 4, activation="tanh"), nn.Linear(4, 1)
    model = nn.Model(x, last(hidden(x)))
    data, target = weft.randn(8, 3), weft.randn(8, 1)
    results = []
    states = {key: value.clone() for key, value in model.state_dict().items()}
    for call in (model, lambda x: last(hidden(x))):
        model.load_state_dict(states)
        optimizer = weft.optim.SGD(model.parameters(), lr=0.1)

        @weft.compile
        def step(call=call, optimizer=optimizer):
            loss = ((call(data) - target) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        results.append([step().item() for _ in range(3)])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
    assert results[0][2] < results[0][0]


def double(x):
    return x * 2 + 1


RECORDS = [
    LayerRecord(
        name="Input",
        make=lambda: nn.Input((3, None)),
        inputs=lambda draw: (draw.normal(2, 3, 5),),
        oracle=of_function(lambda x: x),
        checks={"symbols": check_symbols},
        bad=[
            Bad(
                call=lambda layer: layer(weft.ones(2, 4, 5)),
                match=r"\[2, 4, 5\].*\[batch, 3, any\]",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: layer(weft.ones(2, 3)), match=r"\[2, 3\].*\[batch, 3, any\]", error=weft.ShapeError),
        ],
    ),
    LayerRecord(
        name="Lambda",
        make=lambda: nn.Lambda(double),
        inputs=lambda draw: (draw.normal(2, 3),),
        oracle=of_function(double),
        no_bad="what is right depends on the function",
    ),
    LayerRecord(
        name="Lambda",
        variant="two inputs",
        make=lambda: nn.Lambda(lambda x, y: x * y),
        inputs=lambda draw: (draw.normal(2, 3), draw.normal(2, 3)),
        oracle=of_function(lambda x, y: x * y),
        no_bad="what is right depends on the function",
    ),
    LayerRecord(
        name="Model",
        make=skip_and_shared,
        inputs=lambda draw: (draw.normal(3, 4),),
        oracle=skip_and_shared_oracle,
        checks={"in use": check_in_use},
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 5)), match=r"\[2, 5\].*\[batch, 4\]", error=weft.ShapeError),
            Bad(call=lambda layer: layer(weft.ones(2, 4), weft.ones(2, 4)), match="2 inputs.*1", error=Exception),
            Bad(
                call=lambda layer: nn.Model(nn.Input((2,)), nn.ReLU()(nn.Input((3,)))),
                match="not among the inputs",
                error=Exception,
            ),
        ],
    ),
    LayerRecord(
        name="Model",
        variant="several inputs",
        make=several_inputs,
        inputs=lambda draw: (draw.normal(3, 4), draw.normal(3, 5, 3)),
        oracle=of_function(several_inputs_oracle),
        no_bad="as with one",
    ),
]
