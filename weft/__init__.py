"""Weft, a deep-learning framework: lazy tensors, gradients and compiled training steps under PyTorch's names.

This file is the table of contents; everything is made elsewhere.
"""

# ruff: noqa: F401, I001

from weft import interpreter  # refuses what is not supported
from weft import autograd, nn, testing
from weft.edges import Adjacency, adjacency, aggregate, csr
from weft.autograd import enable_grad, grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled, value_and_grad
from weft.compiled import compile, memory_report
from weft.counting import counters
from weft.looping import loop
from weft.creation import (
    arange, as_tensor, empty, eye, full, full_like, linspace, ones, ones_like, tensor, zeros, zeros_like,
)  # fmt: skip
from weft.creation import tril_indices, triu_indices
from weft.device import default_device, device, devices, set_default_device
from weft.device import get as get_device
from weft.dtypes import bool_ as bool
from weft.dtypes import (
    bfloat16, finfo, float16, float32, float64, iinfo, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
)  # fmt: skip
from weft.dynamic import argwhere, bincount, masked_select, nonzero, repeat_interleave, unique, unique_consecutive
from weft.errors import (
    CopyError, DeviceError, DTypeError, GraphError, IndexRangeError, OutOfMemoryError, RangeError,
    ShapeError, StorageError, TraceWarning, WeftError,
)  # fmt: skip
from weft.function import checkpoint
from weft.functions import (
    abs, add, addcdiv, addcmul, all, amax, amin, any, argmax, argmin, bitwise_and, bitwise_left_shift, bitwise_not,
    bitwise_or, bitwise_right_shift, bitwise_xor, bmm, broadcast_to, cat, ceil, chunk, clamp, clone, concat, cos,
    count_nonzero, div, dot, eq, erf, eval, exp, exp2, expm1, flatten, flip, floor, floor_divide, fmod, ge, gt,
    index_select, isfinite, isinf, isnan, le, lerp, log, log10, log1p, log2, log_softmax, logical_and, logical_not,
    logical_or, logical_xor, logsumexp, lt, masked_fill, matmul, max, maximum, mean, min, minimum, mm, movedim, mul,
    mv, ne, neg, numel, outer, permute, pow, prod, reciprocal, relu, remainder, reshape, roll, round, rsqrt, sigmoid,
    sign, sin, softmax, split, sqrt, square, squeeze, stack, std, sub, sum, t, tan, tanh, tile, transpose, tril, triu,
    trunc, unbind, unflatten, unsqueeze, var, where,
)  # fmt: skip
from weft.functions import (
    argsort, bucketize, cummax, cummin, cumprod, cumsum, diff, histc, index_put, kthvalue, logcumsumexp, masked_scatter,
    median, msort, searchsorted, sort, take, topk,
)  # fmt: skip
from weft.functions import (
    addbmm, addmm, addmv, addr, baddbmm, cdist, column_stack, cross, diag, diag_embed, diagonal, dstack, einsum,
    fliplr, flipud, hstack, inner, kron, matrix_power, meshgrid, narrow, norm, rot90, select, swapaxes,
    tensor_split, tensordot, trace, vander, vstack,
)  # fmt: skip
from weft.functions import (
    edge_softmax, gather, index_add, index_copy, index_fill, scatter, scatter_add, scatter_max, scatter_mean,
    scatter_min, scatter_reduce, scatter_sum, segment_reduce, segment_rows, segment_softmax, spmm, take_along_dim,
)  # fmt: skip
from weft.kernel import kernel
from weft.interop import asarray, from_dlpack, from_numpy
from weft.precision import get_float32_matmul_precision, set_float32_matmul_precision
from weft.printing import get_printoptions, printoptions, set_printoptions
from weft.random import (
    Generator, bernoulli, default_generator, manual_seed, rand, rand_like, randint, randn, randn_like,
)  # fmt: skip
from weft.snapshot import snapshot
from weft.tensor import Tensor

from weft import linalg, optim
from weft.boundary import install as _install

_install()

half = float16
float = float32
double = float64
short = int16
int = int32
long = int64

__version__ = "0.1.0"
