// HIP on the CPU, for tests: the text of a kernel runs as it is. Each lane of a workgroup is a coroutine; workgroups run
// one after the other. Lanes meet at barriers, exchanges within a subgroup and products of the matrix units, whose
// operands lie as AMD's manuals of the instruction sets say. Instructions that are accurate to 1 ulp are wrong by that.
#include <cmath>
#include <csetjmp>
#include <cstring>
#include <ucontext.h>
#include <utility>

#define __global__
#define __device__
#define __shared__ static __attribute__((used))
#define __launch_bounds__(lanes)
#define __syncthreads() meet(workgroup_meeting)

const int MAX_LANES = 1024, POOL_BYTES = 1 << 16, EXCHANGED_BYTES = 64;

struct Number { unsigned x; };
struct Lane { jmp_buf place; ucontext_t start; bool is_started, is_done; };
struct Meeting { int members, arrived; unsigned round; };
struct Subgroup { Meeting meeting; alignas(16) unsigned char values[SUBGROUP_LANES][EXCHANGED_BYTES]; };

Number threadIdx, blockIdx, gridDim;
alignas(16) unsigned char pool[POOL_BYTES];
Lane all_lanes[MAX_LANES];
Subgroup subgroups[MAX_LANES / SUBGROUP_LANES];
Meeting workgroup_meeting;
jmp_buf scheduler;
int me;              // the lane that runs
bool has_progress;   // whether a lane arrived or ended since all lanes were asked the last time
const char* failure; // what a kernel did that hardware does not define

// --- lanes that wait for each other ---

// To the scheduler, and back when it is this lane's turn. Jumps ask nothing of the system, as `swapcontext` does.
void wait()
{
    if (!_setjmp(all_lanes[me].place)) _longjmp(scheduler, 1);
}

void resume(Lane& lane)
{
    if (_setjmp(scheduler)) return;
    if (lane.is_started) _longjmp(lane.place, 1);
    lane.is_started = true;
    setcontext(&lane.start);
}

void meet(Meeting& meeting)
{
    const unsigned round = meeting.round;
    has_progress = true;
    if (++meeting.arrived == meeting.members) {
        meeting.arrived = 0;
        meeting.round++;
    }
    while (meeting.round == round) wait();
}

// Calls `use` while the values of all lanes of the subgroup are there.
template <class T, class Use> auto with_all(const T& value, Use use)
{
    static_assert(sizeof(T) <= EXCHANGED_BYTES);
    Subgroup& subgroup = subgroups[me / SUBGROUP_LANES];
    memcpy(subgroup.values[me % SUBGROUP_LANES], &value, sizeof value);
    meet(subgroup.meeting);
    const auto found = use([&](int lane) {
        T other;
        memcpy(&other, subgroup.values[lane], sizeof other);
        return other;
    });
    meet(subgroup.meeting);
    return found;
}

template <class T> T __shfl(T value, int lane)
{
    return with_all(value, [&](auto value_of) { return value_of(lane & (SUBGROUP_LANES - 1)); });
}

template <class T> T __shfl_xor(T value, int distance) { return __shfl(value, me % SUBGROUP_LANES ^ distance); }

// --- single instructions ---

inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline int __float_as_int(float a) { return __builtin_bit_cast(int, a); }
inline unsigned __float_as_uint(float a) { return __builtin_bit_cast(unsigned, a); }
inline float __int_as_float(int a) { return __builtin_bit_cast(float, a); }
inline float __uint_as_float(unsigned a) { return __builtin_bit_cast(float, a); }
inline long long __double_as_longlong(double a) { return __builtin_bit_cast(long long, a); }
inline double __longlong_as_double(long long a) { return __builtin_bit_cast(double, a); }

// A number, the next one, or the one before.
inline float with_error(float a)
{
    const int bits = __float_as_int(a);
    return std::isnormal(a) ? __int_as_float(bits + (int)((unsigned)bits * 2654435761u >> 8) % 3 - 1) : a;
}

#define __builtin_amdgcn_sqrtf(a) with_error(__builtin_sqrtf(a))
#define __builtin_amdgcn_rcpf(a) with_error(1.0f / (a))

// --- matrix units ---

