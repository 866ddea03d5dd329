"""Compiled functions, eager reads and outside assignments in any order, beside a model in NumPy.

Every value that was ever taken from a cell or a result stays, whatever is replayed afterwards; views follow their base,
and writes to them are writes to it.
"""

import gc
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import weft

SIZE = 6
FUZZ = int(os.environ.get("WEFT_FUZZ", "0"))
NUMBERS = st.integers(0, 2)
VIEWS = {
    "detach": lambda x: x.detach(),
    "clone": lambda x: x.clone(),
    "plus zero": lambda x: x + 0.0,
    "reshape": lambda x: x.reshape(2, 3),
    "slice": lambda x: x[1:4],
    "flip": lambda x: x.flip(0),
    "pair": lambda x: weft.cat([x, x]),
    "chain": lambda x: (x * 2.0).detach().reshape(3, 2)[1:],
}
MODELS = {
    "detach": lambda x: x,
    "clone": lambda x: x,
    "plus zero": lambda x: x,
    "reshape": lambda x: x.reshape(2, 3),
    "slice": lambda x: x[1:4],
    "flip": lambda x: x[::-1],
    "pair": lambda x: np.concatenate([x, x]),
    "chain": lambda x: (x * 2).reshape(3, 2)[1:],
}


SHARED = ("detach", "reshape", "slice")


class Held:
    """A tensor that somebody holds: a view, along `path`, of a cell (by number) or of an array of its own."""

    def __init__(self, tensor, owner, path=()):
        self.tensor, self.owner, self.path = tensor, owner, path

    def array(self, models):
        array = models[self.owner] if isinstance(self.owner, int) else self.owner
        for name in self.path:
            array = MODELS[name](array)
        return array

    def write(self, models, value):
        """The same for the model: NumPy's views write through."""
        if isinstance(self.owner, int):
            models[self.owner] = np.array(models[self.owner])
        self.array(models)[...] = value

    def check(self, models):
        np.testing.assert_array_equal(self.tensor.numpy(), self.array(models))


