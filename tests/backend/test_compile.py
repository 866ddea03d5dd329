"""`weft.compile`: captured tensors, results, what is refused, and what a replay costs."""

import numpy as np
import pytest
import torch

import weft
import weft.nn.functional as F
from tests.backend.compiling import counted, full, numbers, ones, parameter

pytestmark = pytest.mark.usefixtures("on_each_device")


# ---- cells ----------------------------------------------------------------------------------------------------------


def test_a_captured_tensor_is_read_and_written():
    total = weft.zeros(3)

    @weft.compile
    def add(x):
        total.add_(x)
        return total * 2

    for iteration in range(1, 6):
        assert add(full((3,), 1.0)).tolist() == [2.0 * iteration] * 3
        assert total.tolist() == [float(iteration)] * 3  # read eagerly between calls


def test_a_function_may_only_write():
    total, count = weft.zeros(2), weft.zeros((), dtype=weft.int64)

    @weft.compile
    def add(x):
        total.add_(x)
        count.add_(1)

    for _ in range(4):
        assert add(ones(2)) is None
    assert total.tolist() == [4.0, 4.0]
    assert count.item() == 4


def test_a_cell_that_is_only_read_follows_its_tensor():
    scale = weft.tensor(2.0)
    times = weft.compile(lambda x: x * scale)
    x = weft.arange(3).float()
    assert times(x).tolist() == [0.0, 2.0, 4.0]
    scale.fill_(3.0)
    assert times(x).tolist() == [0.0, 3.0, 6.0]
    scale.fill_(4.0)
    assert counted("traces", lambda: times(x)) == 0
    assert times(x).tolist() == [0.0, 4.0, 8.0]


@pytest.mark.parametrize("read_at_once", [False, True], ids=["read later", "read at once"])
@pytest.mark.parametrize("warm", [0, 1, 3])
@pytest.mark.parametrize(
    "take",
    [
        lambda w: w.detach().clone(),
        lambda w: w + 0.0,
        lambda w: w.clone(),
        lambda w: w.clone().reshape(2, 2),
        lambda w: w[1:3].clone(),
        lambda w: weft.cat([w, w]),
        lambda w: w.to(weft.float64),
        lambda w: (w * 2).detach().reshape(1, 4),
    ],
    ids=["detach", "add", "clone", "reshape", "slice", "cat", "cast", "chain"],
)
def test_a_value_taken_before_a_step_stays(take, warm, read_at_once):
    w = weft.arange(4).float()

    @weft.compile
    def step():
        w.mul_(2.0).add_(1.0)

    for _ in range(warm):
        step()
    expected = take(weft.tensor(w.numpy())).numpy()
    old = take(w)
    if read_at_once:
        np.testing.assert_array_equal(old.numpy(), expected)
    for _ in range(3):
        step()
        np.testing.assert_array_equal(old.numpy(), expected)
    old = take(w)
    expected = old.numpy() if read_at_once else take(weft.tensor(w.numpy())).numpy()
    step()
    np.testing.assert_array_equal(old.numpy(), expected)


@pytest.mark.parametrize(
    "take", [lambda w: w.detach().clone(), lambda w: w + 0.0, lambda w: w[1:] * 1.0], ids=["detach", "add", "slice"]
)
@pytest.mark.parametrize("read_at_once", [False, True], ids=["read later", "read at once"])
def test_a_value_taken_before_an_assignment_stays(take, read_at_once):
    w = ones(3)
    step = weft.compile(lambda: w.add_(1.0).sum())
    step()
    old = take(w)
    if read_at_once:
        assert set(old.tolist()) == {2.0}
    w.fill_(7.0)
    for _ in range(2):
        step()
        assert set(old.tolist()) == {2.0}
    assert w.tolist() == [9.0] * 3


def test_assigning_from_outside_is_seen_by_the_next_replay():
    w = weft.zeros(3, requires_grad=True)

    @weft.compile
    def step():
        with weft.no_grad():
            w.add_(1.0)
        return w.sum()

    assert step().item() == 3.0
    with weft.no_grad():
        w.copy_(weft.tensor([10.0, 20.0, 30.0]))
    assert counted("traces", lambda: step()) == 0
    assert w.tolist() == [11.0, 21.0, 31.0]
    with weft.no_grad():
        w[...] = 5.0
    assert step().item() == 18.0
    with weft.no_grad():
        w[1] = -1.0
    assert step().item() == 7.0 + 0.0 + 7.0
    with weft.no_grad():
        w.mul_(w)
    assert w.tolist() == [49.0, 0.0, 49.0]
    assert step().item() == 101.0
    assert step().item() == 104.0


