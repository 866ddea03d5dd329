"""Records of the lazy convolutions and normalizations: after the first call they are the plain layers."""

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_torch
from tests.layers.record import Bad, LayerRecord

RUNNING = {"affine": True, "track_running_stats": True}  # the defaults of lazy instance norms, as in torch
SPACES = {1: (5,), 2: (4, 3), 3: (3, 2, 3)}


def check_becomes_plain(name, arguments, size):
    """Before the first call it has no shapes, after it it is the plain class; a state_dict gives shapes as well; a
    compiled first call does it, too."""
    plain = getattr(nn, name.removeprefix("Lazy"))
    more = RUNNING if "Instance" in name else {}

    def check():
        layer = getattr(nn, name)(*arguments)
        assert type(layer) is not plain and layer.has_uninitialized_params()
        x = weft.rand(2, 4, *size)
        expected = layer(x)
        assert type(layer) is plain and repr(layer) == repr(plain(4, *arguments, **more))
        other = getattr(nn, name)(*arguments)
        other.load_state_dict(layer.state_dict())
        np.testing.assert_allclose(other.eval()(x).detach(), layer.eval()(x).detach(), rtol=1e-6)
        assert type(other) is plain
        wrong = getattr(nn, name)(*arguments)
        wrong.load_state_dict(layer.state_dict())
        try:
            wrong(weft.rand(2, 6, *size))
        except weft.ShapeError as error:
            assert "4" in str(error) and "6" in str(error)
        else:
            raise AssertionError("6 channels were taken for 4")
        weft.manual_seed(1)
        compiled = getattr(nn, name)(*arguments)
        result = weft.compile(lambda x: compiled(x))(x)
        assert tuple(result.shape) == tuple(expected.shape) and type(compiled) is plain

    return check


def lazy(name, arguments, shape, **options):
    plain = name.removeprefix("Lazy")

    def make():
        layer = getattr(nn, name)(*arguments, **options)
        layer.eval()(weft.ones(*shape))
        return layer.train()

    first = 4 if "Conv" in plain else 3
    options = options | (RUNNING if "Instance" in plain else {})
    return LayerRecord(
        name=name,
        make=make,
        inputs=lambda draw: (draw.normal(*shape),),
        oracle=of_torch(lambda: getattr(torch.nn, plain)(first, *arguments, **options)),
        bad=[
            Bad(call=lambda layer: getattr(nn, name)(*arguments)(weft.ones(3)), match=r"\(3,\)", error=weft.ShapeError)
        ],
        checks={"becomes plain": check_becomes_plain(name, arguments, shape[2:])},
        gradient_rtol=1e-5,
    )


RECORDS = [
    *[lazy(f"LazyConv{rank}d", (6, 2), (2, 4, *SPACES[rank]), groups=2) for rank in (1, 2, 3)],
    *[lazy(f"LazyConvTranspose{rank}d", (6, 2), (2, 4, *SPACES[rank]), groups=2, stride=2) for rank in (1, 2, 3)],
    *[lazy(f"LazyBatchNorm{rank}d", (), (2, 3, *SPACES[rank])) for rank in (1, 2, 3)],
    *[lazy(f"LazyInstanceNorm{rank}d", (), (2, 3, *SPACES[rank])) for rank in (1, 2, 3)],
]
