"""Kernels that copy or clear any number of bytes: WebGPU itself copies words of four.

A lane owns a word of the target and replaces those of its bytes that are inside.
"""

from __future__ import annotations

import zlib

from weft.kernels.ir.language import Geometry
from weft.plan.plan import Code

LANES = 64  # which every device has
WORDS_PER_LANE = 4  # at least, where there is much to copy
MAX_WORKGROUPS = 4096

_TEXT = """@group(0) @binding(0) var<uniform> arguments: array<vec4<u32>, {length}>;
@group(0) @binding(1) var<storage, read_write> to: array<u32>;
{source}
@compute @workgroup_size({lanes})
fn {name}(@builtin(global_invocation_id) lane: vec3<u32>, @builtin(num_workgroups) counts: vec3<u32>) {{
    let first = arguments[0].x;
    let end = first + {nbytes};
    for (var word = (first >> 2u) + lane.x; word << 2u < end; word += counts.x * {lanes}u) {{
        var made = to[word];
        for (var k = 0u; k < 4u; k++) {{
            let at = (word << 2u) + k;
            if ((at >= first) & (at < end)) {{
                made = insertBits(made, {byte}, 8u * k, 8u);
            }}
        }}
        to[word] = made;
    }}
}}
"""


def _code(name: str, buffers: int, nbytes: str, source: str, byte: str) -> Code:
    text = _TEXT.format(
        name=name, length=buffers // 2 + 1, lanes=LANES, source=source, nbytes=nbytes, byte=byte
    )  # fmt: skip
    return Code(name, name, (), Geometry(LANES, 1), zlib.compress(text.encode(), 1))


# The words of CODE: offset of the target, offset of the source, number of bytes; of CLEAR: offset, number of bytes.
_BYTE = "(source[(arguments[0].z + at - first) >> 2u] >> (8u * ((arguments[0].z + at - first) & 3u))) & 255u"
_SOURCE = "@group(0) @binding(2) var<storage, read_write> source: array<u32>;"
CODE = _code("copy_bytes", 2, "arguments[1].x", _SOURCE, _BYTE)
CLEAR = _code("clear_bytes", 1, "arguments[0].z", "", "0u")


def workgroups(nbytes: int) -> int:
    """Of a launch that copies so many bytes."""
    return min(max(-(-nbytes // (4 * LANES * WORDS_PER_LANE)), 1), MAX_WORKGROUPS)
