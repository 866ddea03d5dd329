"""Matrix products of one tile by NumPy's own OpenBLAS, found where NumPy's wheels put it.

OpenBLAS is called single-threaded from Weft's workers; its own threading would make bits depend on the thread count.
The number of threads is a setting of the whole process, so a plan with products sets it to 1 while it runs and puts it
back afterwards (`backends.cpu.runtime`): NumPy keeps its threads outside of plans. A NumPy built against another
library (Accelerate, MKL, a distribution's BLAS) offers no such symbols; then `find` returns None, `reason` says why,
and the runtime uses its own simple tile kernel.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import os
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Blas:
    """Addresses of the functions that the native runtime calls, and the library that keeps them loaded."""

    path: str
    sgemm: int
    dgemm: int
    get_threads: int
    set_threads: int
    library: ctypes.CDLL


def _candidates() -> list[str]:
    root = os.path.dirname(os.path.abspath(np.__file__))
    folders = (root + ".libs", os.path.join(root, ".dylibs"), os.path.join(root, ".libs"))
    return [path for folder in folders for path in sorted(glob.glob(os.path.join(folder, "*openblas64*")))]


@functools.cache
def find() -> Blas | None:
    """NumPy's OpenBLAS with 64-bit integers, or None where this NumPy has none."""
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
            names = ("cblas_sgemm64_", "cblas_dgemm64_", "openblas_get_num_threads64_", "openblas_set_num_threads64_")
            found = [ctypes.cast(getattr(library, "scipy_" + name), ctypes.c_void_p).value or 0 for name in names]
        except (OSError, AttributeError):
            continue
        return Blas(path, found[0], found[1], found[2], found[3], library)
    return None


def has_small_kernels() -> bool:
    """Whether this OpenBLAS multiplies small tiles without packing them first: its kernels for AVX-512 do."""
    blas = find()
    if blas is None:
        return False
    core = blas.library.scipy_openblas_get_corename64_
    core.restype = ctypes.c_char_p
    return core() in (b"SkylakeX", b"Cooperlake", b"SapphireRapids")


def reason() -> str:
    """Why `find` returned None, for `weft doctor`."""
    return (
        f"NumPy {np.__version__} carries no OpenBLAS with 64-bit integers (it may use Accelerate or a system BLAS); "
        "matrix products run on Weft's own kernel. Fix: install NumPy from PyPI's wheel."
    )
