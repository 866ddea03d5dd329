"""Generating tokens with a language model: filters of logits, sampling, and a compiled decoding loop.

State of one decoding (`_Decoding`), all of it on the model's device: `tokens` [B, prompt + new] with the prompt and
what was sampled so far, `position` (the next column to fill), and `finished` [B]. The path of a token: a compiled step
reads the last column (with a key-value cache) or all of `tokens` (without one: a causal model does not see what is
empty behind the position), samples from the logits and writes the next column. Shapes never change, so there is one
plan for the prompt and one for all other tokens, and nothing is read by the host until the end; with stop tokens every
16th step. This module knows models only by how they are called.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.autograd import no_grad
from weft.base.dtypes import bool_, float32, float64, int64
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.core.creation import arange, full, zeros
from weft.core.tensor import Tensor
from weft.jit.compiled import compile
from weft.names.functions import cat, cumsum, multinomial, softmax, sort, topk, where
from weft.random.generator import Generator

__all__ = ["filter_top_k", "filter_top_p", "generate", "sample"]

STEPS_BETWEEN_READS = 16  # of whether all rows have met a stop token
LEAST_DIVISOR = 2.0**-126  # the least temperature but 0: the least normal number of float32


def filter_top_k(logits: Tensor, k: int) -> Tensor:
    """The `k` largest logits of each row [..., V]; the others become -inf. What equals the k-th largest is kept, too,
    and a `k` of V or more keeps all.

    >>> weft.generation.filter_top_k(weft.tensor([1.0, 3.0, 2.0]), 2)
    tensor([-inf, 3., 2.])
    """
    _check_logits("filter_top_k", logits)
    _check_top_k("filter_top_k", k)
    if k >= logits.shape[-1]:
        return logits
    least = topk(logits, k).values[..., -1:]
    return logits.masked_fill(logits < least, -math.inf)


def filter_top_p(logits: Tensor, p: float) -> Tensor:
    """The largest logits of each row [..., V] whose probabilities first add up to at least `p`; the others become -inf.
    One is always kept, and so is what equals the least that is kept. After Holtzman et al. (2020), nucleus sampling.

    >>> weft.generation.filter_top_p(weft.tensor([0.5, 0.3, 0.2]).log(), 0.6)
    tensor([-0.6931, -1.2040,    -inf])
    """
    _check_logits("filter_top_p", logits)
    _check_top_p("filter_top_p", p)
    if p == 1.0:
        return logits
    ordered = sort(logits, descending=True).values
    probabilities = softmax(_widen_logits(ordered), -1)
    before = cumsum(probabilities, -1) - probabilities  # the sum of all that are more probable
    is_kept = (before < p) | (ordered == ordered[..., :1])  # the sum before the first may be rounded to above 0
    least = ordered.masked_fill(~is_kept, math.inf).amin(-1, keepdim=True)
    return logits.masked_fill(logits < least, -math.inf)


def sample(
    logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """One index for each row of logits [..., V], int64 [...]: drawn from softmax(logits / temperature) after
    `filter_top_k` and then `filter_top_p`. A temperature of 0 takes the largest logit (the first of equals).

    >>> weft.generation.sample(weft.tensor([[0.0, 2.0, 1.0], [5.0, 1.0, 1.0]]), temperature=0)
    tensor([1, 0])
    """
    _check_logits("sample", logits)
    _check_options("sample", temperature, top_k, top_p)
    divisor = max(temperature, LEAST_DIVISOR)
    return _draw(logits, divisor, top_k, top_p, generator) if temperature else logits.argmax(-1)


def _draw(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: Generator | None
) -> Tensor:
    logits = _widen_logits(logits)
    logits = (logits - logits.amax(-1, keepdim=True)) / temperature  # the largest is 0, whatever it is divided by
    if top_k is not None:
        logits = filter_top_k(logits, top_k)
    if top_p is not None:
        logits = filter_top_p(logits, top_p)
    rows = softmax(logits, -1).reshape(-1, logits.shape[-1])
    return multinomial(rows, 1, generator=generator).reshape(*logits.shape[:-1])


def generate(
    model: Any, tokens: Tensor, max_new_tokens: int, temperature: float = 1.0, top_k: int | None = None,
    top_p: float | None = None, cache: Any = None, generator: Generator | None = None,
    stop: int | Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """The tokens [B, T] or [T] followed by up to `max_new_tokens` that the model samples one after the other.

    `model(tokens)` returns logits [B, T, V] and is causal: logits of a position depend on tokens up to it. A model with
    `make_cache(batch, max_len)` is called as `model(tokens, cache=cache)` with the tokens that are new, and computes
    each position once. What `make_cache` returns is a `nn.KeyValueCache` or a list, tuple or dict of them.

    - `temperature`, `top_k`, `top_p`, `generator`: as in `sample`.
    - `cache`: None makes one if the model has `make_cache`, False does without, and one that was made before is used
      as it is: `tokens` then follow those that it has seen. The last token of the result is not in it yet.
    - `stop`: a token, or several, after which a row ends; the row is filled up with that token, and the result is as
      long as the longest row.

    The model computes in evaluation mode and without gradients. See `examples/char_gpt.py`.

    >>> successor = lambda tokens: weft.nn.functional.one_hot((tokens + 1) % 5, 5).float()
    >>> weft.generation.generate(successor, weft.tensor([2]), 4, temperature=0)
    tensor([2, 3, 4, 0, 1])
    """
    stops = _check_stop(stop)
    _check_tokens(tokens, max_new_tokens)
    _check_options("generate", temperature, top_k, top_p)
    if not max_new_tokens:
        return tokens.long().clone()  # as with any other number
    rows = tokens if tokens.ndim == 2 else tokens.unsqueeze(0)
    with no_grad(), _evaluation_mode(model):
        cache = _prepare_cache(model, cache, rows.shape[0], rows.shape[1] + max_new_tokens)
        decoding = _Decoding(model, rows, max_new_tokens, cache, stops)
        result = decoding.run(temperature, top_k, top_p, generator)
    return result if tokens.ndim == 2 else result.squeeze(0)


class _Decoding:
    """Tokens, position and ended rows of one call of `generate`; the compiled functions write them in place."""

    def __init__(self, model: Any, prompt: Tensor, new: int, cache: Any, stops: tuple[int, ...]):
        self.model, self.cache, self.stops, self.new = model, cache, stops, new
        batch, self.length = prompt.shape
        device = prompt.device
        self.tokens = cat([prompt.to(int64), zeros(batch, new, dtype=int64, device=device)], 1)
        self.position = full((1,), self.length, dtype=int64, device=device)
        self.finished = zeros(batch, dtype=bool_, device=device)
        self.failed = zeros(batch, dtype=bool_, device=device)  # rows with logits that are no distribution

    def run(self, temperature: float, top_k: int | None, top_p: float | None, generator: Generator | None) -> Tensor:
        """Sample until the end, or until all rows have ended; returns the prompt and what was sampled."""
        is_greedy = temperature == 0

        def advance(count: int, divisor: float) -> None:
            logits = self._logits(count)
            chosen = logits.argmax(-1) if is_greedy else _draw(logits, divisor, top_k, top_p, generator)
            self._write(logits, chosen)

        first, step = (
            compile(lambda divisor: advance(self.length, divisor)),
            compile(lambda divisor: advance(1, divisor)),
        )
        done = 0
        for done in range(1, self.new + 1):
            (first if done == 1 else step)(max(float(temperature), LEAST_DIVISOR))
            if self.stops and done % STEPS_BETWEEN_READS == 0 and bool(self.finished.all()):
                break
        if bool(self.failed.any()):
            given = "logits that are NaN or infinite"
            raise problem(RangeError, "generate", given, "finite logits", "look at the parameters of the model")
        return self.tokens[:, : self.length + self._count_used(done)].clone()

    def _logits(self, count: int) -> Tensor:
        """The logits [B, V] behind the last token; `count` tokens are new."""
        if self.cache is None:
            logits = _call(self.model, self.tokens)
            return logits.index_select(1, self.position - 1).squeeze(1)
        columns = self.position - count + arange(count, device=self.tokens.device)
        return _call(self.model, self.tokens.index_select(1, columns), cache=self.cache)[:, -1]

    def _write(self, logits: Tensor, chosen: Tensor) -> None:
        """Put the next token of each row into its column; rows that have ended repeat their stop token."""
        fails = ~logits.amax(-1).isfinite()
        self.failed.copy_(self.failed | fails)
        chosen = where(fails, 0, chosen)
        if self.stops:
            last = self.tokens.index_select(1, self.position - 1).squeeze(1)
            chosen = where(self.finished, last, chosen)
            self.finished.copy_(self.finished | _is_among(chosen, self.stops))
        self.tokens.index_copy_(1, self.position, chosen.unsqueeze(1))
        self.position.add_(1)

    def _count_used(self, done: int) -> int:
        """How many new tokens the longest row has, its stop token included."""
        if not self.stops:
            return done
        is_stop = _is_among(self.tokens[:, self.length : self.length + done], self.stops).numpy()
        return int(np.where(is_stop.any(1), is_stop.argmax(1) + 1, done).max())


def _call(model: Any, tokens: Tensor, **options: Any) -> Tensor:
    logits = model(tokens, **options)
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != tokens.shape:
        form = f"a tensor of shape {logits.shape}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        expected = f"logits of shape ({tokens.shape[0]}, {tokens.shape[1]}, V)"
        raise problem(ShapeError, "generate", f"a model that returns {form}", expected)
    return logits


def _is_among(values: Tensor, tokens: tuple[int, ...]) -> Tensor:
    found = values == tokens[0]
    for token in tokens[1:]:
        found = found | (values == token)
    return found


def _widen_logits(logits: Tensor) -> Tensor:
    """Probabilities are computed in float32 at least."""
    return logits if logits.dtype is float64 else logits.to(float32)


@contextlib.contextmanager
def _evaluation_mode(model: Any) -> Iterator[None]:
    """Inside, a module is in evaluation mode; afterwards each of its parts is in the mode that it was in."""
    modes = [(part, part.training) for part in model.modules()] if hasattr(model, "modules") else []
    if any(mode for _, mode in modes):
        model.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            if part.training is not mode:
                part.training = mode


# ---- caches ----------------------------------------------------------------------------------------------------------


def _prepare_cache(model: Any, cache: Any, batch: int, length: int) -> Any:
    """The cache to use, or None: made by the model, or the given one if it has room for `length` more positions."""
    if cache is False or (cache is None and not hasattr(model, "make_cache")):
        return None
    if cache is None or cache is True:
        if not hasattr(model, "make_cache"):
            given = f"cache=True with a model of type {type(model).__name__}"
            fix = "write make_cache, or pass cache=False"
            raise problem(RangeError, "generate", given, "a model with make_cache(batch, max_len)", fix)
        return model.make_cache(batch, length - 1)  # the last token is not fed back
    for one in _each_cache(cache):
        needed = int(one.length) + length - 1
        if needed > one.max_len:
            given = f"a cache of {one.max_len} positions"
            raise problem(RangeError, "generate", given, f"one of {needed} at least", "make the cache longer")
    return cache


def _each_cache(cache: Any) -> Iterator[Any]:
    if isinstance(cache, (list, tuple, dict)):
        for one in cache.values() if isinstance(cache, dict) else cache:
            yield from _each_cache(one)
    elif hasattr(cache, "max_len") and hasattr(cache, "length"):
        yield cache
    else:
        given = (
            f"cache={cache!r}" if isinstance(cache, (str, int, float)) else f"a cache of type {type(cache).__name__}"
        )
        raise problem(RangeError, "generate", given, "None, False, or what the model's make_cache returned")


# ---- checks of arguments ---------------------------------------------------------------------------------------------


def _check_logits(who: str, logits: Tensor) -> None:
    if not isinstance(logits, Tensor) or logits.dtype.kind != "f":
        form = logits.dtype.name if isinstance(logits, Tensor) else type(logits).__name__
        raise problem(DTypeError, who, f"logits of type {form}", "a tensor of floats")
    if not logits.ndim or not logits.shape[-1]:
        raise problem(ShapeError, who, f"logits of shape {logits.shape}", "[..., V] with at least one logit in a row")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _check_top_k(who: str, k: Any) -> None:
    if not _is_whole(k) or k < 1:
        raise problem(RangeError, who, f"top_k={k!r}", "a whole number of at least 1")


def _check_top_p(who: str, p: Any) -> None:
    if not _is_number(p) or not 0.0 < p <= 1.0:
        raise problem(RangeError, who, f"top_p={p!r}", "a number above 0 and up to 1")


def _check_options(who: str, temperature: Any, top_k: Any, top_p: Any) -> None:
    if not _is_number(temperature) or not 0.0 <= temperature < math.inf:
        raise problem(RangeError, who, f"temperature={temperature!r}", "0, or a finite number above it")
    if top_k is not None:
        _check_top_k(who, top_k)
    if top_p is not None:
        _check_top_p(who, top_p)


def _check_tokens(tokens: Any, new: Any) -> None:
    if not isinstance(tokens, Tensor) or tokens.dtype.kind not in "iu":
        form = tokens.dtype.name if isinstance(tokens, Tensor) else type(tokens).__name__
        raise problem(DTypeError, "generate", f"tokens of type {form}", "a tensor of whole numbers")
    if tokens.ndim not in (1, 2) or not tokens.numel():
        raise problem(ShapeError, "generate", f"tokens of shape {tokens.shape}", "[T] or [B, T], with a token at least")
    if not _is_whole(new) or new < 0:
        raise problem(RangeError, "generate", f"max_new_tokens={new!r}", "a whole number from 0 on")


def _check_stop(stop: Any) -> tuple[int, ...]:
    """The stop tokens as a tuple, empty without one."""
    found = () if stop is None else (stop,) if _is_whole(stop) else stop
    if not isinstance(found, Sequence) or isinstance(found, str) or not all(_is_whole(token) for token in found):
        raise problem(RangeError, "generate", f"stop={stop!r}", "a token (a whole number) or a list of them")
    return tuple(int(token) for token in found)
