"""Names of modules that pickles of earlier versions import, and where their contents are now.

It costs `import weft` almost nothing: modules that are loaded anyway are entered under their former names, and
those of layers are looked for only when an import has failed.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Modules of version 0.1 that lay directly in `weft`. All that they became is loaded by `import weft`.
FORMER = {
    "weft.autocast": "weft.core.autocast",
    "weft.compiled": "weft.jit.compiled",
    "weft.counting": "weft.base.counters",
    "weft.creation": "weft.core.creation",
    "weft.device": "weft.core.device",
    "weft.dtypes": "weft.base.dtypes",
    "weft.edges": "weft.functional.adjacency",
    "weft.evaluation": "weft.core.evaluation",
    "weft.interop": "weft.core.interop",
    "weft.kernel": "weft.functional.custom_kernel",
    "weft.locks": "weft.base.locks",
    "weft.looping": "weft.functional.loop",
    "weft.size": "weft.core.size",
    "weft.snapshot": "weft.jit.snapshot",
    "weft.tensor": "weft.core.tensor",
}
# Where modules of layers, which lay directly in `weft.nn`, are looked for; and those that have another name now.
LAYER_PACKAGES = ("basic", "module", "sequence", "spatial", "graphs", "specialized")
RENAMED_LAYERS = {"normalization": "batch_and_instance_norm", "htm": "temporal_memory"}


def install() -> None:
    """Let `pickle` find what earlier versions wrote."""
    for former, present in FORMER.items():
        sys.modules.setdefault(former, sys.modules[present])
    if not any(getattr(finder, "__name__", "") == "FormerLayers" for finder in sys.meta_path):
        sys.meta_path.append(FormerLayers)


class FormerLayers:
    """Finds and loads `weft.nn.linear`, which is `weft.nn.basic.linear` now. Asked when all other finders have none."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """What to load for a former module of layers; None for any other name."""
        package, _, last = name.rpartition(".")
        if package != "weft.nn":
            return None
        last = RENAMED_LAYERS.get(last, last)
        found = [f"{package}.{one}.{last}" for one in LAYER_PACKAGES if importlib.util.find_spec(f"{package}.{one}")]
        present = next((one for one in found if importlib.util.find_spec(one)), None)
        return None if present is None else ModuleSpec(name, FormerLayers, origin=present)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType | None:
        """The usual module."""
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Let the module have the public layers of `weft.nn`, which may have moved further, and what it has become."""
        assert module.__spec__ is not None and module.__spec__.origin is not None
        present, layers = importlib.import_module(module.__spec__.origin), sys.modules["weft.nn"]

        def find(name: str) -> Any:
            return getattr(present, name) if hasattr(present, name) else getattr(layers, name)

        module.__dict__["__getattr__"] = find
