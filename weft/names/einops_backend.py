"""einops on tensors: `einops.rearrange`, `reduce`, `repeat`, `pack` and `einsum` take them as they are.

einops finds its backends among the subclasses of its `AbstractBackend`. Weft does not import einops: the subclass is
made when something else does, by a finder that waits for that module on `sys.meta_path`, or at once where it is loaded
already.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from weft.core.creation import arange
from weft.core.interop import from_numpy
from weft.core.tensor import Tensor
from weft.names.functions import cat, einsum, stack

MODULE = "einops._backends"


def install() -> None:
    """Make einops know tensors, now or when it is imported."""
    loaded = sys.modules.get(MODULE)
    if loaded is not None:
        add_backend(loaded)
    else:
        sys.meta_path.insert(0, Waiting())


class Waiting:
    """Finds no module itself; where einops's backends are loaded, it adds Weft's to them, and is done."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenAdded(spec.loader)  # type: ignore[assignment]
        return spec


class _ThenAdded:
    """A loader that adds the backend after the module has run."""

    def __init__(self, loader: Any):
        self._loader = loader

    def create_module(self, spec: Any) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        add_backend(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def add_backend(backends: Any) -> None:
    """Define the backend in einops's terms; being a subclass is all that einops asks for."""

    class WeftBackend(backends.AbstractBackend):
        framework_name = "weft"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, Tensor)

        def from_numpy(self, x: Any) -> Tensor:
            return from_numpy(x)

        def to_numpy(self, x: Tensor) -> Any:
            return x.numpy()

        def arange(self, start: int, stop: int) -> Tensor:
            return arange(start, stop)

        def reduce(self, x: Any, operation: str, axes: Sequence[int]) -> Tensor:
            if operation in ("min", "max"):
                return getattr(x, "a" + operation)(tuple(axes))
            if operation in ("sum", "mean"):
                return getattr(x, operation)(tuple(axes))
            for axis in sorted(axes, reverse=True):  # any, all, prod
                x = getattr(x, operation)(axis)
            return x

        def transpose(self, x: Any, axes: Sequence[int]) -> Tensor:
            return x.permute(*axes)

        def stack_on_zeroth_dimension(self, tensors: Sequence[Tensor]) -> Tensor:
            return stack(list(tensors))

        def add_axis(self, x: Any, new_position: int) -> Tensor:
            return x.unsqueeze(new_position)

        def add_axes(self, x: Any, n_axes: int, pos2len: dict[int, int]) -> Tensor:
            extents = [-1] * n_axes
            for position, extent in pos2len.items():
                x = x.unsqueeze(position)
                extents[position] = extent
            return x.expand(*extents)

        def tile(self, x: Any, repeats: Sequence[int]) -> Tensor:
            return x.repeat(*repeats)

        def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
            return cat(list(tensors), axis)

        def is_float_type(self, x: Tensor) -> bool:
            return x.is_floating_point()

        def einsum(self, pattern: str, *x: Tensor) -> Tensor:
            return einsum(pattern, *x)

    backends.__dict__.setdefault("WeftBackend", WeftBackend)  # a strong reference: subclasses are known weakly
