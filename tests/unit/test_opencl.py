"""OpenCL: what is read from devices, and the driver and the compiler on PoCL, where it is installed."""

from __future__ import annotations

import builtins
import ctypes
import gc
import re
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from tests.unit.networks import Training
from tests.unit.opencl_printing import Printed
from weft.backends.gpu import backend as gpu_backend
from weft.backends.opencl import backend as opencl_backend
from weft.backends.opencl import compile as opencl_compile
from weft.backends.opencl import library, pocl
from weft.backends.opencl.driver import MAX_PENDING_UPLOADS, OpenClDriver
from weft.base import dtypes
from weft.base.tuning import Tuning
from weft.errors import DeviceError, IndexRangeError, OutOfMemoryError
from weft.kernels.ir.language import Geometry
from weft.plan import kept_tuning
from weft.plan.device import Device, DeviceLost
from weft.plan.plan import Code
from weft.render.dialects.opencl import FIXED_SIZE, OPENCL, SHUFFLES, SUBGROUPS

pytestmark = pytest.mark.unit

# --- what devices say ------------------------------------------------------------------------------------------------


@pytest.fixture
def described(monkeypatch) -> dict[str, Any]:
    """What a GPU of OpenCL 2.1 with subgroups says of itself; tests change it."""
    found = {
        "extensions": " ".join((SUBGROUPS, SHUFFLES, FIXED_SIZE)), "type": library.DEVICE_TYPE_GPU,
        "version": "OpenCL 2.1 NEO", "workgroup_size": 512, "local_memory": 65536,
    }  # fmt: skip
    monkeypatch.setattr("weft.backends.opencl.library.query", lambda handle, name: found.get(name, 0))
    monkeypatch.setattr("weft.backends.opencl.library.subgroup_sizes", lambda handle: [8, 16, 32, 64])
    return found


def test_subgroups_only_where_lanes_exchange_values_and_the_size_is_known(described):
    limits = opencl_backend.limits(0, 1 << 20)
    assert limits.subgroup_sizes == (32,) and limits.workgroup_size == 512 and limits.allocation_bytes == 1 << 20
    assert dtypes.float64 not in opencl_backend.supported_dtypes(0)
    described["extensions"] = " ".join((SUBGROUPS, SHUFFLES))  # the compiler chooses the size
    assert opencl_backend.limits(0, 1 << 20).subgroup_sizes == ()


def test_subgroups_of_opencl_3_need_no_extension(described):
    """They are an optional part of the language there, and a number of them says that they are supported."""
    described |= {"extensions": f"{SHUFFLES} {FIXED_SIZE}", "version": "OpenCL 3.1 (Build 0)", "max_subgroups": 2048}
    assert opencl_backend.subgroup_size(0) == 32
    described["max_subgroups"] = 0
    assert opencl_backend.subgroup_size(0) == 0


@pytest.mark.parametrize(
    ("version", "subgroups", "option"),
    [("1.2 CUDA", 0, "CL1.2"), ("3.0 CUDA", 0, "CL1.2"), ("2.1 NEO", 32, "CL2.0"), ("3.0 NEO", 32, "CL3.0"),
     ("3.1 (Build 0)", 32, "CL3.0"), ("1.2", 0, "CL1.2"), ("nonsense", 0, "CL1.2")],
)  # fmt: skip
def test_the_language_that_declares_shuffles(described, version, subgroups, option):
    described |= {"version": f"OpenCL {version}", "extensions": described["extensions"] if subgroups else ""}
    assert opencl_backend.subgroup_size(0) == subgroups
    assert opencl_compile.standard(library.version(0), bool(subgroups)) == f"-cl-std={option}"


def test_no_subgroups_before_opencl_2(described):
    described["version"] = "OpenCL 1.2"
    assert opencl_backend.subgroup_size(0) == 0


