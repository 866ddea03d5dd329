"""The state of an optimizer as one dict in torch's layout: reading it, checking one, and loading it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import weft
from weft.base.errors import GraphError, ShapeError, problem
from weft.core.tensor import Tensor
from weft.optim.buckets import SEEN, STEP, SUM

if TYPE_CHECKING:
    from weft.optim.optimizer import Optimizer


def read_state(optimizer: Optimizer) -> dict[str, Any]:
    """Step counts, state per parameter and hyper-parameters, in torch's layout, as tensors and numbers.

    All of one moment: a step that another thread makes is in all of it or in nothing. Parameters that were not
    updated yet have no state.
    """
    with optimizer._step_lock:
        every = [bucket for group in optimizer.param_groups for bucket in group.buckets]
        snapshots = iter(weft.snapshot([(bucket.state, bucket.numbers) for bucket in every]))
    state: dict[int, dict[str, Any]] = {}
    groups, number = [], 0
    for group in optimizer.param_groups:
        index = {id(param): number + k for k, param in enumerate(group["params"])}
        number += len(index)
        for bucket in group.buckets:
            for param, entry in zip(bucket.params, bucket.save(*next(snapshots)), strict=True):
                if not optimizer.saves_steps:
                    entry.pop(STEP, None)
                if entry:
                    state[index[id(param)]] = entry
        for param in group["params"]:
            if optimizer._own_state.get(param):
                state[index[id(param)]] = _copy(optimizer._own_state[param])
        groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": list(index.values())})
    return {"state": dict(sorted(state.items())), "param_groups": groups}


def load_state(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Take over what `state_dict` returned (or the same layout from torch, with arrays for tensors)."""
    check_state(optimizer, state_dict)
    groups, state = state_dict["param_groups"], state_dict["state"]
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group.update({key: _copy(value) for key, value in saved.items() if key != "params"})
        index = {id(param): number for param, number in zip(group["params"], saved["params"], strict=True)}
        entries = {key: state.get(number) or {} for key, number in index.items()}
        if any(SUM in entry for entry in entries.values()):
            for bucket in group.buckets:
                bucket.add_state([SUM])
                bucket.add_numbers([SEEN])
        for bucket in group.buckets:
            bucket.load([entries[id(param)] for param in bucket.params])
        if optimizer._keeps_own_state():
            for param in group["params"]:
                optimizer._own_state[param] = _copy(entries[id(param)])


def check_state(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Refuse what is no state of this optimizer, before anything is changed."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
        given = str(list(state_dict)) if isinstance(state_dict, Mapping) else type(state_dict).__name__
        expected = "a dict with 'state' and 'param_groups'"
        raise problem(GraphError, "load_state_dict", given, expected, "pass what state_dict() returned")
    groups, state = state_dict["param_groups"], state_dict["state"]
    counts = [len(group["params"]) for group in groups]
    if counts != [len(group["params"]) for group in optimizer.param_groups]:
        raise problem(
            ShapeError, "load_state_dict", f"groups of {counts} parameters",
            f"groups of {[len(group['params']) for group in optimizer.param_groups]}", "load into the same model",
        )  # fmt: skip
    _check_kinds(optimizer, state)
    for saved in groups:
        missing = [name for name in optimizer.hyper if name not in saved]
        if missing:
            given = f"groups without {', '.join(map(repr, missing))}"
            expected = f"hyper-parameters of {type(optimizer).__name__}"
            raise problem(GraphError, "load_state_dict", given, expected, "load into the same kind of optimizer")


def _check_kinds(optimizer: Optimizer, state: Mapping[int, Mapping[str, Any]]) -> None:
    """Refuse the state of another kind of optimizer."""
    if optimizer._keeps_own_state():
        return
    saved = {name for entry in state.values() for name, value in entry.items() if value is not None} - {STEP, SEEN}
    known = {name for group in optimizer.param_groups for bucket in group.buckets for name in bucket.state}
    known |= {SUM, *optimizer.state_names, *optimizer.number_names}
    if saved and not saved & known:
        given = f"state named {', '.join(sorted(saved))}"
        expected = f"{', '.join(sorted(known - {SUM})) or 'no state'}, as {type(optimizer).__name__} keeps it"
        raise problem(GraphError, "load_state_dict", given, expected, "load into the same kind of optimizer")


def _copy(value: Any) -> Any:
    """A copy of saved state, in which tensors are tensors of their own."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, list):
        return list(map(_copy, value))
    return copy.copy(value)
