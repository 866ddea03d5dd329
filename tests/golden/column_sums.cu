static __device__ inline long long mul_int64(long long a, long long b) { return (long long)((unsigned long long)a * (unsigned long long)b); }
static __device__ inline long long add_int64(long long a, long long b) { return (long long)((unsigned long long)a + (unsigned long long)b); }
static __device__ inline long long min_int64(long long a, long long b) { return a < b ? a : b; }

// column_sums
extern "C" __global__ void __launch_bounds__(256) column_sums_7fdd4ef9(const float* x, float* out, long long points, long long per_chunk, long long begin, long long end)
{
    const long long t0 = mul_int64(begin, 12LL);
    const long long t1 = mul_int64(end, 12LL);
    for (int i = (int)t0 + (int)blockIdx.x * 256 + (int)threadIdx.x; i < (int)t1; i += (int)gridDim.x * 256) {
        const long long t2 = (long long)(i / 12);
        const long long t3 = mul_int64(t2, per_chunk);
        const long long t4 = add_int64(t3, per_chunk);
        const long long t5 = min_int64(t4, points);
        float sum0 = 0.0f;
        #pragma unroll 16
        for (int row = (int)t3; row < (int)t5; row++) {
            const float t6 = x[row * 12 + (i % 12)];
            sum0 = t6 + sum0;
        }
        out[i] = sum0;
    }
}
