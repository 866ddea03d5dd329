"""`weft.nn.init`: distributions, fans, forms and errors against torch's formulas, and that nothing runs when called."""

import inspect
import math
import warnings

import numpy as np
import pytest
import torch

import weft
from weft.nn import init

pytestmark = pytest.mark.usefixtures("on_each_device")  # which starts the random stream anew
INIT = torch.nn.init
SHAPES = [(3, 5), (7, 1), (4, 3, 2), (4, 6, 3, 3), (2, 3, 1, 2, 4)]
NAMES = [name for name in INIT.__all__ if name.endswith("_")]


def test_every_function_of_torch_is_there_with_its_parameters():
    for name in INIT.__all__:
        assert callable(getattr(init, name)), name
    for name in (*NAMES, "calculate_gain"):
        ours, theirs = (inspect.signature(getattr(space, name)).parameters for space in (init, INIT))
        assert [(one.name, one.default) for one in ours.values()] == [
            (one.name, one.default) for one in theirs.values()
        ], name


@pytest.mark.parametrize(
    "nonlinearity", ["linear", "conv1d", "conv_transpose3d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"]
)
def test_gains(nonlinearity):
    assert init.calculate_gain(nonlinearity) == INIT.calculate_gain(nonlinearity)
    if nonlinearity == "leaky_relu":
        for slope in (0, 0.3, 2):
            assert init.calculate_gain(nonlinearity, slope) == INIT.calculate_gain(nonlinearity, slope)


@pytest.mark.parametrize("shape", [*SHAPES, (0, 3), (2, 0, 5)])
def test_fans(shape):
    assert init._calculate_fan_in_and_fan_out(weft.empty(*shape)) == INIT._calculate_fan_in_and_fan_out(
        torch.empty(*shape)
    )
    for mode in ("fan_in", "FAN_OUT"):
        assert init._calculate_correct_fan(weft.empty(*shape), mode) == INIT._calculate_correct_fan(
            torch.empty(*shape), mode
        )


def near(values: np.ndarray, mean: float, std: float) -> None:
    """Mean and standard deviation within five of their own standard deviations, for at most a uniform's tails."""
    count = values.size
    assert abs(values.mean() - mean) < 5 * std / math.sqrt(count)
    assert abs(values.std() / std - 1) < 5 / math.sqrt(count)


@pytest.mark.parametrize("dtype", [weft.float32, weft.float64, weft.bfloat16])
def test_uniform_and_normal(dtype):
    w = init.uniform_(weft.empty(80, 90, dtype=dtype), -3.0, 1.0).double().numpy()
    near(w, -1.0, 4 / math.sqrt(12))
    assert w.min() >= -3 and w.max() <= 1 and w.max() - w.min() > 3.9
    near(init.normal_(weft.empty(80, 90, dtype=dtype), 2.0, 0.5).double().numpy(), 2.0, 0.5)


@pytest.mark.parametrize("shape", [(60, 110), (40, 30, 5), (20, 16, 4, 5)])
@pytest.mark.parametrize("mode", ["fan_in", "fan_out"])
def test_xavier_and_kaiming_have_torchs_variance(shape, mode):
    fan_in, fan_out = INIT._calculate_fan_in_and_fan_out(torch.empty(shape))
    std = 1.7 * math.sqrt(2.0 / (fan_in + fan_out))
    near(init.xavier_normal_(weft.empty(shape), 1.7).numpy(), 0.0, std)
    w = init.xavier_uniform_(weft.empty(shape), gain=1.7).numpy()
    near(w, 0.0, std)
    assert math.sqrt(3) * std * 0.99 < np.abs(w).max() <= math.sqrt(3) * std
    std = math.sqrt(2.0 / (1 + 0.25)) / math.sqrt(fan_in if mode == "fan_in" else fan_out)
    near(init.kaiming_normal_(weft.empty(shape), 0.5, mode).numpy(), 0.0, std)
    w = init.kaiming_uniform_(weft.empty(shape), a=0.5, mode=mode).numpy()
    near(w, 0.0, std)
    assert math.sqrt(3) * std * 0.99 < np.abs(w).max() <= math.sqrt(3) * std
    near(init.kaiming_normal_(weft.empty(shape), mode=mode, nonlinearity="tanh").numpy(), 0.0,
         5 / 3 / math.sqrt(fan_in if mode == "fan_in" else fan_out))  # fmt: skip


def truncated_moments(mean: float, std: float, a: float, b: float) -> tuple[float, float]:
    """By integration of the density."""
    x = np.linspace(a, b, 200001)
    p = np.exp(-(((x - mean) / std) ** 2) / 2 + (((np.clip(mean, a, b) - mean) / std) ** 2) / 2)
    p /= p.sum()
    centre = (p * x).sum()
    return centre, math.sqrt((p * (x - centre) ** 2).sum())


