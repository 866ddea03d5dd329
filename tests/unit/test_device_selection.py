"""Which device a name means: `auto` and `gpu` take real GPUs, and a missing dtype names the devices that have it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.unit.fake_driver import FakeGpu, HandleDriver
from weft.backends import registry
from weft.base import dtypes
from weft.core import device as selection
from weft.plan.device import Device

pytestmark = pytest.mark.unit

WITHOUT_FLOAT64 = frozenset(dtypes.ALL) - {dtypes.float64}


def gpu(kind: str, index: int = 0, **fields) -> Device:
    """A GPU in the host's memory under the name of some kind."""
    backend = FakeGpu(kind=HandleDriver)
    backend.device = replace(backend.device, kind=kind, index=index, **fields)
    return backend.device


@pytest.fixture
def machine(monkeypatch):
    """Call it with the devices that this machine is to have, by kind; the others have none."""

    def make(has_gpu: bool = True, **kinds: list[Device]) -> None:
        monkeypatch.setattr(selection, "may_have_gpu", lambda: has_gpu)
        for kind in registry.FASTEST:
            monkeypatch.setitem(registry.BACKENDS, kind, registry.MODULES[kind])
            found = kinds.get(kind, [])
            platform = SimpleNamespace(
                devices=lambda found=found: found, reason=f"no driver of {kind}. Install {kind}-x"
            )
            monkeypatch.setitem(registry._loaded, kind, platform)

    return make


def test_the_fastest_real_gpu(machine):
    pocl, lavapipe = gpu("opencl", is_software=True), gpu("webgpu", is_software=True, api="vulkan")
    card, other = gpu("opencl", 1), gpu("webgpu", 1, api="vulkan")
    for kinds, fastest in [
        ({"cuda": [gpu("cuda")], "opencl": [card]}, "cuda:0"),
        ({"hip": [gpu("hip")], "opencl": [card]}, "hip:0"),
        ({"opencl": [pocl, card], "webgpu": [lavapipe, other]}, "opencl:1"),
        ({"opencl": [pocl], "webgpu": [lavapipe, other]}, "webgpu:1"),
    ]:
        machine(**kinds)
        assert weft.get_device("gpu").name == weft.get_device("auto").name == fastest


def test_integrated_gpus_come_after_others_of_any_kind(machine):
    integrated, vulkan = gpu("opencl", is_integrated=True), gpu("webgpu", is_integrated=True, api="vulkan")
    card = gpu("webgpu", 1, api="vulkan")
    for kinds, fastest in [
        ({"opencl": [integrated], "webgpu": [card, vulkan]}, "webgpu:1"),
        ({"opencl": [gpu("opencl", 1), integrated], "webgpu": [card]}, "opencl:1"),
        ({"opencl": [integrated], "webgpu": [vulkan]}, "opencl:0"),
        ({"webgpu": [vulkan]}, "webgpu:0"),
        ({"hip": [gpu("hip")], "opencl": [integrated]}, "hip:0"),
    ]:
        machine(**kinds)
        assert weft.get_device("gpu").name == weft.get_device("auto").name == fastest


def test_software_devices_are_used_only_where_they_are_named(machine):
    pocl, lavapipe = gpu("opencl", is_software=True, description="pocl"), gpu("webgpu", is_software=True, api="vulkan")
    machine(opencl=[pocl], webgpu=[lavapipe])
    assert weft.get_device("auto").name == "cpu"
    assert weft.get_device("opencl") is pocl and weft.get_device("webgpu:0") is lavapipe
    assert {pocl, lavapipe} <= set(weft.devices())
    with pytest.raises(weft.DeviceError, match=r"cuda: no driver of cuda. Install cuda-x; .*opencl: only .*\(pocl\)"):
        weft.get_device("gpu")


def test_drivers_that_emulate_are_not_loaded_where_the_system_shows_no_gpu(machine, monkeypatch):
    machine(has_gpu=False)
    for kind in registry.EMULATED:
        monkeypatch.delitem(registry._loaded, kind)
        monkeypatch.setitem(registry.BACKENDS, kind, ("there.is.no.such.module", "Platform"))
    assert weft.get_device("auto").name == "cpu"


def fail(*args):
    raise OSError("a file of the driver is too short")


class Unopened(list):
    """Devices, of which those that are None cannot be opened; `opened` counts the attempts."""

    opened = 0

    def __getitem__(self, number):
        self.opened += 1
        return list.__getitem__(self, number) or fail()


