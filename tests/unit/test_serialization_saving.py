"""weft.save and weft.load: nested state comes back with its types and bits; what is no data is refused."""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch as oracle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from weft.serialization import flatten_state, unflatten_state

pytestmark = pytest.mark.unit

ARTIFACTS = Path(__file__).parents[1] / "artifacts"


def same(a, b) -> bool:
    """Whether two states are equal in every type and bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, weft.Tensor):
        return (
            a.dtype is b.dtype and a.requires_grad == b.requires_grad and same(a.detach().numpy(), b.detach().numpy())
        )
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(p, q) for p, q in zip(a.items(), b.items(), strict=True))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(p, q) for p, q in zip(a, b, strict=True))
    return struct.pack("d", a) == struct.pack("d", b) if isinstance(a, float) else a == b


STATE = {
    "tensors": [weft.arange(6.0).reshape(2, 3), (weft.tensor(3), weft.zeros(0, 2, dtype=weft.bfloat16))],
    "grad": weft.ones(2, requires_grad=True),
    "numbers": [0, -1, 2**70, True, None, 0.1, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308],
    "texts": ["", "ä", "\ud800", "\x00", "$", 'a"b\\'],
    "$": {"$": {"$": 1}},
    "": {},
    3: {(1, "a"): 2, None: 3, 1.5: 4, True: 5},
    "types": [(), [], set(), frozenset({1}), {1, 2}, OrderedDict(b=1, a=2), Counter("abca"), b"\x00\xff", weft.float16],
    "numpy": [np.float32(0.1), np.int64(-3), np.bool_(True), np.arange(4).reshape(2, 2), np.zeros((0, 3), np.uint8)],
}


def test_every_type_comes_back(tmp_path):
    weft.save(STATE, tmp_path / "x.safetensors")
    assert same(weft.load(tmp_path / "x.safetensors"), STATE)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=20)
KEYS = st.text() | st.integers() | st.none() | st.tuples(st.integers(), st.text())
STATES = st.recursive(
    PLAIN | st.lists(st.floats(width=32), max_size=4).map(lambda values: weft.tensor(np.array(values, np.float32))),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(state=STATES)
def test_any_nested_state_comes_back(state):
    tensors, rest = flatten_state(state)
    assert same(unflatten_state(tensors, json.loads(json.dumps(rest, allow_nan=False))), state)


def test_a_flat_state_keeps_its_names_for_other_programs(tmp_path):
    class Versioned(weft.nn.Linear):
        _version = 2

    model = weft.nn.Sequential(weft.nn.Linear(2, 3), Versioned(3, 3))
    weft.save(model.state_dict(), tmp_path / "x")
    assert set(oracle.load_file(tmp_path / "x")) == set(model.state_dict())
    assert weft.load(tmp_path / "x")._metadata == {"1": {"version": 2}}


def test_names_of_tensors_are_unique_and_a_tensor_is_written_once(tmp_path):
    shared = weft.ones(2)
    state = {"a": {"b": weft.zeros(1)}, "a.b": weft.ones(1), "p": shared, "q": [shared]}
    tensors, _ = flatten_state(state)
    assert list(tensors) == ["a.b", "a.b#2", "p"]
    weft.save(state, tmp_path / "x")
    found = weft.load(tmp_path / "x")
    assert same(found, state) and found["p"] is found["q"][0]
    weft.save(weft.ones(3), tmp_path / "y")
    assert weft.load(tmp_path / "y").tolist() == [1.0] * 3


def test_what_is_no_data_is_refused_with_its_path(tmp_path):
    class Own:
        def state_dict(self):
            return {}

    inside: list = []
    inside.append(inside)
    deep: list = []
    for _ in range(200):
        deep = [deep]
    for state, kind, message in [
        ({"a": [1, print]}, TypeError, r"builtin_function_or_method at state\['a'\]\[1\]"),
        ({"a": Own()}, TypeError, r"Own at state\['a'\].*save its state_dict"),
        ({"a": defaultdict(int)}, TypeError, "defaultdict at"),
        ({"a": 1j}, TypeError, "complex"),
        ({"a": np.ones(2, np.complex64)}, TypeError, "complex64"),
        (inside, RuntimeError, "contains itself"),
        (deep, RuntimeError, "levels deep"),
        (1 << 5000, TypeError, "bits"),
        (weft.nn.Linear(1, 1), TypeError, "use model.save"),
    ]:
        with pytest.raises(weft.WeftError, match=message) as caught:
            weft.save(state, tmp_path / "x")
        assert isinstance(caught.value, kind)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "rest",
    [
        {"$": "tensor", "name": "b"}, {"$": "tensor"}, {"$": "tensor", "name": 3}, {"$": "other"}, {"$": ["tuple"]},
        {"$": "tuple"}, {"$": "tuple", "items": 3}, {"$": "dict", "items": [1]}, {"$": "dict", "items": [[[], 1]]},
        {"$": "set", "items": [[1]]}, {"$": "float", "value": "1"}, {"$": "dtype", "value": "int3"},
        {"$": "bytes", "value": "*"}, {"$": "bytes", "value": 3}, {"$": "counter", "items": [[[1], 2]]},
        {"$": "ordered", "items": [], "metadata": 3},
    ],
)  # fmt: skip
def test_json_that_flatten_state_does_not_make_is_refused(rest):
    with pytest.raises(weft.FileFormatError, match="JSON of a state in which"):
        unflatten_state({"a": weft.ones(1)}, [rest])


def test_formats_of_later_versions_are_refused(tmp_path):
    weft.serialization.save_tensors(tmp_path / "x", {}, {"weft.format": "2"})
    with pytest.raises(weft.FileFormatError, match=r"format '2'; expected format 1\. Fix: a newer Weft wrote it"):
        weft.load(tmp_path / "x")


def test_the_recorded_file_of_format_1_loads(tmp_path):
    found = weft.load(ARTIFACTS / "state-1.safetensors")
    assert found["step"] == 7 and found["betas"] == (0.9, 0.999) and math.isnan(found["loss"])
    assert found["model"]["weight"].tolist() == [[0.0, 1.0, 2.0]] and found["model"]["weight"].dtype is weft.bfloat16
    assert found["state"] == {0: {"step": 3}}


def test_names_of_files_do_not_matter(tmp_path):
    weft.save({"a": weft.ones(1)}, tmp_path / "x.pt")
    assert weft.load(str(tmp_path / "x.pt"))["a"].item() == 1.0
    with pytest.raises(weft.DTypeError, match="a list as path"):
        weft.load([])
    (tmp_path / "text").write_text("hello world")
    with pytest.raises(weft.FileFormatError, match="a safetensors file"):
        weft.load(tmp_path / "text")


# ---- states of the rest of Weft -------------------------------------------------------------------------------------

OPTIMIZERS = [name for name in weft.optim.__all__ if isinstance(getattr(weft.optim, name), type)]


def trained(name):
    weft.manual_seed(3)
    model = weft.nn.Sequential(weft.nn.Linear(3, 4, bias=False), weft.nn.Linear(4, 2, bias=False))
    cls = getattr(weft.optim, name)
    optimizer = cls(model.parameters(), lr=0.01)
    x = weft.randn(5, 3)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) ** 2).sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure) if name == "LBFGS" else (closure(), optimizer.step())
    return model, optimizer, closure


@pytest.mark.parametrize(
    "name", sorted(set(OPTIMIZERS) - {"Optimizer", "ExponentialMovingAverage", "StochasticWeightAverage"})
)
def test_states_of_optimizers_round_trip_and_go_on_with_the_same_bits(name, tmp_path):
    model, optimizer, closure = trained(name)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    weft.save(state, tmp_path / "x")
    found = weft.load(tmp_path / "x")
    assert same(found, {**state, "model": found["model"]}) and same(
        list(found["model"].items()), list(state["model"].items())
    )
    other, optimizer2, closure2 = trained(name)
    with weft.no_grad():
        for param in other.parameters():
            param.zero_()
    other.load_state_dict(found["model"])
    optimizer2.load_state_dict(found["optimizer"])
    for one, step in ((optimizer, closure), (optimizer2, closure2)):
        one.step(step) if name == "LBFGS" else (step(), one.step())
    assert same([p.detach() for p in model.parameters()], [p.detach() for p in other.parameters()])


def schedulers(optimizer):
    lr = weft.optim.lr_scheduler
    return {
        "StepLR": lr.StepLR(optimizer, 2), "MultiStepLR": lr.MultiStepLR(optimizer, [2, 4, 4]),
        "CosineAnnealingLR": lr.CosineAnnealingLR(optimizer, 5), "OneCycleLR": lr.OneCycleLR(optimizer, 0.1, 10),
        "ReduceLROnPlateau": lr.ReduceLROnPlateau(optimizer), "LambdaLR": lr.LambdaLR(optimizer, lambda t: 1 / (t + 1)),
        "SequentialLR": lr.SequentialLR(optimizer, [lr.ConstantLR(optimizer), lr.ExponentialLR(optimizer, 0.9)], [2]),
        "CyclicLR": lr.CyclicLR(optimizer, 0.01, 0.1, cycle_momentum=False),
        "CosineAnnealingWarmRestarts": lr.CosineAnnealingWarmRestarts(optimizer, 3),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(schedulers(weft.optim.SGD([weft.ones(1, requires_grad=True)], lr=0.1))))
def test_states_of_schedulers_round_trip(name, tmp_path):
    def make():
        optimizer = weft.optim.SGD([weft.ones(1, requires_grad=True)], lr=0.1, momentum=0.9)
        return optimizer, schedulers(optimizer)[name]

    def step(scheduler):
        scheduler.step(1.0) if name == "ReduceLROnPlateau" else scheduler.step()

    (optimizer, scheduler), (optimizer2, scheduler2) = make(), make()
    for _ in range(3):
        step(scheduler)
    weft.save([optimizer.state_dict(), scheduler.state_dict()], tmp_path / "x")
    found = weft.load(tmp_path / "x")
    assert same(found, [optimizer.state_dict(), scheduler.state_dict()])
    optimizer2.load_state_dict(found[0])
    scheduler2.load_state_dict(found[1])
    for _ in range(3):
        step(scheduler)
        step(scheduler2)
        assert optimizer.param_groups[0]["lr"] == optimizer2.param_groups[0]["lr"]


def test_states_of_averages_and_random_streams_round_trip(tmp_path):
    weight = weft.randn(3).requires_grad_()
    ema = weft.optim.ExponentialMovingAverage([weight], decay=0.9)
    ema.update()
    generator = weft.Generator(2**63 + 5)
    weft.rand(4, generator=generator)
    weft.manual_seed(2**64 - 1)
    weft.rand(3)
    state = {"ema": ema.state_dict(), "rng": weft.get_rng_state(), "generator": generator.get_state()}
    weft.save(state, tmp_path / "x")
    found = weft.load(tmp_path / "x")
    assert same(found, state)
    expected = [weft.rand(3), weft.randn(2), weft.rand(2, generator=generator)]
    weft.set_rng_state(found["rng"])
    other = weft.Generator()
    other.set_state(found["generator"])
    assert same([weft.rand(3), weft.randn(2), weft.rand(2, generator=other)], expected)
    ema2 = weft.optim.ExponentialMovingAverage([weight], decay=0.9)
    ema2.load_state_dict(found["ema"])
    assert same(ema2.state_dict(), ema.state_dict())
    # the same through JSON alone
    text = json.dumps(weft.default_generator.state_dict())
    expected = weft.rand(3)
    weft.default_generator.load_state_dict(json.loads(text))
    assert same(weft.rand(3), expected)
    for wrong in ({}, {"seed": 1}, {"seed": -1, "draws": 0}, {"seed": 1, "draws": 0.5}, 3):
        with pytest.raises(weft.RangeError, match="what state_dict\\(\\) returned"):
            weft.default_generator.load_state_dict(wrong)


def test_a_copy_of_a_file_elsewhere_is_the_same(tmp_path):
    weft.save(STATE, tmp_path / "x")
    shutil.copy(tmp_path / "x", tmp_path / "y")
    assert same(weft.load(tmp_path / "y"), STATE)


def test_many_names_with_one_twice(tmp_path):
    """Names are compared in one pass: a header of 100,000 of them is read in a moment."""
    header = "{" + ",".join(f'"k{i}":0' for i in range(100_000)) + ',"z":0,"z":0}'
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header.encode())
    with pytest.raises(weft.FileFormatError, match="the name 'z' occurs twice"):
        weft.load(tmp_path / "x")


def test_one_array_in_many_places_is_one_array():
    one = {"$": "array", "name": "w"}
    found = unflatten_state({"w": weft.arange(4)}, {"a": [one] * 3, "b": one})
    assert found["b"] is found["a"][0] is found["a"][2] and found["b"].tolist() == [0, 1, 2, 3]
