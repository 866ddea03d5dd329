"""Parametrizations and normalized weights: torch's numbers, keys and gradients, and no stale weights when compiled."""

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.utils.parametrizations as theirs
import torch.nn.utils.parametrize as P

import weft
import weft.nn as nn
from weft.nn.utils import parametrizations as ours
from weft.nn.utils import parametrize

pytestmark = pytest.mark.usefixtures("on_each_device")


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T

    def right_inverse(self, value):
        return value.triu()


class TorchSymmetric(torch.nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T

    def right_inverse(self, value):
        return value.triu()


class Halved(nn.Module):
    def forward(self, x):
        return x * 0.5

    def right_inverse(self, value):
        return value * 2.0


class TorchHalved(torch.nn.Module):
    def forward(self, x):
        return x * 0.5

    def right_inverse(self, value):
        return value * 2.0


def symmetric(layer, is_ours):
    register = parametrize.register_parametrization if is_ours else P.register_parametrization
    register(layer, "weight", (Symmetric if is_ours else TorchSymmetric)())
    register(layer, "weight", (Halved if is_ours else TorchHalved)())
    return layer


def choose(name, /, **options):
    return lambda layer, is_ours: getattr(ours if is_ours else theirs, name)(layer, **options)


def older(name, /, **options):
    def apply(layer, is_ours):
        if is_ours:
            return getattr(nn.utils, name)(layer, **options)
        with pytest.warns(FutureWarning) if name == "weight_norm" else _nothing():
            return getattr(torch.nn.utils, name)(layer, **options)

    return apply


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


CASES = {
    "symmetric, halved": (symmetric, "Linear", (4, 4)),
    "weight_norm": (choose("weight_norm"), "Linear", (4, 6)),
    "weight_norm of all": (choose("weight_norm", dim=None), "Linear", (4, 6)),
    "weight_norm of columns": (choose("weight_norm", dim=1), "Linear", (4, 6)),
    "weight_norm of a convolution": (choose("weight_norm"), "Conv1d", (4, 3, 2)),
    "spectral_norm": (choose("spectral_norm", n_power_iterations=2), "Linear", (4, 6)),
    "spectral_norm of a transposed convolution": (choose("spectral_norm"), "ConvTranspose1d", (4, 3, 2)),
    "spectral_norm of a bias": (choose("spectral_norm", name="bias"), "Linear", (4, 6)),
    "orthogonal, matrix_exp": (choose("orthogonal"), "Linear", (4, 4)),
    "orthogonal, matrix_exp, tall": (choose("orthogonal", orthogonal_map="matrix_exp"), "Linear", (4, 6)),
    "orthogonal, cayley": (choose("orthogonal", orthogonal_map="cayley"), "Linear", (4, 4)),
    "orthogonal, cayley, wide": (choose("orthogonal", orthogonal_map="cayley"), "Linear", (4, 3)),
    "orthogonal, householder, tall": (choose("orthogonal"), "Linear", (4, 7)),
    "orthogonal, householder, wide": (choose("orthogonal"), "Linear", (4, 3)),
    "orthogonal, householder, square, no base": (
        choose("orthogonal", orthogonal_map="householder", use_trivialization=False), "Linear", (4, 4)
    ),
    "orthogonal, cayley, no base": (
        choose("orthogonal", orthogonal_map="cayley", use_trivialization=False), "Linear", (4, 4)
    ),
    "older weight_norm": (older("weight_norm"), "Linear", (4, 6)),
    "older weight_norm of a transposed convolution": (older("weight_norm", dim=1), "ConvTranspose1d", (4, 3, 2)),
    "older spectral_norm": (older("spectral_norm", n_power_iterations=2), "Linear", (4, 6)),
    "older spectral_norm of a transposed convolution": (older("spectral_norm"), "ConvTranspose1d", (4, 3, 2)),
}  # fmt: skip


def pair(case):
    """The layer, torch's with the same values, and inputs."""
    apply, name, arguments = CASES[case]
    layer = apply(getattr(nn, name)(*arguments).double(), True)
    oracle = apply(getattr(torch.nn, name)(*arguments).double(), False)
    assert list(layer.state_dict()) == list(oracle.state_dict())
    oracle.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in layer.state_dict().items()})
    shape = (3, 4) if name == "Linear" else (3, 4, 5)
    return layer, oracle, [np.random.default_rng(iteration).normal(size=shape) for iteration in range(4)]