def test_a_driver_that_does_not_start_hides_no_other(machine, monkeypatch):
    card = gpu("webgpu", api="vulkan")
    machine(webgpu=[card])
    for kind in ("cuda", "hip", "opencl"):
        monkeypatch.setitem(registry._loaded, kind, SimpleNamespace(devices=fail, reason=""))
    assert weft.get_device("auto") is weft.get_device("gpu") is card
    assert [one.name for one in weft.devices()] == ["cpu", "webgpu:0", "reference"]
    monkeypatch.setitem(registry._loaded, "webgpu", SimpleNamespace(devices=fail, reason=""))
    assert weft.get_device("auto").name == "cpu"
    why = r"does not start \(OSError: a file of the driver is too short\)"
    with pytest.raises(weft.DeviceError, match=rf"cuda: its driver {why}; .*webgpu: its driver {why}"):
        weft.get_device("gpu")
    with pytest.raises(weft.DeviceError, match=rf"'vulkan:0', but its driver {why}"):
        weft.get_device("vulkan:0")
    with pytest.raises(OSError, match="too short"):  # where it is named its own error shows
        weft.get_device("opencl")


def test_a_device_that_cannot_be_opened_hides_no_other(machine):
    card = gpu("opencl", 1)
    machine(opencl=Unopened([None, card]), webgpu=Unopened([None]))
    assert weft.get_device("auto") is card
    assert card in weft.devices()
    machine(opencl=Unopened([None]), webgpu=Unopened([gpu("webgpu", is_software=True, description="x"), None]))
    assert weft.get_device("auto").name == "cpu"
    given = r"opencl: none of its devices answers; some cannot be opened: number 0: a file .*webgpu: only .*number 1: a"
    with pytest.raises(weft.DeviceError, match=given):
        weft.get_device("gpu")
    with pytest.raises(weft.DeviceError, match=r"'vulkan', but .*; some cannot be opened: number 1: a file"):
        weft.get_device("vulkan")


def test_one_real_gpu_is_opened_not_all(machine):
    cards = Unopened([gpu("webgpu", number, api="vulkan") for number in range(4)])
    machine(webgpu=cards)
    for name, opened in (("auto", 1), ("gpu", 1), ("vulkan", 1), ("gpu:1", 2), ("vulkan:2", 3)):
        cards.opened = 0
        weft.get_device(name)
        assert cards.opened == opened, name
    with pytest.raises(weft.DeviceError, match="'gpu:4'; expected 'gpu:0' to 'gpu:3'"):
        weft.get_device("gpu:4")


def test_names_of_interfaces(machine):
    machine(webgpu=[gpu("webgpu", 0, api="opengl"), gpu("webgpu", 1, api="vulkan"), gpu("webgpu", 2, api="vulkan")])
    assert weft.get_device("vulkan").name == weft.get_device("vulkan:0").name == "webgpu:1"
    assert weft.device("vulkan", 1).name == "webgpu:2"
    with pytest.raises(weft.DeviceError, match="'vulkan:2'; expected 'vulkan:0' to 'vulkan:1'"):
        weft.get_device("vulkan:2")
    with pytest.raises(weft.DeviceError, match="'metal:0', but no driver of webgpu"):
        weft.get_device("metal:0")


def test_planned_kinds_and_unknown_names():
    for name in (*registry.PLANNED, *(["d3d12:0"] if "webgpu" in registry.PLANNED else [])):
        with pytest.raises(weft.DeviceError, match=r"no backend yet; expected one of .*'auto', 'cpu', 'cuda'"):
            weft.get_device(name)
    with pytest.raises(weft.DeviceError, match="given 'tpu'; expected one of"):
        weft.get_device("tpu")


def test_every_kind_has_a_place():
    assert set(registry.FASTEST) == set(registry.MODULES) - {"cpu", "reference", "null"}
    assert set(registry.BACKENDS) == set(registry.MODULES) - set(registry.PLANNED)
    assert set(registry.APIS.values()) | set(registry.EMULATED) <= set(registry.MODULES)


