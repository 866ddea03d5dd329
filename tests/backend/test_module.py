"""nn.Module beside torch's: registration, traversal, state, moves, hooks, copies, what people see."""

import copy
import gc
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch

import weft
import weft.nn as nn
from tests.backend.modules import assert_same_state, same_weights

pytestmark = pytest.mark.usefixtures("on_each_device")


def build(library):
    """The same model in both libraries: nested, with shared parts, buffers and names that were reserved."""

    class Block(library.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = library.nn.Linear(3, 3)
            self.second = library.nn.Linear(3, 3, bias=False)
            self.register_buffer("mean", library.zeros(3))
            self.register_buffer("scratch", library.ones(2), persistent=False)
            self.register_parameter("nothing", None)

        def forward(self, x):
            return self.second(self.first(x).tanh()) + self.mean

    class Model(library.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = library.nn.ModuleList([Block(), Block()])
            self.shared = self.blocks[0].first
            self.heads = library.nn.ModuleDict({"a": library.nn.Linear(3, 2), "b": library.nn.Linear(3, 1)})
            self.scale = library.nn.Parameter(library.ones(1))
            self.frozen = library.nn.Parameter(library.ones(1), requires_grad=False)
            self.extra = library.nn.ParameterList([library.ones(2), library.ones(3)])
            self.named = library.nn.ParameterDict({"x": library.ones(1)})

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.heads["a"](self.shared(x)) * self.scale

    return Model()


@pytest.fixture
def pair():
    ours, theirs = build(weft), build(torch)
    same_weights(ours, theirs)
    return ours, theirs


def names(items):
    return [name for name, _ in items]


def test_names_are_torchs(pair):
    ours, theirs = pair
    for what in ("parameters", "buffers", "modules", "children"):
        assert names(getattr(ours, f"named_{what}")()) == names(getattr(theirs, f"named_{what}")())
        assert len(list(getattr(ours, what)())) == len(list(getattr(theirs, what)()))
    assert names(ours.named_parameters(remove_duplicate=False)) == names(
        theirs.named_parameters(remove_duplicate=False)
    )
    assert names(ours.named_parameters("p", recurse=False)) == names(theirs.named_parameters("p", recurse=False))
    assert names(ours.named_modules(prefix="m", remove_duplicate=False)) == names(
        theirs.named_modules(prefix="m", remove_duplicate=False)
    )
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert list(ours.state_dict(prefix="q.")) == list(theirs.state_dict(prefix="q."))


def test_results_and_gradients_are_torchs(pair):
    ours, theirs = pair
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    result, expected = ours(weft.tensor(x)), theirs(torch.tensor(x))
    np.testing.assert_allclose(result.detach().numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    result.sum().backward()
    expected.sum().backward()
    for (name, param), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (param.grad is None) == (other.grad is None), name
        if param.grad is not None:
            np.testing.assert_allclose(param.grad.numpy(), other.grad.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_parts_by_path(pair):
    ours, _ = pair
    assert ours.get_submodule("blocks.1.first") is ours.blocks[1].first
    assert ours.get_parameter("heads.a.weight") is ours.heads["a"].weight
    assert ours.get_buffer("blocks.0.mean") is ours.blocks[0].mean
    assert ours.get_submodule("") is ours
    with pytest.raises(AttributeError, match=r"blocks\.7.*'7'"):
        ours.get_submodule("blocks.7")
    with pytest.raises(AttributeError, match="no parameter 'nope'"):
        ours.get_parameter("heads.a.nope")
    new = nn.Linear(3, 2)
    ours.set_submodule("heads.a", new)
    assert ours.heads["a"] is new


def test_attributes_move_between_kinds():
    layer = nn.Module()
    layer.value = 3
    layer.value = nn.Parameter(weft.ones(2))
    assert names(layer.named_parameters()) == ["value"] and "value" not in layer.__dict__
    layer.value = nn.Linear(2, 2)
    assert names(layer.named_parameters()) == ["value.weight", "value.bias"]
    with pytest.raises(weft.DTypeError, match="submodule 'value'"):
        layer.value = 3
    del layer.value
    assert not hasattr(layer, "value") and not list(layer.parameters())
    layer.weight = nn.Parameter(weft.ones(2))
    with pytest.raises(weft.DTypeError, match=r"parameter 'weight'.*nn\.Parameter"):
        layer.weight = weft.ones(2)
    layer.weight = None
    assert layer.weight is None and not list(layer.parameters())
    layer.state = nn.Buffer(weft.zeros(1), persistent=False)
    assert names(layer.named_buffers()) == ["state"] and not layer.state_dict()
    layer.state = weft.ones(1)
    assert layer.get_buffer("state").item() == 1.0
    with pytest.raises(weft.DTypeError, match="buffer 'state'"):
        layer.state = "text"


def test_before_init_the_error_says_so():
    class Early(nn.Module):
        def __init__(self):
            self.weight = nn.Parameter(weft.ones(1))

    with pytest.raises(AttributeError, match="super"):
        Early()


def test_wrong_names():
    layer = nn.Module()
    for call in (
        lambda: layer.register_buffer("a.b", weft.ones(1)),
        lambda: layer.register_buffer("", weft.ones(1)),
        lambda: layer.register_buffer("forward", weft.ones(1)),
    ):
        with pytest.raises(weft.GraphError):
            call()
    for call in (
        lambda: layer.register_parameter("w", weft.ones(1)),
        lambda: layer.register_buffer("w", 3),
        lambda: layer.add_module("w", 3),
        lambda: nn.Parameter([1.0]),
    ):
        with pytest.raises(weft.DTypeError):
            call()


def test_a_parameter_is_a_tensor_with_memory_of_its_own():
    value = weft.ones(3)
    param = nn.Parameter(value)
    assert isinstance(param, weft.Tensor) and param.is_leaf and param.requires_grad
    with weft.no_grad():
        param.mul_(5)
    assert value.tolist() == [1, 1, 1] and param.tolist() == [5, 5, 5]
    param.note = "kept"
    twin = copy.deepcopy(param)
    assert type(twin) is nn.Parameter and twin.note == "kept" and twin.requires_grad and twin is not param
    loaded = pickle.loads(pickle.dumps(param))
    assert type(loaded) is nn.Parameter and loaded.tolist() == [5, 5, 5] and loaded.note == "kept"
    frozen = nn.Parameter(value, requires_grad=False)
    layer = nn.Module()
    layer.w = frozen
    assert names(layer.named_parameters()) == ["w"] and not list(layer.buffers())
    assert type(param * 1) is weft.Tensor
    assert repr(param).startswith("Parameter containing:\ntensor([5., 5., 5.]")


def test_a_model_is_initialised_by_one_plan():
    weft.manual_seed(0)
    before = weft.counters()
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(10)])
    assert weft.counters()["plans_run"] == before["plans_run"]
    nn.parameter.compute_waiting()
    assert weft.counters()["plans_run"] == before["plans_run"] + 1
    weft.manual_seed(0)
    one_by_one = []
    for _ in range(10):
        layer = nn.Linear(16, 16)
        one_by_one += [layer.weight.numpy(), layer.bias.numpy()]
    for param, expected in zip(model.parameters(), one_by_one, strict=True):
        np.testing.assert_array_equal(param.numpy(), expected)


def test_modes_and_freezing(pair):
    ours, _ = pair
    assert ours.eval() is ours and not any(module.training for module in ours.modules())
    ours.blocks.train()
    assert ours.blocks[1].first.training and not ours.heads["a"].training
    ours.requires_grad_(False)
    assert not any(param.requires_grad for param in ours.parameters())
    with pytest.raises(ValueError, match="boolean"):
        ours.train("yes")


def test_zero_grad(pair):
    ours, _ = pair
    ours(weft.ones(1, 3)).sum().backward()
    ours.zero_grad(set_to_none=False)
    assert ours.scale.grad.tolist() == [0.0]
    ours.zero_grad()
    assert ours.scale.grad is None


def test_moves_keep_parameters_gradients_and_buffers(pair):
    ours, _ = pair
    ours(weft.ones(1, 3)).sum().backward()
    kept = [id(param) for param in ours.parameters()]
    ours.register_buffer("count", weft.zeros((), dtype=weft.int64))
    ours.double()
    assert [id(param) for param in ours.parameters()] == kept
    assert ours.scale.dtype is weft.float64 and ours.scale.grad.dtype is weft.float64
    assert ours.blocks[0].mean.dtype is weft.float64 and ours.count.dtype is weft.int64
    for name in ("bfloat16", "half", "float"):
        getattr(ours, name)()
        assert ours.scale.dtype is getattr(weft, {"half": "float16", "float": "float32"}.get(name, name))
    assert ours.to("cpu", weft.float64).scale.dtype is weft.float64
    assert ours.to(weft.ones(1)).scale.dtype is weft.float32
    with pytest.raises(weft.DTypeError, match="int32"):
        ours.to(weft.int32)
    assert ours.cpu() is ours


def test_apply_visits_all(pair):
    ours, theirs = pair
    seen, expected = [], []
    ours.apply(lambda module: seen.append(type(module).__name__))
    theirs.apply(lambda module: expected.append(type(module).__name__))
    assert seen == expected


def test_state_dict_round_trips(pair):
    ours, theirs = pair
    assert_same_state(ours, theirs)
    other = build(weft)
    assert str(other.load_state_dict(ours.state_dict())) == "<All keys matched successfully>"
    assert_same_state(other, theirs)
    back = build(torch)
    back.load_state_dict({key: torch.tensor(value.numpy()) for key, value in ours.state_dict().items()})
    assert_same_state(ours, back)
    arrays = {key: value.numpy() for key, value in ours.state_dict().items()}
    third = build(weft)
    third.load_state_dict(arrays)
    assert_same_state(third, theirs)
    vars_ = ours.state_dict(keep_vars=True)
    assert vars_["scale"] is ours.scale and ours.state_dict()["scale"] is not ours.scale


def test_memory_of_others_is_copied_at_once():
    """What was loaded stays, though the other library writes to its memory before it is used."""
    for given in (torch.ones(2, 2), np.ones((2, 2), np.float32)):
        layer = nn.Linear(2, 2, bias=False)
        layer.load_state_dict({"weight": given})
        given[:] = 7
        assert layer.weight.tolist() == [[1, 1], [1, 1]]


def test_load_reports_all_that_does_not_fit(pair):
    ours, _ = pair
    before = ours.scale.numpy().copy()
    state = OrderedDict(ours.state_dict())
    del state["heads.a.bias"]
    state["new"] = weft.ones(1)
    state["blocks.0.mean"] = weft.ones(7)
    state["scale"] = weft.full((1,), 9.0)
    with pytest.raises(weft.ShapeError) as caught:
        ours.load_state_dict(state)
    text = str(caught.value)
    assert "missing: heads.a.bias" in text and "unexpected: new" in text
    assert "blocks.0.mean: given shape [7], expected [3]" in text
    np.testing.assert_array_equal(ours.scale.numpy(), before)  # nothing was loaded
    del state["blocks.0.mean"]
    result = ours.load_state_dict(state, strict=False)
    assert result.missing_keys == ["heads.a.bias", "blocks.0.mean"][::-1] or set(result.missing_keys) == {
        "heads.a.bias", "blocks.0.mean",
    }  # fmt: skip
    assert result.unexpected_keys == ["new"] and ours.scale.item() == 9.0
    with pytest.raises(TypeError, match="a list"):
        ours.load_state_dict([1])


def test_load_with_assign():
    model = nn.Linear(2, 2)
    weight = weft.ones(2, 2, dtype=weft.float64)
    old = model.weight
    model.load_state_dict({"weight": weight, "bias": weft.zeros(2, dtype=weft.float64)}, assign=True)
    assert model.weight is not old and model.weight.dtype is weft.float64 and model.weight.requires_grad


def test_deep_copies_and_pickles_are_independent(pair):
    ours, _ = pair
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(nn.Sequential(nn.Linear(2, 2))))):
        assert all(isinstance(param, nn.Parameter) for param in twin.parameters())
    twin = copy.deepcopy(ours)
    assert twin.shared is twin.blocks[0].first and twin.shared is not ours.shared
    with weft.no_grad():
        twin.scale.add_(1)
    assert ours.scale.item() == 1.0


