"""Records of the layers that change the resolution, and of windows as columns."""

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_torch
from tests.layers.record import Bad, Case, LayerRecord
from tests.layers.simple import like_torch


def check_inverse():
    """PixelUnshuffle undoes PixelShuffle, and is its gradient."""
    x = weft.randn(2, 8, 3, 2).requires_grad_()
    y = nn.PixelShuffle(2)(x)
    np.testing.assert_array_equal(nn.PixelUnshuffle(2)(y).detach(), x.detach())
    g = weft.randn(*y.shape)
    (y * g).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), nn.PixelUnshuffle(2)(g).numpy())


def check_adjoint(layer, shape):
    """⟨f(x), y⟩ = ⟨x, fᵀ(y)⟩ for the gradient fᵀ of a linear layer, to the rounding of float64."""

    def check():
        x = weft.randn(*shape, dtype=weft.float64).requires_grad_()
        y = layer(x)
        g = weft.randn(*y.shape, dtype=weft.float64)
        (y * g).sum().backward()
        np.testing.assert_allclose((x.grad * x.detach()).sum().item(), (y.detach() * g).sum().item(), rtol=1e-12)

    return check


def check_fold_counts():
    """Fold of Unfold multiplies each pixel by the number of windows that hold it."""
    x = weft.randn(1, 2, 4, 5)
    unfold, fold = nn.Unfold(2), nn.Fold((4, 5), 2)
    counts = fold(unfold(weft.ones(1, 2, 4, 5)))
    np.testing.assert_allclose(fold(unfold(x)).numpy(), (counts * x).numpy(), rtol=1e-6)


def subpixel(bias=True, kernel=3, padding=1):
    def make():
        conv = torch.nn.Conv2d(3, 2 * 4, kernel, padding=padding, bias=bias)
        return torch.nn.Sequential(conv, torch.nn.PixelShuffle(2))

    return of_torch(make, rename=lambda key: "0." + key)


def check_icnr():
    """After icnr_init the four pixels of each place are equal, and so the result is an upsampling."""
    layer = nn.SubpixelConv2d(3, 2, 2).icnr_init()
    y = layer(weft.randn(1, 3, 4, 4)).detach().numpy()
    np.testing.assert_allclose(y, y[:, :, ::2, ::2].repeat(2, 2).repeat(2, 3), rtol=1e-5, atol=1e-6)
    assert len(np.unique(layer.weight.detach().numpy())) == layer.weight.numel() // 4


IMAGE = lambda draw: (draw.normal(2, 3, 4, 5),)  # noqa: E731
VOLUME = lambda draw: (draw.normal(2, 2, 2, 3, 4),)  # noqa: E731
ROW = lambda draw: (draw.normal(2, 3, 5),)  # noqa: E731
UPSAMPLES = [
    ("nearest", IMAGE, {"scale_factor": 2}),
    ("nearest, size", IMAGE, {"size": (3, 9)}),
    ("nearest row", ROW, {"scale_factor": 1.7}),
    ("nearest volume", VOLUME, {"scale_factor": (1, 2, 1.5)}),
    ("linear", ROW, {"scale_factor": 2, "mode": "linear"}),
    ("bilinear", IMAGE, {"scale_factor": (2, 1.3), "mode": "bilinear"}),
    ("bilinear, corners", IMAGE, {"size": 7, "mode": "bilinear", "align_corners": True}),
    ("bilinear, recomputed", IMAGE, {"scale_factor": 1.3, "mode": "bilinear", "recompute_scale_factor": True}),
    ("bicubic", IMAGE, {"scale_factor": 2, "mode": "bicubic"}),
    ("bicubic, corners", IMAGE, {"size": (7, 6), "mode": "bicubic", "align_corners": True}),
    ("trilinear", VOLUME, {"scale_factor": 2, "mode": "trilinear"}),
    ("nearest-exact", IMAGE, {"size": (6, 3), "mode": "nearest-exact"}),
    ("area", IMAGE, {"size": (2, 3), "mode": "area"}),
]


def sevens(inputs):
    """As many axes, all of extent 7."""
    return lambda draw: (draw.normal(1, 2, *[7] * (inputs(draw)[0].ndim - 2)),)


def up3d(**options):
    return of_torch(lambda: torch.nn.Upsample(**options))


