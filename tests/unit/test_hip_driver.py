"""The HIP driver and the search for GPUs, on bindings that note their calls. No AMD GPU has ever run this backend."""

from __future__ import annotations

import ctypes
import gc
import threading
import zlib

import numpy as np
import pytest

pytest.importorskip("hip", reason="hip-python is not installed: pip install 'weft[hip]'")

import weft
from tests.unit.fake_hip_bindings import STATUS, HipBindings
from weft.backends.hip import backend as hip_backend
from weft.backends.hip import compile as hip_compile
from weft.backends.hip import driver as hip_driver
from weft.backends.hip.driver import HipDriver
from weft.backends.registry import _loaded
from weft.errors import DeviceError, OutOfMemoryError
from weft.plan.device import Buffer, DeviceLost
from weft.plan.plan import Code

pytestmark = pytest.mark.unit


@pytest.fixture
def bindings(monkeypatch):
    """Put bindings in place of hip-python: `bindings(gpus=2)` returns them. Kernels are not compiled."""

    def put(**about):
        made = HipBindings(**about)
        monkeypatch.setattr(hip_driver, "_hip", lambda: made)
        monkeypatch.setattr(hip_driver, "_current", threading.local())
        monkeypatch.setattr(hip_compile, "version", lambda: "7.1 libhiprtc.so.7.1.0")
        monkeypatch.setattr(hip_compile, "knows", lambda name: not name.startswith("gfx9999"))
        monkeypatch.setattr(
            hip_compile, "code_objects", lambda codes, architecture: [code.text.encode() for code in codes]
        )
        monkeypatch.delitem(_loaded, "hip", raising=False)
        return made

    yield put
    _loaded.pop("hip", None)


# --- finding GPUs ----------------------------------------------------------------------------------------------------


def reason() -> str:
    platform = hip_backend.Hip()
    assert not platform.devices()
    return platform.reason


def test_a_machine_without_the_bindings(bindings, monkeypatch):
    def absent():
        raise ModuleNotFoundError("No module named 'hip'")

    bindings()
    monkeypatch.setattr(hip_driver, "_hip", absent)
    assert reason() == "No module named 'hip'. Install it: pip install 'weft[hip]'"


def test_a_machine_without_a_runtime(bindings):
    def absent():
        raise RuntimeError("failed to dlopen 'libamdhip64.so'")

    bindings().answers["hipGetDeviceCount"] = absent
    assert "no HIP runtime answers (failed to dlopen 'libamdhip64.so'). Install AMD's driver and ROCm" in reason()


def test_a_machine_without_a_gpu(bindings):
    bindings().answers["hipGetDeviceCount"] = STATUS.hipErrorNoDevice
    assert reason() == "the HIP runtime sees no AMD GPU"


def test_a_runtime_that_is_too_old(bindings):
    bindings(release=50_221_153)
    assert reason() == "the HIP runtime is release 5.2. Install ROCm, release 6 or newer"


def test_a_machine_without_the_compiler(bindings, monkeypatch):
    def absent():
        raise OSError("no library has hiprtcCompileProgram")

    bindings()
    monkeypatch.setattr(hip_compile, "version", absent)
    assert reason() == "there is no hiprtc (no library has hiprtcCompileProgram). Install ROCm's package hiprtc"


def test_gpus_that_the_compiler_does_not_know(bindings):
    made = bindings(gpus=2, architecture="gfx9999:xnack-")
    assert reason() == "hiprtc 7.1 libhiprtc.so.7.1.0 does not compile for gfx9999:xnack-. Install a newer ROCm"
    made.properties[1].gcnArchName = "gfx942:sramecc+:xnack-"
    (device,) = hip_backend.Hip().devices()
    assert device.name == "hip:0" and device.backend.driver.ordinal == 1, "the unknown one is passed over"


def test_gpus_without_memory_pools(bindings):
    bindings().properties[0].memoryPoolsSupported = 0
    assert "no memory pools" in reason()


def test_gpus_are_opened_when_they_are_asked_for(bindings):
    made = bindings(gpus=3)
    devices = hip_backend.Hip().devices()
    assert len(devices) == 3 and not made.named("hipStreamCreateWithFlags")
    assert devices[1].name == "hip:1" and devices[1] is devices[1]
    assert {ordinal for _, ordinal in made.named("hipSetDevice")} == {1}, "others keep their memory"
    assert "A GPU (gfx90a), 2 GiB, HIP 6.2" in devices[1].description


@pytest.mark.parametrize(("architecture", "lanes"), [("gfx90a:sramecc+:xnack-", 64), ("gfx1030", 32), ("gfx1100", 32)])
def test_what_the_compiler_may_count_on(bindings, architecture, lanes):
    bindings(architecture=architecture, lanes=lanes)
    device = hip_backend.Hip().devices()[0]
    limits, features = device.limits, device.features
    assert limits.subgroup_size == lanes and limits.shared_bytes == limits.static_shared_bytes == 65536
    assert (limits.workgroup_size, limits.processors, limits.resident_registers) == (1024, 104, 32)
    assert not features.async_copies and "exp" not in features.native_functions
    units = [unit.lanes for unit in features.matrix_units]
    assert units == ([] if architecture == "gfx1030" else [lanes])
    assert ("tile_product_float16" in device.backend.dialect.functions) == bool(units)


