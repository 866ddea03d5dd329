"""Compiles many kernels with NVRTC for several architectures, which needs neither a GPU nor a driver.

Kernels are printed together, a batch to a program, since a program costs more than a kernel; NVRTC releases the
interpreter, so batches are compiled side by side. Time goes with the length of the text: of long kernels (sorts, and
steps that were joined into one) one of each kind is compiled, for one architecture in turn; all others for every one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from weft.backends import cuda_compile
from weft.kernels.language import Kernel
from weft.render import clike
from weft.render.dialects import CUDA

ARCHITECTURES = ("sm_80", "sm_90", "sm_120")
QUICKLY = "--Ofast-compile=max"  # everything is checked and made, little is optimised
# A comparison of two constants is decided by NVRTC, which then misses the uses of what stood beside it. Values that the
# text itself does not use are looked for in test_clike.
DECIDED = "--diag-suppress=177"
BATCH = 50
LONG = 12_000  # characters


def said(source: str, architecture: str, *options: str) -> str:
    """What NVRTC has to say about a text: errors and warnings, or nothing."""
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], [])
    words = [word.encode() for word in (f"--gpu-architecture={architecture}", *cuda_compile.OPTIONS, DECIDED, *options)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    text = log.rstrip(b"\0").decode().strip()
    return text or ("" if status == nvrtc.nvrtcResult.NVRTC_SUCCESS else str(status))


def _kind(kernel: Kernel) -> tuple:
    """What kernels have in common that differ in shapes alone."""
    return re.sub(r"\d+", "", kernel.name), tuple(buffer.dtype.name for buffer in kernel.buffers)


def complaints(kernels: Mapping[str, Kernel], *options: str, architectures: Sequence[str] = ARCHITECTURES) -> list[str]:
    """Every kernel that NVRTC does not compile without a word: its name, the words, its text."""

    def batch(job: tuple[list[Kernel], str]) -> list[str]:
        together, architecture = job
        if not said(clike.render_all(together, CUDA), architecture, *options):
            return []
        found = []
        for kernel in together:
            text = clike.render(kernel, CUDA)
            words = said(text, architecture, *options)
            if words:
                found.append(f"{clike.symbol(kernel, CUDA)} for {architecture}: {words}\n{text}")
        return found

    lengths = {symbol: len(clike.render(kernel, CUDA)) for symbol, kernel in kernels.items()}
    short = [kernel for symbol, kernel in kernels.items() if lengths[symbol] <= LONG]
    long = {_kind(kernel): kernel for symbol, kernel in kernels.items() if lengths[symbol] > LONG}.values()
    jobs = list(product((short[first : first + BATCH] for first in range(0, len(short), BATCH)), architectures))
    jobs += [([kernel], architectures[number % len(architectures)]) for number, kernel in enumerate(long)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [text for found in pool.map(batch, jobs) for text in found]
