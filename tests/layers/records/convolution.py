"""Records of the convolutions."""

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy, of_torch
from tests.layers.record import Bad, Case, LayerRecord

WINDOW = frozenset({"batch", "window", "groups"})
SPACES = {1: (8,), 2: (6, 5), 3: (4, 3, 4)}
ODD = {1: (11,), 2: (9, 7), 3: (7, 5, 6)}


def bad_calls(cls, rank, *arguments):
    """What a convolution does not take: other channels, other ranks, arguments that make no sense."""
    wrong = Bad(
        call=lambda layer: layer(weft.ones(2, 5, *SPACES[rank])), match="5 channels.* channels", error=weft.ShapeError
    )
    flat = Bad(call=lambda layer: layer(weft.ones(4)), match=r"\(4,\)", error=weft.ShapeError)
    constructors = [
        Bad(call=lambda layer: cls(4, 0, 3), match="out_channels=0", error=ValueError),
        Bad(call=lambda layer: cls(4, 6, 3, groups=3), match="groups=3.*divide", error=ValueError),
        Bad(call=lambda layer: cls(4, 6, 0), match="kernel_size=0", error=ValueError),
        Bad(call=lambda layer: cls(4, 6, 3, stride=0), match="stride=0", error=ValueError),
        Bad(call=lambda layer: cls(4, 6, 3, padding=(1,) * (rank + 1)), match="padding=", error=ValueError),
        Bad(call=lambda layer: cls(4, 6, 3, activation="rellu"), match="rellu"),
    ]
    return [wrong, flat, *constructors]


def convolution(rank, variant="", channels=(4, 6), torch_options=None, space=None, bad=False, **options):
    name = f"Conv{rank}d"
    cls, oracle = getattr(nn, name), getattr(torch.nn, name)
    kernel = options.pop("kernel_size", 3)
    small = (2,) * rank if rank == 3 else kernel

    def odd(c, made):
        return lambda: made(c[0], c[1], small, stride=2, padding=1, dilation=2)

    return LayerRecord(
        name=name,
        variant=variant,
        make=lambda: cls(*channels, kernel, **options),
        inputs=lambda draw: (draw.normal(2, channels[0], *(space or SPACES[rank])),),
        oracle=of_torch(lambda: oracle(*channels, kernel, **(options if torch_options is None else torch_options))),
        traits=WINDOW,
        edges={
            "odd sizes": Case(
                make=odd((channels[0], 3), cls),
                inputs=lambda draw: (draw.normal(2, channels[0], *ODD[rank]),),
                oracle=of_torch(odd((channels[0], 3), oracle)),
            ),
            "groups == channels": Case(
                make=lambda: cls(4, 8, small, groups=4),
                inputs=lambda draw: (draw.normal(2, 4, *SPACES[rank]),),
                oracle=of_torch(lambda: oracle(4, 8, small, groups=4)),
            ),
        },
        bad=[*bad_calls(cls, rank), *SAME] if bad else (),
        no_bad="" if bad else "see the record without a variant",
    )


SAME = [
    Bad(call=lambda layer: type(layer)(4, 6, 3, padding="some"), match="'same', 'valid'", error=ValueError),
    Bad(call=lambda layer: type(layer)(4, 6, 3, stride=2, padding="same"), match="stride 1", error=ValueError),
    Bad(call=lambda layer: type(layer)(4, 6, 3, padding_mode="mirror"), match="padding_mode='mirror'"),
]


def check_activation():
    """`activation=` is what is applied to the result: by name, as a function and as a module."""
    x = weft.rand(1, 2, 4, 4) - 0.5
    for given in ("relu", weft.nn.functional.relu, nn.Tanh()):
        weft.manual_seed(3)
        layer = nn.Conv2d(2, 3, 3, activation=given)
        weft.manual_seed(3)
        plain = nn.Conv2d(2, 3, 3)
        expected = plain(x).tanh() if isinstance(given, nn.Module) else plain(x).relu()
        np.testing.assert_array_equal(layer(x).detach(), expected.detach())
    assert list(nn.Conv2d(2, 3, 3, activation="relu").state_dict()) == ["weight", "bias"]


def check_one_sample():
    """An input without a batch is a batch of one."""
    for layer, shape in ((nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 5, 6)),
                         (nn.ConvTranspose2d(2, 3, 3, stride=2), (2, 5, 6))):  # fmt: skip
        x = weft.rand(*shape)
        np.testing.assert_array_equal(layer(x).detach(), layer(x.unsqueeze(0))[0].detach())


def check_empty_batch():
    """A batch of none gives one of none, and gradients of 0."""
    for layer in (nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(2, 3, 3), nn.DeformConv2d(2, 3, padding=0)):
        y = layer(weft.ones(0, 2, 5, 5))
        assert y.shape[:2] == (0, 3) and y.numpy().size == 0
        y.sum().backward()
        np.testing.assert_array_equal(layer.weight.grad, np.zeros(layer.weight.shape))


