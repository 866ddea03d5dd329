"""16-bit floats inside kernels: they lie in memory packed, and are computed with as the float32 of the same value.

`rounded` is the one rounding of a node, to nearest with ties to even; a packed value is unpacked without loss, and a
rounded one packed without loss. float16 is left to the machine's conversions, which IEEE 754 fixes; bfloat16, the
upper half of a float32, is written in bit operations so that every backend agrees. NaN stays NaN.
"""

from __future__ import annotations

from weft.dtypes import DType, bfloat16, bool_, float16, float32, uint16, uint32
from weft.kernels.language import Expr, Function, Literal, Load, Op

HALF_BELOW = 0x7FFF  # half a unit in the last place, less the least bit
UPPER = 0xFFFF0000
QUIET_NAN = 0x7FC00000


def _bits(name: str, a: Expr, b: Expr | int) -> Op:
    return Op(name, (a, Literal(b, uint32) if isinstance(b, int) else b), uint32)


def unpacked(value: Expr) -> Op:
    """The float32 of a 16-bit float as it was loaded."""
    if value.dtype is float16:
        return Op("cast", (value,), float32)
    upper = Op("cast", (Op("bitcast", (value,), uint16),), uint32)
    return Function("bitcast", (_bits("shl", upper, 16),), float32, "widen", (value,))


def packed(value: Expr, dtype: DType) -> Expr:
    """A rounded float32 as the 16 bits that are stored; what was only loaded is stored as it is."""
    loaded = _loaded(value)
    if loaded is not None and loaded.dtype is dtype:
        return loaded
    if dtype is float16:
        return Op("cast", (value,), float16)
    upper = _bits("shr", Op("bitcast", (value,), uint32), 16)
    return Function("bitcast", (Op("cast", (upper,), uint16),), bfloat16, "narrow", (value,))


def bitcast(value: Expr, source: DType, target: DType) -> Expr:
    """The bits of a value as another 16-bit dtype, each held as it is in kernels."""
    bits = Op("bitcast", (packed(value, source) if source.is_narrow else value,), target)
    return unpacked(bits) if target.is_narrow else bits


def _loaded(value: Expr) -> Load | None:
    """The load that `unpacked` made `value` of, if it did."""
    is_cast = isinstance(value, Op) and value.name == "cast"
    for name in ("cast",) if is_cast else ("bitcast", "shl", "cast", "bitcast"):
        if not isinstance(value, Op) or value.name != name:
            return None
        value = value.args[0]
    return value if isinstance(value, Load) else None


def rounded(value: Expr, dtype: DType) -> Op:
    """A float32 rounded to a 16-bit dtype, still held as float32."""
    if dtype is float16:
        return Op("cast", (Op("cast", (value,), float16),), float32)
    bits = Op("bitcast", (value,), uint32)
    odd = _bits("and", _bits("shr", bits, 16), 1)
    up = _bits("and", _bits("add", bits, _bits("add", odd, HALF_BELOW)), UPPER)
    is_nan = Op("ne", (value, value), bool_)
    held = Op("select", (is_nan, Literal(QUIET_NAN, uint32), up), uint32)
    return Function("bitcast", (held,), float32, "round_bfloat16", (value,))
