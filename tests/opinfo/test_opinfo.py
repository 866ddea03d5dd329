"""A few of torch's samples for each of its operators; `make opinfo` runs all of them."""

from __future__ import annotations

import pytest

import weft
from tests.opinfo import calls, database, misses, page
from tests.opinfo.check import check_operator

PARTS = 24  # of the table of operators: what one test takes
SAMPLES = 2  # of each operator and dtype

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_code")]


@pytest.mark.parametrize("part", range(PARTS))
def test_samples_of_torch(part):
    keys = list(database.operators())[part::PARTS]
    found = misses.problems((check_operator(key, SAMPLES) for key in keys), complete=False)
    assert not found, "\n".join(found)


def test_page_of_operators():
    assert page.PAGE.read_text() == page.text(), "docs/operators.md is stale: make opinfo ARGS=--docs"


def test_a_listed_difference_is_of_an_operator_and_has_a_reason():
    for miss in misses.MISSES:
        assert miss.operator in database.operators()
        assert miss.reason and miss.count > 0
    assert len({(miss.operator, miss.kind) for miss in misses.MISSES}) == len(misses.MISSES)


def _kinds(outcome):
    return {(finding.kind, finding.what) for finding in outcome.findings}


def test_wrong_functions_are_found(monkeypatch):
    exp = weft.exp
    monkeypatch.setattr(weft, "exp", lambda input: exp(input) * 1.0001)
    assert ("call", "value") in _kinds(check_operator("exp", 3))
    monkeypatch.setattr(weft, "exp", lambda input: exp(input).detach())
    assert _kinds(check_operator("exp", 3)) == {("gradient", "gradient")}
    monkeypatch.setattr(weft, "exp", lambda input: exp(input).double())
    assert ("call", "dtype") in _kinds(check_operator("exp", 3))
    monkeypatch.setattr(weft, "exp", lambda input: exp(input)[None])
    assert ("call", "shape") in _kinds(check_operator("exp", 3))
    monkeypatch.delattr(weft, "exp")
    assert check_operator("exp", 3).path == "Tensor.exp"


def test_wrong_variants_are_found(monkeypatch):
    monkeypatch.setattr(weft.Tensor, "exp_", lambda self: self)
    assert _kinds(check_operator("exp", 3)) == {("inplace", "value"), ("inplace", "dtype")} - (
        set() if weft.tensor(1).exp().dtype is weft.int64 else {("inplace", "dtype")}
    )


def test_silent_errors_are_found(monkeypatch):
    monkeypatch.setattr(weft, "masked_fill", lambda input, mask, value: input)
    assert ("error", "silent") in _kinds(check_operator("masked_fill", 3))


def test_what_is_not_listed_and_what_is_stale_fails(monkeypatch):
    monkeypatch.setattr(misses, "MISSES", ())
    outcome = check_operator("exp", 1)
    outcome.findings.clear()
    assert misses.problems([outcome], True) == []
    monkeypatch.setattr(misses, "MISSES", (misses.Miss("exp", "call", 2, "no reason"),))
    assert "change or remove" in misses.problems([outcome], True)[0]
    assert misses.problems([outcome], False) == []


def test_calls_are_those_that_torch_makes():
    info = database.operators()["where"]
    call, _ = calls.record(info, database.samples_of(info, "float32", 1)[0])
    assert call.path == "where" and str(call.args[0].dtype) == "torch.bool"
    assert calls.locate("nn.functional.relu") == "nn.functional.relu"
    assert calls.locate("zero_") == "Tensor.zero_" and calls.locate("no_such_name") == ""
