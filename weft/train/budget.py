"""Fit a training step into a memory budget: which modules compute their activations again instead of keeping them.

Everything is decided from predicted peaks (`Compiled.predicted`): a step is traced and planned for each choice, nothing
is compiled, allocated or run. The peak of a plan is inputs, parameters, gradients and optimizer state, results, and the
arena of its temporaries, to the byte.

    modules that the step calls -> Candidate(path, segments, bytes that it keeps)
        -> families of candidates: one level of the module tree each, two levels, parts of Sequentials
        -> the whole family: is the budget reachable with it?
        -> greedily, what keeps most comes first: the shortest beginning of the family that is within the budget
        -> the family that computes least again
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from weft.base import tree
from weft.base.errors import GraphError, OutOfMemoryError, RangeError, problem, size_text
from weft.core.tensor import Tensor
from weft.jit.compiled import Compiled
from weft.nn.containers import Sequential
from weft.nn.module import Module

# Files of weft.nn whose modules are one operation: to compute one again saves nothing.
SINGLE = frozenset({
    "activation", "adaptive_pooling", "batch_and_instance_norm", "convolution", "convolution_variants", "distance",
    "dropout", "embedding", "linear", "loss", "margin_loss", "named_activation", "normalization", "padding", "pooling",
    "softmax", "upsampling", "utility",
})  # fmt: skip
MIN_RUN = 4  # children of a Sequential from which it is divided into parts
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12} | {
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A module that could be computed again: `segments` is what its `checkpoint` would be, `kept` the bytes of the
    results inside it that are kept otherwise."""

    path: str
    module: Module
    segments: bool | int
    kept: int


@dataclass(frozen=True)
class Segments:
    """What `apply` chose: the paths of the modules whose `checkpoint` is set, the peak that is predicted with them, the
    one without, and the budget. Print it for a table."""

    modules: dict[str, bool | int]
    peak: int
    without: int
    limit: int

    def join(self, later: Segments) -> Segments:
        """These and what was chosen later, for another form of batch: the peaks are the larger ones."""
        modules = {**self.modules, **later.modules}
        return Segments(modules, max(self.peak, later.peak), max(self.without, later.without), self.limit)

    def __str__(self) -> str:
        count = f"{len(self.modules)} module{'' if len(self.modules) == 1 else 's'} computed again"
        lines = [
            f"{size_text(self.peak)} predicted, {size_text(self.without)} without, "
            f"budget {size_text(self.limit)}: {count}"
        ]
        for path, segments in self.modules.items():
            lines.append(f"  {path or '(the model)'}" + ("" if segments is True else f" in {segments} parts"))
        return "\n".join(lines)


def parse_bytes(limit: float | str) -> int:
    """A budget as a number of bytes: `4 * 10**9`, "4 GB" or "512 MiB".

    >>> parse_bytes("4 GB"), parse_bytes("1.5KiB")
    (4000000000, 1536)
    """
    if isinstance(limit, str):
        text = limit.strip().replace(" ", "").lower()
        number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
        try:
            found = float(number) * UNITS[text[len(number) :]]
        except (KeyError, ValueError):
            raise problem(RangeError, "memory budget", repr(limit), "bytes, or a text such as '4 GB'") from None
    else:
        found = float(limit)
    if not 0 < found < math.inf:
        raise problem(RangeError, "memory budget", f"{limit}", "more than 0 bytes")
    return int(found)


