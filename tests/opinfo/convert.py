"""Arguments of a torch call as arguments of a Weft call, and results of both as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import weft

# What a call to torch may say that is the only way things are in Weft: left out.
DEFAULTS = {"layout": torch.strided, "memory_format": torch.contiguous_format, "pin_memory": False}
MAX_AXES = 64  # of a NumPy array
PLAIN = (bool, int, float, str, slice, type(None), type(Ellipsis))


class Untranslatable(Exception):
    """An argument or a result that Weft has no counterpart of: complex numbers, sparse layouts, generators, `out=`."""


class Converter:
    """Carries arguments over; a tensor that occurs twice is one tensor in Weft too. `leaves` are the tensors to
    differentiate in: torch's and Weft's."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, weft.Tensor]] = {}
        self.leaves: list[tuple[torch.Tensor, weft.Tensor]] = []
        self.composed = False  # whether an argument was itself computed, so that gradients end elsewhere

    def value(self, arg: Any) -> Any:
        if isinstance(arg, torch.Tensor):
            return self.tensor(arg)
        if isinstance(arg, torch.dtype):
            return as_dtype(arg)
        if isinstance(arg, torch.device):
            return str(arg)
        if isinstance(arg, complex):
            raise Untranslatable("complex numbers")
        if isinstance(arg, torch.Generator):
            raise Untranslatable("a generator of torch's")
        if isinstance(arg, (torch.layout, torch.memory_format)):
            raise Untranslatable("memory layouts")
        if isinstance(arg, (torch.Size, tuple)) and not hasattr(arg, "_fields"):
            return tuple(self.value(one) for one in arg)
        if isinstance(arg, list):
            return [self.value(one) for one in arg]
        if isinstance(arg, dict):
            return {key: self.value(one) for key, one in arg.items()}
        if isinstance(arg, slice):
            return slice(*(self.value(one) for one in (arg.start, arg.stop, arg.step)))
        if isinstance(arg, (np.ndarray, np.generic)) or type(arg) in PLAIN:
            return arg
        if callable(arg) and not isinstance(arg, torch.nn.Module):
            return arg
        raise Untranslatable(f"a {type(arg).__name__} of torch's")

    def kwargs(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        kept = {}
        for key, arg in kwargs.items():
            if key in DEFAULTS and (arg is DEFAULTS[key] or (key == "memory_format" and arg is torch.preserve_format)):
                continue
            if key == "out" and arg is not None:
                raise Untranslatable("out=")
            kept[key] = self.value(arg)
        return kept

    def check(self, result: torch.Tensor) -> None:
        """Raise if Weft has no tensor like this one."""
        as_dtype(result.dtype)
        if result.layout is not torch.strided:
            raise Untranslatable("sparse tensors")

    def tensor(self, source: torch.Tensor) -> weft.Tensor:
        if id(source) in self._made:
            return self._made[id(source)][1]
        made = weft.tensor(as_array(source))
        if not source.is_leaf:
            self.composed = True
        elif source.requires_grad:
            made.requires_grad_()
            self.leaves.append((source, made))
        self._made[id(source)] = (source, made)
        return made


def as_dtype(dtype: torch.dtype) -> weft.base.dtypes.DType:
    """The dtype of the same name."""
    name = str(dtype).removeprefix("torch.")
    if name not in weft.base.dtypes.ALL_BY_NAME:
        raise Untranslatable("complex numbers" if dtype.is_complex else f"dtype {name}")
    return weft.base.dtypes.ALL_BY_NAME[name]


def as_array(source: torch.Tensor) -> np.ndarray:
    """The elements of a tensor of torch's, in a dtype that Weft has too."""
    if source.layout is not torch.strided:
        raise Untranslatable("sparse tensors")
    if source.device.type != "cpu":
        raise Untranslatable(f"device {source.device.type}")
    dtype = as_dtype(source.dtype)
    if source.ndim > MAX_AXES:
        raise Untranslatable(f"more than {MAX_AXES} axes")
    plain = source.detach().resolve_neg()
    if dtype is weft.bfloat16:
        return plain.float().numpy().astype(dtype.numpy)
    return np.array(plain.numpy(force=True))


def leaves_of(result: Any) -> list[Any]:
    """The tensors and numbers of a result in order, whatever they are packed in."""
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in leaves_of(part)]
    return [] if result is None else [result]
