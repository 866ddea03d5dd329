"""GradScaler: loss scaling for float16, whose gradients would otherwise be rounded to zero.

All that it decides is decided on the device. Its state is a few tensors there (`scale`, the count of good steps, the
count of skipped ones, and for each optimizer whether its gradients were unscaled and whether one was not finite). A
step with gradients that are not finite computes its update like any other and then keeps the old parameters and the
old state by a select. So a whole training step with loss scaling is one compiled plan, and nothing is read by the host
until `get_scale` or `skipped_steps` is called.

    loss -> scale: loss * scale -> backward -> unscale_: grad / scale, found |= not finite
         -> step: new = where(found, old, new), skipped += found -> update: scale, growth count, found = 0
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import weft
from weft.base.errors import DTypeError, GraphError, RangeError, problem
from weft.base.state import STATE, VERSION
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.buckets import outside_of_traces
from weft.optim.flat import assign, buckets, join
from weft.optim.optimizer import Optimizer
from weft.plan.device import Device


class _Record:
    """What is known of one optimizer's gradients, on the device: whether one was not finite, and whether they were
    divided by the scale since the last `update`. `scopes` are the traces (None outside of them) that know the latter
    without reading from the device."""

    def __init__(self, device: Device):
        with outside_of_traces():
            self.found = weft.zeros((), dtype=weft.bool, device=device)
            self.unscaled = weft.zeros((), dtype=weft.bool, device=device)
            weft.eval(self.found, self.unscaled)
        self.found.name, self.unscaled.name = "gradients not finite", "gradients unscaled"
        self.scopes: weakref.WeakSet[Any] = weakref.WeakSet()
        self.stepped: weakref.WeakSet[Any] = weakref.WeakSet()
        self.is_traced = False  # whether a compiled function looks at the gradients, which the host does not see


class _Eager:
    """Stands for the code outside of traces in the sets of scopes."""


_EAGER = _Eager()


def _scope() -> Any:
    return _EAGER if STATE.trace is None else STATE.trace


@entry_point
class GradScaler:
    """Scales losses, and gradients back, so that float16 gradients neither vanish nor overflow; PyTorch's arguments.

    The scale starts at `init_scale`, is multiplied by `backoff_factor` when a gradient is not finite, in which case
    `step` changes nothing, and by `growth_factor` after `growth_interval` good steps in a row. `device` is where its
    state lies, that of the first loss unless named. Works in and outside of `weft.compile`, with every optimizer.

    >>> w = weft.ones(2, requires_grad=True)
    >>> optimizer, scaler = weft.optim.SGD([w], lr=0.5), weft.amp.GradScaler(init_scale=8.0)
    >>> @weft.compile
    ... def step(x):
    ...     optimizer.zero_grad()
    ...     scaler.scale((w * x).sum()).backward()
    ...     scaler.step(optimizer)
    ...     scaler.update()
    >>> step(weft.tensor([1.0, 2.0]))
    >>> w.tolist(), scaler.get_scale()
    ([0.5, 0.0], 8.0)
    >>> step(weft.tensor([1.0, float("inf")]))
    >>> w.tolist(), scaler.get_scale(), scaler.skipped_steps()
    ([0.5, 0.0], 4.0, 1)
    """

    def __init__(
        self,
        device: str | Device | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ):
        if not isinstance(device, str | Device | None):
            given = f"a {type(device).__name__} as device"
            raise problem(DTypeError, "GradScaler", given, "a device first, then init_scale", "write init_scale=...")
        self._device, self._enabled = device, bool(enabled)
        self._check_numbers(init_scale, growth_factor, backoff_factor, growth_interval)
        self._init_scale = float(init_scale)
        self._growth_factor, self._backoff_factor = float(growth_factor), float(backoff_factor)
        self._growth_interval = int(growth_interval)
        self._state: dict[str, Tensor] = {}  # scale, good steps in a row, skipped steps; made with the first loss
        self._loaded: dict[str, float] = {}
        self._records: weakref.WeakKeyDictionary[Any, _Record] = weakref.WeakKeyDictionary()

    @staticmethod
    def _check_numbers(scale: float, growth: float, backoff: float, interval: int) -> None:
        checks = [
            (f"init_scale {scale}", 0.0 < scale < float("inf"), "a finite number above 0"),
            (f"growth_factor {growth}", growth > 1.0, "a number above 1"),
            (f"backoff_factor {backoff}", 0.0 < backoff < 1.0, "a number between 0 and 1"),
            (f"growth_interval {interval}", interval >= 1, "at least 1"),
        ]
        for given, is_right, expected in checks:
            if not is_right:
                raise problem(RangeError, "GradScaler", given, expected)

    # ---- state on the device ---------------------------------------------------------------------------------------

    def _tensors(self, device: Device | None = None) -> dict[str, Tensor]:
        """The state, made on `device` if it was not yet and the scaler was given none."""
        if not self._state:
            target = weft.get_device(self._device) if self._device is not None else device or weft.default_device()
            begin = {"scale": self._init_scale, "growth": 0.0, "skipped": 0.0, **self._loaded}
            with outside_of_traces():
                self._state = {
                    "scale": weft.full((), begin["scale"], dtype=weft.float32, device=target),
                    "growth": weft.full((), int(begin["growth"]), dtype=weft.int32, device=target),
                    "skipped": weft.full((), int(begin["skipped"]), dtype=weft.int32, device=target),
                }
                weft.eval(*self._state.values())
            for name, tensor in self._state.items():
                tensor.name = f"loss scaler {name}"
        return self._state

    def _record(self, optimizer: Any) -> _Record:
        if optimizer not in self._records:
            self._records[optimizer] = _Record(self._tensors()["scale"].device)
        return self._records[optimizer]

    def _number(self, name: str) -> Any:
        """One of the factors; a compiled function is traced again when it changes."""
        return getattr(self, name) if STATE.trace is None else STATE.trace.guard(lambda: getattr(self, name))

    # ---- a step ----------------------------------------------------------------------------------------------------

    def scale(self, outputs: Any) -> Any:
        """A loss, or a list or tuple of losses, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, list | tuple):
            return type(outputs)([self.scale(one) for one in outputs])
        if not isinstance(outputs, Tensor):
            raise problem(DTypeError, "GradScaler.scale", f"a {type(outputs).__name__}", "a tensor, or a list of them")
        scale = self._tensors(outputs.device)["scale"].detach()
        return outputs * (scale if scale.device is outputs.device else scale.to(outputs.device))

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, so that they can be clipped; `step` does it
        otherwise. Notes whether one of them is not finite."""
        if not self._enabled:
            return
        record = self._record(optimizer)
        for known, what in ((record.scopes, "unscale_() was called"), (record.stepped, "step() was called")):
            if _scope() in known:
                given = f"an optimizer for which {what} since the last update()"
                raise problem(GraphError, "GradScaler.unscale_", given, "one call for each update()")
        self._unscale(optimizer, record)

    def _unscale(self, optimizer: Any, record: _Record) -> None:
        grads = [param.grad for group in optimizer.param_groups for param in group["params"] if param.grad is not None]
        found = record.found
        with weft.no_grad(), weft.autocast(enabled=False):
            scale = self._tensors()["scale"]
            factor = weft.where(record.unscaled, 1.0, 1.0 / scale)  # gradients may be unscaled in another function
            for positions in buckets(grads):
                group = [grads[k] for k in positions]
                if group[0].dtype is weft.float16:
                    given = "float16 gradients, of float16 parameters"
                    fix = "keep parameters in float32 and compute under weft.autocast"
                    raise problem(DTypeError, "GradScaler.unscale_", given, "gradients of float32 parameters", fix)
                flat, device = join(group), group[0].device
                bad = flat.isfinite().all().logical_not()
                found = found | (bad if device is scale.device else bad.to(scale.device))
                assign(group, flat * (factor if device is scale.device else factor.to(device)).to(flat.dtype))
            record.found.copy_(found)
            record.unscaled.copy_(weft.ones_like(record.unscaled))
        record.scopes.add(_scope())
        record.is_traced |= STATE.trace is not None

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step()` with unscaled gradients; where one is not finite, parameters, state and step counts stay,
        and the step counts as skipped."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if args or kwargs:
            fix = "compute the gradients before step()"
            raise problem(GraphError, "GradScaler.step", "a closure or other arguments", "an optimizer", fix)
        record = self._record(optimizer)
        if _scope() in record.stepped:
            given = "an optimizer for which step() was called since the last update()"
            raise problem(GraphError, "GradScaler.step", given, "one call for each update()")
        if _scope() not in record.scopes:
            self._unscale(optimizer, record)
        if not any(param.grad is not None for group in optimizer.param_groups for param in group["params"]):
            given, fix = "an optimizer of whose parameters none has a gradient", "call scaler.scale(loss).backward()"
            raise problem(GraphError, "GradScaler.step", given, "gradients of a scaled loss", fix)
        skipped = self._tensors()["skipped"]
        with weft.no_grad():
            skipped.copy_(skipped + record.found.to(weft.int32))
        record.stepped.add(_scope())
        if type(optimizer).step is Optimizer.step:
            with optimizer.updating_if(record.found.logical_not()):
                return optimizer.step()
        if STATE.trace is not None:  # a method of the user's, of which no part can be taken back
            given = f"{type(optimizer).__name__}, which defines step() itself, inside {STATE.trace.where}"
            raise problem(GraphError, "GradScaler.step", given, "an optimizer that defines update()", "step outside")
        return None if bool(record.found.item()) else optimizer.step()

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adapt the scale to what was found since the last call, or set it."""
        if not self._enabled:
            return
        state, records = self._tensors(), list(self._records.values())
        if STATE.trace is not None:
            STATE.trace.guard(lambda: len(self._records))
        is_known = any(_scope() in record.scopes for record in records)
        is_possible = STATE.trace is not None or any(record.is_traced for record in records)
        if new_scale is None and not is_known and not (records and is_possible):
            given = "no optimizer whose gradients were looked at since the last update()"
            raise problem(GraphError, "GradScaler.update", given, "a call after step()", "call scaler.step(optimizer)")
        with weft.no_grad():
            if new_scale is not None:
                value = new_scale.detach() if isinstance(new_scale, Tensor) else float(new_scale)
                state["scale"].copy_(weft.zeros_like(state["scale"]) + value)
            else:
                self._adapt(state, records, is_known)
            for record in records:
                record.found.copy_(weft.zeros_like(record.found))
                record.unscaled.copy_(weft.zeros_like(record.unscaled))
                record.scopes.discard(_scope())
                record.stepped.discard(_scope())

    def _adapt(self, state: dict[str, Tensor], records: list[_Record], is_known: bool) -> None:
        """Where nothing was looked at, which the device knows if the code around does not, nothing changes."""
        looked = None
        for record in [] if is_known else records:
            looked = record.unscaled if looked is None else looked | record.unscaled
        scale, good = state["scale"], state["growth"] + (1 if looked is None else looked.to(weft.int32))
        found = records[0].found
        for record in records[1:]:
            found = found | record.found
        due = good >= self._number("_growth_interval")
        if looked is not None:
            due = due & looked
        grown = scale * self._number("_growth_factor")
        grown = weft.where(due & grown.isfinite(), grown, scale)
        state["scale"].copy_(weft.where(found, scale * self._number("_backoff_factor"), grown))
        state["growth"].copy_(weft.where(found | due, 0, good))

    # ---- what it knows ---------------------------------------------------------------------------------------------

    def is_enabled(self) -> bool:
        """Whether it does anything."""
        return self._enabled

    def get_scale(self) -> float:
        """The scale, read from the device; 1.0 where the scaler is not enabled."""
        return self._read("scale") if self._enabled else 1.0

    def skipped_steps(self) -> int:
        """How many steps were skipped so far, read from the device."""
        return int(self._read("skipped")) if self._enabled else 0

    def _read(self, name: str) -> float:
        if STATE.trace is not None:
            given = f"a call inside {STATE.trace.where}, where no value is known"
            raise problem(GraphError, "GradScaler", given, "a call outside", "call it after the compiled function")
        if not self._state:
            return {"scale": self._init_scale, "growth": 0.0, "skipped": 0.0, **self._loaded}[name]
        return float(self._state[name].item())

    def get_growth_factor(self) -> float:
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        self._set("_growth_factor", float(new_factor))

    def get_backoff_factor(self) -> float:
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        self._set("_backoff_factor", float(new_factor))

    def get_growth_interval(self) -> int:
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        self._set("_growth_interval", int(new_interval))

    def _set(self, name: str, value: Any) -> None:
        before = getattr(self, name)
        setattr(self, name, value)
        try:
            self._check_numbers(self._init_scale, self._growth_factor, self._backoff_factor, self._growth_interval)
        except RangeError:
            setattr(self, name, before)
            raise
        VERSION.bump()

    def state_dict(self) -> dict[str, Any]:
        """Scale, factors and counts as numbers, in PyTorch's layout, and the count of skipped steps."""
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": int(self._read("growth")),
            "skipped_steps": self.skipped_steps(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, of PyTorch's scaler too."""
        if not self._enabled:
            return
        needed = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
        if not isinstance(state_dict, Mapping) or not needed <= set(state_dict):
            given = str(sorted(state_dict)) if isinstance(state_dict, Mapping) else type(state_dict).__name__
            fix = "load what an enabled scaler's state_dict() returned"
            raise problem(GraphError, "GradScaler.load_state_dict", given, f"a dict with {sorted(needed)}", fix)
        numbers = [state_dict[name] for name in ("scale", "growth_factor", "backoff_factor", "growth_interval")]
        self._check_numbers(*numbers)
        self._growth_factor, self._backoff_factor = float(numbers[1]), float(numbers[2])
        self._growth_interval = int(numbers[3])
        self._loaded = {
            "scale": float(numbers[0]),
            "growth": float(state_dict["_growth_tracker"]),
            "skipped": float(state_dict.get("skipped_steps", 0)),
        }
        with weft.no_grad():
            for name, tensor in self._state.items():
                tensor.copy_(weft.full((), self._loaded[name], device=tensor.device).to(tensor.dtype))
        VERSION.bump()

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy: which optimizers' gradients were looked at is not part of it."""
        return {**self.__dict__, "_records": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._records = weakref.WeakKeyDictionary()
