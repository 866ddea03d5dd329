"""A compiled function that is compared with itself, uncompiled: for the tests of what such functions capture."""

import dataclasses

import weft
from weft.base.counters import COUNTERS

ONES = weft.ones(3)


def bits(value):
    return value.numpy().tobytes() if isinstance(value, weft.Tensor) else value


class Counted:
    """A compiled function that is compared with itself, uncompiled, at every call."""

    def __init__(self, function):
        self.function, self.step = function, weft.compile(function)
        self.traces = 0

    def __call__(self, *args, **kwargs):
        expected = self.function(*args, **kwargs)
        before = COUNTERS.traces
        found = self.step(*args, **kwargs)
        self.traces += COUNTERS.traces - before
        assert type(found) is type(expected)
        assert bits(found) == bits(expected)
        return found


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: object


class Plain:
    def __init__(self, value):
        self.value = value