def test_tuning_by_class_of_devices(described, monkeypatch):
    """Small launches are not joined for Intel's CPUs, whose compiler fails at some kernels of dozens of barriers."""
    platforms = {"Intel(R) OpenCL": opencl_backend.SOFTWARE_TUNING, library.POCL: opencl_backend.POCL_TUNING}
    assert opencl_backend.tuning(0) == Tuning()
    described["type"] = library.DEVICE_TYPE_CPU
    for name, tuning in platforms.items():
        monkeypatch.setattr(library, "platform_name", lambda handle, name=name: name)
        assert opencl_backend.is_software(0) and opencl_backend.tuning(0) == tuning
    assert opencl_backend.SOFTWARE_TUNING.max_batched_launches == 1


def test_iterations_keep_their_order_where_a_compiler_makes_vectors_of_them(described, monkeypatch):
    """Intel's compiler for CPUs does, and adds in another order: eager and compiled steps differed in the last bits."""
    monkeypatch.setattr(library, "platform_name", lambda handle: described["platform_name"])
    gpu, cpu = library.DEVICE_TYPE_GPU, library.DEVICE_TYPE_CPU
    loops = {}
    for kind, name in ((gpu, "Intel(R) OpenCL Graphics"), (cpu, library.POCL), (cpu, "Intel(R) OpenCL")):
        described |= {"type": kind, "platform_name": name}
        printed = Printed()
        printed.dialect = opencl_backend.dialect(0)
        with weft.device(printed.device):
            weft.eval(weft.ones(15, 16) @ weft.ones(16, 17), weft.ones(40, 500).softmax(1))
        lines = [line.strip() for code in printed.codes for line in code.text.splitlines()]
        loops[name] = [line for line in lines if re.search(r"\bfor \(", line)]
    ordered = [
        line for line in loops["Intel(R) OpenCL"] if line.startswith('_Pragma("clang loop vectorize(disable)") for (')
    ]
    assert len(ordered) == len(loops["Intel(R) OpenCL"]) > 2
    assert all(line.startswith("for (") for name in (library.POCL, "Intel(R) OpenCL Graphics") for line in loops[name])


# --- PoCL on a processor that its LLVM does not know ---


