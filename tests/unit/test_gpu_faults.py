"""What goes wrong on a GPU, on a driver in the host's memory: failures that are named, interrupts, threads, forks, the
collector, memory that runs short, and devices that have less than CUDA's."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import weft
from tests.unit.fake_driver import FakeDriver, FakeGpu, HandleDriver
from tests.unit.test_gpu_backend import array, expected, two_steps, xor_training
from weft.backends.base import DeviceLost
from weft.compiler import evaluate
from weft.compiler.plan import LibraryCall, Place, Plan, Slot

pytestmark = pytest.mark.unit


@pytest.fixture
def gpu():
    backend = FakeGpu()
    with weft.device(backend.device):
        yield backend


@pytest.fixture
def apart(monkeypatch):
    """Small kernels stay apart, so that a small plan is a graph of several."""
    monkeypatch.setattr("weft.compiler.assemble.joined", lambda steps, *_: list(steps))


def failing(driver: FakeDriver, name: str, error: BaseException, monkeypatch) -> list[str]:
    """Let what is put on the stream under `name` raise, until the list that is returned is emptied."""
    left, put = [name], driver.put

    def raising(kind, work):
        if kind in left:
            raise error
        put(kind, work)

    monkeypatch.setattr(driver, "put", raising)
    return left


# --- failures are named ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [two_steps, lambda x: x + 1], ids=["several", "alone"])
def test_a_launch_that_is_refused_names_the_kernel_and_shows_it(gpu, apart, monkeypatch, function):
    step, x = weft.compile(function), weft.tensor(array(5, 7))
    step(x)
    failing(gpu.driver, "launch", weft.DeviceError("too much shared memory"), monkeypatch)
    with pytest.raises(weft.DeviceError, match="too much shared memory") as told:
        step(x)
    kernel = step.plan.kernels()[0]
    assert str(told.value).startswith(f"{kernel.name}: given too much") and kernel.source in str(told.value)


@pytest.mark.parametrize("waits", [True, False])
def test_a_device_that_is_lost_is_told_with_what_ran(gpu, apart, monkeypatch, waits):
    monkeypatch.setenv("WEFT_SYNC", str(int(waits)))
    synchronise, broken = gpu.driver.synchronise, []

    def lost():
        if broken:
            raise DeviceLost("an illegal address was used")
        synchronise()

    monkeypatch.setattr(gpu.driver, "synchronise", lost)
    before = weft.compile(lambda x: x.tanh())
    step, x = weft.compile(two_steps), weft.tensor(array(5, 7))
    before(x).numpy()
    for _ in range(3):
        step(x)
    assert waits == ("record" not in gpu.driver.log)
    broken.append(True)
    with pytest.raises(weft.DeviceError, match="an illegal address") as told:
        step(x).numpy()
    said, names = str(told.value), [kernel.name for kernel in step.plan.kernels()]
    if waits:
        assert said.startswith(names[0]) and "__global__" in said
    else:
        assert f"these ran: {', '.join(names)}" in said and "WEFT_SYNC=1" in said and "start a new process" in said
        assert "tanh" not in said, "it ran before the device was waited for"


def test_a_library_that_fails_is_named(gpu):
    def fails(addresses):
        raise RuntimeError("status 13")

    gpu.device.libraries["somelib"] = SimpleNamespace(prepare=lambda config: fails)
    call = LibraryCall("gemm_4x4", "somelib", (), (Place(0, 0),), 0, 0)
    plan = Plan((call,), (Slot("output", 4, "x"), Slot("arena", 0, ""), Slot("status", 0, "")), (), "")
    with pytest.raises(weft.DeviceError, match=r"gemm_4x4: given somelib: given RuntimeError: status 13"):
        gpu.executable(plan).run(gpu.slot_table(3))


def test_every_index_out_of_range_is_told(gpu):
    table = weft.tensor(array(4, 3))
    wrong = [table[weft.tensor(np.array([0, 9 + k]))].sum() for k in range(2)]
    for one in wrong:
        weft.eval(one)
    for one in wrong:
        with pytest.raises(weft.IndexRangeError):
            one.numpy()
    assert all(np.isfinite(one.numpy()) for one in wrong)


def test_reading_nothing_hides_nothing(gpu):
    wrong = weft.tensor(array(4, 3))[weft.tensor(np.array([0, 9]))].sum()
    weft.eval(wrong)
    assert weft.ones(0).numpy().shape == (0,)
    with pytest.raises(weft.IndexRangeError):
        wrong.numpy()


# --- interrupts ------------------------------------------------------------------------------------------------------


def test_an_interrupted_launch_leaves_no_wrong_addresses(gpu, monkeypatch):
    step = weft.compile(lambda x: x + 1)
    one, two = weft.tensor(array(3, 4)), weft.tensor(array(3, 4, seed=1))
    result = step(one)
    del result
    left = failing(gpu.driver, "launch", KeyboardInterrupt(), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        step(two)
    left.clear()
    np.testing.assert_array_equal(step(one).numpy(), array(3, 4) + 1)
    np.testing.assert_array_equal(step(two).numpy(), array(3, 4, seed=1) + 1)


def test_an_interrupted_recording_is_ended_and_made_anew(gpu, apart, monkeypatch):
    step, x = weft.compile(two_steps), weft.tensor(array(5, 7))
    step(x)
    left = failing(gpu.driver, "launch", KeyboardInterrupt(), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        step(x)
    left.clear()
    for _ in range(4):
        np.testing.assert_allclose(step(x).numpy(), expected(array(5, 7)), rtol=1e-6)
    assert gpu.driver.log.count("replay") == 3


# --- threads, forks, the collector -----------------------------------------------------------------------------------


def in_thread(work) -> None:
    """Run in a thread and raise here what it raises."""
    raised = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for ever"
    if raised:
        raise raised[0]


@pytest.mark.parametrize("function", [two_steps, lambda x: (x + 1).sum(1)], ids=["several", "alone"])
def test_a_step_may_be_called_from_any_thread_and_on_any_device(gpu, apart, function):
    other = FakeGpu()
    steps = [(weft.compile(function), weft.tensor(array(5, 7), device=place.device)) for place in (gpu, other)]
    found = [step(x).numpy() for step, x in steps]
    for _ in range(4):
        for step, x in steps:
            step(x)
    in_thread(lambda: [step(x) for step, x in steps for _ in range(2)])
    for (step, x), value in zip(steps, found, strict=True):
        np.testing.assert_array_equal(step(x).numpy(), value)


def test_a_thread_makes_its_tensors_where_it_says(gpu):
    """And not where another thread says meanwhile."""
    other, entered, made = FakeGpu(), threading.Event(), []

    def work() -> None:
        made.append(weft.ones(1).device)
        with weft.device(other.device):
            entered.set()
            assert looked.wait(20)
            made.append(weft.ones(1).device)

    looked = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(20)
    assert weft.ones(1).device is gpu.device
    looked.set()
    thread.join()
    assert [device.name for device in made] == ["cpu", "fake:0"] and made[1] is other.device


def test_dropping_a_tensor_waits_for_nobody(gpu):
    held = [weft.tensor(array(100, 100))]
    before = gpu.bytes_in_use
    with gpu.order:
        in_thread(held.clear)  # as the collector may, in whatever thread it runs
    assert gpu.bytes_in_use == before - 40_000


def test_a_plan_dies_with_its_last_holder(gpu, apart):
    """Its graphs, too, and without the collector; also the plan of a loop."""

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        return weft.loop(lambda h, _: (h / (h * h).sum(0), None), x, length=3)[0]

    x = weft.tensor(array(5, 7))
    for _ in range(4):
        step(x)
    gone = weakref.ref(step.last.entry.executable)
    gc.disable()
    try:
        del step
        evaluate._plans.clear()
        assert gone() is None
    finally:
        gc.enable()
    gpu.synchronise()
    assert gpu.driver.log.count("discard") == gpu.driver.log.count("record") > 0


def test_the_collector_may_run_anywhere(gpu, apart, monkeypatch):
    """Also while a graph is recorded, and when another GPU is current."""
    other = FakeGpu()
    held = [weft.tensor(array(9, 9), device=place.device) for place in (gpu, other)]
    scrap = weft.compile(two_steps)
    for _ in range(3):
        scrap(held[1])
    put = gpu.driver.put

    def collecting(name, work):
        if gpu.driver.recording is not None:
            held.clear()
            nonlocal scrap
            scrap = None
            evaluate._plans.clear()
            gc.collect()
        put(name, work)

    monkeypatch.setattr(gpu.driver, "put", collecting)
    step, x = weft.compile(two_steps), weft.tensor(array(5, 7))
    for _ in range(3):
        np.testing.assert_allclose(step(x).numpy(), expected(array(5, 7)), rtol=1e-6)
    assert not held and "replay" in gpu.driver.log
    assert other.bytes_in_use == 0 and "discard" in other.driver.log


def test_a_run_that_is_not_over_is_not_looked_at(gpu):
    """One thread's download tells nothing about the run that another thread enqueues right after it."""
    table, x = weft.tensor(array(4, 3)), weft.tensor(array(3))
    download = gpu.driver.download
    wrong = []

    def then_another(*args):
        download(*args)
        gpu.driver.download = download
        thread = threading.Thread(target=lambda: weft.eval(wrong[0]), daemon=True)
        thread.start()
        thread.join(0.2)

    wrong.append(table[weft.tensor(np.array([0, 9]))].sum())
    gpu.driver.download = then_another
    x.numpy()
    with pytest.raises(weft.IndexRangeError):
        wrong[0].numpy()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_process_is_told_to_start_anew(gpu):
    x = weft.tensor(array(3, 4))
    x.numpy()
    reading, writing = os.pipe()
    with gpu.order:  # as another thread may hold it
        child = os.fork()
        if not child:
            try:
                said = f"{x.numpy()}"
            except weft.DeviceError as error:
                said = str(error)
            del x
            gc.collect()
            os.write(writing, said.encode())
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    said = os.read(reading, 1000).decode()
    assert said.startswith("fake:0: given a process that was forked") and "'spawn'" in said
    np.testing.assert_array_equal(x.numpy(), array(3, 4))


