static __device__ inline float max_float32(float a, float b) { return a > b || a != a ? a : b; }

// normed
extern "C" __global__ void __launch_bounds__(256) normed_4c23e2a7(const float* x, float* out, float* out_max, long long begin, long long end)
{
    __shared__ __align__(16) float largest_all[256];
    __shared__ __align__(16) float largest_few[16];
    for (int row = (int)begin + (int)blockIdx.x; row < (int)end; row += (int)gridDim.x) {
        float largest_part = (-__int_as_float(0x7f800000));
        for (int r = (int)threadIdx.x; r < 500; r += 256) {
            const float t0 = x[r + row * 500];
            const float t1 = fabsf(t0);
            largest_part = max_float32(t1, largest_part);
        }
        {
            const int thread = (int)threadIdx.x;
            largest_all[thread] = largest_part;
        }
        __syncthreads();
        if ((int)threadIdx.x < 16) {
            const int thread = (int)threadIdx.x;
            float largest_group = (-__int_as_float(0x7f800000));
            for (int k = 0; k < 16; k++) {
                const float t2 = largest_all[k * 16 + thread];
                largest_group = max_float32(t2, largest_group);
            }
            largest_few[thread] = largest_group;
        }
        __syncthreads();
        float largest = (-__int_as_float(0x7f800000));
        for (int k = 0; k < 16; k++) {
            const float t3 = largest_few[k];
            largest = max_float32(t3, largest);
        }
        if ((int)threadIdx.x == 0) {
            out_max[row] = largest;
        }
        for (int r = (int)threadIdx.x; r < 500; r += 256) {
            const float t4 = x[r + row * 500];
            const float t5 = t4 / largest;
            out[r + row * 500] = t5;
        }
    }
}
