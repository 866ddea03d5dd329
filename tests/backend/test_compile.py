"""`weft.compile`: a compiled function does what the plain one does, replay after replay, whatever happens between."""

import collections

import numpy as np
import pytest
import torch

import weft
import weft.nn.functional as F


@pytest.fixture(params=["cpu"], autouse=True)
def device(request):
    with weft.device(request.param):
        weft.manual_seed(0)
        yield request.param


def counted(name, call):
    """By how much `call()` moves a counter."""
    before = weft.counters()
    call()
    return weft.counters()[name] - before[name]


def kernels_made():
    """Kernels that were compiled, or loaded from disk where an earlier run compiled them."""
    now = weft.counters()
    return now["kernels_compiled"] + now["kernels_from_disk"]


def numbers(*shape, seed=0, low=-1.0, high=1.0, dtype=np.float32):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def parameter(*shape, seed=0):
    return weft.tensor(numbers(*shape, seed=seed), requires_grad=True)


# ---- cells ----------------------------------------------------------------------------------------------------------


def test_a_captured_tensor_is_read_and_written():
    total = weft.zeros(3)

    @weft.compile
    def add(x):
        total.add_(x)
        return total * 2

    for turn in range(1, 6):
        assert add(weft.full((3,), 1.0)).tolist() == [2.0 * turn] * 3
        assert total.tolist() == [float(turn)] * 3  # read eagerly between calls


def test_a_function_may_only_write():
    total, count = weft.zeros(2), weft.zeros((), dtype=weft.int64)

    @weft.compile
    def add(x):
        total.add_(x)
        count.add_(1)

    for _ in range(4):
        assert add(weft.ones(2)) is None
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
        lambda w: w.detach(),
        lambda w: w + 0.0,
        lambda w: w.clone(),
        lambda w: w.reshape(2, 2),
        lambda w: w[1:3],
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
    a, b, c = weft.full((70,), 1.0), weft.full((70,), 2.0), weft.full((70,), 3.0)

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
    def turn():
        w.copy_(w.flip(0))
        matrix.copy_(matrix.T)

    turn()
    assert w.tolist() == list(map(float, range(99, -1, -1)))
    np.testing.assert_array_equal(matrix.numpy(), np.arange(49, dtype=np.float32).reshape(7, 7).T)
    turn()
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
    mean, var, seen = weft.zeros(5), weft.ones(5), weft.zeros((), dtype=weft.int64)
    torch_mean, torch_var = torch.zeros(5), torch.ones(5)

    @weft.compile
    def normalise(x):
        m, v = x.mean(0), x.var(0, correction=0)
        with weft.no_grad():
            mean.lerp_(m.detach(), 0.1)
            var.lerp_(x.var(0).detach(), 0.1)
            seen.add_(1)
        return (x - m) / (v + 1e-5).sqrt()

    for turn in range(4):
        x = numbers(9, 5, seed=turn)
        ours = normalise(weft.tensor(x)).numpy()
        theirs = torch.nn.functional.batch_norm(torch.tensor(x), torch_mean, torch_var, training=True, momentum=0.1)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mean.numpy(), torch_mean.numpy(), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(var.numpy(), torch_var.numpy(), rtol=1e-5, atol=1e-7)
        assert seen.item() == turn + 1


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


# ---- results --------------------------------------------------------------------------------------------------------


def test_results_that_are_kept_keep_their_values():
    w = weft.zeros(())

    @weft.compile
    def step(x):
        w.add_(1.0)
        return (w * x).sum()

    x = weft.ones(4)
    losses = []
    for _ in range(6):
        losses.append(step(x))
    assert [loss.item() for loss in losses] == [4.0, 8.0, 12.0, 16.0, 20.0, 24.0]


@pytest.mark.parametrize("read_at_once", [False, True], ids=["read later", "read at once"])
@pytest.mark.parametrize(
    "take",
    [lambda r: r.detach(), lambda r: r.reshape(-1), lambda r: r[1:], lambda r: r * 1.0, lambda r: r.clone()],
    ids=["detach", "reshape", "slice", "multiply", "clone"],
)
def test_a_value_taken_from_a_result_stays_when_the_result_is_dropped(take, read_at_once):
    w = weft.zeros(4)

    @weft.compile
    def step():
        w.add_(1.0)
        return w * 1.0

    step()
    result = step()
    taken = take(result)
    if read_at_once:
        assert set(taken.tolist()) == {2.0}
    del result
    for _ in range(3):
        step()
    assert set(taken.tolist()) == {2.0}


