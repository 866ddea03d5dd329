"""The table of templates: primitive -> how its kernel is made on CPUs. `Device.features` names those that a device has."""

from __future__ import annotations

from weft.compiler.template import MakeTemplate

TEMPLATES: dict[str, MakeTemplate] = {}
