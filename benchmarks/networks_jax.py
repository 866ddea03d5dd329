"""The networks of `networks.py` in JAX: the loss of each as a function of parameters and inputs."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from networks import HEADS, LAYERS, RESNET_STAGES, WIDTH

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


LOSSES = {"cnn": cnn, "conv3d": conv3d, "resnet18": resnet18, "transformer": transformer}
