"""Records of the pools."""

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_function, of_torch
from tests.layers.record import Bad, Case, LayerRecord
from tests.layers.simple import like_torch

SIZES = {1: (6,), 2: (5, 4), 3: (3, 4, 4)}
ODD = {1: (11,), 2: (7, 9), 3: (5, 6, 7)}
TRAITS = frozenset({"batch", "window"})
ORDER = frozenset({"batch", "window", "order"})


def image(axes):
    return lambda draw: (draw.normal(2, 3, *SIZES[axes]),)


def odd(name, axes, *args, **options):
    """Odd extents with stride, padding and dilation."""
    return Case(
        make=lambda: getattr(nn, name)(*args, **options),
        inputs=lambda draw: (draw.normal(2, 2, *ODD[axes]),),
        oracle=of_torch(lambda: getattr(torch.nn, name)(*args, **options)),
    )


def ties(name, axes):
    """Equal elements: the result, and the gradient of the first of them, as in torch."""

    def check(layer, inputs):
        values = np.random.default_rng(0).integers(0, 2, (2, 2, *SIZES[axes])).astype(np.float32)
        ours, theirs = weft.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
        oracle = made_like(name, layer)
        result, expected = layer(ours), oracle(theirs)
        result, expected = (result[0], expected[0]) if isinstance(expected, tuple) else (result, expected)
        weights = np.random.default_rng(1).normal(size=tuple(expected.shape)).astype(np.float32)
        (result * weft.tensor(weights)).sum().backward()
        (expected * torch.tensor(weights)).sum().backward()
        np.testing.assert_array_equal(result.detach(), expected.detach().numpy())
        np.testing.assert_allclose(ours.grad, theirs.grad.numpy(), rtol=1e-5, atol=1e-6)

    return Case(check=check)


def made_like(name, layer):
    """torch's pool with the arguments of a layer."""
    if name.startswith("Adaptive"):
        return getattr(torch.nn, name)(layer.output_size, layer.return_indices)
    options = {key: getattr(layer, key) for key in ("stride", "padding", "dilation", "return_indices", "ceil_mode")}
    return getattr(torch.nn, name)(layer.kernel_size, **options)


def rank(name):
    return [Bad(call=lambda layer: layer(weft.ones(3)), match=r"pool.*3", error=weft.ShapeError)]


def max_pools(axes):
    name = f"MaxPool{axes}d"
    edges = {
        "odd sizes": odd(name, axes, 3, stride=2, padding=1, dilation=2),
        "ties": ties(name, axes),
    }
    return [
        like_torch(name, image(axes), 2, bad=rank(name), traits=ORDER, edges=edges),
        like_torch(
            name, image(axes), 3, 2, 1, 1, True, True, variant="indices, ceil", traits=ORDER,
            edges={
                "odd sizes": odd(name, axes, 3, stride=2, return_indices=True, ceil_mode=True),
                "ties": ties(name, axes),
            },
        ),
        like_torch(
            name, lambda draw: (draw.normal(2, *SIZES[axes]),), 2, 1, variant="no batch", traits=frozenset(),
        ),
    ]  # fmt: skip


def avg_pools(axes):
    name = f"AvgPool{axes}d"
    more = {"divisor_override": 3} if axes > 1 else {}
    records = [
        like_torch(
            name, image(axes), 2, bad=rank(name), traits=TRAITS, edges={"odd sizes": odd(name, axes, 3, 2, 1)}
        ),
        like_torch(
            name, image(axes), 3, 2, 1, True, False, variant="ceil, no padding counted", traits=TRAITS,
            edges={"odd sizes": odd(name, axes, 3, 2, 1, True, True)},
        ),
    ]  # fmt: skip
    if more:
        records.append(like_torch(name, image(axes), 2, 1, options=more, variant="divisor"))
    return records


