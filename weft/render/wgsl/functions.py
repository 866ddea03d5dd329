"""Helper functions in WGSL: what its operators leave undefined, conversions of 16-bit floats, float remainders."""

from __future__ import annotations

# Bodies by (operation, kind of dtype); {U} is the type of unsigned integers of its size, {bits} its size, {nan} the
# name of the test for NaN.
BODIES = {
    # Compared before they are cut to 32 bits; a negative number of bits is a large one.
    ("shl", "i"): "if (bitcast<{U}>(b) < {U}({bits}u)) {{ return a << u32(b); }} return {zero};",
    ("shr", "i"): "return a >> select({most}u, u32(b), bitcast<{U}>(b) < {U}({bits}u));",
    ("shl", "u"): "if (b < {U}({bits}u)) {{ return a << u32(b); }} return {zero};",
    ("shr", "u"): "if (b < {U}({bits}u)) {{ return a >> u32(b); }} return {zero};",
    ("max", "i"): "return select(b, a, a > b);",
    ("min", "i"): "return select(b, a, a < b);",
    ("max", "u"): "return select(b, a, a > b);",
    ("min", "u"): "return select(b, a, a < b);",
    ("max", "f"): "return select(b, a, (a > b) | {nan}(a));",
    ("min", "f"): "return select(b, a, (a < b) | {nan}(a));",
    ("div", "u"): "if (b == {zero}) {{ return {zero}; }} return a / b;",
    ("mod", "u"): "if (b == {zero}) {{ return {zero}; }} return a % b;",
    ("div", "i"): "if (b == {zero}) {{ return {zero}; }} if (b == {minus_one}) {{ return {zero} - a; }} "
    "let whole = a / b; return whole - select({zero}, {zero} - {minus_one}, (whole * b != a) & ((a ^ b) < {zero}));",
    # Vulkan leaves `%` of a negative number undefined.
    ("mod", "i"): "if ((b == {zero}) | (b == {minus_one})) {{ return {zero}; }} let rest = a - a / b * b; "
    "return select(rest, rest + b, (rest != {zero}) & ((rest ^ b) < {zero}));",
}  # fmt: skip

