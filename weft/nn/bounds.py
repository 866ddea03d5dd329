"""The numbers that arguments of layers may be, where constructors do not check them: files of configurations and models
are read with these bounds, so that a number in a file cannot take all time or memory."""

from __future__ import annotations

LARGEST_SIZE = 2**31 - 1  # of sizes; extents of arrays are below it on every device
MAX_REPEATS = 1_000  # of what a constructor makes one after the other: layers, levels, qubits
_REPEATS = (0, MAX_REPEATS)
_PROBABILITY = (0.0, 1.0)
# Bounds of numbers by the name of the parameter; others are bounded by LARGEST_SIZE.
RANGES: dict[str, tuple[float, float]] = {
    "num_layers": _REPEATS, "num_encoder_layers": _REPEATS, "num_decoder_layers": _REPEATS, "levels": _REPEATS,
    "num_levels": _REPEATS, "routing_iters": _REPEATS, "num_steps": _REPEATS, "num_times": _REPEATS,
    "num_qubits": (1, 24), "n_power_iterations": _REPEATS, "dropout": _PROBABILITY, "drop_rate": _PROBABILITY,
    "unflattened_size": (-1, LARGEST_SIZE), "max_segments": _REPEATS, "max_synapses": _REPEATS,
    "cells_per_column": _REPEATS,
}  # fmt: skip
_SIZES = (
    "features", "channels", "size", "dim", "sizes", "hidden", "embeddings", "classes", "heads", "groups", "planes",
)  # fmt: skip


def bounds(name: str, form: str) -> tuple[float, float]:
    """The smallest and the largest number that a parameter takes; `form` is "int" or "float"."""
    if name in RANGES:
        return RANGES[name]
    if form == "int":
        last = name.rpartition("_")[2]
        return (-LARGEST_SIZE if last not in _SIZES or name == "dim" else 0), LARGEST_SIZE
    return -float("inf"), float("inf")
