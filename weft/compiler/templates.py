"""The table of templates: how the kernels of some primitives are made. `Device.features` names those a device has."""

from __future__ import annotations

from weft.compiler.template import MakeTemplate

TEMPLATES: dict[str, MakeTemplate] = {}
