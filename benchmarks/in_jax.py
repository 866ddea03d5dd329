"""The cases in JAX: one jitted step over a pytree, parameters and optimizer state donated. Adam is written out (JAX
itself has no optimizers) with the same formula as in PyTorch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from cases import Chain, Training
from networks import Network
from networks_jax import LOSSES, PREPARE, cross_entropy

ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}


def mse(output: jax.Array, target: jax.Array) -> jax.Array:
    return jnp.mean((output - target) ** 2)


def tensors(*arrays: np.ndarray):
    return [jnp.asarray(array) for array in arrays]


def dense(case: Training):
    """The loss of a stack of dense layers."""
    activation = ACTIVATIONS[case.hidden]
    measure = cross_entropy if case.loss == "cross_entropy" else mse
    last = len(case.sizes) - 2

    def loss(p, x, y):
        for layer in range(last + 1):
            x = x @ p[f"weight{layer}"].T + p[f"bias{layer}"]
            if layer != last:
                x = activation(x)
        return measure(x, y)

    return loss


class TrainingRunner:
    def __init__(self, case: Training | Network):
        self.arrays, inputs = case.arrays()
        self.inputs = PREPARE.get(case.name, tensors)(*inputs)
        loss_of = LOSSES[case.name] if isinstance(case, Network) else dense(case)
        rate, decay1, decay2, epsilon = case.learning_rate, 0.9, 0.999, 1e-8

        def step(state, *inputs):
            parameters, first, second, count = state
            loss, gradients = jax.value_and_grad(loss_of)(parameters, *inputs)
            count = count + 1
            first = jax.tree.map(lambda m, g: decay1 * m + (1 - decay1) * g, first, gradients)
            second = jax.tree.map(lambda v, g: decay2 * v + (1 - decay2) * g * g, second, gradients)
            scale = rate / (1 - decay1**count)
            root = jnp.sqrt(1 - decay2**count)
            parameters = jax.tree.map(
                lambda p, m, v: p - scale * m / (jnp.sqrt(v) / root + epsilon), parameters, first, second
            )
            return (parameters, first, second, count), loss

        self.step = jax.jit(step, donate_argnums=0)

    def reset(self) -> None:
        first, second = (jax.tree.map(jnp.zeros_like, self.arrays) for _ in range(2))
        state = (jax.tree.map(jnp.array, self.arrays), first, second, jnp.float32(0))
        self.state = jax.block_until_ready(state)

    def run(self, steps: int):
        step, state, inputs = self.step, self.state, self.inputs
        for _ in range(steps):
            state, loss = step(state, *inputs)
        self.state = state
        return loss, state

    def values(self, result) -> list[float]:
        return [float(result[0])]


class ChainRunner:
    def __init__(self, case: Chain):
        arrays, upstream = case.arrays()
        leaves, upstream = [jnp.asarray(array) for array in arrays], jnp.asarray(upstream)
        count = 1 if case.operations == ("softmax",) else 3

        def layer_norm(x, weight, bias):
            centred = x - x.mean(axis=-1, keepdims=True)
            return centred * jax.lax.rsqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * weight + bias

        def function(x, weight, bias):
            for name in case.operations:
                if name == "softmax":
                    x = jax.nn.softmax(x, axis=-1)
                elif name == "layer_norm":
                    x = layer_norm(x, weight, bias)
                elif name == "gelu":
                    x = jax.nn.gelu(x, approximate=False)
                else:
                    x = jax.nn.gelu(x + bias, approximate=False) * weight
            return x

        @jax.jit
        def step(leaves, upstream):
            out, pullback = jax.vjp(function, *leaves)
            return out, *pullback(upstream)[:count]

        self.step = lambda: step(leaves, upstream)

    def run(self, steps: int):
        for _ in range(steps):
            result = None  # given up first, so that its memory can be used again
            result = self.step()
        return result

    def reset(self) -> None:
        pass

    def values(self, result) -> list[float]:
        return [float(np.abs(np.asarray(part)).mean(dtype=np.float64)) for part in result]


def prepare(threads: int) -> str:
    """XLA's CPU client takes its thread count from the cores it may use, which the parent has limited."""
    return jax.__version__


def make(case: Training | Network | Chain) -> TrainingRunner | ChainRunner:
    return ChainRunner(case) if isinstance(case, Chain) else TrainingRunner(case)


def finish(result: object) -> None:
    jax.block_until_ready(result)
