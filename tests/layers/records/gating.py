"""Records of gates: torch's functions around the same weights."""

import torch
import torch.nn.functional as TF

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy, to_torch
from tests.layers.record import Bad, LayerRecord


def with_torch(function):
    """An oracle of torch tensors: `function(state, *inputs)`."""
    return of_numpy(lambda state, *inputs: function(to_torch(dict(state)), *to_torch(inputs)))


def excitation(state, x):
    squeezed = TF.adaptive_avg_pool2d(x, 1).flatten(1)
    hidden = TF.relu(TF.linear(squeezed, state["fc1.weight"], state["fc1.bias"]))
    scale = torch.sigmoid(TF.linear(hidden, state["fc2.weight"], state["fc2.bias"]))
    return x * scale[:, :, None, None]


def swiglu(state, x):
    gate, up = (TF.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias")) for name in ("gate", "up"))
    return TF.linear(TF.silu(gate) * up, state["down.weight"], state.get("down.bias"))


def widths_are_multiples_of_64():
    assert [nn.SwiGLU(dim).gate.out_features for dim in (24, 25, 48, 512)] == [64, 128, 128, 1408]


RECORDS = [
    LayerRecord(
        name="GatedLinearUnit",
        make=lambda: nn.GatedLinearUnit(4, 3),
        inputs=lambda draw: (draw.normal(2, 4),),
        oracle=with_torch(lambda state, x: TF.glu(TF.linear(x, state["linear.weight"], state["linear.bias"]))),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3)), match=r"2, 3.*\*, 4"),
            Bad(call=lambda layer: type(layer)(4, 3, activation="nothing"), match="nothing"),
        ],
    ),
    LayerRecord(
        name="GatedLinearUnit",
        variant="gelu, no bias",
        make=lambda: nn.GatedLinearUnit(4, 3, "gelu", bias=False),
        inputs=lambda draw: (draw.normal(2, 5, 4),),
        oracle=with_torch(
            lambda state, x: (x @ state["linear.weight"][:3].T) * TF.gelu(x @ state["linear.weight"][3:].T)
        ),
        no_bad="as the first record",
    ),
    LayerRecord(
        name="GatedLinearUnit",
        variant="bilinear",
        make=lambda: nn.GatedLinearUnit(4, 3, None),
        inputs=lambda draw: (draw.normal(2, 4),),
        oracle=with_torch(
            lambda state, x: torch.prod(
                TF.linear(x, state["linear.weight"], state["linear.bias"]).reshape(-1, 2, 3), dim=1
            )
        ),
        no_bad="as the first record",
    ),
    LayerRecord(
        name="SqueezeExcitation",
        make=lambda: nn.SqueezeExcitation(4, 2),
        inputs=lambda draw: (draw.normal(2, 4, 3, 5),),
        oracle=with_torch(excitation),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3, 3, 3)), match=r"\(2, 3, 3, 3\).*\[B, 4, ...\]"),
            Bad(call=lambda layer: type(layer)(4), match="channels=4 and reduction=16"),
        ],
    ),
    LayerRecord(
        name="SwiGLU",
        make=lambda: nn.SwiGLU(4, 6),
        inputs=lambda draw: (draw.normal(2, 3, 4),),
        oracle=with_torch(swiglu),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 3)), match=r"2, 3.*\*, 4")],
        checks={"the width": widths_are_multiples_of_64},
    ),
    LayerRecord(
        name="SwiGLU",
        variant="bias",
        make=lambda: nn.SwiGLU(4, 6, bias=True),
        inputs=lambda draw: (draw.normal(3, 4),),
        oracle=with_torch(swiglu),
        no_bad="as the first record",
    ),
]
