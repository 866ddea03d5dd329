"""What goes wrong on a real GPU, each in a process of its own: a device that is lost, forks, the end of the process.
Threads, and uploads beside a run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import weft

ROOT = Path(__file__).parents[2]
START = """
import gc, os, sys, weft
gpu = weft.get_device(sys.argv[1])
x = weft.ones(1000, 1000, device=gpu)
step = weft.compile(lambda x: (x / x.sum(0)).exp())
for _ in range(3):
    step(x)
kept = step(x).numpy()
"""
LOSE = """
variant = step.last
for slot, form in enumerate(variant.entry.plan.slots):
    if form.kind == "output":
        variant.table[slot] = 4096  # an address that is not allocated
try:
    variant.run(variant.table)
    gpu.backend.synchronise()
except weft.DeviceError as error:
    print(error)
    print(*[kernel.name for kernel in step.plan.kernels()])
"""
FORK = """
child = os.fork()
try:
    print(float(x.numpy().sum()))
except weft.DeviceError as error:
    print(error)
del x
gc.collect()
if not child:
    sys.stdout.flush()
    os._exit(0)
print(os.waitpid(child, 0)[1], step(weft.ones(1000, 1000, device=gpu)).numpy().shape)
"""


def said(gpu, code: str, **environment: str) -> str:
    """What a process prints that ends well and complains about nothing."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | environment
    command = [sys.executable, "-c", START + code, gpu.name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.needs("cuda")  # elsewhere a wrong address is found by the backend, or ends the process
def test_a_device_that_is_lost_is_reported_with_what_ran(gpu):
    *text, names = said(gpu, LOSE).splitlines()
    assert f"these ran: {', '.join(names.split())}" in "\n".join(text) and "WEFT_SYNC=1" in text[-1]


@pytest.mark.needs("cuda")
def test_waiting_for_each_step_finds_the_kernel(gpu):
    *text, names = said(gpu, LOSE, WEFT_SYNC="1").splitlines()
    assert text[0].startswith(tuple(f"{name}: given" for name in names.split())) and "__global__" in "\n".join(text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_to_start_anew(gpu):
    lines = said(gpu, FORK, PYTHONWARNINGS="ignore").splitlines()
    assert sorted(lines)[0] == "0 (1000, 1000)" and "1000000.0" in lines
    assert sum("forked" in line and "'spawn'" in line for line in lines) == 1


def test_the_process_ends_quietly_with_live_tensors(gpu):
    assert said(gpu, "import sys; sys.kept = (gpu, step, x, step(x))") == ""


def test_threads_share_a_device(gpu):
    x = weft.tensor(np.random.default_rng(0).normal(size=(300, 400)).astype(np.float32))
    steps = [weft.compile(lambda x, k=k: ((x / (x * x).sum(0)) * k).exp().sum(1)) for k in (1.0, 2.0)]
    expected = [step(x).numpy() for step in steps]
    wrong = []

    def work(number: int) -> None:
        for _ in range(200):
            if steps[number](x).numpy().tobytes() != expected[number].tobytes():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.serial
@pytest.mark.needs("cuda")  # asks CUDA's streams what runs
def test_uploads_do_not_wait_for_what_runs(gpu):
    from weft.backends.cuda import driver as cuda_driver

    x = weft.ones(8192, 8192)
    long = weft.compile(lambda x: x @ x @ x @ x @ x @ x @ x @ x)
    driver, data = gpu.backend.driver, np.ones(8 << 20, np.uint8)
    weft.tensor(data)
    long(x).numpy()
    result = long(x)
    uploaded = [weft.tensor(data) for _ in range(4)]
    cuda_driver.call("cuStreamSynchronize", driver.copies)
    busy = cuda_driver._cuda().cuStreamQuery(driver.stream)[0].name
    assert busy == "CUDA_ERROR_NOT_READY", "the run was over before four uploads were"
    assert result.shape == x.shape and all(one.numpy().all() for one in uploaded)
