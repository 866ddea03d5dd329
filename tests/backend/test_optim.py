"""Optimizers and clipping against torch, step by step, compiled and not."""

import numpy as np
import pytest
import torch

import weft

pytestmark = pytest.mark.usefixtures("on_each_device")

SHAPES = [(5, 3), (4,), (), (2, 1, 3), (70,)]
TOLERANCE = {"float32": {"rtol": 1e-6, "atol": 1e-6}, "float64": {"rtol": 1e-14, "atol": 1e-14}}


def arrays(dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.uniform(-1, 1, shape), dtype) for shape in SHAPES]


def loss_of(params, target):
    """A bowl around `2 + target`, far enough from all parameters that no gradient is near zero, and not steep: what
    differs in one step is not blown up in the next."""
    total = 0.0
    for number, param in enumerate(params):
        total = total + ((param - (target + 2.0)) ** 2).sum() * (0.25 + 0.1 * number)
    return total


class Pair:
    """The same parameters, here and in torch."""

    def __init__(self, dtype="float32", seed=0):
        self.ours = [weft.tensor(array, requires_grad=True) for array in arrays(dtype, seed)]
        self.theirs = [torch.tensor(array, requires_grad=True) for array in arrays(dtype, seed)]
        self.tolerance = TOLERANCE[dtype]

    def compare(self, what):
        for number, (one, two) in enumerate(zip(self.ours, self.theirs, strict=True)):
            np.testing.assert_allclose(one.numpy(), two.detach().numpy(), **self.tolerance, err_msg=f"{what} {number}")

    def compare_grads(self):
        for one, two in zip(self.ours, self.theirs, strict=True):
            np.testing.assert_allclose(one.grad.numpy(), two.grad.numpy(), **self.tolerance)


def run_both(pair, optimizer, torch_optimizer, steps=10, compiled=True, between=lambda step: None):
    """`steps` steps on both sides, compared after each."""

    def ours(target):
        optimizer.zero_grad()
        loss = loss_of(pair.ours, target)
        loss.backward()
        optimizer.step()
        return loss

    step = weft.compile(ours) if compiled else ours
    for number in range(steps):
        target = 0.1 * number
        between(number)
        loss = step(weft.tensor(target, dtype=pair.ours[0].dtype))
        torch_optimizer.zero_grad()
        expected = loss_of(pair.theirs, target)
        expected.backward()
        torch_optimizer.step()
        np.testing.assert_allclose(loss.item(), expected.item(), rtol=1e-5)
        pair.compare(f"step {number}, parameter")


CASES = {
    "sgd": ("SGD", {"lr": 0.1}),
    "momentum": ("SGD", {"lr": 0.05, "momentum": 0.9}),
    "dampening": ("SGD", {"lr": 0.1, "momentum": 0.8, "dampening": 0.3}),
    "nesterov": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "sgd_decay": ("SGD", {"lr": 0.1, "weight_decay": 0.1}),
    "sgd_all": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.05}),
    "adam": ("Adam", {"lr": 0.05}),
    "adam_decay": ("Adam", {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}),
    "adam_amsgrad": ("Adam", {"lr": 0.05, "betas": (0.5, 0.6), "amsgrad": True}),
    "adamw": ("AdamW", {"lr": 0.05}),
    "adamw_decay": ("AdamW", {"lr": 0.05, "weight_decay": 0.3, "betas": (0.7, 0.9)}),
    "adamw_amsgrad": ("AdamW", {"lr": 0.05, "weight_decay": 0.1, "betas": (0.5, 0.6), "amsgrad": True}),
}
EVERY_CASE = pytest.mark.parametrize("case", CASES)
BOTH_WAYS = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


def make(case, ours, theirs):
    name, options = CASES[case]
    return getattr(weft.optim, name)(ours, **options), getattr(torch.optim, name)(theirs, **options)


@BOTH_WAYS
@EVERY_CASE
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ten_steps(case, compiled, dtype):
    pair = Pair(dtype)
    run_both(pair, *make(case, pair.ours, pair.theirs), compiled=compiled)


@BOTH_WAYS
@pytest.mark.parametrize("case", ["momentum", "adam_decay", "adamw"])
def test_two_groups(case, compiled):
    pair = Pair()
    name, options = CASES[case]
    extra = {"lr": 0.2, "weight_decay": 0.02}
    ours = [{"params": pair.ours[:2]}, {"params": pair.ours[2:], **extra}]
    theirs = [{"params": pair.theirs[:2]}, {"params": pair.theirs[2:], **extra}]
    optimizer, torch_optimizer = (
        getattr(weft.optim, name)(ours, **options),
        getattr(torch.optim, name)(theirs, **options),
    )

    def schedule(step):
        for one in (optimizer, torch_optimizer):
            one.param_groups[1]["lr"] = 0.2 * 0.9**step

    run_both(pair, optimizer, torch_optimizer, compiled=compiled, between=schedule)


