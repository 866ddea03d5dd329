"""Every layer of the catalogue through the layer harness (tests/layers)."""

import pytest
import torch  # noqa: F401  (the oracle: without it this file is not collected)

import weft.nn as nn
from tests.layers.checks import CHECKS, NotApplicable, applies, check_edge
from tests.layers.page import files
from tests.layers.record import COLUMNS
from tests.layers.records import records
from tests.layers.specified import SPECIFIED

RECORDS = records()
CASES = [pytest.param(record, check, id=f"{record.id}-{check}") for record in RECORDS for check in CHECKS]
EDGES = [
    pytest.param(record, column, id=f"{record.id}-{column}")
    for record in RECORDS
    for column in COLUMNS
    if applies(record, column)
]
OWN = [pytest.param(record, name, id=f"{record.id}-{name}") for record in RECORDS for name in record.checks]


@pytest.mark.parametrize(("record", "check"), CASES)
def test_layer(record, check, on_each_device):
    try:
        CHECKS[check](record)
    except NotApplicable:
        return


@pytest.mark.parametrize(("record", "column"), EDGES)
def test_edge_case(record, column, on_each_device):
    try:
        check_edge(record, column)
    except NotApplicable:
        return


@pytest.mark.parametrize(("record", "name"), OWN)
def test_own_property(record, name, on_each_device):
    record.checks[name]()


def test_every_layer_has_a_record():
    missing = sorted(set(nn.layers()) - {record.name for record in RECORDS})
    assert not missing, f"layers without a record in tests/layers/records: {missing}"


def test_every_record_is_of_a_layer():
    unknown = sorted({record.name for record in RECORDS} - set(nn.layers()))
    assert not unknown, f"records of layers that the catalogue does not have: {unknown}"


def test_random_layers_have_checks_of_their_own():
    for record in RECORDS:
        assert record.oracle is not None or record.checks, f"{record.id} has neither an oracle nor checks"


def test_the_catalogue_is_not_stale():
    for path, text in files().items():
        assert path.read_text() == text, f"{path.name} is stale: run `make layers`"


@pytest.mark.parametrize("number", SPECIFIED)
def test_every_layer_of_the_specification_is_there(number):
    for name in SPECIFIED[number]:
        assert nn.get(name), name
    numbers = {part for entry in nn.layers().values() for part in entry.number.split()}
    assert number in numbers, f"no layer is registered as {number}"
