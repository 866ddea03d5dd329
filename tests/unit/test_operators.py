"""Operators on indices and expressions build the trees that the constructors build, and refuse other operands."""

import math
import operator

import pytest

from weft.base.dtypes import bool_, float32, float64, int32, int64, uint32
from weft.base.errors import DTypeError
from weft.kernels.ir import index as ix
from weft.kernels.ir.expressions import Expr, IndexValue, Literal, Load, Op, Var
from weft.kernels.ir.index import Axis, Index, Quotient, Remainder

pytestmark = pytest.mark.unit

A, B = Var("a", float32), Var("b", float32)
M, N = Var("m", int64), Var("n", int64)
U, V = Var("u", uint32), Var("v", uint32)
P, Q = Var("p", bool_), Var("q", bool_)


def tree(expr):
    """An expression as nested tuples; leaves stand for themselves, so that sharing is compared too."""
    if isinstance(expr, Op):
        return (expr.name, expr.dtype, *[tree(arg) for arg in expr.args])
    if isinstance(expr, Literal):
        return ("literal", type(expr.value), repr(expr.value), expr.dtype)
    return expr


BINARY = [
    (operator.add, "add", A, B), (operator.sub, "sub", A, B), (operator.mul, "mul", A, B),
    (operator.truediv, "div", A, B), (operator.floordiv, "div", M, N), (operator.mod, "mod", M, N),
    (operator.and_, "and", M, N), (operator.or_, "or", M, N), (operator.xor, "xor", M, N),
    (operator.and_, "and", P, Q), (operator.or_, "or", P, Q), (operator.xor, "xor", P, Q),
    (operator.lshift, "shl", M, N), (operator.rshift, "shr", U, V),
    (Expr.max, "max", A, B), (Expr.min, "min", M, N), (Expr.mulhi, "mulhi", U, V),
]  # fmt: skip


@pytest.mark.parametrize(("function", "name", "a", "b"), BINARY)
def test_binary_operators_build_the_operation_of_their_name(function, name, a, b):
    assert tree(function(a, b)) == tree(Op(name, (a, b), a.dtype))


@pytest.mark.parametrize(("function", "name", "a", "b"), BINARY)
def test_a_number_takes_the_dtype_of_the_other_operand(function, name, a, b):
    number = {"f": 2.5, "b": True}.get(a.dtype.kind, 3)
    assert tree(function(a, number)) == tree(Op(name, (a, Literal(number, a.dtype)), a.dtype))


@pytest.mark.parametrize(
    ("function", "name", "a"),
    [
        (operator.add, "add", A), (operator.sub, "sub", A), (operator.mul, "mul", A), (operator.truediv, "div", A),
        (operator.floordiv, "div", M), (operator.mod, "mod", M),
    ],
)  # fmt: skip
def test_a_number_may_be_the_first_operand(function, name, a):
    assert tree(function(7, a)) == tree(Op(name, (Literal(7, a.dtype), a), a.dtype))


@pytest.mark.parametrize(
    ("function", "name", "swapped"),
    [
        (operator.lt, "lt", False), (operator.le, "le", False), (operator.gt, "lt", True), (operator.ge, "le", True),
        (Expr.eq, "eq", False), (Expr.ne, "ne", False),
    ],
)  # fmt: skip
def test_comparisons_are_bool(function, name, swapped):
    for a, b in ((A, B), (A, 1.0), (M, 3)):
        args = (a, b if isinstance(b, Expr) else Literal(b, a.dtype))
        assert tree(function(a, b)) == tree(Op(name, args[::-1] if swapped else args, bool_))


def test_a_number_before_a_comparison():
    assert tree(0.5 < A) == tree(Op("lt", (Literal(0.5, float32), A), bool_))
    assert tree(0.5 <= A) == tree(Op("le", (Literal(0.5, float32), A), bool_))
    assert tree(0.5 > A) == tree(Op("lt", (A, Literal(0.5, float32)), bool_))
    assert tree(0.5 >= A) == tree(Op("le", (A, Literal(0.5, float32)), bool_))


def test_operations_of_one_value():
    assert tree(-A) == tree(Op("neg", (A,), float32))
    assert tree(abs(A)) == tree(Op("abs", (A,), float32))
    assert tree(~P) == tree(Op("not", (P,), bool_)) and tree(~U) == tree(Op("not", (U,), uint32))
    assert tree(A.sqrt()) == tree(Op("sqrt", (A,), float32))
    assert tree(A.floor()) == tree(Op("floor", (A,), float32))
    assert tree(A.cast(float64)) == tree(Op("cast", (A,), float64))
    assert tree(A.cast(float32)) == tree(Op("cast", (A,), float32))  # nothing is folded
    assert tree(A.bitcast(uint32)) == tree(Op("bitcast", (A,), uint32))


