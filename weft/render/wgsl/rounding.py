"""What compilers of WGSL may not be shown, because the language lets them compute something else.

WGSL leaves open whether there are NaN and infinities, and whether sums and products are rearranged. `Rounding`
remembers what the names of a kernel are, and says which operands have to be hidden: made of bits that no compiler
knows. It knows no texts but those that it hides.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.base.dtypes import DType
from weft.kernels.ir.language import Expr, Literal, Op, Var

Hide = Callable[[str, DType, int], str]  # a text as one that compilers know nothing about, by zero `number`

_JOINED = {  # operations on floats, and those whose results compilers may join with them
    "add": ("add", "sub", "mul", "div", "fma"),
    "sub": ("add", "sub", "mul", "div", "fma"),
    "mul": ("mul", "div", "sqrt"),
    "div": ("mul", "div", "sqrt"),
    "abs": ("sqrt", "floor"),
    "neg": ("add", "sub"),
    "bitcast": ("add", "sub", "mul", "fma"),
}
_MADE = {inner for inners in _JOINED.values() for inner in inners}


class Rounding:
    """The floats of one kernel by name: sums and products, comparisons, and what comes from memory."""

    def __init__(self, hide: Hide):
        self._hide = hide
        self._defined: dict[str, tuple[Op, ...]] = {}  # what a name may be the result of, but for its sign
        self._origins: dict[str, frozenset[str]] = {}  # the names that a name may be a copy of, but for its sign
        self._compared: dict[str, Op] = {}
        self.loaded: set[str] = set()

    def define(self, name: str, op: Op) -> None:
        """Remember what a name is, where it matters."""
        if op.name in _MADE:
            self._defined[name] = (op,)
        elif op.name in ("neg", "abs", "select", "max", "min"):
            found = {id(one): one for arg in op.args for one in self._definitions(arg)}  # each once: chains double else
            self._defined[name] = tuple(found.values())
            self._origins[name] = frozenset().union(*[self._origin(arg) for arg in op.args])
        elif op.name in ("lt", "le"):
            self._compared[name] = op

    def may_be(self, name: str, kinds: tuple[str, ...]) -> bool:
        """Whether it may be the result of an operation of these kinds."""
        return any(one.name in kinds for one in self._defined.get(name, ()))

    def keep(self, op: Op, texts: list[str]) -> list[str]:
        """The operands of an operation, such that compilers compute just that, and round it. WGSL allows them to make

        - `a` of (a + b) - b, though what was rounded off in a + b is what kernels want to know;
        - one rounding of the two of a * b + c, and a - (b + c) of (a - b) - c: the bits of a value would depend on what
          shares its kernel;
        - (a * a) * 0.5, which may overflow, of (a * 0.5) * a;
        - `a` of 1 / (1 / a), of (a / b) * b and of (a * b) / b, 1 of a * (1 / a), |a| of sqrt(a) * sqrt(a), which are
          NaN where `b` is 0 or infinite, or `a` negative;
        - `a` of |a| for roots, though -0 is one of -0, and b - a of -(a - b), which has another zero;
        - a conversion to an integer of a sum's bits: the sum rounds a number, and is used as a number, too;
        - `a` of a + 0 (-0 + 0 is 0), `-a` of 0 - a, 0 of a * 0, which is none where `a` is NaN or infinite, 0 of 0 / 0,
          and the 0 that a - a is a constant, as is a * b - b * a: two operands are not hidden in one way.
        """
        if op.name not in _JOINED:
            return texts
        is_hidden = [self._is_hidden(op, number) for number in range(len(op.args))]
        if op.name in ("add", "sub", "div") and not any(is_hidden) and self._may_be_same_size(*op.args):
            is_hidden[0] = True
        return [
            self._hide(text, arg.dtype, int(number > 0 and is_hidden[0])) if hidden else text
            for number, (text, arg, hidden) in enumerate(zip(texts, op.args, is_hidden, strict=True))
        ]

    def _is_hidden(self, op: Op, number: int) -> bool:
        arg = op.args[number]
        if isinstance(arg, Literal):
            return not arg.value and op.name != "bitcast"
        others = op.args[:number] + op.args[number + 1 :]
        return any(self._is_taken_apart(op, inner, others) for inner in self._definitions(arg))

    @staticmethod
    def _is_taken_apart(op: Op, inner: Op, others: tuple[Expr, ...]) -> bool:
        """Whether compilers may join an operation with one that made an operand of it."""
        if inner.name == "fma" and op.name != "bitcast":
            return op.name in ("add", "sub") and any(
                _is_same_size(part, other) for part in inner.args for other in others
            )
        return inner.name in _JOINED[op.name]

    def is_extremum(self, op: Op) -> bool:
        """Whether a choice takes the larger or the smaller of what its condition compares: compilers make `min` and
        `max` of that, which lose NaN."""
        condition, *choices = op.args
        compared = self._compared.get(condition.name) if isinstance(condition, Var) else None
        if op.dtype.kind != "f" or compared is None:
            return False
        return any(
            _is_same_size(compared.args[0], one) and _is_same_size(compared.args[1], other)
            for one, other in (choices, choices[::-1])
        )

    def _may_be_same_size(self, a: Expr, b: Expr) -> bool:
        return not self._origin(a).isdisjoint(self._origin(b))

    def _origin(self, value: Expr) -> frozenset[str]:
        return self._origins.get(value.name, frozenset([value.name])) if isinstance(value, Var) else frozenset()

    def _definitions(self, value: Expr) -> tuple[Op, ...]:
        return self._defined.get(value.name, ()) if isinstance(value, Var) else ()


def _is_same_size(a: Expr, b: Expr) -> bool:
    """Whether two operands are one variable, or literals that differ in sign at most."""
    if isinstance(a, Literal) and isinstance(b, Literal):
        return abs(a.value) == abs(b.value)
    return isinstance(a, Var) and isinstance(b, Var) and a.name == b.name