inline float number(_Float16 a) { return a; }
inline float number(short a) { return __uint_as_float((unsigned)(unsigned short)a << 16); }
template <class T> struct Operands { T a, b; };

// v_mfma_f32_16x16x16: lane l holds elements 4 (l / 16) to 4 (l / 16) + 3 along k of row l % 16 of A and of column l % 16
// of B, and rows 4 (l / 16) to 4 (l / 16) + 3 of column l % 16 of the sums.
template <class T, class Sums> Sums mfma(T a, T b, Sums sums)
{
    return with_all(Operands<T>{a, b}, [&](auto value_of) {
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 16; k++) {
                const T left = value_of(me % 64 / 16 * 4 + i + k / 4 * 16).a, right = value_of(me % 16 + k / 4 * 16).b;
                sums[i] += number(left[k % 4]) * number(right[k % 4]);
            }
        return sums;
    });
}

// v_wmma_f32_16x16x16 of subgroups of 32 lanes: lanes l and l + 16 hold row l of A and column l of B; lane l holds rows
// l / 16, l / 16 + 2, ... of column l % 16 of the sums.
template <class T, class Sums> Sums wmma(T a, T b, Sums sums)
{
    return with_all(Operands<T>{a, b}, [&](auto value_of) {
        const Operands<T> mine = value_of(me % 32), other = value_of(me % 32 ^ 16);
        if (memcmp(&mine, &other, sizeof mine)) failure = "both halves of a subgroup must hold the operands of WMMA";
        for (int i = 0; i < 8; i++)
            for (int k = 0; k < 16; k++)
                sums[i] += number(value_of(2 * i + me % 32 / 16).a[k]) * number(value_of(me % 16).b[k]);
        return sums;
    });
}

#define __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, sums, x, y, z) mfma(a, b, sums)
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, sums, x, y, z) mfma(a, b, sums)
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, sums) wmma(a, b, sums)
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, sums) wmma(a, b, sums)

// --- launches ---

template <class T> T read(const unsigned long long* word)
{
    T value;
    memcpy(&value, word, sizeof value);
    return value;
}

template <class... T, size_t... at>
void call(void (*kernel)(T...), const unsigned long long* words, std::index_sequence<at...>)
{
    kernel(read<T>(words + at)...);
}

struct Stacks { unsigned char* first; size_t nbytes; }; // of lanes, so many bytes each

// Runs a kernel with these arguments, a word each; returns what it did wrong, or null.
template <class... T>
const char* launch(
    void (*kernel)(T...), const unsigned long long* words, unsigned workgroups, unsigned lanes, Stacks stacks)
{
    static void (*current)(T...);
    static const unsigned long long* arguments;
    current = kernel, arguments = words, failure = nullptr, gridDim.x = workgroups;
    void (*start)() = [] {
        call(current, arguments, std::index_sequence_for<T...>{});
        all_lanes[me].is_done = has_progress = true;
        wait();
    };
    for (blockIdx.x = 0; blockIdx.x < workgroups && !failure; blockIdx.x++) {
        workgroup_meeting = {(int)lanes, 0, 0};
        for (unsigned first = 0; first < lanes; first += SUBGROUP_LANES) {
            const unsigned rest = lanes - first;
            subgroups[first / SUBGROUP_LANES].meeting = {(int)(rest < SUBGROUP_LANES ? rest : SUBGROUP_LANES), 0, 0};
        }
        for (unsigned lane = 0; lane < lanes; lane++) {
            Lane& one = all_lanes[lane];
            getcontext(&one.start);
            one.start.uc_stack.ss_sp = stacks.first + lane * stacks.nbytes;
            one.start.uc_stack.ss_size = stacks.nbytes;
            one.is_started = one.is_done = false;
            makecontext(&one.start, start, 0);
        }
        unsigned left = lanes;
        while (left && !failure) {
            has_progress = false, left = 0;
            for (unsigned lane = 0; lane < lanes; lane++) {
                if (all_lanes[lane].is_done) continue;
                me = lane, threadIdx.x = lane;
                resume(all_lanes[lane]);
                left += !all_lanes[lane].is_done;
            }
            if (left && !has_progress) failure = "not all lanes reach a barrier or an exchange";
        }
    }
    return failure;
}