@pytest.fixture
def unknown_processor(monkeypatch):
    """The words of a device of PoCL that a new processor makes 'generic'; the third is the pointer to that name, after
    the one to the target. The same name lies elsewhere, too."""
    found = {"version": "OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-generic", "platform": 1}
    monkeypatch.setattr(library, "query", lambda handle, name: found.get(name, 0))
    monkeypatch.setattr(library, "platform_name", lambda handle: library.POCL)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(pocl, "_names", {})
    texts = [ctypes.create_string_buffer(text) for text in (b"x86_64-unknown-linux-gnu", b"generic")]
    target, name = map(ctypes.addressof, texts)
    words = (ctypes.c_uint64 * (pocl.DESCRIPTION_BYTES // 8 + 1))(1, target, name, 0x5000, 2**63, name)
    return words, texts, found


def test_pocl_gets_the_name_of_a_processor_that_it_knows(unknown_processor):
    words, _, _ = unknown_processor
    before = list(words)
    pocl.name_unknown_processor(ctypes.addressof(words))
    assert ctypes.string_at(words[2]).decode() in [name for _, name in pocl.NAMES]
    assert [*words[:2], before[2], *words[3:]] == before


def test_other_devices_of_opencl_are_left_alone(unknown_processor, monkeypatch):
    words, _, found = unknown_processor
    before = list(words)
    found["version"] = "OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-znver3"
    pocl.name_unknown_processor(ctypes.addressof(words))
    found["version"] = found["version"].replace("znver3", "generic")
    monkeypatch.setattr(library, "platform_name", lambda handle: "NVIDIA CUDA")
    pocl.name_unknown_processor(ctypes.addressof(words))
    assert list(words) == before


def test_a_pocl_that_cannot_be_given_a_name_is_refused(unknown_processor):
    words, _, _ = unknown_processor
    words[4] = words[1]  # two places: which one it is cannot be known
    before = list(words)
    with pytest.raises(DeviceError, match="does not know this processor"):
        pocl.name_unknown_processor(ctypes.addressof(words))
    assert list(words) == before


# --- PoCL ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def device() -> Device:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed: pip install 'pyopencl[pocl]'")
    try:
        return weft.get_device("opencl")
    except DeviceError as error:
        pytest.skip(str(error))


def test_the_description_of_an_emulated_device_stays(device, monkeypatch):
    """It is part of the name of what is kept for the device; PoCL's memory differs from process to process."""
    if not device.is_software:
        pytest.skip("a real GPU")
    query = library.query
    changed = {"memory": 3 << 30, "largest_allocation": 1 << 30}
    monkeypatch.setattr(library, "query", lambda handle, name: changed.get(name) or query(handle, name))
    other = opencl_backend.OpenClBackend(device.backend.driver.handle).device
    try:
        assert other.limits.allocation_bytes == 1 << 30
        assert other.description == device.description
        assert kept_tuning._key(other) == kept_tuning._key(device)
    finally:
        other.backend.driver.close()
        gpu_backend._backends.discard(other.backend)


def test_a_tensor_by_name(device):
    x = weft.tensor([1.0, 2.0], device="opencl:0")
    assert x.device is device and (x * 3 + 1).tolist() == [4.0, 7.0]
    assert device.is_software == ("CPU" in device.description or "software" in device.description)
    assert x.to("cpu").to("opencl").tolist() == [1.0, 2.0]


def test_an_mlp_trains_as_on_the_cpu_and_stays_on_the_device(device):
    def train(where, steps):
        with weft.device(where):
            training = Training("mlp")
            losses = [training.step() for _ in range(steps)]
            return np.array([loss.item() for loss in losses]), training.state()

    (losses, state), (expected, weights) = train(device, 6), train("cpu", 6)
    np.testing.assert_allclose(losses, expected, 0, 1e-5 * np.abs(expected).max())
    for ours, theirs in zip(state, weights, strict=True):
        np.testing.assert_allclose(ours, theirs, 0, 1e-4 * np.abs(theirs).max())
    again, bits = train(device, 6)
    assert again.tolist() == losses.tolist() and all((a == b).all() for a, b in zip(bits, state, strict=True))
    with weft.device(device):
        training = Training("mlp")
        for _ in range(4):
            training.step()
        before = weft.counters()
        for _ in range(10):
            training.step()
        device.backend.synchronise()
        after = weft.counters()
    moved = {name: after[name] - before[name] for name in ("uploads", "downloads", "plans_built", "kernels_compiled")}
    assert not any(moved.values()), moved


def in_use(device: Device) -> int:
    gc.collect()
    device.backend.synchronise()
    return device.backend.bytes_in_use


def test_memory_does_not_grow_and_is_freed(device):
    before = in_use(device)
    with weft.device(device):
        x = weft.ones(1000)
        step = weft.compile(lambda x: x * 0.5 + 1)
        for _ in range(20):
            x = step(x)
        used, reserved = in_use(device), device.backend.driver.reserved_bytes()
        for _ in range(300):
            x = step(x)
        assert in_use(device) <= used and device.backend.driver.reserved_bytes() <= reserved
        assert abs(x.numpy() - 2).max() < 1e-6
    del x, step
    assert in_use(device) <= before
    device.backend.empty_cache()
    assert device.backend.driver.pool.unused == 0


def test_views_begin_anywhere(device):
    """A view is the offset of a memory object, of any alignment."""
    array = np.arange(1003, dtype=np.float32)
    with weft.device(device):
        x = weft.tensor(array)
        step = weft.compile(lambda x: x[3:] * 2 + x[:-3])
        for _ in range(4):
            np.testing.assert_array_equal(step(x).numpy(), array[3:] * 2 + array[:-3])
        short = array.astype(np.uint8)
        words = weft.tensor(short)
        np.testing.assert_array_equal((words[1:] + words[:-1]).numpy(), short[1:] + short[:-1])


def test_copies_of_host_memory_on_their_way_are_bounded(device):
    """Also where each is small: a step that draws random numbers uploads eight bytes, and the host may run ahead."""
    driver, data = device.backend.driver, np.arange(2, dtype=np.int32)
    pointer = driver.allocate(data.nbytes)
    for _ in range(2000):
        driver.upload(pointer, data.ctypes.data, data.nbytes)
        assert len(driver._pending) <= MAX_PENDING_UPLOADS + 1
    found = np.empty_like(data)
    driver.download(found.ctypes.data, pointer, data.nbytes)
    assert found.tolist() == [0, 1] and not driver._pending
    driver.free(pointer)


def test_events_measure_time(device):
    driver = device.backend.driver
    first, last = driver.create_event(), driver.create_event()
    pointer = driver.allocate(1 << 22)
    driver.record_event(first)
    driver.clear(pointer, 1 << 22)
    driver.record_event(last)
    driver.synchronise()
    assert 0 < driver.seconds_between(first, last) < 10
    driver.free(pointer)


def test_a_kernel_that_does_not_compile_is_named_and_shown(device):
    text = f"{OPENCL.header}\n\n// k\n__kernel void k(__global float* x)\n{{\n    x[0] = nothing_here;\n}}\n"
    good = f"{OPENCL.header}\n\n// g\n__kernel void g(__global float* x)\n{{\n    x[0] = 1;\n}}\n"

    def code(name: str, symbol: str, text: str) -> Code:
        return Code(name, symbol, (), Geometry(64, 64), zlib.compress(text.encode()))

    with pytest.raises(DeviceError, match="broken_map") as caught:
        device.backend.driver.load_kernels([code("good_map", "g", good), code("broken_map", "k", text)])
    assert "nothing_here" in str(caught.value) and "   6  " in str(caught.value)
    assert "nothing_here" not in str(caught.value.__context__)  # Python shows what was being handled, too
    assert device.backend.driver.load_kernels([code("good_map", "g", good)])


def test_a_kernel_object_that_cannot_be_created_is_reported_once(device):
    """And its remains report nothing: an error in a finalizer would be an ignored one."""
    driver = device.backend.driver
    text = f"{OPENCL.header}\n\n// h\n__kernel void here(__global float* x)\n{{\n    x[0] = 1;\n}}\n"
    (function,) = driver.load_kernels([Code("here", "here", (), Geometry(1, 1), zlib.compress(text.encode()))])
    missing = SimpleNamespace(program=function.program, name="missing", scalar_bytes=[8, 8])
    with pytest.raises(DeviceError, match=r"missing: given a kernel that .* does not load"):
        driver.make_launcher(missing, 1, 1, 0, (ctypes.c_uint64 * 3)(), 1)
    gc.collect()


def test_a_driver_that_is_registered_twice_is_one_platform(monkeypatch):
    def ids(count, handles, found):
        if handles is None:
            ctypes.c_uint32.from_address(found).value = 3
        else:
            handles[:] = [11, 22, 11]
        return 0

    monkeypatch.setattr(library, "loader", lambda: SimpleNamespace(clGetPlatformIDs=ids))
    assert library.platforms() == [11, 22]


def test_why_there_is_no_device(monkeypatch):
    """No driver, drivers without a device, and devices that no kernel can be compiled for."""
    monkeypatch.setattr(library, "query", lambda handle, name: 0)
    monkeypatch.setattr(library, "platform_name", lambda platform: f"Driver {platform}")
    for platforms, devices, reason in [
        ([], [], "no OpenCL driver is installed. Install"),
        ([1, 2], [], r"the OpenCL drivers here \(Driver 1, Driver 2\) find no device. .* the group 'render'"),
        ([1], [5], "none is available and compiles kernels. Update"),
    ]:
        monkeypatch.setattr(library, "platforms", lambda found=platforms: found)
        monkeypatch.setattr(library, "devices", lambda platform, found=devices: found)
        assert re.search(reason, opencl_backend.OpenCl().reason)


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (ModuleNotFoundError("No module named 'pyopencl'"), "of the system (No module named 'pyopencl')"),
        (
            RuntimeError("compiled against ABI version 1"),
            "of the system (RuntimeError: compiled against ABI version 1)",
        ),
    ],
)
def test_a_pyopencl_that_cannot_be_imported(monkeypatch, raised, said):
    """A loader of the system takes its place; where that is none, or no library, there are no devices."""

    original = builtins.__import__

    def fail(name, *args, **about):
        if name.startswith("pyopencl"):
            raise raised
        return original(name, *args, **about)

    monkeypatch.setattr(library, "loader", library.loader.__wrapped__)
    monkeypatch.setattr(builtins, "__import__", fail)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    assert opencl_backend.OpenCl().reason.endswith(f"{said}. Install it: pip install 'weft[opencl]'")
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: "libnothing_here.so.1")
    assert "the loader of the system, libnothing_here.so.1, cannot be used" in opencl_backend.OpenCl().reason


