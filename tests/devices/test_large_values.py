"""Values that are larger than a binding of WebGPU: they are bound in parts, wherever they are (inputs, results, the
arena) and whatever their dtype, and give what the CPU gives. The device has bindings of 64 KiB, so that small arrays
are large.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.devices.conftest import found
from tests.unit import webgpu_devices
from weft import nn
from weft.backends.opencl import library
from weft.backends.opencl.backend import OpenClBackend
from weft.backends.registry import EMULATED
from weft.backends.webgpu.backend import WebGpuBackend
from weft.nn import functional as F
from weft.plan.device import Device

BINDING = 1 << 16
PIECE = 1 << 18  # bytes of an allocation, where these are limited
MAX_ERROR = 1e-5  # of the largest entry
DRAW = np.random.default_rng(0)


@functools.cache
def make_device(buffers: int, nbytes: int, allocation_bytes: int = 256 << 20, workgroups: int = 65535) -> Device:
    if not webgpu_devices.adapters():
        pytest.skip("wgpu finds no adapter")
    most = webgpu_devices.adapters()[0].limits["max-storage-buffers-per-shader-stage"]
    if most < buffers:
        pytest.skip(f"a kernel may bind {most} buffers here, of the {buffers} that this test needs")
    limits = webgpu_devices.DEFAULT_LIMITS | {
        "max-storage-buffers-per-shader-stage": buffers,
        "max-storage-buffer-binding-size": nbytes,
        "max-buffer-size": allocation_bytes,
        "max-compute-workgroups-per-dimension": workgroups,
    }
    return WebGpuBackend(webgpu_devices.adapters()[0], 8, features=(), limits=limits).device


def floats(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape, dtype=np.float32)


def sum_gradients(function: Callable[..., weft.Tensor], *given: weft.Tensor) -> list[weft.Tensor]:
    """The result, and the gradients of a weighted sum of it."""
    points = [one.detach().requires_grad_() for one in given]
    result = function(*points)
    (result * result * result).sum().backward()
    return [result, *[point.grad for point in points]]


X, Y, LONG = floats(300, 100), floats(300, 100), floats(60000)  # 117 and 234 KiB
ROW, COLUMN = floats(1, 100), floats(300, 1)
INDEX = DRAW.integers(0, 300, 50)
PROGRAMS: dict[str, tuple[Callable[..., object], tuple[np.ndarray, ...]]] = {
    "elementwise": (lambda x, y: (x * 2 + y).tanh(), (X, Y)),
    "only in the arena": (lambda row, column: (row * column).exp().cumsum(0).sum(1), (ROW, COLUMN)),
    "rows": (lambda x: [x.softmax(-1), x.sum(1), x.var(1)], (X,)),
    "columns": (lambda x: [x.sum(0), x.max(0)[0], x.cumsum(0)], (X,)),
    "one sum": (lambda x: x.sum(), (LONG,)),
    "transposed": (lambda x: x.T * 3, (X,)),
    "product": (lambda x, y: [x.T @ y, x @ y.T[:, :70]], (X, Y)),
    "product and its gradients": (functools.partial(sum_gradients, lambda x, y: x @ y.T[:, :60]), (X, Y)),
    "convolution and its gradients": (
        functools.partial(sum_gradients, lambda x, w: F.conv2d(x, w, padding=1)),
        (floats(2, 4, 50, 50), floats(5, 4, 3, 3)),
    ),
    "attention and its gradients": (
        functools.partial(sum_gradients, F.scaled_dot_product_attention), tuple(floats(1, 2, 520, 16) for _ in range(3))
    ),
    "layer norm and its gradient": (functools.partial(sum_gradients, lambda x: F.layer_norm(x, (100,))), (X,)),
    "gather": (lambda x, index: x[index], (X, INDEX)),
    "scatter": (lambda x, index, rows: x.index_add(0, index, rows), (X, INDEX, floats(50, 100))),
    "written rows": (lambda x, index, rows: x.index_copy(0, index.unique(), rows[: len(set(INDEX))]), (X, INDEX, Y)),
    "concatenation": (lambda x, y: weft.cat([x, y, x[:7]]), (X, Y)),
    "windows": (lambda x: [x[3:299:7, 1:], x.flip(0), x.reshape(-1)[9:29000]], (X,)),
    "sort": (lambda x: x.sort(-1)[0], (floats(25, 1000),)),
    "bfloat16": (lambda x: [x.bfloat16() * 2, (x.bfloat16() * 2).sum(1)], (floats(400, 101),)),
    "float16": (lambda x: [x.half().relu(), x.half()[1::3, 5:]], (floats(400, 101),)),
    "bool": (lambda x: [x > 0, (x > 0).sum(0)], (floats(1100, 101),)),
    "int8": (lambda x: [x + 1, x[3:, 1:], x.flip(1)], (DRAW.integers(-100, 100, (1100, 101)).astype(np.int8),)),
    "int64": (lambda x: [x * 3, x.sum(0)], (DRAW.integers(-(2**40), 2**40, (150, 101)),)),
    "dropout": (lambda x: F.dropout(x, 0.3), (X,)),
}  # fmt: skip


def run(name: str, device: str | Device, compiled: bool) -> list[np.ndarray]:
    function, given = PROGRAMS[name]
    weft.manual_seed(0)
    tensors = [weft.tensor(one, device=device) for one in given]
    result = (weft.compile(function) if compiled else function)(*tensors)
    return [one.numpy() for one in (result if isinstance(result, list) else [result])]


@pytest.mark.parametrize("name", PROGRAMS)
def test_large_values_give_what_the_cpu_gives(name: str):
    device = make_device(24, BINDING)
    for one, other in zip(run(name, device, False), run(name, "cpu", False), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        scale = np.abs(other.astype(np.float64)).max() if other.dtype.kind not in "biu" else 0
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), 0, MAX_ERROR * scale)


@pytest.mark.parametrize("name", ["elementwise", "product", "scatter", "int64"])
def test_compiled_they_have_the_same_bits(name: str):
    device = make_device(24, BINDING)
    for one, other in zip(run(name, device, True), run(name, device, False), strict=True):
        np.testing.assert_array_equal(one, other)


def test_values_of_two_parts_need_no_more_than_eight_bindings():
    device = make_device(8, BINDING)
    for name in ("elementwise", "only in the arena", "rows", "product", "gather", "concatenation", "bfloat16"):
        for one, other in zip(run(name, device, False), run(name, "cpu", False), strict=True):
            np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), 1e-4, 1e-4)


@pytest.mark.parametrize("nbytes", [1 << 15, (1 << 15) - 4096])
def test_parameters_larger_than_a_binding_are_trained(nbytes: int):
    """98 KiB of parameters, the largest of 43 KiB: optimizers and clipping work on as many as a binding holds."""

    def losses(device: str | Device) -> list[float]:
        weft.manual_seed(0)
        layers = [
            nn.Linear(30, 100),
            nn.ReLU(),
            nn.Linear(100, 110),
            nn.ReLU(),
            nn.Linear(110, 100),
            nn.Linear(100, 10),
        ]
        model = nn.Sequential(*layers).to(device)
        optimizer = weft.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = weft.tensor(Y[:16, :30], device=device), weft.tensor(np.arange(16) % 10, device=device)

        @weft.compile
        def step() -> weft.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            weft.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        return [step().item() for _ in range(6)]

    np.testing.assert_allclose(losses(make_device(10, nbytes)), losses("cpu"), 1e-5)


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_bytes_are_copied_in_pieces_of_a_binding(offset: int):
    driver = make_device(24, BINDING).backend.driver
    count = 3 * BINDING + 5
    data, guard = DRAW.integers(0, 256, count).astype(np.uint8), np.full(count + 16, 7, np.uint8)
    source, target = driver.allocate(count + 16), driver.allocate(count + 16)
    driver.upload(source, guard.ctypes.data, guard.nbytes)
    driver.upload(target, guard.ctypes.data, guard.nbytes)
    driver.upload(source + offset, data.ctypes.data, count)
    driver.copy(target + 5, source + offset, count)
    found = np.empty_like(guard)
    driver.download(found.ctypes.data, target, found.nbytes)
    assert (found[5 : 5 + count] == data).all() and (found[:5] == 7).all() and (found[5 + count :] == 7).all()
    driver.clear(target + 5, count)
    driver.download(found.ctypes.data, target, found.nbytes)
    assert not found[5 : 5 + count].any() and (found[:5] == 7).all() and (found[5 + count :] == 7).all()
    driver.free(source)
    driver.free(target)


def chain_of_scans(x: weft.Tensor) -> weft.Tensor:
    """Many temporaries of which several are alive at once."""
    parts = [(x * k).cumsum(0) for k in range(1, 8)]
    return sum((part.cumsum(1) for part in parts), x)


def make_opencl_device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device whose driver says that allocations are small."""
    query = library.query
    monkeypatch.setattr(library, "query", lambda *about: PIECE if about[1] == "largest_allocation" else query(*about))
    device = weft.get_device("opencl")
    assert isinstance(device.backend, OpenClBackend)
    return OpenClBackend(device.backend.driver.handle, 8).device


