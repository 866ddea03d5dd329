"""Small helpers of the tests of `weft.compile`: what was counted, and numbers to work with."""

import numpy as np

import weft


def counted(name, call):
    """By how much `call()` moves a counter."""
    before = weft.counters()
    call()
    return weft.counters()[name] - before[name]


def kernels_made():
    """Kernels that were compiled, or loaded from disk where an earlier run compiled them."""
    now = weft.counters()
    return now["kernels_compiled"] + now["kernels_from_disk"]


def numbers(*shape, seed=0):
    """A float32 array of numbers between -1 and 1."""
    return np.random.default_rng(seed).uniform(-1.0, 1.0, shape).astype(np.float32)


def parameter(*shape, seed=0):
    """A leaf with these numbers."""
    return weft.tensor(numbers(*shape, seed=seed), requires_grad=True)


def ones(*size, **options):
    """`weft.ones`, computed. A replay takes its shortest way only with arguments that lie in memory."""
    return _computed(weft.ones(*size, **options))


def full(size, value, **options):
    """`weft.full`, computed."""
    return _computed(weft.full(size, value, **options))


def _computed(x):
    weft.eval(x)
    return x
