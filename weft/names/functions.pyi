"""Written by `make stubs` from the table of operations; not to be edited."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, overload

from weft.base.dtypes import DTypeLike
from weft.random.generator import Generator
from weft.core.tensor import Tensor
from weft.plan.device import Device
from weft.core.methods import Frexp as Frexp, MinMax as MinMax, SignLog as SignLog, StdMean as StdMean, ValuesIndices as ValuesIndices, VarMean as VarMean

__all__ = [
    'abs',
    'absolute',
    'acos',
    'acosh',
    'adaptive_avg_pool1d',
    'add',
    'addbmm',
    'addcdiv',
    'addcmul',
    'addmm',
    'addmv',
    'addr',
    'adjoint',
    'all',
    'allclose',
    'alpha_dropout',
    'amax',
    'amin',
    'aminmax',
    'any',
    'arccos',
    'arccosh',
    'arcsin',
    'arcsinh',
    'arctan',
    'arctan2',
    'arctanh',
    'argmax',
    'argmin',
    'argsort',
    'argwhere',
    'asin',
    'asinh',
    'atan',
    'atan2',
    'atanh',
    'atleast_1d',
    'atleast_2d',
    'atleast_3d',
    'avg_pool1d',
    'baddbmm',
    'bernoulli',
    'bilinear',
    'bincount',
    'bitwise_and',
    'bitwise_left_shift',
    'bitwise_not',
    'bitwise_or',
    'bitwise_right_shift',
    'bitwise_xor',
    'block_diag',
    'bmm',
    'broadcast_shapes',
    'broadcast_tensors',
    'broadcast_to',
    'bucketize',
    'cartesian_prod',
    'cat',
    'cdist',
    'ceil',
    'celu',
    'chain_matmul',
    'channel_shuffle',
    'chunk',
    'clamp',
    'clamp_max',
    'clamp_min',
    'clip',
    'clone',
    'cmplt',
    'column_stack',
    'combinations',
    'concat',
    'concatenate',
    'conv1d',
    'conv2d',
    'conv3d',
    'conv_tbc',
    'conv_transpose1d',
    'conv_transpose2d',
    'conv_transpose3d',
    'copysign',
    'corrcoef',
    'cos',
    'cosh',
    'cosine_similarity',
    'count_nonzero',
    'cov',
    'cross',
    'cummax',
    'cummin',
    'cumprod',
    'cumsum',
    'cumulative_trapezoid',
    'deg2rad',
    'det',
    'diag',
    'diag_embed',
    'diagflat',
    'diagonal',
    'diagonal_scatter',
    'diff',
    'digamma',
    'dist',
    'div',
    'divide',
    'dot',
    'dropout',
    'dsplit',
    'dstack',
    'edge_softmax',
    'einsum',
    'eq',
    'equal',
    'erf',
    'erfc',
    'erfinv',
    'exp',
    'exp2',
    'expm1',
    'feature_alpha_dropout',
    'fill',
    'fix',
    'flatten',
    'flip',
    'fliplr',
    'flipud',
    'float_power',
    'floor',
    'floor_divide',
    'fmax',
    'fmin',
    'fmod',
    'frac',
    'frexp',
    'gather',
    'gcd',
    'ge',
    'ger',
    'gradient',
    'greater',
    'greater_equal',
    'group_norm',
    'gt',
    'hardshrink',
    'heaviside',
    'histc',
    'hsplit',
    'hstack',
    'hypot',
    'i0',
    'index_add',
    'index_copy',
    'index_fill',
    'index_put',
    'index_reduce',
    'index_select',
    'inner',
    'inverse',
    'isclose',
    'isfinite',
    'isin',
    'isinf',
    'isnan',
    'isneginf',
    'isposinf',
    'isreal',
    'kron',
    'kthvalue',
    'layer_norm',
    'lcm',
    'ldexp',
    'le',
    'lerp',
    'less',
    'less_equal',
    'lgamma',
    'log',
    'log10',
    'log1p',
    'log2',
    'log_softmax',
    'logaddexp',
    'logaddexp2',
    'logcumsumexp',
    'logdet',
    'logical_and',
    'logical_not',
    'logical_or',
    'logical_xor',
    'logit',
    'logsumexp',
    'lt',
    'masked_fill',
    'masked_scatter',
    'masked_select',
    'matmul',
    'matrix_exp',
    'matrix_power',
    'max',
    'max_pool1d',
    'max_pool1d_with_indices',
    'max_pool2d',
    'max_pool3d',
    'maximum',
    'mean',
    'median',
    'meshgrid',
    'min',
    'minimum',
    'mm',
    'mod',
    'mode',
    'moveaxis',
    'movedim',
    'msort',
    'mul',
    'multinomial',
    'multiply',
    'mv',
    'mvlgamma',
    'nan_to_num',
    'nanmean',
    'nanmedian',
    'nanquantile',
    'nansum',
    'narrow',
    'native_channel_shuffle',
    'ne',
    'neg',
    'negative',
    'nextafter',
    'nonzero',
    'norm',
    'normal',
    'not_equal',
    'outer',
    'pairwise_distance',
    'pdist',
    'permute',
    'pinverse',
    'pixel_shuffle',
    'pixel_unshuffle',
    'poisson',
    'polygamma',
    'positive',
    'pow',
    'prelu',
    'prod',
    'put',
    'quantile',
    'rad2deg',
    'randint_like',
    'randperm',
    'ravel',
    'recip',
    'reciprocal',
    'relu',
    'remainder',
    'renorm',
    'repeat_interleave',
    'reshape',
    'rms_norm',
    'roll',
    'rot90',
    'round',
    'row_stack',
    'rrelu',
    'rsqrt',
    'rsub',
    'scatter',
    'scatter_add',
    'scatter_max',
    'scatter_mean',
    'scatter_min',
    'scatter_reduce',
    'scatter_sum',
    'searchsorted',
    'segment_reduce',
    'segment_rows',
    'segment_softmax',
    'select',
    'select_scatter',
    'selu',
    'sgn',
    'shrink',
    'sigmoid',
    'sign',
    'signbit',
    'sin',
    'sinc',
    'sinh',
    'slice_scatter',
    'slogdet',
    'softmax',
    'sort',
    'split',
    'split_with_sizes',
    'spmm',
    'sqrt',
    'square',
    'squeeze',
    'stack',
    'std',
    'std_mean',
    'sub',
    'subsample',
    'subtract',
    'sum',
    'swapaxes',
    'swapdims',
    't',
    'take',
    'take_along_dim',
    'tan',
    'tanh',
    'tensor_split',
    'tensordot',
    'threshold',
    'tile',
    'topk',
    'trace',
    'transpose',
    'trapezoid',
    'trapz',
    'tril',
    'triu',
    'true_divide',
    'trunc',
    'unbind',
    'unflatten',
    'unique',
    'unique_consecutive',
    'unravel_index',
    'unsqueeze',
    'vander',
    'var',
    'var_mean',
    'vdot',
    'vsplit',
    'vstack',
    'where',
    'xlogy',
]

def abs(input: Tensor) -> Tensor:
    """|x|; the gradient at 0 is 0."""
    ...

def absolute(input: Tensor) -> Tensor:
    """|x|; the gradient at 0 is 0."""
    ...

def acos(input: Tensor) -> Tensor:
    """The angle in [0, pi] whose cosine is x; NaN beyond 1."""
    ...

def acosh(input: Tensor) -> Tensor:
    """The inverse of `cosh` from 0 on, log(x + sqrt(x^2 - 1)); NaN below 1."""
    ...

def adaptive_avg_pool1d(input: Tensor, output_size: int | None | Sequence[int | None]) -> Tensor:
    """Means of `output_size` windows over the last axis; see `adaptive_avg_pool2d`."""
    ...

def add(input: Tensor | float, other: Tensor | float, *, alpha: float = 1) -> Tensor:
    """a + alpha * b. Two bool tensors: logical or."""
    ...

def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * x + alpha * the sum of all products of the batch."""
    ...

