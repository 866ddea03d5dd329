"""Records of the dropouts and of noise."""

import numpy as np

import weft
import weft.nn as nn
from tests.layers.oracles import of_function
from tests.layers.record import Bad, Case, LayerRecord

ALPHA = -1.7580993408473766  # the limit of SELU


def masks_of(layer, shape):
    """Which elements of ones are kept, from the results and from the gradient."""
    weft.manual_seed(0)
    x = weft.ones(*shape, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    return y.detach().numpy(), x.grad.numpy()


def check_rate(cls, shape, axes):
    """Results are 0 or x / (1 - p), the rate is p, whole channels fall together, and the gradient has the same mask."""

    def check():
        y, grad = masks_of(cls(0.3), shape)
        scale = np.float32(1 / 0.7)
        assert set(np.unique(y)) <= {np.float32(0.0), scale} or np.allclose(np.unique(y), [0.0, scale])
        np.testing.assert_allclose(grad, y, rtol=1e-6)
        flat = y.reshape(*shape[:axes], -1)
        assert (flat == flat[..., :1]).all()
        kept = flat[..., 0] > 0
        assert abs(kept.mean() - 0.7) < 5 * np.sqrt(0.3 * 0.7 / kept.size)

    return check


def check_seed(cls, shape):
    """One seed gives one mask, compiled or not; the next call gives another."""

    def check():
        layer, x = cls(), weft.ones(*shape)
        step = weft.compile(lambda x: layer(x))
        step(x)
        runs = []
        for call in (layer, step):
            weft.manual_seed(7)
            runs.append([call(x).numpy().copy() for _ in range(2)])
        np.testing.assert_array_equal(runs[0], runs[1])
        assert (runs[0][0] != runs[0][1]).any()
        assert layer.eval()(x) is x or (layer(x).numpy() == 1).all()

    return check


def check_extremes(cls, shape):
    """p = 0 is the identity, p = 1 drops all; in place."""

    def check():
        x = weft.ones(*shape)
        np.testing.assert_array_equal(cls(0.0)(x).numpy(), np.ones(shape))
        np.testing.assert_array_equal(cls(1.0)(x).numpy(), np.zeros(shape))
        layer = cls(1.0, inplace=True)
        assert layer(x) is x
        np.testing.assert_array_equal(x.numpy(), np.zeros(shape))

    return check


def check_alpha(cls, shape, axes):
    """Dropped elements take a·s + b, kept ones a·x + b; mean 0 and variance 1 stay."""

    def check():
        p = 0.2
        a = 1 / np.sqrt((1 - p) * (1 + p * ALPHA**2))
        b = -a * p * ALPHA
        y, grad = masks_of(cls(p), shape)
        low, high = np.unique(y.round(4))
        np.testing.assert_allclose([low, high], [a * ALPHA + b, a + b], atol=2e-4)
        flat = y.reshape(*shape[:axes], -1)
        assert (flat == flat[..., :1]).all()
        kept = flat[..., 0] > 0
        assert abs(kept.mean() - 0.8) < 5 * np.sqrt(0.2 * 0.8 / kept.size)
        np.testing.assert_allclose(grad, np.where(y > 0, a, 0.0), rtol=1e-5)

    return check


def check_moments():
    """y - x is normal with the mean and deviation given; the gradient passes; std = 0 adds the mean only."""
    weft.manual_seed(0)
    x = weft.ones(20000, requires_grad=True)
    y = nn.GaussianNoise(0.5, mean=0.2)(x)
    y.sum().backward()
    noise = y.detach().numpy() - 1
    assert abs(noise.mean() - 0.2) < 5 * 0.5 / np.sqrt(20000)
    assert abs(noise.std() - 0.5) < 5 * 0.5 / np.sqrt(40000)
    np.testing.assert_array_equal(x.grad.numpy(), np.ones(20000))
    np.testing.assert_allclose(nn.GaussianNoise(0.0, mean=0.2)(weft.ones(3)).numpy(), np.full(3, 1.2), rtol=1e-6)


def bad(cls):
    return [Bad(call=lambda layer: cls(1.5), match="p=1.5.*from 0 to 1", error=weft.RangeError)]


EVAL = {"eval": Case(oracle=of_function(lambda x: x))}
KINDS = [
    ("Dropout", (100, 30), 2),
    ("Dropout1d", (40, 50, 3), 2),
    ("Dropout2d", (40, 50, 2, 2), 2),
    ("Dropout3d", (40, 50, 2, 1, 2), 2),
]
ALPHA_KINDS = [("AlphaDropout", (100, 30), 2), ("FeatureAlphaDropout", (40, 50, 3), 2)]
RECORDS = [
    *[
        LayerRecord(
            name=name,
            make=lambda name=name: getattr(nn, name)(0.3),
            inputs=lambda draw, shape=shape: (draw.normal(3, 4, *shape[2:]),),
            random=True,
            edges=EVAL,
            bad=bad(getattr(nn, name)),
            checks={
                "rate": check_rate(getattr(nn, name), shape, axes),
                "seed": check_seed(getattr(nn, name), shape),
                "extremes": check_extremes(getattr(nn, name), shape),
            },
        )
        for name, shape, axes in KINDS
    ],
    *[
        LayerRecord(
            name=name,
            make=lambda name=name: getattr(nn, name)(0.3),
            inputs=lambda draw, shape=shape: (draw.normal(3, 4, *shape[2:]),),
            random=True,
            edges=EVAL,
            bad=bad(getattr(nn, name)),
            checks={
                "values": check_alpha(getattr(nn, name), shape, axes),
                "seed": check_seed(getattr(nn, name), shape),
            },
        )
        for name, shape, axes in ALPHA_KINDS
    ],
    LayerRecord(
        name="GaussianNoise",
        make=lambda: nn.GaussianNoise(0.3),
        inputs=lambda draw: (draw.normal(3, 4),),
        random=True,
        edges=EVAL,
        bad=[Bad(call=lambda layer: nn.GaussianNoise(-1.0), match="std=-1.0", error=weft.RangeError)],
        checks={"moments": check_moments, "seed": check_seed(nn.GaussianNoise, (5, 6))},
    ),
]