def test_memory_of_dropped_results_is_used_again():
    step = weft.compile(lambda x: x + 1.0)
    x = weft.zeros(1000)
    step(x)
    places = set()
    for _ in range(10):
        places.add(step(x).node.buffer.pointer)
    assert len(places) == 1
    kept = [step(x) for _ in range(5)]
    assert len({result.node.buffer.pointer for result in kept}) == 5


def test_a_result_passed_back_in():
    step = weft.compile(lambda x: x * 2.0 + 1.0)
    x, expected = weft.ones(100), 1.0
    for _ in range(6):
        x, expected = step(x), expected * 2 + 1
    assert x.tolist() == [expected] * 100


def test_a_returned_cell_is_a_snapshot():
    w = weft.zeros(3)

    @weft.compile
    def step():
        w.add_(1.0)
        return w

    results = [step() for _ in range(4)]
    assert [result[0].item() for result in results] == [1.0, 2.0, 3.0, 4.0]
    assert all(result is not w for result in results)


def test_a_cell_returned_before_and_after_it_changes():
    w = weft.zeros(3)

    @weft.compile
    def step():
        before = w.clone()
        w.add_(1.0)
        return before, w

    for turn in range(4):
        before, after = step()
        assert (before.tolist(), after.tolist()) == ([float(turn)] * 3, [turn + 1.0] * 3)


def test_a_returned_argument_and_the_same_result_twice():
    @weft.compile
    def step(x):
        y = x + 1.0
        return x, y, y

    for turn in range(3):
        x = weft.full((3,), float(turn))
        same, one, two = step(x)
        assert (same.tolist(), one.tolist(), two.tolist()) == ([turn] * 3, [turn + 1] * 3, [turn + 1] * 3)


Point = collections.namedtuple("Point", "x y")


def test_nested_arguments_and_results():
    @weft.compile
    def step(batch, options, point):
        first, (second, third) = batch
        return {
            "sum": first + second["a"] + third,
            "list": [first, None, 7, "text"],
            "point": Point(point.x * 2, point.y),
            "scaled": first * options["scale"],
            "empty": (),
        }

    for turn in range(3):
        one = weft.full((2,), float(turn))
        result = step([one, ({"a": weft.ones(2)}, weft.ones(2))], {"scale": 3.0}, Point(weft.ones(1), 5))
        assert list(result) == ["sum", "list", "point", "scaled", "empty"]
        assert result["sum"].tolist() == [turn + 2.0] * 2
        assert result["list"][0].tolist() == [turn] * 2 and result["list"][1:] == [None, 7, "text"]
        assert isinstance(result["point"], Point) and result["point"].x.tolist() == [2.0] and result["point"].y == 5
        assert result["scaled"].tolist() == [3.0 * turn] * 2
        assert result["empty"] == ()


def test_no_tensor_anywhere_is_refused():
    with pytest.raises(weft.GraphError, match=r"weft\.compile\(.*nothing.*\): given a function that returns no tensor"):

        @weft.compile
        def nothing(x):
            return 5

        nothing(weft.ones(1))


def test_results_carry_no_history():
    w = parameter(3)
    step = weft.compile(lambda x: (w * x).sum())
    result = step(weft.ones(3))
    assert not result.requires_grad
    with pytest.raises(weft.GraphError, match="does not require grad"):
        result.backward()


# ---- arguments and guards -------------------------------------------------------------------------------------------


def test_keywords_and_defaults():
    @weft.compile
    def step(x, *, scale=2.0, add=None):
        return x * scale if add is None else x * scale + add

    x = weft.ones(2)
    assert step(x).tolist() == [2.0, 2.0]
    assert step(x, scale=3.0).tolist() == [3.0, 3.0]
    assert step(x=x, scale=4.0).tolist() == [4.0, 4.0]
    assert step(x, add=weft.ones(2)).tolist() == [3.0, 3.0]
    assert counted("traces", lambda: step(x, scale=7.0)) == 0


