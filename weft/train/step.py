"""The compiled steps of a Trainer: one function that trains on a batch and one that evaluates it.

A train step is forward, loss, backward, clipping, update and metrics in one plan. What it leaves behind is in device
buffers: parameters, optimizer state, and the sums of `Meters`. Nothing is read here. With resident data the batch is
gathered inside the plan, so a step has no argument but, with a scheduler that acts at each step, the rates.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import weft
from weft.base import tree
from weft.base.errors import GraphError, ShapeError, WeftError, problem
from weft.base.state import STATE
from weft.core.tensor import Tensor
from weft.optim.clip import clip_grad_norm_, clip_grad_value_
from weft.optim.flat import buckets, join
from weft.train.accumulate import no_gradient
from weft.train.meters import Meters
from weft.train.nan import keep_unless

if TYPE_CHECKING:
    from weft.train.trainer import Trainer


class Steps:
    """The compiled functions of a Trainer for one source of batches, by what they are called with."""

    def __init__(self, data: Any, function: Callable[..., Any], numbers: int):
        """`data` lives on the device, or is None for streamed batches."""
        self.data, self.function, self.numbers = data, function, numbers
        self.resident: dict[int, Any] = {}  # by the number of rows
        self.streamed = weft.compile(self._streamed)

    def _streamed(self, *args: Any) -> Any:
        cut = len(args) - self.numbers
        return self.function(args[:cut], args[cut:], [])

    def of_rows(self, rows: int) -> Any:
        """The step that gathers the next `rows` rows itself."""
        found = self.resident.get(rows)
        if found is None:
            data = self.data

            def step(*numbers: float) -> Any:
                batch = tuple(data.next(rows))
                return self.function(batch, numbers, find_written_tensors())

            found = self.resident[rows] = weft.compile(step)
        return found

    def forget(self, numbers: int) -> None:
        """Trace again from now on, with that many rates as arguments."""
        self.numbers, self.resident, self.streamed = numbers, {}, weft.compile(self._streamed)

    def compiled_functions(self) -> list[Any]:
        """The functions that were called so far."""
        return [one for one in (self.streamed, *self.resident.values()) if one.last is not None]


class KeptByData:
    """What a Trainer has compiled, by the data set on the device that it is for (None: streamed batches).

    A plan holds the tensors that it reads, so the data set itself keeps it, under a weak reference to this table: the
    data can be freed while the Trainer lives, and the other way round. What is kept must not hold the Trainer."""

    def __init__(self) -> None:
        self._streamed: Any = None
        self._data: list[weakref.ref[Any]] = []

    def get(self, data: Any) -> Any:
        """What was kept for this data, or None."""
        return self._streamed if data is None else _steps_of_data(data).get(self)

    def put(self, data: Any, value: Any) -> None:
        """Keep something for this data."""
        if data is None:
            self._streamed = value
        else:
            _steps_of_data(data)[self] = value
            self._data = [*(one for one in self._data if one() is not None), weakref.ref(data)]

    def values(self) -> list[Any]:
        """What is kept for streamed batches and for data that still exists."""
        alive = [data for data in (one() for one in self._data) if data is not None]
        found = [self._streamed, *(_steps_of_data(data).get(self) for data in alive)]
        return [one for one in found if one is not None]


def _steps_of_data(data: Any) -> weakref.WeakKeyDictionary[KeptByData, Any]:
    return data.__dict__.setdefault("_compiled_steps", weakref.WeakKeyDictionary())


def find_written_tensors() -> list[Tensor]:
    """What the function that is being traced has assigned so far."""
    return [] if STATE.trace is None else [cell.tensor for cell in STATE.trace.cells.values() if cell.written]


def _ids_of_written() -> set[int]:
    """Of the tensors, and of the tables of buffers, that the function that is being traced has assigned so far."""
    tables = [] if STATE.trace is None else [registry for registry, _, _ in STATE.trace.buffers.values()]
    return {*map(id, find_written_tensors()), *map(id, tables)}


def rows_of(batch: Any) -> int:
    """The number of samples of a batch: the first axis of its first tensor."""
    for leaf in tree.flatten(batch)[0]:
        if isinstance(leaf, Tensor) and leaf.ndim:
            return leaf.shape[0]
    return 1


def predict_and_compare(trainer: Trainer, batch: tuple[Any, ...]) -> tuple[Tensor, Any, Any, dict[str, Tensor]]:
    """(loss, prediction, target, further values) of a batch, by the custom step or the model and the loss."""
    with trainer.casting():
        if trainer.step is not None:
            return _split_result(trainer.step(trainer, *batch))
        if len(batch) < 2:
            kind = type(batch[0]).__name__ if batch else "nothing"
            given, expected = f"a batch that is one {kind}", "(inputs, target)"
            fix = "let the data be batches, such as [(x, y)] for a single one; for batches of another form, as dicts, "
            raise problem(ShapeError, "Trainer", given, expected, fix + "pass step=, a function of (trainer, *batch)")
        *inputs, target = batch
        trainer.input_forms = _forms_of(inputs)
        prediction = trainer.model(*inputs)
        assert trainer.loss is not None
        loss = trainer.loss(prediction, target)
        if isinstance(loss, tuple) and len(loss) == 2:  # (total, count), as for parts of a batch
            loss = loss[0] if loss[1] is None else loss[0] / loss[1]
    if not isinstance(loss, Tensor) or loss.ndim:
        form = f"of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"of type {type(loss).__name__}"
        fix = "use a loss with reduction='mean'" if isinstance(loss, Tensor) else "return a tensor of one element"
        raise problem(ShapeError, "Trainer", f"a loss {form}", "a scalar tensor", fix)
    return loss, prediction, target, {}


def _forms_of(values: Sequence[Any]) -> list[tuple[tuple[int, ...], Any]]:
    return [(tuple(one.shape), one.dtype) for one in values if isinstance(one, Tensor)]


def _split_result(result: Any) -> tuple[Tensor, Any, Any, dict[str, Tensor]]:
    """What a custom step returned: a loss, (loss, prediction, target), or a dict with 'loss'."""
    values: dict[str, Any] = {}
    prediction = target = None
    given = f"a step that returned {_form(result)}"
    if isinstance(result, dict):
        values = dict(result)
        prediction, target = values.pop("prediction", None), values.pop("target", None)
        result = values.pop("loss", None)
    elif isinstance(result, tuple) and len(result) == 3:
        result, prediction, target = result
    if not isinstance(result, Tensor) or result.ndim:
        expected = "a scalar loss, (loss, prediction, target), or a dict with 'loss'"
        raise problem(GraphError, "Trainer", given, expected)
    return result, prediction, target, values


def _form(result: Any) -> str:
    """What a step returned, in words."""
    if isinstance(result, Tensor):
        return f"a tensor of shape {list(result.shape)}"
    if isinstance(result, dict):
        loss = result.get("loss")
        return f"a dict whose 'loss' is {_form(loss)}" if "loss" in result else f"a dict of {', '.join(result)}"
    if isinstance(result, tuple):
        return f"({', '.join(_form(one) for one in result)})"
    return "nothing" if result is None else f"a {type(result).__name__}"


def train_on(
    trainer: Trainer,
    batch: tuple[Any, ...],
    numbers: Sequence[float],
    moved: Sequence[Tensor],
    stops: bool = True,
    on_nan: str | None = None,
) -> Tensor:
    """The whole training step; `numbers` are the rates of all groups, if they are arguments, and `moved` what the
    data has assigned to be at the next batch. With on_nan="stop", `stops` says whether a bad step ends all training
    until it is read, or is only left out itself. `on_nan` is the trainer's, unless given."""
    on_nan = on_nan or trainer.on_nan
    assign_numbers(trainer.optimizers, numbers)
    rows = rows_of(batch)
    loss, prediction, target, values = compute_gradients(trainer, batch, trainer.scaler)
    good = loss.detach().isfinite() if on_nan != "ignore" else None
    if trainer.updates:
        params = trainer.parameters()
        if trainer.scaler is not None:
            for optimizer in trainer.optimizers:
                trainer.scaler.unscale_(optimizer)
        if trainer.clip_value is not None:
            clip_grad_value_(params, trainer.clip_value)
        if trainer.clip_norm is not None:
            norm = clip_grad_norm_(params, trainer.clip_norm)
            good = good & norm.isfinite() if good is not None and trainer.scaler is None else good
        elif good is not None and trainer.scaler is None:
            grads = [param.grad.detach() for param in params if param.grad is not None]
            good = good & _are_finite(grads, good.device) if grads else good
    proceed = good
    if good is not None and on_nan == "stop" and stops:  # nothing changes after the first bad step
        proceed = good & ~trainer.meters.has_stopped()
    overflowed = None
    if trainer.updates:
        overflowed = update(trainer, proceed)
    for optimizer in trainer.optimizers:
        optimizer.zero_grad()
    with weft.no_grad():
        for callback in trainer.callbacks:
            callback.in_step(trainer)
        trainer.meters.note_values(values, rows)
        trainer.meters.note_predictions(prediction, target)
        if proceed is not None:  # a step that is left out leaves averages and metrics as they are, too
            exempt = trainer.guarded_tensors() if trainer.updates else []
            keep_unless(proceed, [*exempt, *moved])
        trainer.written |= _ids_of_written()
        trainer.meters.note(loss, good, rows, stops, overflowed)
    return loss.detach()