# --- calls -----------------------------------------------------------------------------------------------------------


def kernel(text: str = "text") -> Code:
    return Code("halved", "halved_1", (), None, zlib.compress(text.encode()))


def train(device) -> None:
    """Twelve steps of a small network."""
    weight = weft.zeros(32, 32, device=device, requires_grad=True)

    @weft.compile
    def step(x):
        loss = ((x @ weight).tanh() ** 2).mean()
        (gradient,) = weft.grad(loss, weight)
        weight.data -= 0.1 * gradient
        return loss

    x = weft.ones(8, 32, device=device)
    for _ in range(12):
        loss = step(x)
    loss.numpy()


def test_a_step_runs_and_becomes_a_graph(bindings):
    """A whole program: allocation, uploads, launches, a capture, replays, a download. Every call is one that HIP takes,
    and everything is freed in the end."""
    made = bindings()
    device = hip_backend.Hip().devices()[0]
    train(device)
    names = [call[0] for call in made.calls]
    assert names.count("hipStreamBeginCapture") == names.count("hipStreamEndCapture") >= 1
    assert names.count("hipGraphLaunch") >= 3 and "hipModuleLaunchKernel" in names
    assert not made.graphs, "what was instantiated is destroyed"
    gc.collect()
    device.backend.empty_cache()
    assert not made.allocated and made.named("hipGraphExecDestroy") and made.named("hipMemPoolTrimTo")


def test_work_goes_to_the_gpu_it_is_meant_for(bindings):
    made = bindings(gpus=2)
    backends = [device.backend for device in hip_backend.Hip().devices()]

    def use() -> None:
        for backend in backends:
            slab = backend.allocate(64)
            backend.upload(Buffer(slab, 0, 64), np.zeros(64, np.uint8))
            backend.synchronise()

    use()
    made.hipSetDevice(7)  # another library
    made.calls.clear(), made.contexts.clear()
    use()
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    streams = {int(backend.driver.stream): number for number, backend in enumerate(backends)}
    seen = [(streams[c[-1]], now) for c, now in zip(made.calls, made.contexts, strict=True) if c[-1] in streams]
    assert len(seen) >= 12 and all(wanted == current for wanted, current in seen)


def test_host_memory_may_change_when_an_upload_returns(bindings):
    made = bindings()
    driver = HipDriver(0)
    pointer, data = driver.allocate(64), np.arange(64, dtype=np.uint8)
    driver.upload(pointer, data.ctypes.data, 64)
    (copy,) = made.named("hipMemcpyHtoDAsync")
    data[:] = 0
    assert copy[1] == pointer and copy[4] == driver.stream
    assert ctypes.string_at(copy[2], 64) == bytes(range(64)), "it is in pinned memory"
    assert made.calls[-1][0] == "hipEventRecord" and made.calls[-1][2] == driver.stream
    large = np.zeros((64 << 20) + 1, np.uint8)
    driver.upload(driver.allocate(large.nbytes), large.ctypes.data, large.nbytes)
    assert made.calls[-1] == ("hipStreamSynchronize", driver.stream)


@pytest.mark.parametrize("fails", ["hipDeviceGetDefaultMemPool", "hipStreamCreateWithFlags", "hipMemPoolSetAttribute"])
def test_a_gpu_that_cannot_be_opened_leaves_nothing_behind(bindings, fails):
    made = bindings()
    created = []

    def create(flags):
        if fails == "hipStreamCreateWithFlags" and created:
            return STATUS.hipErrorOutOfMemory
        created.append(made._handle())
        return created[-1]

    made.answers[fails] = STATUS.hipErrorOutOfMemory
    made.answers["hipStreamCreateWithFlags"] = create
    with pytest.raises(OutOfMemoryError):
        HipDriver(0)
    assert sorted(stream for _, stream in made.named("hipStreamDestroy")) == created
    assert len(created) == {"hipDeviceGetDefaultMemPool": 0, "hipStreamCreateWithFlags": 1}.get(fails, 2)


def test_memory_of_another_gpu_is_copied_directly(bindings):
    made = bindings(gpus=2)
    first, second = [device.backend for device in hip_backend.Hip().devices()]
    slab = first.allocate(64)
    received = second.receive(Buffer(slab, 16, 32))
    expected = ("hipMemcpyPeerAsync", received.pointer, 1, slab.pointer + 16, 0, 32, second.driver.stream)
    assert made.named("hipMemcpyPeerAsync") == [expected]