def test_what_the_system_shows(monkeypatch, tmp_path):
    monkeypatch.setattr(registry.sys, "platform", "linux")
    monkeypatch.setattr(registry, "DEVICE_FILES", (str(tmp_path / "card*"),))
    assert not registry.may_have_gpu()
    (tmp_path / "card0").touch()
    assert registry.may_have_gpu()
    monkeypatch.setattr(registry.sys, "platform", "win32")
    monkeypatch.setattr(registry, "DEVICE_FILES", ())
    assert registry.may_have_gpu()


def test_tensors_move_between_any_two_devices(machine):
    machine(opencl=[gpu("opencl"), gpu("opencl", 1)], webgpu=[gpu("webgpu")])
    names = ["cpu", "opencl:0", "opencl:1", "webgpu:0", "reference"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for source in names:
        for target in names:
            given = weft.tensor(x, device=source)
            moved = (given + 1).to(target)
            assert moved.device.name == target
            np.testing.assert_array_equal((moved * 2).numpy(), (x + 1) * 2)
            leaf = weft.tensor(x, device=source, requires_grad=True)
            (leaf.to(target) ** 2).sum().backward()
            assert leaf.grad.device.name == source
            np.testing.assert_array_equal(leaf.grad.numpy(), 2 * x)


MISSING = r"float64 on webgpu:0, which does not have it; expected a device that does \(cpu, opencl:0\)"


def test_a_missing_dtype_names_the_devices_that_have_it(machine):
    machine(opencl=[gpu("opencl")], webgpu=[gpu("webgpu", dtypes=WITHOUT_FLOAT64)])
    x = weft.ones(3, device="webgpu")
    wide = weft.ones(3, dtype=weft.float64)
    for call in (
        lambda: x.double(),
        lambda: weft.zeros(2, dtype=weft.float64, device="webgpu"),
        lambda: weft.tensor(np.zeros(2), dtype=weft.float64, device="webgpu"),
        lambda: weft.rand(2, dtype=weft.float64, device="webgpu"),
        lambda: weft.randn(2, dtype=weft.float64, device="webgpu"),
        lambda: weft.normal(0.0, 1.0, (2,), dtype=weft.float64, device="webgpu"),
        lambda: weft.randperm(2, dtype=weft.float64, device="webgpu"),
        lambda: weft.randint_like(x, 3, dtype=weft.float64),
        lambda: wide.to("webgpu"),
        lambda: x.sum(dtype=weft.float64),
        lambda: x.softmax(0, dtype="float64"),
        lambda: weft.float_power(x, 2).numpy(),  # what is recorded is found when it is compiled
        lambda: weft.compile(lambda x: weft.float_power(x, 2).float())(x),
    ):
        with pytest.raises(weft.DTypeError, match=MISSING):
            call()
    assert wide.to("webgpu", weft.float32).dtype is weft.float32
    assert x.to("cpu", weft.float64).dtype is weft.float64
    assert x.half().dtype is weft.float16


def test_a_dtype_that_another_device_of_the_kind_lacks(machine):
    machine(webgpu=[gpu("webgpu"), gpu("webgpu", 1, dtypes=WITHOUT_FLOAT64)])
    wide = weft.ones(3, dtype=weft.float64, device="webgpu:0")
    with pytest.raises(weft.DTypeError, match=r"to: given float64 on webgpu:1, .* \(cpu, webgpu:0\)"):
        wide.to("webgpu:1")
    assert wide.to("webgpu:1", weft.float32).dtype is weft.float32


def test_ranges_of_floats_need_no_float64(machine):
    machine(webgpu=[gpu("webgpu", dtypes=WITHOUT_FLOAT64)])
    for make in (
        lambda: weft.arange(-1.0, 2.0, 0.1),
        lambda: weft.linspace(-3, 7, 101),
        lambda: weft.logspace(-2, 2, 33),
        lambda: weft.linspace(0, 100, 5, dtype=weft.int64),
        lambda: weft.arange(2000),
        lambda: F.pdist(weft.arange(30.0).reshape(15, 2) % 7),
    ):
        expected = make().numpy()
        with weft.device("webgpu"):
            np.testing.assert_allclose(make().numpy(), expected, 1e-6, 1e-6)


def test_the_trainer_takes_the_names(machine):
    machine(webgpu=[gpu("webgpu", api="vulkan")])
    for name in ("vulkan", "vulkan:0", "gpu", "auto", "webgpu"):
        trainer = weft.train.Trainer(weft.nn.Linear(2, 1), weft.nn.MSELoss(), weft.optim.SGD, device=name)
        assert trainer.device.name == "webgpu:0"
