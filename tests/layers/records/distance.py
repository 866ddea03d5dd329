"""Records of distances and similarities."""

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_torch
from tests.layers.record import Bad, Case, LayerRecord
from tests.layers.simple import like_torch


def check_zero(name):
    """Values and gradients at equal and at zero vectors are torch's."""

    def check():
        pairs = [([[0.0, 0.0]], [[1.0, 2.0]]), ([[1.0, 2.0]], [[1.0, 2.0]])]
        for left, right in pairs:
            ours = [weft.tensor(one, dtype=weft.float64, requires_grad=True) for one in (left, right)]
            theirs = [torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in (left, right)]
            result, expected = getattr(nn, name)()(*ours), getattr(torch.nn, name)()(*theirs)
            result.sum().backward()
            expected.sum().backward()
            np.testing.assert_allclose(result.detach(), expected.detach().numpy(), rtol=1e-12)
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(one.grad, other.grad.numpy(), rtol=1e-9, atol=1e-12)

    return check


WRONG = [Bad(call=lambda layer: layer(weft.ones(2, 3), weft.ones(2, 4)), match="3.*4", error=weft.ShapeError)]
RECORDS = [
    like_torch(
        "CosineSimilarity", lambda draw: (draw.normal(3, 4), draw.normal(3, 4)), bad=WRONG,
        checks={"zeros": check_zero("CosineSimilarity")},
    ),
    like_torch(
        "CosineSimilarity", lambda draw: (draw.normal(3, 4, 2), draw.normal(3, 1, 2)), -1, 0.5,
        variant="broadcast, large eps",
    ),
    like_torch(
        "PairwiseDistance", lambda draw: (draw.normal(3, 4), draw.normal(3, 4)), bad=WRONG,
        checks={"zeros": check_zero("PairwiseDistance")},
    ),
    like_torch(
        "PairwiseDistance", lambda draw: (draw.normal(3, 4), draw.normal(3, 4)), 1.0, 1e-3, True, variant="sum, keepdim"
    ),
    like_torch("PairwiseDistance", lambda draw: (draw.normal(3, 4), draw.normal(3, 4)), 3.0, variant="cubes"),
    LayerRecord(
        name="PairwiseDistance",
        variant="maximum",
        make=lambda: nn.PairwiseDistance(float("inf")),
        inputs=lambda draw: (draw.normal(3, 4), draw.normal(3, 4)),
        oracle=of_torch(lambda: torch.nn.PairwiseDistance(float("inf"))),
        traits=frozenset({"batch", "order"}),
        edges={"ties": Case(inputs=lambda draw: (np.array([[1.0, -1.0, 0.5]]), np.array([[0.0, 0.0, 0.0]])))},
        no_bad="as for other norms",
    ),
]  # fmt: skip
