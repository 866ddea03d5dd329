"""One record per operation. Every suite reads the same list."""

from tests.records import elementwise, movement, network, reduce
from tests.records.record import Inputs, Record, Sample, T, flat

RECORDS: list[Record] = [*elementwise.RECORDS, *reduce.RECORDS, *movement.RECORDS, *network.RECORDS]

__all__ = ["RECORDS", "Inputs", "Record", "Sample", "T", "flat"]
