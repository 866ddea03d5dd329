"""Attention: memory linear in the length, the same bits everywhere, dropout as composed, gradients of gradients."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import weft
import weft.nn.functional as F
from tests.unit.gpu_harness import set_limits
from weft.backends.cpu.worker_team import runtime
from weft.base.capabilities import Features
from weft.base.counters import COUNTERS
from weft.core.device import get
from weft.core.tensor import Tensor
from weft.graph import build
from weft.graph.attributes import Attention
from weft.graph.composed import COMPOSED
from weft.graph.primitives import make_node, results_of

pytestmark = pytest.mark.backend


def inputs(batch, heads, queries, keys, width, kv_heads=None, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    kv_heads = kv_heads or heads
    shapes = [(batch, heads, queries, width), (batch, kv_heads, keys, width), (batch, kv_heads, keys, width)]
    return [weft.tensor(rng.standard_normal(shape).astype(dtype), requires_grad=True) for shape in shapes]


def loss(q, k, v, **options):
    out = F.scaled_dot_product_attention(q, k, v, **options)
    return (out * out).sum()


def attend(*tensors, **options):
    """The result and its gradients, as arrays."""
    loss(*tensors, **options).backward()
    grads = [tensor.grad.numpy() for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    return [F.scaled_dot_product_attention(*tensors, **options).numpy(), *grads]


# --- memory and launches ---------------------------------------------------------------------------------------------


def plan_of(length, causal):
    @weft.compile
    def step(q, k, v):
        return weft.value_and_grad(lambda *qkv: loss(*qkv, is_causal=causal), (0, 1, 2))(q, k, v)

    with weft.device("null"):
        step(*[weft.ones(2, 4, length, 16) for _ in range(3)])
    return step.plan


@pytest.mark.parametrize("causal", [False, True])
def test_memory_is_linear_in_the_length(causal):
    short, long = plan_of(256, causal), plan_of(1024, causal)
    assert long.memory().arena_bytes <= 4 * short.memory().arena_bytes
    assert long.bytes <= 4.1 * short.bytes
    scores = 2 * 4 * 1024 * 1024 * 4
    assert long.memory().peak < scores / 4
    assert max(step.bytes for step in long.plan.steps) < scores / 4


def test_forward_and_backward_are_one_kernel_each():
    names = [kernel.name for kernel in plan_of(128, True).kernels()]
    assert len([name for name in names if name.startswith("attention")]) == 2
    assert not [name for name in names if name.startswith("gemm")]


def test_split_heads_are_read_in_place():
    """Heads cut out of one projection, and put together for the next: attention is one kernel between two products."""

    @weft.compile
    def block(x, w, u):
        qkv = (x @ w).reshape(2, 128, 3, 4, 16)
        q, k, v = [qkv[:, :, part].transpose(1, 2) for part in range(3)]
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 128, 64) @ u

    rng = np.random.default_rng(0)
    args = [weft.tensor(rng.standard_normal(shape).astype(np.float32)) for shape in ((2, 128, 64), (64, 192), (64, 64))]
    block(*args)
    names = [kernel.name.split("_")[0] for kernel in block.plan.kernels()]
    assert names == ["gemm", "attention", "gemm"]


def test_a_new_batch_compiles_no_new_kernel():
    def step(batch):
        return attend(*inputs(batch, 4, 40, 70, 8, kv_heads=2), is_causal=True, enable_gqa=True)

    step(2)
    before = COUNTERS.kernels_compiled + COUNTERS.kernels_from_disk
    step(5)
    assert before == COUNTERS.kernels_compiled + COUNTERS.kernels_from_disk


# --- bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"is_causal": True}])
def test_bits_do_not_depend_on_fusion_layout_or_threads(options):
    q, k, v = inputs(2, 4, 100, 130, 24)
    expected = attend(q, k, v, **options)

    def transposed(x):
        """The same values as a view: heads behind rows in memory."""
        return weft.tensor(x.numpy().transpose(0, 2, 1, 3).copy()).transpose(1, 2)

    step = weft.compile(lambda *qkv: weft.value_and_grad(lambda *x: loss(*x, **options), (0, 1, 2))(*qkv)[1])
    for one, two in zip(step(q.detach(), k.detach(), v.detach()), expected[1:], strict=True):
        assert np.array_equal(one.numpy(), two)
    strided = weft.grad(lambda *x: loss(*x, **options), (0, 1, 2))(*[transposed(x) for x in (q, k, v)])
    for one, two in zip(strided, expected[1:], strict=True):
        assert np.array_equal(one.numpy(), two)
    threads = runtime().threads
    try:
        for count in (1, 3):
            runtime().set_threads(count)
            for one, two in zip(attend(q, k, v, **options), expected, strict=True):
                assert np.array_equal(one, two)
    finally:
        runtime().set_threads(threads)
    for one, two in zip(
        attend(*[x[:1].detach().requires_grad_() for x in (q, k, v)], **options), expected, strict=True
    ):
        assert np.array_equal(one, two[:1])


@pytest.mark.parametrize("lengths", [(100, 130), (64, 64), (130, 70), (1, 5)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": True}, {"dropout_p": 0.3}])
def test_queries_apart_from_keys_are_the_same_bits(lengths, options, monkeypatch):
    """Where a machine has more threads than there are heads, blocks of queries and of keys are tasks of their own."""
    q, k, v = inputs(2, 4, *lengths, 24, kv_heads=2)
    if "attn_mask" in options:
        options = {"attn_mask": weft.tensor(np.random.default_rng(5).random(lengths) < 0.7)}

    def kernels_and_gradients():
        weft.manual_seed(1)
        step = weft.compile(lambda *x: weft.grad(lambda *y: loss(*y, enable_gqa=True, **options), (0, 1, 2))(*x))
        return [grad.numpy() for grad in step(q.detach(), k.detach(), v.detach())], step.plan

    monkeypatch.setattr("weft.compiler.realize._plans", OrderedDict())
    set_limits(monkeypatch, get("cpu"), cpu_threads=1)
    together, plan = kernels_and_gradients()
    monkeypatch.setattr("weft.compiler.realize._plans", OrderedDict())
    set_limits(monkeypatch, get("cpu"), cpu_threads=1000)
    apart, other = kernels_and_gradients()
    assert [a.extent for a in other.plan.steps] != [a.extent for a in plan.plan.steps]
    for one, two in zip(apart, together, strict=True):
        assert np.array_equal(one, two)


def test_bits_do_not_depend_on_the_registers(monkeypatch):
    """A machine with fewer registers uses smaller tiles."""
    q, k, v = inputs(1, 2, 70, 67, 40)
    expected = attend(q, k, v, is_causal=True)
    monkeypatch.setattr("weft.compiler.realize._plans", OrderedDict())
    set_limits(monkeypatch, get("cpu"), vector_register_bytes=512)
    for one, two in zip(attend(q, k, v, is_causal=True), expected, strict=True):
        assert np.array_equal(one, two)


@pytest.mark.parametrize(("width", "templates"), [(1500, True), (40_000, False)])
def test_wide_rows_fit_into_the_memory_of_a_task(width, templates):
    q, k, v = inputs(1, 1, 9, 70, width)
    step = weft.compile(lambda *x: weft.grad(lambda *y: loss(*y), (0, 1, 2))(*x))
    grads = step(q.detach(), k.detach(), v.detach())
    assert any(kernel.name.startswith("attention") for kernel in step.plan.kernels()) == templates
    twins = [torch.tensor(x.numpy(), dtype=torch.float64, requires_grad=True) for x in (q, k, v)]
    out = TF.scaled_dot_product_attention(*twins)
    for one, two in zip(grads, torch.autograd.grad((out * out).sum(), twins), strict=True):
        np.testing.assert_allclose(one.numpy(), two.numpy(), rtol=1e-4, atol=1e-4)


def test_logarithms_of_16_bit_attention_keep_their_bits():
    """The gradient takes weights from them: an error there is one factor for a whole row of weights."""
    q, k, v = inputs(1, 2, 20, 300, 8)
    narrow = [x.detach().to(weft.bfloat16) for x in (q * 4, k, v)]
    logs = results_of(make_node("attention", tuple([x.node for x in narrow]), Attention(0.5, None, False, 0.0, 0)))[1]
    exact = [torch.tensor(x.float().numpy()).double() for x in narrow[:2]]
    expected = torch.logsumexp(0.5 * exact[0] @ exact[1].transpose(-1, -2), -1)
    np.testing.assert_allclose(Tensor(logs).numpy(), expected.numpy(), rtol=1e-6)
    out, composed = COMPOSED["attention"](tuple([x.node for x in narrow]), Attention(0.5, None, False, 0.0, 0))
    assert (out.dtype, composed.dtype) == (weft.bfloat16, weft.float32)


# --- dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_dropout_is_that_of_the_composed_form(kv_heads):
    q, k, v = inputs(2, 4, 35, 70, 8, kv_heads)
    state = weft.tensor(np.array([123, 45], np.uint32)).node
    attrs = Attention(0.3, 0, False, 0.4, 2)
    srcs = (q.node, k.node, v.node, state)
    primitive = results_of(make_node("attention", srcs, attrs))
    assert_close(primitive, COMPOSED["attention"](srcs, attrs))
    back = (*srcs, *primitive, build.reshape(primitive[0], (2, 4, 35, 8)))
    assert_close(results_of(make_node("attention_backward", back, attrs)), COMPOSED["attention_backward"](back, attrs))


def assert_close(ones, twos):
    for one, two in zip(ones, twos, strict=True):
        np.testing.assert_allclose(Tensor(one).numpy(), Tensor(two).numpy(), rtol=2e-5, atol=1e-5)


def test_dropout_draws_from_the_generator():
    q, k, v = inputs(1, 2, 16, 16, 8)
    weft.manual_seed(3)
    first = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).numpy()
    second = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).numpy()
    weft.manual_seed(3)
    assert np.array_equal(first, F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).numpy())
    assert not np.array_equal(first, second)
    generator = weft.Generator(3)
    again = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, generator=generator)
    assert np.array_equal(first, again.numpy())
    weft.manual_seed(3)
    compiled = weft.compile(lambda *qkv: F.scaled_dot_product_attention(*qkv, dropout_p=0.5))
    assert np.array_equal(first, compiled(q, k, v).numpy())
    assert np.array_equal(second, compiled(q, k, v).numpy())
    assert not F.scaled_dot_product_attention(q, k, v, dropout_p=1.0).numpy().any()


def test_dropout_keeps_the_mean():
    ones = weft.ones(4, 8, 64, 64)
    out = F.scaled_dot_product_attention(ones, ones, ones, dropout_p=0.25).numpy()
    assert abs(out.mean() - 1) < 0.01
    assert 0.05 < out[..., 0].std() < 0.1  # sqrt(p / (1 - p) / 64) = 0.072


# --- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "diagonal"), [({}, None), ({"is_causal": True}, 0), ({"causal": "bottom_right"}, 2)]
)
def test_gradients_of_gradients(options, diagonal):
    tensors = inputs(1, 2, 3, 5, 4, dtype=np.float64)
    twins = [torch.tensor(x.numpy(), requires_grad=True) for x in tensors]
    seen = torch.ones(3, 5, dtype=torch.bool).tril(diagonal) if options else None

    def weft_penalty(*qkv):
        grads = weft.grad(lambda *x: loss(*x, **options), (0, 1, 2))(*qkv)
        return sum((g * g).sum() for g in grads)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = TF.scaled_dot_product_attention(*twins, attn_mask=seen)
        grads = torch.autograd.grad((out * out).sum(), twins, create_graph=True)
        expected = torch.autograd.grad(sum((g * g).sum() for g in grads), twins)
    for one, two in zip(weft.grad(weft_penalty, (0, 1, 2))(*tensors), expected, strict=True):
        np.testing.assert_allclose(one.numpy(), two.numpy(), rtol=1e-9, atol=1e-11)


def test_reading_the_loss_before_backward_computes_attention_once():
    q, k, v = inputs(1, 2, 64, 64, 8)
    value = loss(q, k, v)
    value.item()
    value.backward()
    before = COUNTERS.launches
    weft.eval(q.grad, k.grad, v.grad)
    assert COUNTERS.launches - before <= 3  # the gradient of the result, then that of attention; gradients are views


def test_hidden_keys_may_be_anything():
    """What no query sees takes no part: not even NaN."""
    q, k, v = inputs(1, 1, 4, 6, 3)
    mask = weft.tensor(np.array([True, True, False, True, False, False]))[None, None, None].broadcast_to((1, 1, 4, 6))
    expected = attend(q, k, v, attn_mask=mask)
    hole = np.zeros((1, 1, 6, 1), np.float32)
    hole[0, 0, 2] = np.nan
    out = F.scaled_dot_product_attention(q, k + weft.tensor(hole), v, attn_mask=mask)
    assert np.array_equal(out.numpy(), expected[0])


def test_nan_and_infinity_propagate():
    q, k, v = inputs(1, 1, 4, 70, 3)
    spoiled = q.numpy().copy()
    spoiled[0, 0, 2, 0] = np.nan
    out = F.scaled_dot_product_attention(weft.tensor(spoiled), k, v).numpy()
    assert np.isnan(out[0, 0, 2]).all() and np.isfinite(out[0, 0, [0, 1, 3]]).all()


def test_large_scores_do_not_overflow():
    q, k, v = inputs(1, 2, 70, 140, 16)
    out = F.scaled_dot_product_attention(q * 300, k, v)
    expected = TF.scaled_dot_product_attention(*[torch.tensor(x.numpy()).double() for x in (q * 300, k, v)])
    np.testing.assert_allclose(out.numpy(), expected.numpy(), atol=2e-3)
    assert np.isfinite(out.numpy()).all()


# --- devices without the template ------------------------------------------------------------------------------------


def test_without_the_template_it_is_composed(monkeypatch):
    q, k, v = inputs(1, 4, 17, 33, 8, kv_heads=2)
    expected = attend(q, k, v, is_causal=True, enable_gqa=True)
    device = get("cpu")
    monkeypatch.setattr(type(device), "features", property(lambda self: Features()), raising=False)
    monkeypatch.setattr("weft.compiler.realize._plans", OrderedDict())
    step = weft.compile(lambda *x: weft.grad(lambda *y: loss(*y, is_causal=True, enable_gqa=True), (0, 1, 2))(*x))
    grads = step(q.detach(), k.detach(), v.detach())
    assert not [kernel for kernel in step.plan.kernels() if kernel.name.startswith("attention")]
    for one, two in zip(grads, expected[1:], strict=True):
        np.testing.assert_allclose(one.numpy(), two, rtol=1e-4, atol=1e-5)
