"""How many plans are built, and how many functions called, by a call."""

import sys

import weft


def plans_built(call):
    before = weft.counters()["plans_built"]
    call()
    return weft.counters()["plans_built"] - before


def python_calls(call):
    """How many functions run, those in C included."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count
