"""WebGPU where wgpu finds an adapter (Mesa's lavapipe is one): memory, 64-bit integers by pairs of words, elements
smaller than a word, errors, and the training of a small network. `test_wgsl` looks at the text of kernels.

Writes beyond a buffer's end are dropped silently, so these tests put guard words around what kernels write.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import weft
from tests.unit import webgpu_devices
from tests.unit.live_objects import count_wgpu_objects
from tests.unit.webgpu_devices import copied
from weft import nn
from weft.backends.webgpu import backend as webgpu_backend
from weft.base import dtypes
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
    Accumulator,
    Barrier,
    BufferParam,
    Geometry,
    Kernel,
    Load,
    Local,
    Loop,
    Reduction,
    Store,
    Update,
    Var,
)
from weft.nn import functional as F
from weft.plan.device import Device
from weft.plan.plan import code_of
from weft.render.wgsl.module import render
from weft.render.wgsl.operations import Extensions

GUARD = 0xA5
KINDS = ("device", "limited")


@pytest.fixture(params=KINDS)
def gpu(request) -> Device:
    return getattr(webgpu_devices, request.param)()


@pytest.fixture
def limited() -> Device:
    return webgpu_devices.limited()


def run_kernel(device: Device, kernel: Kernel, source: np.ndarray, target: np.ndarray, extent: int = 1) -> np.ndarray:
    """What a kernel of two buffers makes of `target`."""
    driver = device.backend.driver
    (function,) = driver.load_kernels([device.backend.render(kernel)])
    read = driver.upload_new(source.ctypes.data, source.nbytes)
    write = driver.upload_new(target.ctypes.data, target.nbytes)
    found = np.empty_like(target)
    driver.make_launcher(function, 1, kernel.geometry.lanes, 0, (ctypes.c_uint64 * 4)(read, write, 0, extent), 2)()
    driver.download(found.ctypes.data, write, found.nbytes)
    driver.free(read)
    driver.free(write)
    return found


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0, 1, 3, 4])
@pytest.mark.parametrize("nbytes", [1, 3, 4, 7, 1025])
def test_transfers_of_any_number_of_bytes_leave_their_neighbours(limited, offset, nbytes):
    driver = limited.backend.driver
    size = nbytes + 64
    around = np.full(size, GUARD, np.uint8)
    data = np.random.default_rng(nbytes).integers(0, 255, nbytes).astype(np.uint8)

    def found() -> np.ndarray:
        read = np.empty(size, np.uint8)
        driver.download(read.ctypes.data, base, size)
        return read

    base, other = driver.allocate(size), driver.allocate(size)
    at = 16 + offset
    for pointer in (base, other):
        driver.upload(pointer, around.ctypes.data, size) if size % 4 == 0 else driver.clear(pointer, size)
    expected = found()
    driver.upload(base + at, data.ctypes.data, nbytes)
    expected[at : at + nbytes] = data
    np.testing.assert_array_equal(found(), expected)
    driver.copy(other + 17, base + at, nbytes)
    driver.clear(base + at, nbytes)
    expected[at : at + nbytes] = 0
    np.testing.assert_array_equal(found(), expected)
    driver.copy(base + at, other + 17, nbytes)
    expected[at : at + nbytes] = data
    np.testing.assert_array_equal(found(), expected)
    part = np.empty(nbytes, np.uint8)
    driver.download(part.ctypes.data, base + at, nbytes)
    np.testing.assert_array_equal(part, data)
    driver.free(base), driver.free(other)


def test_a_copy_inside_one_buffer(limited):
    driver = limited.backend.driver
    data, read = np.arange(64, dtype=np.uint8), np.empty(64, np.uint8)
    base = driver.allocate(64)
    driver.upload(base, data.ctypes.data, 64)
    driver.copy(base + 32, base, 16)
    driver.download(read.ctypes.data, base, 64)
    assert (read[32:48] == data[:16]).all() and (read[48:] == data[48:]).all()
    driver.free(base)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "uint16", "float16", "bfloat16"])
def test_small_elements_between_guard_words(gpu, dtype):
    """A kernel writes 5 elements in the middle of a buffer: everything else stays."""
    backend = gpu.backend
    kind = getattr(dtypes, "bool_" if dtype == "bool" else dtype)
    axis = Axis("i", 1 << 40)
    at = Index(((axis, 1),), 0)
    loop = Loop(axis, Var("begin", dtypes.int64), Var("end", dtypes.int64), "grid",
                (Store("b1", at, Load("b0", at, kind)),), 256)  # fmt: skip
    buffers = (BufferParam("b0", kind, False), BufferParam("b1", kind, True))
    kernel = Kernel("guarded", buffers, (), ("begin", "end"), (loop,), {}, Geometry(256, 1))
    (function,) = backend.driver.load_kernels([backend.render(kernel)])
    count, size = 5, kind.itemsize
    source = (
        np.arange(1, count * size + 1, dtype=np.uint8) % 2 if dtype == "bool" else np.arange(200, 200 + count * size)
    )
    around = np.full(64, GUARD, np.uint8)
    read, target = backend.driver.allocate(64), backend.driver.allocate(64)
    data = source.astype(np.uint8)
    backend.driver.upload(target, around.ctypes.data, 64)
    backend.driver.upload(read + 2 * size, data.ctypes.data, data.nbytes)
    words = (ctypes.c_uint64 * 4)(read + 2 * size, target + 3 * size, 0, count)
    backend.driver.make_launcher(function, 1, 256, 0, words, 2)()
    backend.driver.download(around.ctypes.data, target, 64)
    assert (around[: 3 * size] == GUARD).all() and (around[(3 + count) * size :] == GUARD).all()
    np.testing.assert_array_equal(around[3 * size : (3 + count) * size], data)


def test_a_grid_of_more_workgroups_than_one_dimension_has(limited):
    """Workgroups are folded into two dimensions; each element is written once, and none beyond."""
    driver = limited.backend.driver
    kernel = copied("a", dtypes.int32)
    (function,) = driver.load_kernels([limited.backend.render(kernel)])
    count = 70_000 * 4
    read, target = driver.allocate(4 * count), driver.allocate(4 * count + 64)
    data, found = np.arange(count, dtype=np.int32), np.full(count + 16, GUARD, np.int32)
    driver.upload(read, data.ctypes.data, data.nbytes)
    driver.upload(target, found.ctypes.data, found.nbytes)
    driver.make_launcher(function, 70_000, 256, 0, (ctypes.c_uint64 * 4)(read, target, 0, count), 2)()
    driver.download(found.ctypes.data, target, found.nbytes)
    assert (found[:count] == data).all() and (found[count:] == GUARD).all()
    driver.free(read), driver.free(target)


# --- 64-bit integers by pairs of words -------------------------------------------------------------------------------

EDGES = [0, 1, -1, 2, -2, 3, 7, -7, 2**31 - 1, 2**31, -(2**31), 2**32, 2**32 - 1, -(2**32), 2**53 + 1, 2**62, 2**63 - 1,
         -(2**63), -(2**63) + 1, 10**18, -(10**18), 123456789012345]  # fmt: skip


def pairs_of(kind: str) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    values = np.array(EDGES, np.int64)
    a, b = (grid.ravel() for grid in np.meshgrid(values, values))
    low, high = -(2**63), 2**63 - 1
    a = np.concatenate([a, draw.integers(low, high, 500), draw.integers(-1000, 1000, 500)])
    b = np.concatenate([b, draw.integers(low, high, 500) >> draw.integers(0, 62, 500), draw.integers(-50, 50, 500)])
    return a.view(kind), b.view(kind)


def floor_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.where(b == 0, 0, a // np.where(b == 0, 1, b))


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.where(b == 0, 0, a % np.where(b == 0, 1, b))


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_arithmetic_of_64_bit_integers_is_exact(gpu, kind):
    assert not webgpu_devices.limited().backend.extensions.int64  # which has pairs of words
    a, b = pairs_of(kind)
    x, y = weft.tensor(a, device=gpu), weft.tensor(b, device=gpu)
    amounts = (np.arange(len(a)) % 64).astype(kind)
    s = weft.tensor(amounts, device=gpu)
    with np.errstate(all="ignore"):
        expected = {
            "add": (x + y, a + b), "sub": (x - y, a - b), "mul": (x * y, a * b), "neg": (-x, -a),
            "and": (x & y, a & b), "or": (x | y, a | b), "xor": (x ^ y, a ^ b), "not": (~x, ~a),
            "shl": (x << s, a << amounts), "shr": (x >> s, a >> amounts), "lt": (x < y, a < b), "le": (x <= y, a <= b),
            "eq": (x == y, a == b), "ne": (x != y, a != b), "max": (weft.maximum(x, y), np.maximum(a, b)),
            "min": (weft.minimum(x, y), np.minimum(a, b)), "abs": (x.abs(), np.abs(a)),
        }  # fmt: skip
        nonzero = weft.where(y == 0, weft.ones_like(y), y)
        expected["div"] = x // nonzero, floor_divide(a, np.where(b == 0, 1, b))
        expected["mod"] = x % nonzero, remainder(a, np.where(b == 0, 1, b))
    weft.eval(*[found for found, _ in expected.values()])
    for name, (found, wanted) in expected.items():
        np.testing.assert_array_equal(found.numpy(), wanted.astype(found.numpy().dtype), err_msg=name)


@pytest.mark.parametrize("kind", ["int8", "int32", "int64", "uint64"])
def test_shifts_by_the_width_or_more(gpu, kind):
    """Of 64-bit numbers of bits the upper words count as well."""
    info = np.iinfo(kind)
    amounts = [0, 1, 7, 8, 31, 32, 63, 64, -1, 2**32, 2**32 + 1, 2**63 - 1, -(2**32), -(2**63)]
    y = np.array([one for one in amounts if info.min <= one <= info.max], kind)
    x = np.array([[1], [3], [info.max], [info.min]], kind)
    is_less = (y >= 0) & (y < 8 * x.itemsize)
    some = np.where(is_less, y, 0)
    a, b = weft.tensor(x, device=gpu), weft.tensor(y, device=gpu)
    np.testing.assert_array_equal((a << b).numpy(), np.where(is_less, x << some, 0))
    np.testing.assert_array_equal((a >> b).numpy(), np.where(is_less, x >> some, np.where(x < 0, -1, 0).astype(kind)))


@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_casts_of_64_bit_integers_round_and_saturate(gpu, kind):
    a, _ = pairs_of(kind)
    x = weft.tensor(a, device=gpu)
    np.testing.assert_array_equal(x.to(weft.float32).numpy(), a.astype(np.float32))
    np.testing.assert_array_equal(x.to(weft.int32).numpy(), a.astype(np.int32))
    np.testing.assert_array_equal(x.to(weft.uint8).numpy(), a.astype(np.uint8))
    np.testing.assert_array_equal(x.to(weft.bool).numpy(), a != 0)
    floats = np.array([0, 0.5, -0.5, 1.5, -1.5, 1e9, -1e9, 3e9, 1e18, -1e18, 1e19, -1e19, 1e30, -1e30, np.inf, -np.inf,
                       np.nan, 2.0**63, 2.0**64, 16777217.0], np.float32)  # fmt: skip
    low, high = (0, 2**64 - 1) if kind == "uint64" else (-(2**63), 2**63 - 1)
    wanted = [0 if np.isnan(v) else max(min(int(v), high), low) if np.isfinite(v) else high if v > 0 else low
              for v in floats]  # fmt: skip
    found = weft.tensor(floats, device=gpu).to(getattr(weft, kind)).numpy()
    np.testing.assert_array_equal(found, np.array(wanted, kind))
    for small in ("int8", "int16", "int32", "uint8", "uint16", "uint32", "bool"):
        narrow = weft.tensor(a, device=gpu).to(getattr(weft, small))
        np.testing.assert_array_equal(narrow.to(getattr(weft, kind)).numpy(), a.astype(small).astype(kind))


def test_sums_of_64_bit_integers(gpu):
    a = np.random.default_rng(3).integers(-(2**62), 2**62, (7, 300))
    x = weft.tensor(a, device=gpu)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(x.sum(1).numpy(), a.sum(1))
    np.testing.assert_array_equal(x.max(1)[0].numpy(), a.max(1))
    np.testing.assert_array_equal(x.sort(1)[0].numpy(), np.sort(a, 1))


# --- floats ----------------------------------------------------------------------------------------------------------

FLOATS = np.array([0.0, -0.0, 1.0, -1.0, 3.5, np.nan, np.inf, -np.inf, 1e-40, 65504.0, 65520.0, 1e-7, 6e-8], np.float32)


def test_nan_and_infinities(gpu):
    x = weft.tensor(FLOATS, device=gpu)
    y = weft.tensor(FLOATS[::-1].copy(), device=gpu)
    a, b = FLOATS, FLOATS[::-1]
    np.testing.assert_array_equal((x != x).numpy(), a != a)
    np.testing.assert_array_equal((x != y).numpy(), a != b)
    np.testing.assert_array_equal((x < y).numpy(), a < b)
    np.testing.assert_array_equal(weft.maximum(x, y).numpy(), np.maximum(a, b))
    np.testing.assert_array_equal(weft.minimum(x, y).numpy(), np.minimum(a, b))
    np.testing.assert_array_equal(x.isnan().numpy(), np.isnan(a))
    np.testing.assert_array_equal(x.isinf().numpy(), np.isinf(a))


def test_float16_rounds_to_nearest_even(gpu):
    draw = np.random.default_rng(0)
    values = np.concatenate([FLOATS, draw.standard_normal(2000).astype(np.float32) * np.float32(10.0) ** draw.integers(
        -9, 6, 2000).astype(np.float32)])  # fmt: skip
    values[8] = 0.0  # a float32 below the normal range may be flushed to 0
    found = weft.tensor(values, device=gpu).to(weft.float16).to(weft.float32).numpy()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, values.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("function", ["sin", "cos", "exp", "log", "tanh", "erf"])
def test_functions_of_small_and_large_arguments(gpu, function):
    draw = np.random.default_rng(1)
    x = np.concatenate([draw.standard_normal(500) * scale for scale in (1.0, 50.0, 1e5, 1e15, 1e37)]).astype(np.float32)
    found = getattr(weft, function)(weft.tensor(x, device=gpu)).numpy()
    expected = getattr(weft, function)(weft.tensor(x, device="reference")).numpy()
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    finite = np.isfinite(expected)
    largest = np.abs(expected[finite]).max()
    np.testing.assert_allclose(found[finite], expected[finite], 0, 1e-6 * largest)


def test_compensated_sums_keep_what_is_rounded_off(gpu):
    """No compiler makes 0 of the error of an addition."""
    values = np.tile(np.array([1e8, 1.0, -1e8], np.float32), 40)
    axis = Axis("r", len(values), "reduce")
    total = Accumulator("total", "sum", dtypes.float32, True)
    update = Update("total", Load("b0", Index(((axis, 1),), 0), dtypes.float32))
    reduction = Reduction((total,), (Loop(axis, 0, len(values), "serial", (update,)),))
    body = (reduction, Store("b1", Index((), 0), Var("total", dtypes.float32)))
    buffers = (BufferParam("b0", dtypes.float32, False), BufferParam("b1", dtypes.float32, True))
    kernel = Kernel("compensated", buffers, (), ("begin", "end"), body, {}, Geometry(1, 1))
    found = run_kernel(gpu, kernel, values, np.zeros(1, np.float32))
    assert found[0] == 40.0


# --- programs --------------------------------------------------------------------------------------------------------


def train(where: str | Device, steps: int = 4) -> tuple[list[float], list[np.ndarray]]:
    """Losses and weights of an MLP after some steps."""
    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5)).to(where)
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    draw = np.random.default_rng(0)
    x = weft.tensor(draw.standard_normal((8, 12), dtype=np.float32), device=where)
    y = weft.tensor(np.arange(8) % 5, device=where)

    @weft.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    losses = [step(x, y).item() for _ in range(steps)]
    return losses, [parameter.numpy() for parameter in model.parameters()]


def test_a_network_trains_as_on_the_cpu(gpu):
    losses, weights = train(gpu)
    expected, wanted = train("cpu")
    np.testing.assert_allclose(losses, expected, 1e-5)
    for found, other in zip(weights, wanted, strict=True):
        np.testing.assert_allclose(found, other, 0, 1e-5 * np.abs(other).max())
    again, repeated = train(gpu)
    assert again == losses and all((a == b).all() for a, b in zip(weights, repeated, strict=True))


def test_names_and_limits_of_the_device():
    device = webgpu_devices.device()
    x = weft.tensor([1.0, 2.0], device="webgpu:0")
    assert x.device is device and (x + 1).numpy().tolist() == [2.0, 3.0]
    assert device.limits.storage_buffers >= 8 and device.limits.binding_bytes >= 1 << 27
    assert device.is_software == (webgpu_devices.adapters()[0].info["adapter_type"] == "CPU")


def test_an_index_out_of_range_is_reported(limited):
    x = weft.tensor(np.ones((3, 2), np.float32), device=limited)
    with pytest.raises(weft.errors.IndexRangeError):
        x[weft.tensor(np.array([0, 7]), device=limited)].numpy()


# --- kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared_bytes", [64, 16384])
def test_small_elements_in_shared_arrays(limited, shared_bytes):
    """Each lane writes an element and reads its neighbour's: elements share words where memory is short."""
    lanes = 64
    lane = Axis("lane_axis", lanes)
    at, mirrored = Index(((lane, 1),), 0), Index(((lane, -1),), lanes - 1)
    first = Loop(lane, 0, lanes, "lanes", (Store("tile", at, Load("b0", at, dtypes.uint8)),), lanes)
    second = Loop(lane, 0, lanes, "lanes", (Store("b1", at, Load("tile", mirrored, dtypes.uint8)),), lanes)
    buffers = (BufferParam("b0", dtypes.uint8, False), BufferParam("b1", dtypes.uint8, True))
    body = (Local("tile", dtypes.uint8, lanes), first, Barrier(), second)
    kernel = Kernel("mirrored", buffers, (), ("begin", "end"), body, {}, Geometry(lanes, 1))
    symbol, text = render(kernel, Extensions(shared_bytes=shared_bytes))
    assert ("array<atomic<u32>, 16>" in text) == (shared_bytes == 64)
    driver, data = limited.backend.driver, np.arange(lanes, dtype=np.uint8)
    (function,) = driver.load_kernels([code_of(kernel, symbol, text)])
    read, write = driver.upload_new(data.ctypes.data, lanes), driver.allocate(lanes)
    driver.make_launcher(function, 1, lanes, 0, (ctypes.c_uint64 * 4)(read, write, 0, 1), 2)()
    found = np.empty(lanes, np.uint8)
    driver.download(found.ctypes.data, write, lanes)
    np.testing.assert_array_equal(found, data[::-1])


