"""Records of experts: a loop over tokens and experts in NumPy."""

import math

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy, of_torch
from tests.layers.record import Bad, Case, LayerRecord

COUNT, WIDTH = 4, 3


def linear_moe(count=COUNT, **options):
    return nn.MoE([nn.Linear(WIDTH, 2) for _ in range(count)], nn.Linear(WIDTH, count), **options)


def tanh_moe(count=8, **options):
    """Small experts of two layers, enough of them for blocks."""
    experts = [nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 2)) for _ in range(count)]
    return nn.MoE(experts, nn.Linear(WIDTH, count), **options)


def mixed_moe(**options):
    """Experts that differ in their layers."""
    experts = [nn.Linear(WIDTH, 2), nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, 2)), nn.Linear(WIDTH, 2)]
    return nn.MoE(experts, nn.Linear(WIDTH, 3), **options)


def run_expert(state, number, x):
    def part(name):
        return x @ state[f"experts.{number}.{name}weight"].T + state[f"experts.{number}.{name}bias"]

    if f"experts.{number}.weight" in state:
        return part("")
    x = np.tanh(part("0."))
    return part("2.")


def routed(top_k=2, capacity_factor=None):
    """The loop: every token, every chosen expert, in order."""

    def oracle(state, x):
        tokens = x.reshape(-1, x.shape[-1])
        scores = tokens @ state["router.weight"].T + state["router.bias"]
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        n, count = p.shape
        k = top_k or count
        room = math.inf if capacity_factor is None else math.ceil(capacity_factor * n * k / count)
        filled, rows = np.zeros(count), []
        for token, share in zip(tokens, p, strict=True):
            if np.isnan(share).any():
                rows.append(np.full(2, np.nan))
                continue
            chosen = np.argsort(-share, kind="stable")[:k]
            weights = share[chosen] / (share[chosen].sum() if top_k else 1.0)
            y = 0.0
            for e, w in zip(chosen, weights, strict=True):
                if filled[e] < room:
                    y = y + w * run_expert(state, e, token)
                filled[e] += 1
            rows.append(np.broadcast_to(y, (2,)))
        return np.array(rows).reshape(*x.shape[:-1], 2)

    return of_numpy(oracle)


def aux_of(state, x, top_k, weight):
    scores = x @ state["router.weight"].T + state["router.bias"]
    p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    chosen = np.argsort(-p, -1, kind="stable")[:, :top_k]
    f = np.bincount(chosen.ravel(), minlength=p.shape[1]) / chosen.size
    return weight * p.shape[1] * (f * p.mean(0)).sum()


def aux_loss_is_the_formula():
    for make in (linear_moe, tanh_moe, mixed_moe):
        weft.manual_seed(0)
        moe = make(aux_weight=0.3)
        x = weft.randn(10, WIDTH)
        moe(x)
        state = {key: value.numpy().astype(np.float64) for key, value in moe.state_dict().items()}
        np.testing.assert_allclose(moe.aux_loss.item(), aux_of(state, x.numpy(), 2, 0.3), rtol=1e-5)
        assert "aux_loss" not in moe.state_dict()


def aux_loss_at_balance_is_its_weight():
    moe = nn.MoE([nn.Linear(4, 2) for _ in range(4)], nn.Linear(4, 4, bias=False), top_k=1, aux_weight=0.25)
    with weft.no_grad():
        moe.router.weight.copy_(weft.eye(4))
    moe(weft.eye(4))  # every token has an expert of its own, and the mean of p is 1/4
    np.testing.assert_allclose(moe.aux_loss.item(), 0.25, rtol=1e-6)


def aux_loss_trains_the_router():
    """The gradient of the auxiliary loss reaches the router, alone and in a sum, eagerly and compiled; several steps
    leave equal weights, and the loss falls."""
    states = []
    x = weft.tensor(np.random.default_rng(0).normal(size=(16, WIDTH)), dtype=weft.float32)
    for compiled in (False, True):
        weft.manual_seed(1)
        moe = tanh_moe(aux_weight=1.0)
        optimizer = weft.optim.SGD(moe.parameters(), lr=0.5)

        def step(moe=moe, optimizer=optimizer):
            task = (moe(x) ** 2).mean()
            (task + moe.aux_loss).backward()
            optimizer.step()
            optimizer.zero_grad()
            return moe.aux_loss

        run = weft.compile(step) if compiled else step
        losses = [run().item() for _ in range(12)]
        assert losses[-1] < losses[0]
        if compiled:
            assert run.retraces == []
        np.testing.assert_allclose(moe.aux_loss.item(), losses[-1], rtol=1e-6)
        states.append({key: value.numpy() for key, value in moe.state_dict().items()})
    for key, value in states[0].items():
        np.testing.assert_allclose(value, states[1][key], rtol=1e-4, atol=1e-5, err_msg=key)
    theirs = torch.nn.Linear(WIDTH, 8)
    weft.manual_seed(1)
    moe = tanh_moe(aux_weight=1.0)
    theirs.load_state_dict({key: torch.tensor(value.numpy()) for key, value in moe.router.state_dict().items()})
    moe(x)
    moe.aux_loss.backward()
    p = torch.softmax(theirs(torch.tensor(x.numpy())), -1)
    f = torch.bincount(p.topk(2).indices.flatten(), minlength=8) / 32
    (8 * (f * p.mean(0)).sum()).backward()
    np.testing.assert_allclose(moe.router.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=1e-4, atol=1e-6)


