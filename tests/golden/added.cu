static __device__ inline long long mul_int64(long long a, long long b) { return (long long)((unsigned long long)a * (unsigned long long)b); }
static __device__ inline long long add_int64(long long a, long long b) { return (long long)((unsigned long long)a + (unsigned long long)b); }
template <class T, int N> struct alignas(N * sizeof(T)) Near { T at[N]; };
template <int N> struct alignas(2 * N) Near<unsigned short, N> { unsigned int at[N / 2]; };
template <class T, int N> static __device__ inline void copy_near(T* to, const T* from) { *(Near<T, N>*)to = *(const Near<T, N>*)from; }
static __device__ inline long long sub_int64(long long a, long long b) { return (long long)((unsigned long long)a - (unsigned long long)b); }
static __device__ inline long long max_int64(long long a, long long b) { return a > b ? a : b; }
static __device__ inline long long min_int64(long long a, long long b) { return a < b ? a : b; }

// added
extern "C" __global__ void __launch_bounds__(256) added_4ba5f921(const float* x, const float* y, const float* bias, float* out, long long begin, long long end)
{
    const long long t0 = mul_int64(begin, 96LL);
    const long long t1 = t0 >> 11LL;
    const long long t2 = mul_int64(end, 96LL);
    const long long t3 = add_int64(t2, 2047LL);
    const long long t4 = t3 >> 11LL;
    const bool t5 = (((unsigned long long)bias | (unsigned long long)y | (unsigned long long)x | (unsigned long long)out) & 15) == 0;
    {
        const int thread = (int)threadIdx.x;
        for (int tile = (int)t1 + (int)blockIdx.x; tile < (int)t4; tile += (int)gridDim.x) {
            const long long t6 = (long long)(tile * 2048);
            const bool t7 = t0 <= t6;
            const bool t8 = t5 & t7;
            const long long t9 = add_int64(t6, 2048LL);
            const bool t10 = t9 <= t2;
            const bool t11 = t8 & t10;
            if (t11) {
                alignas(16) float bias_near[8];
                alignas(16) float y_near[8];
                alignas(16) float x_near[8];
                alignas(16) float out_near[8];
                #pragma unroll
                for (int step = 0; step < 2; step++) {
                    copy_near<float, 4>(&bias_near[step * 4], &bias[((step * 256 + thread + tile * 512) % 24) * 4]);
                    copy_near<float, 4>(&y_near[step * 4], &y[step * 1024 + thread * 4 + tile * 2048]);
                    copy_near<float, 4>(&x_near[step * 4], &x[step * 1024 + thread * 4 + tile * 2048]);
                }
                #pragma unroll
                for (int step = 0; step < 2; step++) {
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t12 = x_near[near + step * 4];
                        const float t13 = y_near[near + step * 4];
                        const float t14 = bias_near[near + step * 4];
                        const float t15 = t13 * t14;
                        const float t16 = t12 + t15;
                        out_near[near + step * 4] = t16;
                    }
                }
                #pragma unroll
                for (int step = 0; step < 2; step++) {
                    copy_near<float, 4>(&out[step * 1024 + thread * 4 + tile * 2048], &out_near[step * 4]);
                }
            } else {
                for (int step = 0; step < 2; step++) {
                    const long long t17 = (long long)(step * 1024 + thread * 4 + tile * 2048);
                    const long long t18 = sub_int64(t0, t17);
                    const long long t19 = max_int64(t18, 0LL);
                    const long long t20 = sub_int64(t2, t17);
                    const long long t21 = min_int64(t20, 4LL);
                    const bool t22 = t19 < t21;
                    if (t22) {
                        for (int near = (int)t19; near < (int)t21; near++) {
                            const float t23 = x[near + step * 1024 + thread * 4 + tile * 2048];
                            const float t24 = y[near + step * 1024 + thread * 4 + tile * 2048];
                            const float t25 = bias[near + ((step * 256 + thread + tile * 512) % 24) * 4];
                            const float t26 = t24 * t25;
                            const float t27 = t23 + t26;
                            out[near + step * 1024 + thread * 4 + tile * 2048] = t27;
                        }
                    }
                }
            }
        }
    }
}
