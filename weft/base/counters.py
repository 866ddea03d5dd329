"""Counters of what the engine did: kernels, launches, plans, compile time, cache hits, host transfers."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the process started; subtract two `snapshot()`s to count a region of code."""

    kernels_compiled: int = 0
    kernels_from_disk: int = 0
    kernels_reused: int = 0
    kernels_rendered: int = 0
    plans_built: int = 0
    plans_from_disk: int = 0
    plans_reused: int = 0
    plans_run: int = 0
    launches: int = 0
    compile_seconds: float = 0.0
    traces: int = 0
    uploads: int = 0
    upload_bytes: int = 0
    downloads: int = 0
    download_bytes: int = 0

    def snapshot(self) -> dict[str, float]:
        """All counters by name."""
        return asdict(self)


COUNTERS = Counters()


def counters() -> dict[str, float]:
    """What the engine did since the process started, by name. Subtract two of them to count a stretch of code.

    >>> import weft
    >>> before = weft.counters()
    >>> _ = (weft.ones(3) + 1).tolist()
    >>> after = weft.counters()
    >>> after["plans_run"] - before["plans_run"], after["downloads"] - before["downloads"]
    (1, 1)
    """
    return COUNTERS.snapshot()
