"""Records of the normalizations."""

import copy
import inspect

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_torch
from tests.layers.record import Bad, Case, LayerRecord

SHAPES = {1: (4, 3, 5), 2: (3, 3, 4, 2), 3: (2, 3, 2, 3, 2)}
ONE = "in training one element per channel has no variance; PyTorch raises, too"


def buffers_after_three_steps(ours, theirs, shape):
    """Statistics after three batches in training, then results in evaluation, are torch's."""

    def check():
        layer, oracle = ours().double(), theirs().double()
        oracle.load_state_dict(
            {key: torch.from_numpy(value.numpy().copy()) for key, value in layer.state_dict().items()}
        )
        random = np.random.default_rng(4)
        step = weft.compile(lambda x: layer(x))
        for iteration in range(3):
            x = random.normal(size=shape) * (iteration + 1) + iteration
            expected = oracle(torch.from_numpy(x)).detach().numpy()
            given = (step if iteration < 2 else layer)(weft.tensor(x))
            np.testing.assert_allclose(given.detach(), expected, rtol=1e-9, atol=1e-9)
        for key, value in oracle.state_dict().items():
            found = layer.state_dict()[key]
            assert str(found.dtype).split(".")[-1] == str(value.dtype).split(".")[-1], key
            np.testing.assert_allclose(found, value.numpy(), rtol=1e-9, err_msg=key)
        x = random.normal(size=shape)
        expected = oracle.eval()(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(layer.eval()(weft.tensor(x)).detach(), expected, rtol=1e-9, atol=1e-9)

    return check


def batch_norm(rank, variant="", shape=None, bad=False, name=None, **options):
    cls = getattr(nn, name or f"BatchNorm{rank}d")
    oracle = getattr(torch.nn, f"BatchNorm{rank}d")
    shape = shape or SHAPES[rank]
    return LayerRecord(
        name=cls.__name__,
        variant=variant,
        make=lambda: cls(3, **options),
        inputs=lambda draw: (draw.normal(*shape) * 2 + 1,),
        oracle=of_torch(lambda: oracle(3, **options)),
        edges={"batch of one": ONE} if len(shape) == 2 else {},
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 5, *shape[2:])), match="5 channels.*3 channels"),
            Bad(call=lambda layer: layer(weft.ones(3)), match=r"\(3,\).* axes", error=weft.ShapeError),
            Bad(call=lambda layer: layer(weft.ones(1, 3, *(1,) * (len(shape) - 2))), match="more than one element"),
            Bad(call=lambda layer: cls(-1), match="num_features=-1", error=ValueError),
        ]
        if bad
        else (),
        no_bad="" if bad else "see the record without a variant",
        checks={
            "buffers after three steps": buffers_after_three_steps(
                lambda: cls(3, **options), lambda: oracle(3, **options), shape
            )
        },
        gradient_rtol=1e-5,
    )


def instance_norm(rank, variant="", bad=False, shape=None, **options):
    cls, oracle = getattr(nn, f"InstanceNorm{rank}d"), getattr(torch.nn, f"InstanceNorm{rank}d")
    shape = shape or SHAPES[rank]
    return LayerRecord(
        name=cls.__name__,
        variant=variant,
        make=lambda: cls(3, **options),
        inputs=lambda draw: (draw.normal(*shape) * 2 + 1,),
        oracle=of_torch(lambda: oracle(3, **options)),
        traits=frozenset({"batch"}) if len(shape) == rank + 2 else frozenset(),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(3)), match=r"\(3,\).* axes", error=weft.ShapeError),
            Bad(call=lambda layer: cls(3, affine=True)(weft.ones(2, 5, *shape[2:])), match="5 channels.*3 channels"),
            Bad(call=lambda layer: layer(weft.ones(2, 5, *shape[2:])), match="num_features", error=UserWarning),
            Bad(call=lambda layer: layer(weft.ones(2, 3, *(1,) * rank)), match="more than one element"),
        ]
        if bad
        else (),
        no_bad="" if bad else "see the record without a variant",
        checks={
            "buffers after three steps": buffers_after_three_steps(
                lambda: cls(3, **options), lambda: oracle(3, **options), shape
            )
        },
        gradient_rtol=1e-5,
    )


def simple(name, arguments, shape, variant="", bad=(), traits=frozenset({"batch"}), **more):
    return LayerRecord(
        name=name,
        variant=variant,
        make=lambda: getattr(nn, name)(*arguments[0], **arguments[1]),
        inputs=lambda draw: (draw.normal(*shape) * 2 + 1,),
        oracle=of_torch(lambda: getattr(torch.nn, name)(*arguments[0], **arguments[1])),
        traits=traits,
        bad=bad,
        no_bad="" if bad else "see the record without a variant",
        **more,
    )


