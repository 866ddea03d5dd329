"""Records of the dense layers."""

import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_torch
from tests.layers.record import Bad, LayerRecord

RECORDS = [
    LayerRecord(
        name="Linear",
        make=lambda: nn.Linear(5, 3),
        inputs=lambda draw: (draw.normal(4, 5),),
        oracle=of_torch(lambda: torch.nn.Linear(5, 3)),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 4)), match=r"\(2, 4\).*\(3, 5\)", error=weft.ShapeError)],
    ),
    LayerRecord(
        name="Linear",
        variant="no bias",
        make=lambda: nn.Linear(5, 3, bias=False),
        inputs=lambda draw: (draw.normal(2, 3, 5),),
        oracle=of_torch(lambda: torch.nn.Linear(5, 3, bias=False)),
        no_bad="as with bias",
    ),
]