def form_of(step: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """What the memory that a compiled function takes depends on: the function, and shapes and dtypes of arguments."""
    leaves = args if all(type(one) is Tensor for one in args) else tree.flatten(args)[0]
    return weakref.ref(step), *[(one.shape, one.dtype) for one in leaves if isinstance(one, Tensor)]


def check(who: str, step: Compiled, args: Sequence[Any], limit: int) -> None:
    """Refuse what takes more than `limit` bytes, before it is compiled or run."""
    peak = step.predicted(*args).peak
    if peak > limit:
        given = f"a batch that takes {peak} bytes ({size_text(peak)})"
        raise problem(OutOfMemoryError, who, given, f"the memory budget of {size_text(limit)}", "use a smaller batch")


def apply(model: Module, step: Callable[..., Any], args: Sequence[Any], limit: float | str) -> Segments:
    """Set `checkpoint` of modules of `model` so that `step(*args)`, compiled, takes at most `limit` bytes; before it is
    compiled or run. What was set before stays set. Where no choice is small enough, nothing is changed and the error
    says what the smallest peak is.

    >>> block = lambda: weft.nn.Sequential(weft.nn.Linear(8, 64), weft.nn.GELU(), weft.nn.Linear(64, 8))
    >>> model = weft.nn.Sequential(*[block() for _ in range(4)])
    >>> def step(x):
    ...     model(x).square().mean().backward()
    ...     return [param.grad for param in model.parameters()]
    >>> segments = apply(model, step, [weft.ones(256, 8)], "500 kB")
    >>> segments.peak <= 500_000 < segments.without
    True
    """
    if not isinstance(model, Module):
        raise problem(GraphError, "memory budget", f"a {type(model).__name__} as model", "a module")
    bound = parse_bytes(limit)
    compiled = step if isinstance(step, Compiled) else Compiled(step)
    with _count_bytes(model) as kept:
        without = compiled.predicted(*args).peak
    if without <= bound:
        return Segments({}, without, without, bound)
    search = _Search(model, compiled, args, bound, without, kept)
    with search.preserving_modules():
        chosen = search.best()
    if chosen is None:
        given = f"{size_text(bound)} for a step that takes {size_text(without)}"
        expected = f"at least {search.smallest} bytes ({size_text(search.smallest)}), the least that can be reached"
        fix = "use a smaller batch, 16-bit floats (weft.autocast), or a larger budget"
        raise problem(OutOfMemoryError, "memory budget", given, expected, fix)
    modules, peak = chosen
    for one in modules:
        one.module.checkpoint = one.segments
    return Segments({one.path: one.segments for one in modules}, peak, without, bound)


class _Search:
    """The candidates of one model, and the peaks that were predicted so far."""

    def __init__(
        self, model: Module, compiled: Compiled, args: Sequence[Any], limit: int, without: int, kept: dict[str, int]
    ):
        self.compiled, self.args, self.limit, self.smallest = compiled, args, limit, without
        self.without, self.kept = without, kept
        self.modules = {path: module for path, module in model.named_modules() if path in kept}

    @contextmanager
    def preserving_modules(self) -> Iterator[None]:
        """Afterwards all modules are as they were."""
        before = {module: module.__dict__.get("checkpoint") for module in self.modules.values()}
        try:
            yield
        finally:
            for module, value in before.items():
                _restore(module, value)

    def best(self) -> tuple[list[Candidate], int] | None:
        """The choice within the budget that computes least again, with its peak; None where there is none."""
        found: list[tuple[int, list[Candidate], int]] = []
        for family in self.families():
            peak = self.peak(family)
            if peak <= self.limit:
                count, peak = self._shortest(family, peak)
                chosen = family[:count]
                found.append((sum(one.kept for one in chosen), chosen, peak))
        if not found:
            return None
        _, chosen, peak = min(found, key=lambda item: item[0])
        return chosen, peak

    def _shortest(self, family: list[Candidate], peak: int) -> tuple[int, int]:
        """How many of the first candidates are enough, with their peak: `peak` is that of all."""
        low, high = 0, len(family)  # `low` are too few
        while high - low > 1:
            middle = (low + high) // 2
            found = self.peak(family[:middle])
            if found <= self.limit:
                high, peak = middle, found
            else:
                low = middle
        return high, peak

    def peak(self, chosen: Sequence[Candidate]) -> int:
        """The predicted peak with these modules computed again."""
        with self.preserving_modules():
            for one in chosen:
                one.module.checkpoint = one.segments
            found = self.compiled.predicted(*self.args).peak
        self.smallest = min(self.smallest, found)
        return found

    def families(self) -> list[list[Candidate]]:
        """Sets of candidates to try, each with what keeps most first."""
        levels = self._levels()
        runs = [
            Candidate(path, module, round(math.sqrt(len(module))), self._bytes_inside(path))
            for path, module in self.modules.items()
            if isinstance(module, Sequential) and len(module) >= MIN_RUN
        ]
        inner = [one for one in runs if not any(_is_inside(other.path, one.path) for other in runs)]
        outer = [one for one in runs if not any(_is_inside(one.path, other.path) for other in runs)]
        pairs = [[*above, *below] for above, below in itertools.pairwise(levels)]
        made = [*levels, inner, outer, *pairs]
        made = [sorted({one.path: one for one in family}.values(), key=lambda one: -one.kept) for family in made]
        unique: dict[tuple, list[Candidate]] = {}
        for family in made:
            if family:
                unique.setdefault(tuple((one.path, one.segments) for one in family), family)
        return list(unique.values())

    def _levels(self) -> list[list[Candidate]]:
        """The modules worth computing again by their depth in the tree, the outermost first, but for the model."""
        levels: dict[int, list[Candidate]] = {}
        for path, module in self.modules.items():
            if path and self._is_composed(path, module):
                one = Candidate(path, module, True, self._bytes_inside(path))
                levels.setdefault(path.count("."), []).append(one)
        return [levels[depth] for depth in sorted(levels)]

    def _is_composed(self, path: str, module: Module) -> bool:
        """Whether a module is more than one operation."""
        if any(_is_inside(other, path) for other in self.modules):
            return True
        package, _, file = type(module).__module__.rpartition(".")
        return not f"{package}.".startswith("weft.nn.") or file not in SINGLE

    def _bytes_inside(self, path: str) -> int:
        """Bytes of the results of what a module consists of, without those that leave it."""
        leaves = [
            nbytes
            for other, nbytes in self.kept.items()
            if _is_inside(other, path) and not any(_is_inside(third, other) for third in self.kept)
        ]
        return max(sum(leaves) - self.kept[path], 0) if leaves else self.kept[path]


def _is_inside(path: str, outer: str) -> bool:
    return path != outer and (not outer or path.startswith(outer + "."))


def _restore(module: Module, value: Any) -> None:
    if value is None:
        if "checkpoint" in module.__dict__:
            del module.checkpoint
    elif module.__dict__.get("checkpoint") is not value:
        module.checkpoint = value


@contextmanager
def _count_bytes(model: Module) -> Iterator[dict[str, int]]:
    """Inside, the bytes of the results of each module that is called, by its path."""
    found: dict[str, int] = {}

    def count(path: str) -> Callable[[Any, Any, Any], None]:
        def note(module: Any, args: Any, result: Any) -> None:
            results = [leaf for leaf in tree.flatten(result)[0] if isinstance(leaf, Tensor)]
            found[path] = found.get(path, 0) + sum(leaf.numel() * leaf.dtype.itemsize for leaf in results)

        return note

    handles = [module.register_forward_hook(count(path)) for path, module in model.named_modules()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
