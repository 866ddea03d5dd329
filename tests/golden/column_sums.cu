static __device__ inline long long mul_int64(long long a, long long b) { return (long long)((unsigned long long)a * (unsigned long long)b); }
static __device__ inline long long min_int64(long long a, long long b) { return a < b ? a : b; }
static __device__ inline long long add_int64(long long a, long long b) { return (long long)((unsigned long long)a + (unsigned long long)b); }
static __device__ inline long long sub_int64(long long a, long long b) { return (long long)((unsigned long long)a - (unsigned long long)b); }
static __device__ inline long long max_int64(long long a, long long b) { return a > b ? a : b; }
template <class T, int N> struct alignas(N * sizeof(T)) Near { T at[N]; };
template <int N> struct alignas(2 * N) Near<unsigned short, N> { unsigned int at[N / 2]; };
template <class T, int N> static __device__ inline void copy_near(T* to, const T* from) { *(Near<T, N>*)to = *(const Near<T, N>*)from; }

// column_sums
extern "C" __global__ void __launch_bounds__(12) column_sums_92947245(const float* x, float* out, long long points, long long per_chunk, long long begin, long long end)
{
    __shared__ __align__(16) float float32_sums[48];
    const bool t0 = (((unsigned long long)x | (unsigned long long)out) & 15) == 0;
    {
        const int number = (int)threadIdx.x;
        const int member = (int)(number / 3);
        const long long t7 = (long long)member;
        const int thread = (int)(number % 3);
        const int t22 = (int)member;
        const bool t23 = t22 == 0;
        for (int task = (int)begin + (int)blockIdx.x; task < (int)end; task += (int)gridDim.x) {
            const long long t1 = (long long)task;
            const long long t2 = mul_int64(t1, per_chunk);
            const long long t3 = min_int64(t2, points);
            const long long t4 = add_int64(t3, per_chunk);
            const long long t5 = min_int64(t4, points);
            const long long t8 = add_int64(t3, t7);
            const long long t9 = sub_int64(t5, t8);
            const long long t10 = add_int64(t9, 3LL);
            const long long t11 = max_int64(t10, 0LL);
            const long long t12 = t11 >> 2LL;
            const int begun = (int)t8;
            if (t0) {
                alignas(16) float sum0[4];
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    sum0[near] = 0.0f;
                }
                for (int turn = 0; turn < (int)t12; turn++) {
                    alignas(16) float x_near[4];
                    copy_near<float, 4>(&x_near[0], &x[begun * 12 + thread * 4 + turn * 48]);
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t15 = x_near[near];
                        const float t16 = sum0[near];
                        const float t17 = t16 + t15;
                        sum0[near] = t17;
                    }
                }
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    const float t18 = sum0[near];
                    float32_sums[member * 12 + near + thread * 4] = t18;
                }
                __syncthreads();
                #pragma unroll
                for (int giver = 1; giver < 4; giver++) {
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t19 = sum0[near];
                        const float t20 = float32_sums[giver * 12 + near + thread * 4];
                        const float t21 = t19 + t20;
                        sum0[near] = t21;
                    }
                }
                if (t23) {
                    copy_near<float, 4>(&out[task * 12 + thread * 4], &sum0[0]);
                }
                __syncthreads();
            } else {
                alignas(16) float sum0[4];
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    sum0[near] = 0.0f;
                }
                for (int turn = 0; turn < (int)t12; turn++) {
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t24 = x[begun * 12 + near + thread * 4 + turn * 48];
                        const float t25 = sum0[near];
                        const float t26 = t25 + t24;
                        sum0[near] = t26;
                    }
                }
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    const float t27 = sum0[near];
                    float32_sums[member * 12 + near + thread * 4] = t27;
                }
                __syncthreads();
                #pragma unroll
                for (int giver = 1; giver < 4; giver++) {
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t28 = sum0[near];
                        const float t29 = float32_sums[giver * 12 + near + thread * 4];
                        const float t30 = t28 + t29;
                        sum0[near] = t30;
                    }
                }
                if (t23) {
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t31 = sum0[near];
                        out[near + task * 12 + thread * 4] = t31;
                    }
                }
                __syncthreads();
            }
        }
    }
}
