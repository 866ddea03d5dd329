"""The tables of `render.clike.module`: how one C-like language spells types, launches, shared memory and built-in
functions.

A table is all that differs between CUDA, HIP and OpenCL. Keys of `calls` and `constants` are `operation_dtype`, those
of bit casts `to_from`; what a table does not list is written in plain C by the renderer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.render.dialects.cuda_float16 import BFLOAT16
from weft.render.dialects.cuda_math import LOGISTIC, TANH
from weft.render.dialects.cuda_tiles import FETCH, FETCH_NEAR, FETCHED, TILES


@dataclass(frozen=True, slots=True)
class Dialect:
    """One C-like language. What names something in braces is a format; the rest is text put in as it is."""

    name: str
    header: str  # text before everything else
    kernel: str  # of {threads} lanes, {bounds}: these and the workgroups that share a processor, and {name}
    function: str  # how a helper function is declared
    pointer: str  # a parameter, of {type} and {name}
    local: str  # an array shared by a workgroup, of {type}, {name} and {size}
    copy: str  # {count} contiguous elements of {type} at once, from {source} to {target}; see `spaces`
    exchange: str  # the {value}, a {type}, of the lane of the subgroup whose number differs by xor {distance}; may be
    # exchanged as {shuffled}, which is never bool
    broadcast: str  # the {value} of the lane of the subgroup with this {number}
    address: str  # of the buffer {name}, as an integer
    barrier: str
    lane: str  # number of this lane in its workgroup
    workgroup: str  # number of this workgroup
    workgroups: str  # how many there are
    types: Mapping[str, str]  # by dtype, with 'byte' (a bool in memory); 16-bit floats are their bits
    suffixes: Mapping[str, str]  # of literals
    constants: Mapping[str, str]
    calls: Mapping[str, str]
    functions: Mapping[str, str]  # whole helpers: conversions of float16 by the hardware, copies, matrix units
    private: str = "{type} {name}[{size}];"  # an array of one lane
    outlined: str = ""  # how a function is declared that is called rarely; as `function` if empty
    unroll: str = "#pragma unroll"  # before a loop that is written out
    loop: str = "for"  # how a loop begins
    launched: str = "{type}* {name} = ({type}*)(pool + {offset});"  # an array in the memory asked for with a launch
    pool: str = ""  # that memory; empty where such arrays are declared as `local` ones are
    round: str = ""  # as `copy`, from float32 to bfloat16
    widen_near: str = ""  # element {index} of the array {buffer} of bfloat16, as float32
    fetch: str = ""  # begins to copy {count} elements, of which {valid} exist, from {source} to {target}
    fetch_near: str = ""  # as `fetch`, where all elements exist and the source is aligned to all of them; may be empty
    fetched: str = ""  # ends a group of what `fetch` began, and waits for all but the last {pending}
    bound: str = ""  # what makes {name} a pointer to {type} where a parameter is something else
    reserved: tuple[str, ...] = ()  # words that kernels may use as names and that are none: they are printed with a _
    hoists_shared_arrays: bool = False  # arrays of a workgroup are declared before everything else
    # Address spaces: {target_space} and {source_space} in `copy` and the like; {vector} there is {count} of {type}.
    spaces: Mapping[str, str] = field(default_factory=lambda: {"buffer": "", "workgroup": "", "lane": ""})


CUDA = Dialect(
    name="cuda",
    header="",
    kernel='extern "C" __global__ void __launch_bounds__({bounds}) {name}',
    function="static __device__ inline",
    outlined="static __device__ __noinline__",
    pointer="{type}* {name}",
    local="__shared__ __align__(16) {type} {name}[{size}];",
    private="alignas(16) {type} {name}[{size}];",
    copy="copy_near<{type}, {count}>(&{target}, &{source});",
    exchange="__shfl_xor_sync(0xffffffffu, {value}, {distance})",
    broadcast="__shfl_sync(0xffffffffu, {value}, {number})",
    address="(unsigned long long){name}",
    barrier="__syncthreads();",
    lane="(int)threadIdx.x",
    workgroup="(int)blockIdx.x",
    workgroups="(int)gridDim.x",
    types={
        "bool": "bool",
        "byte": "unsigned char",
        "uint8": "unsigned char",
        "uint16": "unsigned short",
        "uint32": "unsigned int",
        "uint64": "unsigned long long",
        "int8": "signed char",
        "int16": "short",
        "int32": "int",
        "int64": "long long",
        "float16": "unsigned short",
        "bfloat16": "unsigned short",
        "float32": "float",
        "float64": "double",
    },
    suffixes={
        "uint8": "",
        "uint16": "",
        "uint32": "u",
        "uint64": "ULL",
        "int8": "",
        "int16": "",
        "int32": "",
        "int64": "LL",
        "float32": "f",
        "float64": "",
    },
    constants={
        "inf_float32": "__int_as_float(0x7f800000)",
        "nan_float32": "__int_as_float(0x7fc00000)",
        "inf_float64": "__longlong_as_double(0x7ff0000000000000LL)",
        "nan_float64": "__longlong_as_double(0x7ff8000000000000LL)",
    },
    calls={
        "fma_float32": "fmaf",
        "fma_float64": "fma",
        "sqrt_float32": "sqrtf",
        "sqrt_float64": "sqrt",
        "floor_float32": "floorf",
        "floor_float64": "floor",
        "abs_float32": "fabsf",
        "abs_float64": "fabs",
        "exp_float32": "expf",
        "log_float32": "logf",
        "log1p_float32": "log1pf",
        "expm1_float32": "expm1f",
        "erf_float32": "erff",
        "mulhi_uint32": "__umulhi",
        "int32_float32": "__float_as_int",
        "uint32_float32": "__float_as_uint",
        "float32_int32": "__int_as_float",
        "float32_uint32": "__uint_as_float",
        "int64_float64": "__double_as_longlong",
        "float64_int64": "__longlong_as_double",
    },
    functions={
        # 16-bit elements move by words: one by one, they would be put together again in registers.
        "copy": "template <class T, int N> struct alignas(N * sizeof(T)) Near { T at[N]; };\n"
        "template <int N> struct alignas(2 * N) Near<unsigned short, N> { unsigned int at[N / 2]; };\n"
        "template <class T, int N> static __device__ inline void copy_near(T* to, const T* from) "
        "{ *(Near<T, N>*)to = *(const Near<T, N>*)from; }",
        "float32_of_float16": "static __device__ inline float float32_of_float16(unsigned short a) "
        '{ float b; asm("cvt.f32.f16 %0, %1;" : "=f"(b) : "h"(a)); return b; }',
        "float16_of_float32": "static __device__ inline unsigned short float16_of_float32(float a) "
        '{ unsigned short b; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(a)); return b; }',
        "max_float32": "static __device__ inline float max_float32(float a, float b) "
        '{ float c; asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }',
        "min_float32": "static __device__ inline float min_float32(float a, float b) "
        '{ float c; asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b)); return c; }',
        "exp_rounded_float32": "static __device__ inline float exp_rounded_float32(float a) "
        '{ float b; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(b) : "f"(a * 1.442695041f)); return b; }',
        "tanh_float32": TANH,
        "logistic_float32": LOGISTIC,
        **BFLOAT16,
        "fetch": FETCH,
        "fetch_near": FETCH_NEAR,
        **TILES,
    },
    pool="extern __shared__ __align__(16) unsigned char pool[];",
    round="round_near<{count}>(&{target}, &{source});",
    widen_near="widen_near({buffer}, {index})",
    fetch="fetch<{count}>(&{target}, &{source}, {valid});",
    fetch_near="fetch_near<{count}>(&{target}, &{source});",
    fetched=FETCHED,
)
