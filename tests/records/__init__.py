"""One record per operation. Every suite reads the same list."""

from tests.records import (
    algebra,
    attention,
    conv,
    edges,
    elementwise,
    graphs,
    indexing,
    movement,
    network,
    norms,
    order,
    reduce,
    special,
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