def check_starts():
    """The parameters start in torch's interval."""
    for ours, theirs in (
        (nn.Conv2d(6, 32, 5, groups=2), torch.nn.Conv2d(6, 32, 5, groups=2)),
        (nn.ConvTranspose2d(32, 6, 5, groups=2), torch.nn.ConvTranspose2d(32, 6, 5, groups=2)),
    ):
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert tuple(one.shape) == tuple(other.shape)
            bound = 1 / np.sqrt(other.shape[1:].numel() if other.ndim > 1 else ours.weight[0].numel())
            assert float(one.detach().abs().max()) <= bound
            assert float(other.detach().abs().max()) <= bound
        assert 0.9 * bound < float(ours.weight.detach().abs().max())


def transposed(rank, variant="", bad=False, call=None, extra_inputs=(), **options):
    name = f"ConvTranspose{rank}d"
    cls, oracle = getattr(nn, name), getattr(torch.nn, name)
    space = {1: (5,), 2: (4, 3), 3: (3, 2, 3)}[rank]
    size = 2 if rank == 3 else 3

    def odd(made):
        return lambda: made(4, 3, size, stride=3, padding=1, output_padding=1, dilation=2)

    return LayerRecord(
        name=name,
        variant=variant,
        make=lambda: cls(4, 6, size, **options),
        inputs=lambda draw: (draw.normal(2, 4, *space), *extra_inputs),
        oracle=of_torch(lambda: oracle(4, 6, size, **options)),
        traits=WINDOW,
        edges={
            "odd sizes": Case(
                make=odd(cls),
                inputs=lambda draw: (draw.normal(2, 4, *[n + 2 for n in space]),),
                oracle=of_torch(odd(oracle)),
            ),
            "groups == channels": Case(
                make=lambda: cls(4, 8, size, groups=4, stride=2),
                inputs=lambda draw: (draw.normal(2, 4, *space),),
                oracle=of_torch(lambda: oracle(4, 8, size, groups=4, stride=2)),
            ),
        },
        bad=[
            *bad_calls(cls, rank),
            Bad(call=lambda layer: cls(4, 6, 3, padding_mode="reflect"), match="'zeros'", error=ValueError),
            Bad(
                call=lambda layer: cls(4, 6, 3, stride=2)(weft.ones(1, 4, *(3,) * rank), output_size=(20,) * rank),
                match="output_size=.*from",
                error=weft.ShapeError,
            ),
        ]
        if bad
        else (),
        no_bad="" if bad else "see the record without a variant",
        checks={"adjoint": lambda: check_adjoint(rank, options)} if not extra_inputs else {},
    )


def check_adjoint(rank, options):
    """<conv(x), y> = <x, conv_transpose(y)> with one weight."""
    geometry = {key: options[key] for key in ("stride", "padding", "dilation", "groups") if key in options}
    weft.manual_seed(1)
    back = getattr(nn, f"ConvTranspose{rank}d")(4, 6, 2, bias=False, **geometry).double()
    conv = getattr(nn, f"Conv{rank}d")(6, 4, 2, bias=False, **geometry).double()
    conv.weight = nn.Parameter(back.weight.detach())
    y = weft.randn(1, 4, *(3,) * rank, dtype=weft.float64)
    image = back(y)
    x = weft.randn(*image.shape, dtype=weft.float64)
    np.testing.assert_allclose(float((conv(x) * y).sum()), float((x * image).sum()), rtol=1e-12)


class TorchSeparable(torch.nn.Module):
    """Two convolutions, with or without BatchNorm and ReLU after each."""

    def __init__(self, ins, outs, kernel, stride=1, padding=0, dilation=1, multiplier=1, norm_act=False):
        super().__init__()
        wide = ins * multiplier
        self.depthwise = torch.nn.Conv2d(
            ins, wide, kernel, stride, padding, dilation, groups=ins, bias=False
        )  # fmt: skip
        self.norm1 = torch.nn.BatchNorm2d(wide) if norm_act else None
        self.pointwise = torch.nn.Conv2d(wide, outs, 1)
        self.norm2 = torch.nn.BatchNorm2d(outs) if norm_act else None

    def forward(self, x):
        x = self.depthwise(x)
        x = x if self.norm1 is None else self.norm1(x).relu()
        x = self.pointwise(x)
        return x if self.norm2 is None else self.norm2(x).relu()


