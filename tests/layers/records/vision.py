"""Records of layers that move pixels."""

import numpy as np
import torch
import torch.nn.functional as TF

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy
from tests.layers.record import Bad, Case, LayerRecord
from weft.nn.spatial.vision import warp


def _transform(size=None, mode="bilinear", padding_mode="zeros", align_corners=False):
    def transformed(state, x):
        x = torch.tensor(x)
        given = {key: torch.tensor(value) for key, value in state.items()}
        hidden = TF.linear(x.mean(1).flatten(1), given["localization.fc1.weight"], given["localization.fc1.bias"])
        theta = TF.linear(hidden.tanh(), given["localization.fc2.weight"], given["localization.fc2.bias"])
        shape = (*x.shape[:2], *(size or x.shape[2:]))
        grid = TF.affine_grid(theta.reshape(-1, 2, 3), shape, align_corners=align_corners)
        return TF.grid_sample(x, grid, mode, padding_mode, align_corners=align_corners)

    return of_numpy(transformed)


def _identity_at_first():
    layer = nn.SpatialTransformer(input_size=(5, 4))
    x = weft.rand(2, 3, 5, 4)
    np.testing.assert_allclose(layer(x).detach().numpy(), x.numpy(), atol=1e-6)
    assert [tuple(one.shape) for one in layer.parameters()] == [(32, 20), (32,), (6, 32), (6,)]


def _made_by_the_first_input():
    x = weft.rand(2, 1, 3, 6)
    for call in (lambda layer: layer, lambda layer: weft.compile(lambda x: layer(x))):
        layer = nn.SpatialTransformer()
        np.testing.assert_allclose(call(layer)(x).detach().numpy(), x.numpy(), atol=1e-6)
        assert layer.localization.fc1.weight.shape == (32, 18)
    made = nn.SpatialTransformer(input_size=(3, 6))
    other = nn.SpatialTransformer()
    other.load_state_dict(made.state_dict())
    np.testing.assert_array_equal(other(x).detach().numpy(), made(x).detach().numpy())


