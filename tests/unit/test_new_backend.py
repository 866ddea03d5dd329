"""A new backend is one entry of the registry; protocols declare all that is called; a vendor's numbers stay with it."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import weft
import weft.nn as nn
from tests.unit.fake_driver import FakeDriver, FakeGpu, HandleDriver
from tests.unit.gpu_harness import set_limits
from weft.backends import registry
from weft.backends.cpu.backend import CpuBackend
from weft.backends.cuda.backend import CudaBackend
from weft.backends.cuda.cublaslt import CublasLt
from weft.backends.cuda.cudnn import Cudnn
from weft.backends.cuda.driver import CudaDriver
from weft.backends.gpu.driver import Driver
from weft.backends.gpu.limits import check_kernel
from weft.backends.hip.backend import HipBackend
from weft.backends.hip.driver import HipDriver
from weft.backends.null import NullBackend
from weft.backends.opencl.backend import OpenClBackend
from weft.backends.opencl.driver import OpenClDriver
from weft.backends.reference import ReferenceBackend
from weft.base.capabilities import Features, Limits
from weft.plan import protocols

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
WEFT = ROOT / "weft"
MAX_EXAMPLE_LINES = 300


# --- registration ----------------------------------------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch):
    """The kind `fake`, registered as a new backend is: by one entry."""
    monkeypatch.setitem(registry.BACKENDS, "fake", ("tests.unit.fake_driver", "FakePlatform"))
    yield weft.device("fake")
    registry._loaded.pop("fake")


def test_a_registered_backend_is_found_by_name_and_trains(fake):
    assert fake.name == "fake:0" and fake is weft.device("fake:0") and fake in weft.devices()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)).astype(np.float32), rng.normal(size=(8, 1)).astype(np.float32)

    def losses(device):
        weft.manual_seed(0)
        with weft.device(device):
            model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
            optimizer = weft.optim.SGD(model.parameters(), lr=0.1)
            found = []
            for _ in range(3):
                loss = ((model(weft.tensor(x)) - weft.tensor(y)) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                found.append(loss.item())
            return found

    np.testing.assert_allclose(losses(fake), losses("cpu"), 1e-5)


def test_the_example_backend_is_short():
    lines = (ROOT / "tests/unit/fake_driver.py").read_text().count("\n")
    assert lines < MAX_EXAMPLE_LINES, lines


# --- protocols -------------------------------------------------------------------------------------------------------


def members(protocol: type) -> set[str]:
    return {name for name in (*vars(protocol), *protocol.__annotations__) if not name.startswith("_")}


IMPLEMENTATIONS = [
    (Driver, CudaDriver),
    (Driver, HipDriver),
    (Driver, OpenClDriver),
    (Driver, FakeDriver),
    (Driver, HandleDriver),
    *[
        (protocols.Backend, kind)
        for kind in (CpuBackend, CudaBackend, HipBackend, OpenClBackend, FakeGpu, NullBackend, ReferenceBackend)
    ],
    *[(protocols.HostMemory, kind) for kind in (CpuBackend, ReferenceBackend)],
    *[(protocols.PeerCopies, kind) for kind in (CudaBackend, HipBackend, OpenClBackend, FakeGpu)],
    (protocols.Interpreter, ReferenceBackend),
    (protocols.Library, Cudnn),
    (protocols.ProductLibrary, CublasLt),
]


def required(function) -> list[str]:
    """The parameters without defaults."""
    return [one.name for one in inspect.signature(function).parameters.values() if one.default is one.empty]


@pytest.mark.parametrize(("protocol", "kind"), IMPLEMENTATIONS, ids=lambda one: one.__name__)
def test_everything_declared_is_implemented_with_these_parameters(protocol, kind):
    for name in members(protocol) - {"name", "version", "failures"}:  # those are of the object
        assert hasattr(kind, name), name
        declared = getattr(protocol, name, None)
        if inspect.isfunction(declared):
            ours = [
                one for one in inspect.signature(getattr(kind, name)).parameters.values() if one.default is one.empty
            ]
            expected = inspect.signature(declared).parameters.values()
            assert [one.name for one in ours] == [one.name for one in expected if one.default is one.empty], name


@pytest.mark.parametrize("protocol", [Driver, *[one for _, one in inspect.getmembers(protocols, inspect.isclass)]])
def test_everything_declared_is_documented(protocol):
    if protocol.__module__ in (protocols.__name__, Driver.__module__):
        methods = [
            one for _, one in inspect.getmembers(protocol, inspect.isfunction) if not one.__name__.startswith("_")
        ]
        assert protocol.__doc__ and all(one.__doc__ for one in methods)


def called_on(receiver: str, folders: tuple[str, ...]) -> dict[str, str]:
    """What modules of `folders` use of a value that is called `receiver`, by name, with one line of each."""
    found: dict[str, str] = {}
    for path in [path for folder in folders for path in (WEFT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and re.fullmatch(rf"(.*\.)?_?{receiver}", ast.unparse(node.value)):
                found.setdefault(node.attr, f"{path.relative_to(ROOT)}:{node.lineno}")
            is_getattr = isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr"
            if is_getattr and re.fullmatch(rf"(.*\.)?{receiver}", ast.unparse(node.args[0])):
                found.setdefault(ast.literal_eval(node.args[1]), f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_what_the_runtime_calls_on_a_driver_is_declared():
    used = called_on("driver", ("backends/gpu",))
    beyond = set(used) - members(Driver)
    assert used and beyond == {"copy_from"}, used  # of `StreamDriver`, for `StreamBackend.receive` alone
    assert not members(Driver) - set(used), "declared, but never called"


def test_what_is_called_on_a_backend_is_declared():
    folders = ("core", "compiler", "jit", "autograd", "random", "functional", "profiling", "train", "data", "cli")
    optional = (protocols.Backend, protocols.HostMemory, protocols.PeerCopies, protocols.Interpreter)
    used = called_on(r"device\.backend|target\.backend", (*folders, "cuda"))
    assert used and not set(used) - {name for one in optional for name in members(one)}, used


# --- limits ----------------------------------------------------------------------------------------------------------


TOO_MUCH = [
    ({"workgroup_size": 8}, "lanes"),
    ({"shared_bytes": 64}, "bytes of shared memory"),
    ({"static_shared_bytes": 64}, "bytes of shared memory"),
    ({"storage_buffers": 1}, "2 buffers"),
]


@pytest.mark.parametrize(("limits", "message"), TOO_MUCH)
def test_a_kernel_that_exceeds_its_device_is_reported(limits, message, monkeypatch):
    gpu = FakeGpu()
    weft.tensor(np.ones((3, 500), np.float32), device=gpu.device).sum(1).numpy()
    (kernel,) = gpu.driver.kernels.values()
    check_kernel(kernel, gpu.device)
    set_limits(monkeypatch, gpu.device, **limits)
    with pytest.raises(weft.DeviceError, match=message):
        check_kernel(kernel, gpu.device)


def test_values_with_more_bindings_than_a_kernel_has_are_reported(monkeypatch):
    gpu = FakeGpu()
    set_limits(monkeypatch, gpu.device, storage_buffers=8, binding_bytes=1024)
    message = "map_mul_1024: given 2 buffers on .*, 10 bindings of 1.0 KiB; expected at most 8 bindings"
    with pytest.raises(weft.DeviceError, match=message):
        (weft.tensor(np.ones(1024, np.float32), device=gpu.device) * 2).numpy()


@pytest.mark.parametrize(
    ("function", "kernel"),
    [
        (lambda x: x * 2, "map_mul"),
        (lambda x: x.sum(), "rows_sum"),
        (lambda x: weft.arange(4096, device=x.device), "map"),
    ],
    ids=["a leaf", "a reduction", "a constant"],
)
def test_a_value_with_more_bindings_than_a_kernel_has_is_reported(function, kernel, monkeypatch):
    """Also where the value alone is too much, so that nothing can be stored to make it fit."""
    gpu = FakeGpu()
    x = weft.tensor(np.ones(4096, np.float32), device=gpu.device)
    set_limits(monkeypatch, gpu.device, storage_buffers=8, binding_bytes=1024)
    with pytest.raises(weft.DeviceError, match=rf"{kernel}.* bindings of 1.0 KiB; expected at most 8 bindings.*Fix"):
        function(x).numpy()


def test_a_dialect_without_parts_of_buffers_refuses_them(monkeypatch):
    gpu = FakeGpu()
    set_limits(monkeypatch, gpu.device, binding_bytes=1024)
    with pytest.raises(weft.DeviceError, match="a buffer in 5 bindings"):
        (weft.tensor(np.ones(1024, np.float32), device=gpu.device) * 2).numpy()


def test_a_device_may_be_described_that_has_less_than_any_cuda_gpu():
    """WebGPU's guaranteed limits."""
    features = Features(workgroups=True, int64_arithmetic=False)
    limits = Limits(storage_buffers=8, binding_bytes=128 << 20, offset_alignment=256, subgroup_sizes=(16, 32))
    assert limits.subgroup_size == 0 and replace(limits, subgroup_sizes=(64,)).subgroup_size == 64
    assert limits.shared_bytes == limits.static_shared_bytes == 16384 and limits.workgroup_size == 256
    assert features.describe() == ["workgroups"] and not features.matrix_units and not features.async_copies