def identical_experts_are_one():
    for count, top_k, capacity in ((8, 2, None), (3, 2, None), (4, 0, None), (4, 2, 4.0)):
        one = nn.Linear(WIDTH, 2)
        moe = nn.MoE([one] * count, nn.Linear(WIDTH, count), top_k=top_k, capacity_factor=capacity)
        x = weft.randn(2, 5, WIDTH)
        np.testing.assert_allclose(moe(x).detach().numpy(), one(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def all_tokens_may_go_to_one_expert():
    """Nothing is dropped without a capacity, however uneven the choice, and whatever the number of tokens."""
    for n in (1, 2, 7, 40):
        weft.manual_seed(0)
        moe = tanh_moe(top_k=1)
        with weft.no_grad():
            moe.router.bias.copy_(weft.arange(8).float() * 100)
        x = weft.randn(n, WIDTH)
        np.testing.assert_allclose(moe(x).detach().numpy(), moe.experts[7](x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert moe(weft.zeros(0, WIDTH)).shape == (0, 2) and moe.aux_loss.item() == 0.0


def only_routed_tokens_are_computed():
    """Products of 16 experts on 1024 tokens: at most 1.5 rows for each choice and one more for each expert."""
    width, count, n = 64, 16, 1024
    for top_k in (1, 2):
        with weft.device("null"):
            moe = nn.MoE([nn.Linear(width, width) for _ in range(count)], nn.Linear(width, count), top_k=top_k)
            step = weft.compile(lambda x, moe=moe: moe(x))
            step(weft.ones(n, width))
        products = [kernel for kernel in step.plan.kernels() if kernel.name.startswith("gemm")]
        flops = sum(kernel.flops * kernel.times for kernel in products) - 2 * n * width * count  # but the router's
        rows = flops / (2 * width * width + width)  # the bias is added in the same kernel
        assert n * top_k <= rows <= 1.5 * n * top_k + count, (rows, [kernel.name for kernel in products])


def noise_acts_in_training_only():
    weft.manual_seed(0)
    moe = linear_moe(noise_std=2.0)
    x = weft.randn(6, WIDTH)
    assert not np.array_equal(moe(x).detach().numpy(), moe(x).detach().numpy())
    moe.eval()
    np.testing.assert_array_equal(moe(x).detach().numpy(), moe(x).detach().numpy())


def copies_hold_the_value():
    import copy

    moe = linear_moe()
    moe(weft.randn(6, WIDTH))
    twin = copy.deepcopy(moe)
    np.testing.assert_array_equal(twin.aux_loss.numpy(), moe.aux_loss.detach().numpy())


def moe(variant, make, oracle, **more):
    return LayerRecord(
        name="MoE",
        variant=variant,
        make=make,
        inputs=lambda draw: (draw.normal(10, WIDTH),),
        oracle=oracle,
        traits=frozenset({"batch", "order"}),
        edges={"ties": Case(check=ties_go_to_the_first)},
        rtol=2e-5,
        learning_rate=0.01,
        **more,
    )


def ties_go_to_the_first(layer, inputs):
    """With equal scores the first experts are taken."""
    with weft.no_grad():
        layer.router.weight.zero_()
        layer.router.bias.zero_()
    x, k = inputs[0], layer.top_k or len(layer.experts)
    if layer.capacity_factor is not None:
        x = x[:1]
    expected = sum(expert(x) for expert in list(layer.experts)[:k]) / k
    np.testing.assert_allclose(layer(x).detach().numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6)


RECORDS = [
    LayerRecord(
        name="Expert",
        make=lambda: nn.Expert(nn.Linear(3, 4), nn.Linear(4, 2), activation="tanh"),
        inputs=lambda draw: (draw.normal(5, 3),),
        oracle=of_torch(
            lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)),
            rename=lambda key: key.removeprefix("layers."),
            call=lambda module, x: torch.tanh(module(x)),
        ),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 4)), match="2, 4")],
    ),
    moe(
        "blocks",
        tanh_moe,
        routed(),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 4)), match="2, 4"),
            Bad(call=lambda layer: type(layer)([], nn.Linear(2, 2)), match="top_k=2 of 0 experts"),
            Bad(call=lambda layer: type(layer)(layer.experts, layer.router, top_k=9), match="top_k=9 of 8"),
            Bad(call=lambda layer: type(layer)(layer.experts, nn.Linear(3, 5))(weft.ones(2, 3)), match=r"\(2, 5\)"),
            Bad(call=lambda layer: type(layer)(layer.experts, None), match="a router of type NoneType"),
            Bad(call=lambda layer: tanh_moe(capacity_factor=0), match="capacity_factor=0"),
        ],
        checks={
            "aux loss": aux_loss_is_the_formula,
            "aux loss at balance": aux_loss_at_balance_is_its_weight,
            "aux loss trains the router": aux_loss_trains_the_router,
            "identical experts": identical_experts_are_one,
            "uneven choice": all_tokens_may_go_to_one_expert,
            "cost": only_routed_tokens_are_computed,
            "noise": noise_acts_in_training_only,
            "copies": copies_hold_the_value,
        },
    ),
    moe("few experts", linear_moe, routed(), no_bad="as the first record"),
    moe("different experts", mixed_moe, routed(), no_bad="as the first record"),
    moe("all experts", lambda: linear_moe(top_k=0), routed(0), no_bad="as the first record"),
    moe(
        "capacity",
        lambda: linear_moe(capacity_factor=0.75),
        routed(capacity_factor=0.75),
        no_bad="as the first record",
    ),
]
