"""Plans of `weft.loop`: kernels, memory, lengths, bits; a language model trained as one plan."""

import numpy as np
import pytest
import torch

import weft
import weft.nn.functional as F
from tests.backend.compiling import counted, kernels_made, numbers
from tests.backend.recurrent import lstm_step, recurrent
from weft import optim

pytestmark = pytest.mark.usefixtures("on_each_device")


class Model:
    """Embedding, two LSTM layers, and a projection to the vocabulary; like torch's."""

    def __init__(self, vocabulary, width, seed=0):
        torch.manual_seed(seed)
        self.embedding, self.head = torch.nn.Embedding(vocabulary, width), torch.nn.Linear(width, vocabulary)
        self.rnn = torch.nn.LSTM(width, width, 2)
        self.theirs = torch.nn.ModuleList([self.embedding, self.head, self.rnn])
        self.width = width
        self.ours = {n: weft.tensor(p.detach().numpy(), requires_grad=True) for n, p in self.theirs.named_parameters()}

    def loss(self, tokens, targets):
        p = self.ours
        x = F.embedding(tokens, p["0.weight"])
        first = weft.zeros(tokens.shape[1], self.width)
        for layer in range(2):
            wi, wh, bi, bh = [p[f"2.{name}_l{layer}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            _, x = weft.loop(lstm_step(wh), (first, first), x @ wi.T + (bi + bh))
        scores = x.reshape(-1, self.width) @ p["1.weight"].T + p["1.bias"]
        return F.cross_entropy(scores, targets.reshape(-1))

    def their_loss(self, tokens, targets):
        scores = self.head(self.rnn(self.embedding(tokens))[0])
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def compiled_step(model):
    adam = optim.Adam(list(model.ours.values()), lr=0.01)

    @weft.compile
    def step(tokens, targets):
        adam.zero_grad()
        loss = model.loss(tokens, targets)
        loss.backward()
        adam.step()
        return loss

    return step


def batch(time, size, vocabulary, seed=0):
    tokens = np.random.default_rng(seed).integers(0, vocabulary, (time + 1, size))
    return tokens[:-1], tokens[1:]


def test_a_whole_training_step_is_one_plan():
    model = Model(20, 32)
    step, adam = compiled_step(model), torch.optim.Adam(model.theirs.parameters(), lr=0.01)
    for iteration in range(4):
        tokens, targets = batch(6, 8, 20, iteration)
        adam.zero_grad()
        expected = model.their_loss(torch.tensor(tokens), torch.tensor(targets))
        expected.backward()
        adam.step()
        arguments = weft.tensor(tokens), weft.tensor(targets)
        weft.eval(*arguments)
        losses = []
        plans = counted("plans_run", lambda arguments=arguments, losses=losses: losses.append(step(*arguments)))
        assert plans == 1 or not iteration
        assert abs(losses[0].item() - expected.item()) < 2e-4


def test_eager_and_compiled_have_the_same_bits():
    model = Model(20, 32)
    tokens, targets = map(weft.tensor, batch(6, 8, 20))
    eager = model.loss(tokens, targets)
    eager.backward()
    names = list(model.ours)
    grads = [model.ours[name].grad.numpy() for name in names]

    @weft.compile
    def step(tokens, targets):
        loss = model.loss(tokens, targets)
        loss.backward()
        return loss

    for leaf in model.ours.values():
        leaf.grad = None
    assert step(tokens, targets).item() == eager.item()
    for name, grad in zip(names, grads, strict=True):
        np.testing.assert_array_equal(model.ours[name].grad.numpy(), grad)


@pytest.mark.cpu_only  # a GPU joins small launches and cuts long rows by their length
def test_another_length_compiles_no_kernel():
    theirs = torch.nn.LSTM(16, 32)
    states = recurrent("lstm", theirs, weft.zeros(1, 8, 16))[0]
    w, wh = states["weight_ih_l0"], states["weight_hh_l0"]

    @weft.compile
    def step(x):
        first = weft.zeros(8, 32)
        (h, _), ys = weft.loop(lstm_step(wh), (first, first), x @ w.T)
        loss = ys.square().mean() + h.sum()
        w.grad = wh.grad = None
        loss.backward()
        return loss

    for time in (12, 13):  # sums over more than 64 rows are cut in pieces: from here on, all lengths are alike
        step(weft.tensor(numbers(time, 8, 16)))
    before = kernels_made()
    for time in (15, 17, 30):
        step(weft.tensor(numbers(time, 8, 16)))
    assert kernels_made() == before


@pytest.mark.cpu_only  # a GPU joins small launches, and which are small follows from the length
def test_another_length_compiles_no_kernel_for_its_draws():
    step = weft.compile(lambda x: weft.loop(lambda s, x: (F.dropout(s + x, 0.5), None), weft.zeros(8, 4), x)[0])
    step(weft.ones(300, 8, 4))
    before = kernels_made()
    for time in (17, 301, 350):
        step(weft.ones(time, 8, 4))
    assert kernels_made() == before


@pytest.mark.cpu_only
def test_kernels_of_an_lstm_step():
    """Forward, a product and the cell; backward, at most four steps; weight gradients are outside."""
    model, time = Model(50, 64), 12
    step = compiled_step(model)
    step(*map(weft.tensor, batch(time, 16, 50)))
    inside = [kernel for kernel in step.plan.kernels() if kernel.times == time]
    forward, backward = 2 * 2, 2 * 4
    assert len(inside) <= forward + backward, [kernel.name for kernel in inside]
    arguments = [weft.tensor(part) for part in batch(time, 16, 50)]
    weft.eval(*arguments)
    launches = counted("launches", lambda: step(*arguments))
    assert launches == sum(kernel.times for kernel in step.plan.kernels())
    copies = [kernel for kernel in step.plan.kernels() if kernel.name.startswith("copy")]
    assert len(copies) == 8, "two first states per loop; gradients, also equal ones, are computed in their places"


def test_guard_of_an_lstm_layer():
    """Width 256, batch 32, 64 time steps: kernels, bytes moved and memory, forward and with gradients."""
    time, size, width = 64, 32, 256
    shapes = [(time, size, width), (4 * width, width), (4 * width, width)]

    def layer(x, wi, wh):
        first = weft.zeros(size, width)
        return weft.loop(lstm_step(wh), (first, first), x @ wi.T)[1]

    def gradients(x, wi, wh):
        return weft.grad(lambda *given: layer(*given).sum(), (0, 1, 2))(x, wi, wh)

    with weft.device("null"):
        given = [weft.tensor(numbers(*shape)) for shape in shapes]
        plans = {}
        for function in (layer, gradients):
            compiled = weft.compile(function)
            compiled(*given)
            plans[function] = compiled.plan
    forward, backward = plans[layer], plans[gradients]
    assert len(forward) <= 7 and sum(kernel.times == time for kernel in forward.kernels()) == 2
    assert len(backward) <= 14 and sum(kernel.times == time for kernel in backward.kernels()) == 4
    assert forward.bytes <= 103_972_864 and backward.bytes <= 241_500_160
    assert forward.memory().arena_bytes <= 10_715_136 and backward.memory().arena_bytes <= 23_232_512


@pytest.mark.cpu_only  # counts bytes, which on a GPU include partial sums that follow the length
def test_memory_grows_with_the_length_only_by_what_is_kept():
    """Per time step and layer: h and c, the 4 gates before their activation, and their gradients."""
    width, size = 64, 16
    model = Model(50, width)
    step = compiled_step(model)
    arena = {}
    for time in (10, 20, 40):
        step(*map(weft.tensor, batch(time, size, 50)))
        arena[time] = step.plan.memory().arena_bytes
    per_step = (arena[40] - arena[20]) / 20
    assert per_step * 10 == pytest.approx(arena[20] - arena[10], rel=0.02)
    one = size * width * 4
    assert per_step <= 2 * (2 + 4 + 4) * one + 3 * size * 50 * 4, (per_step / one, arena)


@pytest.mark.cpu_only
def test_threads_do_not_change_the_bits():
    from weft.backends.cpu.worker_team import runtime

    theirs = torch.nn.LSTM(48, 64)
    x = numbers(6, 40, 48)
    results = []
    threads = runtime().threads
    try:
        for count in (1, 3):
            runtime().set_threads(count)
            leaves, ys, _ = recurrent("lstm", theirs, weft.tensor(x))
            ys.square().sum().backward()
            results.append([ys.numpy(), *[leaf.grad.numpy() for leaf in leaves.values()]])
    finally:
        runtime().set_threads(threads)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_value_for_two_cells_and_twice_in_a_row():
    a, b, x = weft.zeros(3, 4), weft.zeros(3, 4), numbers(1, 3, 4)

    @weft.compile
    def step(x):
        y = x * 2
        a.copy_(y.reshape(3, 4))
        b.copy_(y.reshape(3, 4))
        return weft.cat([y, y], 2)

    np.testing.assert_array_equal(step(weft.tensor(x)).numpy(), np.concatenate([2 * x] * 2, 2))
    np.testing.assert_array_equal(a.numpy(), 2 * x[0])
    np.testing.assert_array_equal(b.numpy(), 2 * x[0])


def test_reading_one_result_computes_the_others_too():
    last, ys = weft.loop(lambda s, x: (s + x, s * x), weft.zeros(3), weft.ones(4, 3))
    assert counted("plans_run", lambda: (last.numpy(), ys.numpy())) == 1


def test_verify_looks_into_loops():
    model = Model(20, 32)

    def step(tokens, targets):
        loss = model.loss(tokens, targets)
        loss.backward()
        return loss

    checked = weft.testing.verify(step, *map(weft.tensor, batch(6, 8, 20)))
    assert sum(one.name == "loop_6" for one in checked) == 4


def test_the_reference_agrees():
    def results(device):
        with weft.device(device):
            x, w = weft.tensor(numbers(4, 2, 3)), weft.tensor(numbers(3, 3, seed=1), requires_grad=True)
            last, ys = weft.loop(lambda h, x: ((h @ w + x).tanh(), h.sum()), weft.ones(2, 3), x, reverse=True)
            (last.sum() + ys.square().sum()).backward()
            return [last.numpy(), ys.numpy(), w.grad.numpy()]

    for a, b in zip(results("cpu"), results("reference"), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_constant_that_was_computed_elsewhere_is_no_input_of_a_loop():
    """Equal constants are one node: whether another tensor of that value was computed does not change a plan."""
    x = weft.tensor(np.arange(60, dtype=np.float32).reshape(4, 3, 5))
    expected = np.concatenate([[np.zeros((3, 5))], np.full((3, 3, 5), 0.625)]) * x.numpy()

    def run():
        _, y = weft.loop(lambda state, item: (weft.full((3, 5), 0.625), state * item), weft.zeros(3, 5), x)
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)

    run()
    alone = counted("launches", run)
    computed, waiting = weft.full((3, 5), 0.625), weft.full((3, 5), 0.625)
    weft.eval(computed)
    assert waiting.node.buffer is not None  # the node that the loop below uses, too
    assert counted("plans_built", run) == 0
    assert counted("launches", run) == alone