@pytest.mark.parametrize(
    "form",
    [(0, 1, -2, 2), (0, 0.02, -2, 2), (0, 5, -2, 2), (1, 1, -2, 0.5), (0, 1, 6, 7), (3, 0.5, -1, 1), (0, 1, -9, -8)],
)
@pytest.mark.parametrize("dtype", [weft.float32, weft.float64])
def test_truncated_normal(form, dtype):
    mean, std, a, b = form
    far = mean < a - 2 * std or mean > b + 2 * std
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        w = init.trunc_normal_(weft.empty(100, 200, dtype=dtype), mean, std, a, b).numpy()
    assert bool(caught) is far
    assert w.min() >= a and w.max() <= b
    centre, spread = truncated_moments(*form)
    assert abs(w.mean() - centre) < 5 * spread / math.sqrt(w.size)
    assert abs(w.std() / spread - 1) < 0.05


def test_truncated_normal_far_out_stays_in_its_interval():
    with pytest.warns(UserWarning, match="more than 2 std"):
        w = init.trunc_normal_(weft.empty(50), a=50.0, b=60.0).numpy()
    assert (w >= 50).all() and (w <= 60).all()


@pytest.mark.parametrize(
    "shape", [(3, 5), (5, 3), (4, 4), (1, 6), (1, 1), (33, 31), (16, 3, 3, 3), (64, 200), (150, 150)]
)
@pytest.mark.parametrize(("dtype", "close"), [(weft.float32, 2e-6), (weft.float64, 1e-14)])
def test_orthogonal(shape, dtype, close):
    w = init.orthogonal_(weft.empty(*shape, dtype=dtype), gain=2.0).numpy().reshape(shape[0], -1) / 2
    gram = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    assert np.abs(gram - np.eye(len(gram))).max() < close


def test_orthogonal_is_uniform():
    """Elements of a uniform orthogonal n by n matrix have mean 0 and variance 1 / n, the trace variance 1; determinants
    of both signs are as frequent."""
    drawn = np.stack([init.orthogonal_(weft.empty(3, 3, dtype=weft.float64)).numpy() for _ in range(400)])
    assert np.abs(drawn.mean(0)).max() < 5 / math.sqrt(3 * 400)
    assert np.abs((drawn**2).mean(0) - 1 / 3).max() < 0.08
    assert abs(np.trace(drawn, axis1=1, axis2=2).var() - 1) < 0.35
    assert 0.4 < (np.linalg.det(drawn) > 0).mean() < 0.6


@pytest.mark.parametrize(
    ("rows", "columns", "sparsity"), [(10, 7, 0.35), (9, 1, 0.5), (5, 4, 0.0), (5, 4, 1.0), (1, 3, 0.2)]
)
def test_sparse(rows, columns, sparsity):
    w = init.sparse_(weft.empty(rows, columns), sparsity, std=2.0).numpy()
    assert ((w == 0).sum(0) == math.ceil(sparsity * rows)).all()
    big = init.sparse_(weft.empty(200, 50), 0.25, std=2.0).numpy()
    near(big[big != 0], 0.0, 2.0)
    assert np.abs((big == 0).mean(1) - 0.25).max() < 0.4  # every row has its share


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (0, 2)])
def test_eye_and_constants(shape):
    assert np.array_equal(init.eye_(weft.empty(*shape)).numpy(), INIT.eye_(torch.empty(*shape)).numpy())
    for name, args in (("zeros_", ()), ("ones_", ()), ("constant_", (0.3,))):
        ours, theirs = getattr(init, name)(weft.empty(*shape), *args), getattr(INIT, name)(torch.empty(*shape), *args)
        assert np.array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize(("shape", "groups"), [((4, 2, 3), 1), ((4, 2, 3, 4), 2), ((6, 3, 2, 1, 5), 3), ((2, 5, 3), 1)])
def test_dirac(shape, groups):
    ours, theirs = init.dirac_(weft.empty(*shape), groups), INIT.dirac_(torch.empty(*shape), groups)
    assert np.array_equal(ours.numpy(), theirs.numpy())


CALLS = {
    "trunc_normal_": (), "sparse_": (0.5,), "constant_": (2.0,), "dirac_": (), "uniform_": (), "normal_": (),
    "eye_": (), "ones_": (), "zeros_": (), "xavier_uniform_": (), "xavier_normal_": (), "kaiming_uniform_": (),
    "kaiming_normal_": (), "orthogonal_": (),
}  # fmt: skip


