"""Random programs of operations beside PyTorch: values, gradients, gradients of gradients; and compiled, whose bits are
those of the same program run eagerly, with other numbers and shapes in each call.

`WEFT_FUZZ=2000` runs so many programs, and others each time.
"""

import math
import os

import numpy as np
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import weft
from tests.backend.torch_programs import EXTENTS, Program, programs
from tests.backend.view_programs import Refused

FUZZ = int(os.environ.get("WEFT_FUZZ", "0"))
RANDOM = {
    "derandomize": not FUZZ, "deadline": None, "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}  # fmt: skip
REFUSED = (Refused, RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError)
GRADIENTS = {torch: torch.autograd.grad, weft: weft.grad}
shapes = st.lists(
    st.lists(st.sampled_from(EXTENTS), max_size=4).map(tuple).filter(lambda shape: math.prod(shape) <= 600),
    min_size=2, max_size=2,
)  # fmt: skip


def leaves(library, shapes, seed):
    rng = np.random.default_rng(seed)
    return [library.tensor(rng.uniform(-2, 2, shape), requires_grad=True) for shape in shapes]


def is_tame(tensor):
    array = tensor.detach().numpy()
    return array.dtype.kind != "f" or bool(np.isfinite(array).all() and np.abs(array).max(initial=0) < 1e4)


def accepted(program, shapes, seed):
    """PyTorch's program, and the steps that it takes: those whose numbers stay finite and moderate."""
    player, taken = Program(torch, leaves(torch, shapes, seed), 0.75), []
    for operation, numbers in program:
        before = len(player.pool)
        try:
            player.step(operation, numbers)
            assert all(is_tame(tensor) for tensor in player.pool[before:])
        except (*REFUSED, AssertionError):
            del player.pool[before:]
        else:
            taken.append((operation, numbers))
    return player, taken


def play(program, values, scalar):
    """The same steps with Weft."""
    player = Program(weft, values, scalar)
    for operation, numbers in program:
        player.step(operation, numbers)
    return player


def compare(actual, expected, what, tolerance):
    assert expected.shape == actual.shape and str(expected.dtype) == f"torch.{actual.dtype.name}", what
    ours, theirs = actual.numpy(), expected.detach().numpy()
    if theirs.dtype.kind != "f":
        np.testing.assert_array_equal(ours, theirs, err_msg=what)
    else:
        tolerance = tolerance if theirs.dtype == np.float64 else 1e-4
        scale = max(1.0, np.abs(theirs).max(initial=0.0))
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * scale, err_msg=what)


def total(player):
    """A number that depends on the last values that have gradients, on each in another way; None without any."""
    ends = [(place, x) for place, x in enumerate(player.pool) if x.requires_grad][-4:]
    wide = [(place, x.to(player.library.float64)) for place, x in ends]
    return sum([(x * (place + 1.0)).sum() * 0.1 + (x * x).sum() * 0.05 for place, x in wide])


def gradients(library, number, inputs, create_graph=False):
    """With zeros for None: where a gradient is 0 for certain, Weft may have none."""
    if not getattr(number, "requires_grad", False):
        found = [None for _ in inputs]
    else:
        found = GRADIENTS[library](number, inputs, create_graph=create_graph, allow_unused=True)
    return [library.zeros_like(x) if one is None else one for one, x in zip(found, inputs, strict=True)]


@settings(max_examples=FUZZ or 80, **RANDOM)
@given(program=programs, shapes=shapes, seed=st.integers(0, 999))
def test_values_and_gradients(program, shapes, seed):
    theirs, taken = accepted(program, shapes, seed)
    ours = play(taken, leaves(weft, shapes, seed), 0.75)
    narrow = any(x.dtype is torch.float32 for x in theirs.pool)
    for place, (one, two) in enumerate(zip(ours.pool, theirs.pool, strict=True)):
        compare(one, two, f"value {place} of {taken}", 1e-4 if narrow else 1e-8)
        assert one.requires_grad == two.requires_grad, taken
    found = [gradients(player.library, total(player), player.pool[:2], create_graph=True) for player in (ours, theirs)]
    try:
        numbers = [sum([(g * g).sum() for g in first]) for first in found]
        found[1] += gradients(torch, numbers[1], theirs.pool[:2])
    except RuntimeError as error:  # PyTorch has no second derivative of cdist and of some activations
        assert "not implemented" in str(error)
    else:
        found[0] += gradients(weft, numbers[0], ours.pool[:2])
    for place, (one, two) in enumerate(zip(*found, strict=True)):
        if not np.isfinite(two.detach().numpy()).all():
            break
        compare(one, two, f"gradient {place} of {taken}", 1e-4 if narrow else 1e-6)


@settings(max_examples=FUZZ or 40, **RANDOM)
@given(program=programs, shapes=shapes, seed=st.integers(0, 999))
def test_compiled_programs_have_the_same_bits(program, shapes, seed):
    _, taken = accepted(program, shapes, seed)
    assume(taken)

    def run(scalar, *values):
        player = play(taken, values, scalar)
        return [*player.pool[len(values) :], *gradients(weft, total(player), values)]

    compiled = weft.compile(run)
    for call, scalar in enumerate((0.75, 0.75, -0.5, 1.25)):
        if call == 3:  # other shapes, where the program has them
            shapes = [(shape[0] + 1, *shape[1:]) if shape and shape[0] else shape for shape in shapes]
        try:
            expected = run(scalar, *leaves(weft, shapes, seed + call))
        except REFUSED:
            break
        try:
            found = compiled(scalar, *leaves(weft, shapes, seed + call))
        except weft.GraphError as error:  # of weft.linalg
            assume("has no kernel for it" not in str(error))
            raise
        for one, two in zip(expected, found, strict=True):
            assert one.dtype is two.dtype
            np.testing.assert_array_equal(two.numpy(), one.numpy(), err_msg=f"call {call} of {taken}", strict=True)