FUNCTIONS = {
    # ZERO is an u32 that is 0, which no compiler knows.
    "is_nan_float32": "fn is_nan_float32(a: f32) -> bool "
    "{ return ((bitcast<u32>(a) ^ ZERO) & 0x7fffffffu) > 0x7f800000u; }",
    "is_nan_float64": "fn is_nan_float64(a: f64) -> bool "
    "{ return ((bitcast<u64>(a) ^ u64(ZERO)) & 0x7ffffffffffffffflu) > 0x7ff0000000000000lu; }",
    # The product of two float32 is exact in float64; the sum is rounded once there and once to float32.
    "fma_fused": "fn fma_fused(a: f32, b: f32, c: f32) -> f32 { return f32(f64(a) * f64(b) + f64(c)); }",
    # What a quotient leaves of `a` says how far off it is, exactly where that is at most a unit: so twice. Not where
    # numbers are so small or large that a part of this is below the normal range.
    "div_rounded": """fn div_rounded(a: f32, b: f32) -> f32 {
    let first = hide_f32(hide_f32(a) / b);
    let inverse = 1.0f / b;
    let near = fma(fma(-first, b, a), inverse, first);
    let is_first_regular = (abs(first) > 1e-30f) & (abs(first) < 1e30f);
    let is_regular = is_first_regular & (abs(a) > 1e-30f) & (abs(b) > 1.2e-38f) & (abs(b) < 8e37f);
    return select(first, fma(fma(-near, b, a), inverse, near), is_regular);
}""",
    "sqrt_rounded": """fn sqrt_rounded(a: f32) -> f32 {
    let first = hide_f32(sqrt(a));
    let inverse = 0.5f / first;
    let near = fma(fma(-first, first, a), inverse, first);
    return select(first, fma(fma(-near, near, a), inverse, near), (a > 1e-30f) & (a < 1e38f));
}""",
    # Dekker's product and Knuth's sum: what each rounds off is added at the end.
    "fma_of_parts": """fn fma_of_parts(a: f32, b: f32, c: f32) -> f32 {
    let product = a * b;
    let is_near = (abs(a) <= 1e30f) & (abs(b) <= 1e30f);
    let is_regular = is_near & (abs(product) > 1e-30f) & (abs(product) < 1e38f);
    let a_high = bitcast<f32>(bitcast<u32>(a) & 0xfffff000u);
    let b_high = bitcast<f32>(bitcast<u32>(b) & 0xfffff000u);
    let a_low = hide_f32(a) - a_high;
    let b_low = hide_f32(b) - b_high;
    let first = hide_f32(a_high * b_high) - product;
    let second = hide_f32(first) + hide_f32(a_high * b_low);
    let third = hide_f32(second) + hide_f32(a_low * b_high);
    let error = hide_f32(third) + hide_f32(a_low * b_low);
    let total = hide_f32(product) + c;
    let added = hide_f32(total) - product;
    let left = hide_f32(total) - hide_f32(added);
    let lost = (product - hide_f32(left)) + (c - hide_f32(added));
    return select(product + c, total + (hide_f32(lost) + error), is_regular);
}""",
    # C's fmod: by subtraction of shifted integers, which is exact.
    "fmod_float32": """fn fmod_float32(a: f32, b: f32) -> f32 {
    let x = bitcast<u32>(a) & 0x7fffffffu;
    let y = bitcast<u32>(b) & 0x7fffffffu;
    if ((x >= 0x7f800000u) | (y > 0x7f800000u) | (y == 0u)) { return bitcast<f32>(0x7fc00000u); }
    if (x < y) { return a; }
    let low = max(i32(y >> 23u), 1);
    let divisor = select(y & 0x7fffffu, (y & 0x7fffffu) | 0x800000u, (y >> 23u) != 0u);
    var rest = select(x & 0x7fffffu, (x & 0x7fffffu) | 0x800000u, (x >> 23u) != 0u);
    for (var high = max(i32(x >> 23u), 1); high >= low; high--) {
        if (rest >= divisor) { rest -= divisor; }
        if (high > low) { rest = rest << 1u; }
    }
    let sign = bitcast<u32>(a) & 0x80000000u;
    if (rest == 0u) { return bitcast<f32>(sign); }
    let room = min(i32(countLeadingZeros(rest)) - 8, low - 1);
    let bits = rest << u32(room);
    let exponent = select(u32(low - room), 0u, bits < 0x800000u);
    return bitcast<f32>((bits & 0x7fffffu) | (exponent << 23u) | sign);
}""",
    "mod_large_float32": """fn mod_large_float32(needed: bool, ordinary: f32, a: f32, b: f32) -> f32 {
    if (!needed) { return ordinary; }
    let rest = fmod_float32(a, b);
    return select(rest, rest + b, !(rest == 0.0f) & ((rest < 0.0f) != (b < 0.0f)));
}""",
    "floor_divide_large_float32": """fn floor_divide_large_float32(needed: bool, ordinary: f32, a: f32, b: f32) -> f32 {
    if (!needed) { return ordinary; }
    let rest = fmod_float32(a, b);
    let ratio = divide(a, b);
    var quotient = divide(a - rest, b);
    if (!(rest == 0.0f) & ((rest < 0.0f) != (b < 0.0f))) { quotient -= 1.0f; }
    var whole = floor(quotient);
    if (0.5f < quotient - whole) { whole += 1.0f; }
    if (quotient == 0.0f) { whole = ratio * hide_f32(0.0f); }
    return select(whole, ratio, b == 0.0f);
}""",
    # Payne and Hanek's reduction: the quadrant, and the angle in it, at most pi/4.
    "reduce_angle": """const TWO_OVER_PI = array<u32, 6>(
    0x3c439041u, 0xdb629599u, 0xf534ddc0u, 0xfc2757d1u, 0x4e441529u, 0xa2f9836eu);

struct Angle { quadrant: u32, value: f32 }

fn reduce_angle(a: f32) -> Angle {
    let bits = bitcast<u32>(a);
    let exponent = ((bits >> 23u) & 0xffu) - 128u;  // of angles from 2 on
    let mantissa = (bits << 8u) | 0x80000000u;
    var table = TWO_OVER_PI;
    var product: array<u32, 7>;
    var carry = 0u;
    for (var i = 0; i < 6; i++) {
        let low = table[i] * mantissa + carry;
        carry = word_mulhi(table[i], mantissa) + u32(low < carry);
        product[i] = low;
    }
    product[6] = carry;
    let first = 4u - (exponent >> 5u);
    let shift = exponent & 31u;
    var high = product[first + 2u];
    var low = product[first + 1u];
    if (shift != 0u) {
        high = (high << shift) | (low >> (32u - shift));
        low = (low << shift) | (product[first] >> (32u - shift));
    }
    var quadrant = high >> 30u;
    high = (high << 2u) | (low >> 30u);
    low = low << 2u;
    let upper = high >> 31u;
    quadrant += upper;
    if (upper != 0u) {
        high = ~high;
        low = 0u - low;
        if (low == 0u) { high += 1u; }
    }
    let negative = (upper != 0u) != (bits >> 31u != 0u);
    if ((bits >> 31u) != 0u) { quadrant = 0u - quadrant; }
    var zeros = countLeadingZeros(high);
    if (zeros != 0u) { high = (high << zeros) | (low >> (32u - zeros)); }
    var size = word_mulhi(high, 0xc90fdaa2u);
    if (i32(size) > 0) {
        size = (size << 1u) | ((high * 0xc90fdaa2u) >> 31u);
        zeros += 1u;
    }
    let made = ((126u - zeros) << 23u) + ((((size + 1u) >> 7u) + 1u) >> 1u);
    return Angle(quadrant & 3u, bitcast<f32>(made | select(0u, 0x80000000u, negative)));
}""",
    "sine_of_quadrant": """fn sine_of_quadrant(quadrant: u32, a: f32) -> f32 {
    let square = a * a;
    let sine = fma(fma(fma(-1.9515295891e-4f, square, 8.3321608736e-3f), square, -1.6666654611e-1f) * square, a, a);
    let tail = fma(fma(2.443315711809948e-5f, square, -1.388731625493765e-3f), square, 4.166664568298827e-2f);
    let cosine = fma(tail * square, square, fma(-0.5f, square, 1.0f));
    let value = select(sine, cosine, (quadrant & 1u) != 0u);
    return select(value, -value, (quadrant & 2u) != 0u);
}""",
    "sin_large_float32": """fn sin_large_float32(needed: bool, ordinary: f32, a: f32) -> f32 {
    if (!needed) { return ordinary; }
    if ((bitcast<u32>(a) & 0x7fffffffu) >= 0x7f800000u) { return bitcast<f32>(0x7fc00000u); }
    let angle = reduce_angle(a);
    return sine_of_quadrant(angle.quadrant, angle.value);
}""",
    "cos_large_float32": """fn cos_large_float32(needed: bool, ordinary: f32, a: f32) -> f32 {
    if (!needed) { return ordinary; }
    if ((bitcast<u32>(a) & 0x7fffffffu) >= 0x7f800000u) { return bitcast<f32>(0x7fc00000u); }
    let angle = reduce_angle(a);
    return sine_of_quadrant(angle.quadrant + 1u, angle.value);
}""",
}
# What the functions above call.
CALLS = {
    "mod_large_float32": ("fmod_float32",),
    "floor_divide_large_float32": ("fmod_float32", "divide"),
    "reduce_angle": ("word_mulhi",),
    "sin_large_float32": ("reduce_angle", "sine_of_quadrant"),
    "cos_large_float32": ("reduce_angle", "sine_of_quadrant"),
}

