"""The switches of gradient recording: `no_grad`, `enable_grad`, `set_grad_enabled`, `inference_mode`."""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any

from weft.autograd.function import Function as Function
from weft.base.errors import GraphError, problem
from weft.base.state import STATE
from weft.core.boundary import entry


class _GradMode(abc.ABC):
    """A context manager and decorator that switches gradients. As a decorator it needs no parentheses."""

    def __new__(cls, function: Any = None, /) -> Any:
        return object.__new__(cls) if function is None else cls()(function)

    def __init__(self) -> None:
        self._outer: list[bool] = []

    @abc.abstractmethod
    def _enabled(self) -> bool:
        """Whether gradients are recorded inside."""

    def _fresh(self) -> Any:
        """Another one of the same meaning: each call of a decorated function, in any thread, has its own."""
        return type(self)()

    def __enter__(self) -> None:
        self._outer.append(STATE.grad_enabled)
        STATE.grad_enabled = self._enabled()

    def __exit__(self, *error: object) -> None:
        STATE.grad_enabled = self._outer.pop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(function):
            raise problem(GraphError, type(self).__name__, f"a {type(function).__name__}", "a function to decorate")
        if inspect.isgeneratorfunction(function):
            return functools.wraps(function)(lambda *args, **kwargs: _switch_modes(self, function(*args, **kwargs)))

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            outer, STATE.grad_enabled = STATE.grad_enabled, self._enabled()
            try:
                return function(*args, **kwargs)
            finally:  # not a `with` statement, whose `__exit__` an interrupt may prevent
                STATE.grad_enabled = outer

        return entry(call)


def _switch_modes(mode: _GradMode, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """A generator whose own code runs in a gradient mode; the code between its steps runs in the caller's."""
    step: Callable[..., Any] = generator.send
    given: tuple[Any, ...] = (None,)
    try:
        while True:
            try:
                with mode._fresh():
                    value = step(*given)
            except StopIteration as end:
                return end.value
            try:
                given, step = ((yield value),), generator.send
            except GeneratorExit:
                raise
            except BaseException as error:
                given, step = (error,), generator.throw
    finally:
        with mode._fresh():
            generator.close()


class no_grad(_GradMode):
    """Inside, results require no gradient: `with weft.no_grad(): ...`, or `@weft.no_grad` on a function.

    >>> x = weft.ones(1, requires_grad=True)
    >>> with weft.no_grad():
    ...     (x * 2).requires_grad
    False
    """

    def _enabled(self) -> bool:
        return False


class enable_grad(_GradMode):
    """Inside, gradients are recorded even within `no_grad`."""

    def _enabled(self) -> bool:
        return True


class _ChosenMode(_GradMode):
    """A mode that is given: `mode` is what it was made with."""

    def __new__(cls, mode: Any = True) -> Any:
        return cls()(mode) if callable(mode) else object.__new__(cls)

    def __init__(self, mode: bool = True) -> None:
        super().__init__()
        self.mode = bool(mode)

    def _fresh(self) -> Any:
        return type(self)(self.mode)


class inference_mode(_ChosenMode):
    """`no_grad` under the name that PyTorch has for inference; `inference_mode(False)` records gradients. Tensors made
    inside are ordinary ones: nothing forbids them in a gradient later.

    >>> @weft.inference_mode
    ... def predict(x):
    ...     return x * 2
    >>> predict(weft.ones(1, requires_grad=True)).requires_grad
    False
    """

    def _enabled(self) -> bool:
        return not self.mode


class set_grad_enabled(_ChosenMode):
    """Record gradients, or do not, from now on in this thread; in a `with` statement, inside of it; as a decorator, in
    the function. What a function under `weft.compile` sets ends with the call.

    >>> with weft.set_grad_enabled(False):
    ...     weft.is_grad_enabled()
    False
    """

    def __new__(cls, mode: bool) -> Any:
        return object.__new__(cls)

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        self._before = STATE.grad_enabled
        STATE.grad_enabled = self.mode

    def _enabled(self) -> bool:
        return self.mode

    def __enter__(self) -> None:
        STATE.grad_enabled = self.mode

    def __exit__(self, *error: object) -> None:
        STATE.grad_enabled = self._before

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        STATE.grad_enabled = self._before
        return super().__call__(function)


def is_inference_mode_enabled() -> bool:
    """Whether gradients are not recorded now."""
    return not STATE.grad_enabled


def is_grad_enabled() -> bool:
    """Whether operations record gradients now."""
    return STATE.grad_enabled
