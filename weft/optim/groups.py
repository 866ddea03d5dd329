"""Parameter groups: hyper-parameters as users set them, and the flat vectors that an update computes with.

A `Group` is the dict that `optimizer.param_groups` shows. Its parameters lie in `Bucket`s, one for each dtype and
device, together with their state. Nothing here knows an update rule.
"""

from __future__ import annotations

import functools
import numbers
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import weft
from weft.base.errors import GraphError, problem
from weft.base.state import STATE, VERSION
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.buckets import SUM, Bucket, _Shape, firsts
from weft.optim.flat import split

_ADD = "use add_param_group, or make a new optimizer"
DEFERRED = ("lr", "momentum", "betas")  # what schedulers change


class WatchedList(list):
    """A list that compiled steps look at again after it was changed."""

    __slots__ = ()


def _changing_option(name: str) -> Any:
    change = getattr(list, name)

    @functools.wraps(change)
    def call(self: WatchedList, *args: Any, **kwargs: Any) -> Any:
        VERSION.bump()
        return change(self, *args, **kwargs)

    return call


for _name in (
    "__delitem__", "__iadd__", "__imul__", "__setitem__", "append", "clear", "extend", "insert", "pop", "remove",
    "reverse", "sort",
):  # fmt: skip
    setattr(WatchedList, _name, _changing_option(_name))