FLOAT16 = {
    # To nearest, ties to even; 0.5 + a has the unit of the smallest float16 in its last place.
    "float16_of_float32": """fn float16_of_float32(a: f32) -> u32 {
    let bits = bitcast<u32>(a);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) { return sign | 0x7e00u; }
    if (size >= 0x47800000u) { return sign | 0x7c00u; }
    if (size < 0x38800000u) { return sign | (bitcast<u32>(bitcast<f32>(size) + 0.5f) - 0x3f000000u); }
    return sign | ((size + 0xc8000fffu + ((size >> 13u) & 1u)) >> 13u);
}""",
    "float32_of_float16": """fn float32_of_float16(a: u32) -> f32 {
    let sign = (a & 0x8000u) << 16u;
    let moved = (a & 0x7fffu) << 13u;
    let exponent = moved & 0x0f800000u;
    if (exponent == 0x0f800000u) { return bitcast<f32>(sign | (moved + 0x70000000u)); }
    if (exponent == 0u) {
        return bitcast<f32>(sign | bitcast<u32>(bitcast<f32>(moved + 0x38800000u) - 6.103515625e-05f));
    }
    return bitcast<f32>(sign | (moved + 0x38000000u));
}""",
    "bfloat16_of_float32": """fn bfloat16_of_float32(a: f32) -> u32 {
    let bits = bitcast<u32>(a);
    if ((bits & 0x7fffffffu) > 0x7f800000u) { return 0x7fc0u; }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}""",
}
