"""How much memory a device has where its interface does not say: Vulkan is asked, and nothing is made up."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace

import numpy as np
import pytest

import weft
from tests.unit.fake_driver import FakeGpu
from weft.backends.webgpu import memory_size as module
from weft.backends.webgpu.memory_size import VulkanDevice, memory_size
from weft.base import host_memory
from weft.cli.doctor import _properties
from weft.data import DataLoader, TensorDataset
from weft.plan.device import Device, describe_available, memory_text

pytestmark = pytest.mark.unit
HEAPS = [(8 << 30, 1), (16 << 30, 0), (256 << 20, 1)]  # bytes, whether the device's own


def adapter_info(kind: str, vendor: int = 0x10DE, model: int = 0x2335) -> dict[str, object]:
    return {"adapter_type": kind, "vendor_id": vendor, "device_id": model}


def test_a_gpu_has_what_vulkan_says_of_its_numbers(monkeypatch):
    found = [VulkanDevice(0x10DE, 0x2335, 141 << 30), VulkanDevice(0x10DE, 0x1234, 8 << 30), VulkanDevice(2, 3, 0)]
    monkeypatch.setattr(module, "vulkan_devices", lambda: found)
    assert memory_size(adapter_info("DiscreteGPU")) == 141 << 30
    assert memory_size(adapter_info("Unknown", model=0x1234)) == 8 << 30
    assert memory_size(adapter_info("DiscreteGPU", model=0x5678)) == host_memory.UNKNOWN
    assert memory_size(adapter_info("DiscreteGPU", 2, 3)) == host_memory.UNKNOWN


@pytest.mark.parametrize("kind", ["IntegratedGPU", "CPU"])
def test_an_integrated_gpu_has_the_processors_memory(kind, monkeypatch):
    monkeypatch.setattr(module, "vulkan_devices", lambda: [VulkanDevice(0x10DE, 0x2335, 1 << 30)])
    assert memory_size(adapter_info(kind)) == host_memory.memory()[1]


def test_only_heaps_of_the_device_count():
    data = bytearray(module.STRUCTURE_BYTES)
    struct.pack_into("=I", data, module.HEAP_COUNT_AT, len(HEAPS))
    for number, heap in enumerate([*HEAPS, (1 << 40, 1)]):  # the last one is not counted
        struct.pack_into("=QI", data, module.HEAPS_AT + module.HEAP_BYTES * number, *heap)
    assert module.local_bytes(bytes(data)) == (8 << 30) + (256 << 20)


def test_vulkan_answers_for_the_adapters_of_wgpu():
    """Where there is a driver, lavapipe for example: through the loader itself."""
    pytest.importorskip("wgpu", reason="wgpu is not installed")
    from weft.backends.webgpu.backend import find_adapters

    adapters = [one.info for one in find_adapters() if one.info["backend_type"] == "Vulkan"]
    if not adapters:
        pytest.skip("no driver of Vulkan is installed")
    sizes = {one[:2]: one.nbytes for one in module.vulkan_devices()}
    for info in adapters:
        assert 1 << 20 < sizes[info["vendor_id"], info["device_id"]] < host_memory.UNKNOWN


def test_without_vulkan_there_are_no_devices_of_it(monkeypatch):
    monkeypatch.setattr(module, "LOADERS", {module.sys.platform: "libthere-is-none.so"})
    assert module.vulkan_devices() == []


@pytest.mark.parametrize("status", [0, -9])
def test_a_loader_that_finds_no_driver(status, monkeypatch):
    """It makes an instance or not, and lists no device."""
    destroyed = []

    class Function:
        def __init__(self, work):
            self.work = work

        def __call__(self, *args):
            return self.work(*args)

    loader = SimpleNamespace(
        vkCreateInstance=Function(lambda *_: status), vkDestroyInstance=Function(lambda *_: destroyed.append(1)),
        vkEnumeratePhysicalDevices=Function(lambda *_: status), vkGetPhysicalDeviceProperties=Function(None),
        vkGetPhysicalDeviceMemoryProperties=Function(None),
    )  # fmt: skip
    monkeypatch.setattr(module.ctypes, "CDLL", lambda name: loader)
    assert module.vulkan_devices() == []
    assert len(destroyed) == (status == 0)


@pytest.fixture
def unknown(monkeypatch) -> Device:
    """A GPU that does not say how much memory it has."""
    gpu = FakeGpu()
    monkeypatch.setattr(gpu, "memory", lambda: (host_memory.UNKNOWN - 4096, host_memory.UNKNOWN))
    return gpu.device


def test_what_is_unknown_is_called_so(unknown):
    assert memory_text(unknown) == ("unknown", "unknown")
    assert ("memory", "unknown, unknown free") in list(_properties(unknown))
    assert describe_available(unknown, 1 << 61) == "what is available, which the device does not say"
    assert memory_text(weft.get_device("cpu"))[0].endswith("iB")


def test_a_batch_size_needs_a_limit(unknown):
    trainer = weft.train.Trainer(weft.nn.Linear(4, 2), weft.nn.MSELoss(), weft.optim.SGD, device=unknown)
    batch = np.ones((2, 4), np.float32), np.ones((2, 2), np.float32)
    with pytest.raises(weft.errors.RangeError, match=r"does not say how much memory it has; .*Fix: give limit="):
        trainer.find_batch_size(*batch)
    assert trainer.find_batch_size(*batch, limit=1 << 20, largest=64) == 64


@pytest.mark.parametrize("resident", [None, True])
def test_data_lives_on_the_device_only_where_it_is_asked_for(unknown, resident):
    data = TensorDataset(weft.arange(12.0).reshape(6, 2))
    loader = DataLoader(data, batch_size=2, resident=resident, device=unknown)
    assert (loader.resident() is not None) == (resident is True)
    assert [batch[0].sum().item() for batch in loader] == [6.0, 22.0, 38.0]


def test_memory_of_windows():
    class Kernel32:
        def __init__(self, status):
            self.status = status

        def GlobalMemoryStatusEx(self, place):
            found = ctypes.cast(place, ctypes.POINTER(host_memory._MemoryStatus)).contents
            assert found.length == 64
            found.total, found.available = 16 << 30, 5 << 30
            return self.status

    assert host_memory._of_windows(Kernel32(1)) == (5 << 30, 16 << 30)
    assert min(host_memory._of_windows(Kernel32(0))) >= host_memory.UNKNOWN
