"""The arguments of a Trainer, checked: the model, optimizers, the scheduler and when it acts, metrics, callbacks, and
options."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft import nn
from weft.base.errors import GraphError, RangeError, problem
from weft.optim.cycles import CyclicLR, OneCycleLR
from weft.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, Warmup
from weft.optim.optimizer import Optimizer
from weft.train.batches import find_length
from weft.train.callbacks import Callback
from weft.train.metric import Metric
from weft.train.metrics import as_metric

PRECISIONS = {"fp32": None, "bf16": "bfloat16", "fp16": "float16"}
BY_STEP = (OneCycleLR, CyclicLR, Warmup)  # schedules whose steps are those of the optimizer


def check_model(model: Any) -> None:
    """Refuse what is no module."""
    if isinstance(model, nn.Module):
        return
    fix = "subclass nn.Module"
    if isinstance(model, type) and issubclass(model, nn.Module):
        fix = f"make one: {model.__name__}(...)"
    raise problem(GraphError, "Trainer", f"model {model!r:.60}", "a weft.nn.Module", fix)


def check_updates(optimizers: Iterable[Any], model: Any, loss: Any) -> None:
    """Refuse optimizers of which none updates a parameter of the model or of the loss: nothing would be learned."""
    modules = [one for one in (model, loss) if isinstance(one, nn.Module)]
    known = {id(param) for module in modules for param in module.parameters()}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if not any(id(param) in known for group in groups for param in group["params"]):
        given, expected = "an optimizer that has no parameter of the model", "one that updates it"
        raise problem(GraphError, "Trainer", given, expected, "make it with model.parameters() of this model")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def as_metrics(given: Any) -> list[Metric]:
    """Metrics, or their names, as a list of metrics."""
    if isinstance(given, (str, Metric)) or not isinstance(given, Iterable):
        fix = f"metrics=[{given!r:.60}]"
        raise problem(GraphError, "Trainer", f"metrics {given!r:.60}", "a list of metrics or their names", fix)
    return [as_metric(one) for one in given]


def as_callbacks(given: Any) -> tuple[Callback, ...]:
    """Callbacks as a tuple."""
    if isinstance(given, Callback) or not isinstance(given, Iterable):
        text = f"callbacks of type {type(given).__name__}"
        raise problem(GraphError, "Trainer", text, "a list of callbacks", "write it as [callback]")
    found = tuple(given)
    for one in found:
        if not isinstance(one, Callback):
            fix = f"make one: {one.__name__}()" if isinstance(one, type) else "subclass weft.train.Callback"
            raise problem(GraphError, "Trainer", f"callback {one!r:.60}", "a weft.train.Callback", fix)
    return found


def in_step(callbacks: Iterable[Callback]) -> list[Callback]:
    """Those that are a part of the compiled step."""
    return [one for one in callbacks if type(one).in_step is not Callback.in_step or "in_step" in vars(one)]


def as_folder(run: Any) -> Path | None:
    """The run folder, which need not exist."""
    if run is None:
        return None
    if not isinstance(run, (str, os.PathLike)) or not str(run):
        raise problem(GraphError, "Trainer", f"run {run!r:.60}", "the path of a folder")
    found = Path(run)
    if found.exists() and not found.is_dir():
        raise problem(GraphError, "Trainer", f"run {str(found)!r}, which is a file", "the path of a folder")
    return found


def check_every(callbacks: Iterable[Callback]) -> None:
    """Refuse callbacks that are called every 0 steps."""
    for one in callbacks:
        if not isinstance(one.every, (int, np.integer)) or one.every < 1:
            raise problem(
                RangeError, "Trainer", f"{type(one).__name__} with every={one.every!r}", "an integer from 1 on"
            )


def check_plan(epochs: Any, max_steps: Any, validate_every: Any, validation: Any) -> None:
    """Refuse numbers of `fit` that count nothing, and validation data that is known to be empty before it is needed."""
    for name, value, least in (
        ("epochs", epochs, 0), ("max_steps", max_steps, 0), ("validate_every", validate_every, 1)
    ):  # fmt: skip
        if name == "max_steps" and value is None:
            continue
        if not isinstance(value, (int, np.integer)) or value < least:
            raise problem(RangeError, "Trainer.fit", f"{name} {value!r}", f"an integer of at least {least}")
    if find_length(validation) == 0:
        given, expected = "validation data without a batch", "at least one batch, or validation=None"
        raise problem(RangeError, "Trainer.fit", given, expected)


def as_optimizers(given: Any, model: Any) -> list[Any]:
    """An optimizer, several, or functions that make them from the parameters, as a list."""
    if isinstance(given, (list, tuple)):
        return [one for each in given for one in as_optimizers(each, model)]
    if isinstance(given, weft.optim.LBFGS):
        fix = "call optimizer.step(closure) in a loop of your own"
        raise problem(GraphError, "Trainer", "LBFGS, which computes the loss several times in a step", "another", fix)
    if isinstance(given, Optimizer):
        return [given]
    if callable(given):
        return as_optimizers([given(model.parameters())], model)
    text = f"an optimizer of type {type(given).__name__}"
    raise problem(GraphError, "Trainer", text, "one of weft.optim, or a function of the parameters that makes one")


def as_schedulers(given: Any, optimizers: Sequence[Any]) -> list[tuple[Any, bool]]:
    """Schedulers, each with whether it acts after each step."""
    if given is None:
        return []
    if isinstance(given, (tuple, list)) and not (len(given) == 2 and isinstance(given[1], str)):
        return [one for each in given for one in as_schedulers(each, optimizers)]
    return [_as_scheduler(given, optimizers)]


def _as_scheduler(given: Any, optimizers: Sequence[Any]) -> tuple[Any, bool]:
    when = None
    if isinstance(given, (tuple, list)):
        given, when = given
    if not isinstance(given, LRScheduler) or when not in (None, "step", "epoch"):
        text = f"scheduler {given!r:.60}" if when is None else f"scheduler ({type(given).__name__}, {when!r})"
        expected = "a scheduler of weft.optim.lr_scheduler, or (scheduler, 'step' or 'epoch')"
        raise problem(GraphError, "Trainer", text, expected)
    if when == "step" and isinstance(given, ReduceLROnPlateau):
        raise problem(GraphError, "Trainer", "ReduceLROnPlateau at each step", "at each epoch: it looks at a metric")
    if isinstance(given, ReduceLROnPlateau) and given.mode == "max":
        text, fix = (
            "ReduceLROnPlateau(mode='max') as scheduler",
            "weft.train.ReduceLROnPlateau(monitor=...) as callback",
        )
        raise problem(GraphError, "Trainer", text, "mode='min': it is given the loss", fix)
    if not any(given.optimizer is one for one in optimizers):
        text = f"a {type(given).__name__} of another optimizer"
        raise problem(GraphError, "Trainer", text, "one of an optimizer that this Trainer has")
    return given, _acts_by_step(given) if when is None else when == "step"


def _acts_by_step(scheduler: Any) -> bool:
    """Whether it counts steps of the optimizer: also one that contains such a scheduler."""
    return isinstance(scheduler, BY_STEP) or any(map(_acts_by_step, getattr(scheduler, "_schedulers", ())))


def set_checkpoints(model: Any, chosen: Any) -> None:
    """Let modules compute their activations again: True for the children of the model, in place of containers that are
    never called for what they contain; names for others; False for none."""
    if chosen is False:
        for module in model.modules():
            if "checkpoint" in module.__dict__:
                del module.checkpoint
        return
    if chosen is True:
        found = _called_children(model)
        if not found:
            given = f"checkpoint=True with a {type(model).__name__}, which has no modules inside"
            raise problem(GraphError, "Trainer", given, "a model of several modules", "use nn.utils.checkpoint in it")
    else:
        known = dict(model.named_modules())
        names = [chosen] if isinstance(chosen, str) else chosen
        if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
            raise problem(GraphError, "Trainer", f"checkpoint {chosen!r:.60}", "True, False, or names of modules")
        found = []
        for name in names:
            if name not in known or not name:
                close = ", ".join(difflib.get_close_matches(name, known, 3) or list(known)[1:6])
                raise problem(GraphError, "Trainer", f"checkpoint {name!r}", f"the name of a module, as {close}")
            found += [known[name]] if _is_called(known[name]) else _called_children(known[name])
    for module in found:
        module.checkpoint = True


def _is_called(module: Any) -> bool:
    return type(module).forward is not nn.Module.forward


def _called_children(module: Any) -> list[Any]:
    """The modules inside, without the containers that only keep others, as ModuleList and ModuleDict."""
    inside = [[one] if _is_called(one) else _called_children(one) for one in module.children()]
    return [one for several in inside for one in several]


CHECKED = ("loss", "step", "precision", "accumulate", "on_nan", "clip_norm", "clip_value")


def check_options(
    loss: Any, step: Any, precision: Any, accumulate: Any, on_nan: Any, clip_norm: Any, clip_value: Any, **others: Any
) -> None:
    """Refuse what makes no sense."""
    if loss is None and step is None:
        raise problem(GraphError, "Trainer", "neither a loss nor a step", "one of them", "pass nn.CrossEntropyLoss()")
    for given, name in ((loss, "loss"), (step, "step")):
        if isinstance(given, type) and issubclass(given, nn.Module):
            fix = f"make one: {given.__name__}()"
            raise problem(GraphError, "Trainer", f"{name} {given!r:.60}", "a function, or a loss that was made", fix)
        if given is not None and not callable(given):
            raise problem(GraphError, "Trainer", f"{name} {given!r:.60}", "a function, or a loss of weft.nn")
    if precision not in PRECISIONS:
        raise problem(RangeError, "Trainer", f"precision {precision!r}", f"one of {', '.join(PRECISIONS)}")
    if not isinstance(accumulate, int) or isinstance(accumulate, bool) or accumulate < 1:
        raise problem(RangeError, "Trainer", f"accumulate {accumulate!r}", "an integer of at least 1")
    if accumulate > 1 and step is not None:
        fix = "use weft.train.accumulate.Accumulator in the step"
        raise problem(RangeError, "Trainer", f"accumulate {accumulate} with a step", "model and loss", fix)
    if on_nan not in ("stop", "skip", "ignore"):
        raise problem(RangeError, "Trainer", f"on_nan {on_nan!r}", "'stop', 'skip' or 'ignore'")
    if others.get("seed") is not None and not isinstance(others["seed"], (int, np.integer)):
        raise problem(RangeError, "Trainer", f"seed {others['seed']!r:.60}", "an integer, or None")
    for given, name in ((clip_norm, "clip_norm"), (clip_value, "clip_value")):
        if given is not None and not (_is_number(given) and given > 0):
            raise problem(RangeError, "Trainer", f"{name} {given!r}", "a positive number, or None")
