"""Functions of float32 in CUDA, where those that come with it do more than is needed."""

from __future__ import annotations

# tanhf, to the same bits up to 9, where it begins to ask whether the result is 1: what follows from an infinite power
# is 1 anyway. Near 0 an odd polynomial, further out 1 - 2 / (e^2a + 1) from the approximations of the hardware. Both
# are computed and one instruction is left out; a compiler that sees the choice makes branches of it.
TANH = """static __device__ inline float tanh_float32(float a)
{
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(fabsf(a) * 2.88539004f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.0f));
    const float square = a * a;
    const float first = fmaf(fmaf(0.0157396831f, square, -0.0523039624f), square, 0.133152977f);
    const float tail = fmaf(first, square, -0.333327681f) * square;
    float result = copysignf(fmaf(inverse, -2.0f, 1.0f), a);
    asm("{ .reg .pred near; setp.lt.f32 near, %1, 0f3F19999A; @near fma.rn.f32 %0, %2, %3, %3; }"
        : "+f"(result) : "f"(fabsf(a)), "f"(tail), "f"(a));
    return result;
}"""

LOGISTIC = """static __device__ inline float logistic_float32(float a)
{
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(a * -1.442695041f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.0f));
    return inverse;
}"""
