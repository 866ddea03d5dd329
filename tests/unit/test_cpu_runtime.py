"""The CPU backend: memory, plans, the worker team (same bits for any thread count), products, fork, the disk cache."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

from tests.unit.kernel_harness import FLOAT, INT, backend, begin, end, kernel_of, launch_of, load, op, plan_of, table
from weft.backends.cpu import blas, jit, memory_pool, worker_team
from weft.base import dtypes
from weft.base.counters import COUNTERS
from weft.errors import DeviceError, RangeError
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, axis_index
from weft.kernels.ir.language import (
    TILE_RANGES,
    Accumulator,
    BufferParam,
    Kernel,
    Literal,
    Load,
    Loop,
    Reduction,
    Store,
    Update,
    Var,
)
from weft.kernels.math import functions as km
from weft.plan.device import Buffer
from weft.plan.plan import Gemm, Launch, Place

rng = np.random.default_rng(2)


@pytest.fixture(autouse=True)
def _own_thread_count():
    """Leave the team as it was found."""
    before = worker_team.runtime().threads
    yield
    if worker_team.runtime().threads != before:
        worker_team.runtime().set_threads(before)


# --- memory ---


def test_allocations_are_aligned_and_reused():
    first = backend.allocate(1000)
    address = first.pointer
    assert address % 64 == 0 and first.nbytes == 1000
    assert backend.allocate(0).pointer % 64 == 0
    del first
    assert backend.allocate(990).pointer == address


def test_live_allocations_do_not_overlap():
    slabs = [backend.allocate(size) for size in (1, 64, 65, 300, 5000, 1 << 20) for _ in range(5)]
    spans = sorted((slab.pointer, slab.pointer + slab.nbytes) for slab in slabs)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_size_classes_waste_at_most_a_quarter():
    for nbytes in (1, 64, 65, 256, 257, 1000, 4097, 10**6, 2**20, 2**20 + 1):
        size = memory_pool.size_class(nbytes)
        assert size >= nbytes and size % 32 == 0 and size <= max(1.25 * nbytes + 64, 64)


def test_transfers_copy_and_are_counted():
    slab = backend.allocate(64)
    buffer = Buffer(slab, 16, 24)
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    before = COUNTERS.snapshot()
    backend.upload(buffer, np.asfortranarray(array))
    found = backend.download(buffer, (2, 3), FLOAT)
    np.testing.assert_array_equal(found, array)
    backend.upload(buffer, array + 1)
    np.testing.assert_array_equal(found, array)
    after = COUNTERS.snapshot()
    assert (after["uploads"] - before["uploads"], after["upload_bytes"] - before["upload_bytes"]) == (2, 48)
    assert (after["downloads"] - before["downloads"], after["download_bytes"] - before["download_bytes"]) == (1, 24)
    other = Buffer(backend.allocate(24), 0, 24)
    backend.copy(other, buffer)
    np.testing.assert_array_equal(backend.download(other, (2, 3), FLOAT), array + 1)
    with pytest.raises(DeviceError, match="upload: given an array of 4 bytes; expected 24 bytes"):
        backend.upload(buffer, array[:1, :1])


# --- plans ---


def exponentials(n):
    """out = exp(x), a chunk at a time."""
    i = Axis("i", n)
    body = (Loop(i, begin, end, "vector", (Store("out", axis_index(i), km.exp(load("x", axis_index(i)))),), 16),)
    return kernel_of("exp", {"x": np.zeros(1, "f")}, {"out": np.zeros(1, "f")}, body)


def row_sums(rows, columns):
    r, c = Axis("r", rows), Axis("c", columns, "reduce")
    value = load("x", r * columns + c)
    reduction = Reduction(
        (Accumulator("a", "sum", FLOAT),), (Loop(c, 0, columns, "vector", (Update("a", value),), 16),)
    )
    body = (Loop(r, begin, end, "task", (reduction, Store("out", axis_index(r), Var("a", FLOAT)))),)
    return kernel_of("sums", {"x": np.zeros(1, "f")}, {"out": np.zeros(1, "f")}, body)


def three_steps(rows, columns, work=1 << 30):
    """y = exp(x); s = sums of rows of y; t = exp(s): each step needs the one before."""
    n = rows * columns
    return plan_of(
        launch_of(exponentials(n), n, 1000, places=(Place(0, 0), Place(1, 0)), work=work),
        launch_of(row_sums(rows, columns), rows, 3, places=(Place(1, 0), Place(2, 0)), work=work),
        launch_of(exponentials(rows), rows, 16, places=(Place(2, 0), Place(3, 0)), work=work),
    )


def arrays_of(rows, columns):
    return [
        (rng.standard_normal(rows * columns) * 0.1 - 4).astype("f"),
        *(np.zeros(n, "f") for n in (rows * columns, rows, rows)),
    ]


def test_thread_counts_give_the_same_bits():
    rows, columns = 101, 203
    executable = backend.executable(three_steps(rows, columns))
    arrays = arrays_of(rows, columns)
    results = []
    for threads in (1, 2, 4, 7):
        worker_team.runtime().set_threads(threads)
        for _ in range(50):
            for array in arrays[1:]:
                array[:] = np.nan
            executable.run(table(arrays))
            results.append(b"".join(array.tobytes() for array in arrays))
    assert len(set(results)) == 1
    exact = np.exp(arrays[0].astype("d")).reshape(rows, columns).sum(1)
    np.testing.assert_allclose(arrays[2], exact, rtol=1e-6)
    np.testing.assert_allclose(arrays[3], np.exp(exact), rtol=2e-5)


def test_a_tiny_plan_equals_a_shared_one():
    arrays = arrays_of(101, 203)
    worker_team.runtime().set_threads(2)
    results = []
    for work in (0, 1 << 30):
        backend.executable(three_steps(101, 203, work)).run(table(arrays))
        results.append(arrays[3].tobytes())
    assert results[0] == results[1]


def test_empty_plans_and_empty_steps_run():
    backend.executable(plan_of()).run(backend.slot_table(0))
    executable = backend.executable(plan_of(launch_of(exponentials(10), 0)))
    executable.run(table([np.zeros(1, "f"), np.zeros(1, "f")]))


def test_counters_of_runs_and_kernels():
    plan = three_steps(11, 13)
    before = COUNTERS.snapshot()
    executable = backend.executable(plan)
    arrays = arrays_of(11, 13)
    for _ in range(3):
        executable.run(table(arrays))
    backend.executable(plan)
    after = COUNTERS.snapshot()
    assert after["plans_run"] - before["plans_run"] == 3
    assert after["launches"] - before["launches"] == 9
    assert after["kernels_reused"] - before["kernels_reused"] >= 3


def test_concurrent_callers_get_their_own_results():
    worker_team.runtime().set_threads(2)
    executable = backend.executable(three_steps(101, 203))
    failures = []

    def caller(seed):
        own = np.random.default_rng(seed)
        arrays = [
            (own.standard_normal(101 * 203) * 0.1 - 4).astype("f"),
            *(np.zeros(n, "f") for n in (101 * 203, 101, 101)),
        ]
        expected = np.exp(arrays[0].astype("d")).reshape(101, 203).sum(1)
        slots = table(arrays)
        for _ in range(100):
            arrays[2][:] = 0
            executable.run(slots)
            if not np.allclose(arrays[2], expected, rtol=1e-5):
                failures.append(seed)

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --- products ---


def product(m, n, k, *, batch=1, dtype=FLOAT, ta=False, tb=False, tile=(64, 48), epilogue=None, repeat_b=False):
    size = dtype.itemsize
    return Gemm(
        "product", dtype, batch, m, n, k, Place(0, size), Place(1, 0), Place(2, 2 * size),
        m if ta else k, k if tb else n, n, ta, tb, m * k, 0 if repeat_b else k * n, m * n, *tile, epilogue, 1 << 30, 0,
    )  # fmt: skip


def multiply(step, dtype=FLOAT, more=()):
    """Run one product on random matrices; the operands as they are multiplied, and the result."""
    b = step.batch
    a = rng.standard_normal(1 + b * step.m * step.k).astype(dtype.numpy)
    w = rng.standard_normal(max((b if step.stride_b else 1) * step.k * step.n, 1)).astype(dtype.numpy)
    c = np.full(2 + b * step.m * step.n, 9.0, dtype.numpy)
    backend.executable(plan_of(step)).run(table([a, w, c, *more]))
    left = a[1:].reshape(b, *((step.k, step.m) if step.transpose_a else (step.m, step.k)))
    copies = b if step.stride_b else 1
    right = w[: copies * step.k * step.n]
    right = right.reshape(copies, *((step.n, step.k) if step.transpose_b else (step.k, step.n)))
    left = left.swapaxes(1, 2) if step.transpose_a else left
    right = right.swapaxes(1, 2) if step.transpose_b else right
    assert (c[:2] == 9).all()
    return left, right, c[2:].reshape(b, step.m, step.n)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_tiled_product(dtype, ta, tb, own, monkeypatch):
    if own:
        addresses = jit.jit().runtime_addresses
        names = {dtypes.float32: "weft_sgemm", dtypes.float64: "weft_dgemm"}
        monkeypatch.setattr(worker_team.runtime(), "products", {key: addresses[name] for key, name in names.items()})
    for m, n, k, batch in ((100, 70, 33, 1), (5, 3, 2, 4), (64, 48, 1, 2)):
        left, right, found = multiply(product(m, n, k, batch=batch, dtype=dtype, ta=ta, tb=tb), dtype)
        np.testing.assert_allclose(
            found, left.astype("d") @ right.astype("d"), rtol=1e-4, atol=1e-4 if dtype is FLOAT else 1e-12
        )


def test_product_with_a_repeated_operand():
    left, right, found = multiply(product(20, 30, 10, batch=3, repeat_b=True))
    np.testing.assert_allclose(found, left @ right, rtol=1e-4, atol=1e-5)


def test_product_over_nothing_is_zero():
    _, _, found = multiply(product(100, 70, 0, batch=2))
    assert (found == 0).all()


def test_product_bits_do_not_depend_on_threads():
    step, results = product(300, 200, 150), []
    a, w = rng.standard_normal(1 + 300 * 150).astype("f"), rng.standard_normal(150 * 200).astype("f")
    for threads in (1, 2, 4):
        worker_team.runtime().set_threads(threads)
        c = np.zeros(2 + 300 * 200, "f")
        backend.executable(plan_of(step)).run(table([a, w, c]))
        results.append(c.tobytes())
    assert len(set(results)) == 1


def test_epilogue_runs_on_every_tile():
    m, n, k, batch = 100, 70, 33, 2
    b, i, j = Axis("batch", batch), Axis("i", m), Axis("j", n)
    place = ix.linearise((axis_index(b), axis_index(i), axis_index(j)), (batch, m, n))
    value = op("max", op("add", Load("c", place, FLOAT), load("bias", axis_index(j))), Literal(0.0, FLOAT))
    inner = Loop(j, Var("col0", INT), Var("col1", INT), "vector", (Store("out", place, value),), 16)
    body = (Loop(i, Var("row0", INT), Var("row1", INT), "serial", (inner,)),)
    buffers = (BufferParam("c", FLOAT, False), BufferParam("bias", FLOAT, False), BufferParam("out", FLOAT, True))
    kernel = Kernel("bias_relu", buffers, (), TILE_RANGES, body)
    epilogue = Launch(kernel, (Place(2, 8), Place(3, 0), Place(4, 0)), (), 0, 1, 0, 0)
    bias, out = rng.standard_normal(n).astype("f"), np.full((batch, m, n), np.nan, "f")
    left, right, _ = multiply(product(m, n, k, batch=batch, epilogue=epilogue), more=(bias, out))
    np.testing.assert_allclose(out, np.maximum(left @ right + bias, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(blas.find() is None, reason="this NumPy has no OpenBLAS")
def test_blas_threads_are_put_back():
    library = blas.find().library
    getter, setter = library.scipy_openblas_get_num_threads64_, library.scipy_openblas_set_num_threads64_
    before = getter()
    try:
        setter(2)
        multiply(product(100, 70, 33))
        assert getter() == 2
    finally:
        setter(before)


# --- life of the team ---


def is_idle():
    """Whether no thread of this process computes for half a second."""
    before = time.process_time()
    time.sleep(0.5)
    return time.process_time() - before < 0.05


def test_workers_sleep_when_idle():
    worker_team.runtime().set_threads(4)
    executable, arrays = backend.executable(three_steps(101, 203)), arrays_of(101, 203)
    executable.run(table(arrays))
    assert any(is_idle() for _ in range(20))  # on a busy machine a worker may fall asleep late
    arrays[3][:] = np.nan
    executable.run(table(arrays))
    assert np.isfinite(arrays[3]).all()


def test_a_forked_child_has_a_team_of_its_own():
    worker_team.runtime().set_threads(2)
    executable, arrays = backend.executable(three_steps(101, 203)), arrays_of(101, 203)
    slots = table(arrays)
    executable.run(slots)
    expected = arrays[3].copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        arrays[3][:] = 0
        for _ in range(20):
            executable.run(slots)
        right = arrays[3].tobytes() == expected.tobytes()
        os._exit(0 if right and len(os.listdir("/proc/self/task")) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    executable.run(slots)
    assert arrays[3].tobytes() == expected.tobytes()


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from tests.unit.test_cpu_runtime import *
executable, arrays = backend.executable(three_steps(101, 203)), arrays_of(101, 203)
executable.run(table(arrays))
{extra}
print(COUNTERS.kernels_compiled, COUNTERS.kernels_from_disk, arrays[3].sum() > 0)
"""