def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """x + value * a / b, of floats."""
    ...

def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """x + value * a * b."""
    ...

def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * x + alpha * (mat1 @ mat2) of matrices. With beta 0, `input` is ignored, NaN too."""
    ...

def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * x + alpha * (mat @ vec)."""
    ...

def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * x + alpha * the outer product of two vectors."""
    ...

def adjoint(input: Tensor) -> Tensor:
    """The last two axes exchanged: `x.mT`."""
    ...

def all(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Whether every element is not zero; True over none."""
    ...

def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether `isclose` holds everywhere. It reads the tensors: outside `weft.compile` only."""
    ...

def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False, *, generator: Generator | None = None) -> Tensor:
    """While training, each element takes the limit of `selu` at minus infinity with probability `p`; then all are
    scaled and moved so that mean 0 and variance 1 stay what they are."""
    ...

def amax(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The maximum over `dim`; NaN wins. The gradient is shared among equal maxima."""
    ...

def amin(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """The minimum over `dim`; NaN wins. The gradient is shared among equal minima."""
    ...

def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> MinMax:
    """The minimum and the maximum, of all elements or along `dim`; NaN wins. Gradients are shared among equal ones."""
    ...

def any(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
    """Whether any element is not zero; False over none."""
    ...

def arccos(input: Tensor) -> Tensor:
    """The angle in [0, pi] whose cosine is x; NaN beyond 1."""
    ...

def arccosh(input: Tensor) -> Tensor:
    """The inverse of `cosh` from 0 on, log(x + sqrt(x^2 - 1)); NaN below 1."""
    ...

def arcsin(input: Tensor) -> Tensor:
    """The angle in [-pi/2, pi/2] whose sine is x; NaN beyond 1."""
    ...

def arcsinh(input: Tensor) -> Tensor:
    """The inverse of `sinh`, log(x + sqrt(x^2 + 1))."""
    ...

def arctan(input: Tensor) -> Tensor:
    """The angle in (-pi/2, pi/2) whose tangent is x."""
    ...

def arctan2(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The angle of the point (x, y) = (other, input), in [-pi, pi]; the signs of zeros count."""
    ...

def arctanh(input: Tensor) -> Tensor:
    """The inverse of `tanh`, log((1 + x) / (1 - x)) / 2; infinite at 1, NaN beyond."""
    ...

def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the maximum, int64: the first on ties, the first NaN if there is one."""
    ...

def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the minimum, int64: the first on ties, the first NaN if there is one."""
    ...

def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices along `dim` that put the elements in order, int64. Always stable."""
    ...

def argwhere(input: Tensor) -> Tensor:
    """`nonzero` as one tensor [count, rank]."""
    ...

def asin(input: Tensor) -> Tensor:
    """The angle in [-pi/2, pi/2] whose sine is x; NaN beyond 1."""
    ...

def asinh(input: Tensor) -> Tensor:
    """The inverse of `sinh`, log(x + sqrt(x^2 + 1))."""
    ...

def atan(input: Tensor) -> Tensor:
    """The angle in (-pi/2, pi/2) whose tangent is x."""
    ...

def atan2(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The angle of the point (x, y) = (other, input), in [-pi, pi]; the signs of zeros count."""
    ...

def atanh(input: Tensor) -> Tensor:
    """The inverse of `tanh`, log((1 + x) / (1 - x)) / 2; infinite at 1, NaN beyond."""
    ...

@overload
def atleast_1d(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Tensors with at least one axis."""
    ...
@overload
def atleast_1d(tensors: Tensor) -> Tensor:
    """Tensors with at least one axis."""
    ...
@overload
def atleast_1d(first: Tensor, second: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors with at least one axis."""
    ...

@overload
def atleast_2d(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Tensors with at least two axes: a vector is a row."""
    ...
@overload
def atleast_2d(tensors: Tensor) -> Tensor:
    """Tensors with at least two axes: a vector is a row."""
    ...
@overload
def atleast_2d(first: Tensor, second: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors with at least two axes: a vector is a row."""
    ...

@overload
def atleast_3d(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Tensors with at least three axes: a matrix gets a third one at the end."""
    ...
@overload
def atleast_3d(tensors: Tensor) -> Tensor:
    """Tensors with at least three axes: a matrix gets a third one at the end."""
    ...
@overload
def atleast_3d(first: Tensor, second: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors with at least three axes: a matrix gets a third one at the end."""
    ...

def avg_pool1d(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, ceil_mode: bool = False, count_include_pad: bool = True) -> Tensor:
    """The mean of every window over the last axis; see `avg_pool2d`."""
    ...

def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * x + alpha * (batch1 @ batch2), matrix by matrix."""
    ...

def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability that each element of `input` is, else 0; with `p`, that is the probability of all, and
    `input` only says the shape and the dtype. The gradient is 0."""
    ...

def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y[..., o] = input1[..., i] weight[o, i, j] input2[..., j] + bias[o], summed over i and j."""
    ...

def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each number from 0 on occurs in a vector, or the sum of its weights; as long as the largest number asks
    for, and at least `minlength`."""
    ...

def bitwise_and(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a & b for bool and integer tensors."""
    ...

def bitwise_left_shift(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a << b for integer tensors."""
    ...

def bitwise_not(input: Tensor) -> Tensor:
    """~x for bool and integer tensors."""
    ...

def bitwise_or(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a | b for bool and integer tensors."""
    ...

def bitwise_right_shift(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a >> b for integer tensors; the sign stays."""
    ...

def bitwise_xor(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a ^ b for bool and integer tensors."""
    ...

def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along the diagonal of one, zeros elsewhere; vectors are rows."""
    ...

def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """[B, M, K] @ [B, K, N]."""
    ...

@overload
def broadcast_shapes(*shapes: int | Sequence[int]) -> tuple[int, ...]:
    """The shape to which tensors of these shapes broadcast."""
    ...
@overload
def broadcast_shapes(shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape to which tensors of these shapes broadcast."""
    ...

def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Every tensor expanded to the shape to which all of them broadcast."""
    ...

def broadcast_to(input: Tensor, size: Sequence[int]) -> Tensor:
    """`input` broadcast to a shape."""
    ...

def bucketize(input: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The number of the bucket between `boundaries` (a sorted vector) for every element."""
    ...

def cartesian_prod(*tensors: Tensor) -> Tensor:
    """All choices of one element from each vector, as rows in the order of the last; of one vector, itself."""
    ...

def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one after the other along `dim`; the other extents are equal, the dtypes promote. Empty vectors count for
    their dtype alone, whatever the rank of the others."""
    ...

def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = 'use_mm_for_euclid_dist_if_necessary') -> Tensor:
    """The distance of order `p` between every row of `x1` [..., P, M] and of `x2` [..., R, M]: [..., P, R]. Its
    gradient at distance 0 is 0. Always computed from differences, whatever the `compute_mode`."""
    ...

def ceil(input: Tensor) -> Tensor:
    """The smallest whole number not below x; the gradient is 0."""
    ...

def celu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """x above 0, alpha * (e^(x / alpha) - 1) below."""
    ...

def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of several matrices in the order that costs least."""
    ...

def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """The channels of [N, C, ...] dealt out anew: channel (g, i) of `groups` groups goes to (i, g)."""
    ...

def chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` pieces of equal size along `dim` (the last may be smaller)."""
    ...

def clamp(input: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
    """`input` clamped between `min` and `max`; the gradient passes where min <= x <= max. NaN stays NaN and gets none."""
    ...

def clamp_max(input: Tensor, max: Tensor | float) -> Tensor:
    """`input` where it is smaller than `max`, else `max`."""
    ...

def clamp_min(input: Tensor, min: Tensor | float) -> Tensor:
    """`input` where it is larger than `min`, else `min`."""
    ...

def clip(input: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
    """`input` clamped between `min` and `max`; the gradient passes where min <= x <= max. NaN stays NaN and gets none."""
    ...

def clone(input: Tensor) -> Tensor:
    """The same value in a tensor of its own; gradients pass."""
    ...

def cmplt(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a < b, bool."""
    ...

def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Vectors as the columns of a matrix."""
    ...

def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of `r` elements of a vector, as rows in the order of the elements."""
    ...

def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one after the other along `dim`; the other extents are equal, the dtypes promote. Empty vectors count for
    their dtype alone, whatever the rank of the others."""
    ...

def concatenate(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors one after the other along `dim`; the other extents are equal, the dtypes promote. Empty vectors count for
    their dtype alone, whatever the rank of the others."""
    ...

def conv1d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Sequence[int] = 1, padding: int | Sequence[int] | str = 0, dilation: int | Sequence[int] = 1, groups: int = 1) -> Tensor:
    """Cross-correlation over the last axis: input [N, C, L], weight [O, C / groups, K]. `padding` adds zeros on both
    sides; 'same' keeps the length (stride 1), 'valid' adds none."""
    ...

def conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Sequence[int] = 1, padding: int | Sequence[int] | str = 0, dilation: int | Sequence[int] = 1, groups: int = 1) -> Tensor:
    """Cross-correlation over the last two axes: input [N, C, H, W], weight [O, C / groups, KH, KW]."""
    ...

def conv3d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Sequence[int] = 1, padding: int | Sequence[int] | str = 0, dilation: int | Sequence[int] = 1, groups: int = 1) -> Tensor:
    """Cross-correlation over the last three axes: input [N, C, D, H, W], weight [O, C / groups, KD, KH, KW]."""
    ...

def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """`conv1d` with time first: input [L, N, C], weight [K, C, O], bias [O], `pad` zeros at both ends; [L', N, O]."""
    ...

def conv_transpose1d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0, output_padding: int | Sequence[int] = 0, groups: int = 1, dilation: int | Sequence[int] = 1) -> Tensor:
    """The adjoint of `conv1d`: input [N, C, L], weight [C, O / groups, K]; length (L - 1) * stride - 2 * padding +
    dilation * (K - 1) + output_padding + 1."""
    ...

def conv_transpose2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0, output_padding: int | Sequence[int] = 0, groups: int = 1, dilation: int | Sequence[int] = 1) -> Tensor:
    """The adjoint of `conv2d`: input [N, C, H, W], weight [C, O / groups, KH, KW]."""
    ...

def conv_transpose3d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0, output_padding: int | Sequence[int] = 0, groups: int = 1, dilation: int | Sequence[int] = 1) -> Tensor:
    """The adjoint of `conv3d`: input [N, C, D, H, W], weight [C, O / groups, KD, KH, KW]."""
    ...

def copysign(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The size of `input` with the sign of `other`; signs of zeros count."""
    ...

def corrcoef(input: Tensor) -> Tensor:
    """The correlations of the rows of a matrix, whose columns are observations."""
    ...

def cos(input: Tensor) -> Tensor:
    """The cosine of x in radians."""
    ...

def cosh(input: Tensor) -> Tensor:
    """The hyperbolic cosine, (e^x + e^-x) / 2."""
    ...

def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-08) -> Tensor:
    """x1 . x2 / (max(|x1|, eps) * max(|x2|, eps)) along `dim`; the tensors broadcast."""
    ...

def count_nonzero(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """How many elements are not zero, int64."""
    ...

def cov(input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """The covariances of the rows of a matrix, whose columns are observations; of a vector, its variance. `fweights`
    says how often each observation counts, `aweights` how much."""
    ...

def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The vector product of vectors of three along `dim`, or along the first axis of extent 3; other axes broadcast."""
    ...

def cummax(input: Tensor, dim: int) -> ValuesIndices:
    """The largest element so far, and its index: the latest of equal ones. NaN counts as largest. The gradient
    goes to that element."""
    ...

def cummin(input: Tensor, dim: int) -> ValuesIndices:
    """The smallest element so far, and its index: the latest of equal ones; once there was a NaN, that."""
    ...

def cumprod(input: Tensor, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """The product of each element and all before it along `dim`. The gradient is right at zeros (of first order)."""
    ...

def cumsum(input: Tensor, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """The sum of each element and all before it along `dim`."""
    ...

def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """`trapezoid` up to each point but the first."""
    ...

def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians."""
    ...

def det(input: Tensor) -> Tensor:
    """`weft.linalg.det`."""
    ...

def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """A vector as the diagonal of a matrix; the diagonal of a matrix as a vector."""
    ...

def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The last axis laid along a diagonal of two new axes, zeros elsewhere."""
    ...

def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """All elements, in order, on a diagonal of a matrix."""
    ...

def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The elements with indices (i, i + offset) on two axes, which become the last axis."""
    ...

def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """`input` with `src` as the diagonal of two axes that `diagonal` shows."""
    ...

def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """Each element less the one before it along `dim`, `n` times over; of bools, whether they differ."""
    ...

def digamma(input: Tensor) -> Tensor:
    """The derivative of `lgamma`. At 0 it is infinite, with the sign of -x; NaN at -1, -2, ..."""
    ...

def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The norm of order `p` of the difference of two tensors, which broadcast."""
    ...

def div(input: Tensor | float, other: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
    """a / b; integers divide in the default dtype, float32. `rounding_mode` is None, 'floor' or 'trunc'."""
    ...

def divide(input: Tensor | float, other: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
    """a / b; integers divide in the default dtype, float32. `rounding_mode` is None, 'floor' or 'trunc'."""
    ...

def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The sum of products of two vectors."""
    ...

def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, generator: Generator | None = None) -> Tensor:
    """While training, each element 0 with probability `p` (in steps of 2^-16) and otherwise divided by 1 - p."""
    ...

def dsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Equal parts of the third axis, or parts cut before the given indices."""
    ...

def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors behind each other: along the third axis."""
    ...

def edge_softmax(scores: Tensor, dst: Tensor, num_nodes: int) -> Tensor:
    """A softmax over the edges into each node: `scores` [E] or [E, heads], `dst` [E] the node of each edge."""
    ...

def einsum(equation: str, *operands: Any) -> Tensor:
    """The sum of products that `equation` describes: `"ij,jk->ik"` is a matrix product. Labels missing from the output
    are summed over; without `->` the output has those that occur once, in alphabetical order. A label twice in one
    operand takes the diagonal; `...` stands for axes that broadcast. Instead of an equation, a list of labels (numbers
    from 0 to 51) may follow each tensor, and that of the output the last one."""
    ...

def eq(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a == b, bool; NaN equals nothing."""
    ...

def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one shape and equal elements. It reads them: outside `weft.compile` only."""
    ...

def erf(input: Tensor) -> Tensor:
    """The error function."""
    ...

def erfc(input: Tensor) -> Tensor:
    """1 - erf(x), precise where it is small."""
    ...

def erfinv(input: Tensor) -> Tensor:
    """The number whose error function is x; infinite at 1, NaN beyond."""
    ...

def exp(input: Tensor) -> Tensor:
    """e to the power x."""
    ...

def exp2(input: Tensor) -> Tensor:
    """2 to the power x."""
    ...

def expm1(input: Tensor) -> Tensor:
    """exp(x) - 1, precise near 0."""
    ...

def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False, *, generator: Generator | None = None) -> Tensor:
    """`alpha_dropout` of whole channels of [N, C, ...]."""
    ...

def fill(input: Tensor, value: Tensor | float) -> Tensor:
    """`value`, a number or a tensor without axes, in the shape and dtype of `input`."""
    ...

def fix(input: Tensor) -> Tensor:
    """The whole part of x, towards 0; the gradient is 0."""
    ...

def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The axes from `start_dim` to `end_dim` made one."""
    ...

@overload
def flip(input: Tensor, *dims: int | Sequence[int]) -> Tensor:
    """The order of elements reversed along `dims`."""
    ...
@overload
def flip(input: Tensor, dims: Sequence[int]) -> Tensor:
    """The order of elements reversed along `dims`."""
    ...

def fliplr(input: Tensor) -> Tensor:
    """The second axis reversed."""
    ...

def flipud(input: Tensor) -> Tensor:
    """The first axis reversed."""
    ...

def float_power(input: Tensor | float, exponent: Tensor | float) -> Tensor:
    """a to the power b, in float64."""
    ...

def floor(input: Tensor) -> Tensor:
    """The largest whole number not above x; the gradient is 0."""
    ...

def floor_divide(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The quotient rounded down, from the exact remainder. Integer division by zero gives 0, and the least integer by
    -1 itself."""
    ...

def fmax(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The larger of the two; of a number and NaN the number. On ties the first gets the gradient."""
    ...

def fmin(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The smaller of the two; of a number and NaN the number. On ties the first gets the gradient."""
    ...

def fmod(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The exact rest of a / b with the sign of the dividend, as C's fmod."""
    ...

def frac(input: Tensor) -> Tensor:
    """The part after the point, with the sign of x; the gradient is that of x."""
    ...

def frexp(input: Tensor) -> Frexp:
    """Each number as mantissa * 2^exponent with 0.5 <= |mantissa| < 1; the exponent is int32, of 0, NaN and infinities
    it is 0."""
    ...

def gather(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Elements of `input` along `dim`: `out[i][j] = x[index[i][j]][j]` for `dim=0`. `index` has the rank of `input`."""
    ...

def gcd(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The greatest common divisor of integers; 0 of two zeros."""
    ...

def ge(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a >= b, bool."""
    ...

def ger(input: Tensor, vec2: Tensor) -> Tensor:
    """[M] and [N] to the [M, N] products of each with each."""
    ...

def gradient(input: Tensor, *, spacing: float | Sequence[float | Tensor] | None = None, dim: int | Sequence[int] | None = None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """The slope along each axis of `dim`, of all axes unless given, by differences of second order; at both ends of
    order `edge_order`, 1 or 2. `spacing` is one distance for all axes, one for each, or the coordinates along each."""
    ...

def greater(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a > b, bool."""
    ...

def greater_equal(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a >= b, bool."""
    ...

def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05) -> Tensor:
    """Each of `num_groups` groups of channels of each sample of [N, C, ...] normalised; `weight` and `bias` [C]."""
    ...

def gt(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a > b, bool."""
    ...

def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x outside [-lambd, lambd], 0 inside; NaN stays NaN."""
    ...

def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below 0 and at NaN, 1 above, `values` at 0. No gradient."""
    ...

def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements fall into each of `bins` equal parts of [min, max]; between the smallest and the largest
    element if both are 0. Elements outside and NaN are not counted."""
    ...

def hsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Equal parts of the second axis, or of a vector; or parts cut before the given indices."""
    ...

def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors concatenated along the second axis, vectors along their only one."""
    ...

def hypot(input: Tensor | float, other: Tensor | float) -> Tensor:
    """sqrt(a^2 + b^2) without overflow on the way."""
    ...

def i0(input: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, of order 0."""
    ...

def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1) -> Tensor:
    """`input` with slices of `source`, times `alpha`, added to its slices `index` along `dim`."""
    ...

def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """`input` with slices of `source` written over its slices `index` along `dim`; the last one stays."""
    ...

def index_fill(input: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    """`input` with its slices `index` along `dim` filled with one number."""
    ...

def index_put(input: Tensor, indices: Sequence[Tensor], values: Tensor | float, accumulate: bool = False) -> Tensor:
    """`input` with `values` written to (with `accumulate`, added at) tensors that index its first axes: of integers,
    or bool masks, of which `weft.compile` takes one alone."""
    ...

def index_reduce(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """`input` with slices of `source` reduced into its slices `index` along `dim`. `reduce`: 'prod', 'mean', 'amax' or
    'amin'. Without `include_self` slices of `input` that something goes to do not count."""
    ...

def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of `input` along `dim` with the numbers in `index`, a vector of integers."""
    ...

def inner(input: Tensor, other: Tensor) -> Tensor:
    """Products summed over the last axis of both; with a scalar, plain products."""
    ...

def inverse(input: Tensor) -> Tensor:
    """`weft.linalg.inv`."""
    ...

def isclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """Where two tensors of one dtype are equal, or finite with |a - b| <= atol + rtol * |b|."""
    ...

def isfinite(input: Tensor) -> Tensor:
    """Where x is neither infinite nor NaN."""
    ...

def isin(elements: Tensor | float, test_elements: Tensor | float, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element is one of `test_elements` (with `invert`, none of them). One of both may be a number."""
    ...

def isinf(input: Tensor) -> Tensor:
    """Where x is infinite."""
    ...

def isnan(input: Tensor) -> Tensor:
    """Where x is not a number."""
    ...

def isneginf(input: Tensor) -> Tensor:
    """Where x is -infinity."""
    ...

def isposinf(input: Tensor) -> Tensor:
    """Where x is +infinity."""
    ...

def isreal(input: Tensor) -> Tensor:
    """True everywhere: there are no complex numbers."""
    ...

def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: every element of `input` times all of `other`."""
    ...

def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """The `k`-th smallest element along `dim`, k counted from 1, and its index."""
    ...

def layer_norm(input: Tensor, normalized_shape: Sequence[int] | int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axes; the variance divides by the count."""
    ...

def lcm(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The least common multiple of integers; 0 if one is 0."""
    ...

def ldexp(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a times 2 to the power b."""
    ...

def le(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a <= b, bool."""
    ...

def lerp(input: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    """a + weight * (b - a)."""
    ...

def less(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a < b, bool."""
    ...

def less_equal(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a <= b, bool."""
    ...

def lgamma(input: Tensor) -> Tensor:
    """The logarithm of |gamma(x)|; infinite at 0, -1, -2, ..."""
    ...

def log(input: Tensor) -> Tensor:
    """The natural logarithm; -inf at 0, NaN below."""
    ...

def log10(input: Tensor) -> Tensor:
    """The logarithm to base 10."""
    ...

def log1p(input: Tensor) -> Tensor:
    """log(1 + x), precise near 0."""
    ...

def log2(input: Tensor) -> Tensor:
    """The logarithm to base 2."""
    ...

def log_softmax(input: Tensor, dim: int, dtype: DTypeLike | None = None) -> Tensor:
    """log(softmax(x)) without overflow."""
    ...

def logaddexp(input: Tensor | float, other: Tensor | float) -> Tensor:
    """log(e^a + e^b) without overflow."""
    ...

def logaddexp2(input: Tensor | float, other: Tensor | float) -> Tensor:
    """log2(2^a + 2^b) without overflow."""
    ...

def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """log(cumsum(exp(x))) without overflow."""
    ...

def logdet(input: Tensor) -> Tensor:
    """The logarithm of the determinant of square matrices; NaN where that is negative."""
    ...

def logical_and(input: Tensor | float, other: Tensor | float) -> Tensor:
    """Both not zero."""
    ...

def logical_not(input: Tensor) -> Tensor:
    """Equal to zero."""
    ...

def logical_or(input: Tensor | float, other: Tensor | float) -> Tensor:
    """Either not zero."""
    ...

def logical_xor(input: Tensor | float, other: Tensor | float) -> Tensor:
    """Exactly one not zero."""
    ...

def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), the inverse of `sigmoid`; NaN outside of [0, 1]. With `eps`, of x clamped to [eps, 1 - eps]."""
    ...

def logsumexp(input: Tensor, dim: int | Sequence[int] | None, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over `dim`, shifted by the maximum; -inf over nothing but -inf, with gradient 0 there."""
    ...

def lt(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a < b, bool."""
    ...

def masked_fill(input: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """`input` with `value`, a number or a tensor without axes, where the bool mask holds."""
    ...

def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """`input` with the elements of `source`, one after the other, where the bool mask holds; both broadcast."""
    ...

def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements of `input` where the bool mask holds, as a vector; both broadcast. Gradients pass."""
    ...

def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product of the last two axes; the axes before them broadcast. A vector is a row on the left and a
    column on the right, and that axis is dropped from the result."""
    ...

def matrix_exp(input: Tensor) -> Tensor:
    """The exponential of square matrices [..., n, n], by a Taylor polynomial of A / 2^s, squared s times."""
    ...

def matrix_power(input: Tensor, n: int) -> Tensor:
    """The product of `n` square matrices `input`; the identity for 0, and the inverses' product for negative `n`."""
    ...

@overload
def max(input: Tensor) -> Tensor:
    """The maximum of all elements; with `dim`, (values, indices), the gradient to the first maximum; with a tensor
    instead of `dim`, `maximum`."""
    ...
@overload
def max(input: Tensor, dim: int, keepdim: bool = False) -> ValuesIndices:
    """The maximum of all elements; with `dim`, (values, indices), the gradient to the first maximum; with a tensor
    instead of `dim`, `maximum`."""
    ...
@overload
def max(input: Tensor, other: Tensor) -> Tensor:
    """The maximum of all elements; with `dim`, (values, indices), the gradient to the first maximum; with a tensor
    instead of `dim`, `maximum`."""
    ...

@overload
def max_pool1d(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: Literal[False] = False) -> Tensor:
    """The maximum of every window over the last axis; see `max_pool2d`."""
    ...
@overload
def max_pool1d(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, *, return_indices: Literal[True]) -> ValuesIndices:
    """The maximum of every window over the last axis; see `max_pool2d`."""
    ...

def max_pool1d_with_indices(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: bool = False) -> ValuesIndices:
    """`max_pool1d` with `return_indices`, whatever that says."""
    ...

@overload
def max_pool2d(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: Literal[False] = False) -> Tensor:
    """The maximum of every window over the last two axes of [N, C, H, W] or [C, H, W]. Windows are `stride` apart
    (their size unless given); `padding` adds -inf on both sides. With `return_indices` also each maximum's position in
    the flattened plane, int64. The gradient goes to the first maximum of a window in row-major order; NaN wins, and
    the last of several."""
    ...
@overload
def max_pool2d(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, *, return_indices: Literal[True]) -> ValuesIndices:
    """The maximum of every window over the last two axes of [N, C, H, W] or [C, H, W]. Windows are `stride` apart
    (their size unless given); `padding` adds -inf on both sides. With `return_indices` also each maximum's position in
    the flattened plane, int64. The gradient goes to the first maximum of a window in row-major order; NaN wins, and
    the last of several."""
    ...

@overload
def max_pool3d(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: Literal[False] = False) -> Tensor:
    """The maximum of every window over the last three axes; see `max_pool2d`."""
    ...
@overload
def max_pool3d(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, *, return_indices: Literal[True]) -> ValuesIndices:
    """The maximum of every window over the last three axes; see `max_pool2d`."""
    ...

def maximum(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The larger of the two; NaN if either is. On ties each side gets half the gradient."""
    ...

def mean(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
    """The mean over `dim`, for float tensors; NaN over no elements."""
    ...

@overload
def median(input: Tensor) -> Tensor:
    """The middle element in order (of two, the lower one) along `dim` and its index; without `dim`, of all
    elements, the value alone, whose gradient is shared among equal elements. A NaN anywhere is the median."""
    ...
@overload
def median(input: Tensor, dim: int, keepdim: bool = False) -> ValuesIndices:
    """The middle element in order (of two, the lower one) along `dim` and its index; without `dim`, of all
    elements, the value alone, whose gradient is shared among equal elements. A NaN anywhere is the median."""
    ...

def meshgrid(*tensors: Tensor | Sequence[Tensor], indexing: str = 'ij') -> tuple[Tensor, ...]:
    """Vectors spread over the grid that they span; with indexing='xy' the first two axes are exchanged."""
    ...

@overload
def min(input: Tensor) -> Tensor:
    """The minimum of all elements; with `dim`, (values, indices); with a tensor instead of `dim`, `minimum`."""
    ...
@overload
def min(input: Tensor, dim: int, keepdim: bool = False) -> ValuesIndices:
    """The minimum of all elements; with `dim`, (values, indices); with a tensor instead of `dim`, `minimum`."""
    ...
@overload
def min(input: Tensor, other: Tensor) -> Tensor:
    """The minimum of all elements; with `dim`, (values, indices); with a tensor instead of `dim`, `minimum`."""
    ...

def minimum(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The smaller of the two; NaN if either is. On ties each side gets half the gradient."""
    ...

def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """[M, K] @ [K, N]."""
    ...

def mod(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The exact rest of a / b with the sign of the divisor, as Python's %. With an infinite divisor it is a, or b where
    the signs differ; by zero it is NaN, or 0 for integers."""
    ...

def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """The most frequent element along `dim`, of several the smallest, and its last index."""
    ...

def moveaxis(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Axes taken out and put in at other positions; the others keep their order."""
    ...

def movedim(input: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Axes taken out and put in at other positions; the others keep their order."""
    ...

def msort(input: Tensor) -> Tensor:
    """The values in ascending order along the first axis."""
    ...

def mul(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a * b. Two bool tensors: logical and."""
    ...

def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None) -> Tensor:
    """Indices of `num_samples` categories for a row of weights [n], or for each row of [rows, n]: each drawn with a
    probability that is its part of the row's sum, again and again, or (without replacement) each at most once."""
    ...

def multiply(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a * b. Two bool tensors: logical and."""
    ...

def mv(input: Tensor, vec: Tensor) -> Tensor:
    """[M, K] @ [K]."""
    ...

def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension `p`."""
    ...

def nan_to_num(input: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """NaN replaced by `nan` (0), infinities by `posinf` and `neginf` (the largest and least finite numbers)."""
    ...

def nanmean(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
    """The mean over `dim` of all elements that are not NaN; NaN where there are none."""
    ...

@overload
def nanmedian(input: Tensor) -> Tensor:
    """`median` of the elements that are not NaN; NaN where there are none."""
    ...
@overload
def nanmedian(input: Tensor, dim: int, keepdim: bool = False) -> ValuesIndices:
    """`median` of the elements that are not NaN; NaN where there are none."""
    ...

def nanquantile(input: Tensor, q: Tensor | float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = 'linear') -> Tensor:
    """`quantile` of the elements that are not NaN; NaN where there are none."""
    ...

def nansum(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
    """The sum over `dim` of all elements that are not NaN."""
    ...

def narrow(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """The part of `dim` from `start` on with `length` elements. Inside `weft.compile` a part whose start is a tensor
    can be read but not written."""
    ...

def native_channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """The channels of [N, C, ...] dealt out anew: channel (g, i) of `groups` groups goes to (i, g)."""
    ...

def ne(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a != b, bool."""
    ...

def neg(input: Tensor) -> Tensor:
    """-x."""
    ...

def negative(input: Tensor) -> Tensor:
    """-x."""
    ...

def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next float after `input` in the direction of `other`: `other` itself where both are equal, NaN where one is
    NaN. The gradient is that of `input`, and 0 where both are equal."""
    ...

def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The indices of the elements that are not zero: [count, rank] int64, in row-major order; with `as_tuple`, one
    vector for each axis."""
    ...

def norm(input: Tensor, p: float | str | None = 'fro', dim: int | Sequence[int] | None = None, keepdim: bool = False, out: None = None, dtype: DTypeLike | None = None) -> Tensor:
    """The vector norm of order `p` over `dim` ('fro' and None mean 2), or 'nuc', the sum of singular values.
    Other matrix norms are in `weft.linalg`."""
    ...

@overload
def normal(mean: Tensor, std: Tensor | float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Normal numbers: one for each element of the tensors `mean` and `std`, which broadcast, or `size` of them for two
    numbers. The dtype is that of `mean`, or else of `std`. The gradient in both is 0: for another write
    `mean + std * weft.randn_like(mean)`."""
    ...
@overload
def normal(mean: float, std: Tensor, *, generator: Generator | None = None) -> Tensor:
    """Normal numbers: one for each element of the tensors `mean` and `std`, which broadcast, or `size` of them for two
    numbers. The dtype is that of `mean`, or else of `std`. The gradient in both is 0: for another write
    `mean + std * weft.randn_like(mean)`."""
    ...
@overload
def normal(mean: float, std: float, size: Sequence[int], *, generator: Generator | None = None, dtype: DTypeLike | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Normal numbers: one for each element of the tensors `mean` and `std`, which broadcast, or `size` of them for two
    numbers. The dtype is that of `mean`, or else of `std`. The gradient in both is 0: for another write
    `mean + std * weft.randn_like(mean)`."""
    ...

def not_equal(input: Tensor | float, other: Tensor | float) -> Tensor:
    """a != b, bool."""
    ...

def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """[M] and [N] to the [M, N] products of each with each."""
    ...

def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False) -> Tensor:
    """The norm of order `p` of x1 - x2 + eps over the last axis; the tensors broadcast."""
    ...

def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The distances of order `p` between all pairs of rows of [N, M]: (0, 1), (0, 2), ..., (N - 2, N - 1)."""
    ...

@overload
def permute(input: Tensor, *dims: int | Sequence[int]) -> Tensor:
    """The axes in another order."""
    ...
@overload
def permute(input: Tensor, dims: Sequence[int]) -> Tensor:
    """The axes in another order."""
    ...

def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """`weft.linalg.pinv` with singular values up to `rcond` times the largest as 0."""
    ...

def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """[..., C*r*r, H, W] to [..., C, H*r, W*r]: each group of r*r channels becomes an r x r block."""
    ...

def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """[..., C, H*r, W*r] to [..., C*r*r, H, W]: the inverse of `pixel_shuffle`."""
    ...

def poisson(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Numbers of events of the Poisson distribution whose means are the elements of `input`. The gradient is 0."""
    ...

def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of `digamma`."""
    ...

def positive(input: Tensor) -> Tensor:
    """+x, which is x."""
    ...

def pow(input: Tensor | float, exponent: Tensor | float) -> Tensor:
    """a to the power b. Small whole exponents, 0.5 and -1 become products, roots and quotients."""
    ...

def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x above 0, weight * x below; one weight, or one for each channel (axis 1)."""
    ...

def prod(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
    """The product over `dim`. Its gradient is right with zeros among the factors (of first order)."""
    ...

def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`input` with the elements of `source` written to (or added at) places of the flattened tensor; the last stays."""
    ...

def quantile(input: Tensor, q: Tensor | float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = 'linear') -> Tensor:
    """Quantiles along `dim`, or of all elements; a vector `q` makes a first axis. Between two elements `interpolation`
    decides: 'linear', 'lower', 'higher', 'midpoint' or 'nearest'. A NaN in a row is its quantile."""
    ...

def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees."""
    ...

@overload
def randint_like(input: Tensor, high: int, *, generator: Generator | None = None, dtype: DTypeLike | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`randint` with the shape, dtype and device of `input`: `randint_like(x, high)`, `randint_like(x, low, high)`."""
    ...
@overload
def randint_like(input: Tensor, low: int, high: int, *, generator: Generator | None = None, dtype: DTypeLike | None = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """`randint` with the shape, dtype and device of `input`: `randint_like(x, high)`, `randint_like(x, low, high)`."""
    ...

def randperm(n: int, *, generator: Generator | None = None, dtype: DTypeLike = ..., device: Any = None, requires_grad: bool = False) -> Tensor:
    """The numbers from 0 to n - 1 in random order."""
    ...

def ravel(input: Tensor) -> Tensor:
    """All elements in one axis."""
    ...

def recip(input: Tensor) -> Tensor:
    """1 / x."""
    ...

def reciprocal(input: Tensor) -> Tensor:
    """1 / x."""
    ...

def relu(input: Tensor) -> Tensor:
    """max(x, 0), with slope 0 at 0; NaN stays NaN."""
    ...

def remainder(input: Tensor | float, other: Tensor | float) -> Tensor:
    """The exact rest of a / b with the sign of the divisor, as Python's %. With an infinite divisor it is a, or b where
    the signs differ; by zero it is NaN, or 0 for integers."""
    ...

def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Slices along `dim` scaled down to the norm `maxnorm` of order `p` where theirs is larger."""
    ...

@overload
def repeat_interleave(input: Tensor, repeats: int | Tensor, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    """Every element `repeats` times in a row along `dim`; a tensor says how often for each one (inside `weft.compile`
    only with `output_size`, the extent of the result). With repeats alone, the indices of elements."""
    ...
@overload
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    """Every element `repeats` times in a row along `dim`; a tensor says how often for each one (inside `weft.compile`
    only with `output_size`, the extent of the result). With repeats alone, the indices of elements."""
    ...

@overload
def reshape(input: Tensor, *shape: int | Sequence[int]) -> Tensor:
    """The elements in row-major order under another shape; one extent may be -1."""
    ...
@overload
def reshape(input: Tensor, shape: Sequence[int]) -> Tensor:
    """The elements in row-major order under another shape; one extent may be -1."""
    ...

def rms_norm(input: Tensor, normalized_shape: Sequence[int] | int, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axes; `eps` is the dtype's epsilon unless given."""
    ...

def roll(input: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Elements moved by `shifts` along `dims`, those pushed out coming in at the other end; without `dims`, of the
    flattened tensor."""
    ...

def rot90(input: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    """Rotated k times by 90 degrees from the first of `dims` towards the second."""
    ...

def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest whole number, ties to even; the gradient is 0. With `decimals`, the nearest with so many digits after
    the point, or with so many zeros before it if negative."""
    ...

def row_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors on top of each other: along the first axis, vectors as rows."""
    ...

def rrelu(input: Tensor, lower: float = 0.125, upper: float = 0.3333333333333333, training: bool = False, inplace: bool = False, *, generator: Generator | None = None) -> Tensor:
    """x above 0, a * x below: while training `a` is uniform between `lower` and `upper` for each element, otherwise it
    is their mean."""
    ...

def rsqrt(input: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    ...

def rsub(input: Tensor | float, other: Tensor | float, *, alpha: float = 1) -> Tensor:
    """other - alpha * input: what `number - tensor` calls."""
    ...

@overload
def scatter(input: Tensor, dim: int, index: Tensor, src: Tensor | float, *, reduce: str | None = None) -> Tensor:
    """`input` with `src` written to `index` along `dim`: `out[index[i][j]][j] = src[i][j]` for `dim=0`. Of several
    entries for one place the last stays. `reduce` is None, 'add' or 'multiply'; `src` may be a number,
    which may be given as `value`."""
    ...
@overload
def scatter(input: Tensor, dim: int, index: Tensor, *, value: float, reduce: str | None = None) -> Tensor:
    """`input` with `src` written to `index` along `dim`: `out[index[i][j]][j] = src[i][j]` for `dim=0`. Of several
    entries for one place the last stays. `reduce` is None, 'add' or 'multiply'; `src` may be a number,
    which may be given as `value`."""
    ...

def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """`input` with `src` added at `index` along `dim`, in order."""
    ...

def scatter_max(src: Tensor, index: Tensor, dim_size: int, dim: int = 0) -> ValuesIndices:
    """The largest of the slices that go to each number, element by element, and which slice that was (the first of
    equals). Where none went: 0, and -1."""
    ...

def scatter_mean(src: Tensor, index: Tensor, dim_size: int, dim: int = 0) -> Tensor:
    """As `scatter_sum`, divided by how many slices went to each; 0 where none did."""
    ...

def scatter_min(src: Tensor, index: Tensor, dim_size: int, dim: int = 0) -> ValuesIndices:
    """The smallest of the slices that go to each number; otherwise as `scatter_max`."""
    ...

def scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True) -> Tensor:
    """`input` reduced with `src` at `index` along `dim`. `reduce`: 'sum', 'prod', 'mean', 'amax' or 'amin'. Without
    `include_self` the elements of `input` that something goes to do not count; the others stay."""
    ...

def scatter_sum(src: Tensor, index: Tensor, dim_size: int, dim: int = 0) -> Tensor:
    """Slices of `src` along `dim` added up by number: slice k goes to slice `index[k]` of `dim_size`."""
    ...

def searchsorted(sorted_sequence: Tensor, input: Tensor | float, *, right: bool = False, side: str | None = None, sorter: Tensor | None = None, out_int32: bool = False) -> Tensor:
    """Where `input` would go in rows sorted along the last axis, before equal elements or (`right`) after them. The
    rows are one vector for all values, or one row for each row of values. `sorter` puts rows in order that are not, as
    `argsort` gives it."""
    ...

def segment_reduce(data: Tensor, rowptr: Tensor, reduce: str = 'sum', empty: float = 0.0) -> Tensor:
    """Rows `rowptr[i]` to `rowptr[i + 1]` of `data` [E, ...] reduced into row i: 'sum', 'mean', 'max' or 'min'.
    `rowptr` rises from 0 to E. A segment without rows gives `empty`; a sum or mean gives 0."""
    ...

def segment_rows(rowptr: Tensor, count: int) -> Tensor:
    """The segment that each of `count` elements lies in."""
    ...

def segment_softmax(scores: Tensor, rowptr: Tensor) -> Tensor:
    """A softmax within each segment: `scores` [E] or [E, heads]."""
    ...

def select(input: Tensor, dim: int, index: int) -> Tensor:
    """One slice along `dim`, without that axis."""
    ...

def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """`input` with `src` as its slice number `index` along `dim`."""
    ...

def selu(input: Tensor) -> Tensor:
    """The scaled `elu` that keeps mean 0 and variance 1."""
    ...

def sgn(input: Tensor) -> Tensor:
    """-1, 0 or 1: `sign`, as there are no complex numbers."""
    ...

def shrink(input: Tensor, *bounds: Sequence[int] | None) -> Tensor:
    """The part from `start` to before `end` of every axis, given as a pair for each; None keeps an axis. The gradient
    is padded with zeros."""
    ...

def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + e^-x), from e^-|x| so that nothing overflows."""
    ...

def sign(input: Tensor) -> Tensor:
    """-1, 0 or 1; NaN gives 0, a bool itself. No gradient."""
    ...

def signbit(input: Tensor) -> Tensor:
    """Where the sign is minus, also of -0.0."""
    ...

def sin(input: Tensor) -> Tensor:
    """The sine of x in radians."""
    ...

def sinc(input: Tensor) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0."""
    ...

def sinh(input: Tensor) -> Tensor:
    """The hyperbolic sine, (e^x - e^-x) / 2."""
    ...

def slice_scatter(input: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    """`input` with `src` in place of the slice start:end:step of `dim`."""
    ...

def slogdet(input: Tensor) -> SignLog:
    """`weft.linalg.slogdet`."""
    ...

def softmax(input: Tensor, dim: int, dtype: DTypeLike | None = None) -> Tensor:
    """e^x over its sum along `dim`, shifted by the maximum. Multiplies by 1/sum: one division a row."""
    ...

def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> ValuesIndices:
    """(values, indices) in order along `dim`."""
    ...

def split(tensor: Tensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces along `dim`: of one size (the last may be smaller), or of the sizes listed."""
    ...

def split_with_sizes(input: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of the sizes listed along `dim`: `split` with a list."""
    ...

def spmm(rowptr: Tensor, col: Tensor, val: Tensor | None, x: Tensor) -> Tensor:
    """The product of a sparse matrix in CSR form and `x` [columns, ...]: row i is the sum of `val[e] * x[col[e]]` over
    its elements e. Without `val` all are 1. `aggregate` has the faster gradient."""
    ...

def sqrt(input: Tensor) -> Tensor:
    """The square root; NaN below 0."""
    ...

def square(input: Tensor) -> Tensor:
    """x * x; of bools, as int64."""
    ...

def squeeze(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Drop axes of extent 1: all of them, or those of `dim` that have extent 1."""
    ...

def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape along a new axis `dim`."""
    ...

def std(input: Tensor, dim: int | Sequence[int] | None = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None) -> Tensor:
    """The square root of `var`; the gradient where it is 0 is 0."""
    ...

def std_mean(input: Tensor, dim: int | Sequence[int] | None = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None) -> StdMean:
    """`std` and `mean` over `dim`."""
    ...

def sub(input: Tensor | float, other: Tensor | float, *, alpha: float = 1) -> Tensor:
    """a - alpha * b."""
    ...

@overload
def subsample(input: Tensor, *strides: int | Sequence[int]) -> Tensor:
    """Every s-th element of every axis, from the first on: an extent n becomes n / s, rounded up. The gradient is 0
    between them."""
    ...
@overload
def subsample(input: Tensor, strides: Sequence[int]) -> Tensor:
    """Every s-th element of every axis, from the first on: an extent n becomes n / s, rounded up. The gradient is 0
    between them."""
    ...

def subtract(input: Tensor | float, other: Tensor | float, *, alpha: float = 1) -> Tensor:
    """a - alpha * b."""
    ...

def sum(input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
    """The sum over `dim`."""
    ...

def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    """Two axes exchanged: `transpose`."""
    ...

def swapdims(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two axes exchanged."""
    ...

def t(input: Tensor) -> Tensor:
    """The transpose of a matrix; vectors and scalars stay."""
    ...

def take(input: Tensor, index: Tensor) -> Tensor:
    """Elements of the flattened tensor by number, in the shape of `index`; negative numbers count from the end."""
    ...

def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """`gather` with axes of extent 1 repeated, and negative indices counted from the end; without `dim`, of the
    elements in a row, by numbers that are not negative."""
    ...

def tan(input: Tensor) -> Tensor:
    """The tangent of x in radians."""
    ...

def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    ...

def tensor_split(input: Tensor, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """A number of parts, the first ones larger by one where the extent is not divisible by it; or parts cut before the
    given indices. These may be a tensor, whose values are read."""
    ...

def tensordot(input: Tensor, other: Tensor, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """Products summed over axes of both: the last `dims` of `input` with the first of `other`, or two lists of axes."""
    ...

def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """x above `threshold`, `value` at and below it; NaN stays NaN."""
    ...

@overload
def tile(input: Tensor, *dims: int | Sequence[int]) -> Tensor:
    """`repeat` that also takes fewer counts than axes."""
    ...
@overload
def tile(input: Tensor, dims: Sequence[int]) -> Tensor:
    """`repeat` that also takes fewer counts than axes."""
    ...

def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:
    """The `k` largest (or smallest) elements along `dim`, in order, and their indices. Of equal elements the first
    come first; always sorted."""
    ...

def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""
    ...

def transpose(input: Tensor, dim0: int, dim1: int) -> Tensor:
    """Two axes exchanged."""
    ...

def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """The integral along `dim` by the trapezoidal rule: over points `x`, or over steps `dx` (1 unless given)."""
    ...

def trapz(y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1) -> Tensor:
    """The integral along `dim` by the trapezoidal rule: over points `x`, or over steps `dx` (1 unless given)."""
    ...

def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The elements on and below a diagonal, zeros above."""
    ...

def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The elements on and above a diagonal, zeros below."""
    ...

def true_divide(input: Tensor | float, other: Tensor | float) -> Tensor:
    """`div` without rounding."""
    ...

def trunc(input: Tensor) -> Tensor:
    """The whole part of x, towards 0; the gradient is 0."""
    ...

def unbind(input: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Every slice along `dim`, without that axis."""
    ...

def unflatten(input: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """One axis made several; one of `sizes` may be -1."""
    ...

def unique(input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The different elements in ascending order (slices along `dim`, if given); on request also, for each element, the
    position of its equal, and how often each occurs. Every NaN is different."""
    ...

def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The elements of the flattened tensor, or slices along `dim`, that differ from the one before; `unique`'s extras."""
    ...

def unravel_index(indices: Tensor, shape: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Numbers of elements of a tensor of `shape`, in row-major order, as one index for each axis."""
    ...

def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """A new axis of extent 1 at `dim`."""
    ...

def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """Powers of a vector's elements as rows, from the highest down to 0, or up if `increasing`."""
    ...

def var(input: Tensor, dim: int | Sequence[int] | None = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None) -> Tensor:
    """The variance over `dim`: the sum of squared differences from the mean, divided by `count - correction`, which
    is 1, or 0 where it is not `unbiased`. A bool in the place of `dim` is `unbiased`."""
    ...

def var_mean(input: Tensor, dim: int | Sequence[int] | None = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None) -> VarMean:
    """`var` and `mean` over `dim`."""
    ...

def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The sum of products of two vectors: `dot`, since numbers are real."""
    ...

def vsplit(input: Tensor, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
    """Equal parts of the first of at least two axes, or parts cut before the given indices."""
    ...

def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors on top of each other: along the first axis, vectors as rows."""
    ...

@overload
def where(condition: Tensor, input: Tensor | float, other: Tensor | float) -> Tensor:
    """`input` where the bool condition holds, else `other`; all three broadcast. With the condition alone, where it
    holds: `nonzero` with `as_tuple`."""
    ...
@overload
def where(condition: Tensor) -> tuple[Tensor, ...]:
    """`input` where the bool condition holds, else `other`; all three broadcast. With the condition alone, where it
    holds: `nonzero` with `as_tuple`."""
    ...

def xlogy(input: Tensor | float, other: Tensor | float) -> Tensor:
    """x log(y), and 0 where x is 0 and y is not NaN."""
    ...