def separable(name, variant="", bad=False, norm_act=False, **options):
    cls = getattr(nn, name)
    more = {"norm_act": True} if norm_act else {}
    given = dict(options)
    given["multiplier"] = given.pop("depth_multiplier", 1)
    return LayerRecord(
        name=name,
        variant=variant,
        make=lambda: cls(3, 4, 3, **options, **more),
        inputs=lambda draw: (draw.normal(2, 3, 6, 5),),
        oracle=of_torch(lambda: TorchSeparable(3, 4, 3, **given, **more)),
        traits=frozenset({"batch", "window"}),
        edges={
            "odd sizes": Case(
                make=lambda: cls(3, 4, 3, 2, 1, 2, **more),
                inputs=lambda draw: (draw.normal(2, 3, 9, 7),),
                oracle=of_torch(lambda: TorchSeparable(3, 4, 3, 2, 1, 2, **more)),
            )
        },
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 5, 6, 6)), match="5 channels.*3 channels", error=weft.ShapeError),
            Bad(call=lambda layer: cls(3, 4, depth_multiplier=0), match="depth_multiplier=0", error=ValueError),
        ]
        if bad
        else (),
        no_bad="" if bad else "see the record without a variant",
    )


def sample(plane, y, x):
    """Bilinear, 0 outside."""
    if not (np.isfinite(y) and np.isfinite(x)):
        return 0.0
    y0, x0 = int(np.floor(y)), int(np.floor(x))
    total = 0.0
    for v, wy in ((y0, 1 - (y - y0)), (y0 + 1, y - y0)):
        for u, wx in ((x0, 1 - (x - x0)), (x0 + 1, x - x0)):
            if 0 <= v < plane.shape[0] and 0 <= u < plane.shape[1]:
                total += wy * wx * plane[v, u]
    return total


def deform(stride=1, padding=1, dilation=1, groups=1, deform_groups=1, modulated=True):
    """The sum of the specification, element by element."""

    def conv(x, weight, bias):
        made = torch.nn.functional.conv2d(
            *[torch.from_numpy(one) for one in (x, weight, bias)], stride, padding, dilation
        )
        return made.numpy()

    def oracle(state, x, offset=None, mask=None):
        weight, bias = state["weight"], state["bias"]
        (batch, ins, *_), (outs, inner, kh, kw) = x.shape, weight.shape
        offset = conv(x, state["conv_off.weight"], state["conv_off.bias"]) if offset is None else offset
        if mask is None and modulated:
            mask = 1 / (1 + np.exp(-conv(x, state["conv_mask.weight"], state["conv_mask.bias"])))
        height, width = offset.shape[2:]
        y = np.zeros((batch, outs, height, width)) + bias[:, None, None]
        for b, c, k, v, u in np.ndindex(batch, ins, kh * kw, height, width):
            tap = (c // (ins // deform_groups)) * kh * kw + k
            i, j = divmod(k, kw)
            at = (v * stride - padding + i * dilation + offset[b, 2 * tap, v, u],
                  u * stride - padding + j * dilation + offset[b, 2 * tap + 1, v, u])  # fmt: skip
            value = sample(x[b, c], *at) * (1.0 if mask is None else mask[b, tap, v, u])
            group, per = c // inner, outs // groups
            y[b, group * per : (group + 1) * per, v, u] += (
                weight[group * per : (group + 1) * per, c % inner, i, j] * value
            )
        return y

    return of_numpy(oracle)


def deformable(variant="", bad=False, given=False, **options):
    geometry = {key: options.get(key, default) for key, default in (("stride", 1), ("padding", 1), ("dilation", 1))}
    out = (5 + 2 * geometry["padding"] - geometry["dilation"] * 2 - 1) // geometry["stride"] + 1
    taps = 9 * options.get("deform_groups", 1)

    def inputs(draw):
        x = draw.normal(2, 4, 5, 5)
        if not given:
            return (x,)
        return (x, draw.normal(2, 2 * taps, out, out) * 2, draw.uniform(2, taps, out, out))

    return LayerRecord(
        name="DeformConv2d",
        variant=variant,
        make=lambda: nn.DeformConv2d(4, 4, 3, **options),
        inputs=inputs,
        oracle=deform(**options),
        traits=WINDOW,
        edges={
            "odd sizes": Case(
                make=lambda: nn.DeformConv2d(2, 3, 3, stride=2, padding=2, dilation=2),
                inputs=lambda draw: (draw.normal(2, 2, 7, 5),),
                oracle=deform(stride=2, padding=2, dilation=2),
            ),
            "groups == channels": Case(
                make=lambda: nn.DeformConv2d(4, 4, 3, groups=4, deform_groups=4),
                inputs=lambda draw: (draw.normal(1, 4, 4, 4),),
                oracle=deform(groups=4, deform_groups=4),
            ),
            "nan": "a place that is NaN reads 0, as every place outside (see deform_unfold), in torchvision as well",
        },
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 5, 6, 6)), match=r"\(2, 5, 6, 6\).*\[B, 4, H, W\]"),
            Bad(call=lambda layer: layer(weft.ones(4, 6, 6)), match=r"\(4, 6, 6\)", error=weft.ShapeError),
            Bad(call=lambda layer: nn.DeformConv2d(4, 4, deform_groups=3), match="deform_groups", error=ValueError),
            Bad(
                call=lambda layer: layer(weft.ones(1, 4, 5, 5), weft.ones(1, 18, 4, 5)),
                match=r"offset of shape \(1, 18, 4, 5\)",
                error=weft.ShapeError,
            ),
        ]
        if bad
        else (),
        no_bad="" if bad else "see the record without a variant",
        checks={"zero offsets": check_zero_offsets} if bad else {},
        rtol=1e-4,
        # Bilinear sampling bends where a place crosses an element; float64 differences stay on one side.
    )


