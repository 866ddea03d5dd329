"""Records of the residual blocks. The oracles are torchvision's and basicsr's blocks, written with torch's modules."""

import numpy as np
import torch
import torch.nn.functional as TF

import weft
import weft.nn as nn
from tests.layers.oracles import of_torch
from tests.layers.record import Bad, LayerRecord


def conv(size, ins, outs, stride=1, **options):
    return torch.nn.Conv2d(ins, outs, size, stride, size // 2, bias=False, **options)


def shortcut(ins, outs, stride):
    if stride == 1 and ins == outs:
        return None
    return torch.nn.Sequential(conv(1, ins, outs, stride), torch.nn.BatchNorm2d(outs))


class TorchBasicBlock(torch.nn.Module):
    def __init__(self, ins, outs, stride=1):
        super().__init__()
        self.conv1, self.bn1 = conv(3, ins, outs, stride), torch.nn.BatchNorm2d(outs)
        self.conv2, self.bn2 = conv(3, outs, outs), torch.nn.BatchNorm2d(outs)
        self.downsample = shortcut(ins, outs, stride)

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        return (self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())) + identity).relu()


class TorchBottleneck(torch.nn.Module):
    def __init__(self, ins, planes, stride=1):
        super().__init__()
        self.conv1, self.bn1 = conv(1, ins, planes), torch.nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = conv(3, planes, planes, stride), torch.nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = conv(1, planes, 4 * planes), torch.nn.BatchNorm2d(4 * planes)
        self.downsample = shortcut(ins, 4 * planes, stride)

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()
        return (self.bn3(self.conv3(y)) + identity).relu()


class TorchDenseLayer(torch.nn.Module):
    def __init__(self, ins, growth, bn_size=4):
        super().__init__()
        self.norm1, self.conv1 = torch.nn.BatchNorm2d(ins), conv(1, ins, bn_size * growth)
        self.norm2, self.conv2 = torch.nn.BatchNorm2d(bn_size * growth), conv(3, bn_size * growth, growth)

    def forward(self, x):
        return self.conv2(self.norm2(self.conv1(self.norm1(x).relu())).relu())


class TorchDenseBlock(torch.nn.Module):
    def __init__(self, count, ins, growth):
        super().__init__()
        for k in range(count):
            self.add_module(f"denselayer{k + 1}", TorchDenseLayer(ins + k * growth, growth))

    def forward(self, x):
        features = [x]
        for one in self.children():
            features.append(one(torch.cat(features, 1)))
        return torch.cat(features, 1)


class TorchTransition(torch.nn.Module):
    def __init__(self, ins, outs):
        super().__init__()
        self.norm, self.conv = torch.nn.BatchNorm2d(ins), conv(1, ins, outs)

    def forward(self, x):
        return TF.avg_pool2d(self.conv(self.norm(x).relu()), 2)


class TorchHighway(torch.nn.Module):
    def __init__(self, size, activation):
        super().__init__()
        self.transform, self.gate = torch.nn.Linear(size, size), torch.nn.Linear(size, size)
        self.function = activation

    def forward(self, x):
        t = self.gate(x).sigmoid()
        return t * self.function(self.transform(x)) + (1 - t) * x


class TorchDense5(torch.nn.Module):
    def __init__(self, nf, gc):
        super().__init__()
        for k in range(5):
            self.add_module(f"conv{k + 1}", torch.nn.Conv2d(nf + k * gc, gc if k < 4 else nf, 3, padding=1))

    def forward(self, x):
        x1 = TF.leaky_relu(self.conv1(x), 0.2)
        x2 = TF.leaky_relu(self.conv2(torch.cat((x, x1), 1)), 0.2)
        x3 = TF.leaky_relu(self.conv3(torch.cat((x, x1, x2), 1)), 0.2)
        x4 = TF.leaky_relu(self.conv4(torch.cat((x, x1, x2, x3), 1)), 0.2)
        return x + 0.2 * self.conv5(torch.cat((x, x1, x2, x3, x4), 1))


