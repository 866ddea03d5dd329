"""CUDA functions behind `AsyncCopy`, `TileLoad` and `TileProduct`: asynchronous copies, `ldmatrix` and `mma.sync`.

They are text that `render.dialects.tables` puts into the table of CUDA; a kernel gets those that it calls. A tile of
sums is two adjacent m16n8 fragments, which is the layout that `kernels.gpu.matrix_unit` describes. Copies go in
pieces of 16 bytes where the source is aligned so, else element by element.
"""

from __future__ import annotations

FETCH = """template <int count, typename T>
static __device__ __forceinline__ void fetch(T* target, const T* source, int valid)
{
    constexpr int bytes = count * (int)sizeof(T);
    static_assert(bytes <= 16, "one copy");
    const unsigned int to = (unsigned int)__cvta_generic_to_shared(target);
    if (bytes >= 4 && ((unsigned long long)source & (bytes - 1)) == 0) {
        const int given = valid * (int)sizeof(T);
        if (bytes == 16)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                :: "r"(to), "l"(source), "r"(given) : "memory");
        else if (bytes == 8)
            asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                :: "r"(to), "l"(source), "r"(given) : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                :: "r"(to), "l"(source), "r"(given) : "memory");
    } else {
        #pragma unroll
        for (int i = 0; i < count; i++) target[i] = i < valid ? source[i] : (T)0;
    }
}"""

FETCH_NEAR = """template <int count, typename T>
static __device__ __forceinline__ void fetch_near(T* target, const T* source)
{
    constexpr int bytes = count * (int)sizeof(T);
    const unsigned int to = (unsigned int)__cvta_generic_to_shared(target);
    if (bytes == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(source) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(to), "l"(source), "n"(bytes) : "memory");
}"""

FETCHED = 'asm volatile("cp.async.commit_group; cp.async.wait_group {pending};" ::: "memory");'

_LOAD = """static __device__ __forceinline__ void {name}(unsigned int* to, const unsigned short* from, int step)
{{
    const int lane = (int)threadIdx.x & 31;
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(from + {place});
    asm volatile("ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at) : "memory");
}}"""

_PRODUCT = """static __device__ __forceinline__ void tile_product_{name}(
    float* sums, const unsigned int* a, const unsigned int* b)
{{
    #pragma unroll
    for (int half = 0; half < 2; half++)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
            "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
            : "+f"(sums[4 * half]), "+f"(sums[4 * half + 1]), "+f"(sums[4 * half + 2]), "+f"(sums[4 * half + 3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * half]), "r"(b[2 * half + 1]));
}}"""

# Which row of eight elements a lane points to: lanes 0 to 7 for the first 8 x 8 matrix, 8 to 15 for the second, ...
_DOWN_FIRST = "(lane & 15) * step + (lane >> 4) * 8"
_RIGHT_FIRST = "((lane & 7) + (lane >> 4) * 8) * step + ((lane >> 3) & 1) * 8"

TILES = {
    "tile_a": _LOAD.format(name="tile_a", place=_DOWN_FIRST, trans=""),
    "tile_a_turned": _LOAD.format(name="tile_a_turned", place=_RIGHT_FIRST, trans=".trans"),
    "tile_b": _LOAD.format(name="tile_b", place=_RIGHT_FIRST, trans=""),
    "tile_b_turned": _LOAD.format(name="tile_b_turned", place=_DOWN_FIRST, trans=".trans"),
    "tile_product_float16": _PRODUCT.format(name="float16", kind="f16"),
    "tile_product_bfloat16": _PRODUCT.format(name="bfloat16", kind="bf16"),
}