def shape_for(name):
    return (4, 4, 3) if name == "dirac_" else (4, 6)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_written_in_place_and_stay_leaves(name):
    w = weft.full(shape_for(name), 9.0).requires_grad_()
    assert getattr(init, name)(w, *CALLS[name]) is w
    assert w.requires_grad and w.is_leaf and not bool((w == 9).any())
    (w * w).sum().backward()
    assert np.array_equal(w.grad.numpy(), 2 * w.detach().numpy())


@pytest.mark.parametrize("name", NAMES)
def test_compiled_functions_draw_the_same_numbers(name):
    def fresh():
        return getattr(init, name)(weft.empty(*shape_for(name)), *CALLS[name])

    compiled = weft.compile(fresh)
    for _ in range(3):
        state = weft.get_rng_state()
        eager = fresh().numpy()
        weft.set_rng_state(state)
        assert np.array_equal(compiled().numpy(), eager)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "generator" in inspect.signature(getattr(INIT, name)).parameters]
)
def test_generators(name):
    def drawn(seed):
        args = CALLS[name]
        return getattr(init, name)(weft.empty(5, 6), *args, generator=weft.Generator(seed)).numpy()

    before = weft.get_rng_state().numpy()
    assert np.array_equal(drawn(1), drawn(1)) and not np.array_equal(drawn(1), drawn(2))
    assert np.array_equal(weft.get_rng_state().numpy(), before)


def test_a_view_is_written_through():
    w = weft.zeros(4, 3)
    init.constant_(w.T, 2.0)
    init.uniform_(w[1:2], 5.0, 6.0)
    assert (w.numpy()[1] >= 5).all() and (w.numpy()[0] == 2).all()


def test_nothing_runs_when_called_and_all_is_one_plan():
    parameters = [weft.empty(*shape_for(name)) for name in NAMES]
    before = weft.counters()["plans_run"]
    for name, parameter in zip(NAMES, parameters, strict=True):
        getattr(init, name)(parameter, *CALLS[name])
    assert weft.counters()["plans_run"] == before
    weft.eval(*parameters)
    assert weft.counters()["plans_run"] == before + 1


@pytest.mark.parametrize("name", ["uniform", "constant", "kaiming_normal", "orthogonal"])
def test_older_names(name):
    args = (0.5,) if name == "constant" else ()
    with pytest.warns(FutureWarning, match=f"nn.init.{name} is deprecated"):
        w = getattr(init, name)(weft.empty(2, 3), *args)
    assert w.shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "error", "pattern"),
    [
        (lambda: init.calculate_gain("gelu"), weft.RangeError, "nonlinearity='gelu'"),
        (lambda: init.calculate_gain("leaky_relu", True), weft.RangeError, "the slope True"),
        (lambda: init.xavier_uniform_(weft.empty(3)), weft.ShapeError, r"shape \(3,\)"),
        (lambda: init.xavier_normal_(weft.empty(())), weft.ShapeError, "at least two axes"),
        (lambda: init.kaiming_uniform_(weft.empty(3)), weft.ShapeError, "at least two axes"),
        (lambda: init.kaiming_normal_(weft.empty(3, 2), mode="fan"), weft.RangeError, "mode='fan'"),
        (lambda: init.eye_(weft.empty(3, 3, 3)), weft.ShapeError, "eye_: given shape"),
        (lambda: init.dirac_(weft.empty(3, 3)), weft.ShapeError, "3, 4 or 5 axes"),
        (lambda: init.dirac_(weft.empty(4, 1, 3), 3), weft.ShapeError, "groups=3"),
        (lambda: init.orthogonal_(weft.empty(3)), weft.ShapeError, "orthogonal_: given shape"),
        (lambda: init.sparse_(weft.empty(3, 2, 1), 0.1), weft.ShapeError, "sparse_: given shape"),
        (lambda: init.uniform_(weft.empty(3), 2, 1), weft.RangeError, "from=2 and to=1"),
        (lambda: init.trunc_normal_(weft.empty(3), std=0.0), weft.RangeError, "std=0.0"),
        (lambda: init.orthogonal_(weft.zeros(3, 3, dtype=weft.int64)), weft.DTypeError, "int64"),
    ],
)  # fmt: skip
def test_errors(call, error, pattern):
    with pytest.raises(error, match=pattern):
        call()


def test_empty_tensors():
    with pytest.warns(UserWarning, match="nothing to initialise"):
        assert init.kaiming_uniform_(weft.empty(0, 3)).shape == (0, 3)
    assert init.orthogonal_(weft.empty(0, 3)).shape == (0, 3)
    assert init.sparse_(weft.empty(3, 0), 0.5).shape == (3, 0)