def test_assigning_twice_without_a_replay_between():
    w = weft.zeros(2)

    @weft.compile
    def step():
        w.add_(1.0)
        return w.clone()

    step()
    w.fill_(5.0)
    held = w.clone()
    w.fill_(7.0)
    assert step().tolist() == [8.0, 8.0]
    assert held.tolist() == [5.0, 5.0]
    assert w.tolist() == [8.0, 8.0]


@pytest.mark.parametrize("second", [lambda a: a.mul_(2.0).sum(), lambda a: (a * 1.0).sum()], ids=["writes", "reads"])
def test_an_assignment_between_two_functions(second):
    """The second function captures the cell for the first time after the assignment."""
    a = ones(4)
    first, then = weft.compile(lambda: a.add_(1.0).sum()), weft.compile(lambda: second(a))
    first()
    a[1:3] = 0.0
    expected = second(weft.tensor([2.0, 0.0, 0.0, 2.0])).item()
    assert then().item() == expected
    assert a[1].item() == 0.0


def test_a_reader_does_not_take_a_cell_from_its_writer():
    cell = ones(2)
    read, write = weft.compile(lambda: cell * 2.0), weft.compile(lambda: cell.add_(1.0).sum())
    read()
    write()
    cell[0] = 0.0
    assert read().tolist() == [0.0, 4.0]
    cell.fill_(5.0)
    write()
    assert cell.tolist() == [6.0, 6.0]
    assert read().tolist() == [12.0, 12.0]
    write()
    assert read().tolist() == [14.0, 14.0]


def test_a_cell_assigned_from_a_cell():
    source, target = weft.arange(3).float(), weft.zeros(3)

    @weft.compile
    def step():
        target.copy_(source)
        source.add_(1.0)

    step()
    assert (source.tolist(), target.tolist()) == ([1.0, 2.0, 3.0], [0.0, 1.0, 2.0])
    step()
    assert (source.tolist(), target.tolist()) == ([2.0, 3.0, 4.0], [1.0, 2.0, 3.0])


def test_cells_that_change_places():
    a, b, c = full((70,), 1.0), full((70,), 2.0), full((70,), 3.0)

    @weft.compile
    def swap():
        old_a = a.clone()
        a.copy_(b)
        b.copy_(old_a)

    @weft.compile
    def rotate():
        old_a = a.clone()
        a.copy_(b)
        b.copy_(c)
        c.copy_(old_a)

    swap()
    assert (a[0].item(), b[69].item()) == (2.0, 1.0)
    swap()
    swap()
    assert (a[69].item(), b[0].item()) == (2.0, 1.0)
    rotate()
    assert (a[0].item(), b[0].item(), c[0].item()) == (1.0, 3.0, 2.0)
    rotate()
    assert (a[0].item(), b[0].item(), c[0].item()) == (3.0, 2.0, 1.0)


def test_a_cell_written_in_another_order_of_elements():
    """Element i is read after it was overwritten, unless the value is computed aside."""
    w = weft.arange(100).float()
    matrix = weft.arange(49).float().reshape(7, 7).clone()

    @weft.compile
    def iteration():
        w.copy_(w.flip(0))
        matrix.copy_(matrix.T)

    iteration()
    assert w.tolist() == list(map(float, range(99, -1, -1)))
    np.testing.assert_array_equal(matrix.numpy(), np.arange(49, dtype=np.float32).reshape(7, 7).T)
    iteration()
    assert w.tolist() == list(map(float, range(100)))


