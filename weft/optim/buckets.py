"""Bucket: parameters of one dtype and device whose state lies in flat tensors, and their counters."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import weft
from weft.base.errors import ShapeError, problem
from weft.base.state import STATE, VERSION
from weft.core.tensor import Tensor
from weft.optim.flat import join, pack, split

STEP, SEEN, SUM = "step", "accumulated", "accumulated_grad"  # names in a state_dict


class Bucket:
    """The parameters of a group that share dtype and device, with their state as flat vectors.

    The update of 16-bit parameters is computed in float32, where their state stays: 0.999 would round to 1 in bfloat16.
    `numbers` holds what is one number for each parameter, such as the count of its updates: one for all while it is the
    same for all (`together`), else a vector.
    """

    def __init__(
        self,
        params: list[Tensor],
        hyper: list[float],
        state_names: Iterable[str],
        number_names: Iterable[str],
        shape_of: Callable[[str, Tensor], tuple[int, ...] | None],
    ):
        self.params = params
        self.shape_of = shape_of
        self.forms = [param._form_now() for param in params]
        _, dtype, device = self.forms[0]
        dtype = weft.float32 if dtype.is_16_bit else dtype
        self.hyper = weft.tensor(np.array(hyper, dtype.numpy), device=device)
        self.hyper.name = "optimizer hyper-parameters"
        self.numbers: dict[str, Tensor] = {}
        self.together = True
        self.state: dict[str, Tensor] = {}
        self.rows: dict[tuple[int, ...], Tensor] = {}
        self.add_numbers([STEP, *number_names])
        self.add_state(state_names)
        pack(params)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy: its parameters are moved into one piece of memory, like those of the original."""
        self.__dict__.update(state)
        pack(self.params)

    def tensors(self) -> list[Tensor]:
        """All that an update assigns beside the parameters."""
        return [*self.numbers.values(), *self.state.values()]

    @property
    def steps(self) -> Tensor:
        """Updates made so far, per parameter."""
        return self.numbers[STEP]

    def is_moved(self) -> bool:
        """Whether a parameter has another dtype or device than when the bucket was made."""
        moved = False
        for param, form in zip(self.params, self.forms, strict=True):
            present = param._form_now()
            if present[0] != form[0]:
                raise problem(
                    ShapeError, "step", f"a parameter of shape {present[0]}", f"{form[0]}, its shape when it was added",
                    "make a new optimizer",
                )  # fmt: skip
            moved = moved or present != form
        return moved

    def add_state(self, names: Iterable[str]) -> None:
        """Zeros for state vectors that are not there yet."""
        for name in names:
            if name not in self.state:
                total = sum(like.numel() for like in self.likes(name))
                self.state[name] = self._zeros(total, name)

    def add_numbers(self, names: Iterable[str]) -> None:
        """Zeros for numbers that are not there yet."""
        for name in names:
            if name not in self.numbers:
                shape = () if self.together else len(self.params)
                self.numbers[name] = self._zeros(shape, "steps" if name == STEP else name)

    def _zeros(self, shape: Any, name: str) -> Tensor:
        with outside_of_traces():
            made = weft.zeros(shape, dtype=self.hyper.dtype, device=self.hyper.device)
            made.name = f"optimizer {name}"
            weft.eval(made)
        return made

    def likes(self, name: str) -> list[Any]:
        """The shapes of the parts of a state vector."""
        return [_Shape(self.shape_of(name, param)) for param in self.params]

    def write_hyper(self, numbers: list[float]) -> None:
        self.hyper.copy_(weft.tensor(np.array(numbers, self.hyper.dtype.numpy), device=self.hyper.device))

    def rows_of(self, tensors: list[Tensor]) -> Tensor:
        """For each element of the flat vector over `tensors`, the number of its tensor."""
        sizes = tuple(tensor.numel() for tensor in tensors)
        if sizes not in self.rows:
            with outside_of_traces():
                rows = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
                self.rows[sizes] = weft.tensor(rows, device=self.hyper.device)
                self.rows[sizes].name = "optimizer rows"
        return self.rows[sizes]

    # ---- state of the active parameters ------------------------------------------------------------------------

    def read_state(self, name: str, active: list[int]) -> Tensor:
        """A state vector of the active parameters."""
        flat = self.state[name]
        if len(active) == len(self.params):
            return flat
        parts = split(flat, self.likes(name))
        return join([parts[k] for k in active])

    def write_state(self, name: str, value: Tensor, active: list[int]) -> None:
        """Assign the state vector of the active parameters."""
        if len(active) < len(self.params):
            likes = self.likes(name)
            parts = split(self.state[name], likes)
            for k, part in zip(active, split(value, [likes[k] for k in active]), strict=True):
                parts[k] = part
            value = join(parts)
        self.state[name]._assign(value.node)

    def check_together(self, active: list[int]) -> None:
        """Before an update of the active parameters: where these are not all, each gets numbers of its own."""
        if self.together and len(active) < len(self.params):
            is_counted = STATE.trace is not None and STATE.trace.is_written(self.numbers[STEP])
            if is_counted:  # a step before this one in the same function: its trace serves one call
                STATE.trace.guard(lambda: self.together)
            for name, number in list(self.numbers.items()):
                with outside_of_traces():  # as it was before the function that is traced
                    vector = self.numbers[name] = number.expand(len(self.params)).clone()
                    vector.name = number.name
                    weft.eval(vector)
                if is_counted:
                    vector._assign(number.expand(len(self.params)).node)
            self.together = False
        if STATE.trace is not None:
            STATE.trace.guard(lambda: self.together)

    def read_number(self, name: str, active: list[int]) -> Tensor:
        """A number of the active parameters: one for all, or a flat vector like the parameters."""
        numbers = self.numbers[name]
        if self.together:
            return numbers
        return weft.cat([numbers[k].expand(self.params[k].numel()) for k in active])

    def write_number(self, name: str, value: Tensor, active: list[int]) -> None:
        """Assign what `read_number` gave, changed."""
        numbers = self.numbers[name]
        if not self.together:
            each = [numbers[k] for k in range(len(self.params))]
            for k, first in zip(active, firsts(value, [self.params[k] for k in active]), strict=True):
                each[k] = first
            value = weft.stack(each)
        numbers._assign(value.node)

    # ---- moving to another dtype or device, saving and loading ----------------------------------------------------

    def take_from(self, old: Sequence[tuple[Bucket, int]]) -> None:
        """Go on with the state of the same parameters, each given as its old bucket and its place in it."""
        dtype, device = self.hyper.dtype, self.hyper.device
        parts: dict[tuple[int, str], list[Tensor]] = {}
        for bucket in {id(bucket): bucket for bucket, _ in old}.values():
            for name, flat in bucket.state.items():
                parts[id(bucket), name] = split(flat, bucket.likes(name))
        for name in list(dict.fromkeys(itertools.chain.from_iterable(bucket.state for bucket, _ in old))):
            self.add_state([name])
            found = [parts.get((id(bucket), name)) for bucket, _ in old]
            mine = split(self.state[name], self.likes(name))
            given = [mine[k] if all_ is None else all_[old[k][1]] for k, all_ in enumerate(found)]
            self.state[name].copy_(join([part.to(device=device, dtype=dtype) for part in given]))
        values = {id(bucket): bucket.number_values() for bucket, _ in old}
        names = list(dict.fromkeys(itertools.chain.from_iterable(bucket.numbers for bucket, _ in old)))
        self.set_numbers({
            name: np.array([values[id(bucket)][name][k] if name in bucket.numbers else 0.0 for bucket, k in old])
            for name in names
        })  # fmt: skip

    def number_values(self) -> dict[str, np.ndarray]:
        """The numbers of all parameters on the host."""
        return _values(self.numbers, len(self.params))

    def set_numbers(self, values: dict[str, np.ndarray]) -> None:
        """Give each parameter its numbers."""
        self.together = all((each == each[0]).all() for each in values.values())
        for name, each in values.items():
            self.add_numbers([name])
            array = np.array(each[0] if self.together else each, self.hyper.dtype.numpy)
            given = weft.tensor(array, device=self.hyper.device)
            if given.shape == self.numbers[name].shape:
                self.numbers[name].copy_(given)
            else:
                given.name, self.numbers[name] = self.numbers[name].name, given
        VERSION.bump()

    def save(self, state: Mapping[str, Tensor], numbers: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """What a state_dict has of each parameter, from copies of the vectors."""
        entries: list[dict[str, Tensor]] = [{} for _ in self.params]
        counted = [name for name in (STEP, SEEN) if name in numbers]
        values = _values(numbers, len(self.params))
        has_steps = np.stack([values[name] for name in counted]).any(0)
        for name, each in values.items():
            for k in np.flatnonzero(has_steps):
                entries[k][name] = weft.tensor(each[k], device=self.hyper.device)
        for name, flat in state.items():
            likes = self.likes(name)
            parts = split(flat.clone(), likes)
            for k in np.flatnonzero(has_steps):
                if likes[k].is_there:
                    entries[k][name] = parts[k]
        return entries

    def load(self, saved: list[Mapping[str, Any]]) -> None:
        """Take over entries of a state_dict, with tensors or arrays."""
        with outside_of_traces():
            for name, flat in self.state.items():
                likes = self.likes(name)
                arrays = [_part(entry.get(name), like, name) for entry, like in zip(saved, likes, strict=True)]
                flat.copy_(weft.tensor(np.concatenate(arrays).astype(flat.dtype.numpy), device=flat.device))
            # Optimizers that count nothing save no step; state that was saved is proof of at least one.
            self.set_numbers({
                name: np.array([_number(entry, name, float(name == STEP and _has_steps(entry))) for entry in saved])
                for name in self.numbers
            })  # fmt: skip


def _values(numbers: Mapping[str, Tensor], count: int) -> dict[str, np.ndarray]:
    return {name: np.broadcast_to(each.numpy(), (count,)) for name, each in numbers.items()}


def _has_steps(entry: Mapping[str, Any]) -> bool:
    return any(value is not None for value in entry.values())


def _number(entry: Mapping[str, Any], name: str, default: float) -> float:
    value = entry.get(name)
    return default if value is None else float(np.asarray(value))


class _Shape:
    """What `flat.split` needs of a tensor; of one that is not there where `shape` is None."""

    def __init__(self, shape: tuple[int, ...] | None):
        self.is_there = shape is not None
        self.shape = (0,) if shape is None else tuple(shape)

    def numel(self) -> int:
        return math.prod(self.shape)


def firsts(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The first element of each part of a flat vector."""
    starts = itertools.accumulate([tensor.numel() for tensor in tensors], initial=0)
    return [flat[start] for start, _ in zip(starts, tensors, strict=False)]


def _part(value: Any, like: _Shape, name: str) -> np.ndarray:
    """One parameter's share of a state vector, from what was saved."""
    if value is None or not like.is_there:
        return np.zeros(like.numel())
    array = np.asarray(value)
    if array.shape != like.shape:
        given, expected = f"{name} of shape {array.shape}", f"{like.shape}, as its parameter has it"
        raise problem(ShapeError, "load_state_dict", given, expected, "load into the same model")
    return array.reshape(-1)


@contextlib.contextmanager
def outside_of_traces() -> Iterator[None]:
    """Inside, tensors are made and assigned at once, although `weft.compile` traces a function."""
    trace, STATE.trace = STATE.trace, None
    watching = sys.getprofile() if trace is not None else None  # what runs meanwhile is no part of the function
    try:
        if watching is not None:
            sys.setprofile(None)
        with weft.no_grad():
            yield
    finally:
        STATE.trace = trace
        if watching is not None:
            sys.setprofile(watching)
