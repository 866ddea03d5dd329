"""Optimizer: what all optimizers share. Groups, flat state, hyper-parameters on the device, state_dict.

A subclass names its hyper-parameters and state vectors and writes `update`, an expression over flat vectors.
Hyper-parameters are tensor elements, so a learning rate can change between replays of a compiled step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

import weft
from weft.errors import GraphError, RangeError, ShapeError, problem
from weft.locks import CopyableLock
from weft.optim.flat import buckets, join, pack, split
from weft.state import STATE, VERSION
from weft.tensor import Tensor, take_consumed


class Group(dict):
    """One parameter group: a dict of hyper-parameters and 'params'. Setting a number writes it to the device."""

    def __init__(
        self, options: Mapping[str, Any], order: tuple[str, ...], state_of: Callable[[Group], tuple[str, ...]]
    ):
        super().__init__(options)
        self.order = order
        self.state_of = state_of
        self.buckets: list[Bucket] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Group, ({}, (), None), (dict(self), self.order, self.state_of, self.buckets)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Of a copy: its numbers are in its buckets already."""
        options, self.order, self.state_of, self.buckets = state
        self.update(options)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        VERSION.bump()
        for bucket in self.buckets:
            bucket.write_hyper(self.numbers())
            bucket.add_state(self.state_of(self))

    def choice(self, name: str) -> bool:
        """Whether a hyper-parameter takes part in the update; a compiled step is traced anew when that changes."""
        if STATE.trace is not None:
            return STATE.trace.guard(lambda: bool(self[name]))
        return bool(self[name])

    def numbers(self) -> list[float]:
        """The numeric hyper-parameters in the optimizer's order; a pair such as `betas` gives two."""
        out: list[float] = []
        for name in self.order:
            value = self[name]
            out.extend(map(float, value) if isinstance(value, tuple | list) else [float(value)])
        return out