def test_numpy_arguments():
    step = weft.compile(lambda x, y: (x * y).sum())
    for turn in range(3):
        assert step(np.full(3, turn, np.float32), np.ones(3, np.float32)).item() == 3.0 * turn
    assert step(np.arange(3), weft.ones(3, dtype=weft.int64)).item() == 3


def test_numpy_numbers_are_arguments_too():
    step = weft.compile(lambda x, rate: x * rate)
    for rate in (np.float64(0.5), np.float32(0.25)):
        assert step(weft.ones(1), rate).item() == rate


def test_floats_are_dynamic():
    step = weft.compile(lambda x, rate, shift: x * rate + shift)
    x = weft.ones(2)
    step(x, 0.5, 1.0)
    for rate in (0.25, 0.0, -1.0, 1e30, float("inf")):
        assert counted("traces", lambda rate=rate: step(x, rate, 2.0)) == 0
        assert step(x, rate, 2.0).tolist() == [np.float32(rate) + 2.0] * 2


def test_a_float_takes_the_dtype_of_its_partner():
    step = weft.compile(lambda x, rate: x * rate)
    double = weft.ones(2, dtype=weft.float64)
    assert step(double, 0.1).dtype is weft.float64
    np.testing.assert_array_equal(step(double, 0.1).numpy(), [0.1, 0.1])  # not the float32 nearest to 0.1
    assert step(weft.ones(2, dtype=weft.int32), 0.5).dtype is weft.float32


@pytest.mark.parametrize(("first", "second"), [(2, 3), (True, False), ("sum", "mean"), (1, True), (None, 1), (1, 1.0)])
def test_other_arguments_are_static(first, second):
    def describe(x, what):
        return (
            x.sum() if what in ("sum", 1) and what is not True else x * (3 if what is None else float(len(str(what))))
        )

    step = weft.compile(lambda x, what: describe(x, what) if not isinstance(what, weft.Tensor) else x * what * 5)
    x = weft.ones(2)
    step(x, first)
    assert counted("traces", lambda: step(x, second)) == 1
    assert counted("traces", lambda: (step(x, first), step(x, second))) == 0
    np.testing.assert_array_equal(step(x, first).numpy(), describe(x, first).numpy())


def test_integers_choose_the_branch():
    @weft.compile
    def power(x, n):
        for _ in range(n):
            x = x * 2.0
        return x

    assert [power(weft.ones(1), n).item() for n in (0, 3, 1, 3, 0)] == [1.0, 8.0, 2.0, 8.0, 1.0]


def test_shapes_and_dtypes_are_guarded():
    step = weft.compile(lambda x: x.sum())
    given = [
        weft.ones(3),
        weft.ones(4),
        weft.ones(3, 1),
        weft.ones(3, dtype=weft.float64),
        weft.ones(3, dtype=weft.int32),
    ]
    for number, x in enumerate(given):
        assert counted("traces", lambda x=x: step(x)) == 1, number
    for x in given:
        assert step(x).item() == x.numel()
        assert step(x).dtype is x.sum().dtype
    assert counted("traces", lambda: [step(x) for x in given]) == 0


def test_devices_are_guarded():
    step = weft.compile(lambda x: x + 1.0)
    here, elsewhere = weft.ones(3), weft.ones(3, device="reference")
    weft.eval(here)
    weft.eval(elsewhere)
    for _ in range(2):
        assert step(here).tolist() == [2.0] * 3
    with pytest.raises(weft.GraphError, match="reference backend"):  # it interprets; it compiles nothing
        step(elsewhere)
    assert step(here).tolist() == [2.0] * 3


def test_two_devices_are_refused():
    step = weft.compile(lambda x, y: (x + 1.0, y + 1.0))
    with pytest.raises(weft.DeviceError, match=r"weft\.compile\(.*lambda.*\): given tensors on cpu, null"):
        step(weft.ones(1), weft.ones(1, device="null"))


