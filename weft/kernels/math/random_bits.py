"""Random bits as expressions: Philox2x32-10, a counter-based generator, so that every element is drawn by itself."""

from __future__ import annotations

from weft.base.dtypes import uint32
from weft.kernels.ir.index import Index
from weft.kernels.ir.language import Expr, IndexValue

PHILOX_FACTOR, PHILOX_KEY_STEP, PHILOX_ROUNDS = 0xD256D193, 0x9E3779B9, 10


def elements_per_counter(width: int) -> int:
    """Contiguous elements that share a counter where each needs `width` random bits, 16 or 32."""
    return 4 if width == 16 else 1


def random_bits(key: Expr, count: Expr, position: Index, width: int, wide: bool) -> Expr:
    """16 or 32 (`width`) random bits, as uint32, for the element at `position`; `wide` where counters pass 2^32.

    32 bits are word 0 of the counter (position, count). Of 16, both words of one counter serve four contiguous
    elements: unrolled lanes, and vectors on a CPU, share the work.
    """
    counter = position // elements_per_counter(width)
    if wide:
        high = IndexValue(counter // 2**32, uint32)
        key = key + high * PHILOX_KEY_STEP
    first, second = philox(key, IndexValue(counter, uint32), count)
    if width == 32:
        return first
    part = position % elements_per_counter(width)
    word = (IndexValue(part, uint32) < 2).select(first, second)
    shift = IndexValue(part % 2 * 16, uint32)
    return (word >> shift) & 0xFFFF


def philox(key: Expr, c0: Expr, c1: Expr) -> tuple[Expr, Expr]:
    """Both words of Philox2x32-10 with `key` and counter (c0, c1), all uint32."""
    for round_ in range(PHILOX_ROUNDS):
        high, low = c0.mulhi(PHILOX_FACTOR), c0 * PHILOX_FACTOR
        bumped = key + round_ * PHILOX_KEY_STEP % 2**32 if round_ else key
        c0, c1 = high ^ bumped ^ c1, low
    return c0, c1