@pytest.mark.parametrize("kind", EMULATED)
def test_temporaries_that_are_more_than_one_allocation(kind: str, monkeypatch: pytest.MonkeyPatch):
    """An arena of several allocations, with every temporary in one of them."""
    if isinstance(found(kind), str):
        pytest.skip(found(kind))
    device = make_opencl_device(monkeypatch) if kind == "opencl" else make_device(24, BINDING, PIECE)
    x = weft.tensor(X, device=device)
    result = chain_of_scans(x).numpy()
    arena = device.backend._arena
    assert arena.nbytes > 2 * PIECE
    pool = device.backend.driver.pool
    handles = {pool.split(arena.pointer + at)[0] for at in range(0, arena.nbytes, PIECE)}
    assert len(handles) == -(-arena.nbytes // PIECE)
    expected = chain_of_scans(weft.tensor(X)).numpy()
    np.testing.assert_allclose(result, expected, 0, MAX_ERROR * np.abs(expected).max())
    device.backend.synchronise()
    before = device.backend.driver.reserved_bytes()
    del arena
    device.backend.empty_cache()
    assert device.backend.driver.reserved_bytes() <= before - 2 * PIECE


def test_a_tensor_that_is_more_than_one_allocation_is_refused():
    device = make_device(24, BINDING, PIECE)
    with pytest.raises(weft.OutOfMemoryError, match=r"at most 256\.0 KiB, the largest allocation of the device"):
        weft.zeros(100_000, device=device).numpy()
    with pytest.raises(weft.OutOfMemoryError, match=r"a request for 390\.6 KiB; expected at most 256\.0 KiB in one"):
        weft.tensor(np.zeros(100_000, np.float32), device=device)
    one = weft.ones(300, device=device)
    with pytest.raises(
        weft.OutOfMemoryError, match=r"scan float32.*: given a request for 375\.0 KiB; expected at most 256\.0"
    ):
        (one.reshape(300, 1) * one).cumsum(0).cumsum(1).sum().item()
    assert (one + 1).sum().item() == 600


@pytest.mark.parametrize("name", ["zeros", "arange", "rand"])
def test_a_value_that_no_kernel_binds(name: str):
    """Its size is the fault where no allocation holds it, and the bindings are where one does. What has no operands
    had no message: arange ended in a ValueError of the compiler."""

    def make(count: int, device: Device) -> None:
        with weft.device(device):
            weft.eval(getattr(weft, name)(count, dtype=weft.float32))

    with pytest.raises(weft.OutOfMemoryError, match=r"expected at most 256\.0 KiB, the largest allocation"):
        make(9 * BINDING // 4, make_device(8, BINDING, PIECE))
    with pytest.raises(weft.DeviceError, match=r"expected at most 8 bindings of a kernel"):
        make(9 * BINDING // 4, make_device(8, BINDING))
    make(BINDING // 4, make_device(8, BINDING))


@pytest.mark.parametrize("given", [floats(140_000), DRAW.integers(0, 9, 80_000)])
def test_a_value_of_more_parts_than_bindings_is_refused(given: np.ndarray):
    device = make_device(8, BINDING)
    x = weft.tensor(given, device=device)
    for function in (lambda: x + 1, lambda: x.sum(), lambda: x[::3000], lambda: weft.arange(80_000, device=device)):
        with pytest.raises(weft.errors.DeviceError, match=r"of 64\.0 KiB; expected at most 8 bindings of a kernel"):
            function().numpy()
    np.testing.assert_array_equal((x[70_000:70_005] * 2).numpy(), given[70_000:70_005] * 2)
