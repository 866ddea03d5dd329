"""Optimizer: what all optimizers share. Groups, flat state, hyper-parameters on the device, state_dict.

A subclass names its hyper-parameters and state vectors and writes `update`, an expression over flat vectors.
Hyper-parameters are tensor elements, so a learning rate can change between replays of a compiled step.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import weft
from weft.base.errors import GraphError, RangeError, ShapeError, problem
from weft.base.locks import CopyableLock
from weft.base.state import STATE, VERSION
from weft.core.boundary import entry_point
from weft.core.realize import take_consumed
from weft.core.tensor import Tensor
from weft.functional.row_updates import Rows, replace_rows, row_gradient, take_rows, unique_rows
from weft.optim import saved_state
from weft.optim.buckets import SEEN, STEP, SUM, Bucket, outside_of_traces
from weft.optim.flat import buckets, join, split
from weft.optim.groups import Group, WatchedList, plain_number

__all__ = ["Optimizer"]
Params = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
State = dict[str, Tensor]


@entry_point
class Optimizer:
    """Base class. `params` is an iterable of tensors, of (name, tensor) pairs as `model.named_parameters()` gives, or
    of dicts with either of these under 'params' and hyper-parameters of their own.

    An optimizer of one's own sets `hyper` (names in order) and `state_names`, and defines `update` on flat vectors: `p`
    and `g` are all parameters and gradients of a group, one after the other; `h` maps names of hyper-parameters to
    device scalars (a pair `betas` to `betas1` and `betas2`), `t` counts updates from 1, `state` holds vectors that
    begin as zeros. It returns the new parameters and the new state. Groups, `maximize`, `update_every`, saving, loading
    and `weft.compile` work with it as with any other.

    >>> class Momentum(weft.optim.Optimizer):
    ...     hyper, state_names = ("lr", "mu"), ("velocity",)
    ...
    ...     def __init__(self, params, lr=0.1, mu=0.9):
    ...         super().__init__(params, {"lr": lr, "mu": mu})
    ...
    ...     def update(self, group, p, g, h, t, state):
    ...         velocity = h["mu"] * state["velocity"] - h["lr"] * g
    ...         return p + velocity, {"velocity": velocity}
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = Momentum([w], lr=0.25)
    >>> for _ in range(2):
    ...     optimizer.zero_grad()
    ...     (w * w).sum().backward()
    ...     optimizer.step()
    >>> round(w.item(), 4)
    -0.2

    Hyper-parameters that decide which form the update has (`if group.choice("nesterov")`) are read by `group.choice` or
    `group.constant`: then a compiled step is traced again when they change. What is one number for each parameter is
    named in `number_names`. `group.split(p)` gives the tensors behind a flat vector.
    """

    hyper: tuple[str, ...] = ()
    state_names: tuple[str, ...] = ()
    number_names: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()  # of `hyper`: what may be None
    saves_steps = True  # whether the count of updates is part of the state_dict, as in torch's
    defers_numbers = False  # whether rates that are set stay on the host: see `deferring_numbers`
    _condition: Tensor | None = None  # of `updating_if`

    def __init__(self, params: Params, defaults: Mapping[str, Any]):
        self.defaults = dict(defaults)
        self.param_groups: list[Group] = WatchedList()
        self._own_state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self._step_lock = CopyableLock()  # a step outside weft.compile assigns its tensors one after the other
        given = self._list_params(params)
        if not given:
            raise problem(
                GraphError, type(self).__name__, "no parameters", "at least one tensor", "pass model parameters"
            )
        groups = given if isinstance(given[0], dict) else [{"params": given}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add parameters with hyper-parameters of their own."""
        if not isinstance(param_group, Mapping) or "params" not in param_group:
            given = f"{param_group!r:.80}" if not isinstance(param_group, Mapping) else "a group without 'params'"
            raise problem(
                GraphError, type(self).__name__, given, "a dict with 'params'", "{'params': [...], 'lr': 0.1}"
            )
        params = self._list_params(param_group["params"])
        options = {key: plain_number(value) for key, value in param_group.items()}
        named = [isinstance(param, tuple) for param in params]
        if any(named):
            params, options["param_names"] = self._split_names(params)
        others = self.param_groups[0] if self.param_groups else None
        if others is not None and ("param_names" in others) != ("param_names" in options):
            raise problem(
                GraphError, type(self).__name__, "groups with and without names",
                "(name, tensor) pairs in all groups or in none", "use named_parameters() for all of them",
            )  # fmt: skip
        known = {id(param) for group in self.param_groups for param in group["params"]}
        for param in params:
            self._check(param, known)
            known.add(id(param))
        defaults = {key: plain_number(value) for key, value in self.defaults.items()}
        options["params"] = params = WatchedList(params)
        group = Group({"params": params, **defaults, **options}, self)
        self._check_group(group)
        with outside_of_traces():
            group.buckets = self._make_buckets(group)
        self.param_groups.append(group)
        VERSION.bump()  # compiled steps are to look at the groups

    def _parameter_ids(self) -> list[list[int]]:
        """Which parameters each group has."""
        return [list(map(id, group["params"])) for group in self.param_groups]

    def _guard_groups(self) -> None:
        """Let a compiled function be traced again when there are other groups, or other parameters in them. One guard
        serves all calls in it; replays look at it only after a change (`WatchedList`)."""
        if STATE.trace is not None and all(read != self._parameter_ids for read, _ in STATE.trace.guards):
            STATE.trace.guard(self._parameter_ids)

    def _list_params(self, params: Any) -> list[Any]:
        if isinstance(params, Tensor):
            return [params]
        if isinstance(params, set | frozenset) or not isinstance(params, Iterable):
            given = f"a {type(params).__name__} as parameters"
            raise problem(GraphError, type(self).__name__, given, "a list or another iterable with an order")
        return list(params)

    def _split_names(self, params: list[Any]) -> tuple[list[Tensor], list[str]]:
        """The tensors and the names of (name, tensor) pairs."""
        for param in params:
            if not isinstance(param, tuple) or len(param) != 2 or not isinstance(param[0], str):
                given = f"a {type(param).__name__} among pairs"
                expected = "(name, tensor) pairs, or tensors, but not both"
                raise problem(GraphError, type(self).__name__, given, expected, "use named_parameters()")
        names = [name for name, _ in params]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise problem(GraphError, type(self).__name__, f"the name {twice!r} twice", "each name once")
        return [param for _, param in params], names

    def _make_buckets(self, group: Group) -> list[Bucket]:
        numbers, names, params = group.numbers(), self._state_of(group), group["params"]
        made = []
        alone = [[k] for k, param in enumerate(params) if id(param) in group.tables]
        rest = [k for k, param in enumerate(params) if id(param) not in group.tables]
        joined = [[rest[k] for k in positions] for positions in buckets([params[k] for k in rest])]
        for positions in [*joined, *alone]:
            chosen = [params[k] for k in positions]
            made.append(Bucket(chosen, numbers, names, self.number_names, self._shape_of))
        return made

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
        if param.dtype.kind != "f":
            raise problem(GraphError, who, f"a {param.dtype.name} tensor", "floats", "convert it with .float()")

    def _check_group(self, group: Group) -> None:
        """Refuse hyper-parameters that no update can use."""
        group.check_numbers(self.defaults, self.optional)
        every = group.get("update_every", 1)
        if not isinstance(every, int) or every < 1:
            raise problem(RangeError, type(self).__name__, f"update_every {every!r}", "an integer of at least 1")

    def _state_of(self, group: Group) -> tuple[str, ...]:
        """Names of the state vectors that this group's hyper-parameters call for."""
        return self.state_names

    def _add_state(self, group: Group) -> None:
        """Make the state vectors that hyper-parameters call for since they were changed."""
        for bucket in group.buckets:
            bucket.add_state(self._state_of(group))

    def _shape_of(self, name: str, param: Tensor) -> tuple[int, ...] | None:
        """The shape of a parameter's share of a state vector; None where it has no such state."""
        return param.shape

    # ---- steps ---------------------------------------------------------------------------------------------------

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients, or set them to zero."""
        self._guard_groups()
        for param in itertools.chain.from_iterable(group["params"] for group in self.param_groups):
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad.zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient. Outside a compiled function this computes everything pending.

        `closure`, if given, is called first: it computes the gradients and returns the loss, which is returned.
        """
        loss = None
        if closure is not None:
            with weft.enable_grad():
                loss = closure()
        with self._step_lock:
            origins = None if STATE.trace is None else STATE.trace.origins
            if origins is None:
                self._step()
            else:
                origins.call(self, "update", self._step)
        return loss

    @contextlib.contextmanager
    def deferring_numbers(self) -> Iterator[None]:
        """Inside, rates that a scheduler sets are not copied to the device: the caller of a compiled step passes them
        as arguments (`group.assign_numbers`), or calls `group.write_numbers()` before the next step."""
        self.defers_numbers = True
        try:
            yield
        finally:
            self.defers_numbers = False

    @contextlib.contextmanager
    def updating_if(self, condition: Tensor) -> Iterator[None]:
        """Inside, `step()` leaves parameters, state and counts as they are where `condition`, a bool on the device, is
        False: a step with a loss that is not finite can be left out without the host looking at it.

        >>> w = weft.tensor([1.0], requires_grad=True)
        >>> optimizer = weft.optim.SGD([w], lr=0.5, momentum=0.9)
        >>> (w * w).sum().backward()
        >>> with optimizer.updating_if(weft.tensor(False)):
        ...     optimizer.step()
        >>> w.tolist()
        [1.0]
        """
        if self._keeps_own_state():
            given, expected = f"{type(self).__name__}, whose step() is its own", "an optimizer that defines update()"
            raise problem(GraphError, "updating_if", given, expected)
        outer = self._condition
        self._condition = condition if outer is None else outer & condition.to(outer.device)
        try:
            yield
        finally:
            self._condition = outer

    def _make_keep(self, device: Any, due: Tensor | None = None) -> Callable[[Tensor, Tensor], Tensor]:
        """What chooses between a new value and an old one on a device: the new one where `updating_if` and `due` say
        so."""
        condition = None if self._condition is None else self._condition.to(device)
        chosen = due if condition is None else condition if due is None else due & condition
        if chosen is None:
            return lambda new, old: new
        return lambda new, old: weft.where(chosen, new, old)

    def _step(self) -> None:
        self._guard_groups()
        fresh: list[Tensor] = []
        later: list[tuple[list[Tensor], Tensor]] = []
        with weft.no_grad(), weft.autocast(enabled=False):
            for group in self.param_groups:
                group.check_params()
                if group.is_moved() or self._separate_tables(group):
                    self._follow(group)
                for bucket in group.buckets:
                    self._step_bucket(group, bucket, fresh, later)
        if STATE.trace is not None:
            return
        weft.eval(*fresh, *take_consumed())
        with weft.no_grad():
            for tensors, flat in later:
                for tensor, part in zip(tensors, split(flat, tensors), strict=True):
                    tensor._assign(part.node)

    def follow_parameters(self) -> None:
        """Bring the state to where the parameters are now; the next `step()` would do it, too."""
        for group in self.param_groups:
            if group.is_moved():
                self._follow(group)

    def _follow(self, group: Group) -> None:
        """Parameters have gone to another dtype or device: their state goes with them."""
        old = {id(param): (bucket, k) for bucket in group.buckets for k, param in enumerate(bucket.params)}
        with outside_of_traces():
            group.buckets = self._make_buckets(group)
            for bucket in group.buckets:
                bucket.take_from([old[id(param)] for param in bucket.params])

    # ---- tables of which few rows have a gradient --------------------------------------------------------------------

    def _changes_only_rows(self, group: Group) -> bool:
        """Whether an element whose gradient is zero stays as it is, and so does its state."""
        return False

    def _has_rows(self, group: Group, param: Tensor) -> bool:
        """Whether a compiled step may update just some rows of a parameter."""
        if STATE.trace is None or param.grad is None or param.ndim < 2 or group.is_accumulating():
            return False
        return self._changes_only_rows(group) and row_gradient(param.grad)

    def _separate_tables(self, group: Group) -> bool:
        """Note tables that are to lie in buckets of their own; whether there are new ones."""
        if STATE.trace is None or not self._changes_only_rows(group):
            return False
        found = False
        for bucket in group.buckets:
            if len(bucket.params) > 1 and not any(map(STATE.trace.is_written, bucket.tensors())):
                new = [param for param in bucket.params if self._has_rows(group, param)]
                group.tables |= {id(param) for param in new}
                found = found or bool(new)
        return found

    def _step_rows(self, group: Group, bucket: Bucket) -> None:
        """Update the rows of a table that have a gradient; nothing else of it is read or written."""
        (param,), active = bucket.params, [0]
        assert param.grad is not None
        rows = unique_rows(param.grad)
        work, shape = bucket.hyper.dtype, param.shape
        bucket.check_together(active)
        tables = {name: bucket.state[name].reshape(shape) for name in self._state_of(group)}
        state = {name: take_rows(table, rows.index).reshape(-1) for name, table in tables.items()}
        p, g = take_rows(param.detach(), rows.index).reshape(-1).to(work), rows.values.reshape(-1).to(work)
        group.tensors, group.bucket = [param], bucket
        keep = self._make_keep(bucket.hyper.device)
        new_p, new_state = self._compute_update(group, bucket, active, p, g, state, keep)
        group.tensors, group.bucket = [], None
        new_p, new_state = keep(new_p, p), {name: keep(value, state[name]) for name, value in new_state.items()}
        like = rows.values.shape
        param._assign(replace_rows(param.detach(), Rows(rows.index, new_p.to(param.dtype).reshape(like))))
        for name, value in new_state.items():
            changed = Tensor(replace_rows(tables[name], Rows(rows.index, value.reshape(like))))
            bucket.state[name]._assign(changed.reshape(-1).node)

    def _step_bucket(self, group: Group, bucket: Bucket, fresh: list[Tensor], later: list) -> None:
        active = [k for k, param in enumerate(bucket.params) if param.grad is not None and param.numel()]
        if not active:
            return
        if len(bucket.params) == 1 and bucket.together and self._has_rows(group, bucket.params[0]):
            self._step_rows(group, bucket)
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
        group.tensors, group.bucket = params, bucket
        bucket.check_together(active)
        every = group.constant("update_every", 1)
        new_p = self._update_bucket(group, bucket, active, p, g.to(work), every).to(dtype)
        group.tensors, group.bucket = [], None
        if STATE.trace is not None:
            for param, part in zip(params, split(new_p, params), strict=True):
                param._assign(part.node)
            return
        fresh += [new_p, g, *bucket.numbers.values(), *bucket.state.values()]
        later += [(params, new_p), (grads, g)]

    def _update_bucket(
        self, group: Group, bucket: Bucket, active: list[int], p: Tensor, g: Tensor, every: int
    ) -> Tensor:
        """The new parameters, after the state was assigned. With `update_every` above 1, gradients are added up and in
        most calls everything else stays: which call it is, the device counts, so that a compiled step is the same."""
        keep = self._make_keep(bucket.hyper.device)
        if group.is_accumulating():
            bucket.add_state([SUM])
            bucket.add_numbers([SEEN])
            before, total = bucket.read_number(SEEN, active), bucket.read_state(SUM, active)
            seen, g = before + 1.0, total + g
            due = seen >= float(every)  # it may have been lowered meanwhile
            bucket.write_number(SEEN, keep(weft.where(due, 0.0, seen), before), active)
            bucket.write_state(SUM, keep(weft.where(due, 0.0, g), total), active)
            keep = self._make_keep(bucket.hyper.device, due)

        state = {name: bucket.read_state(name, active) for name in self._state_of(group)}
        new_p, new_state = self._compute_update(group, bucket, active, p, g, state, keep)
        for name, value in new_state.items():
            bucket.write_state(name, keep(value, state[name]), active)
        return keep(new_p, p)

    def _compute_update(
        self, group: Group, bucket: Bucket, active: list[int], p: Tensor, g: Tensor, state: State,
        keep: Callable[[Tensor, Tensor], Tensor],
    ) -> tuple[Tensor, State]:  # fmt: skip
        """What `update` makes of parameters, gradients and state; numbers are assigned."""
        if group.choice("maximize"):
            g = -g
        state = {**state, **{name: bucket.read_number(name, active) for name in self.number_names}}
        steps = bucket.read_number(STEP, active)
        t = steps + 1.0
        h = {name: bucket.hyper[k] for k, name in enumerate(group.names())}
        new_p, new_state = self.update(group, p, g, h, t, state)
        bucket.write_number(STEP, keep(t, steps), active)
        for name in self.number_names:
            if name in new_state:
                bucket.write_number(name, keep(new_state[name], state[name]), active)
        return new_p, {name: value for name, value in new_state.items() if name not in self.number_names}

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """New parameters and new state, as flat vectors. Subclasses define it."""
        raise TypeError(f"{type(self).__name__} must define update()")

    # ---- saving and loading ----------------------------------------------------------------------------------------

    @property
    def state(self) -> Mapping[Tensor, dict[str, Any]]:
        """The state of each parameter that was updated, by parameter. An optimizer whose class defines `step` keeps its
        own state here, as in PyTorch: `self.state[p]["count"] = 1`."""
        if self._keeps_own_state():
            return self._own_state
        params = [param for group in self.param_groups for param in group["params"]]
        saved = self.state_dict()["state"]
        return {param: saved[k] for k, param in enumerate(params) if k in saved}

    def _keeps_own_state(self) -> bool:
        return type(self).update is Optimizer.update

    def state_dict(self) -> dict[str, Any]:
        """Step counts, state per parameter and hyper-parameters, in torch's layout, as tensors and numbers.

        All of one moment: a step that another thread makes is in all of it or in nothing. Parameters that were not
        updated yet have no state.
        """
        return saved_state.read_state(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned (or the same layout from torch, with arrays for tensors)."""
        saved_state.load_state(self, state_dict)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {number}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key not in ("params", "param_names")]
        return "\n".join([*lines, ")"])
