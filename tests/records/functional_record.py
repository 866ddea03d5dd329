"""Records of a function of `nn.functional` and the one of the same name in torch, and what they refuse."""

import weft
import weft.nn.functional as F
from tests.records.oracle import TF
from tests.records.record import Record

LOOSE = {"float32": (2e-5, 1e-5), "float64": (1e-9, 1e-10)}


def both(name, arguments):
    """A function here and in torch, called as `arguments(function, *tensors)` says."""
    ours, theirs = getattr(F, name), getattr(TF, name)
    return (
        lambda *args, **kwargs: arguments(ours, *args, **kwargs),
        lambda *args, **kwargs: arguments(theirs, *args, **kwargs),
    )


def record(name, arguments, samples, label="", **options):
    ours, theirs = both(name, arguments)
    return Record(label or name, ours, theirs, samples, **options)


def refusal(call, kind, pattern):
    return (call, getattr(weft, kind), pattern)


def ones():
    return weft.ones(2, 3)
