"""HIP functions behind `AsyncCopy`, `TileLoad` and `TileProduct`: copies by vectors, and AMD's matrix units.

A lane holds elements along k of one row of the left operand, or of one column of the right one: row or column number
`lane % 16`. Of 16 elements, MFMA's 64 lanes hold four each; of WMMA's 32 lanes, both halves hold all. Which sums a lane
holds is the layout "column_blocks" or "column_strides" of `kernels.gpu.matrix_unit`. Both operands are loaded alike:
`_turned` ones lie across k.
"""

from __future__ import annotations

FETCH = """template <int count, typename T>
static __device__ inline void fetch(T* target, const T* source, int valid)
{
    constexpr int bytes = count * (int)sizeof(T);
    if (valid == count && ((unsigned long long)source & (bytes - 1)) == 0)
        __builtin_memcpy(__builtin_assume_aligned(target, bytes), __builtin_assume_aligned(source, bytes), bytes);
    else {
        #pragma unroll
        for (int i = 0; i < count; i++) target[i] = i < valid ? source[i] : (T)0;
    }
}"""

FETCH_NEAR = """template <int count, typename T>
static __device__ inline void fetch_near(T* target, const T* source)
{
    constexpr int bytes = count * (int)sizeof(T);
    __builtin_memcpy(__builtin_assume_aligned(target, bytes), __builtin_assume_aligned(source, bytes), bytes);
}"""

_LOAD = """static __device__ inline void {name}(unsigned int* to, const unsigned short* from, int step)
{{
    const int lane = (int)threadIdx.x & {mask};
    const unsigned short* first = from + (lane & 15) * step + {start};
    __builtin_memcpy(to, __builtin_assume_aligned(first, {align}), {count} * 2);
}}"""

_LOAD_TURNED = """static __device__ inline void {name}(unsigned int* to, const unsigned short* from, int step)
{{
    const int lane = (int)threadIdx.x & {mask};
    const unsigned short* first = from + {start} * step + (lane & 15);
    #pragma unroll
    for (int i = 0; i < {count} / 2; i++)
        to[i] = first[2 * i * step] | (unsigned int)first[(2 * i + 1) * step] << 16;
}}"""

_PRODUCT = """static __device__ inline
void tile_product_{name}(float* sums, const unsigned int* a, const unsigned int* b)
{{
    typedef {type} Operand __attribute__((ext_vector_type({count})));
    typedef float Sums __attribute__((ext_vector_type({sums})));
    Operand left, right;
    Sums total;
    __builtin_memcpy(&left, a, sizeof left);
    __builtin_memcpy(&right, b, sizeof right);
    __builtin_memcpy(&total, sums, sizeof total);
    total = {call};
    __builtin_memcpy(sums, &total, sizeof total);
}}"""


def _loads(mask: int, start: str, count: int) -> dict[str, str]:
    """The four loads; a lane holds `count` elements from `start` on along k."""
    sides = ("tile_a", "tile_b")
    align = min(2 * count, 16)
    straight = {name: _LOAD.format(name=name, mask=mask, start=start, count=count, align=align) for name in sides}
    turned = [f"{name}_turned" for name in sides]
    return straight | {name: _LOAD_TURNED.format(name=name, mask=mask, start=start, count=count) for name in turned}


def _product(name: str, kind: str, count: int, sums: int, call: str) -> str:
    return _PRODUCT.format(name=name, type=kind, count=count, sums=sums, call=call)


_MFMA_CALL = "__builtin_amdgcn_mfma_f32_16x16x16{kind}(left, right, total, 0, 0, 0)"
MFMA = {
    **_loads(63, "(lane >> 4) * 4", 4),
    "tile_product_float16": _product("float16", "_Float16", 4, 4, _MFMA_CALL.format(kind="f16")),
    "tile_product_bfloat16": _product("bfloat16", "short", 4, 4, _MFMA_CALL.format(kind="bf16_1k")),
}

_WMMA_CALL = "__builtin_amdgcn_wmma_f32_16x16x16_{kind}_w32(left, right, total)"
WMMA = {
    **_loads(31, "0", 16),
    "tile_product_float16": _product("float16", "_Float16", 16, 8, _WMMA_CALL.format(kind="f16")),
    "tile_product_bfloat16": _product("bfloat16", "short", 16, 8, _WMMA_CALL.format(kind="bf16")),
}
