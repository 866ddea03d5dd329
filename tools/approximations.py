"""The numbers in `weft/ops/approximations.py`: polynomials that approximate special functions, fitted by mpmath.

    python tools/approximations.py

writes the file. Every fit interpolates at Chebyshev nodes with as many terms as a dtype needs, and is kept in powers of
its variable (Horner's rule) or, where these would cancel, as a Chebyshev series (Clenshaw's rule). The variable never
reaches the ends of its interval there, so limits need no case.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mpmath as mp

mp.mp.dps = 50
ROOT = Path(__file__).resolve().parents[1]
TERMS = 64  # of the series that is cut
CUT = {"float32": mp.mpf(2) ** -28, "float64": mp.mpf(2) ** -57}  # relative to the largest value

Function = Callable[[mp.mpf], mp.mpf]


def chebyshev(function: Function, low: float, high: float) -> list[mp.mpf]:
    """The coefficients of the Chebyshev series of a function between two numbers."""
    middle, half = (mp.mpf(high) + low) / 2, (mp.mpf(high) - low) / 2
    angles = [mp.pi * (k + mp.mpf(1) / 2) / TERMS for k in range(TERMS)]
    values = [function(middle + half * mp.cos(angle)) for angle in angles]
    sums = [mp.fsum(v * mp.cos(n * a) for v, a in zip(values, angles, strict=True)) for n in range(TERMS)]
    return [sums[0] / TERMS, *[2 * s / TERMS for s in sums[1:]]]


def shortened(series: list[mp.mpf], cut: mp.mpf) -> list[mp.mpf]:
    """The first terms of a series, up to the last that matters."""
    size = mp.fsum(abs(term) for term in series)
    last = max(n for n, term in enumerate(series) if abs(term) > cut * size)
    return series[: last + 1]


def powers(series: list[mp.mpf], low: float, high: float) -> list[mp.mpf]:
    """A Chebyshev series as coefficients of 1, x, x^2, ..."""
    before: list[mp.mpf] = [mp.mpf(1)]
    now: list[mp.mpf] = [-(mp.mpf(high) + low) / (mp.mpf(high) - low), 2 / (mp.mpf(high) - low)]
    step = list(now)
    total = [mp.mpf(0)] * len(series)
    for term in series:
        for power, factor in enumerate(before):
            total[power] += term * factor
        following = [mp.mpf(0)] * (len(now) + 1)
        for power, factor in enumerate(now):
            following[power] += 2 * step[0] * factor
            following[power + 1] += 2 * step[1] * factor
        for power, factor in enumerate(before):
            following[power] -= factor
        before, now = now, following
    return total


def arctangent(z: mp.mpf) -> mp.mpf:
    """atan(x) / x of z = x^2."""
    return mp.atan(mp.sqrt(z)) / mp.sqrt(z)


def scaled_erfc(q: mp.mpf) -> mp.mpf:
    """(1 + 2x) exp(x^2) erfc(x) of q = (x - 4) / (x + 4)."""
    x = 4 * (1 + q) / (1 - q)
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def log_gamma(t: mp.mpf) -> mp.mpf:
    """log(gamma(2 + t)) / t."""
    return mp.loggamma(2 + t) / t


def inverse_erf(w: mp.mpf) -> mp.mpf:
    """erfinv(x) / x of w = -log(1 - x^2)."""
    x = mp.sqrt(-mp.expm1(-w))
    rest = mp.exp(-w) / (1 + x)  # 1 - x
    start = mp.sqrt(w) if w > 4 else mp.sqrt(mp.pi) / 2 * x
    root = mp.findroot(lambda y: mp.log(mp.erfc(y)) - mp.log(rest), start)
    return root / x


def bessel(order: int, ends: bool) -> Function:
    """exp(-x) I(x), over x for order 1; beyond 8 times sqrt(x), of 16 / x - 1."""

    def near(x: mp.mpf) -> mp.mpf:
        return mp.exp(-x) * mp.besseli(order, x) / (x if order else 1)

    def far(q: mp.mpf) -> mp.mpf:
        x = 16 / (q + 1)
        return mp.exp(-x) * mp.sqrt(x) * mp.besseli(order, x)

    return far if ends else near


# name: function, from, to, whether in powers of the variable
FITS: dict[str, tuple[Function, float, float, bool]] = {
    "ARCTANGENT": (arctangent, 0.0, 0.1716, True),
    "SCALED_ERFC": (scaled_erfc, -1.0, 1.0, True),
    "LOG_GAMMA": (log_gamma, -0.5, 1.0, True),
    "INVERSE_ERF_CENTRAL": (inverse_erf, 0.0, 6.25, False),
    "INVERSE_ERF_OUTER": (lambda r: inverse_erf(r * r), 2.5, 6.125, False),
    "INVERSE_ERF_EXTREME": (lambda r: inverse_erf(r * r), 6.125, 27.375, False),
    "BESSEL_0_NEAR": (bessel(0, False), 0.0, 8.0, False),
    "BESSEL_0_FAR": (bessel(0, True), -1.0, 1.0, False),
    "BESSEL_1_NEAR": (bessel(1, False), 0.0, 8.0, False),
    "BESSEL_1_FAR": (bessel(1, True), -1.0, 1.0, False),
}


def text() -> str:
    lines = [
        '"""Polynomials that approximate special functions, by dtype; written by `python tools/approximations.py`,',
        'which says what they are of."""',
        "",
        "# fmt: off",
    ]
    for name, (function, low, high, in_powers) in FITS.items():
        series = chebyshev(function, low, high)
        lines.append(f"{name} = {{")
        for dtype, cut in CUT.items():
            kept = shortened(series, cut)
            numbers = powers(kept, low, high) if in_powers else kept
            rows = [", ".join(repr(float(one)) for one in numbers[at : at + 4]) for at in range(0, len(numbers), 4)]
            lines += [f'    "{dtype}": (', *[f"        {row}," for row in rows], "    ),"]
        lines.append("}")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    (ROOT / "weft" / "ops" / "approximations.py").write_text(text())