def script(folder, extra="", **environment):
    """Run the three steps in a new process; what it printed."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    settings = {**os.environ, "WEFT_CACHE_DIR": str(folder), **environment}
    code = SCRIPT.format(root=root, extra=extra)
    done = subprocess.run(
        [sys.executable, "-c", code], env=settings, capture_output=True, text=True, timeout=300, cwd=root
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_process_ends_cleanly_while_a_daemon_runs_plans(tmp_path):
    extra = (
        "threading.Thread(target=lambda: [executable.run(table(arrays)) for _ in iter(int, 1)], daemon=True).start()"
    )
    assert script(tmp_path, extra + "; time.sleep(0.1)", WEFT_NUM_THREADS="3")[2] == "True"


def test_disk_cache_is_used_and_damage_is_repaired(tmp_path):
    assert script(tmp_path)[:2] == ["2", "0"]  # the two exponentials are one kernel
    assert script(tmp_path)[:2] == ["0", "2"]
    files = list(tmp_path.rglob("*.object"))
    assert len(files) == 3
    contents = {path: path.read_bytes() for path in files}
    for number, path in enumerate(files):
        damaged = bytearray(contents[path])
        damaged[-1] ^= 1
        path.write_bytes([bytes(damaged), contents[path][:100], b""][number])
    assert script(tmp_path) == ["2", "0", "True"]
    assert {path: path.read_bytes() for path in files} == contents


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert script(blocked / "cache")[2] == "True"


@pytest.mark.parametrize("text", ["many", "0", "-1", "1.5"])
def test_a_thread_count_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("WEFT_NUM_THREADS", text)
    with pytest.raises(RangeError, match=r"WEFT_NUM_THREADS: given .* expected a whole number above 0"):
        worker_team.thread_count()


def test_thread_count_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("WEFT_NUM_THREADS", raising=False)
    assert worker_team.thread_count() == 3
    monkeypatch.setenv("WEFT_NUM_THREADS", "5")
    assert worker_team.thread_count() == 5
    monkeypatch.delenv("WEFT_NUM_THREADS")
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert worker_team.thread_count() == len(os.sched_getaffinity(0))


def test_an_executable_frees_what_it_holds():
    executable = backend.executable(three_steps(11, 13))
    del executable
    gc.collect()
    arrays = arrays_of(11, 13)
    backend.executable(three_steps(11, 13)).run(table(arrays))
    assert np.isfinite(arrays[3]).all()