def test_the_process_ends_quietly_with_live_tensors():
    code = (
        "import weft; from tests.unit.fake_driver import FakeGpu\n"
        "gpu = FakeGpu(); weft.set_default_device(gpu.device)\n"
        "step = weft.compile(lambda x: (x / x.sum(0)).exp().sum(1)); x = weft.ones(3, 4)\n"
        "for _ in range(3): step(x)\n"
        "kept = [step(x)]; import sys; sys.kept = (gpu, step, x, kept)  # outlives the modules"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


# --- memory that runs short ------------------------------------------------------------------------------------------


def test_memory_that_only_makes_a_plan_faster_is_given_back_first(apart):
    backend = FakeGpu(total=40_000)
    step = weft.compile(two_steps)
    kept = [step(weft.tensor(array(5, 7, seed=k), device=backend.device)) for k in range(30)]
    assert "replay" in backend.driver.log
    free, _ = backend.memory()
    assert free >= backend.driver.memory()[0] + 5 * 7 * 4 + 5 * 4
    big = weft.zeros(free, dtype=weft.uint8, device=backend.device)
    weft.eval(big)
    assert backend.driver.memory()[0] == 0 and backend.driver.log.count("discard")
    del big
    x = array(5, 7, seed=50)
    np.testing.assert_allclose(step(weft.tensor(x, device=backend.device)).numpy(), expected(x), rtol=1e-6)
    np.testing.assert_allclose(kept[3].numpy(), expected(array(5, 7, seed=3)), rtol=1e-6)


def test_a_plan_runs_where_there_is_nothing_to_spare(apart):
    """Slots get no memory of their own where there is none: the run itself is none the worse."""
    backend = FakeGpu(total=40_000)
    step, data = weft.compile(two_steps), [array(5, 7, seed=k) for k in range(30)]
    given = [weft.tensor(one, device=backend.device) for one in data]
    kept = [step(given[0])]
    free, _ = backend.memory()
    full = weft.zeros(free - 29 * 20 - step.plan.memory().slots[-2].nbytes, dtype=weft.uint8, device=backend.device)
    weft.eval(full)
    kept += [step(one) for one in given[1:]]
    assert backend.driver.memory()[0] == 0
    for one, result in zip(data, kept, strict=True):
        np.testing.assert_allclose(result.numpy(), expected(one), rtol=1e-6)


def shares(x: weft.Tensor) -> weft.Tensor:
    """As much memory for temporaries as for the result."""
    sums = x.cumsum(0)
    return sums / sums.sum(0)


def expected_shares(x: np.ndarray) -> np.ndarray:
    sums = x.astype(np.float64).cumsum(0)
    return sums / sums.sum(0)


@pytest.mark.parametrize("held", [True, False])
def test_a_call_that_was_too_large_leaves_its_memory_to_a_smaller_one(held):
    """Also while somebody holds the error, and where there was memory for temporaries but not for the result."""
    backend = FakeGpu(total=127_000)
    step, errors = weft.compile(shares), []
    small, large = (np.abs(array(rows, 10)) for rows in (700, 850))
    given = [(data, weft.tensor(data, device=backend.device)) for data in (large, small)]
    for data, x in (*given, *given):
        if data is small:
            np.testing.assert_allclose(step(x).numpy(), expected_shares(data), rtol=1e-4)
            assert step.plan.memory().arena_bytes >= 28_000
            continue
        with pytest.raises(weft.OutOfMemoryError, match="instead of 850") as told:
            step(x)
        errors += [told.value] * held
        del told


@pytest.mark.filterwarnings("ignore::weft.TraceWarning")  # a retrace for each shape
def test_many_shapes_take_turns_where_memory_is_short():
    backend = FakeGpu(total=100_000)
    step = weft.compile(shares)
    for rows in (*range(200, 220), 200):
        data = np.abs(array(rows, 10))
        np.testing.assert_allclose(step(weft.tensor(data, device=backend.device)).numpy(), expected_shares(data), 1e-4)


def test_plans_share_one_arena(gpu):
    """Its bytes can be had by others, between runs; a larger plan's arena serves all."""
    steps, xs = [], [weft.tensor(np.abs(array(rows, 10))) for rows in range(30, 40)]
    before = gpu.bytes_in_use
    for _ in range(2):
        for x in xs:
            step = weft.compile(shares)
            results = [step(x), shares(x)]
            weft.eval(*results)
            steps.append((step, results, x))
    largest = steps[-1][0].plan.memory().arena_bytes
    assert largest >= 39 * 40
    assert gpu.bytes_in_use - before < sum(3 * x.shape[0] * 40 for _, _, x in steps)
    assert gpu.held.allocated - gpu.bytes_in_use == largest
    for _, results, x in steps:
        for one in results:
            np.testing.assert_allclose(one.numpy(), expected_shares(x.numpy()), rtol=1e-4)


def test_a_run_that_there_was_no_memory_for_draws_no_numbers():
    def drawn(*sizes: int) -> np.ndarray:
        backend = FakeGpu(total=150_000)
        weft.manual_seed(1)
        step = weft.compile(lambda x: weft.nn.functional.dropout(shares(x), 0.5))
        for rows in sizes:
            x = weft.tensor(np.ones((rows, 10), np.float32), device=backend.device)
            if rows > 1000:
                with pytest.raises(weft.OutOfMemoryError):
                    step(x)
        return step(x).numpy()

    np.testing.assert_array_equal(drawn(1500, 50), drawn(50))


def test_a_function_keeps_so_many_shapes_and_no_more(gpu, monkeypatch):
    monkeypatch.setattr("weft.compiled.MOST_VARIANTS", 3)
    step = weft.compile(lambda x: x + 1)
    for size in (1, 2, 3, 1, 4, 1, 5):
        step(weft.ones(size))
    before = weft.counters()["traces"]
    step(weft.ones(1))
    assert len(step.variants) == 3 and weft.counters()["traces"] == before
    step(weft.ones(2))
    assert weft.counters()["traces"] == before + 1


def test_parameters_that_there_is_no_room_to_update_are_told():
    backend = FakeGpu(total=42_000)
    weight = weft.tensor(array(60, 60), device=backend.device, requires_grad=True)
    bias = weft.tensor(array(60, 60), device=backend.device)

    @weft.compile
    def step() -> weft.Tensor:
        loss = (weight * bias).sum()
        loss.backward()
        with weft.no_grad():
            weight.sub_(weight.grad)
        return loss

    with pytest.raises(weft.OutOfMemoryError, match=r"step: given 14.1 KiB of parameters.* at most 12.9 KiB"):
        step()
    np.testing.assert_array_equal(weight.numpy(), array(60, 60))


def test_what_is_available_counts_nothing_of_the_plan_that_failed():
    backend = FakeGpu(total=1 << 16)
    x = weft.tensor(array(64, 64), device=backend.device)
    free = backend.memory()[0]
    small, large = x + 1, (x.reshape(64, 64, 1) * x.reshape(64, 1, 64))
    with pytest.raises(weft.OutOfMemoryError) as told:
        weft.eval(small, large)
    assert f"at most {free / 1024:.1f} KiB" in str(told.value) and backend.memory()[0] == free


# --- devices with less -----------------------------------------------------------------------------------------------


def test_a_runtime_without_graphs_shared_memory_and_addresses(apart):
    """As OpenCL and WebGPU: everything is launched, status words are read back, and memory has handles."""
    gpu = FakeGpu(kind=HandleDriver)
    with weft.device(gpu.device):
        step, x = weft.compile(two_steps), weft.tensor(array(5, 7))
        for _ in range(4):
            np.testing.assert_allclose(step(x).numpy(), expected(array(5, 7)), rtol=1e-6)
        assert "record" not in gpu.driver.log
        table = weft.tensor(array(4, 3))
        pick = weft.compile(lambda index: table[index].sum(1))
        for _ in range(2):
            with pytest.raises(weft.IndexRangeError, match="extent 4"):
                pick(weft.tensor(np.array([0, 7]))).numpy()
            found = pick(weft.tensor(np.array([0, 3]))).numpy()
            np.testing.assert_allclose(found, array(4, 3)[[0, 3]].sum(1), rtol=1e-6)
        *found, _ = xor_training(3)
    with weft.device("cpu"):
        *on_cpu, _ = xor_training(3)
    for one, other in zip(found, on_cpu, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_device_may_limit_the_blocks_of_a_launch(gpu, monkeypatch):
    asked, launcher = [], gpu.driver.launcher

    def noting(function, blocks, *rest):
        asked.append(blocks)
        return launcher(function, blocks, *rest)

    monkeypatch.setattr(gpu.driver, "launcher", noting)
    monkeypatch.setitem(gpu.device.limits, "blocks", 3)
    np.testing.assert_array_equal((weft.tensor(array(90, 90)) * 2).numpy(), array(90, 90) * 2)
    assert max(asked) == 3


def test_values_move_between_devices_of_one_kind(gpu):
    other = FakeGpu()
    x = weft.tensor(array(3, 4), requires_grad=True)
    there = (x * 2).to(other.device)
    assert there.device is other.device
    np.testing.assert_array_equal(there.numpy(), array(3, 4) * 2)
    (there * there).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 8 * array(3, 4), rtol=1e-6)
    with pytest.raises(weft.DeviceError, match="expected all on one device"):
        x + there
    for place in ("cpu", other.device):
        with pytest.raises(weft.GraphError, match=r"to: given a move from fake:0 to .*; expected one device in a comp"):
            weft.compile(lambda x, place=place: x.to(place) + 1)(x)
