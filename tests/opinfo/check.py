"""One operator of torch's table put through Weft: values, gradients, methods, in-place methods, errors, compiled.

Results stay lazy until all samples of one dtype are recorded, then they are computed together: one program compiles
faster than hundreds.
"""

from __future__ import annotations

import re
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import weft
from tests.opinfo import calls, database
from tests.opinfo.compare import Difference, distance, require_form
from tests.opinfo.convert import Converter, Untranslatable, leaves_of
from tests.opinfo.precise import in_float64
from tests.opinfo.ties import without_ties
from weft.base import tree

BATCH = 24  # samples that are computed together
VARIANT_SAMPLES = 2  # on so many samples methods and in-place methods are tried

# Operators whose values are drawn (or not defined): only parts, shapes and dtypes are compared.
RANDOM = (
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "uniform", "multinomial", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "randperm", "empty", "empty_like", "empty_permuted",
    "empty_strided", "new_empty", "new_empty_strided", "resize_", "resize_as_", "nn.functional.dropout",
    "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.alpha_dropout",
    "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.rrelu", "svd_lowrank", "pca_lowrank",
)  # fmt: skip
# Decompositions are unique up to signs: compared after the function that torch's own gradient tests apply.
UP_TO_SIGNS = ("svd", "linalg.svd", "linalg.eigh", "linalg.eig", "linalg.lstsq")
# What torch says of `maximum(x, 2)`, `eq(2, x)` and the like, where Weft takes the number for a tensor of one element.
TAKES_NO_NUMBER = re.compile(r"must be Tensor, not int|got \(int, Tensor\)|'int' object")
REFUSALS = (weft.WeftError, TypeError, ValueError, IndexError, NotImplementedError, OverflowError)


@dataclass
class Finding:
    """Something that failed. `what` is 'value', 'gradient', 'shape', 'dtype', 'parts', 'refused' (an error of Weft's),
    'crashed' (any other), 'missing' (no such method), 'silent' (no error where torch raises), 'number' (none for a
    number in the place of a tensor) or 'timeout'."""

    kind: str  # call, gradient, method, inplace, operator, compiled or error
    dtype: str
    sample: int
    what: str
    text: str
    call: str = ""

    def alike(self) -> tuple[str, ...]:
        """What findings have in common that are shown once."""
        return self.kind, self.dtype, self.what, self.text

    def line(self) -> str:
        return f"{self.kind} {self.dtype} sample {self.sample}: {self.what}: {self.text} | {self.call}"


@dataclass
class Outcome:
    """What became of an operator. `path` is the function of Weft, '' where there is none."""

    key: str
    path: str = ""
    wanted: str = ""  # where the function would be
    is_random: bool = False
    tried: Counter[str] = field(default_factory=Counter)  # by kind
    skipped: Counter[str] = field(default_factory=Counter)  # by reason
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    def failed(self, *kinds: str) -> list[Finding]:
        return [one for one in self.findings if one.kind in kinds]

    def failed_samples(self) -> int:
        """Samples with a wrong value, form or gradient, or an error."""
        return len({(one.dtype, one.sample) for one in self.failed("call", "gradient")})

    def passes_samples(self) -> bool:
        return bool(self.path) and not self.failed("call", "gradient")


@dataclass
class _Trial:
    """A sample on its way: Weft's results beside torch's, not computed yet."""

    index: int
    sample: Any
    call: calls.Call
    ours: list[Any] = field(default_factory=list)
    theirs: list[Any] = field(default_factory=list)
    gradients: list[tuple[weft.Tensor | None, torch.Tensor]] = field(default_factory=list)

    def tensors(self) -> list[weft.Tensor]:
        found = [one for one in self.ours if isinstance(one, weft.Tensor)]
        return found + [one for one, _ in self.gradients if one is not None]


class OutOfTime(BaseException):
    """Raised in the middle of whatever runs when an operator has had its seconds."""


def check_operator(key: str, limit: int | None = None, seconds: int = 300) -> Outcome:
    """Run the samples of one operator: all, or at most `limit` of each dtype."""
    begin = time.perf_counter()
    outcome = Outcome(key)
    with warnings.catch_warnings(), _alarm(seconds):
        warnings.simplefilter("ignore")
        check = _Check(database.operators()[key], outcome, limit)
        try:
            check.run()
        except OutOfTime:
            outcome.findings.append(Finding("call", "", -1, "timeout", f"not done after {seconds} s"))
        except Exception as error:  # of the check itself: found with the operator that it fails for
            outcome.findings.append(Finding("call", "", -1, "crashed", f"{type(error).__name__}: {error}"))
    outcome.seconds = time.perf_counter() - begin
    return outcome


