"""Every case of every record on the GPU against the reference backend, eager and compiled; and what must be refused."""

from __future__ import annotations

import pytest

from tests.records import RECORDS, Record
from tests.records.cases import Case, cases, compiled, flushes_subnormals, has_subnormals
from tests.records.comparison import compare, computed
from weft.errors import GraphError

ERRORS = [
    pytest.param(*error, id=f"{record.name}-{number}")
    for record in RECORDS
    for number, error in enumerate(record.errors)
]


def compiled_bits(case: Case) -> list[bytes] | None:
    """What a case gives as a compiled function; None where it cannot be one."""
    try:
        return [output.detach().numpy().tobytes() for output in compiled(case)()]
    except GraphError as error:
        if "inside weft.compile" not in str(error):  # shapes that depend on data
            raise
        return None


@pytest.mark.parametrize("record", RECORDS, ids=[record.name for record in RECORDS])
def test_agrees_with_the_reference(record: Record, gpu):
    """Compiled, each case has the bits that it has eagerly; tried with the first dtype."""
    names = {dtype.name for dtype in gpu.dtypes}
    wanted = [case for case in cases(record) if case.dtype in names]
    if not wanted:
        pytest.skip(f"{gpu} has none of the dtypes {', '.join(record.dtypes)}")
    if flushes_subnormals(gpu):
        wanted = [case for case in wanted if not has_subnormals(case)]
    for case in wanted:
        found, expected = computed(case, gpu), computed(case, "reference")
        for position, (a, b) in enumerate(zip(found, expected, strict=True)):
            compare(a, b, expected, case, position)
        if found and case.dtype == record.dtypes[0]:
            assert compiled_bits(case) in (None, [array.tobytes() for array in found]), f"{case}, compiled"


@pytest.mark.parametrize(("call", "kind", "message"), ERRORS)
def test_refuses_what_the_cpu_refuses(call, kind, message, gpu):
    """Indices out of range are found when the device has run: at the latest when it is waited for."""
    with pytest.raises(kind, match=message):
        call()
        gpu.backend.synchronise()
