"""L-BFGS, as in torch.optim: a quasi-Newton method that reads losses on the host, so it runs outside weft.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import weft
from weft.base.errors import GraphError, RangeError, problem
from weft.base.state import STATE
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.checks import check_numbers
from weft.optim.flat import join, split
from weft.optim.groups import Group
from weft.optim.optimizer import Optimizer, Params

__all__ = ["LBFGS"]


@entry_point
class LBFGS(Optimizer):
    """Limited-memory BFGS (Nocedal and Wright, chapter 7). `step(closure)` makes up to `max_iter` iterations; `closure`
    clears the gradients, computes the loss, calls `backward()` and returns the loss. `line_search_fn` is None (steps of
    length lr) or "strong_wolfe". There is one group.

    >>> import weft
    >>> w = weft.tensor([3.0, -4.0], requires_grad=True)
    >>> optimizer = weft.optim.LBFGS([w], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = ((w - 1.0) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> optimizer.step(closure).item()
    29.0
    >>> [round(value, 4) for value in w.tolist()]
    [1.0, 1.0]
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ):
        check_numbers("LBFGS", lr=lr)
        if line_search_fn not in (None, "strong_wolfe"):
            raise problem(RangeError, "LBFGS", f"line_search_fn {line_search_fn!r}", "None or 'strong_wolfe'")
        limits = {"max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval}
        tolerances = {"tolerance_grad": tolerance_grad, "tolerance_change": tolerance_change}
        rest = {"history_size": history_size, "line_search_fn": line_search_fn}
        super().__init__(params, {"lr": lr, **limits, **tolerances, **rest})

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        if any(other is not group for other in self.param_groups):
            raise problem(GraphError, "LBFGS", "several parameter groups", "one group", "use one list of parameters")
        if group.get("update_every", 1) != 1:
            raise problem(GraphError, "LBFGS", "update_every", "whole losses", "add up the loss in the closure")
        if len(group["params"]) and len({param._form_now()[1:] for param in group["params"]}) > 1:
            raise problem(GraphError, "LBFGS", "parameters of several dtypes or devices", "one dtype and device")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Minimise what `closure` computes; returns its first loss."""
        if closure is None:
            raise problem(GraphError, "LBFGS.step", "no closure", "a function that computes loss and gradients")
        if STATE.trace is not None:
            given = f"a call inside {STATE.trace.where}"
            raise problem(GraphError, "LBFGS.step", given, "calls outside", "compile the closure instead")
        with self._step_lock, weft.no_grad():
            return self._minimise(closure)

    def _minimise(self, closure: Callable[[], Any]) -> Any:
        group = self.param_groups[0]
        tolerance, least_change = group["tolerance_grad"], group["tolerance_change"]
        state = self._own_state[group["params"][0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)

        def evaluate() -> tuple[Any, float, Tensor]:
            with weft.enable_grad():
                loss = closure()
            state["func_evals"] += 1
            grad = join([_grad_of(param) for param in group["params"]])
            weft.eval(grad)
            return loss, float(loss), grad

        first, loss, grad = evaluate()
        evaluations, iterations = 1, 0
        if _largest(grad) <= tolerance:
            return first
        while iterations < group["max_iter"]:
            iterations += 1
            state["n_iter"] += 1
            direction = self._direction(state, grad, group["history_size"])
            rate = group["lr"] if state["n_iter"] > 1 else min(1.0, 1.0 / float(grad.abs().sum())) * group["lr"]
            state["prev_flat_grad"], state["prev_loss"], state["d"], state["t"] = grad, loss, direction, rate
            slope = float(grad.dot(direction))
            if slope > -least_change:
                break
            start = [param.detach().clone() for param in group["params"]]
            before = evaluations
            if group["line_search_fn"] is not None:

                def look(
                    step: float, start: list[Tensor] = start, direction: Tensor = direction
                ) -> tuple[float, Tensor, float]:
                    self._move(start, step, direction)
                    _, value, grad = evaluate()
                    return value, grad, float(grad.dot(direction))

                most = group["max_eval"] - evaluations
                begin = Point(0.0, loss, grad, slope)
                found, count = _search(look, rate, _largest(direction), begin, most)
                evaluations += count
                loss, grad, rate = found.loss, found.grad, found.step
                state["t"] = rate
                self._move(start, rate, direction)
            else:
                self._move(start, rate, direction)
                if iterations != group["max_iter"]:
                    _, loss, grad = evaluate()
                    evaluations += 1
            is_known = evaluations > before
            if iterations == group["max_iter"] or evaluations >= group["max_eval"]:
                break
            if is_known and _largest(grad) <= tolerance:
                break
            if _largest(direction) * abs(rate) <= least_change or abs(loss - state["prev_loss"]) < least_change:
                break
        return first

    @staticmethod
    def _direction(state: dict[str, Any], grad: Tensor, history_size: int) -> Tensor:
        """Where to go: minus the gradient at first, later times the estimated inverse of the second derivatives."""
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            direction = -grad
            weft.eval(direction)
            return direction
        change, moved = grad - state["prev_flat_grad"], state["d"] * state["t"]
        curvature = float(change.dot(moved))
        if curvature > 1e-10:
            for name, value in (("old_dirs", change), ("old_stps", moved), ("ro", 1.0 / curvature)):
                state[name] = [*state[name], value][-history_size:]
            state["H_diag"] = curvature / float(change.dot(change))
        pairs = list(zip(state["old_dirs"], state["old_stps"], state["ro"], strict=True))
        q, shares = -grad, []
        for y, s, ro in reversed(pairs):
            shares.append(float(s.dot(q)) * ro)
            q = q - shares[-1] * y
        direction = q * state["H_diag"]
        for (y, s, ro), share in zip(pairs, reversed(shares), strict=True):
            direction = direction + (share - float(y.dot(direction)) * ro) * s
        weft.eval(direction)
        return direction

    def _move(self, start: list[Tensor], step: float, direction: Tensor) -> None:
        """Set the parameters to start + step * direction."""
        moved = join(start) + step * direction
        weft.eval(moved)
        for param, part in zip(self.param_groups[0]["params"], split(moved, start), strict=True):
            param.copy_(part)


class Point(NamedTuple):
    """A step along the direction: loss, gradient and slope there."""

    step: float
    loss: float
    grad: Tensor
    slope: float


def _grad_of(param: Tensor) -> Tensor:
    return weft.zeros_like(param) if param.grad is None else param.grad


def _largest(x: Tensor) -> float:
    return float(x.abs().max())


def _cubic(one: Point, two: Point, bounds: tuple[float, float] | None = None) -> float:
    """The minimum between two points of the cubic with their losses and slopes."""
    low, high = bounds if bounds is not None else (min(one.step, two.step), max(one.step, two.step))
    x1, f1, g1, x2, f2, g2 = map(np.float64, (one.step, one.loss, one.slope, two.step, two.loss, two.slope))
    with np.errstate(all="ignore"):
        d1 = g1 + g2 - 3 * (f1 - f2) / (x1 - x2)
        square = d1**2 - g1 * g2
        if not square >= 0:
            return (low + high) / 2.0
        d2 = np.sqrt(square)
        if x1 <= x2:
            best = x2 - (x2 - x1) * ((g2 + d2 - d1) / (g2 - g1 + 2 * d2))
        else:
            best = x1 - (x1 - x2) * ((g1 + d2 - d1) / (g1 - g2 + 2 * d2))
    return float(min(max(best, low), high))


def _step_inside(step: float, lower: float, upper: float, is_slow: bool) -> tuple[float, bool]:
    """A step between two bounds, and whether it is close to one. The second time in a row that it is, it moves away."""
    margin = 0.1 * (upper - lower)
    if min(upper - step, step - lower) >= margin:
        return step, False
    if is_slow or step >= upper or step <= lower:
        return (upper - margin if abs(step - upper) < abs(step - lower) else lower + margin), False
    return step, True


def _search(
    look: Callable[[float], tuple[float, Tensor, float]],
    step: float,
    length: float,
    start: Point,
    most: int,
    c1: float = 1e-4,
    c2: float = 0.9,
    tolerance_change: float = 1e-9,
) -> tuple[Point, int]:
    """A point that fulfils the strong Wolfe conditions (Nocedal and Wright, algorithms 3.5 and 3.6), and how often the
    loss was computed."""

    def is_too_high(point: Point) -> bool:
        return point.loss > start.loss + c1 * point.step * start.slope

    def is_flat(point: Point) -> bool:
        return abs(point.slope) <= -c2 * start.slope

    before, new = start, Point(step, *look(step))
    count, round_, done = 1, 0, False
    bracket = [start, new]
    while round_ < most:
        if is_too_high(new) or (round_ > 1 and new.loss >= before.loss) or (not is_flat(new) and new.slope >= 0):
            bracket = [before, new]
            break
        if is_flat(new):
            bracket, done = [new], True
            break
        step = _cubic(before, new, (new.step + 0.01 * (new.step - before.step), new.step * 10))
        before, new = new, Point(step, *look(step))
        count, round_ = count + 1, round_ + 1
        bracket = [start, new]
    is_slow = False
    low, high = (0, 1) if bracket[0].loss <= bracket[-1].loss else (1, 0)
    low = 0 if done else low
    while not done and round_ < most:
        lower, upper = min(bracket[0].step, bracket[1].step), max(bracket[0].step, bracket[1].step)
        if (upper - lower) * length < tolerance_change:
            break
        step, is_slow = _step_inside(_cubic(bracket[0], bracket[1]), lower, upper, is_slow)
        new = Point(step, *look(step))
        count, round_ = count + 1, round_ + 1
        if is_too_high(new) or new.loss >= bracket[low].loss:
            bracket[high] = new
            low, high = (0, 1) if bracket[0].loss <= bracket[1].loss else (1, 0)
        else:
            done = is_flat(new)
            if not done and new.slope * (bracket[high].step - bracket[low].step) >= 0:
                bracket[high] = bracket[low]
            bracket[low] = new
    return bracket[low], count
