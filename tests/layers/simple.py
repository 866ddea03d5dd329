"""Records of layers that torch has under the same name, with the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.layers.oracles import of_torch
from tests.layers.record import LayerRecord


def like_torch(
    name: str, inputs: Callable[..., Any], *args: Any, options: dict[str, Any] | None = None, **entries: Any
) -> LayerRecord:
    """The record of nn.`name`(*args, **options), compared with torch.nn.`name`(*args, **options); `entries` are further
    fields of the record."""
    import torch

    import weft.nn as nn

    given = options or {}
    if not entries.get("bad"):
        entries.setdefault("no_bad", "another record of the layer has wrong inputs")
    return LayerRecord(
        name=name,
        make=lambda: getattr(nn, name)(*args, **given),
        inputs=inputs,
        oracle=of_torch(lambda: getattr(torch.nn, name)(*args, **given)),
        **entries,
    )
