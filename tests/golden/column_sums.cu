static __device__ inline long long sub_int64(long long a, long long b) { return (long long)((unsigned long long)a - (unsigned long long)b); }
static __device__ inline long long mul_int64(long long a, long long b) { return (long long)((unsigned long long)a * (unsigned long long)b); }
static __device__ inline long long add_int64(long long a, long long b) { return (long long)((unsigned long long)a + (unsigned long long)b); }
static __device__ inline long long min_int64(long long a, long long b) { return a < b ? a : b; }
static __device__ inline long long max_int64(long long a, long long b) { return a > b ? a : b; }
template <class T, int N> struct alignas(N * sizeof(T)) Near { T at[N]; };
template <int N> struct alignas(2 * N) Near<unsigned short, N> { unsigned int at[N / 2]; };
template <class T, int N> static __device__ inline void copy_near(T* to, const T* from) { *(Near<T, N>*)to = *(const Near<T, N>*)from; }

// column_sums
extern "C" __global__ void __launch_bounds__(12) column_sums_7d8c38be(const float* x, float* out, long long points, long long per_chunk, long long begin, long long end)
{
    __shared__ __align__(16) float float32_sums[48];
    const bool t0 = (((unsigned long long)x | (unsigned long long)out) & 15) == 0;
    const long long t1 = sub_int64(per_chunk, 1LL);
    const long long t3 = mul_int64(t1, end);
    const long long t17 = mul_int64(end, 4LL);
    {
        const int number = (int)threadIdx.x;
        const int member = (int)(number / 3);
        const long long t11 = (long long)member;
        const long long t14 = mul_int64(t11, end);
        const int thread = (int)(number % 3);
        const int t29 = (int)member;
        const bool t30 = t29 == 0;
        for (int task = (int)begin + (int)blockIdx.x; task < (int)end; task += (int)gridDim.x) {
            const long long t2 = (long long)task;
            const long long t4 = add_int64(t2, t3);
            const long long t5 = sub_int64(t4, points);
            const long long t6 = min_int64(t5, 0LL);
            const long long t7 = max_int64(t6, (-1LL));
            const long long t8 = sub_int64(t1, t7);
            const long long t9 = add_int64(t8, 3LL);
            const long long t12 = sub_int64(t9, t11);
            const long long t13 = t12 >> 2LL;
            const long long t15 = add_int64(t2, t14);
            if (t0) {
                alignas(16) float sum0[4];
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    sum0[near] = 0.0f;
                }
                for (int turn = 0; turn < (int)t13; turn++) {
                    alignas(16) float x_near[4];
                    const long long t16 = (long long)turn;
                    const long long t18 = mul_int64(t16, t17);
                    const long long t19 = add_int64(t15, t18);
                    const int taken0 = (int)t19;
                    copy_near<float, 4>(&x_near[0], &x[taken0 * 12 + thread * 4]);
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t22 = x_near[near];
                        const float t23 = sum0[near];
                        const float t24 = t23 + t22;
                        sum0[near] = t24;
                    }
                }
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    const float t25 = sum0[near];
                    float32_sums[member * 12 + near + thread * 4] = t25;
                }
                __syncthreads();
                #pragma unroll
                for (int giver = 1; giver < 4; giver++) {
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t26 = sum0[near];
                        const float t27 = float32_sums[giver * 12 + near + thread * 4];
                        const float t28 = t26 + t27;
                        sum0[near] = t28;
                    }
                }
                if (t30) {
                    copy_near<float, 4>(&out[task * 12 + thread * 4], &sum0[0]);
                }
                __syncthreads();
            } else {
                alignas(16) float sum0[4];
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    sum0[near] = 0.0f;
                }
                for (int turn = 0; turn < (int)t13; turn++) {
                    const long long t31 = (long long)turn;
                    const long long t32 = mul_int64(t31, t17);
                    const long long t33 = add_int64(t15, t32);
                    const int taken0 = (int)t33;
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t35 = x[near + taken0 * 12 + thread * 4];
                        const float t36 = sum0[near];
                        const float t37 = t36 + t35;
                        sum0[near] = t37;
                    }
                }
                #pragma unroll
                for (int near = 0; near < 4; near++) {
                    const float t38 = sum0[near];
                    float32_sums[member * 12 + near + thread * 4] = t38;
                }
                __syncthreads();
                #pragma unroll
                for (int giver = 1; giver < 4; giver++) {
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t39 = sum0[near];
                        const float t40 = float32_sums[giver * 12 + near + thread * 4];
                        const float t41 = t39 + t40;
                        sum0[near] = t41;
                    }
                }
                if (t30) {
                    #pragma unroll
                    for (int near = 0; near < 4; near++) {
                        const float t42 = sum0[near];
                        out[near + task * 12 + thread * 4] = t42;
                    }
                }
                __syncthreads();
            }
        }
    }
}
