"""Every layer of the catalogue through the layer harness (tests/layers)."""

import inspect

import pytest
import torch  # noqa: F401  (the oracle: without it this file is not collected)

import weft.nn as nn
from tests.layers.checks import CHECKS, NotApplicable
from tests.layers.edge_cases import applies, check_edge
from tests.layers.instances import make_layer
from tests.layers.page import files
from tests.layers.record import COLUMNS
from tests.layers.records import records
from tests.layers.specified import SPECIFIED

pytestmark = pytest.mark.usefixtures("quick_code")
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


# They have no tensors of their own, only those of what they are given.
WRAPPERS = {
    "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "Expert", "MoE", "Model", "LoRALinear",
    "Grid", "LoRAEmbedding", "SpectralNorm", "FractionalMaxPool2d", "FractionalMaxPool3d", "Bidirectional", "Residual",
    "TimeDistributed", "TransformerEncoder", "TransformerDecoder",
}  # fmt: skip


def test_layers_take_a_device_and_a_dtype_and_say_where_they_run():
    first = {record.name: record for record in reversed(RECORDS)}
    for name, record in first.items():
        layer = make_layer(record)
        assert layer.supports("cpu") and layer.supports("cpu", training=False), name
        floats = [*layer.parameters(), *[one for one in layer.buffers() if one.dtype.kind == "f"]]
        if floats and name not in WRAPPERS:
            assert {"device", "dtype"} <= set(inspect.signature(getattr(nn, name)).parameters), name