def test_cells_that_lie_in_one_piece_of_memory():
    """Slices of one computed tensor share its memory; written by a compiled function they must part."""
    whole = weft.arange(6).float() + 0.0
    weft.eval(whole)
    with weft.no_grad():
        parts = [whole[:3].clone(), whole[3:].clone(), whole[1:5].clone()]

    @weft.compile
    def step():
        for number, part in enumerate(parts):
            part.add_(10.0 * (number + 1))
        return whole.sum()

    assert step().item() == 15.0
    assert step().item() == 15.0
    assert [part.tolist() for part in parts] == [[20.0, 21.0, 22.0], [43.0, 44.0, 45.0], [61.0, 62.0, 63.0, 64.0]]
    assert whole.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_running_statistics():
    """What batch normalisation does: statistics that follow the batches, and a count of them."""
    mean, var, seen = weft.zeros(5), ones(5), weft.zeros((), dtype=weft.int64)
    torch_mean, torch_var = torch.zeros(5), torch.ones(5)

    @weft.compile
    def normalise(x):
        m, v = x.mean(0), x.var(0, correction=0)
        with weft.no_grad():
            mean.lerp_(m.detach(), 0.1)
            var.lerp_(x.var(0).detach(), 0.1)
            seen.add_(1)
        return (x - m) / (v + 1e-5).sqrt()

    for iteration in range(4):
        x = numbers(9, 5, seed=iteration)
        ours = normalise(weft.tensor(x)).numpy()
        theirs = torch.nn.functional.batch_norm(torch.tensor(x), torch_mean, torch_var, training=True, momentum=0.1)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mean.numpy(), torch_mean.numpy(), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(var.numpy(), torch_var.numpy(), rtol=1e-5, atol=1e-7)
        assert seen.item() == iteration + 1


def test_two_functions_share_their_parameters():
    w = parameter(4)
    optimizer = weft.optim.SGD([w], lr=0.5)

    @weft.compile
    def train(x):
        optimizer.zero_grad()
        loss = (w * x).sum()
        loss.backward()
        optimizer.step()
        return loss

    @weft.compile
    @weft.no_grad()
    def evaluate(x):
        return (w * x).sum()

    x, expected = numbers(4, seed=1), numbers(4)
    for _ in range(5):
        np.testing.assert_allclose(evaluate(weft.tensor(x)).item(), (expected * x).sum(), rtol=1e-5)
        train(weft.tensor(x))
        expected = expected - np.float32(0.5) * x
        np.testing.assert_array_equal(w.numpy(), expected)
    assert counted("traces", lambda: (evaluate(weft.tensor(x)), train(weft.tensor(x)))) == 0


def test_two_functions_write_the_same_cell():
    w = weft.zeros(2)

    @weft.compile
    def up():
        w.add_(1.0)
        return w.sum()

    @weft.compile
    def double():
        w.mul_(2.0)
        return w.sum()

    assert [up().item(), double().item(), up().item(), double().item(), up().item()] == [2.0, 4.0, 6.0, 12.0, 14.0]


# ---- counters -------------------------------------------------------------------------------------------------------


def test_a_replay_moves_nothing_and_compiles_nothing():
    w = parameter(8, 4)
    optimizer = weft.optim.AdamW([w], lr=0.1)

    @weft.compile
    def step(x):
        optimizer.zero_grad()
        loss = (F.dropout(F.linear(x, w), 0.1) ** 2).mean()
        loss.backward()
        weft.optim.clip_grad_norm_([w], 1.0)
        optimizer.step()
        return loss

    x = weft.tensor(numbers(6, 4))
    step(x)
    step(x)
    before = weft.counters()
    for _ in range(5):
        loss = step(x)
    after = weft.counters()
    moved = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert moved == {"plans_run": 5, "launches": 5 * len(step.plan)}
    before = weft.counters()
    loss.item()
    assert weft.counters()["downloads"] - before["downloads"] == 1
    assert weft.counters()["download_bytes"] - before["download_bytes"] == 4


def test_the_plan_can_be_seen():
    step = weft.compile(lambda x: x.softmax(-1))
    with pytest.raises(weft.GraphError, match="not called yet"):
        step.plan  # noqa: B018
    step(ones(4, 5))
    (kernel,) = step.plan.kernels()
    device = weft.default_device().name
    entry = {"cpu": "define", "opencl": "__kernel", "webgpu": "@compute"}.get(weft.default_device().kind, "__global__")
    assert "exp" in kernel.name and entry in kernel.source
    assert kernel.bytes == 2 * 4 * 5 * 4 and kernel.flops > 0
    memory = step.plan.memory()
    assert (memory.inputs, memory.outputs, memory.arena_bytes, memory.peak) == (80, 80, 0, 160)
    assert f"1 kernels on {device}" in str(step.plan) and "peak 160 B" in str(memory)