def test_integrated_gpus_follow_others_and_software_comes_last(monkeypatch):
    cpu, gpu = library.DEVICE_TYPE_CPU, library.DEVICE_TYPE_GPU
    types = {1: (cpu, 1), 2: (8, 0), 3: (gpu, 1), 4: (gpu, 0), 5: (gpu, 0)}  # handle: type, whether it shares memory

    def query(handle, name):
        return {"type": types[handle][0], "shares_host_memory": types[handle][1]}.get(name, 1)

    monkeypatch.setattr(library, "query", query)
    monkeypatch.setattr(library, "platforms", lambda: [0])
    monkeypatch.setattr(library, "devices", lambda platform: list(types))
    monkeypatch.setattr(opencl_backend, "OpenClBackend", lambda handle, number: SimpleNamespace(device=handle))
    assert list(opencl_backend.OpenCl().devices()) == [4, 5, 3, 2, 1]
    assert [opencl_backend.is_integrated(handle) for handle in (1, 2, 3, 4)] == [False, False, True, False]


def test_a_device_that_is_lost_while_kernels_compile(device, monkeypatch):
    def lose(name, *args):
        if name == "clBuildProgram":
            raise DeviceLost(name)
        return call(name, *args)

    text = f"{OPENCL.header}\n\n// h\n__kernel void h(__global float* x)\n{{\n    x[0] = 1;\n}}\n"
    call = opencl_compile.call
    monkeypatch.setattr(opencl_compile, "call", lose)
    with pytest.raises(DeviceLost):
        device.backend.driver.load_kernels([Code("h", "h", (), Geometry(64, 64), zlib.compress(text.encode()))])


