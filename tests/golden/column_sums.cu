static __device__ inline long long mul_int64(long long a, long long b) { return (long long)((unsigned long long)a * (unsigned long long)b); }
static __device__ inline long long min_int64(long long a, long long b) { return a < b ? a : b; }
static __device__ inline long long add_int64(long long a, long long b) { return (long long)((unsigned long long)a + (unsigned long long)b); }
template <class T, int N> struct alignas(N * sizeof(T)) Near { T at[N]; };
template <int N> struct alignas(2 * N) Near<unsigned short, N> { unsigned int at[N / 2]; };
template <class T, int N> static __device__ inline void copy_near(T* to, const T* from) { *(Near<T, N>*)to = *(const Near<T, N>*)from; }

// column_sums
extern "C" __global__ void __launch_bounds__(32) column_sums_88aeb1a9(const float* x, float* out, long long points, long long per_chunk, long long begin, long long end)
{
    const bool t2 = (((unsigned long long)x | (unsigned long long)out) & 15) == 0;
    {
        const int thread = (int)threadIdx.x;
        const int t0 = (int)thread;
        const bool t1 = t0 < 3;
        for (int task = (int)begin + (int)blockIdx.x; task < (int)end; task += (int)gridDim.x) {
            const long long t3 = (long long)task;
            const long long t4 = mul_int64(t3, per_chunk);
            const long long t5 = min_int64(t4, points);
            const long long t6 = add_int64(t5, per_chunk);
            const long long t7 = min_int64(t6, points);
            if (t1) {
                if (t2) {
                    alignas(16) float sum0[4];
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        sum0[near] = 0.0f;
                    }
                    for (int row = (int)t5; row < (int)t7; row++) {
                        alignas(16) float x_near[4];
                        copy_near<float, 4>(&x_near[0], &x[row * 12 + thread * 4]);
                        #pragma unroll
                        for (int near = 0; near < 4; near++) {
                            const float t8 = x_near[near];
                            const float t9 = sum0[near];
                            const float t10 = t9 + t8;
                            sum0[near] = t10;
                        }
                    }
                    copy_near<float, 4>(&out[task * 12 + thread * 4], &sum0[0]);
                } else {
                    alignas(16) float sum0[4];
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        sum0[near] = 0.0f;
                    }
                    for (int row = (int)t5; row < (int)t7; row++) {
                        #pragma unroll
                        for (int near = 0; near < 4; near++) {
                            const float t11 = x[near + row * 12 + thread * 4];
                            const float t12 = sum0[near];
                            const float t13 = t12 + t11;
                            sum0[near] = t13;
                        }
                    }
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t14 = sum0[near];
                        out[near + task * 12 + thread * 4] = t14;
                    }
                }
            }
        }
    }
}