# --- one vendor's numbers --------------------------------------------------------------------------------------------

VENDOR_NUMBERS = {
    49152: "shared memory that a kernel declares", 232448: "shared memory of a workgroup", 65535: "workgroups",
    255: "registers of a lane",
}  # fmt: skip
VENDOR_WORDS = re.compile(
    r"m16n8|ldmatrix|cp\.async|\bwarps?\b|sm_\d\d|\bnvrtc\b|gfx\d|mfma|wmma|\bhiprtc\b", re.IGNORECASE
)
VENDORS = (
    "backends/cuda/",
    "backends/hip/",
    "render/dialects/cuda",
    "render/dialects/hip",
    "render/dialects/__init__",
)  # backend, dialect, table of terms


def engine_modules():
    folders = ("kernels/gpu", "kernels/ir", "compiler", "plan", "render", "backends/gpu")
    for path in sorted(path for folder in folders for path in (WEFT / folder).rglob("*.py")):
        if not path.relative_to(WEFT).as_posix().startswith(VENDORS):
            yield path


def test_numbers_and_words_of_one_vendor_are_in_its_backend():
    found = []
    for path in engine_modules():
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and type(node.value) is int and node.value in VENDOR_NUMBERS:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}: {VENDOR_NUMBERS[node.value]}")
        found += [f"{path.relative_to(ROOT)}: {word}" for word in VENDOR_WORDS.findall(text)]
    assert not found, "\n".join(found)


def test_nothing_checks_for_a_vendor():
    pattern = re.compile(r"\.kind\s*(==|!=|in)\s*\(?[\"'](cuda|hip)")
    found = [path for path in engine_modules() if pattern.search(path.read_text())]
    assert not found