def test_the_last_short_batch_compiles_no_kernels():
    """The outermost extent is a kernel argument."""
    w, b = parameter(16, 24), parameter(16, seed=1)
    optimizer = weft.optim.AdamW([w, b], lr=1e-2)

    @weft.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(x, w, b).relu(), y)
        loss.backward()
        optimizer.step()
        return loss

    def run(rows):
        x, y = weft.tensor(numbers(rows, 24)), weft.tensor(np.arange(rows) % 16)
        weft.eval(x, y)
        return lambda: step(x, y)

    run(128)()
    short = run(100)
    compiled = kernels_made()
    assert counted("traces", short) == 1
    assert kernels_made() == compiled


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.relu() * 2.0 + 1.0,
        lambda x: x.softmax(-1),
        lambda x: F.layer_norm(x, (x.shape[-1],)),
        lambda x: (x * x).sum(1),
        lambda x: (x * x).mean(0),
        lambda x: (x * x).mean(),
        lambda x: x[:, :5] @ x[:5, :6],
        lambda x: x[:, :5].mT @ x[:, :6],
    ],
    ids=["elementwise", "softmax", "layer_norm", "row sum", "column sum", "sum", "small product", "small gradient"],
)
def test_another_number_of_rows_compiles_no_kernels(function):
    step = weft.compile(function)
    step(weft.ones(96, 40))
    short = weft.ones(70, 40)
    weft.eval(short)
    compiled = kernels_made()
    step(short)
    assert kernels_made() == compiled


def test_gradient_mode_is_guarded():
    w = parameter(2)

    @weft.compile
    def step(x):
        y = (w * x).sum()
        return y if y.requires_grad else y * 100.0

    x = weft.ones(2)
    plain = step(x).item()
    with weft.no_grad():
        np.testing.assert_allclose(step(x).item(), plain * 100.0, rtol=1e-6)
    assert step(x).item() == plain


def test_requires_grad_of_an_argument_is_guarded():
    @weft.compile
    def step(x):
        return x.sum() * 2.0 if x.requires_grad else x.sum()

    x = weft.ones(2)
    assert [step(x).item(), step(x).item()] == [2.0, 2.0]
    leaf = weft.ones(2, requires_grad=True)
    weft.eval(leaf)
    assert step(leaf).item() == 4.0
    assert step(x).item() == 2.0


def test_requires_grad_of_a_cell_is_guarded():
    w, frozen = parameter(2), parameter(2, seed=1)

    @weft.compile
    def step():
        w.grad = frozen.grad = None
        (w * frozen).sum().backward()

    step()
    assert frozen.grad is not None
    frozen.requires_grad_(False)
    step()
    assert frozen.grad is None
    np.testing.assert_array_equal(w.grad.numpy(), frozen.numpy())


def test_a_retrace_tells_its_cause():
    w = parameter(2)

    @weft.compile
    def step(x, count):
        (w * x).sum().backward()
        return x.sum() * count

    step(weft.ones(2), 1)
    assert step.retraces == []
    step(weft.ones(2), 1)
    w.grad = None
    step(weft.ones(2, dtype=weft.float64).float(), 2)
    with weft.no_grad():
        weft.compile(lambda x: x)(weft.ones(1))
    assert len(step.retraces) == 2
    assert ".grad that was None" in step.retraces[0]
    assert "argument 1" in step.retraces[1]


def test_other_arguments_are_refused_by_name():
    step = weft.compile(lambda x: x)
    with pytest.raises(weft.GraphError, match=r"weft.compile: given an argument of type object"):
        step(object())


def test_the_same_tensor_twice():
    step = weft.compile(lambda a, b: a * 2.0 + b)
    x, y = weft.ones(3), weft.full((3,), 5.0)
    assert step(x, x).tolist() == [3.0] * 3
    assert step(x, y).tolist() == [7.0] * 3
    assert step(y, y).tolist() == [15.0] * 3


def test_a_captured_cell_as_an_argument():
    w = weft.ones(3)

    @weft.compile
    def step(x):
        w.add_(x)
        return x * 10.0

    assert step(w).tolist() == [10.0] * 3
    assert w.tolist() == [2.0] * 3
    assert step(w).tolist() == [20.0] * 3
    assert w.tolist() == [4.0] * 3
    assert step(weft.ones(3)).tolist() == [10.0] * 3
    assert w.tolist() == [5.0] * 3