def test_too_much_memory_is_an_error_that_leaves_the_device_working(device):
    with weft.device(device), pytest.raises(OutOfMemoryError, match="TiB"):
        weft.eval(weft.zeros(1 << 40, dtype=weft.uint8))
    assert weft.ones(3, device=device).sum().item() == 3.0


def test_a_cpu_gives_no_more_memory_than_is_free(device, monkeypatch):
    """Intel's driver says how much the machine has: the process was killed instead of told."""
    monkeypatch.setattr("weft.base.host_memory.memory", lambda: (1 << 28, 1 << 40))
    driver = OpenClDriver(device.backend.driver.handle)
    try:
        assert driver.memory() == (1 << 28, 1 << 28)
        with pytest.raises(OutOfMemoryError, match=r"256\.0 MiB, which are available"):
            driver.allocate_arena(1 << 29)
    finally:
        driver.close()


def test_an_index_out_of_range_is_reported(device):
    with weft.device(device):
        x, index = weft.ones(5), weft.tensor([1, 7])
        with pytest.raises(IndexRangeError):
            x[index].numpy()
        assert x.sum().item() == 5.0


def test_a_device_that_does_not_start_leaves_nothing_behind(device, monkeypatch):
    made, released = [], []

    def create(name, *args):
        made.append((name, library.create(name, *args)))
        return made[-1][1]

    def call(name, *args):
        if name.startswith("clRelease"):
            released.append((name.replace("Release", "Create"), args[0]))
        library.call(name, *args)

    def fail(*args):
        raise DeviceError("no compiler answers")

    for name, replacement in (("create", create), ("call", call), ("Compiler", fail)):
        monkeypatch.setattr(f"weft.backends.opencl.driver.{name}", replacement)
    with pytest.raises(DeviceError, match="no compiler answers"):
        OpenClDriver(device.backend.driver.handle)
    assert [name for name, _ in made] == ["clCreateContext", "clCreateCommandQueue"]
    assert sorted(released) == sorted(made)
