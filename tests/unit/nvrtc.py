"""Compiles many kernels with NVRTC for several architectures, which needs neither a GPU nor a driver.

Every kernel is made into machine code for every architecture. Kernels are printed together, a batch to a program, since
a program costs more than a kernel; NVRTC releases the interpreter, so batches are compiled side by side. Time goes with
the length of the text, 6 us to a character (`QUICKLY`), four fifths of it in the assembler. Which batches were compiled
without a word is kept on disk, as compiled kernels are: only what changed is compiled again.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from weft import disk
from weft.backends import cuda_compile
from weft.kernels.language import Kernel
from weft.render import clike
from weft.render.dialects import CUDA

ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
QUICKLY = "--Ofast-compile=max"  # everything is checked and made, little is optimised
# A comparison of two constants is decided by NVRTC, which then misses the uses of what stood beside it. Values that the
# text itself does not use are looked for in test_clike.
DECIDED = "--diag-suppress=177"
BATCH = 40  # kernels, about


def said(source: str, architecture: str, *options: str) -> str:
    """What NVRTC has to say about a text: errors and warnings, or nothing."""
    from cuda.bindings import nvrtc

    words = (f"--gpu-architecture={architecture}", *cuda_compile.OPTIONS, DECIDED, *options)
    key = hashlib.sha256(f"silent|{cuda_compile.version()}|{words}|{source}".encode()).hexdigest()
    if disk.read(disk.OBJECT, key) is not None:
        return ""
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(words), [word.encode() for word in words])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    text = log.rstrip(b"\0").decode().strip()
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return text or str(status)
    if not text:
        disk.write(disk.OBJECT, key, b"")
    return text


def batches(kernels: Mapping[str, Kernel]) -> list[list[Kernel]]:
    """The kernels by their names, which end in a hash: one that changes leaves most batches as they are."""
    count = len(kernels) // BATCH + 1
    found: dict[int, list[Kernel]] = defaultdict(list)
    for symbol in sorted(kernels):
        found[int(symbol.rpartition("_")[2], 16) % count].append(kernels[symbol])
    return list(found.values())


def complaints(kernels: Mapping[str, Kernel], *options: str, architectures: Sequence[str] = ARCHITECTURES) -> list[str]:
    """Every kernel that NVRTC does not compile without a word: its name, the words, its text."""

    def compiled(job: tuple[tuple[list[Kernel], str], str]) -> list[str]:
        (batch, together), architecture = job
        if not said(together, architecture, *options):
            return []
        found = []
        for kernel in batch:
            (symbol,), text = clike.named([kernel], CUDA)
            words = said(text, architecture, *options)
            if words:
                found.append(f"{symbol} for {architecture}: {words}\n{text}")
        return found

    texts = [(batch, clike.render_all(batch, CUDA)) for batch in batches(kernels)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [text for found in pool.map(compiled, product(texts, architectures)) for text in found]
