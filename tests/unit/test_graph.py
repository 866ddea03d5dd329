"""Nodes are one when equal, graphs are checked by the spec, and print readably."""

import gc
from dataclasses import replace

import pytest

import weft
from weft.base.dtypes import bool_, float32, int64
from weft.compiler.primitives import COMPILER_PRIMITIVES
from weft.graph import build
from weft.graph.node import _interned, intern_node, leaf
from weft.graph.primitives import PRIMITIVES, make_node
from weft.graph.show import show
from weft.graph.spec import check

pytestmark = pytest.mark.unit
DEVICE = weft.get_device("reference")


def value(*shape, dtype=float32):
    return leaf(None, shape, dtype, DEVICE)


def test_equal_nodes_are_one():
    x, y = value(2, 3), value(2, 3)
    assert build.add(x, y) is build.add(x, y)
    assert build.add(x, y) is not build.add(y, x)
    assert build.reduce("reduce_sum", x, [1, 0]) is build.reduce("reduce_sum", x, (0, 1))
    assert value(2) is not value(2)


def test_constants_differ_by_sign_and_type():
    assert build.const(0.0, float32, DEVICE) is not build.const(-0.0, float32, DEVICE)
    assert build.const(1, int64, DEVICE) is not build.const(True, bool_, DEVICE)
    assert build.const(float("nan"), float32, DEVICE) is build.const(float("nan"), float32, DEVICE)


def test_variables_are_never_one():
    x = value(2)
    assert build.variable(x) is not build.variable(x)


def test_the_table_forgets_dead_nodes():
    x = value(7)
    gc.collect()  # what other tests left behind
    before = len(_interned)
    node = build.add(build.mul(x, x), x)
    assert len(_interned) > before
    del node
    gc.collect()
    assert len(_interned) == before


def test_movement_that_changes_nothing_is_its_source():
    x = value(2, 3)
    assert build.reshape(x, (2, 3)) is x
    assert build.permute(x, (0, 1)) is x
    assert build.expand(x, (2, 3)) is x
    assert build.slice_(x, (0, 0), (2, 3)) is x
    assert build.pad(x, (0, 0), (0, 0)) is x
    assert build.cast(x, float32) is x


def test_every_primitive_but_leaves_and_loops_can_be_evaluated_alone():
    assert {name for name, row in PRIMITIVES.items() if row.evaluation is None} == {"buffer", "input", "loop", "pick"}
    assert {name for name, row in COMPILER_PRIMITIVES.items() if row.evaluation is None} == {"number"}


def test_depth_counts_uncomputed_operations():
    x = value(2)
    assert build.neg(build.neg(x)).depth == 2


def test_spec_accepts_what_operations_make():
    with weft.device("reference"):
        x = weft.ones(3, 4, requires_grad=True)
        loss = weft.nn.functional.cross_entropy(weft.nn.functional.layer_norm(x, (4,)), weft.tensor([0, 1, 2]))
        loss.backward()
        check([loss.node, x.grad.node])


def wrong(op, srcs, attrs=(), shape=(2,), dtype=float32, device=DEVICE):
    row = PRIMITIVES.get(op) or replace(PRIMITIVES["neg"], name=op)
    return intern_node(row, srcs, row.attributes(*attrs), shape, dtype, device)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (lambda: wrong("twist", (value(2),)), "the operation 'twist'"),
        (lambda: wrong("add", (value(2),)), "1 sources; expected 2"),
        (lambda: wrong("concat", (), (0,)), "0 sources"),
        (lambda: wrong("add", (value(2), value(3))), "what its rule accepts"),
        (lambda: wrong("add", (value(2), value(2, dtype=int64))), "what its rule accepts"),
        (lambda: wrong("neg", (value(2),), shape=(3,)), r"float32\[3\]; expected float32\[2\] by its rule"),
        (lambda: wrong("lt", (value(2), value(2))), r"expected bool\[2\]"),
        (lambda: wrong("const", (), (1,), shape=()), "the value 1; expected a Python value of the kind of float32"),
        (lambda: wrong("reduce_sum", (value(2, 3),), ((1, 0),), shape=()), "what its rule accepts"),
        (lambda: wrong("flip", (value(2, 2),), ((1, 0),), shape=(2, 2)), "sorted axes"),
        (lambda: wrong("slice", (value(4),), ((3,), (9,), (1,)), shape=(6,)), "what its rule accepts"),
        (lambda: wrong("update_slice", (value(4), value(2)), ((3,), (1,)), shape=(4,)), "what its rule accepts"),
        (lambda: wrong("update_slice", (value(4), value(1)), ((0,), (2,)), shape=(4,)), "what its rule accepts"),
        (lambda: wrong("neg", (value(2),), device=weft.get_device("reference").backend), "sources on"),
        (lambda: wrong("iota", (), ((2,), 5), dtype=int64), "what its rule accepts"),
    ],
)
def test_spec_refuses(node, message):
    with pytest.raises(weft.GraphError, match=message):
        check([build.stop_gradient(node())] if node().op in PRIMITIVES else [node()])


def test_spec_finds_cycles():
    node = build.neg(build.neg(value(2)))
    node.srcs[0].srcs = (node,)
    with pytest.raises(weft.GraphError, match="a cycle"):
        check([node])
    node.srcs[0].srcs = ()


def test_make_asserts_what_operations_should_have_checked():
    with pytest.raises(AssertionError):
        make_node("add", (value(2), value(3)))


def test_show_numbers_sources_before_users():
    x = value(2, 3)
    text = show([build.reduce("reduce_sum", build.mul(x, 2.0), (1,))])
    lines = text.splitlines()
    assert lines[0].startswith("%0 = float32[2, 3] buffer")
    assert "const 2.0" in text
    assert lines[-1].endswith("reduce_sum %4 ((1,),)  <-")