def test_operations_of_three_values():
    zero = Literal(0.0, float32)
    assert tree(A.fma(B, 0.0)) == tree(Op("fma", (A, B, zero), float32))
    assert tree(A.fma(2.0, B)) == tree(Op("fma", (A, Literal(2.0, float32), B), float32))
    assert tree(P.select(A, B)) == tree(Op("select", (P, A, B), float32))
    assert tree(P.select(A, 0.0)) == tree(Op("select", (P, A, zero), float32))
    assert tree((A < 0.0).select(0.0, A)) == tree(Op("select", (Op("lt", (A, zero), bool_), zero, A), float32))
    assert tree(P.select(-math.inf, A)) == tree(Op("select", (P, Literal(-math.inf, float32), A), float32))


def test_every_kind_of_expression_has_the_operators():
    index = ix.axis_index(Axis("i", 8))
    for one in (
        Literal(1, int32),
        Var("x", int32),
        -Var("x", int32),
        Load("b0", index, int32),
        IndexValue(index, int32),
    ):
        assert tree(one + 1) == tree(Op("add", (one, Literal(1, int32)), int32))


def test_equality_of_expressions_is_identity():
    twin = Var("a", float32)
    assert A == A and A != twin and {A: 1, twin: 2}[A] == 1 and A in (twin, A)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: A + M, r"given operands of float32 and int64; expected operands of one dtype\. Fix: cast"),
        (lambda: A < M, "operands of float32 and int64"),
        (lambda: P.select(A, M), "operands of float32 and int64"),
        (lambda: A + "1", "given the operand '1'; expected an expression or a Python number"),
        (lambda: A * None, "the operand None"),
        (lambda: 1j * A, "the operand 1j"),
        (lambda: N + ix.axis_index(Axis("i", 8)), r"the operand i; .* Fix: an index takes part as `IndexValue"),
        (lambda: ix.axis_index(Axis("i", 8)) + N, "the operand i"),
        (lambda: M / N, r"given `/` of int64; expected a float"),
        (lambda: A // B, r"given `//` of float32; expected a signed integer or an unsigned integer"),
        (lambda: A % B, "`%` of float32"),
        (lambda: A & B, "`&` of float32"),
        (lambda: ~A, "`~` of float32"),
        (lambda: P << 1, "`<<` of bool"),
        (lambda: M.sqrt(), "`sqrt` of int64"),
        (lambda: M.fma(M, M), "`fma` of int64"),
        (lambda: A.mulhi(B), "`mulhi` of float32"),
        (lambda: A.select(A, B), "`select` of float32; expected a bool"),
        (lambda: P.select(1.0, 2.0), r"given 1\.0 and 2\.0; expected an expression"),
        (lambda: 1 if A < B else 2, "an expression where Python needs True or False"),
        (lambda: P and Q, r"Fix: use condition\.select"),
    ],
)  # fmt: skip
def test_other_operands_are_refused(build, message):
    with pytest.raises(DTypeError, match=message) as caught:
        build()
    assert isinstance(caught.value, TypeError)


# --- indices ---------------------------------------------------------------------------------------------------------

ROW, COL, ONE = Axis("i", 12), Axis("j", 5), Axis("one", 1)
row, col = Index(((ROW, 1),), 0), Index(((COL, 1),), 0)


def test_sums_and_products_of_indices():
    assert row * 5 + col == Index(((ROW, 5), (COL, 1)), 0) == 5 * row + col
    assert row + 3 == Index(((ROW, 1),), 3) == 3 + row
    assert row - 3 == Index(((ROW, 1),), -3)
    assert 3 - row == Index(((ROW, -1),), 3)
    assert row - col == Index(((ROW, 1), (COL, -1)), 0)
    assert -row == Index(((ROW, -1),), 0)
    assert row - row == ix.ZERO == row * 0
    assert row + 0 is row and row * 1 is row and row + ix.ZERO is row and ix.ZERO + row is row
    assert (row + 3) * 4 == Index(((ROW, 4),), 12)


def test_quotients_and_remainders_of_indices():
    assert row // 5 == Index(((Quotient(row, 5, 0, 2), 1),), 0)
    assert row % 5 == Index(((Remainder(row, 5, 0, 4), 1),), 0)
    assert (row * 5 + col) // 5 == row and (row * 5 + col) % 5 == col
    assert row // 1 is row and row % 1 is ix.ZERO and row // 12 == ix.ZERO
    assert row // 5 * 5 + row % 5 == row


def test_an_axis_is_its_index():
    assert ROW * 5 + COL == row * 5 + col == row * 5 + COL and ROW + col == row + col
    assert ROW + 2 == row + 2 == 2 + ROW and ROW - 2 == row - 2 and 2 - ROW == 2 - row and -ROW == -row
    assert ROW - COL == row - col == row - COL
    assert 3 * ROW == row * 3 and ROW // 4 == row // 4 and ROW % 4 == row % 4
    assert ONE * 7 == ix.ZERO and ONE + 2 == ix.const(2)


@pytest.mark.parametrize(
    "build",
    [
        lambda: row + 1.5, lambda: row - 1.5, lambda: 1.5 - row, lambda: row * 0.5, lambda: row * col,
        lambda: row // col,
        lambda: row % 2.0, lambda: row + "1", lambda: ROW + 1.5, lambda: ROW * COL, lambda: ROW // 2.0,
    ],
)  # fmt: skip
def test_an_index_takes_whole_numbers(build):
    with pytest.raises(TypeError, match="unsupported operand"):
        build()
