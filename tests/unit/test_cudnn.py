"""Convolution and attention by cuDNN: what Weft asks of it, on a cuDNN made of NumPy (tests/gpu has the real one)."""

from __future__ import annotations

import re
import sys
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import weft
import weft.nn.functional as F
from tests.unit.fake_cudnn import Engine, FakeGraphs, FakePackage
from tests.unit.lockstep import Lockstep
from weft.backends.cuda import cudnn as vendor
from weft.backends.cuda.cudnn import Cudnn
from weft.backends.cuda.cudnn_graphs import Form, Graphs, Operand
from weft.plan.device import Slab
from weft.plan.plan import LibraryCall
from weft.plan.serialize import pack, unpack

pytestmark = [pytest.mark.unit, pytest.mark.filterwarnings("ignore:Using padding=.same.")]


@pytest.fixture
def graphs():
    return FakeGraphs()


@pytest.fixture
def device(graphs):
    emulator = Lockstep()
    features = replace(emulator.device.features, float16_attention=True)
    emulator.device = replace(emulator.device, features=features, libraries={"cudnn": Cudnn(graphs)})
    return emulator.device


@pytest.fixture
def rounded():
    """Products of float32 may be rounded: then cuDNN computes input gradients, too."""
    weft.set_float32_matmul_precision("high")
    yield
    weft.set_float32_matmul_precision("highest")


def on(device, array, dtype=weft.float32):
    with weft.device(device):
        return weft.tensor(np.asarray(array, np.float32)).to(dtype)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def as_torch(tensor):
    return torch.tensor(tensor.float().numpy(), dtype=torch.float64, requires_grad=True)


def steps(function):
    """The names of what a compiled function runs: calls of the library as they are, kernels by their first word."""
    plan = function.plan.plan
    return [step.name if isinstance(step, LibraryCall) else step.name.split("_")[0] for step in plan.steps]


# --- convolution -----------------------------------------------------------------------------------------------------

