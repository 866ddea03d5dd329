static __device__ inline long long mul_int64(long long a, long long b) { return (long long)((unsigned long long)a * (unsigned long long)b); }
static __device__ inline long long add_int64(long long a, long long b) { return (long long)((unsigned long long)a + (unsigned long long)b); }
static __device__ inline long long min_int64(long long a, long long b) { return a < b ? a : b; }
template <class T, int N> struct alignas(N * sizeof(T)) Near { T at[N]; };
template <class T, int N> static __device__ inline void copy_near(T* to, const T* from) { *(Near<T, N>*)to = *(const Near<T, N>*)from; }

// column_sums
extern "C" __global__ void __launch_bounds__(256) column_sums_93c23613(const float* x, float* out, long long points, long long per_chunk, long long begin, long long end)
{
    const long long t0 = mul_int64(begin, 3LL);
    const long long t1 = mul_int64(end, 3LL);
    const bool t2 = (((unsigned long long)x | (unsigned long long)out) & 15) == 0;
    for (int i = (int)t0 + (int)blockIdx.x * 256 + (int)threadIdx.x; i < (int)t1; i += (int)gridDim.x * 256) {
        const long long t3 = (long long)(i / 3);
        const long long t4 = mul_int64(t3, per_chunk);
        const long long t5 = add_int64(t4, per_chunk);
        const long long t6 = min_int64(t5, points);
        if (t2) {
            alignas(16) float sum0[4];
            #pragma unroll
            for (int near = 0; near < 4; near++) {
                sum0[near] = 0.0f;
            }
            #pragma unroll 4
            for (int row = (int)t4; row < (int)t6; row++) {
                alignas(16) float x_near[4];
                copy_near<float, 4>(&x_near[0], &x[row * 12 + (i % 3) * 4]);
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    const float t7 = x_near[near];
                    const float t8 = sum0[near];
                    const float t9 = t8 + t7;
                    sum0[near] = t9;
                }
            }
            copy_near<float, 4>(&out[i * 4], &sum0[0]);
        } else {
            alignas(16) float sum0[4];
            #pragma unroll
            for (int near = 0; near < 4; near++) {
                sum0[near] = 0.0f;
            }
            #pragma unroll 4
            for (int row = (int)t4; row < (int)t6; row++) {
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    const float t10 = x[near + row * 12 + (i % 3) * 4];
                    const float t11 = sum0[near];
                    const float t12 = t11 + t10;
                    sum0[near] = t12;
                }
            }
            #pragma unroll
            for (int near = 0; near < 4; near++) {
                const float t13 = sum0[near];
                out[i * 4 + near] = t13;
            }
        }
    }
}