def _are_finite(grads: Sequence[Tensor], device: Any) -> Tensor:
    """Whether all gradients are finite: a bool on the device."""
    flat = [join([grads[k] for k in positions]) for positions in buckets(grads)]
    found = [one.isfinite().all() for one in flat]
    return weft.stack([one if one.device is device else one.to(device) for one in found]).all()


def compute_gradients(
    trainer: Trainer, batch: tuple[Any, ...], scaler: Any = None
) -> tuple[Tensor, Any, Any, dict[str, Tensor]]:
    """The loss of a batch, its gradients, scaled if there is a scaler, and what the metrics need. A batch is taken in
    `accumulate` parts."""
    if trainer.accumulator is not None:
        return _in_parts(trainer, batch, scaler)
    loss, prediction, target, values = predict_and_compare(trainer, batch)
    trainer.updates = loss.requires_grad  # a custom step may have made its update itself
    if trainer.step is None and not loss.requires_grad:
        raise no_gradient("Trainer")
    total = _with_penalty(trainer, loss)
    if trainer.updates:
        try:
            _scale(scaler, total).backward()
        except GraphError as error:
            if trainer.step is None or "used up already" not in str(error):
                raise
            given, expected = "a step that has called backward() and returned the loss with its graph", "one of both"
            fix = "return loss.detach() from a step that makes its updates itself, else leave backward() to the Trainer"
            raise problem(GraphError, "Trainer", given, expected, fix) from None
    return total, prediction, target, values