def lp_pools(axes):
    name = f"LPPool{axes}d"
    positive = {"inputs": lambda draw: (draw.uniform(2, 2, *SIZES[axes], low=0.1),)}
    return [
        like_torch(
            name, positive["inputs"], 2, 2, bad=rank(name), traits=TRAITS,
            edges={
                "odd sizes": Case(
                    make=lambda: getattr(nn, name)(3, 3, 2, True),
                    inputs=lambda draw: (draw.uniform(2, 2, *ODD[axes], low=0.1),),
                    oracle=of_torch(lambda: getattr(torch.nn, name)(3, 3, 2, True)),
                )
            },
        ),
        like_torch(name, positive["inputs"], 1.0, 2, 1, variant="sum"),
    ]  # fmt: skip


def adaptive_pools(axes):
    records = []
    for kind in ("Avg", "Max"):
        name = f"Adaptive{kind}Pool{axes}d"
        size = (2, 3, 2)[:axes] if axes > 1 else 4
        edges = {"odd sizes": odd(name, axes, 3)} | ({"ties": ties(name, axes)} if kind == "Max" else {})
        traits = ORDER if kind == "Max" else TRAITS
        records.append(like_torch(name, image(axes), size, bad=rank(name), traits=traits, edges=edges))
    name = f"AdaptiveMaxPool{axes}d"
    edges = {"odd sizes": odd(name, axes, 3, True), "ties": ties(name, axes)}
    records.append(like_torch(name, image(axes), 2, True, variant="indices", traits=ORDER, edges=edges))
    if axes > 1:
        records.append(like_torch(f"AdaptiveAvgPool{axes}d", image(axes), (None, 2, 2)[:axes], variant="kept axis"))
    return records


def unpool_inputs(axes, **options):
    """Maxima and their places."""

    def inputs(draw):
        pool = getattr(torch.nn, f"MaxPool{axes}d")(2, return_indices=True, **options)
        y, places = pool(torch.tensor(draw.normal(2, 3, *[2 * size for size in SIZES[axes]])))
        return y.numpy(), places.numpy()

    return inputs


def max_unpools(axes):
    name = f"MaxUnpool{axes}d"

    def odd_inputs(draw):
        shape = (1, 2, *(7, 6, 6)[:axes])
        pool = getattr(torch.nn, f"MaxPool{axes}d")(2, return_indices=True)
        y, places = pool(torch.tensor(draw.normal(*shape)))
        return y.numpy(), places.numpy(), shape

    def sized(draw):
        y, places = unpool_inputs(axes)(draw)
        return y, places, [2 * size for size in SIZES[axes]]

    return [
        like_torch(
            name, unpool_inputs(axes), 2, bad=[
                Bad(
                    call=lambda layer: layer(weft.ones(1, 1, *[2] * axes), weft.full((1, 1, *[2] * axes), 99).long()),
                    match="99",
                ),
            ],
            traits=TRAITS,
            edges={"odd sizes": Case(inputs=odd_inputs)},
        ),
        like_torch(name, sized, 2, variant="output size"),
        like_torch(
            name, unpool_inputs(axes, stride=2, padding=1), 2, 2, 1, variant="padding",
        ),
    ]  # fmt: skip