@pytest.mark.parametrize("case", CASES)
def test_training_is_that_of_torch_compiled_and_not(case):
    layer, oracle, inputs = pair(case)
    optimizer = weft.optim.SGD(layer.parameters(), lr=0.1, momentum=0.5)
    other = torch.optim.SGD(oracle.parameters(), lr=0.1, momentum=0.5)

    def step(x):
        loss = (layer(x) ** 3).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    compiled = weft.compile(step)
    for iteration, x in enumerate(inputs):
        expected = (oracle(torch.from_numpy(x)) ** 3).mean()
        expected.backward()
        other.step()
        other.zero_grad()
        loss = (step if iteration == 3 else compiled)(weft.tensor(x))
        np.testing.assert_allclose(loss.item(), expected.item(), rtol=1e-8, err_msg=f"step {iteration}")
    assert compiled.retraces == []
    for key, value in oracle.state_dict().items():
        np.testing.assert_allclose(layer.state_dict()[key], value.numpy(), rtol=1e-7, atol=1e-9, err_msg=key)
    layer.eval(), oracle.eval()
    x = inputs[0]
    expected = oracle(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(layer(weft.tensor(x)).detach(), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_a_compiled_call_sees_every_change_of_the_original(case):
    layer, _, inputs = pair(case)
    layer.eval()
    call = weft.compile(lambda x: layer(x))
    x = weft.tensor(inputs[0])
    results = []
    for _ in range(3):
        results.append(layer(x).detach().numpy())
        np.testing.assert_allclose(call(x).detach(), results[-1], rtol=1e-10, atol=1e-12)
        with weft.no_grad():
            for name, param in layer.named_parameters():
                if "orthogonal" in case and "bias" not in name:  # only what is under the diagonal counts
                    param.add_(0.1 * weft.ones(*param.shape, dtype=param.dtype).tril(-1))
                else:
                    param.mul_(1.5)
    assert not np.allclose(results[0], results[1], rtol=1e-3) and not np.allclose(results[1], results[2], rtol=1e-3)
    assert call.retraces == []


@pytest.mark.parametrize("case", CASES)
def test_copies_and_pickles_have_their_own_parameters(case):
    layer, _, inputs = pair(case)
    layer.eval()
    x = weft.tensor(inputs[0])
    expected = layer(x).detach().numpy()
    twins = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    with weft.no_grad():
        for param in layer.parameters():
            param.mul_(3.0)
    for twin in twins:
        assert type(twin) is type(layer) and isinstance(twin, getattr(nn, CASES[case][1]))
        np.testing.assert_allclose(twin(x).detach(), expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (1, 1), (9, 8), (2, 6, 4), (2, 3, 3)])
@pytest.mark.parametrize("kind", ["matrix_exp", "cayley", "householder"])
def test_orthogonal_stays_orthogonal_while_it_learns(kind, shape):
    layer = nn.Module()
    weft.manual_seed(1)
    layer.weight = nn.Parameter(weft.randn(*shape, dtype=weft.float64))
    start = layer.weight.detach().numpy()
    ours.orthogonal(layer, orthogonal_map=kind)
    first = layer.weight.detach().numpy()
    tall = start if shape[-2] >= shape[-1] else np.swapaxes(start, -1, -2)
    q, r = np.linalg.qr(tall)
    q = q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    np.testing.assert_allclose(first, q if shape[-2] >= shape[-1] else np.swapaxes(q, -1, -2), atol=1e-12)
    optimizer = weft.optim.Adam(layer.parameters(), lr=0.3)
    target = weft.randn(*shape, dtype=weft.float64)

    @weft.compile
    def step():
        loss = ((layer.weight - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = [step().item() for _ in range(20)]
    assert losses[-1] < losses[0] or shape == (1, 1)
    w = layer.weight.detach().numpy()
    gram = np.swapaxes(w, -1, -2) @ w if shape[-2] >= shape[-1] else w @ np.swapaxes(w, -1, -2)
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(gram.shape[-1]), gram.shape), atol=1e-10)


def test_the_inverse_of_triangular_matrices():
    from weft.nn.utils.orthogonal_maps import invert_triangular

    for size in (1, 2, 3, 5, 8, 13, 33):
        upper = np.triu(np.random.default_rng(size).normal(size=(2, size, size))) + 3 * np.eye(size)
        np.testing.assert_allclose(invert_triangular(weft.tensor(upper)), np.linalg.inv(upper), rtol=1e-9, atol=1e-12)


def test_a_value_can_be_assigned():
    layer = symmetric(nn.Linear(3, 3), True)
    value = weft.rand(3, 3)
    value = value + value.T
    layer.weight = value
    np.testing.assert_allclose(layer.weight.detach(), value, rtol=1e-6)
    orthogonal = ours.orthogonal(nn.Linear(4, 4))
    q = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]
    orthogonal.weight = weft.tensor(q, dtype=weft.float32)
    np.testing.assert_allclose(orthogonal.weight.detach(), q, atol=1e-6)


