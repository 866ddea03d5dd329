"""Random numbers: a generator is a key and a count of draws, so every result follows from the seed alone."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from weft.base.dtypes import DType, DTypeLike, as_dtype, int64, integer_bounds, uint8
from weft.base.errors import DTypeError, RangeError, problem
from weft.base.state import SETTINGS, STATE
from weft.core.creation import make_leaf
from weft.core.device import get
from weft.core.host_arrays import from_host
from weft.core.lift import lift
from weft.core.size_arguments import checked_shape, sized_sampling
from weft.core.tensor import Tensor
from weft.graph.build import Shape
from weft.graph.node import Node
from weft.ops import creation, sampling
from weft.ops.common import as_int
from weft.ops.registry import operation
from weft.plan.device import Device


class Generator:
    """A stream of draws. `draw()` returns the state for the next ones; the same seed gives the same stream.

    >>> a, b = weft.Generator(7), weft.Generator(7)
    >>> bool((weft.rand(3, generator=a) == weft.rand(3, generator=b)).all())
    True
    """

    __slots__ = ("__weakref__", "_seed", "counter", "device", "key")

    def __init__(self, seed: int = 0):
        self.device: Device | None = None  # where the last draw was made
        self.manual_seed(seed)

    def _present(self) -> Generator:
        """The generator whose state counts in this thread: itself or, for the default generator inside a
        `use_generator` block, the one that stands in for it."""
        return STATE.generator if STATE.generator is not None and self is default_generator else self

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of `seed` (any integer; 64 bits of it count)."""
        if STATE.generator is not None and self is default_generator:
            STATE.generator.manual_seed(seed)
            return self
        self._seed = seed & (2**64 - 1)
        self.key = _mix(self._seed)
        self.counter = 0
        return self

    def initial_seed(self) -> int:
        """The seed of the stream."""
        return self._present()._seed

    def seed(self) -> int:
        """Start the stream of a seed that the system draws, which is returned."""
        return self.manual_seed(secrets.randbits(64)).initial_seed()

    def get_state(self) -> tuple[int, int]:
        """(seed, draws made), to be given to `set_state` later."""
        source = self._present()
        return source._seed, source.counter

    def set_state(self, state: tuple[int, int]) -> None:
        """Go back to a state."""
        self.manual_seed(state[0])
        self._present().counter = state[1]

    def state_dict(self) -> dict[str, int]:
        """The state as numbers that JSON has: the seed, and how many draws were made."""
        return dict(zip(("seed", "draws"), self.get_state(), strict=True))

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Go back to what `state_dict` returned.

        >>> generator = weft.Generator(3)
        >>> state = generator.state_dict()
        >>> first = weft.rand(2, generator=generator)
        >>> generator.load_state_dict(state)
        >>> bool((weft.rand(2, generator=generator) == first).all())
        True
        """
        found = [state_dict.get(key) for key in ("seed", "draws")] if isinstance(state_dict, Mapping) else []
        if len(found) != 2 or not all(type(one) is int and 0 <= one < 2**64 for one in found):
            raise problem(RangeError, "Generator.load_state_dict", f"{state_dict!r:.80}", "what state_dict() returned")
        self.set_state((found[0], found[1]))  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, self.get_state()

    def draw(self, device: Device, count: int) -> tuple[Node, int]:
        """The state node and the number of the first of `count` draws on it.

        Outside a trace every call uploads its own pair (key, counter) and numbers from 0, so that equal calls make
        equal graphs and share a plan.
        """
        self.device = device
        if STATE.trace is not None:
            return STATE.trace.draw(self, device, count)
        if STATE.generator is not None and self is default_generator:
            return STATE.generator.draw(device, count)
        state = from_host(np.array([self.key, self.counter & 0xFFFFFFFF], np.uint32), device)
        self.counter += count
        return state, 0


def _mix(seed: int) -> int:
    """32 well-mixed bits of a 64-bit seed (the finaliser of splitmix64)."""
    mask = 2**64 - 1
    z = (seed + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 32


def _restored(seed: int, counter: int) -> Generator:
    """A generator in the state that was copied or pickled."""
    generator = Generator(seed)
    generator.counter = counter
    return generator


_restored.__module__ = "weft.random"  # which pickles name

default_generator = Generator(0)


@contextlib.contextmanager
def use_generator(generator: Generator) -> Iterator[None]:
    """Let another generator stand in for the default one in this thread, inside the block."""
    before, STATE.generator = STATE.generator, generator
    try:
        yield
    finally:
        STATE.generator = before


def manual_seed(seed: int) -> Generator:
    """Seed the default generator."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Seed the default generator with a number that the system draws, which is returned."""
    return default_generator.manual_seed(secrets.randbits(64)).initial_seed()