def test_errors_name_the_layer(pair):
    ours, _ = pair

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = ours

        def forward(self, x):
            return self.encoder(x)

    with pytest.raises(weft.ShapeError) as caught:
        Outer()(weft.ones(2, 5))
    text = str(caught.value)
    assert text.startswith("encoder.blocks.0.first (Linear(in_features=3, out_features=3, bias=True)): ")
    assert "[2, 5]" in text and "[*, 3]" in text
    step = weft.compile(lambda x: nn.Sequential(ours)(x))
    with pytest.raises(weft.ShapeError, match=r"0\.blocks\.0\.first"):
        step(weft.ones(2, 5))


def test_repr_is_torchs(pair):
    ours, theirs = pair
    assert repr(ours.blocks[1].first) == repr(theirs.blocks[1].first)
    assert repr(ours.heads) == repr(theirs.heads)
    assert repr(nn.Sequential()) == repr(torch.nn.Sequential())
    assert repr(nn.Sequential(nn.Linear(1, 2), nn.Sequential(nn.Linear(2, 1)))) == repr(
        torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Sequential(torch.nn.Linear(2, 1)))
    )


def test_errors_of_loading_are_torchs_kinds():
    layer = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="missing: bias"):
        layer.load_state_dict({"weight": weft.ones(2, 2)})
    counting = nn.BatchNorm1d(2)
    state = dict(counting.state_dict(), num_batches_tracked=weft.ones(1, dtype=weft.int64))
    counting.load_state_dict(state)
    assert counting.num_batches_tracked.item() == 1
    given = nn.Parameter(weft.zeros(2, 2))
    layer.load_state_dict({"weight": given, "bias": weft.zeros(2)}, assign=True)
    assert layer.weight is given


def test_parameters_that_are_gone_do_not_wait():
    nn.parameter.compute_waiting()
    for _ in range(10):
        nn.Parameter(weft.rand(2) * 2)
    assert len(nn.parameter._waiting) == 0


def test_apply_gives_parameters_their_values():
    layer = nn.Linear(1, 1, bias=False)
    before = layer.weight.item()
    layer._apply(lambda tensor: tensor * 2)
    assert layer.weight.item() == 2 * before


def test_parameters_of_garbage_take_no_memory():
    """A model in a reference cycle, as the traceback of an error makes one, is not computed with the next model."""
    gc.collect()
    gc.disable()
    try:
        huge = nn.Linear(10**8, 10**8)
        huge.__dict__["itself"] = huge
        del huge
        assert nn.Linear(2, 3)(weft.ones(1, 2)).shape == (1, 3)
        kept = nn.Linear(10**8, 10**8)
        with pytest.raises(weft.OutOfMemoryError):
            nn.Linear(2, 3)(weft.ones(1, 2))
        del kept
        assert nn.Linear(2, 3)(weft.ones(1, 2)).shape == (1, 3)
    finally:
        gc.enable()
