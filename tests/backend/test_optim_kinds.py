"""Every optimizer against torch's of the same name, or against NumPy in float64: many steps, options, states."""

import numpy as np
import pytest
import torch

import weft

pytestmark = pytest.mark.usefixtures("on_each_device", "quick_code")

SHAPES = [(5, 3), (4,), (), (2, 1, 3), (70,), (3, 4)]
BOTH_WAYS = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])

# By name: the class, its options, and which shapes of parameters it takes.
CASES = {
    "nadam": ("NAdam", {"lr": 0.05}),
    "nadam_decay": ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "momentum_decay": 0.01, "betas": (0.7, 0.95)}),
    "nadam_decoupled": ("NAdam", {"lr": 0.05, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": ("RAdam", {"lr": 0.02}),
    "radam_decay": ("RAdam", {"lr": 0.02, "betas": (0.8, 0.9), "weight_decay": 0.1, "eps": 1e-4}),
    "radam_decoupled": ("RAdam", {"lr": 0.02, "weight_decay": 0.2, "decoupled_weight_decay": True}),
    "adamax": ("Adamax", {"lr": 0.05}),
    "adamax_decay": ("Adamax", {"lr": 0.05, "betas": (0.7, 0.8), "weight_decay": 0.1}),
    "adam_decoupled": ("Adam", {"lr": 0.05, "weight_decay": 0.3, "decoupled_weight_decay": True}),
    "rmsprop": ("RMSprop", {"lr": 0.02}),
    "rmsprop_all": ("RMSprop", {"lr": 0.01, "alpha": 0.9, "centered": True, "momentum": 0.8, "weight_decay": 0.05}),
    "rmsprop_centered": ("RMSprop", {"lr": 0.01, "centered": True}),
    "adagrad": ("Adagrad", {"lr": 0.1}),
    "adagrad_all": ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}),
    "adadelta": ("Adadelta", {"lr": 1.0}),
    "adadelta_decay": ("Adadelta", {"lr": 10.0, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1}),
    "rprop": ("Rprop", {"lr": 0.3}),
    "rprop_limits": ("Rprop", {"lr": 0.3, "etas": (0.3, 1.5), "step_sizes": (0.1, 0.5)}),
    "asgd": ("ASGD", {"lr": 0.1, "lambd": 0.1, "alpha": 0.6, "t0": 3, "weight_decay": 0.05}),
    "asgd_average": ("ASGD", {"lr": 0.1}),
    "adafactor": ("Adafactor", {"lr": 0.5}),
    "adafactor_all": (
        "Adafactor",
        {"lr": 0.3, "beta2_decay": -0.5, "eps": (1e-3, 1e-2), "d": 1.5, "weight_decay": 0.1},
    ),
}  # fmt: skip
HAVE_MAXIMIZE = [name for name in CASES if "_" not in name]


