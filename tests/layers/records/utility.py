"""Records of the layers that combine, cut and reshape."""

import numpy as np
import torch
import torch.nn.functional as TF

import weft
import weft.nn as nn
from tests.layers.oracles import of_function, of_numpy
from tests.layers.record import Bad, Case, LayerRecord
from tests.layers.simple import like_torch


def check_products_at_zero():
    """The gradient of a product is that of the other factors, also where some are 0."""
    values = [[0.0, 2.0, 0.0, 3.0], [5.0, 0.0, 0.0, 7.0], [2.0, 4.0, 6.0, 0.0]]
    ours = [weft.tensor(row, requires_grad=True) for row in values]
    theirs = [torch.tensor(row, requires_grad=True) for row in values]
    nn.Multiply()(*ours).sum().backward()
    (theirs[0] * theirs[1] * theirs[2]).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one.grad.numpy(), other.grad.numpy())


def check_lists():
    """Several inputs may come as one list."""
    x = weft.ones(2, 2)
    assert nn.Add()([x, x, x]).tolist() == nn.Add()(x, x, x).tolist() == [[3.0, 3.0]] * 2
    assert nn.Concat(0)((x, x)).shape == (4, 2)


def check_views():
    """Reshape, Flatten and Unflatten of a contiguous tensor share its memory."""
    x = weft.zeros(2, 6)
    for layer in (nn.Reshape(3, 2), nn.Flatten(0), nn.Unflatten(1, (2, 3))):
        y = layer(x)
        x.fill_(0.0)
        y[(0,) * y.ndim] = 5.0
        assert x[0, 0].item() == 5.0


def masking(state, x):
    return np.where((x != 0).any(-1, keepdims=True), x, 0.0)


def check_mask():
    """The mask is False where all features of a step have the value."""
    x = weft.tensor([[[2.0, 2.0], [2.0, 1.0], [0.0, 0.0]]])
    assert nn.Masking(2.0).mask(x).tolist() == [[False, True, True]]
    assert nn.Masking(2.0, elementwise=True).mask(x).tolist() == [[[False, False], [False, True], [True, True]]]
    g = weft.tensor([[[2.0, 2.0], [2.0, 1.0]]], requires_grad=True)
    nn.Masking(2.0)(g).sum().backward()
    assert g.grad.tolist() == [[[0.0, 0.0], [1.0, 1.0]]]


def check_last_gradient():
    """The gradient is 0 at all steps but the last of each sequence."""
    x = weft.ones(2, 3, 2, requires_grad=True)
    nn.SequenceLast()(x, weft.tensor([1, 3])).sum().backward()
    expected = np.zeros((2, 3, 2))
    expected[0, 0] = expected[1, 2] = 1
    np.testing.assert_array_equal(x.grad.numpy(), expected)


