"""Optimizers, schedulers and metrics that a file of a run can name, and the arguments that they take."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import weft
from weft.config import locations
from weft.config.catalogue import call, convert, kinds_of
from weft.config.locations import Location
from weft.optim import lr_scheduler
from weft.optim.optimizer import Optimizer

METRICS = (
    "AUC", "IoU", "MAE", "MSE", "R2", "Accuracy", "ConfusionMatrix", "F1", "Perplexity", "Precision", "Recall", "TopK",
)  # fmt: skip

# Schedulers that take functions, which a file cannot have, or that are no schedules themselves.
_NO_SCHEDULERS = ("LRScheduler", "LambdaLR", "MultiplicativeLR")


def optimizers() -> dict[str, Any]:
    """Optimizers by name."""
    found = {name: getattr(weft.optim, name) for name in dir(weft.optim)}
    return {
        name: one
        for name, one in found.items()
        if isinstance(one, type) and issubclass(one, Optimizer) and one is not Optimizer and name != "LBFGS"
    }


def schedulers() -> dict[str, Any]:
    """Schedulers by name."""
    base = lr_scheduler.LRScheduler
    return {
        name: one
        for name, one in vars(lr_scheduler).items()
        if isinstance(one, type) and issubclass(one, base) and name not in _NO_SCHEDULERS and not name.startswith("_")
    }


def arguments_of(cls: type, without: Sequence[str] = ()) -> dict[str, inspect.Parameter]:
    """The parameters of a constructor that a file can give."""
    hidden = {*without, "optimizer", "last_epoch", "scale_fn", "console"}
    return {name: one for name, one in inspect.signature(cls).parameters.items() if name not in hidden}


def check_arguments(location: Location, cls: type, given: Mapping[str, Any], without: Sequence[str] = ()) -> None:
    """Check arguments without making anything."""
    known = arguments_of(cls, without)
    required = [name for name, one in known.items() if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]
    locations.check_keys(location, given, list(known), required)
    for name, value in given.items():
        convert(location.at(name), name, value, kinds_of(str(known[name].annotation), name))


def make_scheduler(location: Location, given: dict[str, Any], optimizer: Optimizer) -> Any:
    """A scheduler; those that take schedulers get them made first."""
    if "type" not in given:
        location.fail("no 'type'", "the name of a scheduler", "add 'type', such as 'CosineAnnealingLR'")
    known = schedulers()
    cls = known[locations.choice(location.at("type"), given.pop("type"), known)]
    inner: dict[str, Any] = {}
    if "schedulers" in given:
        listed = locations.array(location.at("schedulers"), given.pop("schedulers"), "a list of schedulers")
        at = [location.at("schedulers").at(k) for k in range(len(listed))]
        inner["schedulers"] = [
            make_scheduler(here, locations.object_at(here, one), optimizer)
            for here, one in zip(at, listed, strict=True)
        ]
    if isinstance(given.get("after"), dict):
        inner["after"] = make_scheduler(location.at("after"), dict(given.pop("after")), optimizer)
    first = () if cls.__name__ == "ChainedScheduler" else (optimizer,)
    arguments = {name: one for name, one in arguments_of(cls).items() if name not in inner}
    if isinstance(optimizer, UnboundOptimizer):
        check_arguments(location, cls, given, tuple(inner))
        return None
    return call(location, partial_class(cls, inner), given, arguments, first)


def partial_class(cls: Any, inner: dict[str, Any]) -> Any:
    """The constructor with some arguments given."""

    def make(*args: Any, **kwargs: Any) -> Any:
        return cls(*args, **kwargs, **inner)

    make.__name__ = cls.__name__
    return make


def make_metric(location: Location, tree: Any) -> Any:
    """A metric by its short name, or by its class with arguments."""
    from weft.train.metrics import BY_NAME

    if isinstance(tree, str):
        return BY_NAME[locations.choice(location, tree, BY_NAME)]()
    given = locations.object_at(location, tree, "a name, or an object with a type")
    if "type" not in given:
        location.fail("no 'type'", "the name of a metric")
    cls = getattr(weft.train, locations.choice(location.at("type"), given.pop("type"), METRICS))
    return call(location, cls, given, arguments_of(cls))


class UnboundOptimizer(Optimizer):
    """Stands for the optimizer while the arguments of a scheduler are checked."""

    def __init__(self) -> None:
        """It has no parameters."""
