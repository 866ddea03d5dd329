"""Records of convolutions: strides, padding, dilation, groups, one to three dimensions, forward and transposed."""

import weft
import weft.nn.functional as F
from tests.records.oracle import TF, torch
from tests.records.record import NARROW, Record, T, sample

LOOSE = {  # sums of up to a few hundred products; torch adds the bias before it rounds
    "float32": (2e-5, 2e-5), "float64": (1e-10, 1e-11), "float16": (2.0**-9, 2.0**-8), "bfloat16": (2.0**-6, 2.0**-5),
}  # fmt: skip


def conv(rank, samples, errors=()):
    name = f"conv{rank}d"
    return Record(name, getattr(F, name), getattr(TF, name), samples, tolerance=LOOSE, errors=errors)


def transposed(rank, samples, errors=()):
    name = f"conv_transpose{rank}d"
    return Record(name, getattr(F, name), getattr(TF, name), samples, tolerance=LOOSE, errors=errors)


def image(*shape):
    return T(shape, -1.0, 1.0)


REFUSED = [
    (lambda: F.conv2d(weft.ones(1, 3, 4, 4), weft.ones(2, 4, 3, 3)), weft.ShapeError, r"conv2d: given an input of 3"),
    (lambda: F.conv2d(weft.ones(1, 3, 2, 2), weft.ones(2, 3, 3, 3)), weft.ShapeError, "a kernel that fits"),
    (lambda: F.conv2d(weft.ones(4, 4), weft.ones(2, 3, 3, 3)), weft.ShapeError, r"input \[N, C, H, W\]"),
    (
        lambda: F.conv2d(weft.ones(1, 3, 4, 4), weft.ones(2, 3, 3, 3), weft.ones(3)),
        weft.ShapeError,
        r"a bias \(3,\); expected \(2,\)",
    ),
    (
        lambda: F.conv2d(weft.ones(1, 3, 4, 4), weft.ones(2, 3, 3, 3), stride=0),
        weft.RangeError,
        "stride=0; expected a whole number from 1 on",
    ),
    (
        lambda: F.conv2d(weft.ones(1, 3, 4, 4), weft.ones(2, 3, 3, 3), padding="full"),
        weft.RangeError,
        "padding='full'",
    ),
    (
        lambda: F.conv2d(weft.ones(1, 4, 4, 4), weft.ones(3, 2, 3, 3), groups=2),
        weft.ShapeError,
        "filters that divide by groups",
    ),
    (
        lambda: F.conv2d(weft.ones(1, 3, 4, 4), weft.ones(2, 3, 3, 3, dtype=weft.float64)),
        weft.DTypeError,
        "float32, float64",
    ),
]

RECORDS = [
    Record(
        "conv_tbc",
        F.conv_tbc,
        torch.conv_tbc,
        [sample(T((7, 2, 3)), T((3, 3, 4)), T((4,)), 1), sample(T((5, 1, 2)), T((2, 2, 3)), T((3,)))],
        tolerance=LOOSE,
        without=NARROW,
        errors=[
            (lambda: F.conv_tbc(weft.ones(5, 1, 2), weft.ones(2, 2, 3), weft.ones(2)), weft.ShapeError, "conv_tbc")
        ],
    ),
    conv(
        1,
        [
            sample(image(2, 3, 12), image(5, 3, 4), image(5), stride=2, padding=1),
            sample(image(2, 4, 9), image(6, 2, 3), dilation=2, groups=2, padding="same"),
            sample(image(3, 9), image(2, 3, 1)),
            sample(image(2, 1, 40), image(40, 1, 5), padding="valid"),
        ],
    ),
    conv(
        2,
        [
            sample(image(2, 3, 8, 8), image(4, 3, 3, 3), image(4), padding=1),
            sample(image(3, 5, 9, 7), image(6, 5, 3, 2), stride=(2, 1), padding=(1, 0)),
            sample(image(2, 16, 6, 6), image(33, 16, 3, 3), image(33), padding=1, stride=2),
            sample(image(2, 16, 6, 6), image(50, 16, 1, 1), stride=2),
            sample(image(5, 8, 1, 1), image(12, 8, 3, 3), padding=1),
            sample(image(5, 8, 2, 2), image(48, 8, 3, 3), padding=1),
            sample(image(2, 8, 7, 7), image(8, 1, 3, 3), image(8), padding=1, groups=8),
            sample(image(2, 4, 7, 7), image(8, 1, 3, 3), padding=1, groups=4, stride=2),
            sample(image(2, 8, 9, 9), image(12, 2, 3, 3), padding=1, groups=4, dilation=2),
            sample(image(2, 3, 15, 15), image(7, 3, 7, 7), padding=3, stride=2),
            sample(image(2, 4, 9, 9), image(5, 4, 3, 3), dilation=2, stride=2),
            sample(image(3, 6, 6), image(4, 3, 3, 3)),
            sample(image(2, 2, 3, 3), image(2, 2, 2, 2), padding=3),
            sample(T((2, 3, 5, 6), layout="transposed"), image(4, 3, 3, 3)),
            sample(T((0, 3, 5, 5)), image(4, 3, 3, 3)),
        ],
        REFUSED,
    ),
    conv(
        3,
        [
            sample(image(2, 2, 5, 5, 5), image(5, 2, 3, 3, 3), image(5), padding=1),
            sample(image(1, 2, 6, 5, 4), image(3, 2, 3, 2, 1), stride=2, padding=(1, 0, 0)),
        ],
    ),
    transposed(1, [sample(image(2, 4, 6), image(4, 3, 3), image(3), stride=3)]),
    transposed(
        2,
        [
            sample(image(2, 4, 5, 5), image(4, 6, 3, 3), image(6), stride=2, padding=1, output_padding=1),
            sample(image(2, 4, 5, 5), image(4, 3, 3, 3), groups=2, dilation=2),
            sample(image(2, 4, 5, 5), image(4, 3, 4, 4), stride=3, dilation=2, padding=2),
            sample(image(2, 4, 5, 5), image(4, 3, 1, 1), stride=2),
            sample(image(4, 5, 5), image(4, 3, 2, 2), stride=2),
        ],
        [
            (
                lambda: F.conv_transpose2d(weft.ones(1, 3, 4, 4), weft.ones(2, 3, 3, 3)),
                weft.ShapeError,
                r"expected 2 channels \(weight.shape\[0\]\)",
            ),
            (
                lambda: F.conv_transpose2d(weft.ones(1, 3, 4, 4), weft.ones(3, 3, 3, 3), output_padding=1),
                weft.ShapeError,
                "output_padding below stride",
            ),
        ],
    ),
    transposed(3, [sample(image(1, 2, 3, 3, 3), image(2, 3, 2, 2, 2), stride=2, padding=1)]),
]