GEOMETRIES = [
    ("conv2d", (2, 3, 6, 5), (4, 3, 3, 2), {"padding": 1}),
    ("conv2d", (2, 3, 9, 8), (4, 3, 3, 3), {"stride": (2, 3), "padding": (1, 0)}),
    ("conv2d", (1, 4, 7, 7), (6, 2, 2, 3), {"dilation": 2, "groups": 2, "padding": 2}),
    ("conv2d", (1, 2, 6, 6), (3, 2, 4, 4), {"padding": "same"}),  # one zero more behind than before
    ("conv1d", (2, 3, 9), (4, 3, 3), {"stride": 2, "padding": 1}),
    ("conv1d", (2, 3, 10), (4, 3, 2), {"padding": "same"}),
    ("conv3d", (1, 2, 4, 5, 3), (3, 2, 2, 3, 1), {"stride": (1, 2, 1), "padding": (1, 1, 0)}),
    ("conv_transpose2d", (2, 4, 4, 3), (4, 3, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ("conv_transpose1d", (1, 4, 3), (4, 2, 2), {"stride": 1, "dilation": 3, "output_padding": 2, "groups": 2}),
]


@pytest.mark.parametrize(("name", "x", "w", "how"), GEOMETRIES)
@pytest.mark.parametrize("dtype", [weft.float32, weft.bfloat16])
def test_convolution_and_its_gradients_are_one_call_each(device, graphs, rounded, name, x, w, how, dtype):
    args = [on(device, normal(*shape, seed=seed), dtype) for seed, shape in enumerate((x, w))]
    twins = [as_torch(arg) for arg in args]
    expected = getattr(TF, name)(*twins, **how)
    g = on(device, normal(*expected.shape, seed=3), dtype)
    expected.backward(torch.tensor(g.float().numpy(), dtype=torch.float64))

    @weft.compile
    def step(a, b, g):
        def loss(a, b):
            y = getattr(F, name)(a, b, **how)
            return (y.float() * g.float()).sum(), y

        (_, y), grads = weft.value_and_grad(loss, (0, 1), has_aux=True)(a, b)
        return y, *grads

    found = step(*args, g)
    assert sorted(form.function for form in graphs.calls) == ["conv", "conv_input", "conv_weight"]
    rtol = 2e-5 if dtype is weft.float32 else 2e-2
    for one, two in zip(found, (expected, *[twin.grad for twin in twins]), strict=True):
        np.testing.assert_allclose(one.float().numpy(), two.detach().numpy(), rtol=rtol, atol=rtol)


def test_refused_convolutions_are_composed(graphs, device):
    """Depthwise ones fuse with what is around them; cuDNN has none of float64, and may refuse whatever it likes."""
    x, w = on(device, normal(1, 4, 5, 5)), on(device, normal(4, 1, 3, 3))
    F.conv2d(x, w, groups=4).numpy()
    F.conv2d(x.to(weft.float64), on(device, normal(2, 4, 3, 3)).to(weft.float64)).numpy()
    graphs.refused = lambda form: form.function == "conv_input"
    w = on(device, normal(2, 4, 3, 3))
    found = weft.grad(lambda x: F.conv2d(x, w).sum())(x).numpy()
    assert "conv_input" not in [form.function for form in graphs.calls] and len(graphs.calls) <= 1
    twin = as_torch(x)
    TF.conv2d(twin, as_torch(w)).sum().backward()
    np.testing.assert_allclose(found, twin.grad.numpy(), rtol=1e-5, atol=1e-5)


def test_float32_is_exact_unless_asked_otherwise(device, graphs):
    x, w = on(device, normal(1, 3, 5, 5)), on(device, normal(2, 3, 3, 3))
    try:
        for precision in ("highest", "high"):
            weft.set_float32_matmul_precision(precision)
            F.conv2d(x, w).numpy()
    finally:
        weft.set_float32_matmul_precision("highest")
    assert [form.exact for form in graphs.calls] == [True, False]


@pytest.mark.parametrize("how", [{"padding": 1}, {"stride": 2, "padding": 1}, {"dilation": 2}])
def test_exact_input_gradients_of_float32_are_convolutions(device, graphs, how):
    """As many as the stride has phases; cuDNN's own are slower."""
    x, w = on(device, normal(2, 3, 8, 8)), on(device, normal(4, 3, 3, 3))
    step = weft.compile(lambda x, w: weft.grad(lambda x: (F.conv2d(x, w, **how) ** 2).sum())(x))
    found = step(x, w).numpy()
    assert {form.function for form in graphs.calls} == {"conv"}
    assert len(graphs.calls) == 1 + how.get("stride", 1) ** 2
    twin = as_torch(x)
    (TF.conv2d(twin, as_torch(w), **how) ** 2).sum().backward()
    np.testing.assert_allclose(found, twin.grad.numpy(), rtol=1e-5, atol=1e-5)


def test_a_network_stays_channels_last(device, graphs, rounded):
    """Two convolutions with batch norm and relu between: what lies between them is never put in another order."""
    weights = [on(device, normal(*shape, seed=k) * 0.2) for k, shape in enumerate(((8, 3, 3, 3), (4, 8, 3, 3)))]
    scale, shift = on(device, np.ones(8)), on(device, np.zeros(8))
    pixels = on(device, normal(2, 3, 6, 6, seed=9))

    def loss(w, u, scale, shift):
        y = F.conv2d(pixels, w, padding=1)
        y = F.relu(F.batch_norm(y, None, None, scale, shift, training=True))
        return (F.conv2d(y, u, padding=1, stride=2) ** 2).mean()

    step = weft.compile(lambda *args: weft.value_and_grad(loss, (0, 1, 2, 3))(*args))
    value, grads = step(*weights, scale, shift)
    names = steps(step)
    calls = [name for name in names if name.startswith("conv")]
    assert sorted(calls) == ["conv", "conv", "conv_input", "conv_weight", "conv_weight"]
    moved = set(re.findall(r"(?:permute|copy)_([0-9x]+)", " ".join([step.name for step in step.plan.plan.steps])))
    assert moved <= {"2x6x6x3", "8x3x3x3", "4x3x3x8", "4x8x3x3"}  # the pixels, the weights and their gradients
    twins = [as_torch(x) for x in (*weights, scale, shift)]
    y = TF.conv2d(torch.tensor(pixels.numpy(), dtype=torch.float64), twins[0], padding=1)
    y = TF.relu(TF.batch_norm(y, None, None, *twins[2:], training=True))
    expected = (TF.conv2d(y, twins[1], padding=1, stride=2) ** 2).mean()
    expected.backward()
    np.testing.assert_allclose(value.numpy(), expected.item(), rtol=1e-5)
    for one, two in zip(grads, twins, strict=True):
        np.testing.assert_allclose(one.numpy(), two.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_weights_of_one_tap_are_not_copied(device, rounded):
    """[K, C, 1, 1], as users hold them, is the order that cuDNN reads."""
    x, w = on(device, normal(2, 5, 5, 4)), on(device, normal(8, 4, 1, 1))
    step = weft.compile(lambda x, w: weft.grad(lambda x: (F.conv2d(x.permute(0, 3, 1, 2), w) ** 2).sum())(x))
    step(x, w)
    assert steps(step) == ["conv", "map", "conv_input"]


def test_a_residual_block_after_padded_pooling_stays_channels_last(device):
    """Pooling with zeros around counts where its windows begin; what follows still lies as the convolutions do. And the
    gradient of a weight of one tap is written right to where the optimizer reads it."""
    shapes = {"stem": (8, 3, 3, 3), "inside": (8, 8, 3, 3), "last": (12, 8, 1, 1), "scale": (8,), "shift": (8,)}
    p = {name: on(device, normal(*shape, seed=k) * 0.3) for k, (name, shape) in enumerate(shapes.items())}
    for value in p.values():
        value.requires_grad_()
    optimizer = weft.optim.SGD(list(p.values()), lr=0.1)

    def forward(x, p, f):
        x = f.max_pool2d(f.relu(f.conv2d(x, p["stem"], padding=1)), 3, 2, 1)
        y = f.batch_norm(f.conv2d(x, p["inside"], padding=1), None, None, p["scale"], p["shift"], training=True)
        return (f.conv2d(f.relu(y + x), p["last"]) ** 2).mean()

    @weft.compile
    def step(x):
        loss = forward(x, p, F)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    pixels = on(device, normal(2, 3, 10, 10, seed=9))
    twins = {name: as_torch(value.detach()) for name, value in p.items()}
    expected = forward(torch.tensor(pixels.numpy(), dtype=torch.float64), twins, TF)
    expected.backward()
    np.testing.assert_allclose(step(pixels).item(), expected.item(), rtol=1e-5)
    for name, twin in twins.items():
        want = (twin - 0.1 * twin.grad).detach().numpy()
        np.testing.assert_allclose(p[name].numpy(), want, rtol=1e-4, atol=1e-5)
    names = " ".join([one.name for one in step.plan.plan.steps])
    assert not re.search(r"2x8x(5x5|10x10|25|100)(?!\d)", names), names  # images in the user's order
    copied = set(re.findall(r"(?:permute|copy)_([0-9x]+)", names))
    assert copied == {"2x10x10x3", "8x3x3x3", "8x3x3x8", "216", "576"}, names  # of the last weight, no gradient


# --- attention -------------------------------------------------------------------------------------------------------


def attend(q, k, v, causal):
    aligned = "bottom_right" if causal else None
    return F.scaled_dot_product_attention(q, k, v, causal=aligned, scale=0.3, enable_gqa=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "queries", "keys"), [(2, 2, 6, 6), (4, 2, 5, 9)])
def test_attention_and_its_gradients(device, graphs, causal, heads, kv_heads, queries, keys):
    shapes = [(2, heads, queries, 8), (2, kv_heads, keys, 8), (2, kv_heads, keys, 16)]
    args = [on(device, normal(*shape, seed=k), weft.float16) for k, shape in enumerate(shapes)]
    step = weft.compile(weft.value_and_grad(lambda *x: (attend(*x, causal).float() ** 2).sum(), (0, 1, 2)))
    found = step(*args)
    assert [form.function for form in graphs.calls] == ["attention", "attention_backward"]
    twins = [as_torch(arg) for arg in args]
    k, v = (twin.repeat_interleave(heads // kv_heads, 1) for twin in twins[1:])
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) if causal else None
    expected = (TF.scaled_dot_product_attention(twins[0], k, v, attn_mask=mask, scale=0.3) ** 2).sum()
    expected.backward()
    np.testing.assert_allclose(found[0].numpy(), expected.item(), rtol=5e-3)
    for one, two in zip(found[1], twins, strict=True):
        np.testing.assert_allclose(one.float().numpy(), two.grad.numpy(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("options", "shape", "dtype"),
    [
        ({"keys": 5, "is_causal": True}, (1, 2, 4, 8), weft.float16),
        ({"keys": 3, "is_causal": True}, (1, 2, 4, 8), weft.float16),
        ({"keys": 3, "causal": "bottom_right"}, (1, 2, 4, 8), weft.float16),
        ({}, (1, 2, 4, 8), weft.float32),
        ({}, (1, 2, 4, 12), weft.float16),
        ({"dropout_p": 0.5}, (1, 2, 4, 8), weft.float16),
        ({"attn_mask": True}, (1, 2, 4, 8), weft.float16),
    ],
)
def test_refused_attention_is_composed(device, graphs, options, shape, dtype):
    q = on(device, normal(*shape), dtype)
    options = dict(options)
    k = on(device, normal(*shape[:2], options.pop("keys", shape[2]), shape[3]), dtype)
    if "attn_mask" in options:
        with weft.device(device):
            options = {"attn_mask": weft.tensor(np.tri(4, dtype=bool))}
    weft.grad(lambda q: F.scaled_dot_product_attention(q, k, k, **options).float().sum())(q).numpy()
    assert not graphs.calls


def test_a_block_reads_heads_where_they_lie(device, graphs):
    """Projection, split heads, attention, merged heads, projection: two calls, and between them no transposes."""
    batch, length, heads, width = 2, 4, 2, 8
    x, w, u = (
        on(device, normal(*shape, seed=k) * 0.3, weft.bfloat16)
        for k, shape in enumerate(((batch, length, 16), (16, 48), (16, 16)))
    )

    def loss(x, w, u):
        qkv = (x @ w).reshape(batch, length, 3, heads, width)
        q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))
        y = attend(q, k, v, True).transpose(1, 2).reshape(batch, length, heads * width)
        return ((y @ u).float() ** 2).sum()

    step = weft.compile(lambda *args: weft.grad(loss, (0, 1, 2))(*args))
    grads = step(x, w, u)
    forward, backward = graphs.calls
    packed = (length * 48, 8, 48, 1)
    assert [operand.strides for operand in forward.operands[:3]] == [packed] * 3
    assert [operand.strides for operand in (*backward.operands[:3], *backward.operands[6:])] == [packed] * 6
    assert not re.search("permute|copy", " ".join([step.name for step in step.plan.plan.steps]))
    twins = [as_torch(arg) for arg in (x, w, u)]
    qkv = (twins[0] @ twins[1]).reshape(batch, length, 3, heads, width)
    q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))
    y = TF.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3).transpose(1, 2).reshape(batch, length, 16)
    ((y @ twins[2]) ** 2).sum().backward()
    for one, two in zip(grads, twins, strict=True):
        np.testing.assert_allclose(one.float().numpy(), two.grad.numpy(), rtol=0.1, atol=0.1)


