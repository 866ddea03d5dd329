"""Parameter and Buffer: tensors that a module registers when they are assigned to one of its attributes.

A parameter that is made from a lazy value, such as a random draw, is computed together with all others that wait: the
whole model is initialised by one plan when a module is first called, saved or loaded. A value that is read before that
is computed alone.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterable
from typing import Any

from weft.autograd import no_grad
from weft.base.errors import DTypeError, OutOfMemoryError, ShapeError, problem
from weft.base.state import STATE
from weft.core.creation import empty
from weft.core.realize import realize
from weft.core.tensor import Tensor

_waiting: dict[int, weakref.ref[Tensor]] = {}  # made from values that are not computed yet, in order


class _Registered(Tensor):
    """A leaf that owns its value and may have attributes of its own."""

    __slots__ = ("__dict__",)

    def __init__(self, data: Tensor | None, requires_grad: bool):
        value = empty(0) if data is None else data
        if not isinstance(value, Tensor):
            given, expected = f"a {type(value).__name__}", "a tensor"
            raise problem(DTypeError, type(self).__name__, given, expected, "make one with weft.tensor(...)")
        super().__init__(value.detach().node)
        if requires_grad:
            self.requires_grad_()
        if self._node is not None and self._node.buffer is None and STATE.trace is None:
            wait_for(self)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        from weft.core.copying import deep_copy

        if id(self) not in memo:
            made = deep_copy(self, memo)
            copied = memo[id(self)] = self._like(made)
            copied._grad = made._grad
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        from weft.core.copying import reduce_tensor

        return _rebuild, (type(self), reduce_tensor(self, protocol), dict(self.__dict__))

    def _like(self, value: Tensor) -> Any:
        """The same kind of tensor, with another value."""
        made = type(self)(value, self._requires_grad)
        made.__dict__.update(copy.copy(self.__dict__))
        made.name = self.name
        return made


def _rebuild(kind: type[_Registered], reduced: tuple[Any, ...], attributes: dict[str, Any]) -> Tensor:
    """What `__reduce_ex__` described. Pickled files name this function: it stays where it is."""
    function, arguments = reduced
    tensor = function(*arguments)
    made = kind(tensor, tensor.requires_grad)
    made.name = tensor.name
    made.__dict__.update(attributes)
    return made


class Parameter(_Registered):
    """A tensor that a module learns. Assigned to an attribute of a module it is one of `module.parameters()`. It has
    memory of its own; with `requires_grad=False` it is frozen, and still a parameter.

    >>> w = weft.nn.Parameter(weft.ones(2))
    >>> w
    Parameter containing:
    tensor([1., 1.], requires_grad=True)
    """

    __slots__ = ()

    def __init__(self, data: Tensor | None = None, requires_grad: bool = True):
        super().__init__(data, requires_grad)

    def __repr__(self) -> str:
        return "Parameter containing:\n" + super().__repr__()


class Buffer(_Registered):
    """A tensor that is part of a module's state and not learned by gradients, such as running statistics. Assigned to
    an attribute of a module it is one of `module.buffers()`; `persistent=False` leaves it out of `state_dict()`.

    >>> layer = weft.nn.Module()
    >>> layer.scale = weft.nn.Buffer(weft.ones(2))
    >>> list(layer.state_dict())
    ['scale']
    """

    __slots__ = ()

    def __init__(self, data: Tensor | None = None, requires_grad: bool = False, *, persistent: bool = True):
        super().__init__(data, requires_grad)
        self.persistent = persistent


def wait_for(tensor: Tensor) -> None:
    """Let a tensor be computed by the next `compute_waiting`."""
    key = id(tensor)
    _waiting[key] = weakref.ref(tensor, lambda _: _waiting.pop(key, None))


def compute_waiting() -> None:
    """Compute the values of all parameters that were made from lazy values, in one plan. Where memory is too small for
    them, models that are only garbage in reference cycles are collected first: theirs are among them."""
    if not _waiting:
        return
    references = list(_waiting.values())
    _waiting.clear()
    try:
        _compute(references)
        return
    except OutOfMemoryError:
        pass  # and let go of the frames that hold all of them
    gc.collect()
    _compute(references)


def stop_waiting(tensors: Iterable[Tensor]) -> None:
    """Compute tensors only when they are read: those of a model that was refused."""
    for tensor in tensors:
        _waiting.pop(id(tensor), None)


def _compute(references: list[weakref.ref[Tensor]]) -> None:
    tensors = [tensor for reference in references if (tensor := reference()) is not None]
    realize([tensor for tensor in tensors if tensor._node is not None and tensor._node.buffer is None])


class Uninitialized(_Registered):
    """A parameter or buffer of a lazy module (see `weft.nn.lazy`): its shape is not known yet."""

    __slots__ = ()
    becomes: type[_Registered]

    def materialize(self, shape: Any, device: Any = None, dtype: Any = None) -> None:
        """Take a shape, and memory that is still to be filled. The tensor stays the same object."""
        form: dict[str, Any] = {
            "device": self.device if device is None else device,
            "dtype": self.dtype if dtype is None else dtype,
        }
        self.__class__ = self.becomes  # type: ignore[assignment]
        with no_grad():
            self._assign(empty(*shape, **form).node)
        wait_for(self)

    @property
    def shape(self) -> Any:
        fix = "call the module once, then its shape is known"
        raise problem(ShapeError, type(self).__name__, "a question for its shape", "one that has values", fix)

    def numel(self) -> int:
        """Not known yet: raises, as `shape` does."""
        return self.shape.numel()

    def detach(self) -> Any:
        """Itself: there is no value to share."""
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = _uninitialized(type(self), self._requires_grad, self.device, self.dtype, self.__dict__)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _uninitialized, (type(self), self._requires_grad, self.device, self.dtype, dict(self.__dict__))


def _uninitialized(kind: Any, requires_grad: bool, device: Any, dtype: Any, attributes: dict[str, Any]) -> Any:
    """What `Uninitialized.__reduce_ex__` described. Pickled files name this function: it stays where it is."""
    made = kind(requires_grad, device, dtype)
    made.__dict__.update(attributes)
    return made


class UninitializedParameter(Uninitialized, Parameter):
    """A parameter without a shape: `materialize(shape)` makes it a Parameter."""

    __slots__ = ()
    becomes = Parameter

    def __init__(self, requires_grad: bool = True, device: Any = None, dtype: Any = None):
        Parameter.__init__(self, empty(0, device=device, dtype=dtype), requires_grad)


class UninitializedBuffer(Uninitialized, Buffer):
    """A buffer without a shape: `materialize(shape)` makes it a Buffer."""

    __slots__ = ()
    becomes = Buffer

    def __init__(self, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True):
        Buffer.__init__(self, empty(0, device=device, dtype=dtype), requires_grad, persistent=persistent)


def is_lazy(value: Any) -> bool:
    """Whether a value is a parameter or buffer that has no shape yet."""
    return isinstance(value, Uninitialized)
