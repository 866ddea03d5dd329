"""16-bit floats inside kernels: packed in memory, computed with as the float32 of the same value.

`round_to` is the one rounding of a node, to nearest with ties to even; a packed value is unpacked without loss, and a
rounded one packed without loss. float16 is left to the machine's conversions, which IEEE 754 fixes; bfloat16, the
upper half of a float32, is written in bit operations so that every backend agrees. NaN stays NaN.
"""

from __future__ import annotations

from weft.base.dtypes import DType, bfloat16, float16, float32, uint16, uint32
from weft.kernels.ir.language import Expr, Function, Load, Op

HALF_BELOW = 0x7FFF  # half a unit in the last place, less the least bit
UPPER = 0xFFFF0000
QUIET_NAN = 0x7FC00000


def unpack(value: Expr) -> Op:
    """The float32 of a 16-bit float as it was loaded."""
    if value.dtype is float16:
        return value.cast(float32)
    upper = value.bitcast(uint16).cast(uint32)
    return Function("bitcast", (upper << 16,), float32, "widen", (value,))


def pack(value: Expr, dtype: DType) -> Expr:
    """A rounded float32 as the 16 bits that are stored; what was only loaded is stored as it is."""
    loaded = _find_load(value)
    if loaded is not None and loaded.dtype is dtype:
        return loaded
    if dtype is float16:
        return value.cast(float16)
    upper = value.bitcast(uint32) >> 16
    return Function("bitcast", (upper.cast(uint16),), bfloat16, "narrow", (value,))


def bitcast(value: Expr, source: DType, target: DType) -> Expr:
    """The bits of a value as another 16-bit dtype, each in its form inside kernels."""
    bits = (pack(value, source) if source.is_16_bit else value).bitcast(target)
    return unpack(bits) if target.is_16_bit else bits


def _find_load(value: Expr) -> Load | None:
    """The load that `unpack` made `value` of, if it did."""
    is_cast = isinstance(value, Op) and value.name == "cast"
    for name in ("cast",) if is_cast else ("bitcast", "shl", "cast", "bitcast"):
        if not isinstance(value, Op) or value.name != name:
            return None
        value = value.args[0]
    return value if isinstance(value, Load) else None


def round_to(value: Expr, dtype: DType) -> Op:
    """A float32 rounded to a 16-bit dtype, still represented as float32."""
    if dtype is float16:
        return value.cast(float16).cast(float32)
    bits = value.bitcast(uint32)
    odd = (bits >> 16) & 1
    up = (bits + (odd + HALF_BELOW)) & UPPER
    result = value.ne(value).select(QUIET_NAN, up)
    return Function("bitcast", (result,), float32, "round_bfloat16", (value,))
