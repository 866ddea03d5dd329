"""Random permutations, samples of distributions, and methods that fill a tensor with random numbers.

Like `weft.random`, all of them draw from a generator, so the numbers follow from its seed: the same ones eagerly and
inside `weft.compile`, on every device and for any number of threads. Values of tensors (probabilities, standard
deviations) are checked where reading them does not stop the program: outside compiled functions, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.base.dtypes import DType, DTypeLike, as_dtype, finfo, int64, integer_bounds
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.base.state import SETTINGS, STATE
from weft.core.creation import make_leaf
from weft.core.device import get
from weft.core.lift import lift
from weft.core.size_arguments import checked_shape
from weft.core.tensor import Tensor
from weft.graph import build
from weft.graph.node import Node
from weft.ops import creation
from weft.ops import sampling as draws
from weft.ops.common import as_int, broadcast_shapes, need_float, same_device
from weft.ops.creation import check_probability
from weft.ops.registry import operation
from weft.random.generator import Generator, default_generator, integer_range, whole_numbers

MAX_CATEGORIES = 1 << 24
EXACT_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}  # whole numbers up to 2^bits are exact


def _draw(generator: Generator | None, device: Any, count: int, sample: Callable[..., Node], *args: Any) -> Tensor:
    """A tensor of `sample(state, draw, *args)`, which makes `count` draws."""
    state, draw = (generator or default_generator).draw(device, count)
    return make_leaf(sample(state, draw, *args), False)


def _values(x: Tensor) -> np.ndarray | None:
    """The values of `x`, or None where reading them would stop the program."""
    if STATE.trace is not None or x.device.kind not in ("cpu", "reference"):
        return None
    return x.detach().numpy()


def _zero_gradient(value: Node, *sources: Node) -> Node:
    zeros = [build.expand_to(build.cast(build.mul(one, 0.0), value.dtype), value.shape) for one in sources]
    return build.surrogate(value, zeros[0] if len(zeros) == 1 else build.add(*zeros))


_attach_zero_gradient = lift(_zero_gradient)


def _with_zero_gradient(value: Tensor, *sources: Tensor) -> Tensor:
    """`value`, with a gradient of 0 in those of its sources that require one, as in PyTorch."""
    tracked = [one for one in sources if one.requires_grad]
    return _attach_zero_gradient(value, *tracked) if tracked else value


# ---- functions ------------------------------------------------------------------------------------------------------


@operation("weft", of_tensors=True)
def randperm(
    n: int,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = int64,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """The numbers from 0 to n - 1 in random order.

    >>> weft.randperm(5).sort().values
    tensor([0, 1, 2, 3, 4])
    """
    count, kind = as_int("randperm", n, "number of elements"), as_dtype("randperm", dtype)
    if count < 0:
        raise problem(RangeError, "randperm", f"n={count}", "at least 0")
    if kind.kind == "b" or count - 1 > _largest_exact(kind):
        raise problem(RangeError, "randperm", f"n={count} in {kind.name}", "a dtype that holds all the numbers")
    return _draw(generator, get(device), 1, draws.permutation, count, kind).requires_grad_(requires_grad)


def _largest_exact(dtype: DType) -> int:
    """Up to where all whole numbers fit a dtype."""
    return 1 << EXACT_BITS[dtype.name] if dtype.kind == "f" else integer_bounds(dtype)[1]


@operation(of_tensors=True)
def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Indices of `num_samples` categories for a row of weights [n], or for each row of [rows, n]: each drawn with a
    probability that is its part of the row's sum, again and again, or (without replacement) each at most once.

    What has weight 0 is not drawn, except last where nothing else is left. Weights need not add up to 1; negative ones,
    infinities, NaN and rows of zeros are errors outside compiled functions. Inside, a row of zeros gives the index n.

    >>> weft.multinomial(weft.tensor([0.0, 2.0, 0.0]), 3, replacement=True)
    tensor([1, 1, 1])
    """
    need_float("multinomial", input.node)
    count = as_int("multinomial", num_samples, "number of samples")
    if input.ndim not in (1, 2) or not 0 < input.shape[-1] <= MAX_CATEGORIES:
        expected = f"[n] or [rows, n] with n from 1 to {MAX_CATEGORIES}"
        raise problem(ShapeError, "multinomial", f"weights of shape {input.shape}", expected)
    if count < 1 or (count > input.shape[-1] and not replacement):
        given = f"num_samples={count} of {input.shape[-1]} categories"
        raise problem(RangeError, "multinomial", given, "at least 1, and not more than there are without replacement")
    _check_weights(_values(input))
    weights = input.detach().node
    if not input.numel():
        return Tensor(build.full((*input.shape[:-1], count), 0, int64, input.device))
    sample = draws.categories_again if replacement or count == 1 else draws.categories_once
    return _draw(generator, input.device, 1, sample, weights, count)