def test_rows_by_subgroups(monkeypatch):
    """Lanes of a subgroup exchange values: on an adapter whose subgroups have one size, which lavapipe's have."""
    adapter = next((one for one in webgpu_devices.adapters() if "llvmpipe" in one.info["device"]), None)
    if adapter is None or "subgroup" not in adapter.features:
        pytest.skip("no lavapipe with subgroups")
    monkeypatch.setattr(webgpu_backend, "_subgroup_sizes", lambda info: (8,))
    device = webgpu_backend.WebGpuBackend(adapter, 8, features=("subgroup",)).device
    assert device.features.subgroup_operations and device.limits.subgroup_size == 8
    x = np.random.default_rng(0).standard_normal((5, 300), dtype=np.float32)
    on_device, expected = weft.tensor(x, device=device), weft.tensor(x, device="reference")
    for function in (lambda x: x.softmax(-1), lambda x: F.layer_norm(x, (300,)), lambda x: x.max(-1)[0]):
        np.testing.assert_allclose(function(on_device).numpy(), function(expected).numpy(), 1e-5, 1e-6)


def test_a_replayed_step_is_one_submission(limited, monkeypatch):
    x = weft.tensor(np.ones((40, 300), np.float32), device=limited)
    step = weft.compile(lambda x: (x.softmax(-1) @ x.T).sum(0).sort()[0])
    for _ in range(12):
        expected = step(x).numpy()
    driver, submitted = limited.backend.driver, []
    submit = driver._submit
    monkeypatch.setattr(driver, "_submit", lambda given, *then: submitted.append(len(given)) or submit(given, *then))
    limited.backend.synchronise()
    submitted.clear()
    result = step(x)
    assert len(submitted) == 1 and submitted[0] > 2
    np.testing.assert_array_equal(result.numpy(), expected)


