"""The layout of float32 and float64, and the coefficients and limits of `kernels.math.functions` for each."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from weft.base import dtypes
from weft.base.dtypes import DType


@dataclass(frozen=True, slots=True, eq=False)
class FloatFormat:
    """Layout and constants of one float dtype. `magic` rounds to an integer when added: 1.5 * 2**mantissa."""

    real: DType
    whole: DType
    mantissa: int
    bias: int
    magic_bits: int
    sign_bit: int
    ln2: tuple[float, float]
    half_pi: tuple[float, float, float]
    angle_limit: float  # up to which `half_pi` is precise enough
    quotient_limit: float  # below which a rounded quotient is less than 1 off
    exp_limit: float  # beyond it exp is 0 or inf; both powers of two that scale the result stay in range
    expm1_range: tuple[float, float]
    exp: tuple[float, ...]  # (exp(r) - 1 - r) / r**2 for abs(r) < 0.35
    expm1: tuple[float, ...]  # the same, weighted for a small relative error of exp(r) - 1
    log: tuple[float, ...]
    atanh: tuple[float, ...]  # (atanh(s) - s) / s**3 in s**2, for pow
    sin: tuple[float, ...]  # (sin(r) - r) / r**3 in r**2 for abs(r) <= 0.8
    cos: tuple[float, ...]  # (cos(r) - 1 + r**2 / 2) / r**4 in r**2
    erf_small: tuple[float, ...]  # erf(x)/x - 1 in x**2
    erf_large: tuple[float, ...]  # log(erfc(x)) in x - erf_shift
    erf_split: float
    erf_shift: float
    erf_end: float

    @property
    def magic(self) -> float:
        return 1.5 * 2.0**self.mantissa


def bits_of(value: float, dtype: DType) -> int:
    """The bits of a float as a signed integer."""
    real, whole = ("<f", "<i") if dtype is dtypes.float32 else ("<d", "<q")
    return int(struct.unpack(whole, struct.pack(real, value))[0])


FORMATS = {
    dtypes.float32: FloatFormat(
        real=dtypes.float32,
        whole=dtypes.int32,
        mantissa=23,
        bias=127,
        magic_bits=bits_of(1.5 * 2.0**23, dtypes.float32),
        sign_bit=-(2**31),
        ln2=(0.6931471824645996, -1.9046542121259336e-09),
        half_pi=(1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
        angle_limit=1e5,
        quotient_limit=2.0**22,
        exp_limit=150.0,
        expm1_range=(-20.0, 88.8),
        exp=(0.0013951819, 0.008369599, 0.041666187, 0.16666512, 0.5),
        expm1=(0.00019915654, 0.0013942047, 0.00833327, 0.041666344, 0.16666667, 0.5),
        log=(
            0.069154054, -0.11789809, 0.118729606, -0.12384348, 0.14218661, -0.16669251, 0.20002227, -0.24999987,
            0.3333331,
        ),
        atanh=(0.11791066, 0.14268655, 0.20000167, 0.3333333),
        sin=(-0.00019505239, 0.00833209, -0.16666654),
        cos=(2.4424933e-05, -0.0013887252, 0.041666646),
        erf_small=(8.3451974e-05, -0.0008137431, 0.005200634, -0.02685927, 0.11283694, -0.37612635, 0.12837917),
        erf_large=(
            -2.1162428e-05, 0.0004352243, -0.004174667, 0.025128681, -0.108294025, -0.6333346, -1.1295209,
            0.00017588028,
        ),
        erf_split=0.925,
        erf_shift=0.0,
        erf_end=4.0,
    ),
    dtypes.float64: FloatFormat(
        real=dtypes.float64,
        whole=dtypes.int64,
        mantissa=52,
        bias=1023,
        magic_bits=bits_of(1.5 * 2.0**52, dtypes.float64),
        sign_bit=-(2**63),
        ln2=(0.6931471805599453, 2.3190468138462996e-17),
        half_pi=(1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
        angle_limit=1e9,
        quotient_limit=2.0**51,
        exp_limit=1000.0,
        expm1_range=(-45.0, 709.8),
        exp=(
            2.5119202887247054e-08, 2.763275339859911e-07, 2.7557212051874097e-06, 2.4801486027720927e-05,
            0.00019841269922150554, 0.0013888888950554827, 0.008333333333305, 0.041666666666503024,
            0.16666666666666702, 0.5000000000000014,
        ),
        expm1=(
            2.0925427445416795e-09, 2.5110178924718946e-08, 2.7557239555259236e-07, 2.755724116402536e-06,
            2.4801587364330254e-05, 0.00019841269888892866, 0.0013888888888864913, 0.008333333333320654,
            0.041666666666666706, 0.16666666666666677, 0.5,
        ),
        log=(
            0.13251168143544645, 0.13250135756858736, 0.15387089978872454, 0.18181775683268303, 0.222222226465751,
            0.2857142856908736, 0.4000000000000624, 0.6666666666666666,
        ),
        atanh=(
            0.055257338912245005, 0.05208554457105544, 0.05884524766193556, 0.06666613437861883, 0.07692308525456432,
            0.09090909082587402, 0.11111111111162462, 0.14285714285714105, 0.2, 0.3333333333333333,
        ),
        sin=(
            1.5890770291493316e-10, -2.5050655792262466e-08, 2.7557313050788292e-06, -0.00019841269828002413,
            0.008333333333320222, -0.16666666666666624,
        ),
        cos=(
            -1.1355521547097425e-11, 2.08756449355376e-09, -2.755731378773466e-07, 2.480158728757547e-05,
            -0.001388888888887116, 0.04166666666666658,
        ),
        erf_small=(
            -4.233124650461926e-12, 8.710461937312833e-11, -1.21649675634089e-09, 1.4792469453107219e-08,
            -1.636464952888257e-07, 1.6462045978746048e-06, -1.4925647594397373e-05, 0.00012055332903808763,
            -0.0008548327021955926, 0.005223977625423609, -0.026866170645129868, 0.1128379167095512,
            -0.37612638903183754, 0.1283791670955126,
        ),
        erf_large=(
            5.472521850112677e-15, 2.7018542909400737e-14, -7.870650057252259e-14, -5.622219319592156e-13,
            -6.861434878828996e-13, 7.629673858473253e-12, 7.521942009543411e-13, 9.986506508675787e-12,
            -9.473829069886617e-11, -7.668977945178109e-10, 9.75359007677685e-09, -8.052373753623023e-08,
            5.853103849130134e-07, -3.890042374694577e-06, 2.4386414187396908e-05, -0.0001472973021216771,
            0.0008736875680998588, -0.005225658319050314, -0.9667530548645217, -7.266099588398788, -14.112437402150139,
        ),
        erf_split=1.0,
        erf_shift=3.5,
        erf_end=6.0,
    ),
}  # fmt: skip
