"""Layers, losses and models, made of tensor operations only; nothing here knows the compiler or a device.

`contents.CONTENTS`, which `make stubs` writes, says which file has which names: those that `@layer` or `@export` of
`weft.nn.registry` decorates, and other names that are assigned to them. A file is loaded when one is first used.
"""

from __future__ import annotations

from weft.base.lazy_modules import load_lazily as _load_lazily
from weft.nn import functional  # noqa: F401
from weft.nn.contents import CONTENTS

# What is no layer.
_OTHERS = {
    "module": ("Module",),
    "lazy": ("LazyModuleMixin",),
    "parameter": ("Buffer", "Parameter", "UninitializedBuffer", "UninitializedParameter"),
    "registry": ("get", "layers"),
    "weft.serialization.model_files": ("load",),
    "weft.config.model": ("from_config",),
    "summarize": ("summary",),
    "weft.drawing.network": ("plot",),
    "support": ("supports",),
}
_SUBMODULES = ("functional", "init", "lora", "utils")
__getattr__, __dir__, __all__ = _load_lazily(__name__, {**_OTHERS, **CONTENTS}, _SUBMODULES)