# --- plans -----------------------------------------------------------------------------------------------------------


def test_a_stored_plan_repeats_the_engine(device, graphs):
    x, w = on(device, normal(1, 3, 5, 5)), on(device, normal(2, 3, 3, 3))
    step = weft.compile(lambda x, w: F.conv2d(x, w))
    step(x, w)
    (call,) = [step for step in step.plan.plan.steps if isinstance(step, LibraryCall)]
    assert unpack(pack(call)) == call
    engine, *form = unpack(pack(call)).config
    assert (engine, Form.of(form)) == ("engine of conv", graphs.calls[0])
    device.libraries["cudnn"].prepare(call.config)
    assert graphs.prepared[-1] == (graphs.calls[0], "engine of conv")


def test_calls_are_verified_like_kernels(device):
    x, w = on(device, normal(2, 4, 6, 5)), on(device, normal(6, 2, 3, 3))
    q = on(device, normal(1, 2, 5, 8), weft.bfloat16)

    def convolve(x, w):
        return weft.grad(lambda x, w: (F.conv2d(x, w, stride=2, padding=1, groups=2) ** 2).sum(), (0, 1))(x, w)

    weft.testing.verify(convolve, x, w)
    weft.testing.verify(lambda q: weft.grad(lambda q: (attend(q, q, q, True).float() ** 2).sum())(q), q)


