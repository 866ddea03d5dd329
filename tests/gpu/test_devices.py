"""Devices beside each other, memory that runs out, and indices out of range."""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.errors import DeviceError, IndexRangeError, OutOfMemoryError


@pytest.fixture
def other(gpu):
    """A second GPU, or the same one a second time."""
    several = [device for device in weft.devices() if device.kind == gpu.kind and device is not gpu]
    if several:
        return several[0]
    module, name = registry.BACKENDS[gpu.kind]
    return getattr(importlib.import_module(module), name)().devices()[gpu.index]


def test_devices_do_not_mix(gpu, other):
    here, there, host = weft.ones(3), weft.ones(3, device=other), weft.ones(3, device="cpu")
    for a, b in ((here, host), (host, here), (here, there), (there, host)):
        with pytest.raises(DeviceError, match=r"add: given tensors on .* and .*; expected all on one device"):
            a + b
        with pytest.raises(DeviceError):
            weft.compile(lambda a, b: a * b)(a, b)


def test_to_copies(gpu, other):
    x = np.arange(10_000, dtype=np.float32)
    here = weft.tensor(x) * 2
    there = here.to(other)
    host = there.to("cpu")
    assert (here.device, there.device, host.device.name) == (gpu, other, "cpu")
    assert there.to(other) is there or there.to(other).device is other
    here.add_(1.0)
    for tensor, expected in ((here, x * 2 + 1), (there, x * 2), (host, x * 2), (host.to(gpu), x * 2)):
        np.testing.assert_array_equal(tensor.numpy(), expected)


def test_gradients_cross_devices(gpu):
    w = weft.ones(3, requires_grad=True)
    (w * 2).to("cpu").sum().backward()
    assert w.grad.device is gpu and w.grad.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.serial
def test_out_of_memory_is_reported_before_it_runs(gpu):
    _, total = gpu.backend.memory()
    rows = int(total // 4 // 50_000) + 1
    x, y = weft.ones(rows, 1), weft.ones(1, 50_000)
    weft.eval(x, y)
    held, launches = gpu.backend.bytes_in_use, weft.counters()["launches"]
    step = weft.compile(lambda x: (x + y).exp())
    with pytest.raises(OutOfMemoryError) as error:
        step(x)
    said = str(error.value)
    assert f"{total / 2**30:.2f} GiB" in said and "largest tensors" in said and "use a batch of at most about" in said
    assert weft.counters()["launches"] == launches, "something ran"
    assert gpu.backend.bytes_in_use == held
    few = weft.ones(100, 1)
    np.testing.assert_allclose(step(few).numpy()[0, 0], np.exp(2.0), rtol=1e-6)


@pytest.mark.serial
def test_the_batch_that_would_fit_fits(gpu):
    _, total = gpu.backend.memory()
    y = weft.ones(1, 1 << 20)
    step = weft.compile(lambda x: (x + y).exp())
    with pytest.raises(OutOfMemoryError) as error:
        step(weft.ones(int(total >> 22) + 1, 1))
    fits = int(str(error.value).split("at most about ")[1].split()[0])
    assert step(weft.ones(fits, 1)).shape == (fits, 1 << 20)


def test_an_index_out_of_range_is_reported_when_the_device_is_waited_for(gpu):
    x, index = weft.arange(10).float(), weft.tensor([3, 11, 2])
    y = x[index] * 2
    with pytest.raises(IndexRangeError, match="index"):  # at the latest when the device is waited for
        weft.eval(y)
        gpu.backend.synchronise()
    gpu.backend.synchronise()  # reported once
    assert (x[weft.tensor([3])] * 2).tolist() == [6.0]


def test_an_index_out_of_range_in_a_compiled_step(gpu):
    x = weft.arange(10).float()
    step = weft.compile(lambda index: x[index] * 2)
    assert step(weft.tensor([1, 2])).tolist() == [2.0, 4.0]
    with pytest.raises(IndexRangeError):
        step(weft.tensor([1, 10])).numpy()
    assert step(weft.tensor([1, 2])).tolist() == [2.0, 4.0]


def test_a_process_that_used_libraries_ends_quietly(gpu):
    code = (
        "import weft, weft.nn.functional as F\n"
        f"x, w = weft.randn(2, 8, 16, 16, device={gpu.name!r}), weft.randn(8, 8, 3, 3, device={gpu.name!r})\n"
        "step = weft.compile(lambda x: F.conv2d(x, w, padding=1).relu().sum())\n"
        "print(step(x).item() > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("True\n", "")
