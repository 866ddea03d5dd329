"""Predictions for samples that are given as a tensor, or in batches."""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

import weft
from weft.base import tree
from weft.base.errors import GraphError, RangeError, problem
from weft.core.tensor import Tensor
from weft.data.collate import is_torch_tensor, to_device
from weft.data.sampler import RandomSampler
from weft.train.batches import Resident, batches_of

if TYPE_CHECKING:
    from weft.train.trainer import Trainer


def predict(trainer: Trainer, data: Any) -> Any:
    """The model's results, joined along the first axis."""
    if trainer._predict is None:
        owner = weakref.ref(trainer)
        trainer._predict = weft.compile(lambda *inputs: _forward(owner(), inputs))
    run = trainer._predict
    with trainer._evaluating(), weft.no_grad():
        if isinstance(data, (Tensor, np.ndarray)) or is_torch_tensor(data):
            inputs = to_device(data, trainer.device)
            trainer._check_budget("Trainer.predict", run, (inputs,))
            return run(inputs)
        results = []
        for inputs in _inputs(trainer, data):
            trainer._check_budget("Trainer.predict", run, inputs)
            results.append(_run(run, inputs))
    if not results:
        raise problem(RangeError, "Trainer.predict", "data without a batch", "at least one batch")
    if len(results) == 1:
        return results[0]
    parts = [tree.flatten(result)[0] for result in results]
    structure = tree.flatten(results[0])[1]
    return tree.unflatten(structure, [weft.cat(column) for column in zip(*parts, strict=True)])


def _run(run: Any, inputs: tuple[Any, ...]) -> Any:
    try:
        return run(*inputs)
    except TypeError as error:
        if "missing" not in str(error):
            raise
        given = (
            f"batches of which the last part is left out as the target: {len(inputs)} input{'s' * (len(inputs) != 1)}"
        )
        fix = "add a target to each batch, such as (a, b, None)"
        raise problem(GraphError, "Trainer.predict", given, "all inputs of the model", fix) from error


def _forward(trainer: Trainer | None, inputs: tuple[Any, ...]) -> Any:
    assert trainer is not None  # it is what calls this
    with trainer.casting():
        return trainer.model(*inputs)


def _inputs(trainer: Trainer, data: Any) -> Any:
    """The inputs of each batch: all parts but the target, which is the last of several."""
    source = batches_of(data, trainer.device, pads=False)
    loader = source.data if isinstance(source, Resident) else getattr(source, "source", None)
    if getattr(loader, "shuffle", False) or isinstance(getattr(loader, "sampler", None), RandomSampler):
        text = "Trainer.predict: the data is shuffled, and so are the results; use shuffle=False for those in order"
        warnings.warn(text, stacklevel=5)
    with source.keeping_generator():
        source.start(0, 0)
        if isinstance(source, Resident):
            for number in range(source.length):
                yield _without_target(source.data.next(source.count(number)))
        else:
            yield from map(_without_target, iter(source.next, None))  # type: ignore[attr-defined]


def _without_target(batch: Any) -> tuple[Any, ...]:
    return tuple(batch[:-1]) if len(batch) > 1 else tuple(batch)


def in_batches(samples: Any, batch_size: int) -> list[tuple[Any]]:
    """A tensor or an array of samples as batches of at most that many."""
    if not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise problem(RangeError, "Trainer.predict", f"batch_size {batch_size!r}", "an integer of at least 1, or None")
    if not (isinstance(samples, (Tensor, np.ndarray)) or is_torch_tensor(samples)):
        given = f"batch_size={batch_size} with data that is in batches already"
        raise problem(RangeError, "Trainer.predict", given, "a tensor or array of samples", "leave batch_size out")
    return [(samples[at : at + batch_size],) for at in range(0, max(len(samples), 1), batch_size)]