def test_work_is_counted(device, rounded):
    x, w = on(device, normal(2, 4, 6, 5)), on(device, normal(8, 4, 3, 3))
    step = weft.compile(lambda x, w: weft.grad(lambda x, w: F.conv2d(x, w).sum(), (0, 1))(x, w))
    step(x, w)
    calls = [step for step in step.plan.plan.steps if isinstance(step, LibraryCall)]
    assert {call.name: call.flops for call in calls} == dict.fromkeys(
        ("conv_input", "conv_weight"), 2 * 2 * 12 * 8 * 36
    )


# --- execution plans -------------------------------------------------------------------------------------------------


@pytest.fixture
def cudnn(monkeypatch):
    fake = FakePackage()
    monkeypatch.setitem(sys.modules, "cudnn", fake)
    return fake


def no_memory(nbytes):
    raise AssertionError("all operands lie as cuDNN wants them")


def form_of(dtype=weft.float32, exact=True, channels=8):
    image = Operand(dtype, (1, channels, 4, 4), (16 * channels, 1, 4 * channels, channels))
    filters = Operand(dtype, (channels, channels, 3, 3), (9 * channels, 1, 3 * channels, channels))
    return Form("conv", exact, (1, 1, 1, 1, 1, 1, 1, 1), (image, filters, image))


