"""Records of memories: torch's attention, and loops in NumPy."""

import numpy as np
import torch
import torch.nn.functional as TF

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy, to_torch
from tests.layers.record import Bad, LayerRecord


def chain(state, x):
    for level in range(3):
        x = np.maximum(x @ state[f"levels.{level}.weight"].T + state[f"levels.{level}.bias"], 0)
    return x


def levels_learn_at_their_own_pace():
    """NumPy SGD with one accumulator per level, 7 steps with chunks 1, 2 and 3; eagerly and compiled."""
    random = np.random.default_rng(0)
    x, target = random.normal(size=(7, 5, 3)), random.normal(size=(7, 5, 4))
    for compiled in (False, True):
        weft.manual_seed(0)
        layer = nn.ContinuumMemory(3, 4, chunk_sizes=(1, 2, 3)).double()
        theirs = [torch.tensor(param.detach().numpy(), requires_grad=True) for param in layer.parameters()]
        optimizer = weft.optim.SGD(layer.param_groups(), lr=0.2)

        def step(x, target, layer=layer, optimizer=optimizer):
            loss = ((layer(x) - target) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = weft.compile(step) if compiled else step
        sums = [torch.zeros_like(param) for param in theirs]
        for number in range(7):
            run(weft.tensor(x[number]), weft.tensor(target[number]))
            y = torch.tensor(x[number])
            for level in range(3):
                y = torch.relu(TF.linear(y, *theirs[2 * level : 2 * level + 2]))
            loss = ((y - torch.tensor(target[number])) ** 2).mean()
            for k, grad in enumerate(torch.autograd.grad(loss, theirs)):
                sums[k] += grad
                if (number + 1) % (1, 2, 3)[k // 2] == 0:
                    theirs[k].data -= 0.2 * sums[k]
                    sums[k].zero_()
            for ours, other in zip(layer.parameters(), theirs, strict=True):
                np.testing.assert_allclose(ours.detach().numpy(), other.detach().numpy(), rtol=1e-9, atol=1e-12)


def chunks_of_one_are_plain_training():
    states = []
    for grouped in (True, False):
        weft.manual_seed(0)
        layer = nn.ContinuumMemory(3, 4, num_levels=2, chunk_sizes=(1, 1))
        optimizer = weft.optim.Adam(layer.param_groups() if grouped else layer.parameters())
        for _ in range(3):
            (layer(weft.ones(2, 3)) ** 2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        states.append([param.detach().numpy() for param in layer.parameters()])
    for one, other in zip(*states, strict=True):
        np.testing.assert_array_equal(one, other)


def read(state, x, memory):
    state, x, memory = to_torch(dict(state)), torch.tensor(x), torch.tensor(memory)
    q = x @ state["query.weight"].T
    q = q if q.ndim == 3 else q[:, None]
    memory = memory.expand(len(x), *memory.shape[-2:])
    mixed = TF.scaled_dot_product_attention(q, memory, memory)
    weights = torch.softmax(q @ memory.mT / memory.shape[-1] ** 0.5, -1)
    y = TF.linear(mixed, state["output.weight"], state["output.bias"])
    return (y, weights) if x.ndim == 3 else (y[:, 0], weights[:, 0])


def write(state, x, memory):
    steps, slots = x if x.ndim == 3 else x[:, None], memory.copy()
    for t in range(steps.shape[1]):
        now = steps[:, t]
        scores = np.einsum("bm,bsm->bs", now @ state["query.weight"].T, slots) / np.sqrt(slots.shape[-1])
        w = np.exp(scores - scores.max(-1, keepdims=True))
        w = (w / w.sum(-1, keepdims=True))[:, :, None]
        e = 1 / (1 + np.exp(-(now @ state["erase.weight"].T + state["erase.bias"])))
        a = np.tanh(now @ state["write.weight"].T + state["write.bias"])
        slots = slots * (1 - w * e[:, None]) + w * a[:, None]
    return slots


def one_slot_is_replaced():
    """With e = 1 and w on one slot exactly that slot becomes a; with e = 0 and a = 0 the memory stays."""
    layer = nn.MemoryWrite(4, 4)
    memory = weft.eye(4).unsqueeze(0) * 1000.0
    with weft.no_grad():
        layer.query.weight.copy_(weft.eye(4))
        layer.erase.weight.zero_()
        layer.erase.bias.fill_(100.0)
        layer.write.weight.zero_()
        layer.write.bias.fill_(0.5)
    x = weft.tensor([[0.0, 0.0, 1.0, 0.0]])
    expected = memory.numpy().copy()
    expected[0, 2] = np.tanh(0.5)
    np.testing.assert_allclose(layer(x, memory).detach().numpy(), expected, rtol=1e-6, atol=1e-6)
    with weft.no_grad():
        layer.erase.bias.fill_(-1000.0)
        layer.write.bias.zero_()
    np.testing.assert_array_equal(layer(x, memory).detach().numpy(), memory.numpy())


SEQUENCE = frozenset({"batch", "sequence"})

RECORDS = [
    LayerRecord(
        name="ContinuumMemory",
        make=lambda: nn.ContinuumMemory(3, 4),
        inputs=lambda draw: (draw.normal(5, 3),),
        oracle=of_numpy(chain),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 4)), match=r"levels\.0.*2, 4"),
            Bad(call=lambda layer: type(layer)(3, 4, num_levels=2), match="num_levels=2"),
            Bad(call=lambda layer: type(layer)(3, 4, chunk_sizes=(1, 0, 2)), match=r"\(1, 0, 2\)"),
        ],
        checks={
            "levels learn at their own pace": levels_learn_at_their_own_pace,
            "chunks of one": chunks_of_one_are_plain_training,
        },
    ),
    LayerRecord(
        name="MemoryRead",
        make=lambda: nn.MemoryRead(3, 4, 2),
        inputs=lambda draw: (draw.normal(5, 3), draw.normal(6, 4)),
        oracle=of_numpy(read),
        batch_axes=(0, None),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 4), weft.ones(5, 4)), match=r"\(2, 4\).*\[B, 3\]"),
            Bad(call=lambda layer: layer(weft.ones(2, 3), weft.ones(5, 3)), match=r"\(5, 3\).*\[S, 4\]"),
            Bad(call=lambda layer: layer(weft.ones(2, 3), weft.ones(3, 5, 4)), match="one memory for each sample"),
        ],
    ),
    LayerRecord(
        name="MemoryRead",
        variant="sequence, a memory each",
        make=lambda: nn.MemoryRead(3, 4, 2),
        inputs=lambda draw: (draw.normal(2, 5, 3), draw.normal(2, 6, 4)),
        oracle=of_numpy(read),
        traits=SEQUENCE,
        no_bad="as the first record",
    ),
    LayerRecord(
        name="MemoryWrite",
        make=lambda: nn.MemoryWrite(3, 4),
        inputs=lambda draw: (draw.normal(2, 5, 3), draw.normal(2, 6, 4)),
        oracle=of_numpy(write),
        traits=SEQUENCE,
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 5, 4), weft.ones(2, 5, 4)), match=r"\[B, T, 3\]"),
            Bad(call=lambda layer: layer(weft.ones(2, 3), weft.ones(5, 4)), match=r"\[B, S, 4\]"),
        ],
        checks={"one slot is replaced": one_slot_is_replaced},
    ),
    LayerRecord(
        name="MemoryWrite",
        variant="one step",
        make=lambda: nn.MemoryWrite(3, 4),
        inputs=lambda draw: (draw.normal(2, 3), draw.normal(2, 6, 4)),
        oracle=of_numpy(write),
        no_bad="as the first record",
    ),
]
