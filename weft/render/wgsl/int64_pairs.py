"""64-bit integers in WGSL by pairs of 32-bit words: `vec2<u32>`, the low word first. Exact for every value.

`FUNCTIONS` are texts by name; `dependencies` says which others a text calls. Names end in `s` for signed and in `u` for
unsigned integers where the two differ. Division rounds down and gives 0 by zero, shifts beyond 63 bits give 0 or the
sign, casts from float32 truncate and saturate, casts to float32 round to nearest with ties to even.
"""

from __future__ import annotations

import re

FUNCTIONS = {
    "pair_add": "fn pair_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> "
    "{ let low = a.x + b.x; return vec2<u32>(low, a.y + b.y + u32(low < a.x)); }",
    "pair_sub": "fn pair_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> "
    "{ return vec2<u32>(a.x - b.x, a.y - b.y - u32(a.x < b.x)); }",
    "pair_neg": "fn pair_neg(a: vec2<u32>) -> vec2<u32> { return pair_sub(vec2<u32>(0u, 0u), a); }",
    "pair_abs": "fn pair_abs(a: vec2<u32>) -> vec2<u32> { if (i32(a.y) < 0) { return pair_neg(a); } return a; }",
    "word_mulhi": """fn word_mulhi(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let second = (a & 0xffffu) * (b >> 16u) + (first & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u);
}""",
    "pair_mul": "fn pair_mul(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> "
    "{ return vec2<u32>(a.x * b.x, word_mulhi(a.x, b.x) + a.x * b.y + a.y * b.x); }",
    "pair_eq": "fn pair_eq(a: vec2<u32>, b: vec2<u32>) -> bool { return (a.x == b.x) & (a.y == b.y); }",
    "pair_lt_s": "fn pair_lt_s(a: vec2<u32>, b: vec2<u32>) -> bool "
    "{ return (i32(a.y) < i32(b.y)) | ((a.y == b.y) & (a.x < b.x)); }",
    "pair_lt_u": "fn pair_lt_u(a: vec2<u32>, b: vec2<u32>) -> bool "
    "{ return (a.y < b.y) | ((a.y == b.y) & (a.x < b.x)); }",
    "pair_shl": """fn pair_shl(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    if ((b.y != 0u) | (b.x >= 64u)) { return vec2<u32>(0u, 0u); }
    if (b.x >= 32u) { return vec2<u32>(0u, a.x << (b.x - 32u)); }
    if (b.x == 0u) { return a; }
    return vec2<u32>(a.x << b.x, (a.y << b.x) | (a.x >> (32u - b.x)));
}""",
    "pair_shr_u": """fn pair_shr_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    if ((b.y != 0u) | (b.x >= 64u)) { return vec2<u32>(0u, 0u); }
    if (b.x >= 32u) { return vec2<u32>(a.y >> (b.x - 32u), 0u); }
    if (b.x == 0u) { return a; }
    return vec2<u32>((a.x >> b.x) | (a.y << (32u - b.x)), a.y >> b.x);
}""",
    "pair_shr_s": """fn pair_shr_s(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let sign = u32(i32(a.y) >> 31u);
    if ((b.y != 0u) | (b.x >= 64u)) { return vec2<u32>(sign, sign); }
    if (b.x >= 32u) { return vec2<u32>(u32(i32(a.y) >> (b.x - 32u)), sign); }
    if (b.x == 0u) { return a; }
    return vec2<u32>((a.x >> b.x) | (a.y << (32u - b.x)), u32(i32(a.y) >> b.x));
}""",
    # Quotient and remainder of unsigned integers, bit by bit; of 32-bit ones by the hardware.
    "pair_divmod": """fn pair_divmod(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
    if ((b.x | b.y) == 0u) { return vec4<u32>(0u, 0u, 0u, 0u); }
    if ((a.y | b.y) == 0u) { return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u); }
    var quotient = vec2<u32>(0u, 0u);
    var rest = vec2<u32>(0u, 0u);
    for (var i = 63; i >= 0; i--) {
        let carry = rest.y >> 31u;
        let bit = select((a.x >> u32(i & 31)) & 1u, (a.y >> u32(i & 31)) & 1u, i >= 32);
        rest = vec2<u32>((rest.x << 1u) | bit, (rest.y << 1u) | (rest.x >> 31u));
        if ((carry != 0u) | !pair_lt_u(rest, b)) {
            rest = pair_sub(rest, b);
            if (i >= 32) { quotient.y |= 1u << u32(i - 32); } else { quotient.x |= 1u << u32(i); }
        }
    }
    return vec4<u32>(quotient, rest);
}""",
    "pair_div_u": "fn pair_div_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return pair_divmod(a, b).xy; }",
    "pair_mod_u": "fn pair_mod_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return pair_divmod(a, b).zw; }",
    "pair_div_s": """fn pair_div_s(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let both = pair_divmod(pair_abs(a), pair_abs(b));
    if (((a.y ^ b.y) >> 31u) == 0u) { return both.xy; }
    let exact = (both.z | both.w) == 0u;
    return pair_sub(pair_neg(both.xy), vec2<u32>(select(1u, 0u, exact), 0u));
}""",
    "pair_mod_s": """fn pair_mod_s(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let rest = pair_divmod(pair_abs(a), pair_abs(b)).zw;
    if ((rest.x | rest.y) == 0u) { return rest; }
    let signed_rest = select(rest, pair_neg(rest), (a.y >> 31u) != 0u);
    if (((a.y ^ b.y) >> 31u) == 0u) { return signed_rest; }
    return pair_add(signed_rest, b);
}""",
    "pair_max_s": "fn pair_max_s(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, pair_lt_s(a, b)); }",
    "pair_min_s": "fn pair_min_s(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, pair_lt_s(a, b)); }",
    "pair_max_u": "fn pair_max_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, pair_lt_u(a, b)); }",
    "pair_min_u": "fn pair_min_u(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(b, a, pair_lt_u(a, b)); }",
    # The 24 highest bits, rounded, times a power of two, which is exact.
    "float32_of_pair_u": """fn float32_of_pair_u(a: vec2<u32>) -> f32 {
    if (a.y == 0u) { return float32_of_word(a.x); }
    let zeros = countLeadingZeros(a.y);
    let moved = pair_shl(a, vec2<u32>(zeros, 0u));
    let kept = moved.y >> 8u;
    let rest = moved.y & 0xffu;
    let up = (rest > 0x80u) | ((rest == 0x80u) & ((moved.x | (kept & 1u)) != 0u));
    return f32(kept + u32(up)) * bitcast<f32>((127u + 40u - zeros) << 23u);
}""",
    "float32_of_word": """fn float32_of_word(a: u32) -> f32 {
    if (a < 0x1000000u) { return f32(a); }
    let zeros = countLeadingZeros(a);
    let moved = a << zeros;
    let kept = moved >> 8u;
    let rest = moved & 0xffu;
    let up = (rest > 0x80u) | ((rest == 0x80u) & ((kept & 1u) != 0u));
    return f32(kept + u32(up)) * bitcast<f32>((127u + 8u - zeros) << 23u);
}""",
    "float32_of_pair_s": "fn float32_of_pair_s(a: vec2<u32>) -> f32 "
    "{ let size = float32_of_pair_u(pair_abs(a)); return select(size, -size, i32(a.y) < 0); }",
    "pair_of_size": """fn pair_of_size(bits: u32) -> vec2<u32> {
    let exponent = i32((bits >> 23u) & 0xffu) - 150;
    let mantissa = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
    if (exponent < -24) { return vec2<u32>(0u, 0u); }
    if (exponent < 0) { return pair_shr_u(mantissa, vec2<u32>(u32(-exponent), 0u)); }
    return pair_shl(mantissa, vec2<u32>(u32(exponent), 0u));
}""",
    "pair_of_float32_u": """fn pair_of_float32_u(a: f32) -> vec2<u32> {
    let bits = bitcast<u32>(a);
    if (((bits & 0x7fffffffu) > 0x7f800000u) | ((bits >> 31u) != 0u)) { return vec2<u32>(0u, 0u); }
    if (bits >= 0x5f800000u) { return vec2<u32>(0xffffffffu, 0xffffffffu); }
    return pair_of_size(bits);
}""",
    "pair_of_float32_s": """fn pair_of_float32_s(a: f32) -> vec2<u32> {
    let bits = bitcast<u32>(a);
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) { return vec2<u32>(0u, 0u); }
    let negative = (bits >> 31u) != 0u;
    if (size >= 0x5f000000u) {
        return select(vec2<u32>(0xffffffffu, 0x7fffffffu), vec2<u32>(0u, 0x80000000u), negative);
    }
    let found = pair_of_size(size);
    return select(found, pair_neg(found), negative);
}""",
}

_CALL = re.compile(r"\b(pair_\w+|word_\w+|float32_of_\w+)\(")


def dependencies(name: str) -> list[str]:
    """The functions that the text of `name` calls, itself left out."""
    called = dict.fromkeys(_CALL.findall(FUNCTIONS[name]))
    return [one for one in called if one != name]
