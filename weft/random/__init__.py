"""weft.random: generators, and tensors of random numbers.

A generator is a seed and a counter of draws; numbers are computed from them on the device, the same on every backend.
Distributions are operations over such draws. Nothing here knows how draws are compiled.
"""

from weft.random.generator import (
    Generator,
    _restored,  # noqa: F401  # named by pickles
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    seed,
    set_rng_state,
)  # fmt: skip

__all__ = [
    "Generator", "default_generator", "get_rng_state", "initial_seed", "manual_seed", "rand", "rand_like", "randint",
    "randn", "randn_like", "seed", "set_rng_state",
]  # fmt: skip
