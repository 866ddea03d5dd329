"""The CUDA driver and the search for GPUs, on bindings that note their calls (tests/gpu has the real ones)."""

from __future__ import annotations

import ctypes
import sys
import threading
import zlib

import numpy as np
import pytest

pytest.importorskip("cuda.bindings", reason="cuda-bindings are not installed: pip install 'weft[cuda-compile]'")

import weft
from tests.unit.fake_bindings import Bindings
from weft.backends.cuda import backend as cuda_backend
from weft.backends.cuda import compile as cuda_compile
from weft.backends.cuda import driver as cuda_driver
from weft.backends.cuda.driver import CudaDriver
from weft.backends.registry import _loaded
from weft.errors import DeviceError, OutOfMemoryError
from weft.plan.device import DeviceLost
from weft.plan.plan import Code

pytestmark = pytest.mark.unit


@pytest.fixture
def bindings(monkeypatch):
    """Put bindings in place of NVIDIA's: `bindings(gpus=2)` returns them."""

    def put(**about):
        made = Bindings(**about)
        monkeypatch.setattr(cuda_driver, "_cuda", lambda: made)
        monkeypatch.setattr(cuda_driver, "_current", threading.local())
        monkeypatch.setattr(cuda_backend, "LIBRARIES", ())
        monkeypatch.delitem(_loaded, "cuda", raising=False)
        return made

    yield put
    _loaded.pop("cuda", None)


# --- finding GPUs ----------------------------------------------------------------------------------------------------


def reason(asked="cuda") -> str:
    with pytest.raises(DeviceError) as caught:
        weft.ones(3, device=asked)
    assert weft.get_device("auto").name == "cpu"
    return str(caught.value)


def test_a_machine_without_the_bindings(bindings, monkeypatch):
    bindings()

    def absent():
        raise ModuleNotFoundError("No module named 'cuda'")

    monkeypatch.setattr(cuda_driver, "_cuda", absent)
    assert "No module named 'cuda'. Install it: pip install 'weft[cuda]'" in reason()


def test_a_machine_without_a_driver(bindings):
    def absent(flags):
        raise RuntimeError('"cuda" is an NVIDIA driver library')

    bindings().answers["cuInit"] = absent
    assert "no NVIDIA driver answers" in reason() and "Install NVIDIA's driver, release 580 or newer" in reason()


def test_a_machine_without_a_gpu(bindings):
    made = bindings()
    made.answers["cuInit"] = made.CUresult.CUDA_ERROR_NO_DEVICE
    assert "the NVIDIA driver sees no GPU" in reason()


def test_a_driver_that_is_too_old(bindings):
    bindings(newest=12080)
    assert "the NVIDIA driver is for CUDA 12.8. Install NVIDIA's driver, release 580 or newer" in reason()


def test_a_machine_without_the_kernel_compiler(bindings, monkeypatch):
    def absent():
        raise RuntimeError("Failed to dlopen libnvrtc.so.13")

    bindings()
    monkeypatch.setattr(cuda_compile, "version", absent)
    assert "there is no NVRTC (Failed to dlopen libnvrtc.so.13). Install it: pip install nvidia-cuda-nvrtc" in reason()


def test_gpus_that_are_too_old_or_too_new(bindings):
    bindings(capability=(7, 5))
    assert "compute capability 7.5: Weft needs 8.0" in reason()
    _loaded.pop("cuda")
    bindings(capability=(99, 0))
    assert "pip install -U nvidia-cuda-nvrtc" in reason()


def test_gpus_are_opened_when_they_are_asked_for(bindings):
    made = bindings(gpus=3)
    assert len(weft.get_device("cuda:1").backend.devices()) == 1
    opened = [handle for _, handle in made.named("cuDevicePrimaryCtxRetain")]
    assert opened == [1], "others keep their memory"
    assert weft.get_device("cuda:1") is weft.get_device("cuda:1")
    assert weft.get_device("auto").name == weft.get_device("cuda").name == "cuda:0"
    with pytest.raises(DeviceError, match=r"given 'cuda:3'; expected 'cuda:0' to 'cuda:2'"):
        weft.get_device("cuda:3")
    assert [device.name for device in weft.devices() if device.kind == "cuda"] == ["cuda:0", "cuda:1", "cuda:2"]


def test_an_old_gpu_beside_others_is_passed_over(bindings):
    made = bindings(gpus=2)
    answer = made.answers["cuDeviceGetAttribute"]
    made.answers["cuDeviceGetAttribute"] = lambda kind, handle: (
        6 if "MAJOR" in str(kind) and not handle else answer(kind, handle)
    )
    assert weft.get_device("cuda").name == "cuda:0" and weft.get_device("cuda").backend.driver.ordinal == 1


