"""The catalogue of layers: what every layer is called elsewhere, how it learns, and what it is checked against.

`@layer(...)` on a class enters it; `nn.get(name)`, `weft layers` and docs/layers.md read the table. The equation and
the shapes are in the class's docstring.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from weft.errors import RangeError, problem

Class = TypeVar("Class", bound=type)

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


def layers() -> dict[str, Layer]:
    """All layers by name, in the order of their families."""
    from weft.nn import CONTENTS

    for family in [family for family, names in CONTENTS.items() if names]:
        importlib.import_module(f"weft.nn.{family}")
    order = {family: number for number, family in enumerate(CONTENTS)}
    return dict(sorted(LAYERS.items(), key=lambda item: order[item[1].family]))


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
