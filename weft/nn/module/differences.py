"""What a model has that another, made from its description, has not: how `Module.save` and `to_config` see that a
description is complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from weft.core.tensor import Tensor
from weft.nn.module import Module
from weft.nn.parameter import is_lazy
from weft.nn.registry import LAYERS

Skip = Callable[[Module], bool]


def difference(module: Module, made: Module, skip: Skip = lambda part: False) -> str | None:
    """The first thing in which a model differs from one that was made from its description: classes and settings of
    layers, shapes, and what is shared. None where they are equal. Layers for which `skip` holds are not compared."""
    for what, look in _LOOKS.items():
        own, other = look(module, skip), look(made, skip)
        if own != other:
            name = next(key for key in {**own, **other} if own.get(key) != other.get(key))
            inside = f" at {name!r}" if name else ""
            return f"{what}{inside} is {own.get(name)}, where its constructor makes {other.get(name)}"
    return None


def _layers(module: Module, skip: Skip) -> dict[str, str]:
    return {
        path: f"{type(part).__module__}.{type(part).__qualname__}({part.extra_repr()})"
        for path, part in module.named_modules(remove_duplicate=False)
        if not skip(part)
    }


def _settings(module: Module, skip: Skip) -> dict[str, str]:
    """Numbers and texts of the layers of the catalogue, as they are now; classes of others may count or cache."""
    found = {}
    for path, part in module.named_modules(remove_duplicate=False):
        entry = LAYERS.get(type(part).__name__)
        if entry is None or entry.cls is not type(part) or skip(part):
            continue
        for name, value in vars(part).items():
            if name != "training" and not name.startswith("_") and _is_setting(value):
                found[f"{path}.{name}" if path else name] = repr(value)
    return found


def _is_setting(value: Any) -> bool:
    return all(map(_is_setting, value)) if type(value) in (tuple, list) else type(value) in (bool, int, float, str)


def _shapes(module: Module, skip: Skip) -> dict[str, Any]:
    found: dict[str, Any] = {name: "a buffer" for name, _ in _persistent(module)}
    for name, param in module.named_parameters(remove_duplicate=False):
        found[name] = "not known yet" if is_lazy(param) else f"of shape {list(param.shape)}"
    return found


def _persistent(module: Module) -> Iterator[tuple[str, Tensor]]:
    for path, part in module.named_modules(remove_duplicate=False):
        for name, value in part._buffers.items():
            if value is not None and name not in part._non_persistent:
                yield f"{path}.{name}" if path else name, value


def _sharing(module: Module, skip: Skip) -> dict[str, str]:
    """For parameters and layers that occur several times: where they are first."""
    first: dict[int, str] = {}
    every = [*module.named_modules(remove_duplicate=False), *module.named_parameters(remove_duplicate=False)]
    for name, value in every:
        first.setdefault(id(value), name)
    return {name: f"the same as {first[id(value)]!r}" for name, value in every if first[id(value)] != name}


_LOOKS = {"layer": _layers, "setting": _settings, "state": _shapes, "sharing": _sharing}
