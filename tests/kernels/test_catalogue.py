"""The list of kernels is complete, and every line of it is true."""

from __future__ import annotations

import pytest

import weft
import weft.nn.functional as F
from tests.kernels import coverage, page
from tests.kernels.names import CATALOGUE, COUNTS, KERNELS
from tests.layers.records import FAMILIES
from tests.records import RECORDS

pytestmark = pytest.mark.unit

each = pytest.mark.parametrize("kernel", KERNELS, ids=[kernel.name for kernel in KERNELS])


def test_all_kernels_are_listed_once():
    *listed, beside = CATALOGUE.values()
    assert tuple(len(group) for group in listed) == COUNTS and sum(COUNTS) == 145
    names = [kernel.name for group in (*listed, beside) for kernel in group]
    assert len(set(names)) == len(names)


@each
def test_what_a_kernel_names_exists(kernel):
    missing = [name for name in kernel.records if name not in coverage.RECORD]
    assert not missing, f"no record {missing}"
    assert kernel.records or kernel.tests or kernel.layers
    assert callable(coverage.resolve(kernel.operation)), kernel.operation
    assert not [test for test in kernel.tests if not coverage.has_test(test)]
    for layer in kernel.layers:
        if layer in coverage.layer_records():
            continue
        assert coverage.family_of(layer) not in FAMILIES, f"no record of the layer {layer}"
        pytest.skip(f"the layers of {coverage.family_of(layer)} have no records yet")


@each
def test_a_kernel_is_covered_on_gpus(kernel):
    assert page.covered(kernel, gpu=True)


@pytest.mark.parametrize("backend", page.OTHERS)
def test_every_kernel_was_shown_on_every_backend(backend):
    marks = {page.choose_mark(kernel, backend) for kernel in KERNELS}
    assert marks == {"c" if backend == "hip" else "✓"}


def test_layers_that_were_not_shown_have_no_mark(monkeypatch):
    kernel = next(kernel for kernel in KERNELS if kernel.layers and not kernel.records)
    monkeypatch.setattr(page.executed_layers, "layers", lambda backend: [])
    assert page.choose_mark(kernel, "opencl") == page.choose_mark(kernel, "hip") == page.NOT_SHOWN


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel.records], ids=lambda kernel: kernel.name)
def test_records_call_the_operation_and_compare_its_gradient(kernel):
    records = [coverage.RECORD[name] for name in kernel.records]
    operation = coverage.resolve(kernel.operation)
    with weft.device("reference"):
        assert [record.name for record in records if coverage.calls(record, operation)], "no record calls it"
    if kernel.gradient:
        assert all(coverage.has_gradient(record) for record in records)


def test_the_page():
    assert page.PAGE.read_text() == page.text(), "docs/kernels.md is stale: make kernels"


# --- the checks themselves -------------------------------------------------------------------------------------------


def test_other_operations_and_tests_are_not_taken_for_those_named():
    relu = coverage.RECORD["relu"]
    assert coverage.calls(relu, F.relu) and not coverage.calls(relu, F.gelu)
    assert not coverage.calls(coverage.RECORD["softmax"], F.scaled_dot_product_attention)
    assert coverage.has_test("tests/backend/test_optim.py::test_ten_steps[adam]")
    assert not coverage.has_test("tests/backend/test_optim.py::test_ten_steps[no such case]")
    assert not coverage.has_test("tests/backend/test_optim.py::no_such_test")
    assert not coverage.has_test("tests/backend/no_such_file.py::test_ten_steps")
    assert coverage.resolve("nn.functional.no_such_name") is None and coverage.resolve("no.such.path") is None
    assert coverage.runs_on_gpus("tests/backend/test_optim.py::test_ten_steps[adam]")
    assert not coverage.runs_on_gpus("tests/backend/test_fusion.py::test_a_chain_of_rank_four")


def test_records_have_names_of_their_own():
    assert len(coverage.RECORD) == len(RECORDS)
