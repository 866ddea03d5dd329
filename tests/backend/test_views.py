"""Views write through to their base and see its changes, as PyTorch's do: eagerly and in compiled functions."""

import gc
import os
import weakref

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.backend.view_programs import Diverged, Numbers, Player, accepted, compare, play, programs

import weft

FUZZ = int(os.environ.get("WEFT_FUZZ", "0"))
RANDOM = {
    "derandomize": not FUZZ, "deadline": None, "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}  # fmt: skip


@settings(max_examples=FUZZ or 150, **RANDOM)
@given(program=programs, often=st.booleans())
def test_random_programs(program, often):
    theirs, ours = Player(torch), Player(weft)
    if not often:
        play(theirs, ours, program)
    else:
        for step in program:
            play(theirs, ours, [step])
            compare(theirs, ours)
    compare(theirs, ours)


@settings(max_examples=FUZZ or 100, **RANDOM)
@given(start=st.lists(st.integers(0, 63), min_size=10, max_size=10), program=programs, read=st.booleans())
def test_random_gradients(start, program, read):
    theirs, ours = Player(torch), Player(weft)
    for player in (theirs, ours):
        player.root(Numbers([2, *start[1:3], 0, *start[3:]]), requires_grad=True)
    try:
        play(theirs, ours, program)
    except Diverged:
        return
    if read:
        compare(theirs, ours)
    assert [x.requires_grad for x in theirs.pool] == [x.requires_grad for x in ours.pool]
    for player in (ours, theirs):
        total = player.library.zeros((), dtype=player.library.float64)
        for number, x in enumerate(player.pool):
            if x.requires_grad:
                try:
                    total = total + (x.to(player.library.float64) * float(number + 1)).sum()
                except RuntimeError as error:  # PyTorch does not use a view of several after a write to its base
                    assert player is theirs and "multiple views" in str(error)
                    return
        player.total = total
    if not theirs.total.requires_grad:
        assert not ours.total.requires_grad
        return
    theirs.total.backward()
    ours.total.backward()
    for their, our in zip(theirs.leaves, ours.leaves, strict=True):
        expected = np.zeros(our.shape) if their.grad is None else their.grad.numpy()
        found = np.zeros(our.shape) if our.grad is None else our.grad.numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@settings(max_examples=FUZZ or 60, **RANDOM)
@given(before=programs, inside=programs, between=programs)
def test_random_compiled_programs(before, inside, between):
    """Tensors and views made outside, written and read inside, read and written outside between two calls."""
    theirs, ours = Player(torch), Player(weft)
    play(theirs, ours, before)
    inside = [step for step in inside if step[0] not in ("read", "drop")]
    taken: list = []

    @weft.compile
    def run():
        local = ours.copy()
        for operation, numbers, read_only in taken:
            local.step(operation, numbers)
            local.read_only = list(read_only)
        return [x + 0 if x.dtype is not weft.bool else x.clone() for x in local.pool]

    def run_theirs():
        local = theirs.copy()
        return accepted(local, inside), [x.clone() for x in local.pool]

    for number in range(3):
        steps, expected = run_theirs()
        if number == 0:
            taken += steps
        elif steps != taken:
            return
        for their, our in zip(expected, run(), strict=True):
            np.testing.assert_array_equal(our.numpy(), their.detach().numpy())
        if number:
            compare(theirs, ours)
        if number == 1:
            size = len(theirs.pool)
            play(theirs, ours, [step for step in between if step[0] != "drop"])
            del theirs.pool[size:], ours.pool[size:]
            gc.collect(0)
    compare(theirs, ours)
