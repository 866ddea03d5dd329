"""The table of HIP: CUDA's form of C++ as AMD's compiler takes it, for subgroups of 32 (gfx10 and newer) or 64 lanes.

A kernel is written with compiler builtins, so that it depends on no version of AMD's headers and device library; only
the square root of float64 comes from there, as old compilers round the builtin one wrongly. Exponential, logarithm and
the error function are those of `kernels.math`, whose accuracy is known. The second argument of `__launch_bounds__`
counts other things than CUDA's and is left out. There are no asynchronous copies: a lane copies itself.

HIP kernels have been compiled, and executed on a CPU by tests, never on an AMD GPU: there was none.
"""

from __future__ import annotations

from dataclasses import replace

from weft.render.dialects.hip_tiles import FETCH, FETCH_NEAR, MFMA, WMMA
from weft.render.dialects.tables import CUDA

# The instruction is accurate to 1 ulp: the rounded root is what it gives or one of the two neighbours of that, and the
# signs of residuals, which are exact, say which.
_SQRT = """static __device__ inline float sqrt_float32(float a)
{
    const bool is_small = a < 0x1p-96f;
    const float scaled = is_small ? a * 0x1p32f : a;
    float root = __builtin_amdgcn_sqrtf(scaled);
    const float below = __int_as_float(__float_as_int(root) - 1), above = __int_as_float(__float_as_int(root) + 1);
    const float rest_below = __builtin_fmaf(-below, root, scaled), rest_above = __builtin_fmaf(-above, root, scaled);
    root = rest_below <= 0.0f ? below : root;
    root = rest_above > 0.0f ? above : root;
    root = is_small ? root * 0x1p-16f : root;
    return a == 0.0f || a == __builtin_inff() ? a : root;
}"""

# The instructions for powers of two and reciprocals are accurate to 1 ulp, as CUDA's are to 2 and 1.
_EXP = """static __device__ inline float exp_rounded_float32(float a)
{ return __builtin_exp2f(a * 1.442695041f); }"""

_LOGISTIC = """static __device__ inline float logistic_float32(float a)
{ return __builtin_amdgcn_rcpf(__builtin_exp2f(a * -1.442695041f) + 1.0f); }"""

# As CUDA's (`cuda_math`): near 0 an odd polynomial, further out 1 - 2 / (e^2a + 1).
_TANH = """static __device__ inline float tanh_float32(float a)
{
    const float inverse = __builtin_amdgcn_rcpf(__builtin_exp2f(__builtin_fabsf(a) * 2.88539004f) + 1.0f);
    const float square = a * a;
    const float first = __builtin_fmaf(__builtin_fmaf(0.0157396831f, square, -0.0523039624f), square, 0.133152977f);
    const float tail = __builtin_fmaf(first, square, -0.333327681f) * square;
    const float far = __builtin_copysignf(__builtin_fmaf(inverse, -2.0f, 1.0f), a);
    return __builtin_fabsf(a) < 0.6f ? __builtin_fmaf(tail, a, a) : far;
}"""

_FLOAT16 = {
    "float32_of_float16": "static __device__ inline float float32_of_float16(unsigned short a) "
    "{ return (float)__builtin_bit_cast(_Float16, a); }",
    "float16_of_float32": "static __device__ inline unsigned short float16_of_float32(float a) "
    "{ return __builtin_bit_cast(unsigned short, (_Float16)a); }",
}

# The bits of bfloat16, as `kernels.math.float16` writes them; NaN stays a quiet NaN.
_ROUNDED = "a != a ? 0x7fc00000u : (bits + (((bits >> 16) & 1u) + 0x7fffu)) & 0xffff0000u"
_BFLOAT16 = {
    "round_bfloat16_float32": "static __device__ inline float round_bfloat16_float32(float a) "
    f"{{ const unsigned int bits = __float_as_uint(a); return __uint_as_float({_ROUNDED}); }}",
    "widen_float32": "static __device__ inline float widen_float32(unsigned short a) "
    "{ return __uint_as_float((unsigned int)a << 16); }",
    "narrow_bfloat16": "static __device__ inline unsigned short narrow_bfloat16(float a) "
    "{ return (unsigned short)(__float_as_uint(a) >> 16); }",
    "widen_near": "static __device__ inline float widen_near(const unsigned short* a, int i) "
    "{ return __uint_as_float((unsigned int)a[i] << 16); }",
    "round": f"""template <int N> static __device__ inline void round_near(unsigned short* to, const float* from)
{{
    struct alignas(2 * N) {{ unsigned int at[N / 2]; }} both;
    const auto rounded = [](float a) {{ const unsigned int bits = __float_as_uint(a); return {_ROUNDED}; }};
    #pragma unroll
    for (int i = 0; i < N / 2; i++) both.at[i] = rounded(from[2 * i]) >> 16 | rounded(from[2 * i + 1]);
    *(decltype(both)*)to = both;
}}""",
}

HIP = replace(
    CUDA,
    name="hip",
    kernel='extern "C" __global__ void __launch_bounds__({threads}) {name}',
    outlined="static __device__ __attribute__((noinline))",
    local="__shared__ __attribute__((aligned(16))) {type} {name}[{size}];",
    exchange="__shfl_xor({value}, {distance})",
    broadcast="__shfl({value}, {number})",
    calls={
        "fma_float32": "__builtin_fmaf",
        "fma_float64": "__builtin_fma",
        "sqrt_float64": "sqrt",
        "floor_float32": "__builtin_floorf",
        "floor_float64": "__builtin_floor",
        "abs_float32": "__builtin_fabsf",
        "abs_float64": "__builtin_fabs",
        "mulhi_uint32": "__umulhi",
        "int32_float32": "__float_as_int",
        "uint32_float32": "__float_as_uint",
        "float32_int32": "__int_as_float",
        "float32_uint32": "__uint_as_float",
        "int64_float64": "__double_as_longlong",
        "float64_int64": "__longlong_as_double",
    },
    functions={
        "copy": CUDA.functions["copy"],
        "sqrt_float32": _SQRT,
        "exp_rounded_float32": _EXP,
        "tanh_float32": _TANH,
        "logistic_float32": _LOGISTIC,
        **_FLOAT16,
        **_BFLOAT16,
        "fetch": FETCH,
        "fetch_near": FETCH_NEAR,
    },
    pool="extern __shared__ __attribute__((aligned(16))) unsigned char pool[];",
    fetched="",
)
HIP_MFMA = replace(HIP, functions={**HIP.functions, **MFMA})  # gfx90a and newer of the kind
HIP_WMMA = replace(HIP, functions={**HIP.functions, **WMMA})  # gfx11