@BOTH_WAYS
def test_a_group_added_later(compiled):
    pair = Pair()
    optimizer, torch_optimizer = make("adam", pair.ours[:2], pair.theirs[:2])

    def between(step):
        if step == 3:
            optimizer.add_param_group({"params": pair.ours[2:], "lr": 0.01})
            torch_optimizer.add_param_group({"params": pair.theirs[2:], "lr": 0.01})
            for tensor in (*pair.ours, *pair.theirs):
                tensor.grad = None

    run_both(pair, optimizer, torch_optimizer, steps=6, compiled=False, between=between)


def test_mixed_dtypes_in_one_group():
    ours = [
        weft.tensor(arrays("float32")[0], requires_grad=True),
        weft.tensor(arrays("float64")[1], requires_grad=True),
    ]
    theirs = [torch.tensor(p.numpy(), requires_grad=True) for p in ours]
    optimizer, torch_optimizer = make("adamw", ours, theirs)
    for _ in range(3):
        for one, params in ((optimizer, ours), (torch_optimizer, theirs)):
            one.zero_grad()
            for param in params:
                (param**2).sum().backward()
            one.step()
    for one, two in zip(ours, theirs, strict=True):
        assert one.numpy().dtype == two.detach().numpy().dtype
        np.testing.assert_allclose(one.numpy(), two.detach().numpy(), rtol=2e-6)


@BOTH_WAYS
@pytest.mark.parametrize("case", ["sgd", "momentum", "dampening", "nesterov", "adam", "adamw_decay", "adam_amsgrad"])
def test_parameters_without_gradients_in_some_steps(case, compiled):
    """Torch counts steps per parameter and keeps what has no gradient as it is."""
    pair = Pair()
    optimizer, torch_optimizer = make(case, pair.ours, pair.theirs)
    used_in = [(0, 1, 2, 3, 4), (0, 1), (1, 2, 3), (4,), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4)]

    def ours(number):
        optimizer.zero_grad()
        loss_of([pair.ours[k] for k in used_in[number]], 0.3).backward()
        optimizer.step()

    step = weft.compile(ours) if compiled else ours
    for number, used in enumerate(used_in):
        step(number)
        torch_optimizer.zero_grad()
        loss_of([pair.theirs[k] for k in used], 0.3).backward()
        torch_optimizer.step()
        pair.compare(f"step {number}, parameter")


