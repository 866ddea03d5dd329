"""Gradient accumulation: k micro-batches whose gradient is that of the joint batch, to rounding.

A loss that is a mean over the joint batch is Σ totalᵢ / Σ countᵢ over its parts, not the mean of their means: parts may
have different numbers of tokens (`ignore_index`), weights or rows. So a part contributes the gradient of its *total*,
its count is added up on the device, and `finish` divides once.

    Accumulator.add(prediction, target)   total, count = Unreduced(loss)(prediction, target)
                                          (total / unit).backward(); Σ total, Σ count += total, count   (device cells)
    Accumulator.finish()                  grad *= unit / Σ count; returns Σ total / Σ count; both start over

`unit` is a power of two near the number of elements of a part, so that gradients of float16 have the size that they
have without accumulation. All of it may lie in one compiled step, or in k calls of compiled functions.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import weft
from weft.autograd.function import wait_for
from weft.base import tree
from weft.base.errors import DTypeError, GraphError, RangeError, ShapeError, WeftError, problem
from weft.base.state import STATE
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn.loss import CrossEntropyLoss, CTCLoss, KLDivLoss, NLLLoss, _Loss
from weft.nn.module import Module
from weft.optim.buckets import outside_of_traces
from weft.optim.flat import as_list, assign, buckets, join

WHO = "accumulate"


def micro_batches(batch: Any, k: int) -> list[Any]:
    """`batch`, a tensor or nested tuples, lists and dicts of them with rows on the first axis, in `k` parts of nearly
    equal size, in order; fewer where there are fewer rows. What is no tensor, or has no axis, is in each part.

    >>> [part.shape for part in micro_batches(weft.ones(7, 2), 3)]
    [(3, 2), (2, 2), (2, 2)]
    """
    if not isinstance(k, int) or k < 1:
        raise problem(RangeError, WHO, f"k={k!r}", "a whole number of micro-batches, at least 1")
    leaves, structure = tree.flatten(batch)
    sizes = {leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.shape}
    if len(sizes) != 1:
        given = f"tensors with first axes of {sorted(sizes)}" if sizes else "a batch without tensors"
        raise problem(ShapeError, WHO, given, "one number of rows")
    rows = sizes.pop()
    k = max(min(k, rows), 1)
    bounds = [rows // k * part + min(part, rows % k) for part in range(k + 1)]
    parts = []
    for start, stop in itertools.pairwise(bounds):
        cut = [leaf[start:stop] if isinstance(leaf, Tensor) and leaf.shape else leaf for leaf in leaves]
        parts.append(tree.unflatten(structure, cut))
    return parts


def _without_reduction(loss: Module) -> Module:
    """The same module, of the same class, with all of its attributes as they are at any time, but without reduction."""
    kind = type(loss)
    view: Any = object.__new__(type(kind.__name__, (kind,), {"reduction": property(lambda self: "none")}))
    object.__setattr__(view, "__dict__", loss.__dict__)
    return view


class Unreduced:
    """A loss as (total, count): the sum over a batch, and what a mean divides it by (None for losses that are sums).

    `loss` is a module of weft.nn, a function of nn.functional (perhaps a `functools.partial` of one), or a function of
    the user's, which returns either a mean over the rows of its first argument, or the pair (total, count) itself. A
    module of the user's with `reduction="sum"` returns a sum.

    >>> loss = Unreduced(weft.nn.CrossEntropyLoss(ignore_index=0))
    >>> total, count = loss(weft.zeros(3, 2), weft.tensor([0, 1, 1]))
    >>> round(total.item(), 4), count.item()
    (1.3863, 2)
    """

    def __init__(self, loss: Callable[..., Any]):
        if not callable(loss):
            raise problem(DTypeError, WHO, f"a {type(loss).__name__} as loss", "a module or a function")
        self.loss = loss
        self.function = loss.func if isinstance(loss, functools.partial) else loss
        self.options: dict[str, Any] = dict(loss.keywords) if isinstance(loss, functools.partial) else {}
        self.is_known = isinstance(loss, _Loss) or self._has_reduction()
        self._view = _without_reduction(loss) if isinstance(loss, _Loss) else None
        reduction = getattr(loss, "reduction", "mean") if isinstance(loss, Module) else None
        self.reduction: str = reduction or self.options.get("reduction", "mean")
        if self.reduction not in ("mean", "sum", "batchmean"):
            given = f"a loss with reduction={self.reduction!r}"
            raise problem(RangeError, WHO, given, "one number: reduction 'mean' or 'sum'")

    def _has_reduction(self) -> bool:
        """Whether it is a function of nn.functional with an argument `reduction`."""
        name = getattr(self.function, "__name__", "")
        if getattr(F, name, None) is not self.function:
            return False
        return "reduction" in inspect.signature(self.function).parameters

    def __call__(self, *args: Any) -> tuple[Tensor, Tensor | float | None]:
        if not self.is_known:
            return self._of_user(self.loss(*args), args)
        self._check_weight(args)
        if self._view is not None:
            values = self._view.forward(*args)
            if not isinstance(values, Tensor) or not values.ndim:  # a class of the user's, which reduces by itself
                return self._of_user(values, args)
        else:
            values = self.loss(*args, reduction="none")
        if isinstance(self.loss, CTCLoss) or self.function is F.ctc_loss:
            lengths = args[3] if isinstance(args[3], Tensor) else weft.tensor(args[3], device=values.device)
            values = values / lengths.to(values.dtype).clamp(min=1.0) if self.reduction == "mean" else values
        if self.reduction == "sum":
            return values.sum(), None
        return values.sum(), self._count(values, args)

    def _check_weight(self, args: tuple[Any, ...]) -> None:
        """Refuse weights of the rows of a batch, of which a part has some."""
        options = self.loss if isinstance(self.loss, Module) else self.options
        weight = _option(options, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == getattr(args[0], "ndim", 0) > 0 and weight.shape[0] != 1:
            given = f"a weight of each element, {list(weight.shape)}, which belongs to one batch"
            raise problem(GraphError, WHO, given, "a loss without it", _OWN_COUNT)

    def _count(self, values: Tensor, args: tuple[Any, ...]) -> Tensor | float:
        """What a mean divides by."""
        if self.reduction == "batchmean" or (isinstance(self.loss, KLDivLoss) and self.reduction != "mean"):
            return float(values.shape[0])
        has_labels = isinstance(self.loss, CrossEntropyLoss | NLLLoss) or self.function in (F.cross_entropy, F.nll_loss)
        if has_labels and args[1].dtype.kind != "f":
            return self._labels(args[1], values)
        if not isinstance(self.loss, Module) and self.options.get("weight") is not None and self.function in _BY_WEIGHT:
            given = "a weight of each element, which belongs to one batch"
            raise problem(GraphError, WHO, given, "a loss without it", _OWN_COUNT)
        return float(values.numel())

    def _labels(self, target: Tensor, values: Tensor) -> Tensor:
        """How many labels count, or the sum of their weights."""
        options = self.loss if isinstance(self.loss, Module) else self.options
        ignored, weight = _option(options, "ignore_index", -100), _option(options, "weight", None)
        is_used = target != ignored
        if weight is None:
            return is_used.sum()
        picked = weight.detach().to(values.dtype)[weft.where(is_used, target, 0)]
        return weft.where(is_used, picked, 0.0).sum()

    def _of_user(self, result: Any, args: tuple[Any, ...]) -> tuple[Tensor, Tensor | float | None]:
        if isinstance(result, tuple) and len(result) == 2:
            return result
        if not isinstance(result, Tensor) or result.numel() != 1:
            given = f"a loss of {type(result).__name__}{list(getattr(result, 'shape', []))}"
            raise problem(ShapeError, WHO, given, "one number, or (total, count)")
        if self.reduction == "sum":
            return result.reshape(()), None
        rows = next(leaf for leaf in tree.flatten(args)[0] if isinstance(leaf, Tensor)).shape[0]
        return result.reshape(()) * float(rows), float(rows)


_BY_WEIGHT = (F.mse_loss, F.l1_loss)
_OWN_COUNT = "return (total, count) from a function of your own"


def no_gradient(who: str) -> WeftError:
    """The error for a loss that is not differentiable."""
    given, expected = "a loss that requires no gradient", "one that depends on a parameter that does"
    fix = "let a parameter require grad, and use the predictions without detach(), item() and no_grad()"
    return problem(GraphError, who, given, expected, fix)


def _option(options: Any, name: str, default: Any) -> Any:
    return options.get(name, default) if isinstance(options, Mapping) else getattr(options, name, default)


class Accumulator:
    """Adds up the gradients of micro-batches in the `.grad` of `parameters`; see the module's docstring.

    >>> model, loss = weft.nn.Linear(2, 3), weft.nn.CrossEntropyLoss()
    >>> accumulator = Accumulator(model.parameters(), loss)
    >>> x, y = weft.ones(4, 2), weft.tensor([0, 1, -100, -100])
    >>> for xs, ys in accumulator.parts((x, y), 2):
    ...     accumulator.add(model(xs), ys)
    >>> abs(accumulator.finish().item() - loss(model(x), y).item()) < 1e-6
    True
    """

    def __init__(self, parameters: Tensor | Iterable[Tensor], loss: Callable[..., Any]):
        self.parameters = as_list(parameters)
        if not self.parameters:
            raise problem(GraphError, WHO, "no parameters", "at least one tensor", "pass model.parameters()")
        self.loss = loss if isinstance(loss, Unreduced) else Unreduced(loss)
        self._unit: float | None = None
        device = self.parameters[0].device
        dtype = weft.float64 if weft.float64 in device.dtypes else weft.float32
        with outside_of_traces():
            self.total = weft.zeros((), dtype=dtype, device=device)
            self.count = weft.zeros((), dtype=dtype, device=device)
            weft.eval(self.total, self.count)
        self.total.name, self.count.name = "accumulated loss", "accumulated count"

    def parts(self, batch: Any, k: int) -> Iterator[Any]:
        """`micro_batches(batch, k)`, each of which is computed when the gradients of the one before are there, so that
        one at a time takes memory. Call `add` for each.

        >>> model = weft.nn.Linear(2, 1)
        >>> accumulator = Accumulator(model.parameters(), weft.nn.MSELoss())
        >>> for x, y in accumulator.parts((weft.ones(4, 2), weft.ones(4, 1)), k=2):
        ...     accumulator.add(model(x), y)
        >>> accumulator.finish().shape
        ()
        """
        for number, part in enumerate(micro_batches(batch, k)):
            grads = [param.grad for param in self.parameters if param.grad is not None] if number else []
            if grads and STATE.trace is None:
                weft.eval(*grads)
            elif grads:
                for grad in grads:  # a sum is in memory once it is waited for: the gradients of parts are not kept
                    grad._assign(wait_for(grad, [self.total]).node)
                leaves, structure = tree.flatten(part)
                waiting = [
                    wait_for(leaf, grads) if isinstance(leaf, Tensor) and not leaf.requires_grad else leaf
                    for leaf in leaves
                ]
                part = tree.unflatten(structure, waiting)
            yield part

    def add(self, *args: Any, scaler: Any = None) -> None:
        """The loss of one micro-batch, given like the loss's arguments, and its gradient; `scaler` scales it."""
        total, count = self.loss(*args)
        if not total.requires_grad:
            raise no_gradient(WHO)
        loss = total / self._divisor(args, count)
        (loss if scaler is None else scaler.scale(loss)).backward()
        with weft.no_grad():
            self.total.copy_(self.total + total.detach().to(self.total.dtype))
            if count is not None:
                added = count.detach().to(self.count.dtype) if isinstance(count, Tensor) else count
                self.count.copy_(self.count + added)

    def _divisor(self, args: tuple[Any, ...], count: Any) -> float:
        """A power of two near the number of elements of the first part, the same for all parts."""
        if count is None:
            return 1.0
        if self._unit is None:
            tensors = [leaf for leaf in tree.flatten(args)[0] if isinstance(leaf, Tensor)]
            elements = count if isinstance(count, float) else max(tensors[-1].numel(), 1)
            self._unit = 2.0 ** round(math.log2(max(elements, 1.0)))
        return self._unit if STATE.trace is None else STATE.trace.guard(lambda: self._unit)

    @weft.no_grad()
    def finish(self) -> Tensor:
        """Make the gradients those of the joint batch; returns its loss. Nothing is left of these micro-batches."""
        is_mean = self._unit is not None  # there were counts
        result = self.total / self.count if is_mean else self.total.clone()
        if is_mean:
            factor = self._unit / self.count
            grads = [param.grad for param in self.parameters if param.grad is not None]
            for positions in buckets(grads):
                group = [grads[k] for k in positions]
                scale = factor if group[0].device is factor.device else factor.to(group[0].device)
                flat = join(group)
                assign(group, flat * scale.to(flat.dtype))
        self.total.copy_(weft.zeros_like(self.total))
        self.count.copy_(weft.zeros_like(self.count))
        return result