TWO = [Bad(call=lambda layer: layer(weft.ones(2)), match="1 inputs.*two or more", error=weft.ShapeError)]
RECORDS = [
    LayerRecord(
        name="Identity",
        make=lambda: nn.Identity(3, unused=True),
        inputs=lambda draw: (draw.normal(2, 3),),
        oracle=of_function(lambda x: x),
        no_bad="every input is right",
    ),
    like_torch(
        "Flatten",
        lambda draw: (draw.normal(2, 3, 4),),
        bad=[Bad(call=lambda layer: nn.Flatten(3)(weft.ones(2, 3)), match="3", error=Exception)],
        checks={"views": check_views},
    ),
    like_torch("Flatten", lambda draw: (draw.normal(2, 3, 4, 5),), 1, 2, variant="inner axes"),
    like_torch(
        "Unflatten",
        lambda draw: (draw.normal(2, 12),),
        1,
        (3, 4),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 7)), match="7", error=weft.ShapeError)],
    ),
    like_torch("Unflatten", lambda draw: (draw.normal(2, 12, 2),), -2, (2, -1), variant="one free"),
    LayerRecord(
        name="Add",
        make=nn.Add,
        inputs=lambda draw: (draw.normal(3, 4), draw.normal(1, 4), draw.normal(3, 1)),
        oracle=of_function(lambda a, b, c: a + b + c),
        batch_axes=(0, 0, 0),
        checks={"lists": check_lists},
        bad=[*TWO, Bad(call=lambda layer: layer(weft.ones(2), weft.ones(3)), match="2.*3", error=weft.ShapeError)],
    ),
    LayerRecord(
        name="Multiply",
        make=nn.Multiply,
        inputs=lambda draw: (draw.normal(3, 4), draw.normal(1, 4), draw.normal(3, 1)),
        oracle=of_function(lambda a, b, c: a * b * c),
        checks={"zeros": check_products_at_zero},
        bad=[*TWO, Bad(call=lambda layer: layer(weft.ones(2), weft.ones(3)), match="2.*3", error=weft.ShapeError)],
    ),
    LayerRecord(
        name="Concat",
        make=nn.Concat,
        inputs=lambda draw: (draw.normal(3, 4, 2), draw.normal(3, 1, 2), draw.normal(3, 2, 2)),
        oracle=of_function(lambda *xs: torch.cat(xs, 1)),
        bad=[
            *TWO,
            Bad(call=lambda layer: layer(weft.ones(2, 1), weft.ones(3, 1)), match="2.*3", error=weft.ShapeError),
        ],
    ),
    LayerRecord(
        name="Concat",
        variant="last axis",
        make=lambda: nn.Concat(-1),
        inputs=lambda draw: (draw.normal(3, 4), draw.normal(3, 1)),
        oracle=of_function(lambda *xs: torch.cat(xs, -1)),
        no_bad="as along the first",
    ),
    LayerRecord(
        name="Mean",
        make=lambda: nn.Mean(1),
        inputs=lambda draw: (draw.normal(3, 4, 2),),
        oracle=of_function(lambda x: x.mean(1)),
        bad=[Bad(call=lambda layer: layer(weft.ones(2)), match="1", error=Exception)],
    ),
    LayerRecord(
        name="Mean",
        variant="several axes",
        make=lambda: nn.Mean([1, -1], keepdim=True),
        inputs=lambda draw: (draw.normal(3, 4, 2),),
        oracle=of_function(lambda x: x.mean((1, 2), keepdim=True)),
        no_bad="as along one",
    ),
    LayerRecord(
        name="Crop",
        make=lambda: nn.Crop([(1, 0), (0, 2), (1, 1)]),
        inputs=lambda draw: (draw.normal(2, 3, 4, 5),),
        oracle=of_function(lambda x: x[..., 1:, :2, 1:4]),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3, 4, 1)), match=r"\[2, 3, 4, 1\]", error=weft.ShapeError),
            Bad(call=lambda layer: layer(weft.ones(2, 3)), match="at least 3 axes", error=weft.ShapeError),
            Bad(call=lambda layer: nn.Crop([(-1, 0)]), match="from 0 on", error=weft.RangeError),
        ],
    ),
    LayerRecord(
        name="Crop2d",
        make=lambda: nn.Crop2d(1, 0, 2, 1),
        inputs=lambda draw: (draw.normal(2, 3, 4, 5),),
        oracle=of_function(lambda x: x[..., 1:, 2:4]),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 2)), match=r"Crop2d.*\[2, 2\]", error=weft.ShapeError)],
    ),
    *[
        LayerRecord(
            name="Pad",
            variant=mode,
            make=lambda mode=mode: nn.Pad((1, 2, 0, 1), mode, 0.5),
            inputs=lambda draw: (draw.normal(2, 3, 4, 5),),
            oracle=of_function(lambda x, mode=mode: TF.pad(x, (1, 2, 0, 1), mode, 0.5 if mode == "constant" else None)),
            bad=[
                Bad(call=lambda layer: nn.Pad((1, 1), "bogus"), match="'bogus'.*'reflect'", error=weft.RangeError),
                Bad(call=lambda layer: nn.Pad((1, 1, 1))(weft.ones(3)), match="3", error=Exception),
            ],
        )
        for mode in ("constant", "reflect", "replicate", "circular")
    ],
    LayerRecord(
        name="Reshape",
        make=lambda: nn.Reshape(3, -1),
        inputs=lambda draw: (draw.normal(2, 6),),
        oracle=of_numpy(lambda state, x: x.reshape(-1, 3, 2)),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 7)), match=r"\[2, 7\].*\[B, 3, -1\]", error=weft.ShapeError),
            Bad(call=lambda layer: nn.Reshape(-1, -1), match="at most one", error=weft.RangeError),
        ],
    ),
    LayerRecord(
        name="Reshape",
        variant="flat",
        make=lambda: nn.Reshape((6,)),
        inputs=lambda draw: (draw.normal(2, 3, 2),),
        oracle=of_numpy(lambda state, x: x.reshape(-1, 6)),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 5)), match=r"\[2, 5\]", error=weft.ShapeError)],
    ),
    LayerRecord(
        name="SequenceLast",
        make=nn.SequenceLast,
        inputs=lambda draw: (draw.normal(3, 4, 2),),
        oracle=of_numpy(lambda state, x: x[:, -1]),
        traits=frozenset({"batch", "sequence"}),
        checks={"gradient": check_last_gradient},
        bad=[Bad(call=lambda layer: layer(weft.ones(2)), match=r"\[2\].*\[B, T, \*\]", error=weft.ShapeError)],
    ),
    LayerRecord(
        name="SequenceLast",
        variant="lengths",
        make=nn.SequenceLast,
        inputs=lambda draw: (draw.normal(3, 4, 2), np.array([4, 1, 2])),
        oracle=of_numpy(lambda state, x, lengths: x[np.arange(len(x)), lengths - 1]),
        traits=frozenset({"batch", "sequence"}),
        edges={"sequence of one": Case(inputs=lambda draw: (draw.normal(3, 1, 2), np.array([1, 1, 1])))},
        bad=[
            Bad(
                call=lambda layer: layer(weft.ones(2, 3), weft.tensor([1])),
                match=r"\[1\].*2 seq",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: layer(weft.ones(2, 3), weft.tensor([1, 4])), match="3", error=IndexError),
        ],
    ),
    LayerRecord(
        name="SequenceLast",
        variant="time first",
        make=lambda: nn.SequenceLast(batch_first=False),
        inputs=lambda draw: (draw.normal(4, 3, 2), np.array([4, 1, 2])),
        oracle=of_numpy(lambda state, x, lengths: x[lengths - 1, np.arange(x.shape[1])]),
        batch_axes=(1, 0),
        sequence_axis=0,
        traits=frozenset({"batch", "sequence"}),
        edges={"sequence of one": Case(inputs=lambda draw: (draw.normal(1, 3, 2), np.array([1, 1, 1])))},
        no_bad="as with the batch first",
    ),
    LayerRecord(
        name="Masking",
        make=nn.Masking,
        inputs=lambda draw: (draw.normal(2, 4, 3) * (draw.random.random((2, 4, 1)) < 0.5),),
        oracle=of_numpy(masking),
        traits=frozenset({"batch", "sequence", "mask"}),
        edges={"all-masked rows": Case(inputs=lambda draw: (np.zeros((2, 3, 2)),))},
        differentiable=False,  # a step of zeros jumps; its own check has the gradient
        checks={"mask": check_mask},
        bad=[Bad(call=lambda layer: layer(weft.ones(3)), match=r"\[3\].*\[B, T, F\]", error=weft.ShapeError)],
    ),
    LayerRecord(
        name="Masking",
        variant="elementwise",
        make=lambda: nn.Masking(1.0, elementwise=True),
        inputs=lambda draw: (draw.integers(3, 2, 4, 3).astype(float),),
        oracle=of_numpy(lambda state, x: np.where(x == 1, 0.0, x)),
        traits=frozenset({"batch", "sequence", "mask"}),
        edges={"all-masked rows": Case(inputs=lambda draw: (np.ones((2, 3, 2)),))},
        differentiable=False,
        no_bad="as for whole steps",
    ),
    LayerRecord(
        name="Split",
        make=lambda: nn.Split(2),
        inputs=lambda draw: (draw.normal(3, 4),),
        oracle=of_function(lambda x: torch.chunk(x, 2, -1)),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 5)), match=r"\[2, 5\].*2 divides", error=weft.ShapeError),
            Bad(call=lambda layer: nn.Split(0), match="from 1 on", error=weft.RangeError),
            Bad(call=lambda layer: nn.Split([1, 2], stack=True), match="a number of parts", error=weft.RangeError),
        ],
    ),
    LayerRecord(
        name="Split",
        variant="sizes",
        make=lambda: nn.Split([1, 0, 3], dim=1),
        inputs=lambda draw: (draw.normal(3, 4, 2),),
        oracle=of_function(lambda x: torch.split(x, [1, 0, 3], 1)),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 5)), match=r"\[2, 5\].*4 elements", error=weft.ShapeError)],
    ),
    LayerRecord(
        name="Split",
        variant="stack",
        make=lambda: nn.Split(2, stack=True),
        inputs=lambda draw: (draw.normal(3, 4),),
        oracle=of_function(lambda x: x.reshape(-1, 2, 2)),
        no_bad="as a tuple",
    ),
]