def test_lazy_arguments_are_computed_first():
    step = weft.compile(lambda x: x + 1.0)
    for turn in range(3):
        assert step(weft.full((2,), 1.0) * float(turn) + 1.0).tolist() == [turn + 2.0] * 2


def test_an_argument_assigned_inside_changes_nothing_outside():
    @weft.compile
    def step(x):
        x.add_(1.0)
        return x * 2.0

    x = weft.ones(2)
    for _ in range(3):
        assert step(x).tolist() == [4.0, 4.0]
        assert x.tolist() == [1.0, 1.0]


def test_nested_compiled_functions():
    w = weft.zeros(2)

    @weft.compile
    def inner(x, scale):
        w.add_(1.0)
        return x * scale

    @weft.compile
    def outer(x):
        return inner(x, 2.0) + inner(x, 3.0)

    for turn in range(1, 4):
        assert outer(weft.ones(2)).tolist() == [5.0, 5.0]
        assert w.tolist() == [2.0 * turn] * 2
    assert inner(weft.ones(2), 4.0).tolist() == [4.0, 4.0]
    assert w.tolist() == [7.0, 7.0]
    assert outer(weft.ones(2)).tolist() == [5.0, 5.0]
    assert w.tolist() == [9.0, 9.0]


def test_a_method_and_its_name():
    class Model:
        def __init__(self):
            self.w = weft.full((2,), 2.0)
            self.call = weft.compile(self.forward)

        def forward(self, x):
            """Twice."""
            return self.w * x

    model = Model()
    assert model.call(weft.ones(2)).tolist() == [2.0, 2.0]
    assert model.call.__doc__ == "Twice."
    assert "Model.forward" in model.call.name


# ---- gradients ------------------------------------------------------------------------------------------------------


def loss_of(w, x):
    return ((w * x).tanh() ** 2).sum()


@pytest.mark.parametrize("place", ["inside", "outside"])
def test_a_gradient_that_stays_behind(place):
    w, theirs = parameter(5), torch.tensor(numbers(5), requires_grad=True)

    @weft.compile
    def step(x):
        if place == "inside":
            w.grad = None
        loss = loss_of(w, x)
        loss.backward()
        return loss

    traces = weft.counters()["traces"]
    for turn in range(4):
        x = numbers(5, seed=turn + 1)
        if place == "outside":
            w.grad = None
        theirs.grad = None
        loss_of(theirs, torch.tensor(x)).backward()
        step(weft.tensor(x))
        np.testing.assert_allclose(w.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-6)
    assert weft.counters()["traces"] - traces <= 2


def test_gradients_accumulate_over_compiled_calls():
    w, theirs = parameter(5), torch.tensor(numbers(5), requires_grad=True)

    @weft.compile
    def accumulate(x):
        loss = loss_of(w, x)
        loss.backward()
        return loss

    traces = weft.counters()["traces"]
    for _round in range(3):
        w.grad = theirs.grad = None
        for turn in range(3):
            x = numbers(5, seed=turn + 1)
            loss_of(theirs, torch.tensor(x)).backward()
            accumulate(weft.tensor(x))
            np.testing.assert_allclose(w.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-6)
    assert weft.counters()["traces"] - traces == 2  # with a gradient and without


