static __device__ inline long long mul_int64(long long a, long long b) { return (long long)((unsigned long long)a * (unsigned long long)b); }
template <class T, int N> struct alignas(N * sizeof(T)) Near { T at[N]; };
template <int N> struct alignas(2 * N) Near<unsigned short, N> { unsigned int at[N / 2]; };
template <class T, int N> static __device__ inline void copy_near(T* to, const T* from) { *(Near<T, N>*)to = *(const Near<T, N>*)from; }
static __device__ inline float max_float32(float a, float b) { float c; asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }

// normed
extern "C" __global__ void __launch_bounds__(256) normed_8d5a77e5(const float* x, float* out, float* out_max, long long begin, long long end)
{
    const long long t0 = mul_int64(begin, 32LL);
    const long long t1 = mul_int64(end, 32LL);
    const bool t2 = (((unsigned long long)x | (unsigned long long)out) & 15) == 0;
    for (int i = (int)t0 + (int)blockIdx.x * 256 + (int)threadIdx.x; i < (int)t1; i += (int)gridDim.x * 256) {
        alignas(16) float x_near[16];
        const int row = (int)(i >> 5);
        const int thread = (int)(i & 31);
        if (t2) {
            #pragma unroll
            for (int step = 0; step < 3; step++) {
                copy_near<float, 4>(&x_near[step * 4], &x[row * 500 + step * 128 + thread * 4]);
            }
            {
                const int step = 3;
                const int t5 = (int)(step * 128 + thread * 4);
                const bool t6 = t5 < 500;
                if (t6) {
                    copy_near<float, 4>(&x_near[step * 4], &x[row * 500 + step * 128 + thread * 4]);
                }
            }
        } else {
            #pragma unroll
            for (int step = 0; step < 3; step++) {
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    const float t7 = x[near + row * 500 + step * 128 + thread * 4];
                    x_near[near + step * 4] = t7;
                }
            }
            {
                const int step = 3;
                const int t8 = (int)(step * 128 + thread * 4);
                const bool t9 = t8 < 500;
                if (t9) {
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t10 = x[near + row * 500 + step * 128 + thread * 4];
                        x_near[near + step * 4] = t10;
                    }
                }
            }
        }
        float largest_part = (-__int_as_float(0x7f800000));
        #pragma unroll
        for (int step = 0; step < 3; step++) {
            #pragma unroll
            for (int near = 0; near < 4; near++) {
                const float t11 = x_near[near + step * 4];
                const float t12 = fabsf(t11);
                largest_part = max_float32(t12, largest_part);
            }
        }
        {
            const int step = 3;
            const int t13 = (int)(step * 128 + thread * 4);
            const bool t14 = t13 < 500;
            if (t14) {
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    const float t15 = x_near[near + step * 4];
                    const float t16 = fabsf(t15);
                    largest_part = max_float32(t16, largest_part);
                }
            }
        }
        const float t17 = __shfl_xor_sync(0xffffffffu, largest_part, 16);
        const float t18 = max_float32(largest_part, t17);
        const float t19 = __shfl_xor_sync(0xffffffffu, t18, 8);
        const float t20 = max_float32(t18, t19);
        const float t21 = __shfl_xor_sync(0xffffffffu, t20, 4);
        const float t22 = max_float32(t20, t21);
        const float t23 = __shfl_xor_sync(0xffffffffu, t22, 2);
        const float t24 = max_float32(t22, t23);
        const float t25 = __shfl_xor_sync(0xffffffffu, t24, 1);
        const float t26 = max_float32(t24, t25);
        const int t27 = (int)thread;
        const bool t28 = t27 == 0;
        if (t28) {
            out_max[row] = t26;
        }
        alignas(16) float out_near[16];
        #pragma unroll
        for (int step = 0; step < 3; step++) {
            #pragma unroll
            for (int near = 0; near < 4; near++) {
                const float t29 = x_near[near + step * 4];
                const float t30 = t29 / t26;
                out_near[near + step * 4] = t30;
            }
        }
        {
            const int step = 3;
            const int t31 = (int)(step * 128 + thread * 4);
            const bool t32 = t31 < 500;
            if (t32) {
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    const float t33 = x_near[near + step * 4];
                    const float t34 = t33 / t26;
                    out_near[near + step * 4] = t34;
                }
            }
        }
        if (t2) {
            #pragma unroll
            for (int step = 0; step < 3; step++) {
                copy_near<float, 4>(&out[row * 500 + step * 128 + thread * 4], &out_near[step * 4]);
            }
            {
                const int step = 3;
                const int t35 = (int)(step * 128 + thread * 4);
                const bool t36 = t35 < 500;
                if (t36) {
                    copy_near<float, 4>(&out[row * 500 + step * 128 + thread * 4], &out_near[step * 4]);
                }
            }
        } else {
            #pragma unroll
            for (int step = 0; step < 3; step++) {
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    const float t37 = out_near[near + step * 4];
                    out[near + row * 500 + step * 128 + thread * 4] = t37;
                }
            }
            {
                const int step = 3;
                const int t38 = (int)(step * 128 + thread * 4);
                const bool t39 = t38 < 500;
                if (t39) {
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t40 = out_near[near + step * 4];
                        out[near + row * 500 + step * 128 + thread * 4] = t40;
                    }
                }
            }
        }
    }
}
