"""Two processes train alike to the last bit, libraries included; and a third does it without the libraries.

Every process trains all networks, in float32 and with bfloat16, for 100 steps.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import weft
from tests.unit.networks import NETWORKS, Training

ROOT = Path(__file__).parents[2]
STEPS = 100


def train(device_name: str) -> None:
    """Print the libraries, and for each training its name, losses and a digest of its parameters."""
    with weft.device(device_name) as device:
        print(*sorted(device.libraries))
        for name in NETWORKS:
            for narrow in (None, weft.bfloat16):
                training = Training(name, narrow=narrow)
                losses = [training.step() for _ in range(STEPS)]
                digest = hashlib.sha256(b"".join(array.tobytes() for array in training.state())).hexdigest()
                print(name, narrow, losses[0].item(), losses[-1].item(), digest)


def start(device_name: str, **environment: str) -> subprocess.Popen[str]:
    code = f"from tests.gpu.test_determinism import train; train({device_name!r})"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | environment
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)


def test_processes_agree(gpu):
    running = [start(gpu.name), start(gpu.name), start(gpu.name, WEFT_NO_LIBRARIES="1")]
    said = [process.communicate(timeout=300)[0].splitlines() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    first, second, own = said
    assert first == second and len(first) == 1 + 2 * len(NETWORKS)
    assert own[0] == "", "libraries were found in spite of WEFT_NO_LIBRARIES"
    for with_libraries, without in zip(first[1:], own[1:], strict=True):
        name, dtype, begin, end, _ = with_libraries.split()
        assert float(end) < float(begin), name
        close = (1e-5, 0.02) if dtype == "None" else (0.01, 0.05)  # at the first step, and after all of them
        for found, expected, within in zip(without.split()[2:4], (begin, end), close, strict=True):
            np.testing.assert_allclose(float(found), float(expected), rtol=within, err_msg=with_libraries)
