"""Failures on a GPU, with a driver in the host's memory: the messages name what failed, interrupts leave no wrong
state, and a device may have less than CUDA's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import weft
from tests.unit.fake_driver import FakeDriver, FakeGpu, HandleDriver
from tests.unit.gpu_harness import set_limits
from tests.unit.test_gpu_backend import array, expected, two_steps, xor_training
from weft.backends.gpu.backend import MAX_PENDING_RUNS
from weft.plan.device import Buffer, DeviceLost
from weft.plan.plan import LibraryCall, Place, Plan, Slot

pytestmark = pytest.mark.unit


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
def test_a_launch_that_is_refused_names_the_kernel_and_shows_it(gpu, separate_kernels, monkeypatch, function):
    step, x = weft.compile(function), weft.tensor(array(5, 7))
    step(x)
    failing(gpu.driver, "launch", weft.DeviceError("too much shared memory"), monkeypatch)
    with pytest.raises(weft.DeviceError, match="too much shared memory") as caught:
        step(x)
    kernel = step.plan.kernels()[0]
    assert str(caught.value).startswith(f"{kernel.name}: given too much") and kernel.source in str(caught.value)


@pytest.mark.parametrize("waits", [True, False])
def test_a_device_that_is_lost_is_reported_with_what_ran(gpu, separate_kernels, monkeypatch, waits):
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
    with pytest.raises(weft.DeviceError, match="an illegal address") as caught:
        step(x).numpy()
    said, names = str(caught.value), [kernel.name for kernel in step.plan.kernels()]
    if waits:
        assert said.startswith(names[0]) and "__global__" in said
    else:
        assert f"these ran: {', '.join(names)}" in said and "WEFT_SYNC=1" in said and "start a new process" in said
        assert "tanh" not in said, "it ran before the device was waited for"


def test_a_library_that_fails_is_named(gpu):
    errors: list[Exception] = [RuntimeError("status 13"), TimeoutError("of a signal handler")]

    def fails(addresses):
        raise errors.pop(0)

    gpu.device.libraries["somelib"] = SimpleNamespace(prepare=lambda config: fails, failures=(RuntimeError,))
    call = LibraryCall("gemm_4x4", "somelib", (), (Place(0, 0),), 0, 0)
    plan = Plan((call,), (Slot("output", 4, "x"), Slot("arena", 0, ""), Slot("status", 0, "")), (), "")
    with pytest.raises(weft.DeviceError, match=r"gemm_4x4: given somelib: given RuntimeError: status 13"):
        gpu.executable(plan).run(gpu.slot_table(3))
    with pytest.raises(TimeoutError, match="of a signal handler"):
        gpu.executable(plan).run(gpu.slot_table(3))


def test_every_index_out_of_range_is_reported(gpu):
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


def test_an_interrupted_recording_is_ended_and_made_anew(gpu, separate_kernels, monkeypatch):
    step, x = weft.compile(two_steps), weft.tensor(array(5, 7))
    step(x)
    left = failing(gpu.driver, "launch", KeyboardInterrupt(), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        step(x)
    left.clear()
    for _ in range(4):
        np.testing.assert_allclose(step(x).numpy(), expected(array(5, 7)), rtol=1e-6)
    assert gpu.driver.log.count("replay") == 3


# --- devices with less -----------------------------------------------------------------------------------------------


def test_a_runtime_without_graphs_shared_memory_and_addresses(separate_kernels):
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


def test_status_words_that_the_host_does_not_see_lie_in_one_allocation():
    """Else runs that nothing waits for would bind other memory each time."""
    gpu = FakeGpu(kind=HandleDriver)
    held = [gpu.status(8) for _ in range(MAX_PENDING_RUNS)]
    assert len({words.pointer for words in held}) == MAX_PENDING_RUNS
    assert len(gpu.driver.memories) == 1
    pointer = held.pop().pointer
    assert gpu.status(12).pointer == pointer
    np.testing.assert_array_equal(gpu.peek(Buffer(held[0], 0, 8), (2,), weft.int32), [0, 0])


def test_a_device_may_limit_the_workgroups_of_a_launch(gpu, monkeypatch):
    asked, launcher = [], gpu.driver.make_launcher

    def noting(function, workgroups, *rest):
        asked.append(workgroups)
        return launcher(function, workgroups, *rest)

    monkeypatch.setattr(gpu.driver, "make_launcher", noting)
    set_limits(monkeypatch, gpu.device, workgroups=3)
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
