// What HIP's own headers define, from compiler builtins alone: for architectures that the installed ROCm has no device
// library for. Functions of the library are declared, not defined.
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(lanes) __attribute__((amdgpu_flat_work_group_size(1, lanes)))
#define __syncthreads() do { __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); __builtin_amdgcn_s_barrier(); \
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup"); } while (0)

struct Workitem { __device__ __attribute__((always_inline)) operator unsigned() const { return __builtin_amdgcn_workitem_id_x(); } };
struct Workgroup { __device__ __attribute__((always_inline)) operator unsigned() const { return __builtin_amdgcn_workgroup_id_x(); } };
struct Workgroups { __device__ __attribute__((always_inline)) operator unsigned() const
    { return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(); } };
static const struct { Workitem x; } threadIdx;
static const struct { Workgroup x; } blockIdx;
static const struct { Workgroups x; } gridDim;

extern "C" __device__ double __ocml_sqrt_f64(double);
static __device__ inline double sqrt(double a) { return __ocml_sqrt_f64(a); }
static __device__ inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
static __device__ inline int __float_as_int(float a) { return __builtin_bit_cast(int, a); }
static __device__ inline unsigned __float_as_uint(float a) { return __builtin_bit_cast(unsigned, a); }
static __device__ inline float __int_as_float(int a) { return __builtin_bit_cast(float, a); }
static __device__ inline float __uint_as_float(unsigned a) { return __builtin_bit_cast(float, a); }
static __device__ inline long long __double_as_longlong(double a) { return __builtin_bit_cast(long long, a); }
static __device__ inline double __longlong_as_double(long long a) { return __builtin_bit_cast(double, a); }

template <class T> static __device__ inline T __shfl(T value, int lane)
{
    constexpr int count = (sizeof(T) + 3) / 4;
    int words[count] = {};
    __builtin_memcpy(words, &value, sizeof value);
    for (int i = 0; i < count; i++) words[i] = __builtin_amdgcn_ds_bpermute(lane << 2, words[i]);
    __builtin_memcpy(&value, words, sizeof value);
    return value;
}
template <class T> static __device__ inline T __shfl_xor(T value, int distance)
{
    return __shfl(value, (int)(__builtin_amdgcn_mbcnt_lo(~0u, 0u) ^ distance));
}
