"""A loss that is not finite: steps that are left out on the device, and the search for the layer that produced it."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import weft
from weft.autograd import enable_grad, no_grad
from weft.base import tree
from weft.base.errors import IndexRangeError, problem
from weft.base.state import STATE
from weft.core.tensor import Tensor
from weft.train import weights
from weft.train.batches import Resident
from weft.train.faults import NotFiniteError

if TYPE_CHECKING:
    from weft.train.trainer import Trainer


@no_grad()
def keep_unless(good: Tensor, exempt: Iterable[Tensor]) -> None:
    """Inside a compiled function: whatever it has assigned so far keeps its old value unless `good`, a bool on the
    device. `exempt` are tensors for which that is arranged already."""
    trace = STATE.trace
    if trace is None:
        return
    known = {id(tensor) for tensor in exempt}
    for registry, name, first in list(trace.buffers.values()):
        dict.__setitem__(registry, name, weft.where(good, registry[name], first))
    for cell in list(trace.cells.values()):
        if cell.written and id(cell.tensor) not in known:
            cell.node = weft.where(good, Tensor(cell.node), Tensor(cell.placeholder)).node


def _tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree.flatten(value)[0] if isinstance(leaf, Tensor)]


def _is_finite(value: Any) -> bool:
    floats = [leaf for leaf in _tensors_in(value) if leaf.dtype.kind == "f"]
    return all(bool(leaf.detach().isfinite().all()) for leaf in floats)


@contextlib.contextmanager
def preserving_state(trainer: Trainer) -> Iterator[None]:
    """Inside, a batch may be computed once more, by a custom step with its updates, too; afterwards parameters,
    gradients, buffers, the state of the optimizers and the random stream are what they were."""
    drawn, updates = weft.default_generator.get_state(), trainer.updates
    modules = weights.all_modules(trainer)
    found = [one for module in modules for one in module._parameters.values() if one is not None]
    params = [(param, param.grad) for param in (*found, *weights.other_parameters(trainer))]
    buffers = [(module._buffers, name, one) for module in modules for name, one in module._buffers.items()]
    kept = [param for param, _ in params] + [one for _, _, one in buffers if one is not None]
    copies = [one.detach().clone() for one in kept]
    weft.eval(*copies)
    stepping = [*trainer.optimizers, *([] if trainer.scaler is None else [trainer.scaler])] if trainer.step else []
    states = [one.state_dict() for one in stepping]
    try:
        yield
    finally:
        trainer.updates = updates
        for registry, name, one in buffers:
            if registry.get(name) is not one:
                registry[name] = one
        with no_grad():
            for one, copy in zip(kept, copies, strict=True):
                one.copy_(copy)
        for param, grad in params:
            param.grad = grad
        for one, state in zip(stepping, states, strict=True):
            one.load_state_dict(state)
        weft.default_generator.set_state(drawn)


def describe(trainer: Trainer, take: Callable[[], Any], loss_of: Callable[[Any], Any]) -> str:
    """Where the loss of the batch that `take` returns is not finite. The trainer is as it was afterwards, and what
    fails on the way is no error: the layer is unknown then."""
    try:
        with preserving_state(trainer):
            batch = take()
            with enable_grad() if trainer.step is not None else no_grad():  # a custom step may call backward
                return "first: " + find_first(trainer.model, lambda: loss_of(batch))
    except Exception as error:
        return f"the layer is unknown: the batch could not be computed again ({type(error).__name__}: {error})"


def index_error(
    trainer: Trainer, takes: Iterable[Callable[[], Any]], compute: Callable[[Any], Any]
) -> IndexRangeError | None:
    """The error that computing one of these batches again raises: data that is gathered in the compiled step is no
    argument of it, and which index of which batch was wrong is known here only."""
    _drop_pending(trainer)
    for take in takes:
        try:
            with preserving_state(trainer), enable_grad() if trainer.step is not None else no_grad():
                weft.eval(*_tensors_in(compute(take())))
                weft.synchronize(trainer.device)  # a GPU knows it when the run is over
        except IndexRangeError as error:
            return error
        except Exception:
            return None
    return None


def _drop_pending(trainer: Trainer) -> None:
    """Wait for the steps that a GPU was given before the error was known; what is wrong with their indices, too, would
    be raised by whatever comes next."""
    while True:
        try:
            return weft.synchronize(trainer.device)
        except IndexRangeError:
            continue


def find_first(model: Any, forward: Callable[[], Any]) -> str:
    """Run `forward` (which calls `model` and returns the loss) and say what was the first to be not finite: a
    parameter, an input, a layer, or the loss."""
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if not _is_finite(value):
            return f"{_layer_of(model, name)}: its {name.rpartition('.')[2]!r} is not finite since an earlier step"
    found: list[str] = []
    names = {id(module): name for name, module in model.named_modules()}

    def after(module: Any, inputs: Any, output: Any) -> None:
        if found or _is_finite(output):
            return
        what = f"layer {names[id(module)] or '(the model itself)'} ({type(module).__name__})"
        found.append(what if _is_finite(inputs) else f"{what}, whose input is not finite")

    handles = [module.register_forward_hook(after) for module in model.modules()]
    try:
        loss = forward()
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    if loss is not None and not _is_finite(loss):
        return "the loss: all layers gave finite values"
    return "the gradient: the loss of this batch is finite"


def _layer_of(model: Any, name: str) -> str:
    path = name.rpartition(".")[0]
    return f"layer {path or '(the model itself)'} ({type(model.get_submodule(path)).__name__})"


def batches_to_try(trainer: Trainer, first_bad: int) -> list[Callable[[], tuple[Any, ...]]]:
    """What takes the batches again in which an index may be wrong: that of the first bad step, and the present one.
    Streamed batches are arguments of the step, whose error names the index already."""
    source = trainer._source
    if not isinstance(source, Resident):
        return []
    now = trainer.position
    numbers = {now, now - (trainer.step_count - first_bad) - 1 if first_bad else now}
    return [functools.partial(source.take, trainer.epoch, one) for one in sorted(numbers) if 0 <= one < source.length]


def error_of(trainer: Trainer, step: int, compute: Callable[[tuple[Any, ...]], Any]) -> Exception:
    """The error for a loss that was not finite: the batch is computed again, layer by layer."""
    position = trainer.position - (trainer.step_count - step) - 1
    where, what = "the layer is unknown: the batch is of another epoch", "loss"
    if trainer._source is not None and position >= 0:
        take = functools.partial(trainer._source.take, trainer.epoch, position)
        where = describe(trainer, take, compute)
        if where.startswith("first: the gradient"):  # of a loss that is finite, but for the regularizer
            what, where = _bad_gradient(trainer, take)
    trainer.meters.forget_bad()  # a run that continues ignores them
    at = f"epoch {trainer.epoch + 1}, batch {position}" if position >= 0 else f"before epoch {trainer.epoch + 1}"
    given = f"a {what} that is not finite in step {step} ({at}); {where}"
    fix = "lower the learning rate or set clip_norm; parameters are those before that step"
    if "whose input is not finite" in where:
        fix = "look for NaN and infinite values in the data, or in what precedes that layer"
    fix += '. on_nan="skip" leaves such steps out'
    return problem(NotFiniteError, "Trainer", given, f"a finite {what}", fix)


def _bad_gradient(trainer: Trainer, take: Callable[[], tuple[Any, ...]]) -> tuple[str, str]:
    """Which is not finite, loss or gradient, of a batch for which model and loss are; and where it comes from."""
    with contextlib.suppress(Exception), preserving_state(trainer):
        if trainer.regularizer is not None and not bool(trainer.regularizer(trainer.parameters()).isfinite()):
            return "loss", "first: the regularizer"
    with contextlib.suppress(Exception):
        with preserving_state(trainer):
            batch = take()
        found = [name for name, norm in trainer.gradient_norms(*batch).items() if not math.isfinite(norm)]
        if found:
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            return "gradient", f"first: that of {', '.join(found[:3])}{more}; the loss of this batch is finite"
    return "gradient", "the loss of this batch is finite"