def with_arguments(*args, **kwargs):
    return args, kwargs


def check_sync_conversion():
    """Every BatchNorm becomes a SyncBatchNorm that shares parameters and buffers; results stay."""
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=0.3), nn.Sequential(nn.BatchNorm1d(4, affine=False))
    )
    x = weft.rand(5, 3)
    model(x)
    other = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
    assert type(other[1]) is nn.SyncBatchNorm and type(other[2][0]) is nn.SyncBatchNorm
    assert list(other.state_dict()) == list(model.state_dict())
    assert (other[1].momentum, other[2][0].affine) == (0.3, False)
    np.testing.assert_array_equal(other(x).detach(), model(x).detach())
    assert nn.SyncBatchNorm.convert_sync_batchnorm(model[1]).weight is model[1].weight


class TorchSpectral(torch.nn.Module):
    def __init__(self, module, **options):
        super().__init__()
        self.module = torch.nn.utils.parametrizations.spectral_norm(module, **options)

    def forward(self, x):
        return self.module(x)


def spectral(variant, ours, theirs, shape, bad=False, **options):
    return LayerRecord(
        name="SpectralNorm",
        variant=variant,
        make=lambda: nn.SpectralNorm(ours(), **options),
        inputs=lambda draw: (draw.normal(*shape),),
        oracle=of_torch(lambda: TorchSpectral(theirs(), **options)),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 7)), match="7"),
            Bad(call=lambda layer: nn.SpectralNorm(nn.Linear(2, 2), name="mass"), match="'mass'.*Linear"),
            Bad(call=lambda layer: nn.SpectralNorm(nn.Linear(2, 2), n_power_iterations=0), match="iterations=0"),
            Bad(call=lambda layer: nn.SpectralNorm(nn.Linear(2, 2), dim=2), match="dim=2"),
        ]
        if bad
        else (),
        no_bad="" if bad else "see the record without a variant",
        training=False,  # in training u and v depend on W, and gradients treat them as constants
        checks={
            "training": lambda: check_spectral_training(ours, theirs, shape, options),
            **({"largest singular value": check_singular_value} if bad else {}),
        },
        rtol=1e-4,
    )