RECORDS = [
    like_torch(
        "PixelShuffle", lambda draw: (draw.normal(2, 8, 3, 2),), 2, checks={"inverse": check_inverse},
        bad=[
            Bad(call=lambda layer: layer(weft.ones(1, 6, 2, 2)), match="6 channels", error=weft.ShapeError),
            Bad(call=lambda layer: nn.PixelShuffle(0), match="upscale_factor=0", error=weft.RangeError),
        ],
    ),
    like_torch("PixelShuffle", lambda draw: (draw.normal(9, 1, 2),), 3, variant="no batch", traits=frozenset()),
    like_torch(
        "PixelUnshuffle", lambda draw: (draw.normal(2, 2, 4, 6),), 2,
        bad=[Bad(call=lambda layer: layer(weft.ones(1, 1, 3, 2)), match="3", error=weft.ShapeError)],
    ),
    like_torch(
        "ChannelShuffle", lambda draw: (draw.normal(2, 6, 3, 2),), 3, traits=frozenset({"batch", "groups"}),
        edges={
            "groups == channels": Case(
                make=lambda: nn.ChannelShuffle(6), oracle=of_torch(lambda: torch.nn.ChannelShuffle(6))
            )
        },
        bad=[Bad(call=lambda layer: layer(weft.ones(1, 4, 2, 2)), match="4.*3|3.*4", error=weft.ShapeError)],
    ),
    LayerRecord(
        name="SubpixelConv2d",
        make=lambda: nn.SubpixelConv2d(3, 2, 2),
        inputs=lambda draw: (draw.normal(2, 3, 4, 3),),
        oracle=subpixel(),
        traits=frozenset({"batch", "window"}),
        edges={
            "odd sizes": Case(
                make=lambda: nn.SubpixelConv2d(3, 2, 2, kernel_size=(3, 2), padding=0),
                inputs=lambda draw: (draw.normal(1, 3, 5, 7),),
                oracle=subpixel(kernel=(3, 2), padding=0),
            )
        },
        checks={"equal sub-filters": check_icnr},
        bad=[
            Bad(call=lambda layer: layer(weft.ones(1, 2, 4, 4)), match=r"\[1, 2, 4, 4\].*B, 3", error=weft.ShapeError),
            Bad(call=lambda layer: nn.SubpixelConv2d(3, 2, 0), match="upscale_factor=0", error=weft.RangeError),
        ],
    ),
    LayerRecord(
        name="SubpixelConv2d",
        variant="no bias",
        make=lambda: nn.SubpixelConv2d(3, 2, 2, bias=False),
        inputs=lambda draw: (draw.normal(2, 3, 3, 3),),
        oracle=subpixel(bias=False),
        no_bad="as with bias",
    ),
    *[
        like_torch(
            "Upsample", inputs, options=options, variant=variant, traits=frozenset({"batch", "window"}),
            edges={"odd sizes": Case(inputs=sevens(inputs))},
            bad=[Bad(call=lambda layer: nn.Upsample(mode="bogus", size=2)(weft.ones(1, 1, 2)), match="bogus")],
        )
        for variant, inputs, options in UPSAMPLES
    ],
    like_torch(
        "UpsamplingNearest2d", IMAGE, options={"scale_factor": 2},
        bad=[Bad(call=lambda layer: nn.UpsamplingNearest2d()(weft.ones(1, 1, 2, 2)), match="size")],
    ),
    like_torch(
        "UpsamplingBilinear2d", IMAGE, options={"size": (7, 9)},
        checks={"adjoint": check_adjoint(nn.UpsamplingBilinear2d(scale_factor=3), (1, 2, 3, 4))},
        bad=[Bad(call=lambda layer: nn.UpsamplingBilinear2d()(weft.ones(1, 1, 2, 2)), match="size")],
    ),
    LayerRecord(
        name="Upsample3d",
        make=nn.Upsample3d,
        inputs=VOLUME,
        oracle=up3d(scale_factor=2),
        traits=frozenset({"batch", "window"}),
        edges={
            "odd sizes": Case(
                make=lambda: nn.Upsample3d(size=(3, 7, 5)),
                inputs=lambda draw: (draw.normal(1, 1, 5, 3, 7),),
                oracle=up3d(size=(3, 7, 5)),
            )
        },
        bad=[
            Bad(call=lambda layer: layer(weft.ones(1, 1, 2, 2)), match=r"\[1, 1, 2, 2\]", error=weft.ShapeError),
            Bad(call=lambda layer: nn.Upsample3d(mode="cubic"), match="'cubic'", error=weft.RangeError),
        ],
    ),
    LayerRecord(
        name="Upsample3d",
        variant="trilinear",
        make=lambda: nn.Upsample3d(1.5, mode="trilinear", align_corners=True),
        inputs=VOLUME,
        oracle=up3d(scale_factor=1.5, mode="trilinear", align_corners=True),
        checks={"adjoint": check_adjoint(nn.Upsample3d(mode="trilinear"), (1, 1, 2, 3, 4))},
        no_bad="as nearest",
    ),
    like_torch(
        "Unfold", IMAGE, 2, traits=frozenset({"batch", "window"}),
        edges={
            "odd sizes": Case(
                make=lambda: nn.Unfold((3, 2), 2, 1, (2, 3)),
                inputs=lambda draw: (draw.normal(2, 2, 7, 9),),
                oracle=of_torch(lambda: torch.nn.Unfold((3, 2), 2, 1, (2, 3))),
            )
        },
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 2)), match="unfold.*2", error=weft.ShapeError)],
    ),
    like_torch(
        "Fold", lambda draw: (draw.normal(2, 12, 12),), (4, 5), 2, traits=frozenset({"batch", "window"}),
        checks={"counts": check_fold_counts},
        edges={
            "odd sizes": Case(
                make=lambda: nn.Fold((7, 9), (3, 2), 2, 1, (2, 3)),
                inputs=lambda draw: (draw.normal(2, 12, 9),),
                oracle=of_torch(lambda: torch.nn.Fold((7, 9), (3, 2), 2, 1, (2, 3))),
            )
        },
        bad=[Bad(call=lambda layer: layer(weft.ones(1, 12, 7)), match="7", error=weft.ShapeError)],
    ),
]  # fmt: skip
