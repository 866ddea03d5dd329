template <class T, int N> struct alignas(N * sizeof(T)) Near { T at[N]; };
template <int N> struct alignas(2 * N) Near<unsigned short, N> { unsigned int at[N / 2]; };
template <class T, int N> static __device__ inline void copy_near(T* to, const T* from) { *(Near<T, N>*)to = *(const Near<T, N>*)from; }
static __device__ inline float max_float32(float a, float b) { float c; asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }

// normed_long
extern "C" __global__ void __launch_bounds__(512) normed_long_e3017a4e(const float* x, float* out, float* out_max, long long begin, long long end)
{
    __shared__ __align__(16) float largest_groups[16];
    const bool t0 = (((unsigned long long)x | (unsigned long long)out) & 15) == 0;
    {
        const int thread = (int)threadIdx.x;
        const int t14 = (int)(thread & 31);
        const bool t15 = t14 == 0;
        const int t25 = (int)thread;
        const bool t26 = t25 == 0;
        for (int row = (int)begin + (int)blockIdx.x; row < (int)end; row += (int)gridDim.x) {
            alignas(16) float x_near[12];
            if (t0) {
                #pragma unroll
                for (int step = 0; step < 3; step++) {
                    copy_near<float, 4>(&x_near[step * 4], &x[row * 6144 + step * 2048 + thread * 4]);
                }
            } else {
                #pragma unroll
                for (int step = 0; step < 3; step++) {
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t1 = x[near + row * 6144 + step * 2048 + thread * 4];
                        x_near[near + step * 4] = t1;
                    }
                }
            }
            float largest_part = (-__int_as_float(0x7f800000));
            #pragma unroll
            for (int step = 0; step < 3; step++) {
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    const float t2 = x_near[near + step * 4];
                    const float t3 = fabsf(t2);
                    largest_part = max_float32(t3, largest_part);
                }
            }
            const float t4 = __shfl_xor_sync(0xffffffffu, largest_part, 16);
            const float t5 = max_float32(largest_part, t4);
            const float t6 = __shfl_xor_sync(0xffffffffu, t5, 8);
            const float t7 = max_float32(t5, t6);
            const float t8 = __shfl_xor_sync(0xffffffffu, t7, 4);
            const float t9 = max_float32(t7, t8);
            const float t10 = __shfl_xor_sync(0xffffffffu, t9, 2);
            const float t11 = max_float32(t9, t10);
            const float t12 = __shfl_xor_sync(0xffffffffu, t11, 1);
            const float t13 = max_float32(t11, t12);
            if (t15) {
                largest_groups[thread >> 5] = t13;
            }
            __syncthreads();
            const float t16 = largest_groups[thread & 15];
            const float t17 = __shfl_xor_sync(0xffffffffu, t16, 8);
            const float t18 = max_float32(t16, t17);
            const float t19 = __shfl_xor_sync(0xffffffffu, t18, 4);
            const float t20 = max_float32(t18, t19);
            const float t21 = __shfl_xor_sync(0xffffffffu, t20, 2);
            const float t22 = max_float32(t20, t21);
            const float t23 = __shfl_xor_sync(0xffffffffu, t22, 1);
            const float t24 = max_float32(t22, t23);
            if (t26) {
                out_max[row] = t24;
            }
            alignas(16) float out_near[12];
            #pragma unroll
            for (int step = 0; step < 3; step++) {
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    const float t27 = x_near[near + step * 4];
                    const float t28 = t27 / t24;
                    out_near[near + step * 4] = t28;
                }
            }
            if (t0) {
                #pragma unroll
                for (int step = 0; step < 3; step++) {
                    copy_near<float, 4>(&out[row * 6144 + step * 2048 + thread * 4], &out_near[step * 4]);
                }
            } else {
                #pragma unroll
                for (int step = 0; step < 3; step++) {
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t29 = out_near[near + step * 4];
                        out[near + row * 6144 + step * 2048 + thread * 4] = t29;
                    }
                }
            }
            __syncthreads();
        }
    }
}
