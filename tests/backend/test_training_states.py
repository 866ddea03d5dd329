"""Training by compiled and plain functions in any order, beside the same in torch: gradients, optimizer, parameters."""

import copy
import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import weft

FUZZ = int(os.environ.get("WEFT_FUZZ", "0"))
SHAPES = [(3, 4), (4,), ()]
OPTIMIZERS = {
    "SGD": {"lr": 0.25, "momentum": 0.5, "weight_decay": 0.125},
    "AdamW": {"lr": 0.125, "betas": (0.5, 0.75)},
}
ways = st.sampled_from(["compiled", "eager"])


def arrays(seed, shapes=SHAPES):
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.integers(-8, 9, shape) / 4, np.float32) for shape in shapes]


def total(params, inputs):
    """A loss whose gradients depend on the parameters a little."""
    return sum((param * x + param * param * 0.125).sum() for param, x in zip(params, inputs, strict=True))


class Machine(RuleBasedStateMachine):
    """The same actions on both sides; everything is compared at the end, and now and then before."""

    name = "SGD"

    def __init__(self):
        super().__init__()
        self.ours = [weft.tensor(array, device="cpu", requires_grad=True) for array in arrays(0)]
        self.theirs = [torch.tensor(array, requires_grad=True) for array in arrays(0)]
        options = OPTIMIZERS[self.name]
        self.optimizer = getattr(weft.optim, self.name)(self.ours, **options)
        self.torch_optimizer = getattr(torch.optim, self.name)(self.theirs, **options)
        self.held: list[tuple[weft.Tensor, np.ndarray]] = []
        self.saved = None
        eager = {
            "train": self.train,
            "accumulate": self.accumulate,
            "some": self.accumulate_some,
            "update": self.update,
        }
        self.functions = {"eager": eager, "compiled": {name: weft.compile(fn) for name, fn in eager.items()}}

    # What is compiled.

    def train(self, *inputs):
        self.optimizer.zero_grad()
        loss = total(self.ours, inputs)
        loss.backward()
        norm = weft.optim.clip_grad_norm_(self.ours, 2.0)
        self.optimizer.step()
        return loss, norm

    def accumulate(self, *inputs):
        loss = total(self.ours, inputs)
        loss.backward()
        return loss

    def accumulate_some(self, x):
        total(self.ours[1:2], [x]).backward()

    def update(self):
        self.optimizer.step()

    # The actions.

    @rule(way=ways, seed=st.integers(0, 9), kept=st.booleans())
    def train_both(self, way, seed, kept):
        inputs = arrays(seed)
        loss, norm = self.functions[way]["train"](*[weft.tensor(array, device="cpu") for array in inputs])
        self.torch_optimizer.zero_grad()
        expected = total(self.theirs, [torch.tensor(array) for array in inputs])
        expected.backward()
        expected_norm = torch.nn.utils.clip_grad_norm_(self.theirs, 2.0)
        self.torch_optimizer.step()
        pairs = [(loss.detach(), expected.detach().numpy()), (norm, expected_norm.numpy())]
        for tensor, array in pairs:
            if kept:
                self.held.append((tensor, array))
            else:
                self.compare(tensor, array)

    @rule(way=ways, seed=st.integers(0, 9))
    def accumulate_both(self, way, seed):
        inputs = arrays(seed)
        self.functions[way]["accumulate"](*[weft.tensor(array, device="cpu") for array in inputs])
        total(self.theirs, [torch.tensor(array) for array in inputs]).backward()

    @rule(way=ways, seed=st.integers(0, 9))
    def accumulate_some_both(self, way, seed):
        (x,) = arrays(seed, SHAPES[1:2])
        self.functions[way]["some"](weft.tensor(x, device="cpu"))
        total(self.theirs[1:2], [torch.tensor(x)]).backward()

    @precondition(lambda self: any(param.grad is not None for param in self.theirs))
    @rule(way=ways)
    def update_both(self, way):
        self.functions[way]["update"]()
        self.torch_optimizer.step()

    @rule(to_none=st.booleans())
    def zero_both(self, to_none):
        self.optimizer.zero_grad(set_to_none=to_none)
        self.torch_optimizer.zero_grad(set_to_none=to_none)

    @rule(number=st.integers(0, 2), seed=st.integers(0, 9), none=st.booleans())
    def set_a_gradient(self, number, seed, none):
        array = arrays(seed)[number]
        self.ours[number].grad = None if none else weft.tensor(array, device="cpu")
        self.theirs[number].grad = None if none else torch.tensor(array)

    @rule(number=st.integers(0, 2), seed=st.integers(0, 9))
    def set_a_parameter(self, number, seed):
        array = arrays(seed)[number]
        with weft.no_grad(), torch.no_grad():
            self.ours[number].copy_(weft.tensor(array, device="cpu"))
            self.theirs[number].copy_(torch.tensor(array))

    @rule(rate=st.sampled_from([0.0, 0.125, 0.25]))
    def set_the_rate(self, rate):
        self.optimizer.param_groups[0]["lr"] = rate
        self.torch_optimizer.param_groups[0]["lr"] = rate

    @rule(number=st.integers(0, 2), lazy=st.booleans())
    def hold_a_parameter(self, number, lazy):
        taken = self.ours[number].detach() + 0.0 if lazy else self.ours[number].detach().clone()
        self.held.append((taken, self.theirs[number].detach().numpy().copy()))

    @rule(number=st.integers(0, 2), read=st.booleans())
    def hold_a_view(self, number, read):
        """NumPy's array is a view of PyTorch's parameter: both see what becomes of it."""
        pair = self.ours[number].detach().reshape(-1)[1:], self.theirs[number].detach().numpy().reshape(-1)[1:]
        if read:
            self.compare(*pair)
        self.held.append(pair)

    @rule(number=st.integers(0, 2), read=st.booleans())
    def hold_a_gradient(self, number, read):
        if self.theirs[number].grad is not None:
            pair = self.ours[number].grad.clone(), self.theirs[number].grad.numpy().copy()
            if read:
                self.compare(*pair)
            self.held.append(pair)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 20))
    def drop(self, number):
        self.compare(*self.held.pop(number % len(self.held)))

    @rule()
    def save(self):
        self.saved = self.optimizer.state_dict(), copy.deepcopy(self.torch_optimizer.state_dict())

    @precondition(lambda self: self.saved)
    @rule()
    def load(self):
        self.optimizer.load_state_dict(self.saved[0])
        self.torch_optimizer.load_state_dict(copy.deepcopy(self.saved[1]))  # torch goes on working on what it loads

    # Comparing.

    def compare(self, tensor, array):
        np.testing.assert_allclose(tensor.numpy(), array, rtol=2e-5, atol=2e-5)

    @rule()
    def compare_all(self):
        for one, two in zip(self.ours, self.theirs, strict=True):
            assert one.requires_grad and one.is_leaf
            self.compare(one, two.detach().numpy())
            assert (one.grad is None) == (two.grad is None)
            if one.grad is not None:
                self.compare(one.grad, two.grad.numpy())

    def teardown(self):
        self.compare_all()
        for pair in self.held:
            self.compare(*pair)


class AdamMachine(Machine):
    name = "AdamW"


LIMITS = settings(
    max_examples=FUZZ or 60, stateful_step_count=25, derandomize=not FUZZ, deadline=None, print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
Machine.TestCase.settings = AdamMachine.TestCase.settings = LIMITS


class TestSgd(Machine.TestCase):
    """Run by pytest."""


class TestAdamW(AdamMachine.TestCase):
    """Run by pytest."""


pytestmark = pytest.mark.filterwarnings("ignore:.*TestCase.*:pytest.PytestCollectionWarning")