class Bucket:
    """The parameters of a group that share dtype and device, with their state as flat vectors.

    The update of 16-bit parameters is computed in float32, where their state stays: 0.999 would round to 1 in bfloat16.
    """

    def __init__(self, params: list[Tensor], numbers: list[float], state_names: tuple[str, ...]):
        self.params = params
        dtype, device = weft.float32 if params[0].dtype.is_narrow else params[0].dtype, params[0].device
        total = sum(param.numel() for param in params)
        self.hyper = weft.tensor(np.array(numbers, dtype.numpy), device=device)
        self.steps = weft.zeros(len(params), dtype=dtype, device=device)  # updates made so far, per parameter
        self.hyper.name, self.steps.name = "optimizer hyper-parameters", "optimizer steps"
        self.together = True  # whether all parameters have made the same number of updates
        self.total = total
        self.state: dict[str, Tensor] = {}
        self.add_state(state_names)
        weft.eval(self.steps)
        pack(params)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy: its parameters are moved into one piece of memory, like those of the original."""
        self.__dict__.update(state)
        pack(self.params)

    def add_state(self, names: tuple[str, ...]) -> None:
        """Zeros for state vectors that are not there yet."""
        for name in names:
            if name not in self.state:
                self.state[name] = weft.zeros(self.total, dtype=self.hyper.dtype, device=self.hyper.device)
                self.state[name].name = f"optimizer {name}"
                weft.eval(self.state[name])

    def write_hyper(self, numbers: list[float]) -> None:
        self.hyper.copy_(weft.tensor(np.array(numbers, self.hyper.dtype.numpy), device=self.hyper.device))


class Optimizer:
    """Base class. `params` is an iterable of tensors or of dicts with 'params' and own hyper-parameters.

    Subclasses set `hyper` (names in order), `state_names`, and define
    `update(group, p, g, h, t, state) -> (new p, {name: new state})` on flat vectors; `h` maps hyper-parameter names to
    device scalars, `t` is the step count starting at 1.
    """

    hyper: tuple[str, ...] = ()
    state_names: tuple[str, ...] = ()

    def __init__(self, params: Iterable[Tensor] | Iterable[dict], defaults: Mapping[str, Any]):
        self.defaults = dict(defaults)
        self.param_groups: list[Group] = []
        self._step_lock = CopyableLock()  # a step outside weft.compile assigns its tensors one after the other
        given = [params] if isinstance(params, Tensor) else list(params)
        if not given:
            raise problem(
                GraphError, type(self).__name__, "no parameters", "at least one tensor", "pass model parameters"
            )
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        for group in groups:
            self.add_param_group(group)  # type: ignore[arg-type]

    def add_param_group(self, options: Mapping[str, Any]) -> None:
        """Add parameters with hyper-parameters of their own."""
        params = [options["params"]] if isinstance(options["params"], Tensor) else list(options["params"])
        known = {id(param) for group in self.param_groups for param in group["params"]}
        for param in params:
            self._check(param, known)
            known.add(id(param))
        group = Group({**self.defaults, **options, "params": params}, self.hyper, self._state_of)
        numbers = group.numbers()
        for positions in buckets(params):
            group.buckets.append(Bucket([params[k] for k in positions], numbers, self._state_of(group)))
        self.param_groups.append(group)

    def _check(self, param: Any, known: set[int]) -> None:
        who = type(self).__name__
        if not isinstance(param, Tensor):
            raise problem(GraphError, who, f"a {type(param).__name__}", "tensors", "pass tensors that require grad")
        if not param.is_leaf:
            raise problem(
                GraphError, who, "a tensor that is the result of an operation", "leaf tensors", "use detach()"
            )
        if id(param) in known:
            raise problem(GraphError, who, "the same tensor twice", "each parameter once", "remove the duplicate")

    def _state_of(self, group: Group) -> tuple[str, ...]:
        """Names of the state vectors that this group's hyper-parameters call for."""
        return self.state_names

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients, or set them to zero."""
        for param in itertools.chain.from_iterable(group["params"] for group in self.param_groups):
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad.zero_()

    def step(self) -> None:
        """Update all parameters that have a gradient. Outside a compiled function this computes everything pending."""
        with self._step_lock:
            self._step()

    def _step(self) -> None:
        fresh: list[Tensor] = []
        later: list[tuple[list[Tensor], Tensor]] = []
        with weft.no_grad():
            for group in self.param_groups:
                for bucket in group.buckets:
                    self._step_bucket(group, bucket, fresh, later)
        if STATE.trace is not None:
            return
        weft.eval(*fresh, *take_consumed())
        with weft.no_grad():
            for tensors, flat in later:
                for tensor, part in zip(tensors, split(flat, tensors), strict=True):
                    tensor._assign(part.node)

    def _step_bucket(self, group: Group, bucket: Bucket, fresh: list[Tensor], later: list) -> None:
        active = [k for k, param in enumerate(bucket.params) if param.grad is not None]
        if not active:
            return
        params = [bucket.params[k] for k in active]
        grads = [grad for param in params if (grad := param.grad) is not None]
        for param, grad in zip(params, grads, strict=True):
            if grad.shape != param.shape:
                raise problem(
                    ShapeError, f"{type(self).__name__}.step", f"a gradient of shape {grad.shape}",
                    f"the parameter's shape {param.shape}", "set .grad to a tensor like the parameter",
                )  # fmt: skip
        work, dtype = bucket.hyper.dtype, params[0].dtype
        p, g = join([param.detach() for param in params]).to(work), join(grads)
        wanted = self._state_of(group)
        state = {name: self._pick(bucket.state[name], bucket.params, active) for name in wanted}
        t = self._count(bucket, active)
        h = {name: bucket.hyper[k] for k, name in enumerate(self._hyper_names(group))}
        new_p, new_state = self.update(group, p, g.to(work), h, t, state)
        new_p = new_p.to(dtype)
        for name, value in new_state.items():
            whole = self._merge(bucket.state[name], value, bucket.params, active)
            bucket.state[name]._assign(whole.node)
        if STATE.trace is not None:
            for param, part in zip(params, split(new_p, params), strict=True):
                param._assign(part.node)
            return
        fresh += [new_p, g, bucket.steps, *bucket.state.values()]
        later += [(params, new_p), (grads, g)]

    @staticmethod
    def _count(bucket: Bucket, active: list[int]) -> Tensor:
        """Count this update; returns the number of updates: one number, or a vector like the flat parameters."""
        if len(active) < len(bucket.params):
            bucket.together = False
        if STATE.trace is not None:
            STATE.trace.guard(lambda: bucket.together)
        if bucket.together:
            steps = bucket.steps + 1.0
            bucket.steps._assign(steps.node)
            return steps[0]
        each = [bucket.steps[k] + 1.0 if k in active else bucket.steps[k] for k in range(len(bucket.params))]
        bucket.steps._assign(weft.stack(each).node)
        return weft.cat([each[k].expand(bucket.params[k].numel()) for k in active])

    def _hyper_names(self, group: Group) -> list[str]:
        names: list[str] = []
        for name in self.hyper:
            value = group[name]
            names.extend([f"{name}{k + 1}" for k in range(len(value))] if isinstance(value, tuple | list) else [name])
        return names

    @staticmethod
    def _pick(flat: Tensor, params: list[Tensor], active: list[int]) -> Tensor:
        if len(active) == len(params):
            return flat
        parts = split(flat, params)
        return join([parts[k] for k in active])

    @staticmethod
    def _merge(flat: Tensor, value: Tensor, params: list[Tensor], active: list[int]) -> Tensor:
        if len(active) == len(params):
            return value
        parts = split(flat, params)
        for k, part in zip(active, split(value, [params[k] for k in active]), strict=True):
            parts[k] = part
        return join(parts)

    def update(self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: dict[str, Tensor]):
        """New parameters and new state, as flat vectors. Subclasses define it."""
        raise TypeError(f"{type(self).__name__} must define update()")

    def state_dict(self) -> dict[str, Any]:
        """Step counts, state per parameter and hyper-parameters, in torch's layout, as tensors and numbers.

        All of one moment: a step that another thread makes is in all of it or in nothing.
        """
        with self._step_lock:
            buckets = [bucket for group in self.param_groups for bucket in group.buckets]
            taken = iter(weft.snapshot([(bucket.state, bucket.steps) for bucket in buckets]))
        state: dict[int, dict[str, Any]] = {}
        groups, number = [], 0
        for group in self.param_groups:
            index = {id(param): number + k for k, param in enumerate(group["params"])}
            number += len(index)
            for bucket in group.buckets:
                vectors, steps = next(taken)
                for name, flat in vectors.items():
                    for param, part in zip(bucket.params, split(flat.clone(), bucket.params), strict=True):
                        state.setdefault(index[id(param)], {})[name] = part
                for k, param in enumerate(bucket.params):
                    state.setdefault(index[id(param)], {})["step"] = steps[k].clone()
            groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": list(index.values())})
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned (or the same layout from torch, with arrays for tensors)."""
        groups, state = state_dict["param_groups"], state_dict["state"]
        counts = [len(group["params"]) for group in groups]
        if counts != [len(group["params"]) for group in self.param_groups]:
            raise problem(
                ShapeError, "load_state_dict", f"groups of {counts} parameters",
                f"groups of {[len(group['params']) for group in self.param_groups]}", "load into the same model",
            )  # fmt: skip
        for group, saved in zip(self.param_groups, groups, strict=True):
            for key, value in saved.items():
                if key != "params":
                    group[key] = value
            index = {id(param): number for param, number in zip(group["params"], saved["params"], strict=True)}
            for bucket in group.buckets:
                self._load_bucket(bucket, [state.get(index[id(param)], {}) for param in bucket.params])

    @staticmethod
    def _load_bucket(bucket: Bucket, saved: list[Mapping[str, Any]]) -> None:
        with weft.no_grad():
            for name, flat in bucket.state.items():
                pairs = zip(saved, bucket.params, strict=True)
                arrays = [_part(entry.get(name), param, name) for entry, param in pairs]
                if any(name in entry for entry in saved):
                    flat.copy_(weft.tensor(np.concatenate(arrays).astype(flat.dtype.numpy), device=flat.device))
            # Optimizers that count nothing save no step; state that was saved is proof of at least one.
            steps = [float(np.asarray(entry.get("step", 1.0 if entry else 0.0))) for entry in saved]
            bucket.steps.copy_(weft.tensor(np.array(steps, bucket.steps.dtype.numpy), device=bucket.steps.device))
            bucket.together = len(set(steps)) == 1
            VERSION.bump()


def _part(value: Any, param: Tensor, name: str) -> np.ndarray:
    """One parameter's share of a state vector, from what was saved."""
    if value is None:
        return np.zeros(param.numel())
    array = np.asarray(value)
    if array.shape != param.shape:
        given, expected = f"{name} of shape {array.shape}", f"{param.shape}, the shape of its parameter"
        raise problem(ShapeError, "load_state_dict", given, expected, "load into the same model")
    return array.reshape(-1)


def check_numbers(who: str, **numbers: float) -> None:
    """Refuse hyper-parameters below zero."""
    for name, value in numbers.items():
        if not value >= 0.0:
            raise problem(RangeError, who, f"{name} {value}", "a number that is not negative", f"choose {name} >= 0")