def test_a_gradient_made_eagerly_is_added_to():
    w, theirs = parameter(5), torch.tensor(numbers(5), requires_grad=True)

    @weft.compile
    def accumulate(x):
        loss_of(w, x).backward()

    for turn in range(4):
        x = numbers(5, seed=turn + 1)
        loss_of(theirs, torch.tensor(x)).backward()
        if turn % 2:
            accumulate(weft.tensor(x))
        else:
            loss_of(w, weft.tensor(x)).backward()
        np.testing.assert_allclose(w.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_zeroing_in_place_keeps_the_gradient_tensor():
    w = parameter(3)

    @weft.compile
    def step(x):
        w.grad.zero_()
        (w * x).sum().backward()

    w.grad = weft.ones(3)
    for turn in range(3):
        step(weft.full((3,), float(turn)))
        assert w.grad.tolist() == [turn] * 3


def test_a_gradient_held_from_an_earlier_replay_keeps_its_value():
    w = parameter(2)

    @weft.compile
    def step(x):
        w.grad = None
        (w * x).sum().backward()

    step(weft.ones(2))
    kept = w.grad.clone()
    step(weft.full((2,), 2.0))
    assert kept.tolist() == [1.0, 1.0]
    assert w.grad.tolist() == [2.0, 2.0]


def test_clearing_inside_leaves_none_behind():
    w = parameter(2)

    @weft.compile
    def step(x):
        loss = (w * x).sum()
        loss.backward()
        w.grad = None
        return loss

    for _ in range(3):
        step(weft.ones(2))
        assert w.grad is None


def test_eager_and_compiled_steps_take_turns():
    """The same parameters and optimizer, one step compiled, the next not."""
    w, b = parameter(4, 3), parameter(4, seed=1)
    theirs = [torch.tensor(t.numpy(), requires_grad=True) for t in (w, b)]
    optimizer, torch_optimizer = weft.optim.Adam([w, b], lr=0.1), torch.optim.Adam(theirs, lr=0.1)

    def eager(x):
        optimizer.zero_grad()
        loss = F.linear(x, w, b).tanh().sum()
        loss.backward()
        optimizer.step()
        return loss

    compiled = weft.compile(eager)
    for turn in range(8):
        x = numbers(5, 3, seed=turn)
        ours = (compiled if turn % 3 else eager)(weft.tensor(x))
        torch_optimizer.zero_grad()
        loss = torch.nn.functional.linear(torch.tensor(x), *theirs).tanh().sum()
        loss.backward()
        torch_optimizer.step()
        np.testing.assert_allclose(ours.item(), loss.item(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(w.numpy(), theirs[0].detach().numpy(), rtol=1e-5, atol=1e-5)


def test_gradients_of_functions_inside():
    cube = weft.compile(weft.grad(weft.grad(lambda x: x**3)))
    for value in (2.0, 3.0):
        np.testing.assert_allclose(cube(weft.tensor(value)).item(), 6 * value, rtol=1e-6)


def test_the_learning_rate_changes_without_a_retrace():
    w = weft.zeros(2, requires_grad=True)
    optimizer = weft.optim.SGD([w], lr=1.0)

    @weft.compile
    def step(x):
        optimizer.zero_grad()
        (w * x).sum().backward()
        optimizer.step()

    x = weft.ones(2)
    step(x)
    assert w.tolist() == [-1.0, -1.0]
    traces, expected = weft.counters()["traces"], -1.0
    for rate in (0.5, 0.25, 2.0):
        optimizer.param_groups[0]["lr"] = rate
        step(x)
        expected -= rate
        assert w.tolist() == [expected] * 2
        step(x)
        expected -= rate
        assert w.tolist() == [expected] * 2
    assert weft.counters()["traces"] == traces


def test_hyper_parameters_that_change_the_formula_retrace():
    """Weight decay set from zero adds a term; it must not be left out."""
    w = weft.ones(2, requires_grad=True)
    optimizer = weft.optim.SGD([w], lr=1.0)

    @weft.compile
    def step(x):
        optimizer.zero_grad()
        (w * x).sum().backward()
        optimizer.step()

    step(weft.zeros(2))
    assert w.tolist() == [1.0, 1.0]
    optimizer.param_groups[0]["weight_decay"] = 0.5
    step(weft.zeros(2))
    assert w.tolist() == [0.5, 0.5]
    optimizer.param_groups[0]["weight_decay"] = 0.0
    step(weft.zeros(2))
    assert w.tolist() == [0.5, 0.5]


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_a_function_that_raises_changes_nothing():
    w = parameter(3)
    total, generator = weft.ones(3), weft.Generator(5)
    before = w.numpy()

    @weft.compile
    def step(x, fail):
        w.grad = None
        loss = (w * x + weft.rand(3, generator=generator)).sum()
        loss.backward()
        with weft.no_grad():
            w.sub_(w.grad)
            total.add_(1.0)
        if fail:
            raise RuntimeError("half-way")
        return loss

    def check(grad):
        np.testing.assert_array_equal(w.numpy(), before)
        assert total.tolist() == [1.0] * 3
        assert generator.get_state() == (5, 0)
        assert w.grad is grad

    with pytest.raises(RuntimeError, match="half-way"):
        step(weft.ones(3), True)
    check(None)
    w.grad = kept = weft.full((3,), 9.0)
    with pytest.raises(RuntimeError, match="half-way"):
        step(weft.ones(3), True)
    check(kept)
    assert kept.tolist() == [9.0] * 3
    step(weft.ones(3), False)
    np.testing.assert_array_equal(w.numpy(), before - 1.0)
    with pytest.raises(RuntimeError, match="half-way"):
        step(weft.ones(3), True)
    np.testing.assert_array_equal(w.numpy(), before - 1.0)
    assert (total.tolist(), w.grad.tolist()) == ([2.0] * 3, [1.0] * 3)
    step(weft.ones(3), False)
    np.testing.assert_array_equal(w.numpy(), before - 2.0)


def test_a_tensor_in_an_outer_list_is_refused():
    outside = []

    @weft.compile
    def step(x):
        outside.append(x * 2.0)
        return x

    expected = (
        r"weft\.compile\(.*step\): given a tensor of shape \(3,\).*still held outside.*by a list.*return it, or keep"
    )
    with pytest.raises(weft.GraphError, match=expected):
        step(weft.ones(3))


def test_a_tensor_in_an_attribute_is_refused():
    class Holder:
        pass

    holder, w = Holder(), parameter(2)

    @weft.compile
    def step(x):
        w.grad = None
        holder.last = (w * x).sum()
        holder.last.backward()
        return x

    with pytest.raises(weft.GraphError, match="still held outside"):
        step(weft.ones(2))
    assert w.grad is None
    holder.last = None


def test_an_argument_kept_outside_is_refused():
    outside = []

    @weft.compile
    def step(x):
        outside.append(x)
        return x * 2.0

    with pytest.raises(weft.GraphError, match="still held outside"):
        step(weft.ones(2))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.item(), lambda x: float(x), lambda x: int(x), lambda x: bool(x), lambda x: x.numpy(),
        lambda x: x.tolist(), lambda x: weft.eval(x), lambda x: np.asarray(x),
    ],
    ids=["item", "float", "int", "bool", "numpy", "tolist", "eval", "asarray"],
)  # fmt: skip
def test_reading_a_value_inside_is_refused(read):
    w = weft.ones(1)
    for target in ("argument", "cell", "result"):

        @weft.compile
        def step(x, target=target):
            read({"argument": x, "cell": w, "result": x * w}[target])
            return x

        with pytest.raises(weft.GraphError, match=r"inside weft.compile, where values are not known yet"):
            step(weft.ones(1))
    assert w.item() == 1.0


def test_printing_inside_shows_the_form():
    texts = []

    @weft.compile
    def step(x):
        texts.append(repr(x * 2.0))
        return x

    step(weft.ones(3))
    assert texts == ["tensor(<traced>, shape=(3,), dtype=weft.float32)"]


def test_a_donated_argument_is_gone():
    def scale(x, y):
        return x * y

    step = weft.compile(scale, donate=(0,))
    y = weft.full((3,), 2.0)
    for _ in range(3):  # the first call traces, the others replay
        x = weft.ones(3)
        weft.eval(x)
        assert step(x, y).tolist() == [2.0] * 3
        with pytest.raises(weft.BufferError_, match=r"donated to .*scale"):
            x.numpy()
        with pytest.raises(weft.BufferError_, match=r"donated to .*scale"):
            step(x, y)
        with pytest.raises(weft.BufferError_, match=r"donated to .*scale"):
            (x + 1.0).numpy()
        assert y.tolist() == [2.0] * 3


def test_a_donated_argument_that_was_not_computed_yet():
    step = weft.compile(lambda x: x * 2.0, donate=(0,))
    x = weft.ones(3) + 1.0
    assert step(x).tolist() == [4.0] * 3
    with pytest.raises(weft.BufferError_, match="donated to"):
        x.numpy()


def test_an_index_out_of_range_is_reported_by_every_replay():
    table = weft.arange(5).float()
    step = weft.compile(lambda i: table[i].sum())
    assert step(weft.tensor([1, 2])).item() == 3.0
    for _ in range(2):
        with pytest.raises(weft.IndexRangeError, match=r"test_compile\.py:\d+"):
            step(weft.tensor([1, 5]))
        assert step(weft.tensor([1, 4])).item() == 5.0


# ---- random numbers -------------------------------------------------------------------------------------------------


def noise(x):
    return x + weft.rand(3, 5), weft.randn(7), F.dropout(x, 0.5), weft.randint(10, (4,))


def test_compiled_and_eager_draws_are_the_same_bits():
    x = weft.ones(3, 5)
    weft.manual_seed(3)
    eager = [[part.numpy() for part in noise(x)] for _ in range(3)]
    weft.manual_seed(3)
    step = weft.compile(noise)
    for expected in eager:
        for part, other in zip(step(x), expected, strict=True):
            np.testing.assert_array_equal(part.numpy(), other)


def test_each_replay_draws_anew_and_eager_draws_continue_the_stream():
    step = weft.compile(lambda x: x + weft.rand(6))
    x = weft.zeros(6)
    weft.manual_seed(4)
    expected = [weft.rand(6).tolist() for _ in range(8)]
    weft.manual_seed(4)
    drawn = [(step(x) if turn % 3 else weft.rand(6)).tolist() for turn in range(8)]
    assert drawn == expected
    assert len(set(map(tuple, drawn))) == 8


def test_two_compiled_functions_share_one_stream():
    one, two = weft.compile(lambda x: x + weft.rand(4)), weft.compile(lambda x: x + weft.rand(4) + weft.rand(4))
    x = weft.zeros(4)
    weft.manual_seed(5)
    singles = [weft.rand(4).numpy() for _ in range(9)]
    weft.manual_seed(5)
    for turn in range(3):
        a, b, c = singles[3 * turn : 3 * turn + 3]
        np.testing.assert_array_equal(one(x).numpy(), a)
        np.testing.assert_array_equal(two(x).numpy(), b + c)


def test_seeding_between_replays_and_resuming():
    step = weft.compile(lambda x: x + weft.rand(4))
    x = weft.zeros(4)
    weft.manual_seed(6)
    first = step(x).tolist()
    state = weft.default_generator.get_state()
    second, third = step(x).tolist(), step(x).tolist()
    weft.default_generator.set_state(state)
    assert [step(x).tolist(), step(x).tolist()] == [second, third]
    weft.manual_seed(6)
    assert step(x).tolist() == first
    weft.manual_seed(7)
    assert step(x).tolist() != first


def test_generators_are_apart():
    one, two = weft.Generator(1), weft.Generator(2)
    step = weft.compile(lambda x: (x + weft.rand(3, generator=one), x + weft.rand(3, generator=two)))
    x = weft.zeros(3)
    expected = [[weft.rand(3, generator=g).tolist() for _ in range(3)] for g in (one, two)]
    one.manual_seed(1), two.manual_seed(2)
    drawn = [[part.tolist() for part in step(x)] for _ in range(3)]
    assert [list(pair) for pair in zip(*drawn, strict=True)] == expected


def test_a_dropout_mask_is_one_in_forward_and_backward():
    w = weft.ones(40, 30, requires_grad=True)

    @weft.compile
    def step():
        w.grad = None
        y = F.dropout(w, 0.3)
        y.sum().backward()
        return y

    masks = []
    for _ in range(3):
        y = step().numpy()
        assert 0.15 < (y == 0).mean() < 0.45
        np.testing.assert_array_equal(w.grad.numpy(), y)
        masks.append(y)
    assert (masks[0] != masks[1]).any() and (masks[1] != masks[2]).any()


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
    step(weft.ones(4, 5))
    (kernel,) = step.plan.kernels()
    assert "exp" in kernel.name and "define" in kernel.source
    assert kernel.bytes == 2 * 4 * 5 * 4 and kernel.flops > 0
    memory = step.plan.memory()
    assert (memory.inputs, memory.outputs, memory.arena_bytes, memory.peak) == (80, 80, 0, 160)
    assert "1 kernels on cpu" in str(step.plan) and "peak 160 B" in str(memory)
