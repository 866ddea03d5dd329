"""Items as one batch, and batches on their way from a worker process to a device.

`default_collate` stacks items; what it makes of a stacked NumPy array is an argument (`make`), so that a worker process
sends arrays (`Packed`) and the loader makes tensors of them, on its device, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.base.dtypes import from_numpy as dtype_from_numpy
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.core.creation import tensor
from weft.core.interop import from_dlpack
from weft.core.tensor import Tensor
from weft.names.functions import stack

__all__ = ["default_collate"]

Make = Callable[[np.ndarray], Any]


class Packed:
    """An array that becomes a tensor where the batch is used."""

    __slots__ = ("array",)

    def __init__(self, array: np.ndarray):
        self.array = array

    def __reduce__(self) -> tuple[Any, ...]:
        return Packed, (self.array,)


def default_collate(batch: list[Any]) -> Any:
    """Items as one batch: tensors and arrays are stacked, numbers become tensors, containers are taken apart.

    >>> weft.utils.data.default_collate([(1, 2.0), (3, 4.0)])
    [tensor([1, 3]), tensor([2., 4.], dtype=weft.float64)]
    """
    return collate(batch, tensor)


def collate(batch: list[Any], make: Make) -> Any:
    """`default_collate`, with what `make` makes of stacked arrays."""
    if not batch:
        raise problem(RangeError, "default_collate", "no items", "one at least")
    first = batch[0]
    if isinstance(first, Tensor):
        return make(_stack_arrays([one.numpy() for one in batch])) if make is Packed else stack(batch)
    if is_torch_tensor(first):
        return make(_stack_arrays([array_of_torch(one) for one in batch]))
    if isinstance(first, (np.str_, np.bytes_)):
        return [one.item() for one in batch]
    if isinstance(first, (np.ndarray, np.generic)):
        return make(_stack_arrays(batch))
    if isinstance(first, float):
        return make(_as_numbers(batch).astype(np.float64))
    if isinstance(first, int):
        numbers = _as_numbers(batch)  # a float among ints makes floats, as in PyTorch
        return make(numbers.astype(np.float32) if numbers.dtype == np.float64 else numbers)
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        _check_all(batch, Mapping)
        if any(one.keys() != first.keys() for one in batch):
            keys = sorted({str(sorted(map(str, one))) for one in batch})
            raise problem(RangeError, "default_collate", f"items with keys {' and '.join(keys):.200}", "equal keys")
        return {key: collate([one[key] for one in batch], make) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(collate(list(values), make) for values in zip(*batch, strict=True)))
    if isinstance(first, (tuple, list)):
        _check_all(batch, (tuple, list))
        if any(len(one) != len(first) for one in batch):
            lengths = sorted({len(one) for one in batch})
            raise problem(RangeError, "default_collate", f"items of lengths {lengths}", "equal lengths")
        return [collate(list(values), make) for values in zip(*batch, strict=True)]
    given = f"items of type {type(first).__name__}"
    raise problem(DTypeError, "default_collate", given, "tensors, arrays, numbers, strings or containers of them")


def _check_all(batch: list[Any], kinds: Any) -> None:
    """The items that are stacked must be alike."""
    if not all(isinstance(one, kinds) for one in batch):
        raise _differing_error(batch)


def _differing_error(batch: list[Any]) -> Exception:
    found = sorted({type(one).__name__ for one in batch})
    return problem(DTypeError, "default_collate", f"items of types {', '.join(found)}", "items of one kind")


def _as_numbers(batch: list[Any]) -> np.ndarray:
    try:
        numbers = np.array(batch)
    except (TypeError, ValueError):
        raise _differing_error(batch) from None
    if numbers.dtype.kind not in "biuf":
        raise _differing_error(batch)
    return numbers


def _stack_arrays(arrays: list[Any]) -> np.ndarray:
    try:
        return np.stack(arrays)
    except ValueError:
        shapes = sorted({np.shape(one) for one in arrays})
        fix = "resize or pad them, or give the loader a collate_fn such as weft.data.PadCollate"
        raise problem(ShapeError, "default_collate", f"arrays of shapes {shapes}", "equal shapes", fix) from None


def is_torch_tensor(value: Any) -> bool:
    """Whether something is a tensor of PyTorch, without importing it."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def array_of_torch(value: Any) -> np.ndarray:
    """The values of a tensor of PyTorch, on any device, with or without a history."""
    try:
        value = value.detach().to("cpu").to_dense().resolve_conj().resolve_neg()
        if str(value.dtype) == "torch.bfloat16":
            return from_dlpack(value.contiguous()).numpy()
        return value.numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:
        given = f"a torch tensor of {value.dtype} on {value.device} whose values cannot be had ({error})"
        fix = "convert it with .float() and .cpu() first"
        raise problem(DTypeError, "DataLoader or Trainer", given, "a dense tensor of numbers", fix) from None


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """`change` of each leaf in dicts, lists and tuples."""
    if isinstance(value, Mapping):
        return {key: map_leaves(one, change) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(one, change) for one in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_leaves(one, change) for one in value)
    return change(value)


def pack(value: Any) -> Any:
    """A batch whose tensors are arrays, to be sent to another process."""
    return map_leaves(value, lambda one: Packed(one.numpy()) if isinstance(one, Tensor) else one)


def unpack(value: Any, device: Any) -> Any:
    """A batch of `pack`, with its tensors on a device."""
    return map_leaves(value, lambda one: tensor(one.array, device=device) if isinstance(one, Packed) else one)


def to_device(value: Any, device: Any) -> Any:
    """A batch with its tensors and arrays of numbers as tensors on a device."""

    def move(one: Any) -> Any:
        if isinstance(one, Tensor):
            return one.to(device)
        if is_torch_tensor(one):
            return tensor(array_of_torch(one), device=device)
        if isinstance(one, np.ndarray) and dtype_from_numpy(one.dtype) is not None:
            return tensor(one, device=device)
        return one

    return map_leaves(value, move)
