"""Long runs: nothing grows, interrupts and forks leave a state that works, other Python threads go on."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import weft
import weft.nn.functional as F

ROOT = Path(__file__).parents[2]
MEGABYTE = 1 << 20
on_linux = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def usage():
    gc.collect()
    counters = weft.counters()
    made = {name: counters[name] for name in ("traces", "plans_built", "kernels_compiled", "kernels_from_disk")}
    return resident_bytes(), len(gc.get_objects()), made


def check_no_growth(run, warm, steps, objects=50):
    """`run(n)` makes n steps. After `warm` of them, memory, Python objects and what was compiled stay."""
    run(warm)
    before = usage()
    run(steps)
    after = usage()
    assert after[2] == before[2]
    assert after[1] - before[1] < objects
    assert after[0] - before[0] < 3 * MEGABYTE


class Network:
    """A small classifier with dropout, clipping and AdamW; data on the host."""

    def __init__(self, compiled):
        rng = self.rng = np.random.default_rng(0)
        shapes = [(32, 16), (32,), (8, 32), (8,)]
        self.params = [
            weft.tensor(rng.normal(0, 0.3, shape).astype(np.float32), requires_grad=True) for shape in shapes
        ]
        self.optimizer = weft.optim.AdamW(self.params, lr=1e-3)
        self.step = weft.compile(self.train) if compiled else self.train

    def train(self, x, y):
        w1, b1, w2, b2 = self.params
        self.optimizer.zero_grad()
        hidden = F.dropout(F.relu(F.linear(x, w1, b1)), 0.1)
        loss = F.cross_entropy(F.linear(hidden, w2, b2), y)
        loss.backward()
        weft.optim.clip_grad_norm_(self.params, 1.0)
        self.optimizer.step()
        return loss

    def batch(self, rows=64):
        x = self.rng.normal(size=(rows, 16)).astype(np.float32)
        return weft.tensor(x), weft.tensor(x[:, :8].argmax(1))


@on_linux
@pytest.mark.serial
@pytest.mark.parametrize("read", [0, 1, 10], ids=["never read", "always read", "read now and then"])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_a_thousand_steps(compiled, read):
    network = Network(compiled)

    def run(steps):
        for number in range(steps):
            loss = network.step(*network.batch())
            if read and number % read == 0:
                loss.item()

    check_no_growth(run, warm=60, steps=1000)


@on_linux
@pytest.mark.serial
def test_a_thousand_steps_with_two_batch_sizes_and_a_schedule():
    network = Network(True)

    def run(steps):
        for number in range(steps):
            network.optimizer.param_groups[0]["lr"] = 1e-3 / (1 + number)
            network.step(*network.batch(64 if number % 5 else 40))

    check_no_growth(run, warm=60, steps=1000)


@on_linux
@pytest.mark.serial
def test_a_running_sum_that_is_not_read():
    """It is computed now and then, cheaply: neither the graph nor the time to compile it grows."""
    x = weft.ones(4)
    step = weft.compile(lambda x: x.sum())
    total = weft.zeros(())

    def run(steps):
        nonlocal total
        for _ in range(steps):
            total = total + step(x).detach()

    made = weft.counters()["plans_built"]
    run(2500)
    assert weft.counters()["plans_built"] - made < 10
    before = usage()
    run(5000)
    after = usage()
    assert after[2] == before[2]
    assert after[0] - before[0] < 6 * MEGABYTE
    assert abs(after[1] - before[1]) < 40_000
    assert total.node.depth < 2500
    assert total.item() == 4.0 * 7500


def test_flushing_a_long_chain_compiles_little():
    x, total = weft.ones(4), weft.zeros(4)
    weft.eval(x)
    before = weft.counters()
    for _ in range(3000):
        total = total + x
    assert total.tolist() == [3000.0] * 4
    after = weft.counters()
    assert after["plans_run"] - before["plans_run"] > 10
    assert after["plans_built"] + after["plans_from_disk"] - before["plans_built"] - before["plans_from_disk"] <= 4
    assert after["kernels_rendered"] - before["kernels_rendered"] <= 4


@on_linux
@pytest.mark.serial
def test_assigning_a_cell_over_and_over():
    """In-place operations without a compiled function: each read must let the history go."""
    state = weft.zeros(1000)

    def run(steps):
        for number in range(steps):
            state.mul_(0.5).add_(1.0)
            if number % 10 == 0:
                state.sum().item()

    check_no_growth(run, warm=100, steps=1000, objects=200)


@on_linux
@pytest.mark.serial
def test_accumulating_gradients_without_reading_them():
    w = weft.ones(1000, requires_grad=True)

    def run(steps):
        for _ in range(steps):
            (w * 2.0).sum().backward()

    run(3000)
    before = usage()
    run(3000)
    assert usage()[0] - before[0] < 6 * MEGABYTE
    assert w.grad[0].item() == 12000.0


def test_a_dropped_function_lets_its_tensors_go():
    def build():
        w = weft.ones(1000, requires_grad=True)
        optimizer = weft.optim.AdamW([w])

        @weft.compile
        def step(x):
            optimizer.zero_grad()
            loss = (w * x).sum()
            loss.backward()
            optimizer.step()
            return loss

        for _ in range(3):
            step(weft.ones(1000))
        w.numpy()
        return weakref.ref(w), weakref.ref(step)

    references = build()
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_a_dropped_history_lets_its_leaves_go():
    w = weft.ones(1000, requires_grad=True)
    loss = (w * 2).sum()
    loss.backward()
    loss.item()
    reference = weakref.ref(w)
    del w
    gc.collect()
    assert reference() is None
    assert loss.item() == 2000.0


# ---- forks, interrupts, threads -------------------------------------------------------------------------------------


def run_script(code, timeout=120, **environment):
    script = textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", script],
        env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_computes():
    """Before and after the fork on several threads, in the parent too; old values, old functions and new ones."""
    out = run_script(
        """
        import os, sys
        import numpy as np
        import weft

        a = weft.tensor(np.random.default_rng(0).normal(size=(600, 600)).astype(np.float32))
        w = weft.zeros(50_000)

        @weft.compile
        def step(x):
            w.add_(1.0)
            return (x @ x).sum() + w.sum()

        first = step(a).item()
        child = os.fork()
        second = step(a).item()                       # an old function
        product = (a @ a.T).sum().item()              # a new plan
        ok = second == first + 50_000 and w[-1].item() == 2.0 and np.isfinite(product)
        if child == 0:
            sys.stdout.write(f"child {ok}\\n")
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print("parent", ok)
        """,
        WEFT_NUM_THREADS="3",
    )
    assert sorted(out.split("\n")) == ["", "child True", "parent True"]


INTERRUPTS = """
    import os, random, signal, threading
    import weft

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
    w, count = weft.zeros(20_000), weft.zeros(())
    x = weft.ones(20_000)

    def add(x):
        w.add_(x)
        count.add_(1.0)
        return w.sum()

    def interrupt(caught, pause):
        while not caught.wait(pause):
            os.kill(os.getpid(), signal.SIGINT)
            pause = 2  # again: Python drops one that lands in a destructor; late, since it may be caught only now

    random.seed(0)
    step = weft.compile(add) if {compiled} else lambda x: weft.eval(add(x), w, count)
    step(x)
    for _ in range(40):
        caught = threading.Event()
        thread = threading.Thread(target=interrupt, args=(caught, random.uniform(0.002, 0.02)))
        try:
            thread.start()
            while True:
                step(x)
        except KeyboardInterrupt:
            caught.set()
        thread.join()
        values = w.numpy()
        assert (values == values[0]).all(), "a step was cut in two"
        if {compiled}:
            assert values[0] == count.item(), "two cells of one step differ"
    step(x)
    assert (w.numpy() == values[0] + 1.0).all()
    print("done")