def test_registering_again_appends_and_removing_restores():
    layer = nn.Linear(3, 3)
    weight = layer.weight
    symmetric(layer, True)
    assert layer.parametrizations.weight.original is weight, "the parameter is another one: optimizers would not see it"
    assert type(layer).__name__ == "ParametrizedLinear" and len(layer.parametrizations.weight) == 2
    assert parametrize.type_before_parametrizations(layer) is nn.Linear
    present = layer.weight.detach().numpy()
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear and layer.weight is weight
    assert not parametrize.is_parametrized(layer) and list(layer.state_dict()) == ["bias", "weight"]
    np.testing.assert_array_equal(layer.weight.detach(), present)
    symmetric(layer, True)
    original = layer.parametrizations.weight.original.detach().numpy()
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    np.testing.assert_array_equal(layer.weight.detach(), original)


def test_two_tensors_of_a_module_and_modules_of_one_class_are_apart():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    ours.weight_norm(first)
    ours.spectral_norm(first, "bias")
    ours.weight_norm(second)
    assert parametrize.is_parametrized(first, "bias") and not parametrize.is_parametrized(second, "bias")
    assert isinstance(second.bias, nn.Parameter) and not isinstance(nn.Linear(3, 3).weight, property)
    parametrize.remove_parametrizations(first, "weight")
    assert isinstance(first.weight, nn.Parameter) and parametrize.is_parametrized(first, "bias")
    first(weft.ones(2, 3)), second(weft.ones(2, 3))


def test_a_compiled_function_sees_a_parametrization_come_and_go():
    layer = nn.Linear(3, 3)
    x = weft.rand(2, 3)
    call = weft.compile(lambda x: layer(x))
    plain = call(x).detach().numpy()
    symmetric(layer, True)
    np.testing.assert_allclose(call(x).detach(), layer(x).detach(), rtol=1e-6)
    assert not np.allclose(plain, layer(x).detach())
    parametrize.remove_parametrizations(layer, "weight")
    np.testing.assert_allclose(call(x).detach(), layer(x).detach(), rtol=1e-6)
    nn.utils.weight_norm(layer)
    with weft.no_grad():
        layer.weight_g.mul_(2.0)
    np.testing.assert_allclose(call(x).detach(), layer(x).detach(), rtol=1e-6)
    nn.utils.remove_weight_norm(layer)
    np.testing.assert_allclose(call(x).detach(), layer(x).detach(), rtol=1e-6)


def test_cached_computes_once_and_only_inside_the_block():
    layer = ours.spectral_norm(nn.Linear(3, 3))
    calls = []
    layer.parametrizations.weight[0].register_forward_hook(lambda *_: calls.append(1))
    with parametrize.cached():
        assert layer.weight is layer.weight
        with parametrize.cached():
            layer(weft.ones(1, 3))
        assert len(calls) == 1
    assert layer.weight is not layer.weight and len(calls) == 3


def test_cached_works_inside_and_around_compiled_functions():
    layer = ours.weight_norm(nn.Linear(3, 3))
    x = weft.rand(2, 3)

    @weft.compile
    def twice(x):
        with parametrize.cached():
            return layer(layer(x))

    call = weft.compile(lambda x: layer(x))
    for _ in range(2):
        np.testing.assert_allclose(twice(x).detach(), layer(layer(x)).detach(), rtol=1e-6)
        with parametrize.cached():
            kept = layer.weight
            np.testing.assert_allclose(call(x).detach(), (x @ kept.T + layer.bias).detach(), rtol=1e-6)
            assert layer.weight is kept
        with weft.no_grad():
            layer.parametrizations.weight.original0.mul_(2.0)


def test_rank_one_has_two_originals():
    class RankOne(nn.Module):
        def forward(self, x, y):
            return x.unsqueeze(-1) @ y.unsqueeze(-2)

        def right_inverse(self, value):
            u, s, v = weft.linalg.svd(value, full_matrices=False)
            return u[:, 0] * s[0].sqrt(), v[0] * s[0].sqrt()

    layer = parametrize.register_parametrization(nn.Linear(4, 3), "weight", RankOne())
    names = [name for name, _ in layer.named_parameters()]
    assert names == ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"]
    assert np.linalg.matrix_rank(layer.weight.detach().numpy()) == 1
    with pytest.raises(weft.GraphError, match="several originals"):
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=False)
    parametrize.remove_parametrizations(layer, "weight")
    assert isinstance(layer.weight, nn.Parameter) and layer.weight.shape == (3, 4)


