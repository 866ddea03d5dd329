"""What to find out before a run: a learning rate, a batch size, whether a model learns, where gradients vanish."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import weft
from weft.base import host_memory, tree
from weft.base.errors import GraphError, RangeError, ShapeError, problem
from weft.core.tensor import Tensor
from weft.train import nan, saving
from weft.train.batches import batches_of
from weft.train.step import present_numbers, train_on

if TYPE_CHECKING:
    from weft.train.trainer import Trainer

SHARE = 0.9  # of the free memory that a step may take


@contextlib.contextmanager
def _putting_back(trainer: Trainer) -> Iterator[None]:
    """Inside, the trainer may train; afterwards its state is what it was."""
    state = saving.state_of(trainer, everything=True)
    flags = trainer._has_started, trainer._is_seeded, trainer.is_loaded
    training = trainer.model.training
    trainer.model.train()
    try:
        yield
    finally:
        trainer.load_state_dict(state)
        trainer._has_started, trainer._is_seeded, trainer.is_loaded = flags
        trainer.model.train(training)
        with weft.no_grad():
            for optimizer in trainer.optimizers:
                for group in optimizer.param_groups:
                    group.write_numbers()


@dataclass(frozen=True)
class RateSearch:
    """Rates that were tried, the loss at each, and a rate to begin with."""

    rates: list[float]
    losses: list[float]
    suggestion: float

    def __repr__(self) -> str:
        return f"RateSearch(suggestion={self.suggestion:.3g}, {len(self.rates)} rates)"


def find_lr(trainer: Trainer, train: Any, min_lr: float, max_lr: float, steps: int) -> RateSearch:
    """See `Trainer.find_lr`. Losses are kept on the device and read once."""
    if not 0.0 < min_lr < max_lr or steps < 8:
        given = f"rates from {min_lr} to {max_lr} in {steps} steps"
        raise problem(RangeError, "find_lr", given, "0 < min_lr < max_lr and at least 8 steps")
    source = batches_of(train, trainer.device)
    rates = [min_lr * (max_lr / min_lr) ** (k / (steps - 1)) for k in range(steps)]
    names = [name for optimizer in trainer.optimizers for group in optimizer.param_groups for name in group.names()]
    is_rate = [name == "lr" for name in names]
    losses: list[Tensor] = []

    def with_rate(*args: Any) -> Tensor:
        cut = len(args) - len(names)
        return train_on(trainer, args[:cut], args[cut:], [], on_nan="skip")

    step = weft.compile(with_rate)
    with _putting_back(trainer), source.keeping_generator():
        for rate, batch in zip(rates, _repeat_epochs(source), strict=False):
            numbers = [
                rate if own else number
                for own, number in zip(is_rate, present_numbers(trainer.optimizers), strict=True)
            ]
            losses.append(step(*batch, *numbers))
        if len(losses) < steps:
            given = f"an iterator of {len(losses)} batches"
            raise problem(RangeError, "find_lr", given, f"{steps}, one for each rate", "pass a DataLoader, or steps=")
        found = weft.stack(losses).tolist()
    return RateSearch(rates, found, _suggest_rate(rates, found))


def _suggest_rate(rates: list[float], losses: list[float]) -> float:
    """A tenth of the rate at which the smoothed loss is least: there it still falls steadily."""
    smooth, average = [], 0.0
    for k, value in enumerate(losses):
        if not math.isfinite(value):
            break
        average = 0.9 * average + 0.1 * value
        smooth.append(average / (1.0 - 0.9 ** (k + 1)))
    least = smooth.index(min(smooth)) if smooth else 0
    return max(rates[least] / 10.0, rates[0])


def _repeat_epochs(source: Any) -> Iterator[tuple[Any, ...]]:
    """Batches of as many epochs as it takes; of an iterator, those that it has."""
    epoch = 0
    while not epoch or not isinstance(getattr(source, "source", None), Iterator):
        source.start(epoch, 0)
        if hasattr(source, "data"):
            for number in range(source.length):
                yield tuple(source.data.next(source.count(number)))
        else:
            while (batch := source.next()) is not None:
                yield batch
        epoch += 1


@dataclass(frozen=True)
class Overfit:
    """The losses on one batch, step by step. `passed` says whether the last is below a tenth of the first."""

    losses: list[float]

    @property
    def passed(self) -> bool:
        return self.losses[-1] < 0.1 * self.losses[0]

    def __repr__(self) -> str:
        return f"Overfit({self.losses[0]:.4g} -> {self.losses[-1]:.4g}, {'passed' if self.passed else 'failed'})"


def overfit_one_batch(trainer: Trainer, train: Any, steps: int) -> Overfit:
    """See `Trainer.overfit_one_batch`."""
    if not isinstance(steps, int) or steps < 1:
        raise problem(RangeError, "overfit_one_batch", f"steps {steps!r}", "an integer of at least 1")
    source = batches_of(train, trainer.device)
    with _putting_back(trainer), source.keeping_generator():  # the data may draw a seed
        batch = next(_repeat_epochs(source))
        losses = [trainer.train_batch(*batch) for _ in range(steps)]
        return Overfit(weft.stack(losses).tolist())


def gradient_norms(trainer: Trainer, batch: tuple[Any, ...], gradients: Callable[..., Any]) -> dict[str, float]:
    """See `Trainer.gradient_norms`."""
    named = [(name, param) for name, param in trainer.model.named_parameters() if param.requires_grad]

    def norms(*args: Any) -> Tensor:
        for _, param in named:
            param.grad = None
        gradients(trainer, args)
        found = [
            weft.zeros((), device=trainer.device) if param.grad is None else param.grad.float().square().sum().sqrt()
            for _, param in named
        ]
        for _, param in named:
            param.grad = None
        return weft.stack(found)

    with nan.preserving_state(trainer):  # running statistics, and what a custom step updates
        values = weft.compile(norms)(*batch).tolist()
        updates = trainer.updates
    if not updates:
        given = "a step that makes its updates itself, and returns a loss without a gradient"
        fix = "call backward() and look at the gradients in the step"
        raise problem(GraphError, "gradient_norms", given, "a step that returns the loss alone", fix)
    return {name: value for (name, _), value in zip(named, values, strict=True)}


def find_batch_size(trainer: Trainer, batch: tuple[Any, ...], limit: int | None, largest: int) -> int:
    """See `Trainer.find_batch_size`. Memory grows linearly with the batch: two predictions give the line, and the size
    that it gives is predicted again until it fits."""
    if not isinstance(largest, int) or largest < 1:
        raise problem(RangeError, "find_batch_size", f"largest {largest!r}", "an integer of at least 1")
    largest = 1 << largest.bit_length() - 1
    allowed = int(free_bytes(trainer.device) * SHARE) if limit is None else limit
    leaves, structure = tree.flatten(batch)
    if not any(isinstance(leaf, Tensor) and leaf.ndim for leaf in leaves):
        raise problem(RangeError, "find_batch_size", "a batch without tensors", "an example batch (inputs, target)")
    rows = next(leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim)
    known: dict[int, int] = {}

    def step(*args: Any) -> Tensor:
        return train_on(trainer, args, (), [])

    compiled = weft.compile(step)

    def peak(size: int) -> int:
        if size not in known:
            args = [_resize(leaf, rows, size, trainer.device) for leaf in leaves]
            known[size] = compiled.predicted(*tree.unflatten(structure, args)).peak
        return known[size]

    least = 1
    try:
        peak(1)
    except ShapeError:  # statistics of a batch need two samples in each part of it
        least = 1 << (2 * trainer.accumulate - 1).bit_length()
    if peak(least) > allowed:
        given = f"{allowed} bytes"
        samples = "one sample" if least == 1 else f"{least} samples"
        expected = f"at least {peak(least)}, which a batch of {samples} takes"
        raise problem(RangeError, "find_batch_size", given, expected, "use a smaller model, checkpoint=True or bf16")
    low, high = 16, 32
    slope = max((peak(high) - peak(low)) / (high - low), 1e-9)
    guess = (allowed - peak(low)) / slope + low
    size = min(2 ** int(math.log2(max(guess, 1.0))), largest)
    size = max(size, least)
    while size > least and peak(size) > allowed:
        size //= 2
    while size * 2 <= largest and peak(size * 2) <= allowed:
        size *= 2
    return size


def _resize(leaf: Any, rows: int, size: int, device: Any) -> Any:
    """A tensor like an example with another number of samples; its values do not matter."""
    if not isinstance(leaf, Tensor) or not leaf.ndim or leaf.shape[0] != rows:
        return leaf
    return weft.zeros((size, *leaf.shape[1:]), dtype=leaf.dtype, device=device)


def free_bytes(device: Any) -> int:
    """Memory that a device has free."""
    available, total = device.backend.memory()
    if total >= host_memory.UNKNOWN:
        given = f"{device}, which does not say how much memory it has"
        raise problem(
            RangeError, "find_batch_size", given, "a number of bytes", "give limit=, for example limit=4 << 30"
        )
    return available
