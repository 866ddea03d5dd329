"""Weft, a deep-learning framework: lazy tensors, gradients and compiled training steps under PyTorch's names.

This file is the table of contents; everything is made elsewhere.
"""

# ruff: noqa: F401, F403, I001

from typing import TYPE_CHECKING

from weft.base import interpreter  # refuses what is not supported
from weft import autograd, nn, testing
from weft.names import functions
from weft.functional.adjacency import Adjacency, adjacency, aggregate, csr
from weft.core.autocast import autocast, get_autocast_dtype, is_autocast_enabled
from weft.autograd import enable_grad, grad, is_grad_enabled, no_grad, value_and_grad
from weft.jit.compiled import compile, memory_report
from weft.base.counters import counters
from weft.functional.loop import loop
from weft.core.creation import (
    arange, as_tensor, empty, eye, full, full_like, linspace, ones, ones_like, tensor, zeros, zeros_like,
)  # fmt: skip
from weft.core.creation import logspace, scalar_tensor, tril_indices, triu_indices
from weft.core.device import default_device, device, devices, set_default_device
from weft.core.device import get as get_device
from weft.base.dtypes import bool_ as bool
from weft.base.dtypes import (
    bfloat16, finfo, float16, float32, float64, iinfo, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
)  # fmt: skip
from weft.base.errors import (
    CheckpointWarning, CopyError, DeviceError, DTypeError, FileError, FileFormatError, GraphError, IndexRangeError,
    OutOfMemoryError, RangeError, ShapeError, StorageError, TraceWarning, WeftError,
)  # fmt: skip
from weft.autograd.function import checkpoint
from weft.core.evaluation import eval, numel
from weft.names.functions import *
from weft.functional.custom_kernel import kernel
from weft.core.interop import asarray, from_dlpack, from_numpy
from weft.core.memory import empty_cache, memory_stats, reset_peak_memory_stats
from weft.core.precision import get_float32_matmul_precision, set_float32_matmul_precision
from weft.core.printing import get_printoptions, printoptions, set_printoptions
from weft.random.generator import (
    Generator, default_generator, manual_seed, rand, rand_like, randint, randn, randn_like,
)  # fmt: skip
from weft.jit.snapshot import snapshot
from weft.core.tensor import Tensor
from weft import cuda
from weft.autograd import inference_mode, is_inference_mode_enabled, set_grad_enabled
from weft.core.creation import empty_like, is_floating_point, is_tensor
from weft.base.dtypes import DType as dtype
from weft.base.dtypes import get_default_dtype, set_default_dtype
from weft.random.generator import get_rng_state, initial_seed, seed, set_rng_state
from weft.core.settings import get_num_threads, set_num_threads, synchronize
from weft.core.size import Size

from weft.signal.window_tensors import bartlett_window, blackman_window, hamming_window, hann_window, kaiser_window

from weft import amp, data, errors, func, linalg, optim, serialization, signal, special, utils

if TYPE_CHECKING:
    from weft import config, drawing, generation, profiling, report, train
    from weft.profiling.profile import profile
    from weft.serialization.saving import load, save
from weft.core.boundary import install as _install
from weft.names.einops_backend import install as _install_einops
from weft.names.former_modules import install as _install_former_modules
from weft.names.public_paths import install as _install_paths

_install()
_install_einops()
_install_paths(globals())
_install_former_modules()

half = float16
float = float32
double = float64
short = int16
int = int32
long = int64

__version__ = "0.1.0"

__all__ = [
    "Adjacency",
    "CopyError",
    "DTypeError",
    "DeviceError",
    "Generator",
    "GraphError",
    "IndexRangeError",
    "OutOfMemoryError",
    "RangeError",
    "ShapeError",
    "StorageError",
    "Tensor",
    "TraceWarning",
    "WeftError",
    "adjacency",
    "aggregate",
    "amp",
    "arange",
    "as_tensor",
    "asarray",
    "autocast",
    "autograd",
    "bartlett_window",
    "bfloat16",
    "blackman_window",
    "bool",
    "checkpoint",
    "compile",
    "counters",
    "csr",
    "data",
    "default_device",
    "default_generator",
    "device",
    "devices",
    "double",
    "empty",
    "enable_grad",
    "eval",
    "eye",
    "finfo",
    "float",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "from_numpy",
    "full",
    "full_like",
    "func",
    "get_device",
    "get_float32_matmul_precision",
    "get_printoptions",
    "grad",
    "half",
    "hamming_window",
    "hann_window",
    "iinfo",
    "int",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_grad_enabled",
    "kaiser_window",
    "kernel",
    "linalg",
    "linspace",
    "logspace",
    "long",
    "loop",
    "manual_seed",
    "memory_report",
    "nn",
    "no_grad",
    "numel",
    "ones",
    "ones_like",
    "optim",
    "printoptions",
    "profile",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "scalar_tensor",
    "set_default_device",
    "set_float32_matmul_precision",
    "set_printoptions",
    "short",
    "signal",
    "snapshot",
    "special",
    "tensor",
    "testing",
    "tril_indices",
    "triu_indices",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "utils",
    "value_and_grad",
    "zeros",
    "zeros_like",
]  # fmt: skip
__all__ += [
    "Size", "cuda", "dtype", "empty_cache", "empty_like", "get_autocast_dtype", "get_default_dtype", "get_num_threads",
    "get_rng_state", "inference_mode", "initial_seed", "is_autocast_enabled", "is_floating_point",
    "is_inference_mode_enabled", "is_tensor", "load", "memory_stats", "reset_peak_memory_stats", "save", "seed",
    "set_default_dtype", "set_grad_enabled", "set_num_threads", "set_rng_state", "synchronize",
]  # fmt: skip
__all__ += ["CheckpointWarning", "FileError", "FileFormatError", "serialization"]
__all__ += functions.__all__


# Loaded when they are first used: names and where they are, and packages that are names themselves.
_LATER = {"load": "weft.serialization.saving", "save": "weft.serialization.saving", "profile": "weft.profiling.profile"}
_PACKAGES = ("config", "drawing", "generation", "profiling", "report", "train")
__all__ += list(_PACKAGES)


def __getattr__(name: str) -> object:
    if name not in _LATER and name not in _PACKAGES:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(_LATER.get(name, f"weft.{name}"))
    value = globals()[name] = getattr(module, name) if name in _LATER else module
    return value


def __dir__() -> list[str]:
    """The public names; modules that only Weft itself imports are not among them."""
    return sorted([*__all__, "__version__", "__doc__", "__file__", "__name__", "__path__"])