def _in_parts(trainer: Trainer, batch: tuple[Any, ...], scaler: Any) -> tuple[Tensor, Any, Any, dict[str, Tensor]]:
    """As above, in parts whose gradients add up to that of the batch, one after the other."""
    accumulator, predictions = trainer.accumulator, []
    assert accumulator is not None
    accumulator.parameters = trainer.parameters()  # there may be more since add_param_group
    for *inputs, target in accumulator.parts(batch, trainer.accumulate):
        trainer.input_forms = _forms_of(inputs)
        with trainer.casting():
            prediction = trainer.model(*inputs)
            accumulator.add(prediction, target, scaler=scaler)
        predictions.append(prediction)
    total = accumulator.finish()
    trainer.updates = True
    if trainer.regularizer is not None:
        penalty = trainer.regularizer(trainer.parameters())
        _scale(scaler, penalty).backward()
        total = total + penalty.detach()
    return total, _join(predictions), batch[-1], {}


def _join(parts: Sequence[Any]) -> Any:
    """The predictions of parts of a batch as those of the batch: tensors, or tuples, lists and dicts of them."""
    columns = zip(*[tree.flatten(part)[0] for part in parts], strict=True)
    joined = [weft.cat([one.detach() for one in column]) if _has_rows(column[0]) else column[0] for column in columns]
    return tree.unflatten(tree.flatten(parts[0])[1], joined)


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _with_penalty(trainer: Trainer, loss: Tensor) -> Tensor:
    return loss if trainer.regularizer is None else loss + trainer.regularizer(trainer.parameters())