def check_spectral_training(ours, theirs, shape, options):
    """Three compiled steps of training leave the weights, u and v of torch."""
    layer, oracle = nn.SpectralNorm(ours(), **options).double(), TorchSpectral(theirs(), **options).double()
    oracle.load_state_dict({key: torch.from_numpy(value.numpy().copy()) for key, value in layer.state_dict().items()})
    optimizer = weft.optim.SGD(layer.parameters(), lr=0.1)
    other = torch.optim.SGD(oracle.parameters(), lr=0.1)
    random = np.random.default_rng(6)

    def step(x):
        loss = (layer(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    compiled = weft.compile(step)
    for _ in range(3):
        x = random.normal(size=shape)
        expected = (oracle(torch.from_numpy(x)) ** 2).mean()
        expected.backward()
        other.step()
        other.zero_grad()
        np.testing.assert_allclose(float(compiled(weft.tensor(x))), expected.item(), rtol=1e-10)
    for key, value in oracle.state_dict().items():
        np.testing.assert_allclose(layer.state_dict()[key], value.numpy(), rtol=1e-9, atol=1e-12, err_msg=key)
    assert compiled.retraces == []


def check_singular_value():
    """sigma is the largest singular value, u and v its vectors; the gradient treats them as constants."""
    weft.manual_seed(5)
    layer = nn.SpectralNorm(nn.Conv2d(3, 6, 3), n_power_iterations=100)
    weight = layer.module.weight.detach().numpy().reshape(6, -1)
    assert abs(np.linalg.svd(weight, compute_uv=False)[0] - 1) < 1e-5
    layer.eval()
    norm, original = layer.module.parametrizations.weight[0], layer.module.parametrizations.weight.original
    given = weft.randn(6, 3, 3, 3)
    (layer.module.weight * given).sum().backward()
    w, g = original.detach().numpy().reshape(6, -1), given.numpy().reshape(6, -1)
    u, v = norm._u.numpy(), norm._v.numpy()
    sigma = u @ w @ v
    expected = (g - (g * w / sigma).sum() * np.outer(u, v)) / sigma
    np.testing.assert_allclose(original.grad.numpy().reshape(6, -1), expected, rtol=1e-4, atol=1e-5)


# GPU machines bring a torch of their own, which may be older than 2.13.
HAS_BIAS = "bias" in inspect.signature(torch.nn.GroupNorm).parameters

RECORDS = [
    batch_norm(1, bad=True, shape=(4, 3)),
    batch_norm(1, "sequences", momentum=None),
    batch_norm(2, bad=True, eps=0.1),
    batch_norm(2, "no running statistics", track_running_stats=False),
    batch_norm(2, "not affine", affine=False, momentum=0.5),
    *([batch_norm(2, "no bias", bias=False)] if HAS_BIAS else []),
    batch_norm(3, bad=True),
    batch_norm(2, name="SyncBatchNorm", bad=True),
    LayerRecord(
        name="SyncBatchNorm",
        variant="conversion",
        make=lambda: nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3)),
        inputs=lambda draw: (draw.normal(4, 3),),
        oracle=of_torch(lambda: torch.nn.BatchNorm1d(3)),
        edges={"batch of one": ONE},
        no_bad="see the record without a variant",
        checks={"conversion": check_sync_conversion},
        gradient_rtol=1e-5,
    ),
    instance_norm(1, bad=True),
    instance_norm(1, "one sample", shape=(3, 5)),
    instance_norm(2, bad=True),
    instance_norm(2, "affine, running", affine=True, track_running_stats=True),
    instance_norm(3, bad=True),
    simple(
        "LayerNorm",
        with_arguments(5),
        (3, 4, 5),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 4)), match=r"\(2, 4\).*\(5,\)", error=weft.ShapeError),
            Bad(call=lambda layer: nn.LayerNorm(()), match=r"normalized_shape=\(\)", error=ValueError),
        ],
        gradient_rtol=1e-5,
    ),
    simple("LayerNorm", with_arguments((4, 2), bias=False), (3, 4, 2), "no bias, two axes", gradient_rtol=1e-5),
    simple("LayerNorm", with_arguments(5, elementwise_affine=False, eps=0.1), (3, 5), "not affine", gradient_rtol=1e-5),
    simple(
        "RMSNorm",
        with_arguments(5),
        (3, 4, 5),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 4)), match=r"\(2, 4\).*\(5,\)", error=weft.ShapeError),
            Bad(call=lambda layer: nn.RMSNorm(0), match="normalized_shape=0", error=ValueError),
        ],
        gradient_rtol=1e-5,
    ),
    simple("RMSNorm", with_arguments((4, 2), eps=1e-2), (3, 4, 2), "eps, two axes", gradient_rtol=1e-5),
    simple("RMSNorm", with_arguments(5, elementwise_affine=False), (3, 5), "not affine", gradient_rtol=1e-5),
    simple(
        "GroupNorm",
        with_arguments(2, 6),
        (3, 6, 4),
        traits=frozenset({"batch", "groups"}),
        edges={
            "groups == channels": Case(
                make=lambda: nn.GroupNorm(6, 6), oracle=of_torch(lambda: torch.nn.GroupNorm(6, 6))
            )
        },
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 4, 3)), match=r"\(2, 4, 3\).*\[B, 6", error=weft.ShapeError),
            Bad(call=lambda layer: nn.GroupNorm(4, 6), match="num_groups=4 and num_channels=6", error=ValueError),
        ],
        gradient_rtol=1e-5,
    ),
    simple("GroupNorm", with_arguments(3, 6, affine=False), (2, 6, 2, 3), "not affine", gradient_rtol=1e-5),
    *(
        [simple("GroupNorm", with_arguments(2, 6, bias=False), (2, 6), "no bias", gradient_rtol=1e-5)]
        if HAS_BIAS
        else []
    ),
    simple(
        "LocalResponseNorm",
        with_arguments(3, alpha=0.3),
        (2, 6, 4),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 4)), match=r"\(2, 4\)", error=weft.ShapeError)],
    ),
    simple("LocalResponseNorm", with_arguments(4, 0.5, 0.6, 2.0), (2, 3, 4, 2), "even size"),
    simple(
        "CrossMapLRN2d",
        with_arguments(3, alpha=0.3),
        (2, 6, 3, 2),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 4, 3)), match=r"\(2, 4, 3\)", error=weft.ShapeError),
            Bad(call=lambda layer: nn.CrossMapLRN2d(0), match="size=0", error=ValueError),
        ],
    ),
    simple("CrossMapLRN2d", with_arguments(4, 0.5, 0.6, 2.0), (2, 5, 3, 2), "even size"),
    simple("CrossMapLRN2d", with_arguments(7, 0.5), (2, 3, 3, 2), "wider than the channels"),
    spectral("", lambda: nn.Linear(4, 3), lambda: torch.nn.Linear(4, 3), (5, 4), bad=True),
    spectral(
        "convolution", lambda: nn.Conv2d(2, 3, 2), lambda: torch.nn.Conv2d(2, 3, 2), (2, 2, 4, 3), n_power_iterations=3
    ),
    spectral("transposed", lambda: nn.ConvTranspose1d(2, 3, 2), lambda: torch.nn.ConvTranspose1d(2, 3, 2), (2, 2, 4)),
]