def _own_localization():
    class Fixed(nn.Module):
        def forward(self, x):
            return weft.tensor([[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]).expand(len(x), 2, 3)

    x = weft.rand(2, 3, 4, 4)
    y = nn.SpatialTransformer(Fixed(), align_corners=True)(x)  # x and y change places
    np.testing.assert_allclose(y.numpy(), x.numpy().transpose(0, 1, 3, 2), atol=1e-6)


def _warp(image, flow):
    """By torch's grid_sample."""
    height, width = image.shape[2:]
    y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    x = 2 * (x + flow[:, 0]) / max(width - 1, 1) - 1
    y = 2 * (y + flow[:, 1]) / max(height - 1, 1) - 1
    return TF.grid_sample(image, torch.stack([x, y], -1), padding_mode="border", align_corners=True)


def _spynet(levels, channels):
    def flow_of(state, first, second=None):
        given = {key: torch.tensor(value) for key, value in state.items()}
        if second is None:
            first, second = first[:, :channels], first[:, channels:]
        frames = [(torch.tensor(first), torch.tensor(second))]
        for _ in range(levels - 1):
            frames.append(tuple(TF.avg_pool2d(frame, 2) for frame in frames[-1]))
        flow = torch.zeros(len(first), 2, *frames[-1][0].shape[2:], dtype=torch.float64)
        for level, (one, other) in enumerate(reversed(frames)):
            if level:
                flow = 2 * TF.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=False)
            x = torch.cat([one, _warp(other, flow), flow], 1)
            for number in range(sum(key.startswith(f"blocks.{level}.") for key in state) // 2):
                key = f"blocks.{level}.{number}"
                x = TF.conv2d(x.relu() if number else x, given[f"{key}.weight"], given[f"{key}.bias"], padding=3)
            flow = flow + x
        return flow

    return of_numpy(flow_of)


def _published_widths():
    net = nn.SpyNet(levels=3, in_channels=2)
    widths = [[tuple(conv.weight.shape[:2]) for conv in block] for block in net.blocks]
    assert widths == [[(32, 6), (64, 32), (32, 64), (16, 32), (2, 16)]] * 3
    frames = np.random.default_rng(0).normal(size=(2, 2, 2, 8, 8)).astype(np.float32)
    state = {key: value.numpy().astype(np.float64) for key, value in net.state_dict().items()}
    expected = _spynet(3, 2)(state, tuple(frames.astype(np.float64)), True)
    ours = net(*[weft.tensor(frame) for frame in frames])
    np.testing.assert_allclose(ours.detach().numpy(), expected.numpy(), rtol=1e-4, atol=1e-5)


def _zero_weights():
    net = nn.SpyNet(levels=2, in_channels=1, hidden=(3,))
    with weft.no_grad():
        for param in net.parameters():
            param.zero_()
    assert net(weft.rand(1, 1, 4, 4), weft.rand(1, 1, 4, 4)).abs().max().item() == 0.0


def _whole_shifts_are_exact():
    image = np.random.default_rng(0).normal(size=(2, 3, 37, 53)).astype(np.float32)
    for dx, dy in ((3, -2), (-7, 5), (0, 0)):
        flow = weft.tensor([float(dx), float(dy)]).reshape(1, 2, 1, 1).expand(2, 2, 37, 53)
        rows, columns = np.clip(np.arange(37) + dy, 0, 36), np.clip(np.arange(53) + dx, 0, 52)
        np.testing.assert_array_equal(warp(weft.tensor(image), flow).numpy(), image[:, :, rows][..., columns])


def _warp_is_grid_sample():
    random = np.random.default_rng(0)
    for shape in ((2, 3, 5, 6), (1, 2, 1, 4)):
        image, flow = random.normal(size=shape), random.normal(size=(shape[0], 2, *shape[2:])) * 2
        if shape[2] == 1:
            flow[:, 1] = 0.0
        given = [weft.tensor(one, requires_grad=True) for one in (image, flow)]
        theirs = [torch.tensor(one, requires_grad=True) for one in (image, flow)]
        ours, expected = warp(*given), _warp(*theirs)
        np.testing.assert_allclose(ours.detach().numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-12)
        ours.sin().sum().backward()
        expected.sin().sum().backward()
        np.testing.assert_allclose(given[0].grad.numpy(), theirs[0].grad.numpy(), rtol=1e-9, atol=1e-12)
        if shape[2] > 1:
            np.testing.assert_allclose(given[1].grad.numpy(), theirs[1].grad.numpy(), rtol=1e-9, atol=1e-12)


RECORDS = [
    LayerRecord(
        name="SpatialTransformer",
        make=lambda: nn.SpatialTransformer(input_size=(4, 5)),
        inputs=lambda draw: (draw.normal(2, 3, 4, 5),),
        oracle=_transform(),
        edges={
            "nan": "the affine map is NaN, and places that are no number are outside, in torch by its rounding only"
        },
        bad=[
            Bad(
                call=lambda layer: layer(weft.ones(2, 3, 4, 4)),
                match=r"fc1.*\[2, 16\].*\[\*, 20\]",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: layer(weft.ones(4, 5)), match=r"\[B, C, H, W\]", error=weft.ShapeError),
            Bad(
                call=lambda layer: nn.SpatialTransformer(nn.Linear(5, 3))(weft.ones(2, 3, 4, 5)),
                match=r"\(2, 3, 4, 3\) from the localization.*\[2, 2, 3\]",
                error=weft.ShapeError,
            ),
        ],
        checks={
            "identity at first": _identity_at_first,
            "first input": _made_by_the_first_input,
            "own localization": _own_localization,
        },
    ),
    LayerRecord(
        name="SpatialTransformer",
        variant="other size, border",
        make=lambda: nn.SpatialTransformer(None, (3, 7), padding_mode="border", align_corners=True, input_size=(4, 5)),
        inputs=lambda draw: (draw.normal(2, 1, 4, 5),),
        oracle=_transform((3, 7), padding_mode="border", align_corners=True),
        edges={"nan": "the affine map is NaN: as above"},
        no_bad="as with the size of the input",
    ),
    LayerRecord(
        name="SpyNet",
        make=lambda: nn.SpyNet(levels=2, in_channels=1, hidden=(3, 4)),
        inputs=lambda draw: (draw.normal(1, 1, 4, 4), draw.normal(1, 1, 4, 4)),
        oracle=_spynet(2, 1),
        traits=frozenset({"batch", "window"}),
        edges={
            "odd sizes": Case(inputs=lambda draw: (draw.normal(2, 1, 6, 2), draw.normal(2, 1, 6, 2))),
            "nan": "a flow that is NaN samples outside, in torch by its rounding only",
        },
        learning_rate=0.005,
        bad=[
            Bad(call=lambda layer: layer(weft.ones(1, 3, 4, 4)), match=r"\(1, 3, 4, 4\).*2, H", error=weft.ShapeError),
            Bad(call=lambda layer: layer(weft.ones(1, 2, 5, 4)), match="multiples of 2", error=weft.ShapeError),
            Bad(call=lambda layer: nn.SpyNet(0), match="levels=0", error=weft.RangeError),
        ],
        checks={
            "published widths": _published_widths,
            "zero weights": _zero_weights,
            "whole shifts": _whole_shifts_are_exact,
            "warp": _warp_is_grid_sample,
        },
    ),
    LayerRecord(
        name="SpyNet",
        variant="one input",
        make=lambda: nn.SpyNet(levels=1, in_channels=2, hidden=(4,)),
        inputs=lambda draw: (draw.normal(2, 4, 3, 5),),
        oracle=_spynet(1, 2),
        traits=frozenset({"batch", "window"}),
        edges={"odd sizes": "the record has them"},
        learning_rate=0.005,
        no_bad="as with two frames",
    ),
]
