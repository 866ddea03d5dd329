"""What is switched on right now: gradient mode, autocast and the trace in progress, per thread."""

from __future__ import annotations

import threading
from typing import Any


class State(threading.local):
    """Per-thread switches. `trace` is the active `compiler.trace.Trace` while `weft.compile` runs a function."""

    grad_enabled: bool = True
    trace: Any = None
    generator: Any = None  # the `random.Generator` that stands in for the default one in this thread, or None
    autocast: Any = None  # the `ops.policy.AutocastState` that `weft.autocast` switched on, or None


STATE = State()


class Settings:
    """Switches of the whole process. Whoever changes one bumps `VERSION`."""

    __slots__ = ("default_dtype", "float32_matmul_precision")

    def __init__(self) -> None:
        self.float32_matmul_precision = "highest"
        self.default_dtype: Any = None  # of floats made without one; `weft.base.dtypes` sets it


SETTINGS = Settings()


class Version:
    """Counts changes that a compiled function must look at before its next replay: a cell rebound from outside, a
    `.grad` that appeared or went away, a `training` flag flipped. Replays compare one integer instead of every cell."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def bump(self) -> None:
        self.value += 1


VERSION = Version()


class ModuleVersion(Version):
    """Counts changes of modules: attributes set, parameters registered, `train()`, hooks. A compiled function looks at
    what it has read from modules only when this number has changed."""

    __slots__ = ()

    def bump(self) -> None:
        self.value += 1
        VERSION.bump()


MODULES = ModuleVersion()