def _check_weights(values: np.ndarray | None) -> None:
    if values is None:
        return
    values = values.astype(np.float64)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise problem(RangeError, "multinomial", "negative, infinite or NaN weights", "finite weights from 0 on")
    if not (values.max(-1) > 0).all():
        raise problem(RangeError, "multinomial", "a row of zeros", "rows with at least one weight above 0")


@operation(
    "weft",
    of_tensors=True,
    overloads=(
        "(mean: Tensor, std: Tensor | float = 1.0, *, generator: Generator | None = None) -> Tensor",
        "(mean: float, std: Tensor, *, generator: Generator | None = None) -> Tensor",
        "(mean: float, std: float, size: Sequence[int], *, generator: Generator | None = None,"
        " dtype: DTypeLike | None = None, device: Any = None, requires_grad: bool = False) -> Tensor",
    ),
)
def normal(
    mean: Tensor | float,
    std: Tensor | float = 1.0,
    size: Sequence[int] | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normal numbers: one for each element of the tensors `mean` and `std`, which broadcast, or `size` of them for two
    numbers. The dtype is that of `mean`, or else of `std`. The gradient in both is 0: for another write
    `mean + std * weft.randn_like(mean)`.

    >>> weft.normal(weft.tensor([1.0, 2.0]), 0.0)
    tensor([1., 2.])
    """
    given = [one for one in (mean, std) if isinstance(one, Tensor)]
    if given and (size is not None or dtype is not None or device is not None):
        raise problem(
            DTypeError, "normal", "a tensor and a size, dtype or device", "one of them", "use only the tensor"
        )
    if not given:
        if not isinstance(size, (tuple, list)):
            raise problem(DTypeError, "normal", f"size={size!r} for two numbers", "a tuple, the shape of the result")
        shape, target = checked_shape("normal", (size,)), get(device)
        kind = as_dtype("normal", SETTINGS.default_dtype if dtype is None else dtype)
        mean, std = _number("normal", mean, "mean"), _number("normal", std, "std")
    else:
        shape, target = broadcast_shapes("normal", [one.shape for one in given]), given[0].device
        same_device("normal", [one.node for one in given])
        kind = given[0].dtype
    if any(one.kind != "f" for one in (kind, *[one.dtype for one in given])):
        raise problem(DTypeError, "normal", f"dtype {kind.name}", "floats", "convert it with .float()")
    _check_std("normal", std)
    parts = [build.expand_to(one.detach().node, shape) if isinstance(one, Tensor) else one for one in (mean, std)]
    value = _draw(generator, target, 2, draws.normal, shape, kind, *parts)
    return _with_zero_gradient(value, *given) if given else value.requires_grad_(requires_grad)


def _number(who: str, value: Any, what: str) -> Any:
    if not isinstance(value, (int, float)):
        raise problem(DTypeError, who, f"{what} of type {type(value).__name__}", "a number or a tensor")
    return value


def _check_std(who: str, std: Tensor | float) -> None:
    least: Any = std
    if isinstance(std, Tensor):
        values = _values(std)
        least = None if values is None or not values.size else values.astype(np.float64).min()
    if least is not None and not least >= 0.0:
        raise problem(RangeError, who, f"std={least}", "at least 0")


@operation(of_tensors=True)
def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability that each element of `input` is, else 0; with `p`, that is the probability of all, and
    `input` only says the shape and the dtype. The gradient is 0.

    >>> weft.bernoulli(weft.tensor([0.0, 1.0]))
    tensor([0., 1.])
    """
    if p is not None:
        return _with_zero_gradient(_bernoulli_like(input, "bernoulli", p, generator), input)
    need_float("bernoulli", input.node)
    _check_probabilities("bernoulli", input)
    return _with_zero_gradient(_draw(generator, input.device, 1, creation.bernoulli, input.detach().node), input)


def _bernoulli_like(input: Tensor, who: str, p: float, generator: Generator | None) -> Tensor:
    check_probability(who, _number(who, p, "p"))
    return _draw(generator, input.device, 1, draws.bernoulli, input.shape, input.dtype, p)


def _check_probabilities(who: str, p: Tensor) -> None:
    values = _values(p)
    if values is not None and not ((values >= 0) & (values <= 1)).all():
        raise problem(RangeError, who, "numbers below 0, above 1 or NaN", "probabilities, 0 to 1")


@operation("weft", of_tensors=True)
def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Numbers of events of the Poisson distribution whose means are the elements of `input`. The gradient is 0.

    >>> weft.poisson(weft.zeros(2))
    tensor([0., 0.])
    """
    need_float("poisson", input.node)
    values = _values(input)
    if values is not None and not (values >= 0).all():
        raise problem(RangeError, "poisson", "negative means or NaN", "means from 0 on")
    return _with_zero_gradient(_draw(generator, input.device, 3, draws.poisson, input.detach().node), input)


@operation(
    "weft",
    of_tensors=True,
    overloads=(
        "(input: Tensor, high: int, *, generator: Generator | None = None, dtype: DTypeLike | None = None,"
        " device: Any = None, requires_grad: bool = False) -> Tensor",
        "(input: Tensor, low: int, high: int, *, generator: Generator | None = None, dtype: DTypeLike | None = None,"
        " device: Any = None, requires_grad: bool = False) -> Tensor",
    ),
)
def randint_like(
    input: Tensor,
    *bounds: int,
    low: int | None = None,
    high: int | None = None,
    generator: Generator | None = None,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """`randint` with the shape, dtype and device of `input`: `randint_like(x, high)`, `randint_like(x, low, high)`.

    >>> weft.randint_like(weft.zeros(2), 3, 4)
    tensor([3., 3.])
    """
    given = list(bounds)
    if high is None and given:
        high = given.pop()
    if low is None and given:
        low = given.pop()
    if given or high is None:
        raise problem(DTypeError, "randint_like", f"bounds {bounds}", "high, or low and high")
    kind = input.dtype if dtype is None else as_dtype("randint_like", dtype)
    checked = integer_range("randint_like", 0 if low is None else low, high, kind)
    target = input.device if device is None else get(device)
    return make_leaf(whole_numbers(generator, *checked, input.shape, kind, target), requires_grad)


# ---- methods that write to their tensor -----------------------------------------------------------------------------


def _need_range(who: str, value: float, what: str, allowed: bool, expected: str) -> None:
    if not allowed:
        raise problem(RangeError, who, f"{what}={value}", expected)


def _fill(
    input: Tensor, who: str, generator: Generator | None, count: int, sample: Callable[..., Node], *args: Any
) -> Tensor:
    """Write samples of the tensor's own shape and dtype to it, which make `count` draws."""
    return input._replace(who, _draw(generator, input.device, count, sample, input.shape, input.dtype, *args))


@operation("method", of_tensors=True)
def uniform_(input: Tensor, from_: float = 0.0, to: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Take random numbers, uniform in [from_, to).

    >>> x = weft.empty(3).uniform_(2, 4)
    >>> bool(((x >= 2) & (x < 4)).all())
    True
    """
    need_float("uniform_", input.node)
    limit = finfo(input.dtype).max
    for name, value in (("from", from_), ("to", to)):
        _need_range("uniform_", value, name, -limit <= value <= limit, f"a number that fits {input.dtype.name}")
    if from_ > to or to - from_ > limit:
        expected = f"from <= to, at most {limit} apart"
        raise problem(RangeError, "uniform_", f"from={from_} and to={to}", expected)
    return _fill(input, "uniform_", generator, 1, draws.uniform_between, from_, to)


@operation("method", of_tensors=True)
def normal_(input: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Take normal random numbers."""
    need_float("normal_", input.node)
    _check_std("normal_", _number("normal_", std, "std"))
    return _fill(input, "normal_", generator, 2, draws.normal, mean, std)


@operation("method", of_tensors=True)
def log_normal_(input: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None) -> Tensor:
    """Take exp of normal random numbers with this mean and standard deviation."""
    need_float("log_normal_", input.node)
    _need_range("log_normal_", std, "std", std > 0, "above 0")
    return _fill(input, "log_normal_", generator, 2, draws.log_normal, mean, std)


@operation("method", of_tensors=True)
def exponential_(input: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Take exponential random numbers with mean 1 / lambd; none is 0."""
    need_float("exponential_", input.node)
    _need_range("exponential_", lambd, "lambd", lambd > 0, "above 0")
    return _fill(input, "exponential_", generator, 1, draws.exponential, lambd)


@operation("method", of_tensors=True)
def cauchy_(input: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Take random numbers of the Cauchy distribution."""
    need_float("cauchy_", input.node)
    _need_range("cauchy_", sigma, "sigma", sigma > 0, "above 0")
    return _fill(input, "cauchy_", generator, 1, draws.cauchy, median, sigma)


@operation("method", of_tensors=True)
def geometric_(input: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Take numbers of trials up to the first success, from 1 on, where each succeeds with probability `p`."""
    if input.dtype.kind == "b":
        raise problem(DTypeError, "geometric_", "a bool tensor", "a float or integer tensor")
    _need_range("geometric_", p, "p", 0 < p < 1, "above 0 and below 1")
    return _fill(input, "geometric_", generator, 1, draws.geometric, p)


@operation("method", of_tensors=True)
def bernoulli_(input: Tensor, p: Tensor | float = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Take 1 with probability `p`, a number or a tensor that broadcasts, and else 0.

    >>> weft.empty(2, 2).bernoulli_(weft.tensor([0.0, 1.0]))
    tensor([[0., 1.],
            [0., 1.]])
    """
    if not isinstance(p, Tensor):
        return input._replace("bernoulli_", _bernoulli_like(input, "bernoulli_", p, generator))
    need_float("bernoulli_", p.node)
    same_device("bernoulli_", [input.node, p.node])
    if broadcast_shapes("bernoulli_", [input.shape, p.shape]) != input.shape:
        raise problem(ShapeError, "bernoulli_", f"p of shape {p.shape}", f"one that broadcasts to {input.shape}")
    _check_probabilities("bernoulli_", p)
    node = build.expand_to(p.detach().node, input.shape)
    value = _draw(generator, input.device, 1, creation.bernoulli, node)
    return input._replace("bernoulli_", value.to(input.dtype))


@operation(
    "method",
    of_tensors=True,
    overloads=(
        "(input: Tensor, *, generator: Generator | None = None) -> Tensor",
        "(input: Tensor, to: int, *, generator: Generator | None = None) -> Tensor",
        "(input: Tensor, from_: int, to: int | None, *, generator: Generator | None = None) -> Tensor",
    ),
)
def random_(
    input: Tensor,
    *bounds: int | None,
    from_: int | None = None,
    to: int | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """Take random whole numbers: `random_(to)` in [0, to), `random_(from_, to)` in [from_, to). Without `to`, up to the
    largest number of the dtype, or in floats up to where all whole numbers are exact.

    >>> weft.empty(3, dtype=weft.int8).random_(4, 5)
    tensor([4, 4, 4], dtype=weft.int8)
    """
    given = list(bounds)
    high = given.pop() if to is None and given else to
    low = given.pop() if from_ is None and given else from_
    if given:
        raise problem(DTypeError, "random_", f"bounds {bounds}", "none, to, or from_ and to")
    kind = input.dtype
    if high is None:
        largest = 1 if kind.kind == "b" else _largest_exact(kind)
        high = largest + 1
    checked = integer_range("random_", 0 if low is None else low, high, kind)
    return input._replace("random_", Tensor(whole_numbers(generator, *checked, input.shape, kind, input.device)))


# ---- what `weft.nn.init` writes beside these -------------------------------------------------------------------------


def fill_truncated_normal(
    input: Tensor, who: str, generator: Generator | None, mean: float, std: float, low: float, high: float
) -> Tensor:
    """Take normal random numbers within [low, high]."""
    need_float(who, input.node)
    return _fill(input, who, generator, 1, draws.truncated_normal, mean, std, low, high)


def fill_orthogonal(input: Tensor, who: str, generator: Generator | None, gain: float) -> Tensor:
    """Take `gain` times a random matrix with orthonormal rows or columns."""
    need_float(who, input.node)
    return _fill(input, who, generator, 2, draws.orthogonal, gain)


def fill_sparse(input: Tensor, who: str, generator: Generator | None, std: float, zeros: int) -> Tensor:
    """Take normal random numbers, and 0 at random at `zeros` places of every column."""
    need_float(who, input.node)
    return _fill(input, who, generator, 3, draws.sparse_columns, std, zeros)