def fractional(axes):
    name = f"FractionalMaxPool{axes}d"
    samples = np.random.default_rng(3).random((2, 3, axes)).astype(np.float32).astype(np.float64)
    sizes = (5, 6, 5)[:axes]

    def make(module, tensor, **options):
        return lambda: getattr(module, name)(2, **options, _random_samples=tensor(samples))

    def check_random():
        """Without samples the windows are drawn: the seed decides, also when compiled."""
        layer, x = getattr(nn, name)(2, output_ratio=0.5), weft.randn(2, 3, *[9] * axes)
        step = weft.compile(lambda x: layer(x))
        step(x)
        runs = []
        for call in (layer, step):
            weft.manual_seed(5)
            runs.append([call(x).numpy().copy() for _ in range(2)])
        np.testing.assert_array_equal(runs[0], runs[1])
        assert runs[0][0].shape == (2, 3, *[4] * axes)
        assert (runs[0][0] != runs[0][1]).any()
        assert np.isin(runs[0][0], x.numpy()).all()

    def oracle(**options):
        return of_torch(make(torch.nn, lambda one: torch.tensor(one), **options))

    wrong = [
        Bad(call=lambda layer: getattr(nn, name)(2), match="exactly one", error=weft.RangeError),
        Bad(call=lambda layer: getattr(nn, name)(2, output_ratio=1.5), match="between 0 and 1", error=weft.RangeError),
        Bad(call=lambda layer: layer(weft.ones(2, 3, *[1] * axes)), match="1", error=weft.ShapeError),
    ]
    to_weft = lambda one: weft.tensor(one, dtype=weft.float32)  # noqa: E731
    one = {"batch of one": "the samples are of two images: see its own check for other batches"}
    return [
        LayerRecord(
            name=name,
            make=make(nn, to_weft, output_size=3),
            inputs=lambda draw: (draw.normal(2, 3, *sizes),),
            oracle=oracle(output_size=3),
            traits=frozenset({"batch", "window", "order"}),
            edges={
                **one,
                "odd sizes": Case(inputs=lambda draw: (draw.normal(2, 3, *[7] * axes),)),
                "ties": Case(inputs=lambda draw: (draw.integers(2, 2, 3, *sizes).astype(float),)),
            },
            bad=wrong,
            checks={"drawn windows": check_random},
        ),
        LayerRecord(
            name=name,
            variant="ratio, indices",
            make=make(nn, to_weft, output_ratio=0.6, return_indices=True),
            inputs=lambda draw: (draw.normal(2, 3, *sizes),),
            oracle=oracle(output_ratio=0.6, return_indices=True),
            edges=one,
            no_bad="as with a size",
        ),
    ]


def global_pools():
    shape_error = [
        Bad(call=lambda layer: layer(weft.ones(2, 3)), match=r"\[2, 3\].*\[B, C, \*\]", error=weft.ShapeError)
    ]

    def peaks(layer, inputs):
        """The gradient goes to the first maximum."""
        x = weft.tensor([[[[1.0, 3.0], [3.0, 3.0]]]], requires_grad=True)
        layer(x).sum().backward()
        assert x.grad.flatten().tolist() == [0.0, 1.0, 0.0, 0.0]

    order = {"traits": frozenset({"batch", "order"}), "edges": {"ties": Case(check=peaks)}}
    avg, largest = of_function(lambda x: x.mean((2, 3))), of_function(lambda x: x.amax((2, 3)))
    images = lambda draw: (draw.normal(2, 3, 4, 5),)  # noqa: E731
    return [
        LayerRecord(
            name="GlobalPool", make=nn.GlobalPool, inputs=images, oracle=avg,
            bad=[*shape_error, Bad(call=lambda layer: nn.GlobalPool("sum"), match="'sum'", error=weft.RangeError)],
        ),
        LayerRecord(
            name="GlobalPool", variant="max, keepdim", make=lambda: nn.GlobalPool("max", keepdim=True), inputs=images,
            oracle=of_torch(lambda: torch.nn.AdaptiveMaxPool2d(1)), no_bad="as without", **order,
        ),
        LayerRecord(
            name="GlobalPool", variant="volume", make=nn.GlobalPool, inputs=lambda draw: (draw.normal(2, 3, 2, 3, 2),),
            oracle=of_function(lambda x: x.mean((2, 3, 4))), no_bad="as for images",
        ),
        LayerRecord(name="GlobalAvgPool2d", make=nn.GlobalAvgPool2d, inputs=images, oracle=avg, bad=shape_error),
        LayerRecord(
            name="GlobalMaxPool2d", make=nn.GlobalMaxPool2d, inputs=images, oracle=largest, bad=shape_error, **order
        ),
    ]  # fmt: skip


RECORDS = [
    *[
        record
        for axes in (1, 2, 3)
        for make in (max_pools, avg_pools, lp_pools, adaptive_pools, max_unpools)
        for record in make(axes)
    ],
    *fractional(2),
    *fractional(3),
    *global_pools(),
]
