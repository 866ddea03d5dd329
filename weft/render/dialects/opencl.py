"""The table of OpenCL C 1.2, which every device of OpenCL 1.2 to 3.0 compiles.

A buffer is passed as a memory object and an offset into it: memory objects have no addresses that the host could add
to. Arrays of a workgroup are declared at the top of a kernel, as the language demands. Optional parts of the language
are not used, float64 excepted where the device has it: 16-bit floats are their bits in memory, converted by
`vload_half` and `vstore_half`, which need no support for computing with them.
"""

from __future__ import annotations

from dataclasses import replace

from weft.render.dialects.tables import Dialect

HEADER = """#pragma OPENCL FP_CONTRACT OFF
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif"""

COPY = "*({target_space} {vector}*)&{target} = *(const {source_space} {vector}*)&{source};"

OPENCL = Dialect(
    name="opencl",
    header=HEADER,
    kernel="__kernel __attribute__((reqd_work_group_size({threads}, 1, 1))) void {name}",
    function="static",
    outlined="__attribute__((noinline)) static",
    pointer="__global {type}* {name}_base, ulong {name}_at",
    bound="__global {type}* {name} = (__global {type}*)((__global char*){name}_base + {name}_at);",
    local="__local {type} {name}[{size}] __attribute__((aligned(16)));",
    private="{type} {name}[{size}] __attribute__((aligned(16)));",
    reserved=("half", "kernel", "global", "local", "constant", "private", "generic", "pipe", "uniform"),
    hoists_shared_arrays=True,
    spaces={"buffer": "__global", "workgroup": "__local", "lane": "__private"},
    copy=COPY,
    fetch=f"if ({{valid}} == {{count}} && ((ulong)&{{source}} & (sizeof({{vector}}) - 1)) == 0) {COPY} "
    "else for (int i = 0; i < {count}; i++) (&{target})[i] = i < {valid} ? (&{source})[i] : ({type})0;",
    fetch_near=COPY,
    exchange="",
    broadcast="",
    address="(ulong){name}",
    barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    lane="(int)get_local_id(0)",
    workgroup="(int)get_group_id(0)",
    workgroups="(int)get_num_groups(0)",
    types={
        "bool": "bool",
        "byte": "uchar",
        "uint8": "uchar",
        "uint16": "ushort",
        "uint32": "uint",
        "uint64": "ulong",
        "int8": "char",
        "int16": "short",
        "int32": "int",
        "int64": "long",
        "float16": "ushort",
        "bfloat16": "ushort",
        "float32": "float",
        "float64": "double",
    },
    suffixes={
        "uint8": "",
        "uint16": "",
        "uint32": "u",
        "uint64": "UL",
        "int8": "",
        "int16": "",
        "int32": "",
        "int64": "L",
        "float32": "f",
        "float64": "",
    },
    constants={
        "inf_float32": "as_float(0x7f800000)",
        "nan_float32": "as_float(0x7fc00000)",
        "inf_float64": "as_double(0x7ff0000000000000L)",
        "nan_float64": "as_double(0x7ff8000000000000L)",
    },
    calls={
        "fma_float32": "fma",
        "fma_float64": "fma",
        "sqrt_float32": "sqrt",
        "sqrt_float64": "sqrt",
        "floor_float32": "floor",
        "floor_float64": "floor",
        "abs_float32": "fabs",
        "abs_float64": "fabs",
        "mulhi_uint32": "mul_hi",
        "int32_float32": "as_int",
        "uint32_float32": "as_uint",
        "float32_int32": "as_float",
        "float32_uint32": "as_float",
        "int64_float64": "as_long",
        "uint64_float64": "as_ulong",
        "float64_int64": "as_double",
        "float64_uint64": "as_double",
    },
    functions={
        "float32_of_float16": "static float float32_of_float16(ushort a) { return vload_half(0, (const half*)&a); }",
        "float16_of_float32": "static ushort float16_of_float32(float a) "
        "{ ushort b; vstore_half_rte(a, 0, (half*)&b); return b; }",
    },
)

SUBGROUPS, SHUFFLES = "cl_khr_subgroups", "cl_khr_subgroup_shuffle"  # by which lanes of a subgroup exchange values
FIXED_SIZE = "cl_intel_required_subgroup_size"  # the extension by which a kernel has subgroups of one size


def with_subgroups(size: int) -> Dialect:
    """The table for devices with `SUBGROUPS` (part of the language in OpenCL C 3.0), `SHUFFLES` and `FIXED_SIZE`, with
    subgroups of so many lanes."""
    return replace(
        OPENCL,
        name=f"opencl_subgroups_{size}",
        header=f"{HEADER}\n#ifdef {SUBGROUPS}\n#pragma OPENCL EXTENSION {SUBGROUPS} : enable\n#endif",
        kernel=OPENCL.kernel.replace("__kernel ", f"__kernel __attribute__((intel_reqd_sub_group_size({size}))) "),
        exchange="({type})sub_group_shuffle_xor(({shuffled}){value}, (uint){distance})",
        broadcast="({type})sub_group_shuffle(({shuffled}){value}, (uint){number})",
    )


def with_ordered_loops(dialect: Dialect) -> Dialect:
    """The table for a compiler of LLVM's family that makes vectors of the iterations of a loop, and so adds in another
    order than the kernel says."""
    return replace(dialect, name=f"{dialect.name}_ordered", loop='_Pragma("clang loop vectorize(disable)") for')