def test_waiting_leaves_nothing(gpu):
    x = weft.ones(3, device=gpu)
    assert (x + 1).numpy().tolist() == [2, 2, 2]
    before = count_wgpu_objects()
    for _ in range(5):
        weft.synchronize(gpu)
    assert count_wgpu_objects() == before


def test_a_buffer_larger_than_a_binding_is_bound_in_part(limited, monkeypatch):
    """As where the arena is larger than what a kernel may bind: each value in it is within the limit."""
    driver = limited.backend.driver
    monkeypatch.setattr(driver, "_binding_bytes", 1 << 16)
    kernel = copied("a", dtypes.int32)
    (function,) = driver.load_kernels([limited.backend.render(kernel)])
    count, far = 1000, (1 << 20) + 12
    base = driver.allocate(1 << 21)
    data, found = np.arange(count, dtype=np.int32), np.full(count + 2, GUARD, np.int32)
    driver.upload(base + 4, data.ctypes.data, data.nbytes)
    driver.upload(base + far - 4, found.ctypes.data, found.nbytes)
    words = (ctypes.c_uint64 * 4)(base + 4, base + far, 0, count)
    driver.make_launcher(function, 4, 256, 0, words, 2)()
    driver.download(found.ctypes.data, base + far - 4, found.nbytes)
    assert (found[1:-1] == data).all() and found[0] == found[-1] == GUARD
    driver.free(base)