class Machine(RuleBasedStateMachine):
    """Three cells, four compiled functions over them, and a growing set of tensors that somebody holds."""

    def __init__(self):
        super().__init__()
        self.model = [np.arange(SIZE, dtype=np.float32) + 10 * k for k in range(3)]
        self.cells = [weft.tensor(array, device="cpu") for array in self.model]
        self.held: list[Held] = []
        self.middle, self.rows = self.cells[0][1:4], self.cells[1].reshape(2, 3)
        self.compile_functions()

    def compile_functions(self):
        a, b, c = self.cells

        @weft.compile
        def grow():
            a.add_(1.0)
            return a * 2.0, b + a

        @weft.compile
        def swap():
            old = a.clone()
            a.copy_(b)
            b.copy_(old)

        @weft.compile
        def store(x):
            c.copy_(x)
            return c, x, c.flip(0)

        @weft.compile
        def mix(x, rate):
            a.mul_(0.5).add_(x * rate)
            b[1:3] = x[2:4]
            return b.amax(), (a + c).reshape(2, 3)

        middle, rows = self.middle, self.rows

        @weft.compile
        def through_views():
            middle.mul_(2.0)
            rows[1] += middle
            return middle + rows[0], a.clone()

        self.functions = grow, swap, store, mix, through_views

    def keep(self, tensors, arrays, kept):
        pairs = list(zip(tensors, arrays, strict=True))
        for tensor, array in pairs:
            if kept:
                self.held.append(Held(tensor, np.array(array)))
            else:
                np.testing.assert_array_equal(tensor.numpy(), array)

    def argument(self, source, number):
        """A new tensor, a cell, or a tensor that is held."""
        fitting = [held for held in self.held if held.tensor.shape == (SIZE,)]
        if source == "held" and fitting:
            held = fitting[number % len(fitting)]
            return held.tensor, held.array(self.model)
        if source == "cell":
            return self.cells[number % 3], self.model[number % 3]
        array = np.arange(SIZE, dtype=np.float32) * (number % 5) - 3
        return weft.tensor(array, device="cpu"), array

    sources = st.sampled_from(["new", "cell", "held"])

    @rule(kept=st.booleans())
    def call_grow(self, kept):
        self.model[0] = self.model[0] + np.float32(1)
        self.keep(self.functions[0](), (self.model[0] * 2, self.model[1] + self.model[0]), kept)

    @rule()
    def call_swap(self):
        self.model[0], self.model[1] = self.model[1], self.model[0]
        self.functions[1]()

    @rule(source=sources, number=st.integers(0, 20), kept=st.booleans())
    def call_store(self, source, number, kept):
        x, array = self.argument(source, number)
        array = np.array(array)
        self.model[2] = array
        self.keep(self.functions[2](x), (array, array, array[::-1]), kept)

    @rule(source=sources, number=st.integers(0, 20), kept=st.booleans(), rate=st.sampled_from([1.0, 0.5, -2.0]))
    def call_mix(self, source, number, kept, rate):
        x, array = self.argument(source, number)
        array, a, b, c = (np.array(one) for one in (array, *self.model))
        a = a * np.float32(0.5) + array * np.float32(rate)
        b[1:3] = array[2:4]
        self.model[0], self.model[1] = a, b
        self.keep(self.functions[3](x, rate), (b.max(), (a + c).reshape(2, 3)), kept)

    @rule(kept=st.booleans())
    def call_through_views(self, kept):
        a, b = np.array(self.model[0]), np.array(self.model[1])
        a[1:4] *= 2
        b[3:] += a[1:4]
        self.model[0], self.model[1] = a, b
        self.keep(self.functions[4](), (a[1:4] + b[:3], a), kept)

    @rule(number=NUMBERS, view=st.sampled_from(sorted(VIEWS)), read=st.booleans())
    def hold_a_view(self, number, view, read):
        tensor = VIEWS[view](self.cells[number])
        if view in SHARED:
            held = Held(tensor, number, (view,))
        else:
            held = Held(tensor, np.array(MODELS[view](self.model[number])))
        if read:
            held.check(self.model)
        self.held.append(held)

    @rule(number=st.integers(0, 20), view=st.sampled_from(["detach", "reshape", "slice", "pair"]), read=st.booleans())
    def hold_a_view_of_a_held_tensor(self, number, view, read):
        fitting = [held for held in self.held if held.tensor.shape == (SIZE,)]
        if fitting:
            source = fitting[number % len(fitting)]
            tensor = VIEWS[view](source.tensor)
            if view in SHARED:
                held = Held(tensor, source.owner, (*source.path, view))
            else:
                held = Held(tensor, np.array(MODELS[view](source.array(self.model))))
            if read:
                held.check(self.model)
            self.held.append(held)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 50), value=st.sampled_from([0.0, 2.5]), add=st.booleans())
    def write_to_a_held_tensor(self, number, value, add):
        held = self.held[number % len(self.held)]
        held.write(self.model, held.array(self.model) + np.float32(value) if add else value)
        if add:
            held.tensor += value
        else:
            held.tensor.fill_(value)

    @rule(number=NUMBERS, source=sources, other=st.integers(0, 20))
    def assign_from_outside(self, number, source, other):
        x, array = self.argument(source, other)
        self.model[number] = np.array(array)
        self.cells[number].copy_(x)

    @rule(number=NUMBERS, value=st.sampled_from([0.0, 2.5]))
    def set_a_part_from_outside(self, number, value):
        self.model[number] = np.concatenate(
            [self.model[number][:2], np.full(2, value, np.float32), self.model[number][4:]]
        )
        self.cells[number][2:4] = value

    @rule(number=NUMBERS)
    def read_a_cell(self, number):
        np.testing.assert_array_equal(self.cells[number].numpy(), self.model[number])

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 50))
    def read_and_drop(self, number):
        self.held.pop(number % len(self.held)).check(self.model)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 50))
    def drop(self, number):
        self.held.pop(number % len(self.held))
        gc.collect(0)

    @rule()
    def compile_again(self):
        self.compile_functions()

    @invariant()
    def shapes_are_known(self):
        assert all(cell.shape == (SIZE,) for cell in self.cells)

    def teardown(self):
        for cell, array in zip(self.cells, self.model, strict=True):
            np.testing.assert_array_equal(cell.numpy(), array)
        for held in self.held:
            held.check(self.model)


Machine.TestCase.settings = settings(
    max_examples=FUZZ or 200, stateful_step_count=30, derandomize=not FUZZ, deadline=None, print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip


class TestStates(Machine.TestCase):
    """Run by pytest."""


pytestmark = pytest.mark.filterwarnings("ignore:.*TestCase.*:pytest.PytestCollectionWarning")
