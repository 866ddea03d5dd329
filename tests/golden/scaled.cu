static __device__ inline long long mul_int64(long long a, long long b) { return (long long)((unsigned long long)a * (unsigned long long)b); }

// scaled
extern "C" __global__ void __launch_bounds__(256) scaled_84c09f71(const float* x, const float* bias, float* out, float scale, long long begin, long long end)
{
    const long long t0 = mul_int64(begin, 40LL);
    const long long t1 = mul_int64(end, 40LL);
    for (int i = (int)t0 + (int)blockIdx.x * 256 + (int)threadIdx.x; i < (int)t1; i += (int)gridDim.x * 256) {
        const float t2 = x[(i % 40) * 5 + (i / 40)];
        const float t3 = t2 * scale;
        const float t4 = bias[i % 40];
        const float t5 = t3 + t4;
        out[i] = t5;
    }
}
