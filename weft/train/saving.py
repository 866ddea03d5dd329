"""What a Trainer saves and goes on from: its state as one nested dict, and the checkpoints in its run folder."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weft
from weft.base.errors import GraphError, RangeError, problem
from weft.optim import saved_state
from weft.train import weights
from weft.train.callbacks import Callback

if TYPE_CHECKING:
    from weft.train.trainer import Trainer

FORMAT = 1  # of the state


def state_of(trainer: Trainer, everything: bool = False) -> dict[str, Any]:
    """See `Trainer.state_dict`. `everything` has the weights of all modules that a custom step refers to, also of those
    that it has not changed so far."""
    loader, random = trainer._loader_state, weft.default_generator.get_state()
    if loader is None and trainer._source is not None:
        loader = trainer._source.state_dict(trainer.epoch, trainer.position)
        random = trainer._source.random_state(trainer.epoch, trainer.position)
    return {
        "format": FORMAT,
        "epoch": trainer.epoch,
        "position": trainer.position,
        "step": trainer.step_count,
        "loader": dict(loader or {}),
        "random": list(random),
        **weights.copy_of(trainer, everything),
        "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
        "scheduler": _schedules(trainer),
        "scaler": None if trainer.scaler is None else trainer.scaler.state_dict(),
        "meters": trainer.meters.state_dict(),
        "callbacks": [callback.state_dict() for callback in with_state(trainer.callbacks)],
        "kinds": [type(callback).__name__ for callback in with_state(trainer.callbacks)],
        "history": trainer.history.state_dict(),
    }


def load_state(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """See `Trainer.load_state_dict`."""
    who = "Trainer.load_state_dict"
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        given = f"a state of format {state.get('format')!r}" if isinstance(state, Mapping) else "no state"
        raise problem(GraphError, who, given, f"format {FORMAT}, as state_dict() gives it")
    for what, own, saved_parts in (
        ("optimizers", trainer.optimizers, state["optimizers"]),
        ("metrics", trainer.meters.metrics, state["meters"]["metrics"]),
    ):
        if len(saved_parts) != len(own):
            given = f"the state of {len(saved_parts)} {what}"
            raise problem(GraphError, who, given, f"that of {len(own)}, as this Trainer has")
    callbacks = _match_callbacks(who, trainer, state)
    schedules = _match_schedules(who, trainer, state)
    for optimizer, saved in zip(trainer.optimizers, state["optimizers"], strict=True):
        saved_state.check_state(optimizer, saved)
    weights.check(trainer, state)
    weights.load(trainer, state)
    for optimizer, saved in zip(trainer.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    for scheduler, saved in schedules:
        scheduler.load_state_dict(saved)
    if trainer.scaler is not None and state["scaler"] is not None:
        trainer.scaler.load_state_dict(state["scaler"])
    trainer.meters.load_state_dict(dict(state["meters"]))
    for callback, saved in callbacks:
        callback.load_state_dict(saved)
    trainer.history.load_state_dict(state["history"])
    trainer.epoch, trainer.position, trainer.step_count = state["epoch"], state["position"], state["step"]
    trainer._loader_state = state["loader"] or None
    weft.default_generator.set_state(tuple(state["random"]))


def load_weights(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Of a state, what evaluation and prediction depend on: the weights, and the averages of them that callbacks keep.
    Optimizers and the position in the data may be others."""
    weights.load(trainer, state)
    with contextlib.suppress(GraphError):  # callbacks may be others, too
        for callback, saved in _match_callbacks("Trainer", trainer, state):
            callback.load_state_dict(saved)


def _schedules(trainer: Trainer) -> Any:
    """The state of the scheduler, a list of those of several, or None."""
    found = [_plain_data(scheduler.state_dict()) for scheduler, _ in trainer.schedulers]
    return found if len(found) > 1 else next(iter(found), None)


