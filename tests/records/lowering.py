"""Compiles the cases of a record for the default device, which need not run anything: for compile tests of GPUs."""

from __future__ import annotations

import weft
from tests.records.cases import Case, compiled, results
from weft.errors import GraphError


def is_end(case: Case) -> bool:
    """Whether a case has the first or the last sample of its record."""
    samples = case.record.samples
    return case.sample is samples[0] or case.sample is samples[-1]


def lower(case: Case) -> None:
    """Compile a case for the default device: all samples in the record's first dtype, its first and last one in other
    dtypes, and these two in the first dtype also as compiled functions."""
    is_first_dtype = case.dtype == case.record.dtypes[0]
    if not is_first_dtype and not is_end(case):
        return
    outputs = results(case)
    if not outputs:
        return
    weft.eval(*outputs)
    outputs[0].device.backend.synchronise()  # memory is given back
    if is_first_dtype and is_end(case):
        try:
            compiled(case)()
        except GraphError as error:
            if "inside weft.compile" not in str(error):  # shapes that depend on data
                raise