def test_transfer():
    source, target = ours.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 3)
    parametrize.transfer_parametrizations_and_params(source, target)
    np.testing.assert_array_equal(target.weight.detach(), source.weight.detach())
    assert target.parametrizations.weight.original0 is not source.parametrizations.weight.original0


def test_a_buffer_can_be_parametrized():
    layer = nn.BatchNorm1d(3)
    parametrize.register_parametrization(layer, "running_mean", Halved())
    assert "parametrizations.running_mean.original" in dict(layer.named_buffers())
    assert layer.running_mean.shape == (3,)


def test_wrong_parametrizations():
    class Flat(nn.Module):
        def forward(self, x):
            return x.reshape(-1)

    class Number(nn.Module):
        def forward(self, x):
            return 3.0

    layer = nn.Linear(3, 2)
    with pytest.raises(weft.GraphError, match=r"'wait'.*Linear"):
        parametrize.register_parametrization(layer, "wait", Halved())
    with pytest.raises(weft.ShapeError, match=r"\[6\].*\[2, 3\].*unsafe"):
        parametrize.register_parametrization(layer, "weight", Flat())
    with pytest.raises(weft.DTypeError, match=r"float.*a tensor"):
        parametrize.register_parametrization(layer, "weight", Number())
    assert type(layer) is nn.Linear and isinstance(layer.weight, nn.Parameter)
    with pytest.raises(weft.GraphError, match="no parametrization"):
        parametrize.remove_parametrizations(layer, "weight")
    with pytest.raises(weft.RangeError, match="orthogonal_map='qr'"):
        ours.orthogonal(layer, orthogonal_map="qr")
    with pytest.raises(weft.ShapeError, match=r"\(2,\)"):
        ours.orthogonal(layer, "bias")
    parametrize.register_parametrization(layer, "weight", Flat(), unsafe=True)
    assert layer.weight.shape == (6,)
    with pytest.raises(weft.GraphError, match="no right_inverse"):
        layer.weight = weft.ones(2, 3)
    nn.utils.weight_norm(other := nn.Linear(3, 2))
    with pytest.raises(weft.GraphError, match="computed already"):
        nn.utils.spectral_norm(other)
    with pytest.raises(weft.GraphError, match="weight_g, weight_v"):
        other.weight = weft.ones(2, 3)
    with pytest.raises(weft.GraphError, match="normalized"):
        nn.utils.remove_spectral_norm(other)


def test_removing_the_older_norms():
    for name in ("weight_norm", "spectral_norm"):
        layer = getattr(nn.utils, name)(nn.Linear(4, 3))
        x = weft.rand(2, 4)
        layer.eval()
        expected = layer(x).detach().numpy()
        getattr(nn.utils, f"remove_{name}")(layer)
        assert type(layer) is nn.Linear and sorted(layer.state_dict()) == ["bias", "weight"] and not layer._hooks
        np.testing.assert_allclose(layer(x).detach(), expected, rtol=1e-6)


def test_lazy_layers_are_called_first():
    for apply in (nn.utils.weight_norm, nn.utils.spectral_norm, ours.weight_norm, ours.spectral_norm, ours.orthogonal):
        layer = nn.LazyLinear(3)
        with pytest.raises(weft.GraphError, match=r"'weight' of LazyLinear.*no shape.*call the module once"):
            apply(layer)
        layer(weft.ones(2, 3))
        assert apply(layer)(weft.ones(2, 3)).shape == (2, 3)


@pytest.mark.parametrize(
    "apply", [older("weight_norm", name="weight_hh_l0"), choose("weight_norm", name="weight_hh_l0")]
)
def test_a_weight_of_a_recurrent_layer(apply):
    layer, oracle = apply(nn.LSTM(3, 4).double(), True), apply(torch.nn.LSTM(3, 4).double(), False)
    assert list(layer.state_dict()) == list(oracle.state_dict())
    oracle.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in layer.state_dict().items()})
    x = np.random.default_rng(0).normal(size=(5, 2, 3))
    call = weft.compile(lambda x: layer(x)[0])
    for _ in range(2):
        expected = oracle(torch.from_numpy(x))[0].detach().numpy()
        np.testing.assert_allclose(call(weft.tensor(x)).detach(), expected, rtol=1e-10)
        with weft.no_grad(), torch.no_grad():
            for one, other in zip(layer.parameters(), oracle.parameters(), strict=True):
                one.mul_(1.5)
                other.mul_(1.5)
