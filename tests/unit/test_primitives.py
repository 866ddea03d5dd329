"""The tables of primitives: every row has every column, and what is kept elsewhere by name agrees with them."""

import re
from pathlib import Path

import pytest

from weft.compiler.primitives import ALL_PRIMITIVES, COMPILER_PRIMITIVES
from weft.grad.rules import RULES, SEVERAL
from weft.graph.node import GRADIENTS
from weft.graph.primitives import PRIMITIVES
from weft.kernels.math.functions import FUNCTIONS

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]
KINDS = {
    "leaf", "generate", "elementwise", "movement", "update", "reduce", "fold", "gather", "scatter", "segment", "rows",
    "concat", "dot", "conv", "scan", "sort", "put", "template", "after", "loop", "pick",
}  # fmt: skip
WITHOUT_EVALUATION = {"buffer", "input", "loop", "pick", "number"}  # leaves, and what others give the value of


@pytest.mark.parametrize("name", ALL_PRIMITIVES)
def test_a_row_has_every_column(name):
    row = ALL_PRIMITIVES[name]
    assert row.name == name and row.kind in KINDS and row.gradient in GRADIENTS
    assert row.arity is None or row.arity >= 0
    assert callable(row.shape_rule) and (row.evaluation is None) == (name in WITHOUT_EVALUATION)
    assert type(row.cost) is int and row.cost >= (1 if row.kind == "elementwise" else 0)
    assert row.attributes is tuple or (row.attributes.__doc__ and row.attributes._fields)
    assert (row.results is not None) <= (row.kind == "template")


def test_gradients_are_where_rows_say():
    assert {name for name, row in PRIMITIVES.items() if row.gradient == "rule"} == set(RULES)
    assert {name for name, row in PRIMITIVES.items() if row.gradient == "joint"} == set(SEVERAL)
    assert {row.gradient for row in COMPILER_PRIMITIVES.values()} == {"none"}


def test_no_primitive_is_in_both_tables():
    assert not PRIMITIVES.keys() & COMPILER_PRIMITIVES.keys()


def test_functions_of_kernels_are_elementwise_primitives():
    assert all(PRIMITIVES[name].kind == "elementwise" and PRIMITIVES[name].cost > 1 for name in FUNCTIONS)


def test_attributes_are_read_by_name():
    found = []
    for folder in ("weft", "tests", "tools", "benchmarks", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if re.search(r"\battrs\[-?\d", line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []
