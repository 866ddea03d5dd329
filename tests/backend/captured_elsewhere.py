"""Functions and values of another module, for `test_captures`."""

SCALE = 2.0
SIZES = [1, 2]
VALUE = None


def scaled(x):
    return x * SCALE


def sized(x):
    return x.sum() * len(SIZES) + SIZES[0]