class _Check:
    def __init__(self, info: Any, outcome: Outcome, limit: int | None):
        self.info, self.outcome, self.limit = info, outcome, limit
        self.dtype = ""
        outcome.is_random = info.name in RANDOM

    def run(self) -> None:
        self.outcome.wanted = calls.named_path(self.info)
        for dtype in database.dtypes_of(self.info):
            self.dtype = dtype
            samples = database.samples_of(self.info, dtype, self.limit)
            trials = [trial for trial in map(self._start, range(len(samples)), samples) if trial is not None]
            if not self.outcome.path:
                if self.outcome.skipped["no such function"]:
                    return
                continue
            for first in range(0, len(trials), BATCH):
                self._finish(trials[first : first + BATCH])
            self._try_variants(samples[:VARIANT_SAMPLES])
            if trials and dtype == database.dtypes_of(self.info)[0]:
                self._try_compiled(trials[0])
        if not self.outcome.path:  # no sample that can be run here
            self.outcome.path = calls.locate(self.outcome.wanted)
        self._try_errors()

    # --- samples: values and gradients -------------------------------------------------------------------------------

    def _start(self, index: int, sample: Any) -> _Trial | None:
        """Record a sample in both; None if it failed, or cannot be said in Weft."""
        converter = Converter()
        try:
            converter.value((sample.input, *sample.args))  # before torch writes to it
            call, result = calls.record(self.info, sample)
            self.outcome.wanted = call.path
            function = calls.find(call.path)
            if function is None:
                self.outcome.skipped["no such function"] += 1
                return None
            self.outcome.path = calls.locate(call.path)
            args, kwargs = converter.value(tuple(call.args)), converter.kwargs(call.kwargs)
            theirs = leaves_of(result)
            for one in theirs:
                if isinstance(one, torch.Tensor):
                    converter.check(one)
        except Untranslatable as reason:
            self.outcome.skipped[str(reason)] += 1
            return None
        except calls.Refused:
            self.outcome.skipped["torch refuses the sample"] += 1
            return None
        self.outcome.tried["call"] += 1
        trial = _Trial(index, sample, call)
        try:
            ours = function(*args, **kwargs)
            if self.info.name in UP_TO_SIGNS:
                ours, theirs = sample.output_process_fn_grad(ours), leaves_of(sample.output_process_fn_grad(result))
            trial.ours, trial.theirs = leaves_of(ours), theirs
            require_form(trial.ours, trial.theirs)
            trial.ours, trial.theirs = without_ties(self.info.name, call, trial.ours, trial.theirs)
        except Exception as error:
            self._note("call", trial, error)
            return None
        if converter.leaves and not (converter.composed or self.outcome.is_random or _drops(call)):
            self._differentiate(trial, converter.leaves)
        return trial

    def _differentiate(self, trial: _Trial, leaves: list[tuple[torch.Tensor, weft.Tensor]]) -> None:
        theirs, weights = weighted(trial.theirs)
        if not theirs:
            return
        try:
            found = torch.autograd.grad(theirs, [one for one, _ in leaves], weights, allow_unused=True)
        except (RuntimeError, NotImplementedError):
            self.outcome.skipped["torch has no gradient"] += 1
            return
        self.outcome.tried["gradient"] += 1
        try:
            pairs = zip(trial.ours, trial.theirs, strict=True)
            roots = [one for one, other in pairs if isinstance(other, torch.Tensor) and other.requires_grad]
            terms = [
                (root.float() * weft.tensor(weight.float().numpy())).sum()
                for root, weight in zip(roots, weights, strict=True)
                if root.requires_grad
            ]
            if terms:
                sum(terms[1:], terms[0]).backward()
            trial.gradients = [
                (one.grad, torch.zeros_like(other) if gradient is None else gradient)
                for (other, one), gradient in zip(leaves, found, strict=True)
            ]
        except Exception as error:
            self._note("gradient", trial, error)

    def _finish(self, trials: list[_Trial]) -> None:
        """Compute the results of several samples and compare them."""
        try:
            weft.eval(*[one for trial in trials for one in trial.tensors()])
        except Exception:
            if len(trials) > 1:
                for trial in trials:
                    self._finish([trial])
                return
        for trial in trials:
            try:
                weft.eval(*trial.tensors())
                self._compare(trial)
            except Exception as error:
                self._note("call", trial, error)

    def _compare(self, trial: _Trial) -> None:
        if self.outcome.is_random or _drops(trial.call):
            return
        gradients = [(weft.zeros(tuple(other.shape)) if one is None else one, other) for one, other in trial.gradients]
        for kind, pairs in (("call", list(zip(trial.ours, trial.theirs, strict=True))), ("gradient", gradients)):
            if not any(distance(one, other) for one, other in pairs):
                continue
            precise = in_float64(self.info, trial.sample, self.info.name in UP_TO_SIGNS)
            true = [None] * len(pairs) if precise is None else precise[kind]
            for (one, other), exact in zip(pairs, true, strict=True):
                text = distance(one, other, exact)
                if text:
                    self._note(kind, trial, Difference("value" if kind == "call" else "gradient", text))
                    break

    # --- other ways to call ------------------------------------------------------------------------------------------

    def _try_variants(self, samples: list[Any]) -> None:
        ways = (("method", "method_variant"), ("inplace", "inplace_variant"), ("operator", "operator_variant"))
        for kind, attribute in ways:
            theirs = getattr(self.info, attribute, None)
            if theirs is None or not callable(theirs) or self.info.name.startswith("__"):
                continue
            for index, sample in enumerate(samples):
                self._try_variant(kind, theirs, index, sample)

    def _try_variant(self, kind: str, theirs: Callable[..., Any], index: int, sample: Any) -> None:
        converter = Converter()
        try:
            given = sample.input.detach().clone() if isinstance(sample.input, torch.Tensor) else sample.input
            given_args = converter.value((given, *sample.args))  # before torch writes to it
            with torch.no_grad():
                call, result = calls.record_variant(theirs, given, sample)
            args, kwargs = converter.value(tuple(call.args)), converter.kwargs(call.kwargs)
            expected = leaves_of(result)
            for one in expected:
                if isinstance(one, torch.Tensor):
                    converter.check(one)
        except Exception:  # not expressed so in Weft, or in torch: broadcast operands cannot be written to, for example
            return
        self.outcome.tried[kind] += 1
        trial = _Trial(index, sample, call)
        ours = calls.find(call.path)
        if kind == "operator":
            ours, args = theirs, given_args
        if ours is None:
            self._note(kind, trial, Difference("missing", f"no {call.path}"))
            return
        try:
            with weft.no_grad():
                found = leaves_of(ours(*args, **kwargs))
            require_form(found, expected)
            if kind == "inplace" and found[0] is not args[0]:
                raise Difference("value", "gave another tensor than the one written to")
            found, expected = without_ties(self.info.name, call, found, expected)
            self._require_values(found, expected)
        except Exception as error:
            self._note(kind, trial, error)

    def _require_values(self, found: list[Any], expected: list[Any]) -> None:
        weft.eval(*[one for one in found if isinstance(one, weft.Tensor)])
        if self.outcome.is_random or self.info.name in UP_TO_SIGNS:
            return
        for one, other in zip(found, expected, strict=True):
            text = distance(one, other)
            if text and not _is_near(one, other):
                raise Difference("value", text)

    def _try_compiled(self, trial: _Trial) -> None:
        """The same bits compiled as eager."""
        function = calls.find(trial.call.path)
        if function is None or trial.call.path.endswith("_") or self.outcome.is_random or _drops(trial.call):
            return
        converter = Converter()
        args, kwargs = converter.value(tuple(trial.call.args)), converter.kwargs(trial.call.kwargs)
        flat, structure = tree.flatten((args, kwargs))
        static = [None if isinstance(one, weft.Tensor) else one for one in flat]
        tensors = [one.detach() for one in flat if isinstance(one, weft.Tensor)]
        places = [place for place, one in enumerate(flat) if isinstance(one, weft.Tensor)]

        def call(*given: weft.Tensor) -> Any:
            leaves = list(static)
            for place, one in zip(places, given, strict=True):
                leaves[place] = one
            args, kwargs = tree.unflatten(structure, leaves)
            return function(*args, **kwargs)

        eager = leaves_of(call(*tensors))
        if not tensors or not all(isinstance(one, weft.Tensor) for one in eager):
            return
        self.outcome.tried["compiled"] += 1
        try:
            compiled = leaves_of(weft.compile(call)(*tensors))
            for one, other in zip(compiled, eager, strict=True):
                if one.dtype is not other.dtype or not _has_same_bits(one, other):
                    raise Difference("value", "compiled differs from eager")
        except weft.GraphError as error:
            if "compile" not in str(error):
                self._note("compiled", trial, error)
            else:  # a shape that depends on values
                self.outcome.tried["compiled"] -= 1
                self.outcome.skipped["cannot be part of a compiled function"] += 1
        except Exception as error:
            self._note("compiled", trial, error)

    # --- errors ------------------------------------------------------------------------------------------------------

    def _try_errors(self) -> None:
        self.dtype = "errors"
        for index, sample in enumerate(database.error_samples_of(self.info)):
            converter = Converter()
            try:
                converter.value((sample.input, *sample.args))
                calls.record(self.info, sample)
                continue  # torch raises elsewhere, on a GPU perhaps
            except Untranslatable as reason:
                self.outcome.skipped[f"error with {reason}"] += 1
                continue
            except calls.Refused as refused:
                call, message = refused.call, str(refused)
            try:
                args, kwargs = converter.value(tuple(call.args)), converter.kwargs(call.kwargs)
            except Untranslatable as reason:
                self.outcome.skipped[f"error with {reason}"] += 1
                continue
            function = calls.find(call.path)
            if function is None:
                continue
            self.outcome.tried["error"] += 1
            trial = _Trial(index, sample, call)
            try:
                found = leaves_of(function(*args, **kwargs))
                weft.eval(*[one for one in found if isinstance(one, weft.Tensor)])
                what = "number" if TAKES_NO_NUMBER.search(message) else "silent"
                self._note("error", trial, Difference(what, f"torch says: {message[:120]}"))
            except REFUSALS:
                pass
            except Exception as error:
                self._note("error", trial, error)

    def _note(self, kind: str, trial: _Trial, error: Exception) -> None:
        if isinstance(error, Difference):
            what = error.kind
        else:
            what = "refused" if isinstance(error, REFUSALS) else "crashed"
        text = str(error) if isinstance(error, Difference) else f"{type(error).__name__}: {error}"
        finding = Finding(kind, self.dtype, trial.index, what, " ".join(text.split())[:300], trial.call.text()[:300])
        self.outcome.findings.append(finding)