def test_what_hip_refuses_is_an_error(bindings):
    made = bindings()
    driver = HipDriver(0)
    pointer = driver.allocate(64)
    with pytest.raises(DeviceError, match="hipErrorInvalidValue"):
        driver.clear(pointer, 65)
    with pytest.raises(DeviceError, match="hipErrorInvalidValue"):
        driver.copy(pointer, pointer + 32, 48)
    driver.free(pointer)
    assert made._free(pointer, driver.stream) is STATUS.hipErrorInvalidValue, "twice"
    with pytest.raises(DeviceError, match="hipErrorInvalidValue"):
        driver.clear(pointer, 1)
    (function,) = driver.load_kernels([kernel("__launch_bounds__(64) __shared__")])
    words = (ctypes.c_uint64 * 2)(7, 8)
    driver.make_launcher(function, 5, 64, 65536, words, 1)()
    for lanes, shared in ((128, 0), (64, 65537)):
        with pytest.raises(DeviceError, match=r"hipModuleLaunchKernel: given it went wrong \(hipErrorInvalidValue"):
            driver.make_launcher(function, 5, lanes, shared, words, 1)()
    with pytest.raises(DeviceError, match="halved: given a kernel that A GPU does not load"):
        driver.load_kernels([kernel("__shared__ __attribute__((aligned(16))) float a[16385];")])


def test_launches_have_the_addresses_of_their_words(bindings):
    made, given = bindings(), []

    def enqueue(function, *rest):
        *geometry, stream, parameters, extra = rest
        places = (ctypes.c_void_p * 2).from_address(parameters)
        given.append((function, geometry, stream, [ctypes.c_uint64.from_address(at).value for at in places], extra))

    made.answers["hipModuleLaunchKernel"] = enqueue
    driver = HipDriver(0)
    words = (ctypes.c_uint64 * 2)(7, 8)
    launch = driver.make_launcher(4711, 5, 64, 128, words, 1)
    words[1] = 9
    launch()
    assert given == [(4711, [5, 1, 1, 64, 1, 1, 128], driver.stream, [7, 9], 0)]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeviceError("refused")])
def test_a_capture_is_ended_whatever_happens(bindings, error):
    made = bindings()
    driver = HipDriver(0)

    def enqueue():
        raise error

    with pytest.raises(type(error)):
        driver.capture_graph(enqueue)
    begin, end, destroyed = [call[0] for call in made.calls[-3:]]
    assert (begin, end, destroyed) == ("hipStreamBeginCapture", "hipStreamEndCapture", "hipGraphDestroy")
    graph = driver.capture_graph(lambda: None)
    driver.replay_graph(graph)
    driver.destroy_graph(graph)
    assert made.calls[-1] == ("hipGraphExecDestroy", graph) and not made.graphs
    with pytest.raises(DeviceError, match="hipErrorInvalidValue"):
        driver.capture_graph(driver.synchronise)


def test_errors_after_which_nothing_works_are_distinguished(bindings):
    made = bindings()
    driver = HipDriver(0)
    for name, kind in (("IllegalAddress", DeviceLost), ("LaunchFailure", DeviceLost), ("IllegalState", DeviceError),
                       ("LaunchOutOfResources", DeviceError), ("OutOfMemory", OutOfMemoryError)):  # fmt: skip
        made.answers["hipStreamSynchronize"] = getattr(STATUS, f"hipError{name}")
        with pytest.raises(kind) as caught:
            driver.synchronise()
        assert type(caught.value) is kind
    assert "hipStreamSynchronize: given it went wrong" in str(caught.value)


def test_memory_is_asked_for_twice_before_it_is_missed(bindings):
    made = bindings()
    driver = HipDriver(0)
    made.calls.clear()
    made.answers["hipMallocAsync"] = STATUS.hipErrorOutOfMemory
    with pytest.raises(OutOfMemoryError, match=r"A GPU: given a request for 4.0 KiB"):
        driver.allocate(4096)
    names = [call[0] for call in made.calls[:4]]
    assert names == ["hipMallocAsync", "hipStreamSynchronize", "hipMemPoolTrimTo", "hipMallocAsync"]


def test_time(bindings):
    made = bindings()
    made.answers["hipEventElapsedTime"] = 2.5
    driver = HipDriver(0)
    first, second = driver.create_event(), driver.create_event()
    driver.record_event(first), driver.record_event(second)
    assert driver.seconds_between(first, second) == 2.5e-3
    del first
    assert len(made.named("hipEventDestroy")) == 1


def test_the_identity_of_a_gpu(bindings, monkeypatch):
    """Plans are kept by all that their kernels depend on."""
    made = bindings()
    found = {hip_backend.Hip().devices()[0].backend.identity()}
    made.properties[0].gcnArchName = "gfx942"
    found.add(hip_backend.Hip().devices()[0].backend.identity())
    monkeypatch.setattr(hip_compile, "OPTIONS", ())
    found.add(hip_backend.Hip().devices()[0].backend.identity())
    assert len(found) == 3