@pytest.mark.parametrize(
    ("form", "asked"),
    [
        (form_of(channels=32), ["B"]),
        (form_of(channels=24), ["A"]),
        (form_of(weft.bfloat16, channels=32), ["A"]),
    ],
)
def test_the_better_heuristic_is_asked_where_it_is(cudnn, form, asked):
    cudnn.engines = [Engine(3)]
    assert Graphs(7, no_memory).choose(form) == ("3", 64) and cudnn.asked == asked


def test_the_first_engine_that_is_deterministic_is_taken_and_named(cudnn):
    cudnn.engines = [Engine(3, notes={"NONDETERMINISTIC"}), Engine(5, builds=False), Engine(7, {2: 1, 4: 0}), Engine(9)]
    graphs = Graphs(7, no_memory)
    assert graphs.choose(form_of()) == ("7 2=1 4=0", 64)
    graphs.prepare(form_of(), "7 2=1 4=0")([16 * k for k in range(1, 5)])
    assert cudnn.executed == [(7, {1: 16, 2: 32, 3: 48}, 64, "handle on 7")]


def test_a_text_names_the_engine_to_another_process(cudnn):
    cudnn.engines = [Engine(3), Engine(7, {2: 1})]
    Graphs(7, no_memory).prepare(form_of(), "7 2=1")([16, 32, 48])
    assert cudnn.executed == [(7, {1: 16, 2: 32, 3: 48}, 0, "handle on 7")]


def test_float32_factors_are_shortened_only_where_that_is_allowed(cudnn):
    cudnn.engines = [Engine(3, notes={"TENSOR_CORE"}), Engine(4)]
    graphs = Graphs(7, no_memory)
    chosen = [graphs.choose(form_of(dtype, exact))[0] for dtype, exact in
              ((weft.float32, True), (weft.float32, False), (weft.bfloat16, True))]  # fmt: skip
    assert chosen == ["4", "3", "3"]


def test_nothing_is_offered_where_no_engine_builds(cudnn):
    cudnn.engines = [Engine(5, builds=False)]
    assert Graphs(7, no_memory).choose(form_of()) is None


def test_sources_at_odd_addresses_are_copied(cudnn, monkeypatch):
    asked = []
    monkeypatch.setattr("weft.backends.cuda.cudnn_graphs.call", lambda *args: asked.append(args))
    cudnn.engines = [Engine(3)]
    given = []

    def allocate(nbytes):
        given.append(weakref.ref(slab := Slab(None, nbytes, 4096, None)))
        return slab

    run = Graphs(7, allocate).prepare(form_of(), "3")
    run([20, 32, 48])
    run([24, 32, 48])
    assert [wanted for _, wanted, _, _ in cudnn.executed] == [{1: 4096, 2: 32, 3: 48}] * 2
    assert asked == [("cuMemcpyDtoDAsync", 4096, address, 512, 7) for address in (20, 24)]
    assert [slab().nbytes for slab in given] == [512]
    del run
    assert given[0]() is None


def test_results_at_odd_addresses_are_copied_back(cudnn, monkeypatch):
    """Parameters lie one after the other; a value that replaces one is written there. What lies between the elements of
    a result with gaps is copied both ways, so it stays."""
    asked = []
    monkeypatch.setattr("weft.backends.cuda.cudnn_graphs.call", lambda *args: asked.append(args))
    cudnn.engines = [Engine(3)]
    form = form_of()
    run = Graphs(7, lambda nbytes: Slab(None, nbytes, 4096, None)).prepare(form, "3")
    run([16, 32, 52])
    nbytes = form.operands[2].nbytes
    assert [wanted for _, wanted, _, _ in cudnn.executed] == [{1: 16, 2: 32, 3: 4096}]
    assert asked == [("cuMemcpyDtoDAsync", 4096, 52, nbytes, 7), ("cuMemcpyDtoDAsync", 52, 4096, nbytes, 7)]


def test_doctor_says_what_was_found(cudnn, monkeypatch):
    find = vendor.find.__wrapped__
    assert find().path == "cuDNN 9.9"
    monkeypatch.setitem(sys.modules, "cudnn", None)
    assert find() is None and "pip install" in vendor.reason()
