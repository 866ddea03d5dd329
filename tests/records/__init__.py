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
    movement,
    network,
    norms,
    order,
    reduce,
    special,
    statistics,
    windows,
)  # fmt: skip
from tests.records.record import NARROW_TOLERANCE, Inputs, Record, Sample, T, extra_dtypes, flat, samples_for, to_torch

RECORDS: list[Record] = [*elementwise.RECORDS, *reduce.RECORDS, *movement.RECORDS, *network.RECORDS, *conv.RECORDS]
RECORDS += order.RECORDS
RECORDS += indexing.RECORDS
RECORDS += algebra.RECORDS
RECORDS += windows.RECORDS
RECORDS += norms.RECORDS
RECORDS += attention.RECORDS
RECORDS += graphs.RECORDS
RECORDS += edges.RECORDS
RECORDS += statistics.RECORDS
RECORDS += assembly.RECORDS
RECORDS += functional.RECORDS
RECORDS += special.RECORDS

__all__ = [
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