def weighted(results: list[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The results that can be differentiated, and the fixed weights of their elements in the sum that is."""
    roots = [one for one in results if isinstance(one, torch.Tensor) and one.requires_grad]
    weights = [torch.cos(torch.arange(one.numel()).double() + 0.5).to(one.dtype).reshape(one.shape) for one in roots]
    return roots, weights


def _drops(call: calls.Call) -> bool:
    """Whether a call drops elements at random."""
    place = {"multi_head_attention_forward": 10, "scaled_dot_product_attention": 4}.get(call.path.rpartition(".")[2])
    given = call.args[place] if place is not None and len(call.args) > place else call.kwargs.get("dropout_p", 0.0)
    return float(given) > 0.0


def _is_near(one: Any, other: Any) -> bool:
    """Whether floats agree to four digits, or small ones beside large ones to the rounding of those; that the function
    itself is precise, its samples have shown."""
    if not isinstance(other, torch.Tensor) or not other.is_floating_point():
        return False
    expected = other.detach().numpy()
    largest = np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected))
    return bool(np.allclose(one.numpy(), expected, 1e-4, max(1e-4, 2e-6 * largest), equal_nan=True))


def _has_same_bits(one: weft.Tensor, other: weft.Tensor) -> bool:
    first, second = one.numpy(), other.detach().numpy()
    return first.shape == second.shape and np.array_equal(first, second, equal_nan=first.dtype.kind == "f")


@contextmanager
def _alarm(seconds: int) -> Any:
    """Raise OutOfTime inside after some seconds of computing, or ten times as many of waiting; in a main thread."""

    def ring(*_: Any) -> None:
        raise OutOfTime

    before = [signal.signal(number, ring) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(10 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        signal.signal(signal.SIGPROF, before[0])
        signal.signal(signal.SIGALRM, before[1])