class TorchRRDB(torch.nn.Module):
    def __init__(self, nf, gc):
        super().__init__()
        self.rdb1, self.rdb2, self.rdb3 = TorchDense5(nf, gc), TorchDense5(nf, gc), TorchDense5(nf, gc)

    def forward(self, x):
        return x + 0.2 * self.rdb3(self.rdb2(self.rdb1(x)))


class TorchResidual(torch.nn.Module):
    def __init__(self, fn, around=None):
        super().__init__()
        self.fn, self.shortcut = fn, around

    def forward(self, x):
        y = (x if self.shortcut is None else self.shortcut(x)) + self.fn(x)
        return y if self.shortcut is None else y.tanh()


class TorchRepVGG(torch.nn.Module):
    def __init__(self, ins, outs, stride=1, groups=1):
        super().__init__()
        self.conv3, self.bn3 = conv(3, ins, outs, stride, groups=groups), torch.nn.BatchNorm2d(outs)
        self.conv1, self.bn1 = conv(1, ins, outs, stride, groups=groups), torch.nn.BatchNorm2d(outs)
        self.bn = torch.nn.BatchNorm2d(outs) if stride == 1 and ins == outs else None

    def forward(self, x):
        y = self.bn3(self.conv3(x)) + self.bn1(self.conv1(x))
        return (y if self.bn is None else y + self.bn(x)).relu()


def record(name, arguments, oracle, shape, variant="", bad=(), options=None, **more):
    return LayerRecord(
        name=name,
        variant=variant,
        make=lambda: getattr(nn, name)(*arguments, **(options or {})),
        inputs=lambda draw: (draw.normal(*shape),),
        oracle=of_torch(oracle),
        bad=bad,
        no_bad="" if bad else "see the record without a variant",
        gradient_rtol=1e-5,
        **more,
    )


def wrong_channels(given, expected):
    return Bad(
        call=lambda layer: layer(weft.ones(2, given, 4, 4)),
        match=rf"(conv1|norm1|norm|conv3|rdb1).*{given} channels.*{expected} channels",
        error=weft.ShapeError,
    )


def check_zero_start():
    """With zero_init_residual a block starts as ReLU of its shortcut."""
    for block in (nn.BasicBlock(4, 4, zero_init_residual=True), nn.Bottleneck(4, 1, zero_init_residual=True)):
        x = weft.randn(2, 4, 5, 5)
        np.testing.assert_array_equal(block(x).detach(), x.relu())


def check_dropout():
    """drop_rate drops new channels in training, and none in evaluation."""
    weft.manual_seed(1)
    layer, plain = nn.DenseNetLayer(3, 4, 2, drop_rate=0.5), nn.DenseNetLayer(3, 4, 2)
    plain.load_state_dict(layer.state_dict())
    x = weft.randn(2, 3, 8, 8)
    share = float((layer(x) == 0).float().mean())
    assert 0.4 < share < 0.6
    plain.load_state_dict(layer.state_dict())
    np.testing.assert_array_equal(layer.eval()(x).detach(), plain.eval()(x).detach())


def check_gate_bias():
    assert float(nn.Highway(4, gate_bias=-3.0).gate.bias[0]) == -3.0
    x = weft.randn(2, 4)
    np.testing.assert_allclose(nn.Highway(4, gate_bias=-60.0)(x).detach(), x, atol=1e-6)


