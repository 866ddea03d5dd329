"""What a Trainer saves and goes on from: its state as one nested dict, and the checkpoints in its run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weft
from weft.errors import GraphError, problem
from weft.train.callbacks import Callback

if TYPE_CHECKING:
    from weft.train.trainer import Trainer

FORMAT = 1  # of the state


def state_of(trainer: Trainer) -> dict[str, Any]:
    """See `Trainer.state_dict`."""
    loader = trainer._loader_state
    if loader is None and trainer._source is not None and trainer.position:
        loader = trainer._source.state_dict(trainer.position)
    return {
        "format": FORMAT,
        "epoch": trainer.epoch,
        "position": trainer.position,
        "step": trainer.step_count,
        "loader": dict(loader or {}),
        "random": list(weft.default_generator.get_state()),
        "model": {name: value.clone() for name, value in weft.snapshot(trainer.model.state_dict()).items()},
        "optimizers": [optimizer.state_dict() for optimizer in trainer.optimizers],
        "scheduler": None if trainer.scheduler is None else _plain(trainer.scheduler.state_dict()),
        "scaler": None if trainer.scaler is None else trainer.scaler.state_dict(),
        "meters": trainer.meters.state_dict(),
        "callbacks": [callback.state_dict() for callback in with_state(trainer.callbacks)],
        "history": trainer.history.state_dict(),
    }


def load_state(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """See `Trainer.load_state_dict`."""
    who = "Trainer.load_state_dict"
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        given = f"a state of format {state.get('format')!r}" if isinstance(state, Mapping) else "no state"
        raise problem(GraphError, who, given, f"format {FORMAT}, as state_dict() gives it")
    callbacks, saved_callbacks = with_state(trainer.callbacks), list(state["callbacks"])
    filled = [saved for saved in saved_callbacks if saved]
    if len(saved_callbacks) != len(callbacks) == len(filled):  # earlier versions saved an empty one for each other
        saved_callbacks = filled
    for what, own, saved_parts, fix in (
        ("optimizers", trainer.optimizers, state["optimizers"], ""),
        ("callbacks", callbacks, saved_callbacks, "those without a state, as ProgressBar, may be others than before"),
        ("metrics", trainer.meters.metrics, state["meters"]["metrics"], ""),
    ):
        if len(saved_parts) != len(own):
            given = f"the state of {len(saved_parts)} {what}"
            raise problem(GraphError, who, given, f"that of {len(own)}, as this Trainer has", fix)
    trainer.model.load_state_dict(state["model"])
    for optimizer, saved in zip(trainer.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    if trainer.scheduler is not None and state["scheduler"] is not None:
        trainer.scheduler.load_state_dict(state["scheduler"])
    if trainer.scaler is not None and state["scaler"] is not None:
        trainer.scaler.load_state_dict(state["scaler"])
    trainer.meters.load_state_dict(dict(state["meters"]))
    for callback, saved in zip(callbacks, saved_callbacks, strict=True):
        callback.load_state_dict(saved)
    trainer.history.load_state_dict(state["history"])
    trainer.epoch, trainer.position, trainer.step_count = state["epoch"], state["position"], state["step"]
    trainer._loader_state = state["loader"] or None
    weft.default_generator.set_state(tuple(state["random"]))


def with_state(callbacks: Sequence[Callback]) -> list[Callback]:
    """The callbacks that a run depends on: those whose class defines `state_dict`."""
    return [one for one in callbacks if type(one).state_dict is not Callback.state_dict]


def folder_of(trainer: Trainer) -> Any:
    """The checkpoints of the run folder."""
    from weft.serialization import CheckpointFolder

    assert trainer.run is not None
    return CheckpointFolder(trainer.run / "checkpoints")


def newest(trainer: Trainer) -> Path | None:
    """The newest checkpoint, if there is a run folder with one."""
    return None if trainer.run is None else folder_of(trainer).latest()


def save(trainer: Trainer, metrics: Mapping[str, Any]) -> Path | None:
    """See `Trainer.save`."""
    if trainer.run is None:
        return None
    from weft.serialization import flatten_state

    value = compared_loss(trainer, metrics)
    tensors, state = flatten_state(trainer.state_dict())
    return folder_of(trainer).save(trainer.step_count, tensors, state, None if value is None else float(value))


def compared_loss(trainer: Trainer, metrics: Mapping[str, Any]) -> float | None:
    """The loss by which epochs are compared: that of the validation, where there is one, and None in epochs without
    it. Losses of training are not comparable with it."""
    return metrics.get("val_loss" if trainer.planned.get("validates") else "loss")


def _put_aside(trainer: Trainer, after: int = -1) -> None:
    """Move checkpoints of steps after that one to another folder: a run that begins anew, or goes back, would be mixed
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


def resume(trainer: Trainer, where: Any) -> bool:
    """Begin with the state of the newest checkpoint ("auto"), or of the one at a path; whether there was one."""
    if where is None or where is False or (where == "auto" and trainer.run is None):
        _put_aside(trainer)
        return False
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
        _put_aside(trainer, found.step)
    return True


def _plain(value: Any) -> Any:
    """Containers of the standard library as dicts and lists, so that a state is plain data."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value