"""


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_interrupts_act_between_plans(compiled):
    assert run_script(INTERRUPTS.format(compiled=compiled)) == "done\n"


@pytest.mark.serial
def test_other_threads_go_on_while_a_plan_runs():
    """In one of twenty tries: on a busy machine the other thread may not get a processor."""
    rng = np.random.default_rng(0)
    a = weft.tensor(rng.normal(size=(1500, 1500)).astype(np.float32))
    product = weft.compile(lambda a: (a @ a) @ a)
    product(a)
    ticks: list[float] = []
    stop = threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    def goes_on():
        time.sleep(0.01)
        ticks.clear()
        spans: list[tuple[float, float]] = []
        while sum(end - start for start, end in spans) < 0.05:  # long enough for some ticks, however fast it is
            start = time.perf_counter()
            product(a)
            spans.append((start, time.perf_counter()))
        return sum(start < moment < end for moment in ticks.copy() for start, end in spans) >= 5

    other = threading.Thread(target=tick)
    other.start()
    try:
        assert any(goes_on() for _ in range(20))
    finally:
        stop.set()
        other.join()


def test_threads_compute_at_the_same_time():
    """Eager values, a compiled function of each thread, and one that they share."""
    shared = weft.compile(lambda x: (x * 2.0).sum())
    errors = []

    def work(number):
        try:
            w = weft.zeros(300)

            @weft.compile
            def step(x):
                w.add_(x)
                return w.sum()

            x = weft.full((300,), float(number))
            for iteration in range(1, 60):
                assert step(x).item() == 300.0 * number * iteration
                assert shared(x).item() == 600.0 * number
                assert (x * float(iteration) + 1.0).sum().item() == 300.0 * (number * iteration + 1)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@on_linux
@pytest.mark.serial
def test_idle_workers_sleep():
    x = weft.ones(400, 400)
    (x @ x).numpy()

    def is_idle():
        start = time.process_time()
        time.sleep(0.4)
        return time.process_time() - start < 0.1

    assert any(is_idle() for _ in range(20))  # on a busy machine a worker may fall asleep late


@pytest.mark.parametrize("kind", ["pooler", "memory", "memory that does not learn"])
def test_learning_whose_results_are_not_read(kind):
    """Each step of a temporal memory or a spatial pooler computes its state: nothing is pending, by the same plan."""
    if kind == "pooler":
        layer, x = weft.nn.SpatialPooler(20, 30, sparsity=0.1), weft.rand(2, 20) < 0.5
    else:
        layer = weft.nn.TemporalMemory(8, 2, 2, 1, max_new_synapses=2, max_segments=2, max_synapses=4)
        x = weft.rand(1, 8) < 0.5
    weft.eval(x)
    step = layer if kind.endswith("learn") else layer.learn
    for _ in range(10):
        step(x)
    built = weft.counters()["plans_built"]
    for _ in range(20):
        step(x)
        for name, buffer in layer.named_buffers():
            assert buffer.node.buffer is not None, name
    assert weft.counters()["plans_built"] == built


def test_a_chain_of_loops_whose_results_are_not_read():
    """It is computed when it becomes as long as any other chain may be, and the loop runs once for all its results."""
    state, deepest = (weft.zeros(2), weft.ones(2)), 0
    for _ in range(1000):
        state, ys = weft.loop(lambda s, x: ((s[0] + s[1], s[1] + 0.0), s[0] * 2.0), state, length=2)
        deepest = max(deepest, *(part.node.depth for part in (*state, ys)))
    assert deepest <= 260
    assert state[0].tolist() == [2000.0, 2000.0] and ys.tolist() == [[3996.0] * 2, [3998.0] * 2]