def test_a_gpu_that_others_use_alone_is_left_out(bindings):
    made = bindings(gpus=2)
    made.answers["cuDevicePrimaryCtxRetain"] = lambda handle: (
        made.CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE if handle else "c"
    )
    assert [device.name for device in weft.devices() if device.kind == "cuda"] == ["cuda:0"]
    with pytest.raises(DeviceError, match="DEVICE_UNAVAILABLE"):
        weft.get_device("cuda:1")


def test_a_gpu_that_cannot_be_opened_leaves_nothing_behind(bindings):
    made = bindings()
    made.answers["cuMemPoolSetAttribute"] = made.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(OutOfMemoryError):
        CudaDriver(0)
    assert len(made.named("cuStreamCreate")) == len(made.named("cuStreamDestroy")) == 2
    assert made.calls[-1] == ("cuDevicePrimaryCtxRelease", 0)


def test_two_threads_get_one_device(bindings):
    bindings()
    found = []
    threads = [threading.Thread(target=lambda: found.append(weft.get_device("cuda"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1


def test_a_library_that_does_not_start_is_named(bindings, monkeypatch):
    class Broken:
        @staticmethod
        def find():
            return "there"

        @staticmethod
        def load(backend):
            raise RuntimeError("status 1001")

    bindings()
    monkeypatch.setattr(cuda_backend, "LIBRARIES", ("broken",))
    monkeypatch.setitem(sys.modules, "weft.backends.cuda.broken", Broken)
    with pytest.raises(DeviceError, match=r"broken, which is installed but does not start: RuntimeError: status 1001"):
        weft.get_device("cuda")


# --- calls -----------------------------------------------------------------------------------------------------------


def kernel(text: str = "text") -> Code:
    return Code("halved", "halved_1", (), None, zlib.compress(text.encode()))


def test_work_goes_to_the_gpu_it_is_meant_for(bindings, monkeypatch):
    """Whatever thread it is, and whatever GPU was used last."""
    made = bindings(gpus=2)
    backends = [weft.get_device(f"cuda:{number}").backend for number in range(2)]

    def use() -> None:
        for backend in backends:
            slab = backend.allocate(64)
            backend.upload(weft.plan.device.Buffer(slab, 0, 64), np.zeros(64, np.uint8))
            backend.synchronise()
            backend.memory()

    use()
    made.cuCtxSetCurrent("the context of another library")
    made.calls.clear(), made.contexts.clear()
    use()
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    use()
    streams = {int(backend.driver.stream): f"context {number}" for number, backend in enumerate(backends)}
    seen = [
        (streams[call[-1]], context)
        for call, context in zip(made.calls, made.contexts, strict=True)
        if call[-1] in streams
    ]
    assert len(seen) >= 18 and all(wanted == current for wanted, current in seen)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeviceError("refused")])
def test_a_recording_is_ended_whatever_happens(bindings, error):
    made = bindings()
    driver = CudaDriver(0)

    def enqueue():
        raise error

    with pytest.raises(type(error)):
        driver.capture_graph(enqueue)
    begin, end, destroyed = [call[0] for call in made.calls[-3:]]
    assert (begin, end, destroyed) == ("cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphDestroy")
    assert driver.capture_graph(lambda: None) and made.named("cuGraphInstantiate")


def test_a_recording_is_ended_by_an_interrupt_of_its_end(bindings, monkeypatch):
    made = bindings()
    driver, call = CudaDriver(0), cuda_driver.call

    def interrupted(name, *args):
        if name == "cuStreamEndCapture":
            raise KeyboardInterrupt
        return call(name, *args)

    monkeypatch.setattr(cuda_driver, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver.capture_graph(lambda: None)
    assert len(made.named("cuStreamBeginCapture")) == len(made.named("cuStreamEndCapture")) == 1


def test_errors_after_which_nothing_works_are_distinguished(bindings):
    made = bindings()
    driver = CudaDriver(0)
    for name, kind in (("ILLEGAL_ADDRESS", DeviceLost), ("LAUNCH_FAILED", DeviceLost), ("ILLEGAL_STATE", DeviceError),
                       ("LAUNCH_OUT_OF_RESOURCES", DeviceError), ("OUT_OF_MEMORY", OutOfMemoryError)):  # fmt: skip
        made.answers["cuStreamSynchronize"] = getattr(made.CUresult, f"CUDA_ERROR_{name}")
        with pytest.raises(kind) as caught:
            driver.synchronise()
        assert type(caught.value) is kind
    assert "cuStreamSynchronize: given it went wrong" in str(caught.value)
    made.answers["cuDevicePrimaryCtxRetain"] = made.CUresult.CUDA_ERROR_NOT_INITIALIZED
    with pytest.raises(DeviceError, match="after a fork, start processes anew"):
        CudaDriver(0)


def test_machine_code_that_does_not_load_is_named_and_shown(bindings, monkeypatch):
    made = bindings()
    monkeypatch.setattr(cuda_compile, "cubins", lambda codes, architecture: [b"" for _ in codes])
    made.answers["cuModuleLoadData"] = made.CUresult.CUDA_ERROR_INVALID_IMAGE
    with pytest.raises(
        DeviceError, match=r"halved: given a kernel that A GPU does not load(.|\n)*INVALID_IMAGE(.|\n)*text"
    ):
        CudaDriver(0).load_kernels([kernel()])


def test_uploads_go_by_a_stream_of_their_own_from_pinned_memory(bindings):
    made = bindings()
    driver = CudaDriver(0)
    made.calls.clear()
    made.answers["cuEventQuery"] = made.CUresult.CUDA_ERROR_NOT_READY
    data = [np.full(1000, value, np.uint8) for value in (1, 2)]
    for one in data:
        driver.upload_new(one.ctypes.data, one.nbytes)
    copies = made.named("cuMemcpyHtoDAsync")
    pinned = [source for _, _, source, *_ in copies]
    assert len(set(pinned)) == 2, "the first copy may be under way"
    assert {call[-1] for call in made.named("cuMemAllocAsync", "cuMemcpyHtoDAsync")} == {driver.copies}
    assert [call[1] for call in made.named("cuStreamWaitEvent")] == [driver.stream] * 2
    assert not made.named("cuStreamSynchronize"), "nothing waits"
    assert [made._memory[k][0] for k in (-2, -1)] == [1, 2]
    made.answers["cuEventQuery"] = None
    driver.upload_new(data[1].ctypes.data, 1000)
    assert made.named("cuMemcpyHtoDAsync")[-1][2] in pinned and made._memory[-2][0] == 2


def test_an_upload_by_a_signal_handler_in_the_middle_of_one_has_pinned_memory_of_its_own(bindings):
    made = bindings()
    driver = CudaDriver(0)
    data = [np.full(1000, value, np.uint8) for value in (1, 2)]
    driver.upload_new(data[0].ctypes.data, 1000)  # whose memory is free now
    made.calls.clear()
    seen = []

    def copy(pointer, source, nbytes, stream):
        if not seen:  # the bytes are in pinned memory and not on their way yet
            seen.append(source)
            driver.upload_new(data[1].ctypes.data, 1000)
            assert ctypes.string_at(source, 1000) == bytes([1]) * 1000
        else:
            seen.append(source)

    made.answers["cuMemcpyHtoDAsync"] = copy
    driver.upload_new(data[0].ctypes.data, 1000)
    assert len(set(seen)) == 2
    made.answers["cuMemcpyHtoDAsync"] = None
    driver.upload_new(data[0].ctypes.data, 1000)
    assert len(made._memory) == 2, "both are used again"


def test_allocations_end_with_whole_copies(bindings):
    made = bindings()
    driver = CudaDriver(0)
    made.calls.clear()
    for nbytes in (1, 16, 24, 4096):
        driver.allocate(nbytes)
    assert [call[1] for call in made.named("cuMemAllocAsync")] == [16, 16, 32, 4096]


def test_memory_is_asked_for_twice_before_it_is_missed(bindings):
    made = bindings()
    driver = CudaDriver(0)
    made.calls.clear()
    made.answers["cuMemAllocAsync"] = made.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(
        OutOfMemoryError,
        match=r"A GPU: given a request for 4.0 KiB; expected at most 1.00 GiB, which are available of 2.00 GiB",
    ):
        driver.allocate(4096)
    names = [call[0] for call in made.calls[:4]]
    assert names == ["cuMemAllocAsync", "cuStreamSynchronize", "cuMemPoolTrimTo", "cuMemAllocAsync"]


def test_launches_have_the_addresses_of_their_words(bindings):
    made, given = bindings(), []

    def enqueue(function, *rest):
        *geometry, stream, parameters, extra = rest
        places = (ctypes.c_void_p * 2).from_address(parameters)
        given.append((function, geometry, stream, [ctypes.c_uint64.from_address(at).value for at in places], extra))
        return None if len(given) == 1 else cuda_driver._cuda().CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES

    made.answers["cuLaunchKernel"] = enqueue
    driver = CudaDriver(0)
    words = (ctypes.c_uint64 * 2)(7, 8)
    launch = driver.make_launcher(4711, 5, 64, 128, words, 1)
    words[1] = 9
    launch()
    assert given == [(4711, [5, 1, 1, 64, 1, 1, 128], driver.stream, [7, 9], 0)]
    with pytest.raises(DeviceError, match=r"cuLaunchKernel: given it went wrong \(CUDA_ERROR_LAUNCH_OUT_OF"):
        launch()
