"""One record per operation. Every suite reads the same list."""

from tests.records import (
    algebra,
    assembly,
    attention,
    conv,
    edges,
    elementwise,
    functional,
    graphs,
    indexing,
    kernels,
    loss_options,
    movement,
    network,
    norms,
    order,
    reduce,
    sequences,
    special,
    statistics,
    windows,
)  # fmt: skip
from tests.records.record import NARROW_TOLERANCE, Inputs, Record, Sample, T, extra_dtypes, flat, samples_for, to_torch

GROUPS = {
    module.__name__.rpartition(".")[2]: module.RECORDS
    for module in (
        elementwise, reduce, movement, network, conv, order, indexing, algebra, windows, norms, attention, graphs,
        edges, statistics, assembly, sequences, loss_options, functional, special, kernels,
    )
}  # fmt: skip
RECORDS: list[Record] = [record for group in GROUPS.values() for record in group]

__all__ = [
    "GROUPS",
    "NARROW_TOLERANCE",
    "RECORDS",
    "Inputs",
    "Record",
    "Sample",
    "T",
    "extra_dtypes",
    "flat",
    "samples_for",
    "to_torch",
]