@entry_point
class Group(dict):
    """One parameter group: a dict of hyper-parameters and 'params'. Setting a number writes it to the device.

    During an update it also says which parameters the flat vectors consist of: `tensors`, `split`, `spread`.
    """

    def __init__(self, options: Mapping[str, Any], optimizer: Any):
        super().__init__(options)
        self.optimizer = optimizer
        self.params = tuple(options.get("params", ()))  # those that are in the buckets
        self.buckets: list[Bucket] = []
        self.tables: set[int] = set()  # ids of parameters that lie in buckets of their own
        self.tensors: list[Tensor] = []  # the parameters of the update in progress
        self.bucket: Bucket | None = None  # and where they lie

    def __reduce__(self) -> tuple[Any, ...]:
        return Group, ({}, None), (dict(self), self.optimizer, self.params, self.buckets)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Of a copy: its numbers are in its buckets already."""
        options, self.optimizer, self.params, self.buckets = state
        super().update(options)

    # ---- a dict whose numbers are on the device ----------------------------------------------------------------

    def __setitem__(self, key: str, value: Any) -> None:
        if STATE.trace is not None:
            given = f"{key!r} set inside {STATE.trace.where}"
            raise problem(
                GraphError, "param_groups", given, "hyper-parameters that change between calls",
                "set it, or call scheduler.step(), outside",
            )  # fmt: skip
        if key == "params":
            expected = "parameters that stay as they were given"
            raise problem(GraphError, "param_groups", "'params' set to another list", expected, _ADD)
        before = dict(self)
        super().__setitem__(key, plain_number(value))
        try:
            self.optimizer._check_group(self)
        except Exception:
            self.clear()
            super().update(before)
            raise
        if self.optimizer.defers_numbers and key in DEFERRED and bool(before.get(key)) == bool(value):
            return
        VERSION.bump()
        self.write_numbers()
        self.optimizer._add_state(self)

    def write_numbers(self) -> None:
        """Bring the numbers to the device."""
        for bucket in self.buckets:
            bucket.write_hyper(self.numbers())

    def assign_numbers(self, numbers: Sequence[float]) -> None:
        """Inside a compiled function: compute with these numbers, which are arguments of it, in the order of
        `numbers()`. So a rate that changes with each call costs neither an upload nor a trace."""
        with weft.no_grad():
            for bucket in self.buckets:
                like = bucket.hyper
                given = [weft.full((), number, dtype=like.dtype, device=like.device) for number in numbers]
                like._assign(weft.stack(given).node)

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def is_moved(self) -> bool:
        """Whether parameters have gone to another dtype or device, where their state is not."""
        return any(bucket.is_moved() for bucket in self.buckets)

    def check_params(self) -> None:
        """Refuse a list of parameters that was changed: their state lies elsewhere."""
        given = self["params"]
        if len(given) != len(self.params) or not all(map(operator.is_, given, self.params)):
            text = f"{len(given)} in 'params'" if len(given) != len(self.params) else "other tensors in 'params'"
            expected = f"the {len(self.params)} that were given"
            raise problem(GraphError, f"{type(self.optimizer).__name__}.step", text, expected, _ADD)

    def check_numbers(self, defaults: Mapping[str, Any], optional: Iterable[str]) -> None:
        """Refuse numeric hyper-parameters that are no numbers; None only in place of None or where it is `optional`."""
        for name in self.optimizer.hyper:
            usual, value = defaults.get(name), self.get(name)
            pairs: list[tuple[Any, Any]] = [(value, usual)]
            expected = "a number"
            if isinstance(usual, tuple | list):
                is_alike = isinstance(value, tuple | list) and len(value) == len(usual)
                pairs = list(zip(value or (), usual, strict=True)) if is_alike else []
                expected = f"{len(usual)} numbers"
            is_right = [
                isinstance(each, numbers.Real | np.ndarray) or (each is None and (one is None or name in optional))
                for each, one in pairs
            ]
            if not is_right or not all(is_right):
                raise problem(GraphError, type(self.optimizer).__name__, f"{name} {value!r:.60}", expected)

    def is_accumulating(self) -> bool:
        """Whether gradients are added up, or were until now, so that a sum may be left for the next update."""
        if self.constant("update_every", 1) != 1:
            return True
        read = lambda: any(SUM in bucket.state for bucket in self.buckets)  # noqa: E731
        return read() if STATE.trace is None else STATE.trace.guard(read)

    def constant(self, name: str, default: Any = None) -> Any:
        """A hyper-parameter as a Python value; a compiled step is traced again when it changes."""
        if STATE.trace is not None:
            return STATE.trace.guard(lambda: self.get(name, default))
        return self.get(name, default)

    def choice(self, name: str) -> bool:
        """Whether a hyper-parameter takes part in the update; a compiled step is traced again when that changes."""
        if STATE.trace is not None:
            return STATE.trace.guard(lambda: bool(self.get(name)))
        return bool(self.get(name))

    def numbers(self) -> list[float]:
        """The numeric hyper-parameters in the optimizer's order; a pair such as `betas` gives two. None is 0."""
        return [0.0 if value is None else float(value) for _, value in self._items()]

    def names(self) -> list[str]:
        """Their names: `lr`, `betas1`, `betas2`, ..."""
        return [name for name, _ in self._items()]

    def _items(self) -> Iterator[tuple[str, Any]]:
        for name in self.optimizer.hyper:
            value = self[name]
            if isinstance(value, tuple | list):
                yield from [(f"{name}{k + 1}", each) for k, each in enumerate(value)]
            else:
                yield name, value

    # ---- the update in progress --------------------------------------------------------------------------------

    def split(self, flat: Tensor) -> list[Tensor]:
        """A flat vector as tensors in the shapes of the parameters."""
        return split(flat, self.tensors)

    def split_state(self, name: str, flat: Tensor) -> list[Tensor]:
        """A state vector whose parts do not have the shapes of the parameters, as tensors."""
        assert self.bucket is not None
        return split(flat, [_Shape(self.bucket.shape_of(name, tensor)) for tensor in self.tensors])

    def each(self, number: Tensor) -> list[Tensor]:
        """What is one number for all parameters, or a flat vector, as one number for each parameter."""
        return [number] * len(self.tensors) if not number.ndim else firsts(number, self.tensors)

    def spread(self, numbers: Sequence[Tensor | float]) -> Tensor:
        """One number for each parameter, repeated over its elements: a flat vector."""
        assert self.bucket is not None
        like = self.bucket.hyper
        given = [
            number if isinstance(number, Tensor) else weft.full((), number, dtype=like.dtype, device=like.device)
            for number in numbers
        ]
        return weft.stack(given)[self.bucket.rows_of(self.tensors)]


def plain_number(value: Any) -> Any:
    """A hyper-parameter given as a tensor of one element, as a Python number."""
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, tuple) and any(isinstance(each, Tensor) for each in value):
        return tuple(map(plain_number, value))
    return value
