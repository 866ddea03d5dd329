"""Hooks of modules: functions that are called before or after `forward`, and with the gradients of a call.

A module keeps its hooks in one tuple, which is replaced whenever one is added or removed, so that compiled functions
see a change by comparing one object.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.autograd import Function
from weft.base.errors import GraphError, problem
from weft.base.state import MODULES
from weft.core.creation import zeros_like
from weft.core.tensor import Tensor

if TYPE_CHECKING:
    from weft.nn.module import Module

_numbers = itertools.count()


class Hook(NamedTuple):
    """One hook: when it is called, and how. `kind` is 'before', 'after', 'backward_before' or 'backward'."""

    kind: str
    number: int
    function: Callable[..., Any]
    with_kwargs: bool = False
    always_call: bool = False


class ModuleHandle:
    """What the `register_*_hook` methods return: `remove()` takes the hook away, as does the end of a `with` block."""

    def __init__(self, module: Module, number: int):
        self._module, self.id = weakref.ref(module), number

    def remove(self) -> None:
        """Take the hook away; once is enough."""
        module = self._module()
        if module is not None:
            module.__dict__["_hooks"] = tuple(hook for hook in module._hooks if hook.number != self.id)
            MODULES.bump()

    def __enter__(self) -> ModuleHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def add_hook(
    module: Module,
    kind: str,
    function: Callable[..., Any],
    prepend: bool = False,
    with_kwargs: bool = False,
    always_call: bool = False,
) -> ModuleHandle:
    """Register a hook and return its handle."""
    if not callable(function):
        raise problem(GraphError, type(module).__name__, f"a hook of type {type(function).__name__}", "a function")
    hook = Hook(kind, next(_numbers), function, with_kwargs, always_call)
    module.__dict__["_hooks"] = (hook, *module._hooks) if prepend else (*module._hooks, hook)
    MODULES.bump()
    return ModuleHandle(module, hook.number)


def call_with_hooks(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`module.forward(*args, **kwargs)` between the module's hooks."""
    hooks = module._hooks
    try:
        for hook in hooks:
            if hook.kind == "before":
                args, kwargs = _before(module, hook, args, kwargs)
        gradients = [hook for hook in hooks if hook.kind in ("backward", "backward_before")]
        watch = _GradientHooks(module, gradients) if gradients else None
        if watch is not None:
            args = watch.inputs(args)
        result = module._run_forward(args, kwargs)
    except Exception:
        for hook in hooks:
            if hook.kind == "after" and hook.always_call:
                _after(module, hook, args, kwargs, None)
        raise
    for hook in hooks:
        if hook.kind == "after":
            answer = _after(module, hook, args, kwargs, result)
            result = result if answer is None else answer
    return result if watch is None else watch.outputs(result)


def _before(
    module: Module, hook: Hook, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if hook.with_kwargs:
        answer = hook.function(module, args, kwargs)
        if answer is None:
            return args, kwargs
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise problem(GraphError, type(module).__name__, "an answer of a pre-hook", "None or (args, kwargs)")
        return answer
    answer = hook.function(module, args)
    if answer is None:
        return args, kwargs
    return (answer if isinstance(answer, tuple) else (answer,)), kwargs


def _after(module: Module, hook: Hook, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    return hook.function(module, args, kwargs, result) if hook.with_kwargs else hook.function(module, args, result)


class _Tap(Function):
    """Hands tensors through; on the way back a function sees all their gradients at once and may replace them."""

    @staticmethod
    def forward(ctx: Any, seen: Callable[[tuple[Any, ...]], Any], *tensors: Tensor) -> Any:
        ctx.seen = seen
        copies = tuple(tensor.clone() for tensor in tensors)
        return copies if len(copies) != 1 else copies[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        answer = ctx.seen(gradients)
        return (None, *(gradients if answer is None else answer))


class _GradientHooks:
    """The gradients of one call: `register_full_backward_hook` and `register_full_backward_pre_hook`. Hooks get one
    gradient per argument and per result, None for those that are no floating-point tensors."""

    def __init__(self, module: Module, hooks: list[Hook]):
        self.module, self.hooks = module, hooks
        self.grad_output: tuple[Any, ...] = ()
        self.count = 0  # of arguments
        self.has_inputs = False

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, with those tensors tapped that require grad."""
        self.count = len(args)
        self.has_inputs = any(isinstance(value, Tensor) and value.requires_grad for value in args)
        return tuple(self._tap(list(args), self._see_inputs)) if self.has_inputs else args

    def outputs(self, result: Any) -> Any:
        """The result, or the tensors in a tuple or list of results, tapped."""
        several = isinstance(result, (tuple, list))
        values = list(result) if several else [result]
        if not any(isinstance(value, Tensor) and value.requires_grad for value in values):
            return result
        tapped = self._tap(values, self._see_outputs)
        return (
            type(result)(tapped)
            if several and not hasattr(result, "_fields")
            else (type(result)(*tapped) if several else tapped[0])
        )

    @staticmethod
    def _tap(values: list[Any], see: Callable[[tuple[Any, ...]], Any]) -> list[Any]:
        positions = [k for k, value in enumerate(values) if isinstance(value, Tensor) and value.requires_grad]
        floats = [k for k, value in enumerate(values) if isinstance(value, Tensor) and value.dtype.kind == "f"]
        rest = {k: values[k] for k in floats if k not in positions}  # PyTorch's hooks get zeros for them

        def see_gradients(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
            found = dict(zip(positions, gradients, strict=True)) | {k: zeros_like(value) for k, value in rest.items()}
            answer = see(tuple(found.get(k) for k in range(len(values))))
            return tuple(answer[k] for k in positions)

        tapped = _Tap.apply(see_gradients, *[values[k] for k in positions])
        for k, value in zip(positions, tapped if isinstance(tapped, tuple) else (tapped,), strict=True):
            values[k] = value
        return values

    def _see_outputs(self, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook in self.hooks:
            if hook.kind == "backward_before":
                answer = hook.function(self.module, gradients)
                if answer is not None:
                    gradients = answer if isinstance(answer, tuple) else (answer,)
        self.grad_output = gradients
        if not self.has_inputs:  # nothing comes after: the gradients of the inputs are none
            for hook in self.hooks:
                if hook.kind == "backward":
                    hook.function(self.module, (None,) * self.count, gradients)
        return gradients

    def _see_inputs(self, gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook in self.hooks:
            if hook.kind == "backward":
                answer = hook.function(self.module, gradients, self.grad_output)
                if answer is not None:
                    gradients = answer if isinstance(answer, tuple) else (answer,)
        return gradients