def check_fuse():
    """One convolution has the results of all branches in evaluation, and a compiled function sees the change."""
    for arguments in ({}, {"stride": 2}, {"groups": 2}, {"out_channels": 6}, {"activation": None}):
        weft.manual_seed(4)
        block = nn.RepVGGBlock(4, **{"out_channels": 4, **arguments})
        for _ in range(3):
            block(weft.randn(3, 4, 5, 5) * 2 + 1)  # statistics that are not 0 and 1
        with weft.no_grad():
            for param in block.parameters():
                param.add_(weft.randn(*param.shape) * 0.1)
        block.eval()
        x = weft.randn(2, 4, 6, 5)
        compiled = weft.compile(lambda x, block=block: block(x))
        expected = block(x).detach().numpy()
        np.testing.assert_allclose(compiled(x).detach(), expected, rtol=1e-5, atol=1e-6)
        assert block.fuse() is block and block.fuse() is block
        assert [name for name, _ in block.named_parameters()] == ["conv.weight", "conv.bias"]
        np.testing.assert_allclose(block(x).detach(), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(compiled(x).detach(), expected, rtol=1e-4, atol=1e-5)


RECORDS = [
    record(
        "BasicBlock", (3, 3), lambda: TorchBasicBlock(3, 3), (2, 3, 4, 5),
        bad=[wrong_channels(5, 3)], checks={"zero start": check_zero_start},
    ),
    record("BasicBlock", (3, 4, 2), lambda: TorchBasicBlock(3, 4, 2), (2, 3, 5, 4), "stride"),
    record("Bottleneck", (8, 2), lambda: TorchBottleneck(8, 2), (2, 8, 4, 4), bad=[wrong_channels(5, 8)]),
    record("Bottleneck", (3, 2, 2), lambda: TorchBottleneck(3, 2, 2), (2, 3, 5, 4), "stride"),
    record(
        "DenseNetLayer", (3, 2), lambda: TorchDenseLayer(3, 2), (2, 3, 4, 4),
        bad=[wrong_channels(5, 3)], checks={"dropout": check_dropout},
    ),
    record("DenseNetLayer", (3, 2, 2), lambda: TorchDenseLayer(3, 2, 2), (2, 3, 4, 4), "bn_size"),
    record("DenseBlock", (2, 3, 2), lambda: TorchDenseBlock(2, 3, 2), (2, 3, 4, 4), bad=[wrong_channels(5, 3)]),
    record(
        "Transition", (5,), lambda: TorchTransition(5, 2), (2, 5, 5, 4),
        bad=[
            wrong_channels(4, 5),
            Bad(call=lambda layer: nn.Transition(3, 0.2), match="compression=0.2", error=ValueError),
        ],
    ),
    record("Transition", (4, 0.75), lambda: TorchTransition(4, 3), (2, 4, 4, 4), "compression"),
    record(
        "Highway", (4,), lambda: TorchHighway(4, torch.relu), (3, 4), checks={"gate bias": check_gate_bias},
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 5)), match="5", error=weft.ShapeError),
            Bad(call=lambda layer: nn.Highway(4, "rellu"), match="rellu"),
        ],
    ),
    record("Highway", (4, "tanh"), lambda: TorchHighway(4, torch.tanh), (2, 3, 4), "tanh"),
    record("ResidualDenseBlock", (3, 2), lambda: TorchDense5(3, 2), (1, 3, 4, 4), bad=[wrong_channels(5, 3)]),
    record("RRDB", (3, 2), lambda: TorchRRDB(3, 2), (1, 3, 3, 4), bad=[wrong_channels(5, 3)]),
    LayerRecord(
        name="Residual",
        make=lambda: nn.Residual(nn.Linear(3, 3)),
        inputs=lambda draw: (draw.normal(4, 3),),
        oracle=of_torch(lambda: TorchResidual(torch.nn.Linear(3, 3))),
        bad=[
            Bad(
                call=lambda layer: nn.Residual(nn.Linear(3, 2))(weft.ones(4, 3)),
                match=r"\(4, 2\) and shortcut\(x\) of shape \(4, 3\)",
                error=weft.ShapeError,
            )
        ],
    ),
    LayerRecord(
        name="Residual",
        variant="shortcut",
        make=lambda: nn.Residual(nn.Linear(3, 2), nn.Linear(3, 2, bias=False), "tanh"),
        inputs=lambda draw: (draw.normal(4, 3),),
        oracle=of_torch(lambda: TorchResidual(torch.nn.Linear(3, 2), torch.nn.Linear(3, 2, bias=False))),
        no_bad="see the record without a variant",
    ),
    record(
        "RepVGGBlock", (4, 4), lambda: TorchRepVGG(4, 4), (2, 4, 4, 3),
        bad=[
            wrong_channels(5, 4),
            Bad(call=lambda layer: layer.fuse(), match="in training.*eval", error=weft.GraphError),
        ],
        checks={"fuse": check_fuse},
    ),
    record("RepVGGBlock", (4, 6, 2, 2), lambda: TorchRepVGG(4, 6, 2, 2), (2, 4, 4, 3), "stride, groups"),
]  # fmt: skip
