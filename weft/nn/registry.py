"""The catalogue of layers: what every layer is called elsewhere, how it learns, and what it is checked against.

`@layer(...)` on a class enters it and exports it from `weft.nn`; `@export` exports what is no layer. `make stubs` and
`make layers` write from them what is loaded lazily (`contents`), the stub, docs/layers.md and what `weft layers`
prints. The equation and the shapes are in the class's docstring.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from weft.base.errors import RangeError, problem

Class = TypeVar("Class", bound=type)
Exported = TypeVar("Exported", bound=Callable[..., Any])

# How a layer learns: the letters of the specification, in words.
LEARNS = {
    "G": "gradient",
    "S": "surrogate gradient",
    "CD": "contrastive divergence",
    "P": "plasticity rule",
    "HTM": "permanence rule",
    "F": "fixed weights",
    "-": "no parameters",
}


@dataclass(frozen=True)
class Layer:
    """One layer of the catalogue."""

    cls: type
    number: str  # in the specification: 'L026', 'X03'; '' for what only PyTorch names
    aliases: tuple[str, ...]  # other names, the specification's first
    learns: str  # a key of LEARNS
    oracle: str  # what its numbers are checked against

    @property
    def name(self) -> str:
        return self.cls.__name__

    @property
    def family(self) -> str:
        """The file that it is in."""
        return self.cls.__module__.rpartition(".")[2]


LAYERS: dict[str, Layer] = {}


def layer(
    number: str = "", *, aliases: tuple[str, ...] = (), learns: str = "G", oracle: str = ""
) -> Callable[[Class], Class]:
    """Enter a class into the catalogue. `oracle` is by default the class of the same name in torch.nn."""
    if learns not in LEARNS:
        raise problem(RangeError, "layer", f"learns={learns!r}", f"one of {', '.join(LEARNS)}")

    def enter(cls: Class) -> Class:
        LAYERS[cls.__name__] = Layer(cls, number, aliases, learns, oracle or f"torch.nn.{cls.__name__}")
        return cls

    return enter


def export(public: Exported) -> Exported:
    """Decorates a function or class that `weft.nn` exports although it is no layer."""
    return public


def layers() -> dict[str, Layer]:
    """All layers by name, in the order of their files."""
    from weft.nn.contents import CONTENTS

    order = {f"weft.nn.{file}": number for number, file in enumerate(CONTENTS)}
    for module in order:
        importlib.import_module(module)
    return dict(sorted(LAYERS.items(), key=lambda item: order.get(item[1].cls.__module__, len(order))))


def get(name: str) -> Any:
    """The class of a layer by any of its names: Weft's, an alias, or that of the specification's tables.

    >>> weft.nn.get("DenseLayer").__name__
    'Linear'
    """
    wanted = name.replace("_", "").lower()
    for entry in layers().values():
        if any(one.replace("_", "").lower() == wanted for one in (entry.name, *entry.aliases)):
            return entry.cls
    raise problem(RangeError, "nn.get", f"the name {name!r}", "the name of a layer", "see `weft layers` for all names")
