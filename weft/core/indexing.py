"""`x[key]`, `x[key] = value` and the methods that assign a whole tensor; `Tensor` gets them when this is imported.

Lists and bool masks in a key become tensors of integers. A mask has to be read, so inside `weft.compile` it works only
where it says what is written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.base.dtypes import bool_
from weft.base.errors import ShapeError, problem
from weft.core.host_arrays import from_host
from weft.core.lift import lift, unwrap
from weft.core.method_registry import tensor_method, tensor_property
from weft.core.tensor import Tensor
from weft.graph.node import Node
from weft.ops import indexing, movement

_matrix_transpose = lift(movement.matrix_transpose, "basic")
_index = lift(indexing.index, "basic")
_set_index = lift(indexing.set_index)


@tensor_method
def __getitem__(self: Tensor, key: Any) -> Tensor:
    return _index(self, _resolve_key(self, key, False))


@tensor_method
def __setitem__(self: Tensor, key: Any, value: Any) -> None:
    if _is_item(self, key, value):
        return

    def assign() -> None:
        self._replace("x[index] = value", _set_index(self, _resolve_key(self, key, True), value))

    if self._view is not None or key is Ellipsis or (type(key) is slice and key == slice(None)):
        assign()
    else:
        self._assign_window(assign)


@tensor_method
def copy_(self: Tensor, source: Any) -> Tensor:
    """Take the value of `source`, broadcast and cast; a tensor of another device is copied as by `to`."""
    if isinstance(source, Tensor):
        source = source.to(self.device)
    return self._replace("copy_", _set_index(self, Ellipsis, source))


@tensor_method
def fill_(self: Tensor, value: Any) -> Tensor:
    """Take one number everywhere."""
    return self._replace("fill_", _set_index(self, Ellipsis, value))


@tensor_method
def zero_(self: Tensor) -> Tensor:
    """Become zeros."""
    return self.fill_(0)


@tensor_property
def T(self: Tensor) -> Tensor:
    """The transpose of a matrix."""
    return self.t()


@tensor_property
def mT(self: Tensor) -> Tensor:
    """The last two axes exchanged."""
    return _matrix_transpose(self)


@tensor_property
def H(self: Tensor) -> Tensor:
    """The transpose of a matrix, since numbers are real."""
    return self.t()


@tensor_property
def mH(self: Tensor) -> Tensor:
    """The last two axes exchanged, since numbers are real."""
    return _matrix_transpose(self)


def _is_item(x: Tensor, key: Any, value: Any) -> bool:
    """Whether `value` is `x[key]` itself: `x[key] += y` has written it already when it is assigned."""
    view = value._view if isinstance(value, Tensor) else None
    if view is None or view.op is not indexing.index or view.parent is not x._view:
        return False
    if x._view is None and (x._aliases is None or view.aliases is not x._aliases()):
        return False
    items, written = (one if type(one) is tuple else (one,) for one in (unwrap(key, []), view.args[0]))
    return len(items) == len(written) and all(
        one is other or (type(one) is type(other) and not isinstance(one, (Node, np.ndarray)) and one == other)
        for one, other in zip(items, written, strict=True)
    )


def _resolve_key(x: Tensor, key: Any, written: bool) -> Any:
    """An index expression without lists and bool masks, which become tensors of integers. One mask alone may stay where
    it says what is written."""
    items = key if type(key) is tuple else (key,)
    for item in items:
        if isinstance(item, (list, range, np.ndarray)) or (isinstance(item, Tensor) and item.dtype is bool_):
            break
    else:
        return key
    if written and isinstance(key, Tensor):
        return key
    listed = [Tensor(from_host(np.asarray(item), x.device)) if _is_list(item) else item for item in items]
    return listed[0] if written and len(listed) == 1 else resolve_masks(x, tuple(listed))


def _is_list(item: Any) -> bool:
    return isinstance(item, (list, range, np.ndarray))


def resolve_masks(x: Tensor, items: tuple) -> tuple:
    """An index expression with every bool mask replaced by the positions where it holds, which are read."""
    out: list[Any] = []
    for item in items:
        if not isinstance(item, Tensor) or item.dtype is not bool_:
            out.append(item)
            continue
        axis = sum(1 for one in out if one is not None)
        if not any(one is Ellipsis for one in out) and item.shape != x.shape[axis : axis + item.ndim]:
            given = f"a mask of shape {item.shape} for {x.shape} from axis {axis}"
            raise problem(ShapeError, "index", given, "the extents of the axes that it indexes")
        out.extend(item.nonzero(as_tuple=True))
    return tuple(out)
