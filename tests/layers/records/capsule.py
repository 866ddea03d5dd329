"""Records of capsules."""

import numpy as np
import torch

import weft
import weft.nn as nn
import weft.nn.functional as F
from tests.layers.oracles import of_numpy
from tests.layers.record import Bad, Case, LayerRecord
from weft.nn.spatial.capsule import squash


def _squash(s):
    norm = np.linalg.norm(s, axis=-1, keepdims=True)
    return s * norm / (1 + norm**2)


def _route(rounds):
    """Routing by agreement, capsule by capsule."""

    def capsules(state, u):
        weight, bias = state["weight"], state.get("bias", 0.0)
        batch, (inputs, outputs, _, width) = len(u), weight.shape
        results = np.zeros((batch, outputs, width))
        for b in range(batch):
            votes = np.zeros((inputs, outputs, width))
            for i in range(inputs):
                for j in range(outputs):
                    votes[i, j] = u[b, i] @ weight[i, j]
            logits = np.zeros((inputs, outputs))
            for number in range(rounds):
                c = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
                v = _squash((c[..., None] * votes).sum(0) + bias)
                if number < rounds - 1:
                    logits = logits + (votes * v).sum(-1)
            results[b] = v
        return results

    return of_numpy(capsules)


def _one_round():
    """Without agreement every output is the squashed mean of the votes; all lengths are below 1."""
    layer = nn.Capsule(4, 3, 5, 2, routing_iters=1)
    u = np.random.default_rng(0).normal(size=(2, 4, 3)) * 100
    v = layer(weft.tensor(u, dtype=weft.float32)).detach().numpy()
    votes = np.einsum("bid,ijdo->bijo", u, layer.weight.detach().numpy().astype(np.float64))
    np.testing.assert_allclose(v, _squash(votes.sum(1) / 5), rtol=1e-4)
    assert (np.linalg.norm(v, axis=-1) <= 1).all()


def _detached_gradient():
    """With `detach_routing` the gradient is that of fixed coupling coefficients."""
    layer = nn.Capsule(4, 3, 5, 2, detach_routing=True).double()
    u = weft.tensor(np.random.default_rng(0).normal(size=(2, 4, 3)), requires_grad=True)
    goal = weft.tensor(np.random.default_rng(1).normal(size=(2, 5, 2)))
    (layer(u) * goal).sum().backward()

    given, weight = torch.tensor(u.detach().numpy(), requires_grad=True), torch.tensor(layer.weight.detach().numpy())

    def norm(s):
        length = s.norm(dim=-1, keepdim=True)
        return s * length / (1 + length**2)

    votes = torch.einsum("bid,ijdo->bijo", given, weight)
    logits = torch.zeros(2, 4, 5, dtype=torch.float64)
    for _ in range(2):
        v = norm((logits.softmax(-1)[..., None] * votes).sum(1))
        logits = logits + (votes * v[:, None]).sum(-1)
    v = norm((logits.softmax(-1).detach()[..., None] * votes).sum(1))
    (v * torch.tensor(goal.numpy())).sum().backward()
    np.testing.assert_allclose(u.grad.numpy(), given.grad.numpy(), rtol=1e-9, atol=1e-12)


def _zero_input():
    x = weft.zeros(2, 3, requires_grad=True)
    y = squash(x)
    y.sum().backward()
    assert y.abs().max().item() == 0.0 and x.grad.abs().max().item() == 0.0


def _small_task():
    """A capsule network tells horizontal bars from vertical ones, by the lengths of its capsules."""
    weft.manual_seed(0)
    random = np.random.default_rng(0)
    images = random.normal(size=(64, 1, 7, 7)) * 0.1
    labels = random.integers(0, 2, 64)
    for image, label, place in zip(images, labels, random.integers(0, 7, 64), strict=True):
        image[0, place if label else slice(None), slice(None) if label else place] += 1.0
    model = nn.Sequential(nn.PrimaryCapsules(1, 2, 4, kernel_size=3, stride=2), nn.Capsule(18, 4, 2, 6))
    optimizer = weft.optim.Adam(model.parameters(), lr=0.02)
    x, y = weft.tensor(images, dtype=weft.float32), weft.tensor(labels)

    @weft.compile
    def step():
        lengths = (model(x) ** 2).sum(-1).sqrt()
        present = F.one_hot(y, 2)
        loss = (present * (0.9 - lengths).relu() ** 2 + 0.5 * (1 - present) * (lengths - 0.1).relu() ** 2).sum(1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = [step().item() for _ in range(80)]
    right = (model(x).norm(dim=-1).argmax(1) == y).float().mean().item()
    assert right == 1.0 and losses[-1] < 0.1 * losses[0], (right, losses[0], losses[-1])


def _primary(state, x):
    stride, kernel = 2, state["conv.weight"].shape[2:]
    given = [torch.tensor(one) for one in (x, state["conv.weight"], state["conv.bias"])]
    y = torch.nn.functional.conv2d(*given, stride=stride, padding=1).numpy()
    batch, _, height, width = y.shape
    assert kernel == (3, 3)
    y = y.reshape(batch, 2, 4, height, width).transpose(0, 1, 3, 4, 2).reshape(batch, -1, 4)
    return _squash(y)


RECORDS = [
    LayerRecord(
        name="Capsule",
        make=lambda: nn.Capsule(4, 3, 5, 2),
        inputs=lambda draw: (draw.normal(3, 4, 3),),
        oracle=_route(3),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 4, 2)), match=r"\(2, 4, 2\).*\[B, 4, 3\]", error=weft.ShapeError),
            Bad(call=lambda layer: layer(weft.ones(4, 3)), match=r"\[B, 4, 3\]", error=weft.ShapeError),
            Bad(call=lambda layer: nn.Capsule(4, 3, 5, 2, 0), match="routing_iters=0", error=weft.RangeError),
        ],
        checks={"one round": _one_round, "a small task": _small_task, "zero": _zero_input},
    ),
    LayerRecord(
        name="Capsule",
        variant="bias, one round",
        make=lambda: nn.Capsule(3, 2, 4, 3, routing_iters=1, bias=True),
        inputs=lambda draw: (draw.normal(2, 3, 2),),
        oracle=_route(1),
        no_bad="as with three rounds",
    ),
    LayerRecord(
        name="Capsule",
        variant="detached routing",
        make=lambda: nn.Capsule(3, 2, 4, 3, routing_iters=2, detach_routing=True),
        inputs=lambda draw: (draw.normal(2, 3, 2),),
        oracle=_route(2),
        own_gradient=True,
        no_bad="as with gradients in all rounds",
        checks={"gradient": _detached_gradient},
    ),
    LayerRecord(
        name="PrimaryCapsules",
        make=lambda: nn.PrimaryCapsules(2, 2, 4, kernel_size=3, stride=2, padding=1),
        inputs=lambda draw: (draw.normal(2, 2, 5, 6),),
        oracle=of_numpy(_primary),
        traits=frozenset({"batch", "window"}),
        edges={"odd sizes": Case(inputs=lambda draw: (draw.normal(1, 2, 7, 4),))},
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3, 5, 5)), match="3", error=weft.ShapeError),
            Bad(call=lambda layer: layer(weft.ones(2, 5, 5)), match=r"\[B, C, H, W\]", error=weft.ShapeError),
        ],
    ),
]