def initial_seed() -> int:
    """The seed of the default generator."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """The state of the default generator as 16 bytes, to be given to `set_rng_state` later."""
    return Tensor(from_host(np.array(default_generator.get_state(), np.uint64).view(np.uint8), "cpu"))


def set_rng_state(new_state: Tensor) -> None:
    """Go back to a state of the default generator.

    >>> state = weft.get_rng_state()
    >>> first = weft.rand(2)
    >>> weft.set_rng_state(state)
    >>> bool((weft.rand(2) == first).all())
    True
    """
    if not isinstance(new_state, Tensor) or new_state.dtype is not uint8 or new_state.shape != (16,):
        form = f"{new_state.dtype.name}{list(new_state.shape)}" if isinstance(new_state, Tensor) else repr(new_state)
        raise problem(DTypeError, "set_rng_state", form, "what get_rng_state returned")
    made, counter = new_state.numpy().view(np.uint64).tolist()
    default_generator.set_state((made, counter))


def _float_dtype(who: str, dtype: DTypeLike | None) -> DType:
    """The dtype that is given, or the one of floats made without one; random floats are floats."""
    found = SETTINGS.default_dtype if dtype is None else as_dtype(who, dtype)
    if found.kind != "f":
        raise problem(DTypeError, who, f"dtype {found.name}", "a float dtype", "use randint for whole numbers")
    return found


@sized_sampling
def rand(
    *size: int | Sequence[int], generator: Generator | None = None, dtype: DTypeLike | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Uniform in [0, 1).

    >>> weft.rand(2, 3).shape
    (2, 3)
    """
    shape, kind = checked_shape("rand", size), _float_dtype("rand", dtype)
    state, draw = (generator or default_generator).draw(get(device), 1)
    return make_leaf(creation.uniform(state, draw, shape, kind), requires_grad)


@sized_sampling
def randn(
    *size: int | Sequence[int], generator: Generator | None = None, dtype: DTypeLike | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Normal with mean 0 and variance 1."""
    shape, kind = checked_shape("randn", size), _float_dtype("randn", dtype)
    state, draw = (generator or default_generator).draw(get(device), 2)
    return make_leaf(creation.normal(state, draw, shape, kind), requires_grad)


@overload
def randint(
    high: int, size: Sequence[int], *, generator: Generator | None = ..., dtype: DTypeLike = ..., device: Any = ...,
    requires_grad: bool = ...,
) -> Tensor: ...  # fmt: skip
@overload
def randint(
    low: int, high: int, size: Sequence[int], *, generator: Generator | None = ..., dtype: DTypeLike = ...,
    device: Any = ..., requires_grad: bool = ...,
) -> Tensor: ...  # fmt: skip
def randint(
    *bounds_and_size: Any, low: int | None = None, high: int | None = None, size: Sequence[int] | None = None,
    generator: Generator | None = None, dtype: DTypeLike = int64, device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Whole numbers: `randint(high, size)` in [0, high), `randint(low, high, size)` in [low, high).

    >>> bool((weft.randint(3, 5, (100,)) >= 3).all())
    True
    """
    given = list(bounds_and_size)
    if size is None and given:
        size = given.pop()
    if high is None and given:
        high = given.pop()
    if low is None and given:
        low = given.pop()
    if given or high is None or not isinstance(size, (tuple, list)):
        text = f"arguments {bounds_and_size}, low={low}, high={high}, size={size}"
        raise problem(DTypeError, "randint", text, "randint(high, size) or randint(low, high, size), size a tuple")
    shape, kind = checked_shape("randint", (size,)), as_dtype("randint", dtype)
    bounds = integer_range("randint", 0 if low is None else low, high, kind)
    return make_leaf(whole_numbers(generator, *bounds, shape, kind, get(device)), requires_grad)


def integer_range(who: str, low: int, high: int, dtype: DType) -> tuple[int, int]:
    """Bounds of random whole numbers, checked: low < high, and all between them fit an integer dtype."""
    low, high = as_int(who, low, "low"), as_int(who, high, "high")
    if low >= high:
        raise problem(RangeError, who, f"low={low} and high={high}", "low < high")
    if dtype.kind == "b":
        least, largest = 0, 1
    else:
        least, largest = integer_bounds(int64 if dtype.kind == "f" else dtype)
    if low < least or high - 1 > largest:
        raise problem(RangeError, who, f"low={low} and high={high}", f"numbers that fit {dtype.name}")
    return low, high


def whole_numbers(generator: Generator | None, low: int, high: int, shape: Shape, dtype: DType, device: Device) -> Node:
    """Whole numbers in [low, high), which `integer_range` has checked."""
    is_short = high - low <= 1 << 31 and low < 1 << 63
    state, draw = (generator or default_generator).draw(device, 1)
    return (creation.integers if is_short else sampling.whole_numbers)(state, draw, low, high, shape, dtype)


def rand_like(
    input: Tensor, *, generator: Generator | None = None, dtype: DTypeLike | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """`rand` with the shape of `input`, and its dtype and device unless others are given."""
    dtype, device = _like(input, dtype, device)
    return rand(input.shape, generator=generator, dtype=dtype, device=device, requires_grad=requires_grad)


def randn_like(
    input: Tensor, *, generator: Generator | None = None, dtype: DTypeLike | None = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """`randn` with the shape of `input`, and its dtype and device unless others are given."""
    dtype, device = _like(input, dtype, device)
    return randn(input.shape, generator=generator, dtype=dtype, device=device, requires_grad=requires_grad)


def _like(input: Tensor, dtype: DTypeLike | None, device: Any) -> tuple[DTypeLike, Any]:
    return (input.dtype if dtype is None else dtype), (input.device if device is None else device)


_dropout = lift(creation.dropout)


@operation("weft functional", of_tensors=True)
def dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """While training, each element 0 with probability `p` (in steps of 2^-16) and otherwise divided by 1 - p.

    >>> weft.nn.functional.dropout(weft.ones(3), 0.5, training=False)
    tensor([1., 1., 1.])
    """
    creation.check_probability("dropout", p)
    if not training or p == 0.0:
        return input
    if p == 1.0:
        result = input * 0.0
    else:
        state, draw = (generator or default_generator).draw(input.device, 1)
        result = _dropout(input, p, Tensor(state), draw)
    return input._replace("dropout", result) if inplace else result
