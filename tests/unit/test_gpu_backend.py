"""What GPU backends share, on a driver in the host's memory: graphs, changing addresses, status words, memory."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import weft
from tests.unit.fake_driver import FakeGpu
from weft.backends.gpu import execution as gpu_execution
from weft.compiler import realize


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def two_steps(x: weft.Tensor) -> weft.Tensor:
    """Two kernels: rows that depend on sums of columns."""
    return (x / (x * x).sum(0)).exp().sum(1)


def expected(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return np.exp(wide / (wide * wide).sum(0)).sum(1)


def test_eager_values(gpu):
    x = array(5, 7)
    np.testing.assert_allclose(two_steps(weft.tensor(x)).numpy(), expected(x), rtol=1e-6)


def test_a_plan_is_recorded_the_second_time_and_replayed(gpu, separate_kernels):
    step, x = weft.compile(two_steps), weft.tensor(array(5, 7))
    for _ in range(5):
        step(x)
    log = gpu.driver.log
    assert log.count("record") == 1 and log.count("replay") == 4
    np.testing.assert_allclose(step(x).numpy(), expected(array(5, 7)), rtol=1e-6)


def test_nothing_waits_and_nothing_is_transferred(gpu, separate_kernels):
    step, x = weft.compile(two_steps), weft.tensor(array(5, 7))
    step(x)
    before = weft.counters()
    for _ in range(4):
        step(x)
    after = weft.counters()
    assert gpu.driver.queue
    assert after["uploads"] == before["uploads"] and after["downloads"] == before["downloads"]


def test_results_that_are_kept_get_copies_and_the_graph_stays(gpu, separate_kernels):
    weight = weft.ones(3, requires_grad=True)
    optimizer = weft.optim.SGD([weight], lr=0.001)

    def step(x: weft.Tensor) -> weft.Tensor:
        loss = (two_steps(x) * weight * weight).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    call, data = weft.compile(step), [array(3, 4, seed=k) for k in range(30)]
    losses = [call(weft.tensor(one)) for one in data]
    log = gpu.driver.log
    assert log.count("record") <= 2 and log.count("replay") > 10
    value, found = np.ones(3), []
    for one in data:
        sums = expected(one)
        found.append((sums * value * value).sum())
        value -= 0.001 * 2 * sums * value
    np.testing.assert_allclose([loss.item() for loss in losses], found, rtol=1e-5)
    np.testing.assert_allclose(weight.numpy(), value, rtol=1e-5)


def test_slots_that_change_now_and_then_are_staged_too(gpu, separate_kernels):
    step = weft.compile(lambda x, y: (two_steps(x) * y).sum())
    kept, found = [], []
    y = array(3)
    for k in range(60):
        if k % 7 == 0:
            y = array(3, seed=k)
            given = weft.tensor(y)
            kept.append(given)
        x = array(3, 4, seed=k)
        kept.append(step(weft.tensor(x), given))
        found.append((expected(x) * y).sum())
    assert gpu.driver.log.count("record") <= 4 and gpu.driver.log.count("replay") > 40
    losses = [one.item() for one in kept if one.shape == ()]
    np.testing.assert_allclose(losses, found, rtol=1e-4)


def test_numbers_and_random_states_are_sent_before_each_run(gpu, separate_kernels):
    weft.manual_seed(3)
    step = weft.compile(lambda x, scale: weft.nn.functional.dropout(two_steps(x) * scale, 0.5))
    x = weft.tensor(array(6, 6))
    drawn = [step(x, 1.0 + k).numpy() for k in range(4)]
    weft.manual_seed(3)
    with weft.device("cpu"):
        same = weft.compile(lambda x, scale: weft.nn.functional.dropout(two_steps(x) * scale, 0.5))
        on_cpu = [same(weft.tensor(array(6, 6)), 1.0 + k).numpy() for k in range(4)]
    for one, other in zip(drawn, on_cpu, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert not np.array_equal(drawn[0] == 0, drawn[1] == 0)


def test_an_index_out_of_range_is_reported_when_something_is_read(gpu):
    table = weft.tensor(array(4, 3))
    wrong = table[weft.tensor(np.array([0, 9]))].sum()
    with pytest.raises(weft.IndexRangeError, match="extent 4"):
        wrong.numpy()
    assert weft.ones(2).sum().item() == 2
    step = weft.compile(lambda index: two_steps(table[index]))
    step(weft.tensor(np.array([0, 1])))
    step(weft.tensor(np.array([0, 7])))
    with pytest.raises(weft.IndexRangeError, match="extent 4"):
        gpu.synchronise()
    assert step(weft.tensor(np.array([3, 1]))).shape == (2,)


def test_memory_is_given_back(gpu, separate_kernels):
    gc.collect()
    before = gpu.bytes_in_use
    step = weft.compile(two_steps)
    for k in range(12):
        kept = step(weft.tensor(array(5, 7, seed=k)))
    after_some = gpu.bytes_in_use
    for k in range(40):
        kept = step(weft.tensor(array(5, 7, seed=k)))
    assert gpu.bytes_in_use == after_some > before
    del step, kept
    gc.collect()
    gpu.synchronise()
    assert gpu.bytes_in_use == before


def test_out_of_memory_is_reported_before_anything_runs():
    backend = FakeGpu(total=1 << 16)
    x = weft.tensor(array(64, 64), device=backend.device)
    launched = backend.driver.log.count("launch")
    step = weft.compile(lambda x: x.reshape(64, 64, 1) * x.reshape(64, 1, 64))
    with pytest.raises(weft.OutOfMemoryError, match=r"needs 1\.0 MiB") as caught:
        step(x)
    text = str(caught.value)
    assert (
        "argument 0" in text and "available of 64.0 KiB" in text and "a batch of at most about 2 instead of 64" in text
    )
    with pytest.raises(weft.OutOfMemoryError, match=r"needs 1\.0 MiB"):
        (x.reshape(64, 64, 1) * x.reshape(64, 1, 64)).numpy()
    assert backend.driver.log.count("launch") == launched
    np.testing.assert_array_equal((x + 1).numpy(), array(64, 64) + 1)


def test_threads_may_run_plans_concurrently(gpu, separate_kernels):
    steps, x = [weft.compile(two_steps) for _ in range(3)], array(5, 7)
    tensor, wrong = weft.tensor(x), []

    def work(step) -> None:
        for _ in range(10):
            if not np.allclose(step(tensor).numpy(), expected(x), rtol=1e-6):
                wrong.append(step)

    threads = [threading.Thread(target=work, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def xor_training(steps: int = 6) -> list[np.ndarray]:
    """Losses and parameters of a small network, and how many kernels one step is."""
    x = weft.tensor(np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32))
    y = weft.tensor(np.array([[0], [1], [1], [0]], np.float32))
    shapes = ((2, 8), (8,), (8, 1), (1,))
    parameters = [weft.tensor(array(*shape, seed=k), requires_grad=True) for k, shape in enumerate(shapes)]
    optimizer = weft.optim.Adam(parameters, lr=0.05)

    @weft.compile
    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        w1, b1, w2, b2 = parameters
        loss = weft.nn.functional.binary_cross_entropy_with_logits((x @ w1 + b1).tanh() @ w2 + b2, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(x, y).numpy() for _ in range(steps)]
    return [*losses, *[one.numpy() for one in parameters], np.array(len(step.plan.kernels()))]


def test_a_step_of_a_tiny_network_is_one_kernel_with_the_same_bits(gpu, monkeypatch):
    *together, count = xor_training()
    monkeypatch.setattr("weft.compiler.lowering.batch_launches.join_launches", lambda steps, *_: list(steps))
    realize._plans.clear()
    *separate_kernels, more = xor_training()
    assert count == 1 and more > 4
    for one, other in zip(together, separate_kernels, strict=True):
        assert one.tobytes() == other.tobytes()
    with weft.device("cpu"):
        *on_cpu, _ = xor_training()
    for one, other in zip(together, on_cpu, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_attention_is_verified_kernel_by_kernel(gpu):
    q, k, v = (weft.tensor(array(1, 2, 5, 8, seed=n), requires_grad=True) for n in range(3))

    def step(scale: weft.Tensor) -> weft.Tensor:
        loss = (weft.nn.functional.scaled_dot_product_attention(q * scale, k, v, is_causal=True) ** 2).sum()
        loss.backward()
        return loss

    checked = weft.testing.verify(step, weft.ones(1))
    assert sum(one.name.startswith("attention") for one in checked) == 2


@pytest.mark.parametrize("rows", [70, 5])
def test_another_number_of_rows_makes_no_kernel(gpu, rows):
    functions = [
        lambda x: x.relu() * 2.0 + 1.0,
        lambda x: x.softmax(-1),
        lambda x: weft.nn.functional.layer_norm(x, (x.shape[-1],)),
        lambda x: (x * x).sum(1),
    ]
    steps = [weft.compile(function) for function in functions]
    for step in steps:
        step(weft.ones(96, 40))
    made = set(gpu.driver.kernels)
    for step in steps:
        step(weft.tensor(array(rows, 40)))
    assert set(gpu.driver.kernels) == made


@pytest.mark.parametrize(("rows", "others"), [(96, (70,)), (256, (129, 145, 255))])
def test_columns_are_added_up_by_the_same_kernels(gpu, rows, others):
    """As many chunks of rows, of which some are a row shorter."""
    steps = [
        weft.compile(function) for function in (lambda x: (x * x).sum(0), lambda x: x.amax(0), lambda x: x.mean(0))
    ]
    for step in steps:
        step(weft.tensor(array(rows, 40)))
    made = set(gpu.driver.kernels)
    for count in others:
        x = array(count, 40)
        squares, largest, mean = [step(weft.tensor(x)).numpy() for step in steps]
        np.testing.assert_allclose(squares, (x.astype(np.float64) ** 2).sum(0), 1e-6)
        np.testing.assert_array_equal(largest, x.max(0))
        np.testing.assert_allclose(mean, x.astype(np.float64).mean(0), 1e-4, 1e-7)
    assert set(gpu.driver.kernels) == made


def test_a_loss_that_is_kept_until_the_next_alternates_between_two_addresses(gpu, monkeypatch):
    """`loss = step(x)` in a loop: nothing is allocated, and each place has a graph, if of one kernel."""
    step, x = weft.compile(lambda x: x * 2.0 - 1.0), weft.tensor(array(3))
    losses = [step(x) for _ in range(3)]
    assert len({loss.node.buffer.pointer for loss in losses}) == 3
    del losses
    loss = None
    for _ in range(2 * gpu_execution.RUNS_BEFORE_GRAPH + 4):
        loss = step(x)
    asked, places = [], []
    for name in ("allocate", "make_launcher", "capture_graph"):
        monkeypatch.setattr(gpu.driver, name, asked.append)
    assert len(step.plan) == 1 and len(step.last.entry.executable._graphs) == 2
    for _ in range(6):
        loss = step(x)
        places.append(loss.node.buffer.pointer)
    np.testing.assert_array_equal(loss.numpy(), array(3) * 2 - 1)
    assert asked == [] and len(set(places)) == 2 and places[::2] == [places[0]] * 3
    monkeypatch.undo()
    view = step(x).reshape(3, 1)  # whoever holds a view holds the memory
    kept = view.numpy().copy()
    for _ in range(3):
        loss = step(x + 1)
    np.testing.assert_array_equal(view.numpy(), kept)


@pytest.mark.parametrize("columns", [8, 65, 1100])
def test_chunks_of_column_sums_are_verified(gpu, columns):
    """Each of them is a strided selection of rows."""
    checked = weft.testing.verify(lambda x: x.sum(0), weft.tensor(array(300, columns)))
    assert [one.name.split("_")[0] for one in checked] == ["rows", "cols"]