def check_zero_offsets():
    """Fresh, it is Conv2d with a mask of 1/2; with offsets of whole numbers, Conv2d of the shifted image."""
    weft.manual_seed(2)
    layer = nn.DeformConv2d(4, 6, 3, stride=2, groups=2, modulated=False)
    plain = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
    plain.load_state_dict({"weight": layer.weight.detach(), "bias": layer.bias.detach()})
    x = weft.randn(2, 4, 7, 7)
    np.testing.assert_allclose(layer(x).detach(), plain(x).detach(), rtol=1e-5, atol=1e-6)
    halved = nn.DeformConv2d(4, 6, 3, stride=2, groups=2)
    halved.load_state_dict({**halved.state_dict(), "weight": layer.weight.detach() * 2, "bias": layer.bias.detach()})
    np.testing.assert_allclose(halved(x).detach(), plain(x).detach(), rtol=1e-5, atol=1e-6)


RECORDS = [
    convolution(1, bad=True),
    convolution(1, "same, circular", padding="same", kernel_size=4, padding_mode="circular"),
    convolution(1, "reflect", padding=2, padding_mode="reflect", bias=False),
    convolution(2, bad=True),
    convolution(2, "strides", stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
    convolution(2, "groups", groups=2, padding="valid"),
    convolution(2, "same", padding="same", kernel_size=(2, 3), dilation=2),
    convolution(2, "same, reflect", padding="same", kernel_size=(2, 3), padding_mode="reflect"),
    convolution(2, "replicate", padding=(1, 2), padding_mode="replicate", stride=2),
    convolution(2, "depthwise", groups=4, channels=(4, 4), padding=1),
    convolution(3, bad=True, channels=(4, 2)),
    convolution(3, "strides", channels=(4, 2), stride=(2, 1, 2), padding=1, groups=2),
    convolution(3, "circular", channels=(4, 2), padding=1, padding_mode="circular", kernel_size=2),
    transposed(1, bad=True),
    transposed(1, "strides", stride=2, padding=1, output_padding=1, dilation=2),
    transposed(2, bad=True),
    transposed(2, "strides", stride=(2, 3), padding=(1, 0), output_padding=(1, 2), bias=False),
    transposed(2, "groups", groups=2, stride=2),
    transposed(2, "output_size", stride=2, padding=1, extra_inputs=([8, 6],)),
    transposed(3, bad=True),
    transposed(3, "strides", stride=2, padding=1, output_padding=1),
    LayerRecord(
        name="DilatedConv2d",
        make=lambda: nn.DilatedConv2d(3, 4, 3, padding=1),
        inputs=lambda draw: (draw.normal(2, 3, 6, 7),),
        oracle=of_torch(lambda: torch.nn.Conv2d(3, 4, 3, padding=1, dilation=2)),
        traits=WINDOW,
        edges={
            "odd sizes": Case(
                make=lambda: nn.DilatedConv2d(3, 4, 3, 2, 1, 3),
                inputs=lambda draw: (draw.normal(2, 3, 9, 7),),
                oracle=of_torch(lambda: torch.nn.Conv2d(3, 4, 3, 2, 1, 3)),
            ),
            "groups == channels": Case(
                make=lambda: nn.DilatedConv2d(3, 6, 2, groups=3),
                oracle=of_torch(lambda: torch.nn.Conv2d(3, 6, 2, dilation=2, groups=3)),
            ),
        },
        bad=bad_calls(nn.DilatedConv2d, 2),
        checks={
            "activation": check_activation,
            "one sample": check_one_sample,
            "start": check_starts,
            "empty": check_empty_batch,
        },
    ),
    separable("DepthwiseSeparableConv2d", bad=True, padding=1),
    separable("DepthwiseSeparableConv2d", "norm_act", norm_act=True, stride=2, depth_multiplier=2),
    separable("SeparableConv2d", bad=True),
    separable("SeparableConv2d", "strides", stride=2, padding=1, depth_multiplier=2),
    deformable(bad=True),
    deformable("groups", groups=2, deform_groups=2, stride=2),
    deformable("not modulated", modulated=False, padding=0),
    deformable("given offsets", given=True),
]