def _scale(scaler: Any, loss: Tensor) -> Tensor:
    return loss if scaler is None else scaler.scale(loss)


def update(trainer: Trainer, proceed: Tensor | None) -> Tensor | None:
    """The optimizers' step, left out where `proceed` is False. Returns whether the loss scaler, if there is one, has
    left it out: a bool on the device."""
    before = None if trainer.scaler is None else trainer.scaler._tensors()["skipped"].clone()
    for optimizer in trainer.optimizers:
        has_update = not optimizer._keeps_own_state()
        with optimizer.updating_if(proceed) if proceed is not None and has_update else contextlib.nullcontext():
            if trainer.scaler is None:
                optimizer.step()
            elif _has_gradients(optimizer):
                trainer.scaler.step(optimizer)
    if trainer.scaler is None:
        return None
    trainer.scaler.update()
    return trainer.scaler._tensors()["skipped"] != before


def _has_gradients(optimizer: Any) -> bool:
    return any(param.grad is not None for group in optimizer.param_groups for param in group["params"])


def assign_numbers(optimizers: Sequence[Any], numbers: Sequence[float]) -> None:
    """Give the groups of all optimizers their numbers, where they are arguments of the step."""
    at = 0
    for optimizer in optimizers if numbers else ():
        for group in optimizer.param_groups:
            size = len(group.names())
            group.assign_numbers(numbers[at : at + size])
            at += size


def present_numbers(optimizers: Sequence[Any]) -> list[float]:
    """The numbers of all groups, in the order of `assign_numbers`."""
    return [number for optimizer in optimizers for group in optimizer.param_groups for number in group.numbers()]


def _compute_without_backward(trainer: Trainer, batch: tuple[Any, ...]) -> tuple[Tensor, Any, Any, dict[str, Tensor]]:
    """As `predict_and_compare`; a custom step that calls backward() gets an error: there is nothing to
    differentiate."""
    try:
        return predict_and_compare(trainer, batch)
    except GraphError as error:
        if trainer.step is None or "require grad" not in str(error):
            raise
        raise _trains("a step that calls backward() in an evaluation, where no gradient is recorded") from error


def _trains(given: str) -> WeftError:
    fix = "return the loss before that where trainer.model.training is False"
    return problem(GraphError, "Trainer.evaluate", given, "a step that only computes the loss", fix)


@weft.no_grad()
def evaluate_on(trainer: Trainer, meters: Meters, batch: tuple[Any, ...]) -> None:
    """Loss and metrics of a batch, without gradients."""
    before = {id(one) for one in find_written_tensors()}
    loss, prediction, target, values = _compute_without_backward(trainer, batch)
    params = {id(one): name for name, one in trainer.model.named_parameters()}
    changed = [params[id(one)] for one in find_written_tensors() if id(one) in params and id(one) not in before]
    if changed:
        raise _trains(f"a step that changes parameters ({changed[0]}) in an evaluation")
    loss = _with_penalty(trainer, loss)
    rows = rows_of(batch)
    meters.note(loss, None, rows)
    meters.note_values(values, rows)
    meters.note_predictions(prediction, target)