@pytest.fixture(autouse=True)
def numbers_of_torch_in_float64():
    """Torch keeps what is one number for each parameter (mu_product, eta) in its default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def parameters(dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(rng.uniform(-1, 1, shape), dtype) for shape in SHAPES]
    return [weft.tensor(a, requires_grad=True) for a in arrays], [torch.tensor(a, requires_grad=True) for a in arrays]


def loss_of(params, target):
    """A bowl around `2 + target`, with all elements at different places."""
    return sum([((param - (target + 2.0)) ** 2).sum() * (0.25 + 0.1 * k) for k, param in enumerate(params)])


def make(case, ours, theirs, **more):
    name, options = CASES[case]
    options = {**options, **more}
    return getattr(weft.optim, name)(ours, **options), getattr(torch.optim, name)(theirs, **options)


def step_of(params, optimizer, compiled, sign=1.0):
    def step(target):
        optimizer.zero_grad()
        loss = sign * loss_of(params, target)
        loss.backward()
        optimizer.step()
        return loss

    return weft.compile(step) if compiled else step


def torch_step(params, optimizer, target, sign=1.0):
    optimizer.zero_grad()
    (sign * loss_of(params, target)).backward()
    optimizer.step()


def compare(ours, theirs, what="", **tolerance):
    tolerance = tolerance or {"rtol": 1e-10, "atol": 1e-11}
    for number, (one, two) in enumerate(zip(ours, theirs, strict=True)):
        expected = two.detach().numpy() if isinstance(two, torch.Tensor) else two
        np.testing.assert_allclose(one.numpy(), expected, **tolerance, err_msg=f"{what} {number}")


def run_both(case, compiled, steps, dtype="float64", sign=1.0, tolerance=None, **more):
    ours, theirs = parameters(dtype)
    optimizer, expected = make(case, ours, theirs, **more)
    step = step_of(ours, optimizer, compiled, sign)
    for number in range(steps):
        target = np.sin(number)
        step(weft.tensor(target, dtype=ours[0].dtype))
        torch_step(theirs, expected, target, sign)
        compare(ours, theirs, f"step {number}, parameter", **(tolerance or {}))
    if compiled:
        assert step.retraces == []
    return optimizer, expected


@BOTH_WAYS
@pytest.mark.parametrize("case", CASES)
def test_steps_are_torchs(case, compiled):
    run_both(case, compiled, steps=12)


@pytest.mark.parametrize("case", HAVE_MAXIMIZE)
def test_maximize(case):
    run_both(case, True, steps=4, sign=-1.0, maximize=True)


@pytest.mark.parametrize("case", [*HAVE_MAXIMIZE, "rmsprop_all"])
def test_float32(case):
    run_both(case, True, steps=8, dtype="float32", tolerance={"rtol": 2e-5, "atol": 2e-5})


@pytest.mark.parametrize(
    "case", ["nadam", "radam", "adamax", "rmsprop_all", "adagrad_all", "adadelta", "rprop", "asgd"]
)
def test_parameters_without_gradients_in_some_steps(case):
    """Torch counts steps per parameter and keeps what has no gradient as it is."""
    ours, theirs = parameters()
    optimizer, expected = make(case, ours, theirs)
    used_in = [(0, 1, 2, 3, 4, 5), (0, 1), (1, 2, 5), (4,), (0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5)]

    @weft.compile
    def step(number):
        optimizer.zero_grad()
        loss_of([ours[k] for k in used_in[number]], 0.3).backward()
        optimizer.step()

    for number, used in enumerate(used_in):
        step(number)
        expected.zero_grad()
        loss_of([theirs[k] for k in used], 0.3).backward()
        expected.step()
        compare(ours, theirs, f"step {number}, parameter")


@pytest.mark.parametrize("case", CASES)
def test_states_go_to_torch_and_back(case):
    optimizer, expected = run_both(case, False, steps=3)
    saved, theirs = optimizer.state_dict(), expected.state_dict()
    assert saved["state"].keys() == theirs["state"].keys()
    for key, entry in theirs["state"].items():
        assert saved["state"][key].keys() == entry.keys()
        for name, value in entry.items():
            found = saved["state"][key][name].numpy()
            assert found.shape == tuple(np.shape(value))
            np.testing.assert_allclose(found, np.asarray(value), rtol=1e-10, atol=1e-11, err_msg=name)
    group, other = saved["param_groups"][0], theirs["param_groups"][0]
    assert group.keys() == other.keys()
    assert all(group[name] == other[name] for name in group)

    # Ours into theirs, theirs into ours; then both go on.
    ours, tensors = parameters(seed=1)
    optimizer, expected = make(case, ours, tensors, lr=7.0)
    as_torch = {
        key: {name: torch.tensor(value.numpy()) for name, value in entry.items()}
        for key, entry in saved["state"].items()
    }
    expected.load_state_dict({"state": as_torch, "param_groups": saved["param_groups"]})
    optimizer.load_state_dict(theirs)
    step = step_of(ours, optimizer, True)
    for number in range(3):
        step(weft.tensor(0.1 * number, dtype=weft.float64))
        torch_step(tensors, expected, 0.1 * number)
        compare(ours, tensors, f"step {number}, parameter")


# ---- those that torch has not ---------------------------------------------------------------------------------------


def numpy_steps(rule, arrays, steps, sign=1.0):
    """The bowl of `loss_of` minimised by `rule(k, p, g, memory, t)` in float64."""
    params, memory = [array.astype(np.float64) for array in arrays], [{} for _ in arrays]
    for number in range(steps):
        for k, param in enumerate(params):
            grad = sign * 2.0 * (0.25 + 0.1 * k) * (param - (np.sin(number) + 2.0))
            params[k] = rule(param, grad, memory[k], number + 1)
    return params


def lion(lr, betas, decay):
    def rule(p, g, memory, t):
        m = memory.get("m", 0.0 * p)
        memory["m"] = betas[1] * m + (1 - betas[1]) * g
        return p * (1 - lr * decay) - lr * np.sign(betas[0] * m + (1 - betas[0]) * g)

    return rule


def nag(lr, momentum):
    def rule(p, g, memory, t):
        v = memory["v"] = momentum * memory.get("v", 0.0 * p) - lr * g
        return p + momentum * v - lr * g

    return rule


def lars(lr, momentum, decay, trust, eps, exclude=True):
    def rule(p, g, memory, t):
        ratio, lam = 1.0, decay
        size, slope = np.linalg.norm(p), np.linalg.norm(g)
        if exclude and p.ndim <= 1:
            lam = 0.0
        elif size and slope:
            ratio = trust * size / (slope + decay * size + eps)
        memory["v"] = momentum * memory.get("v", 0.0 * p) + lr * ratio * (g + lam * p)
        return p - memory["v"]

    return rule


def lamb(lr, betas, eps, decay, exclude=True, clamp=None):
    def rule(p, g, memory, t):
        m = memory["m"] = betas[0] * memory.get("m", 0.0 * p) + (1 - betas[0]) * g
        v = memory["v"] = betas[1] * memory.get("v", 0.0 * p) + (1 - betas[1]) * g * g
        u = m / (1 - betas[0] ** t) / (np.sqrt(v / (1 - betas[1] ** t)) + eps) + decay * p
        ratio, size, length = 1.0, np.linalg.norm(p), np.linalg.norm(u)
        size = size if clamp is None else min(size, clamp)
        if not (exclude and p.ndim <= 1) and size and length:
            ratio = size / length
        return p - lr * ratio * u

    return rule


OWN = {
    "lion": ("Lion", {"lr": 0.02}, lion(0.02, (0.9, 0.99), 0.0)),
    "lion_decay": ("Lion", {"lr": 0.02, "betas": (0.5, 0.8), "weight_decay": 0.1}, lion(0.02, (0.5, 0.8), 0.1)),
    "nag": ("NAG", {"lr": 0.05}, nag(0.05, 0.9)),
    "lars": ("LARS", {"lr": 0.5}, lars(0.5, 0.9, 0.0, 1e-3, 1e-8)),
    "lars_decay": (
        "LARS", {"lr": 0.5, "momentum": 0.5, "weight_decay": 0.1, "trust": 0.1}, lars(0.5, 0.5, 0.1, 0.1, 1e-8)
    ),
    "lars_vectors": (
        "LARS", {"lr": 0.5, "weight_decay": 0.1, "trust": 0.1, "exclude_1d": False},
        lars(0.5, 0.9, 0.1, 0.1, 1e-8, exclude=False),
    ),
    "lamb": ("LAMB", {"lr": 0.05}, lamb(0.05, (0.9, 0.999), 1e-6, 0.01)),
    "lamb_clamp": (
        "LAMB", {"lr": 0.05, "betas": (0.7, 0.9), "weight_decay": 0.1, "clamp": 0.7, "exclude_1d": False},
        lamb(0.05, (0.7, 0.9), 1e-6, 0.1, exclude=False, clamp=0.7),
    ),
    "lamb_plain": ("LAMB", {"lr": 0.05, "weight_decay": 0.0}, lamb(0.05, (0.9, 0.999), 1e-6, 0.0)),
}  # fmt: skip


@BOTH_WAYS
@pytest.mark.parametrize("case", OWN)
def test_steps_are_numpys(case, compiled):
    name, options, rule = OWN[case]
    ours, _ = parameters()
    with weft.no_grad():
        ours[5].zero_()  # a norm of zero
    arrays = [param.numpy() for param in ours]
    step = step_of(ours, getattr(weft.optim, name)(ours, **options), compiled)
    for number in range(10):
        step(weft.tensor(np.sin(number)))
    compare(ours, numpy_steps(rule, arrays, 10), case)


@pytest.mark.parametrize("case", ["lion", "nag", "lars_decay", "lamb"])
def test_maximize_of_those_that_torch_has_not(case):
    name, options, rule = OWN[case]
    ours, _ = parameters()
    arrays = [param.numpy() for param in ours]
    step = step_of(ours, getattr(weft.optim, name)(ours, **options, maximize=True), True, sign=-1.0)
    for number in range(3):
        step(weft.tensor(np.sin(number)))
    compare(ours, numpy_steps(rule, arrays, 3), case)


def test_norms_of_zero_gradients_change_nothing():
    """LARS has ratio 1 and LAMB makes no step."""
    for name, options in (("LARS", {"lr": 0.1}), ("LAMB", {"weight_decay": 0.0})):
        w = weft.ones(2, 3, requires_grad=True)
        optimizer = getattr(weft.optim, name)([w], **options)
        (w * 0.0).sum().backward()
        optimizer.step()
        assert w.tolist() == [[1.0] * 3] * 2


# ---- Muon -----------------------------------------------------------------------------------------------------------

MATRICES = [(12, 8), (8, 12), (6, 6), (12, 8)]


@BOTH_WAYS
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nesterov": False, "momentum": 0.5},
        {"adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.0},
        {"ns_steps": 1},
    ],
    ids=str,
)
def test_muon(options, compiled):
    """Products are of bfloat16, in which no two libraries round alike: a step is compared to a few of its last bits,
    and the momentum, which is not rounded, exactly."""
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(-1, 1, shape) for shape in MATRICES]
    ours = [weft.tensor(array, requires_grad=True) for array in arrays]
    theirs = [torch.tensor(array, requires_grad=True) for array in arrays]
    rate = 0.02
    optimizer = weft.optim.Muon(ours, lr=rate, **options)
    expected = torch.optim.Muon(theirs, lr=rate, **options)
    pulls = [rng.uniform(-1, 1, shape) for shape in MATRICES]

    def ours_step():
        optimizer.zero_grad()
        sum([(param * weft.tensor(pull)).sum() for param, pull in zip(ours, pulls, strict=True)]).backward()
        optimizer.step()

    step = weft.compile(ours_step) if compiled else ours_step
    for number in range(3):
        step()
        expected.zero_grad()
        sum([(param * torch.tensor(pull)).sum() for param, pull in zip(theirs, pulls, strict=True)]).backward()
        expected.step()
        compare(ours, theirs, f"step {number}", rtol=0, atol=(number + 1) * rate * 0.05)
        momenta = [entry["momentum_buffer"] for entry in optimizer.state_dict()["state"].values()]
        compare(momenta, [entry["momentum_buffer"] for entry in expected.state_dict()["state"].values()])
    assert optimizer.state_dict()["param_groups"][0].keys() == expected.state_dict()["param_groups"][0].keys()


def test_muon_steps_are_nearly_orthogonal():
    w = weft.randn(16, 24, requires_grad=True)
    before = w.numpy().copy()
    optimizer = weft.optim.Muon([w], lr=1.0, weight_decay=0.0)
    (w * weft.randn(16, 24)).sum().backward()
    optimizer.step()
    values = np.linalg.svd(w.numpy() - before, compute_uv=False)
    assert 0.5 < values.min() and values.max() < 1.5


# ---- L-BFGS ---------------------------------------------------------------------------------------------------------


def rosenbrock(x):
    return ((1.0 - x[:-1]) ** 2 + 100.0 * (x[1:] - x[:-1] ** 2) ** 2).sum()


@pytest.mark.parametrize(
    "options",
    [
        {"line_search_fn": "strong_wolfe"},
        {"line_search_fn": "strong_wolfe", "history_size": 3, "max_iter": 7, "lr": 0.5},
        {"lr": 1e-3, "max_iter": 5},
        {"line_search_fn": "strong_wolfe", "max_iter": 40, "max_eval": 12},
    ],
    ids=str,
)
def test_lbfgs(options):
    start = np.linspace(-1.2, 1.0, 6)
    ours = [weft.tensor(start[:4], requires_grad=True), weft.tensor(start[4:], requires_grad=True)]
    theirs = [torch.tensor(start[:4], requires_grad=True), torch.tensor(start[4:], requires_grad=True)]
    optimizer, expected = weft.optim.LBFGS(ours, **options), torch.optim.LBFGS(theirs, **options)

    def closure():
        optimizer.zero_grad()
        loss = rosenbrock(weft.cat(ours))
        loss.backward()
        return loss

    def torch_closure():
        expected.zero_grad()
        loss = rosenbrock(torch.cat(theirs))
        loss.backward()
        return loss

    for number in range(4):
        loss, other = optimizer.step(closure), expected.step(torch_closure)
        np.testing.assert_allclose(loss.item(), other.item(), rtol=1e-7, atol=1e-12)
        compare(ours, theirs, f"step {number}", rtol=1e-6, atol=1e-7)
        state, entry = optimizer.state_dict()["state"][0], expected.state_dict()["state"][0]
        assert (state["n_iter"], state["func_evals"]) == (entry["n_iter"], entry["func_evals"])
        if number == 1:  # the state goes on in another optimizer
            saved = optimizer.state_dict()
            optimizer = weft.optim.LBFGS(ours, **options)
            optimizer.load_state_dict(saved)


def test_lbfgs_is_for_the_outside():
    w = weft.ones(2, requires_grad=True)
    optimizer = weft.optim.LBFGS([w])
    with pytest.raises(weft.WeftError, match=r"LBFGS\.step: given no closure"):
        optimizer.step()
    with pytest.raises(weft.WeftError, match=r"LBFGS\.step: given a call inside weft\.compile"):
        weft.compile(lambda: optimizer.step(lambda: (w * w).sum()))()


# ---- cost -----------------------------------------------------------------------------------------------------------

ELEMENTWISE = [
    "SGD",
    "NAG",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "Adamax",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Rprop",
    "Lion",
]
MORE_KERNELS = {"ASGD": 2, "LARS": 3, "LAMB": 4}  # copies of two numbers; norms


@pytest.mark.cpu_only
@pytest.mark.parametrize("name", [*ELEMENTWISE, *MORE_KERNELS])
def test_an_update_of_twenty_parameters_is_as_many_kernels_as_of_one(name):
    params = [weft.zeros(*shape, requires_grad=True) for shape in [(64, 48), (64,), (48, 64), (48,)] * 5]
    optimizer = getattr(weft.optim, name)(params, lr=0.1)
    weft.compile(lambda: sum([(param * param).sum() for param in params]).backward())()
    step = weft.compile(lambda: optimizer.step())
    step()
    names = [kernel.name for kernel in step.plan.kernels()]
    assert len(step.plan) <= 2 + MORE_KERNELS.get(name, 0), names
    vectors = 3 + 2 * len(optimizer.param_groups[0].buckets[0].state)  # read: p, g, state; written: p, state
    if name in ELEMENTWISE:
        assert step.plan.bytes <= 1.01 * vectors * 4 * sum(param.numel() for param in params)


@pytest.mark.parametrize("name", [*ELEMENTWISE, *MORE_KERNELS, "Adafactor", "Muon"])
def test_bfloat16_parameters_keep_their_state_in_float32(name):
    """A step is that of the same numbers in float32, rounded."""
    narrow = weft.tensor(np.linspace(-1, 1, 12).reshape(3, 4), dtype=weft.bfloat16).requires_grad_()
    wide = narrow.detach().float().requires_grad_()
    options = {"eps": (1e-2, 1e-3)} if name == "Adafactor" else {}
    narrow.grad = 2.0 * (narrow.detach() - 3.0)
    wide.grad = narrow.grad.float()
    for param in (narrow, wide):
        optimizer = getattr(weft.optim, name)([param], lr=0.01, **options)
        optimizer.step()
        assert all(flat.dtype is weft.float32 for flat in optimizer.param_groups[0].buckets[0].state.values())
    assert narrow.dtype is weft.bfloat16
    np.testing.assert_array_equal(narrow.float().numpy(), wide.bfloat16().float().numpy())
