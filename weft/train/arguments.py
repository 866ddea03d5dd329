"""The arguments of a Trainer, checked: optimizers, the scheduler and when it acts, and options."""

from __future__ import annotations

from typing import Any

import weft
from weft.errors import GraphError, RangeError, problem
from weft.optim.cycles import CyclicLR, OneCycleLR
from weft.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, Warmup
from weft.optim.optimizer import Optimizer

PRECISIONS = {"fp32": None, "bf16": "bfloat16", "fp16": "float16"}
BY_STEP = (OneCycleLR, CyclicLR, Warmup)  # schedules whose steps are those of the optimizer


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


def as_scheduler(given: Any) -> tuple[Any, bool]:
    """The scheduler, and whether it acts after each step."""
    if given is None:
        return None, False
    when = None
    if isinstance(given, (tuple, list)) and len(given) == 2:
        given, when = given
    if not isinstance(given, LRScheduler) or when not in (None, "step", "epoch"):
        text = f"scheduler {given!r:.60}" if when is None else f"scheduler ({type(given).__name__}, {when!r})"
        expected = "a scheduler of weft.optim.lr_scheduler, or (scheduler, 'step' or 'epoch')"
        raise problem(GraphError, "Trainer", text, expected)
    if when == "step" and isinstance(given, ReduceLROnPlateau):
        raise problem(GraphError, "Trainer", "ReduceLROnPlateau at each step", "at each epoch: it looks at a metric")
    return given, isinstance(given, BY_STEP) if when is None else when == "step"


def check_options(
    loss: Any, step: Any, precision: Any, accumulate: Any, on_nan: Any, clip_norm: Any, clip_value: Any
) -> None:
    """Refuse what makes no sense."""
    if loss is None and step is None:
        raise problem(GraphError, "Trainer", "neither a loss nor a step", "one of them", "pass nn.CrossEntropyLoss()")
    for given, name in ((loss, "loss"), (step, "step")):
        if given is not None and not callable(given):
            raise problem(GraphError, "Trainer", f"{name} {given!r:.60}", "a function, or a loss of weft.nn")
    if precision not in PRECISIONS:
        raise problem(RangeError, "Trainer", f"precision {precision!r}", f"one of {', '.join(PRECISIONS)}")
    if not isinstance(accumulate, int) or accumulate < 1:
        raise problem(RangeError, "Trainer", f"accumulate {accumulate!r}", "an integer of at least 1")
    if accumulate > 1 and step is not None:
        fix = "use weft.train.accumulate.Accumulator in the step"
        raise problem(RangeError, "Trainer", f"accumulate {accumulate} with a step", "model and loss", fix)
    if on_nan not in ("stop", "skip", "ignore"):
        raise problem(RangeError, "Trainer", f"on_nan {on_nan!r}", "'stop', 'skip' or 'ignore'")
    for given, name in ((clip_norm, "clip_norm"), (clip_value, "clip_value")):
        if given is not None and not given > 0:
            raise problem(RangeError, "Trainer", f"{name} {given!r}", "a positive number, or None")
