"""The networks of `networks.py` in JAX: the loss of each as a function of parameters and inputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from networks import HEADS, HIDDEN, LAYERS, NODES, RECURRENT_LAYERS, RESNET_STAGES, WIDTH

LAYOUTS = {4: ("NCHW", "OIHW", "NCHW"), 5: ("NCDHW", "OIDHW", "NCDHW")}


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()


def conv(x, w, stride=1):
    rank = x.ndim - 2
    pads = [(w.shape[-1] // 2,) * 2] * rank
    return jax.lax.conv_general_dilated(x, w, (stride,) * rank, pads, dimension_numbers=LAYOUTS[x.ndim])


def biased(bias, x):
    return bias.reshape(-1, *[1] * (x.ndim - 2)) + x


def max_pool(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def cnn(p, x, y):
    x = max_pool(jax.nn.relu(biased(p["bias1"], conv(x, p["conv1"]))))
    x = max_pool(jax.nn.relu(biased(p["bias2"], conv(x, p["conv2"]))))
    return cross_entropy(x.reshape(len(x), -1) @ p["linear"].T + p["bias3"], y)


def conv3d(p, x, y):
    x = jax.nn.relu(biased(p["bias1"], conv(x, p["conv1"])))
    x = jax.nn.relu(biased(p["bias2"], conv(x, p["conv2"])))
    return cross_entropy(x.mean((2, 3, 4)) @ p["linear"].T + p["bias3"], y)


def resnet18(p, x, y):
    def unit(name, x, stride=1):
        x = conv(x, p[f"{name}.conv"], stride)
        centred = x - x.mean((0, 2, 3), keepdims=True)
        x = centred * jax.lax.rsqrt((centred**2).mean((0, 2, 3), keepdims=True) + 1e-5)
        return x * p[f"{name}.scale"].reshape(-1, 1, 1) + p[f"{name}.shift"].reshape(-1, 1, 1)

    x = jax.nn.relu(unit("stem", x))
    for number, (_, stride) in enumerate(RESNET_STAGES):
        name = f"block{number}"
        skip = x if stride == 1 else unit(f"{name}.skip", x, stride)
        x = jax.nn.relu(unit(f"{name}.2", jax.nn.relu(unit(f"{name}.1", x, stride))) + skip)
    return cross_entropy(x.mean((2, 3)) @ p["linear"].T + p["bias"], y)


def transformer(p, x, y):
    batch, length = x.shape

    def norm(name, x):
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred * jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
        return scaled * p[name] + p[f"{name}.bias"]

    def linear(name, x):
        return x @ p[name].T + p[f"{name}.bias"]

    x = p["tokens"][x] + p["positions"]
    for layer in range(LAYERS):
        qkv = linear(f"{layer}.qkv", norm(f"{layer}.norm1", x)).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = (qkv[:, :, part] for part in range(3))
        seen = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, length, WIDTH)
        x = x + linear(f"{layer}.out", seen)
        x = x + linear(
            f"{layer}.down", jax.nn.gelu(linear(f"{layer}.up", norm(f"{layer}.norm2", x)), approximate=False)
        )
    logits = norm("norm", x) @ p["head"].T
    return cross_entropy(logits.reshape(batch * length, -1), y.reshape(-1))


def lstm(p, x, y):
    x = p["tokens"][x]
    first = jnp.zeros((x.shape[1], HIDDEN))
    for layer in range(RECURRENT_LAYERS):
        weight = p[f"{layer}.hidden"]

        def step(state, x, weight=weight):
            h, c = state
            i, f, g, o = jnp.split(x + h @ weight.T, 4, axis=1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        x = x @ p[f"{layer}.input"].T + p[f"{layer}.input.bias"] + p[f"{layer}.hidden.bias"]
        _, x = jax.lax.scan(step, (first, first), x)
    return cross_entropy(x.reshape(-1, HIDDEN) @ p["head"].T + p["head.bias"], y.reshape(-1))


def segment_sum(x, targets):
    return jax.ops.segment_sum(x, targets, NODES, indices_are_sorted=True)


def gcn(p, edges, weights, x, y):
    sources, targets = edges

    def product(x):
        return segment_sum(x[sources] * weights[:, None], targets)

    x = jax.nn.relu(product(x @ p["weight0"]) + p["bias0"])
    return cross_entropy(product(x @ p["weight1"]) + p["bias1"], y)


def gat(p, edges, x, y):
    sources, targets = edges

    def layer(number, x):
        source, target = p[f"source{number}"], p[f"target{number}"]
        x = (x @ p[f"weight{number}"]).reshape(-1, *source.shape)
        scores = jax.nn.leaky_relu((x * source).sum(-1)[sources] + (x * target).sum(-1)[targets], 0.2)
        largest = jax.ops.segment_max(scores, targets, NODES, indices_are_sorted=True)
        raised = jnp.exp(scores - jax.lax.stop_gradient(largest)[targets])
        shares = raised / (segment_sum(raised, targets) + 1e-16)[targets]
        return segment_sum(shares[:, :, None] * x[sources], targets).reshape(NODES, -1) + p[f"bias{number}"]

    return cross_entropy(layer(1, jax.nn.elu(layer(0, x))), y)


PREPARE: dict = {}
LOSSES = {
    "cnn": cnn, "conv3d": conv3d, "resnet18": resnet18, "transformer": transformer, "lstm": lstm, "gcn": gcn, "gat": gat
}  # fmt: skip
