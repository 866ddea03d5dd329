"""CUDA functions between float32 and bfloat16, each the fewest instructions that there are for it.

`cvt.rn.bf16x2` rounds two numbers in one instruction; `cvt.rn.bf16`, for one of them, runs on the slow unit of special
functions. A register holds two bfloat16, of which each is a float32 after one operation on the whole register, but
compilers take two for the upper half if they are shown 16 bits of it.
"""

from __future__ import annotations

BFLOAT16 = {
    "round_bfloat16_float32": "static __device__ inline float round_bfloat16_float32(float a) "
    '{ unsigned int b; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(b) : "f"(a), "f"(0.0f)); '
    "return __uint_as_float(b); }",
    "widen_float32": "static __device__ inline float widen_float32(unsigned short a) "
    "{ return __uint_as_float((unsigned int)a << 16); }",
    "narrow_bfloat16": "static __device__ inline unsigned short narrow_bfloat16(float a) "
    "{ return (unsigned short)(__float_as_uint(a) >> 16); }",
    "widen_near": "static __device__ inline float widen_near(const unsigned short* a, int i) "
    "{ const unsigned int both = *(const unsigned int*)(a + (i & ~1)); "
    "return __uint_as_float(i & 1 ? both & 0xffff0000u : both << 16); }",
    "round": """template <int N> static __device__ inline void round_near(unsigned short* to, const float* from)
{
    struct alignas(2 * N) { unsigned int at[N / 2]; } both;
    #pragma unroll
    for (int i = 0; i < N / 2; i++)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both.at[i]) : "f"(from[2 * i + 1]), "f"(from[2 * i]));
    *(decltype(both)*)to = both;
}""",
}