def _match_schedules(who: str, trainer: Trainer, state: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """The schedulers of a trainer and their saved states. A schedule that started over in the middle of a run would be
    another run; one that is left out, or a loss scale that starts over, is worth a warning."""
    saved = state["scheduler"]
    saved = saved if isinstance(saved, list) else [] if saved is None else [saved]
    own = [scheduler for scheduler, _ in trainer.schedulers]
    if own and len(saved) != len(own):
        given = f"the state of {len(saved) or 'no'} scheduler{'s' * (len(saved) != 1)}"
        fix = "load it without a scheduler and set trainer.scheduler afterwards to begin a schedule here"
        raise problem(GraphError, who, given, f"that of {len(own)}, as this Trainer has", fix)
    if saved and not own:
        warnings.warn(f"{who}: the state has a scheduler, this Trainer has none: rates stay as they are", stacklevel=4)
    if trainer.scaler is not None and state["scaler"] is None and state["step"]:
        warnings.warn(f"{who}: the state has no loss scale, it starts over (precision='fp16')", stacklevel=4)
    return list(zip(own, saved, strict=False))


def _match_callbacks(who: str, trainer: Trainer, state: Mapping[str, Any]) -> list[tuple[Callback, Mapping[str, Any]]]:
    """The callbacks of a trainer and their saved states: by class, and those of one class in their order. States of
    earlier versions do not name the classes and are taken in order."""
    own, saved = with_state(trainer.callbacks), list(state["callbacks"])
    kinds, fix = state.get("kinds"), "those without a state, as ProgressBar, may be others than before"
    if kinds is None:
        filled = [one for one in saved if one]
        if len(saved) != len(own) == len(filled):  # there was an empty one for each other callback
            saved = filled
        if len(saved) != len(own):
            given = f"the state of {len(saved)} callbacks"
            raise problem(GraphError, who, given, f"that of {len(own)}, as this Trainer has", fix)
        return list(zip(own, saved, strict=True))
    names = [type(one).__name__ for one in own]
    if sorted(names) != sorted(kinds):
        given = f"the state of the callbacks {', '.join(kinds) or '(none)'}"
        raise problem(GraphError, who, given, f"{', '.join(names) or '(none)'}, as this Trainer has", fix)
    rest = list(zip(kinds, saved, strict=True))
    found = []
    for callback, name in zip(own, names, strict=True):
        first = next(one for one in rest if one[0] == name)
        rest = [one for one in rest if one is not first]
        found.append((callback, first[1]))
    return found


def with_state(callbacks: Sequence[Callback]) -> list[Callback]:
    """The callbacks that a run depends on: those whose class defines `state_dict`."""
    return [one for one in callbacks if type(one).state_dict is not Callback.state_dict]


def folder_of(trainer: Trainer) -> Any:
    """The checkpoints of the run folder."""
    from weft.serialization import CheckpointFolder

    assert trainer.run is not None
    return CheckpointFolder(trainer.run / "checkpoints")


def find_newest(trainer: Trainer) -> Path | None:
    """The newest checkpoint, if there is a run folder with one."""
    return None if trainer.run is None else folder_of(trainer).latest()


def save(trainer: Trainer, metrics: Mapping[str, Any]) -> Path | None:
    """See `Trainer.save`."""
    if trainer.run is None:
        return None
    from weft.serialization import flatten_state

    value = loss_to_compare(trainer, metrics)
    tensors, state = flatten_state(trainer.state_dict())
    return folder_of(trainer).save(trainer.step_count, tensors, state, None if value is None else float(value))


def loss_to_compare(trainer: Trainer, metrics: Mapping[str, Any]) -> float | None:
    """The loss by which epochs are compared: that of the validation, where there is one, and None in epochs without
    it. Losses of training are not comparable with it."""
    return metrics.get("val_loss" if trainer.planned.get("validates") else "loss")


def put_aside(trainer: Trainer, after: int = -1) -> None:
    """Move checkpoints of steps after that one to another folder: a run that starts over, or goes back, would be mixed
    up with the one that they are of."""
    newer = [] if trainer.run is None else [path for path in folder_of(trainer).paths() if _step_of(path) > after]
    if trainer.run is None or not newer:
        return
    number = 1
    while (aside := trainer.run / f"checkpoints-before-{number}").exists():
        number += 1
    aside.mkdir()
    for path in newer:
        path.rename(aside / path.name)


def _step_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _check_resume(trainer: Trainer, where: Any) -> None:
    """Refuse what names no checkpoint; whether one is there is seen when it is read."""
    who, expected = "Trainer.fit", '"auto", None, or the path of a checkpoint'
    if where is True:
        if trainer.run is None:
            raise problem(
                RangeError, who, "resume=True for a Trainer without a run folder", expected, "Trainer(run=...)"
            )
    elif not isinstance(where, (str, os.PathLike)):
        raise problem(RangeError, who, f"resume={where!r:.80}", expected)
    elif where != "auto" and (Path(where) / "checkpoints").is_dir():
        given, fix = f"resume={os.fspath(where)!r}, the folder of a run", "Trainer(run=...) goes on with a run"
        raise problem(RangeError, who, given, "a checkpoint, such as one of those in its folder checkpoints", fix)


def resume(trainer: Trainer, where: Any) -> bool:
    """Begin with the state of the newest checkpoint ("auto"), or of the one at a path; whether there was one."""
    if where is None or where is False or (where == "auto" and trainer.run is None):
        put_aside(trainer)
        return False
    _check_resume(trainer, where)
    from weft.serialization import CheckpointFolder, unflatten_state

    if where in ("auto", True):
        folder = folder_of(trainer)
        path = folder.latest()
        if path is None:
            return False
    else:
        path = Path(where)
        folder = CheckpointFolder(path.parent)
    found = folder.load(path, device=trainer.device)
    trainer.load_state_dict(unflatten_state(found.tensors, found.state))
    if where not in ("auto", True):
        put_aside(trainer, found.step)
    return True


def _plain_data(value: Any) -> Any:
    """Containers of the standard library as dicts and lists, so that a state is plain data."""
    if isinstance(value, Mapping):
        return {key: _plain_data(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain_data(one) for one in value]
    return value
