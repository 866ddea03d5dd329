"""Records of the padding layers."""

import weft
import weft.nn as nn
from tests.layers.record import Bad, Case, LayerRecord
from tests.layers.simple import like_torch

SIZES = {1: (5,), 2: (4, 5), 3: (3, 4, 5)}
SIDES = {1: (1, 2), 2: (1, 2, 0, 3), 3: (1, 2, 0, 3, 2, 1)}


def records(kind: str, axes: int) -> list[LayerRecord]:
    """All sides the same, each side another, and negative numbers."""
    name, extra = f"{kind}Pad{axes}d", (0.75,) if kind == "Constant" else ()
    count = 2 * axes
    wrong = [
        Bad(
            call=lambda layer: getattr(nn, name)((1,) * (count + 1), *extra),
            match=f"one number or {count}",
            error=weft.ShapeError,
        )
    ]
    if kind not in ("Constant", "Zero"):
        wrong.append(Bad(call=lambda layer: layer(weft.ones(3)), match=f"{name}.*B, C", error=weft.ShapeError))
    if kind == "Reflection":
        wrong.append(Bad(call=lambda layer: layer(weft.ones(1, *[1] * axes)), match="1", error=weft.ShapeError))
    sizes = SIZES[axes]
    traits = frozenset({"batch", "window"})
    edges = {"odd sizes": Case(inputs=lambda draw: (draw.normal(1, 2, *[7] * axes),))}
    return [
        like_torch(
            name,
            lambda draw: (draw.normal(2, 3, *sizes),),
            1,
            *extra,
            bad=wrong,
            traits=traits,
            edges=edges,
        ),
        like_torch(
            name, lambda draw: (draw.normal(2, *sizes),), SIDES[axes][:count], *extra, variant="sides without batch",
            traits=traits, edges=edges,
        ),
    ]  # fmt: skip


def negative(kind: str) -> LayerRecord:
    extra = (0.75,) if kind == "Constant" else ()
    return like_torch(f"{kind}Pad1d", lambda draw: (draw.normal(2, 3, 5),), (-1, 2), *extra, variant="negative")


KINDS = ("Constant", "Zero", "Reflection", "Replication", "Circular")
RECORDS = [
    *[record for kind in KINDS for axes in (1, 2, 3) for record in records(kind, axes)],
    *[negative(kind) for kind in KINDS],
]