@BOTH_WAYS
@pytest.mark.parametrize("max_norm", [0.5, 1e3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_clipping_by_norm(max_norm, compiled, dtype):
    pair = Pair(dtype)

    def ours(target):
        for param in pair.ours:
            param.grad = None
        loss_of(pair.ours, target).backward()
        return weft.optim.clip_grad_norm_(pair.ours, max_norm)

    step = weft.compile(ours) if compiled else ours
    for number in range(3):
        norm = step(weft.tensor(0.1 * number, dtype=pair.ours[0].dtype))
        for param in pair.theirs:
            param.grad = None
        loss_of(pair.theirs, 0.1 * number).backward()
        expected = torch.nn.utils.clip_grad_norm_(pair.theirs, max_norm)
        np.testing.assert_allclose(norm.item(), expected.item(), **pair.tolerance)
        pair.compare_grads()


@BOTH_WAYS
@pytest.mark.parametrize("limit", [0.25, 10.0])
def test_clipping_by_value(limit, compiled):
    pair = Pair()

    def ours():
        for param in pair.ours:
            param.grad = None
        loss_of(pair.ours, 0.2).backward()
        weft.optim.clip_grad_value_(pair.ours, limit)

    step = weft.compile(ours) if compiled else ours
    for _ in range(2):
        step()
    loss_of(pair.theirs, 0.2).backward()
    torch.nn.utils.clip_grad_value_(pair.theirs, limit)
    pair.compare_grads()


def test_clipping_what_has_no_gradient():
    pair = Pair()
    assert weft.optim.clip_grad_norm_(pair.ours, 1.0).item() == 0.0
    weft.optim.clip_grad_value_(pair.ours, 1.0)
    assert all(param.grad is None for param in pair.ours)
    (pair.ours[1] * 3.0).sum().backward()
    assert weft.optim.clip_grad_norm_(pair.ours, 1.0).item() == 6.0
    np.testing.assert_allclose(pair.ours[1].grad.numpy(), [0.5] * 4, rtol=1e-6)
    assert weft.optim.clip_grad_norm_(pair.ours[1], 1.0).item() == pytest.approx(1.0, rel=1e-6)


def test_clipping_finds_what_is_not_finite():
    w = weft.tensor([1.0, 0.0], requires_grad=True)
    w.grad = weft.tensor([1.0, float("inf")])
    with pytest.raises(weft.GraphError, match="clip_grad_norm_: given gradients whose norm is not finite"):
        weft.optim.clip_grad_norm_([w], 1.0, error_if_nonfinite=True)

    @weft.compile
    def clip():
        return weft.optim.clip_grad_norm_([w], 1.0, error_if_nonfinite=True)

    expected = r"clip_grad_norm_: given error_if_nonfinite=True inside weft\.compile.*check the norm that is returned"
    with pytest.raises(weft.GraphError, match=expected):
        clip()


@BOTH_WAYS
@pytest.mark.parametrize("case", ["sgd_all", "adamw_decay", "adam_amsgrad"])
def test_clipping_and_update_together(case, compiled):
    pair = Pair()
    optimizer, torch_optimizer = make(case, pair.ours, pair.theirs)

    def ours(target):
        optimizer.zero_grad()
        loss_of(pair.ours, target).backward()
        norm = weft.optim.clip_grad_norm_(pair.ours, 1.0)
        optimizer.step()
        return norm

    step = weft.compile(ours) if compiled else ours
    for number in range(10):
        norm = step(weft.tensor(0.1 * number))
        torch_optimizer.zero_grad()
        loss_of(pair.theirs, 0.1 * number).backward()
        expected = torch.nn.utils.clip_grad_norm_(pair.theirs, 1.0)
        torch_optimizer.step()
        np.testing.assert_allclose(norm.item(), expected.item(), rtol=1e-5)
        pair.compare(f"step {number}, parameter")
        pair.compare_grads()


# ---- saving and loading ---------------------------------------------------------------------------------------------


def train(params, optimizer, targets, compiled):
    def step(target):
        optimizer.zero_grad()
        loss_of(params, target).backward()
        optimizer.step()

    step = weft.compile(step) if compiled else step
    for target in targets:
        step(weft.tensor(target, dtype=params[0].dtype))


@BOTH_WAYS
@pytest.mark.parametrize("case", ["sgd", "dampening", "sgd_all", "adam_amsgrad", "adamw_decay"])
def test_a_saved_optimizer_goes_on_with_the_same_bits(case, compiled):
    targets = [0.1 * number for number in range(8)]
    whole = Pair().ours
    optimizer, _ = make(case, whole, Pair().theirs)
    train(whole, optimizer, targets, compiled)

    first = Pair().ours
    optimizer, _ = make(case, first, Pair().theirs)
    train(first, optimizer, targets[:5], compiled)
    saved = optimizer.state_dict()
    values = [param.numpy() for param in first]
    train(first, optimizer, [9.0], compiled)  # what was saved must not follow

    second = [weft.tensor(value, requires_grad=True) for value in values]
    name, options = CASES[case]
    optimizer = getattr(weft.optim, name)(second, **{**options, "lr": 7.0})  # the rate is loaded too
    optimizer.load_state_dict(saved)
    train(second, optimizer, targets[5:], compiled)
    for one, two in zip(whole, second, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


def test_loading_into_a_running_compiled_step():
    pair = Pair()
    optimizer, _ = make("adamw", pair.ours, pair.theirs)

    @weft.compile
    def step(target):
        optimizer.zero_grad()
        loss_of(pair.ours, target).backward()
        optimizer.step()

    target = weft.tensor(0.5)
    step(target)
    saved, values = optimizer.state_dict(), [param.numpy() for param in pair.ours]
    for _ in range(3):
        step(target)
    expected = [param.numpy() for param in pair.ours]
    optimizer.load_state_dict(saved)
    with weft.no_grad():
        for param, value in zip(pair.ours, values, strict=True):
            param.copy_(weft.tensor(value))
    traces = weft.counters()["traces"]
    for _ in range(3):
        step(target)
    assert weft.counters()["traces"] == traces
    for param, value in zip(pair.ours, expected, strict=True):
        np.testing.assert_array_equal(param.numpy(), value)


def as_numpy(state_dict):
    """Torch's state_dict with arrays for tensors."""
    state = {
        key: {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in entry.items()}
        for key, entry in state_dict["state"].items()
    }
    return {"state": state, "param_groups": state_dict["param_groups"]}


@pytest.mark.parametrize("case", ["dampening", "sgd_all", "adam_decay", "adamw_amsgrad"])
def test_a_state_from_torch(case):
    pair = Pair()
    optimizer, torch_optimizer = make(case, pair.ours, pair.theirs)
    for number in range(4):
        torch_optimizer.zero_grad()
        loss_of(pair.theirs, 0.1 * number).backward()
        torch_optimizer.step()
    with weft.no_grad():
        for one, two in zip(pair.ours, pair.theirs, strict=True):
            one.copy_(weft.tensor(two.detach().numpy()))
    torch_optimizer.param_groups[0]["lr"] = 0.02
    optimizer.load_state_dict(as_numpy(torch_optimizer.state_dict()))
    assert optimizer.param_groups[0]["lr"] == 0.02
    run_both(pair, optimizer, torch_optimizer, steps=5)


@pytest.mark.parametrize("case", ["sgd", "sgd_all", "adam", "adamw_amsgrad"])
def test_the_layout_of_the_state_is_torchs(case):
    pair = Pair()
    optimizer, torch_optimizer = make(case, pair.ours, pair.theirs)
    run_both(pair, optimizer, torch_optimizer, steps=2, compiled=False)
    ours, theirs = optimizer.state_dict(), torch_optimizer.state_dict()
    assert ours["param_groups"][0]["params"] == theirs["param_groups"][0]["params"]
    for name in CASES[case][1]:
        assert ours["param_groups"][0][name] == theirs["param_groups"][0][name]
    for key, entry in theirs["state"].items():
        for name, value in entry.items():
            if value is None:
                continue  # SGD without momentum
            np.testing.assert_allclose(ours["state"][key][name].numpy(), value.numpy(), **pair.tolerance)
            assert ours["state"][key][name].shape == tuple(value.shape)


# ---- the rest -------------------------------------------------------------------------------------------------------


def test_zeroing_gradients():
    pair = Pair()
    optimizer, _ = make("sgd", pair.ours, pair.theirs)
    loss_of(pair.ours, 0.1).backward()
    optimizer.zero_grad(set_to_none=False)
    assert all((param.grad.numpy() == 0).all() for param in pair.ours)
    optimizer.zero_grad()
    assert all(param.grad is None for param in pair.ours)


def test_parameters_may_be_read_and_set_between_steps():
    w = weft.tensor([1.0, 2.0], requires_grad=True)
    optimizer = weft.optim.SGD([w], lr=1.0)
    old, shared, first = w.detach().clone(), w.detach(), w[:1]
    (w * weft.tensor([1.0, 2.0])).sum().backward()
    optimizer.step()
    assert (old.tolist(), w.tolist()) == ([1.0, 2.0], [0.0, 0.0])
    assert (shared.tolist(), first.tolist()) == ([0.0, 0.0], [0.0])
    with weft.no_grad():
        w.fill_(5.0)
    optimizer.step()
    assert w.tolist() == [4.0, 3.0]
    assert w.requires_grad and w.is_leaf


def test_a_parameter_that_does_not_require_grad_stays():
    frozen, w = weft.ones(2), weft.ones(2, requires_grad=True)
    optimizer = weft.optim.SGD([frozen, w], lr=1.0)
    (frozen * w).sum().backward()
    optimizer.step()
    assert (frozen.tolist(), w.tolist()) == ([1.0, 1.0], [0.0, 0.0])


def leaf():
    return weft.ones(2, requires_grad=True)


TWICE = leaf()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weft.optim.SGD([]), "SGD: given no parameters"),
        (lambda: weft.optim.AdamW([np.ones(2)]), "AdamW: given a ndarray"),
        (lambda: weft.optim.SGD([leaf() * 2]), "SGD: given a tensor that is the result of an operation"),
        (lambda: weft.optim.Adam([TWICE, TWICE]), "Adam: given the same tensor twice"),
        (lambda: weft.optim.Adam([{"params": [TWICE]}, {"params": [TWICE]}]), "Adam: given the same tensor twice"),
        (lambda: weft.optim.Adam([leaf()], betas=(0.9, 1.0)), r"Adam: given betas \(0.9, 1.0\)"),
        (lambda: weft.optim.SGD([leaf()], nesterov=True), "SGD: given nesterov with momentum 0.0"),
        (lambda: weft.optim.SGD([leaf()], lr=-0.1), "SGD: given lr -0.1"),
        (lambda: weft.optim.AdamW([leaf()], weight_decay=-1.0), "AdamW: given weight_decay -1.0"),
        (lambda: weft.optim.Adam([leaf()], eps=-1e-8), "Adam: given eps -1e-08"),
        (lambda: weft.optim.SGD([leaf()]).load_state_dict(weft.optim.SGD([leaf(), leaf()]).state_dict()),
         r"load_state_dict: given groups of \[2\] parameters; expected groups of \[1\]"),
    ],
)  # fmt: skip
def test_what_is_refused(call, message):
    with pytest.raises(weft.WeftError, match=message):
        call()


def test_a_state_of_another_shape_is_refused():
    small, large = weft.optim.Adam([leaf()]), weft.optim.Adam([weft.ones(3, requires_grad=True)])
    for optimizer in (small, large):
        (optimizer.param_groups[0]["params"][0] * 2).sum().backward()
        optimizer.step()
    with pytest.raises(weft.WeftError, match=r"load_state_dict: given .*\(3,\).*expected.*\(2,\)"):
        small.load_state_dict(large.state_dict())
