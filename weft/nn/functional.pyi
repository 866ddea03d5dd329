"""Written by `make stubs` from the table of operations; not to be edited."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, overload

from weft.base.dtypes import DTypeLike
from weft.random.generator import Generator
from weft.core.tensor import Tensor
from weft.plan.device import Device
from weft.core.methods import ValuesIndices as ValuesIndices

__all__ = [
    'adaptive_avg_pool1d',
    'adaptive_avg_pool2d',
    'adaptive_avg_pool3d',
    'adaptive_max_pool1d',
    'adaptive_max_pool1d_with_indices',
    'adaptive_max_pool2d',
    'adaptive_max_pool2d_with_indices',
    'adaptive_max_pool3d',
    'adaptive_max_pool3d_with_indices',
    'affine_grid',
    'alpha_dropout',
    'avg_pool1d',
    'avg_pool2d',
    'avg_pool3d',
    'batch_norm',
    'bilinear',
    'binary_cross_entropy',
    'binary_cross_entropy_with_logits',
    'capsule_margin_loss',
    'celu',
    'celu_',
    'channel_shuffle',
    'contrastive_loss',
    'conv1d',
    'conv2d',
    'conv3d',
    'conv_tbc',
    'conv_transpose1d',
    'conv_transpose2d',
    'conv_transpose3d',
    'cosine_embedding_loss',
    'cosine_similarity',
    'cross_entropy',
    'ctc_loss',
    'deform_unfold',
    'dropout',
    'dropout1d',
    'dropout2d',
    'dropout3d',
    'elu',
    'elu_',
    'embedding',
    'embedding_bag',
    'feature_alpha_dropout',
    'fold',
    'fractional_max_pool2d',
    'fractional_max_pool2d_with_indices',
    'fractional_max_pool3d',
    'fractional_max_pool3d_with_indices',
    'gaussian_kl',
    'gaussian_nll_loss',
    'gelu',
    'glu',
    'grid_sample',
    'group_norm',
    'gumbel_softmax',
    'hardshrink',
    'hardsigmoid',
    'hardswish',
    'hardtanh',
    'hardtanh_',
    'hinge_embedding_loss',
    'huber_loss',
    'instance_norm',
    'interpolate',
    'kl_div',
    'l1_loss',
    'layer_norm',
    'leaky_relu',
    'leaky_relu_',
    'linear',
    'linear_cross_entropy',
    'local_response_norm',
    'log_softmax',
    'logsigmoid',
    'lp_pool1d',
    'lp_pool2d',
    'lp_pool3d',
    'margin_ranking_loss',
    'max_pool1d',
    'max_pool1d_with_indices',
    'max_pool2d',
    'max_pool2d_with_indices',
    'max_pool3d',
    'max_pool3d_with_indices',
    'max_unpool1d',
    'max_unpool2d',
    'max_unpool3d',
    'mish',
    'mse_loss',
    'multi_head_attention_forward',
    'multi_margin_loss',
    'multilabel_margin_loss',
    'multilabel_soft_margin_loss',
    'native_channel_shuffle',
    'nll_loss',
    'normalize',
    'one_hot',
    'pad',
    'pairwise_distance',
    'pdist',
    'pixel_shuffle',
    'pixel_unshuffle',
    'poisson_nll_loss',
    'prelu',
    'relu',
    'relu6',
    'relu_',
    'rms_norm',
    'rrelu',
    'rrelu_',
    'scaled_dot_product_attention',
    'selu',
    'selu_',
    'sigmoid',
    'sigmoid_focal_loss',
    'silu',
    'smooth_l1_loss',
    'soft_margin_loss',
    'softmax',
    'softmax_focal_loss',
    'softmin',
    'softplus',
    'softshrink',
    'softsign',
    'tanh',
    'tanhshrink',
    'threshold',
    'threshold_',
    'triplet_margin_loss',
    'triplet_margin_with_distance_loss',
    'unfold',
    'upsample',
    'upsample_bilinear',
    'upsample_nearest',
]

def adaptive_avg_pool1d(input: Tensor, output_size: int | None | Sequence[int | None]) -> Tensor:
    """Means of `output_size` windows over the last axis; see `adaptive_avg_pool2d`."""
    ...

def adaptive_avg_pool2d(input: Tensor, output_size: int | None | Sequence[int | None]) -> Tensor:
    """Means of `output_size` windows over each of the last two axes of [N, C, H, W] or [C, H, W]; None keeps an extent."""
    ...

def adaptive_avg_pool3d(input: Tensor, output_size: int | None | Sequence[int | None]) -> Tensor:
    """Means of `output_size` windows over each of the last three axes; see `adaptive_avg_pool2d`."""
    ...

@overload
def adaptive_max_pool1d(input: Tensor, output_size: int | None | Sequence[int | None], return_indices: Literal[False] = False) -> Tensor:
    """Maxima of `output_size` windows over the last axis; see `adaptive_max_pool2d`."""
    ...
@overload
def adaptive_max_pool1d(input: Tensor, output_size: int | None | Sequence[int | None], *, return_indices: Literal[True]) -> ValuesIndices:
    """Maxima of `output_size` windows over the last axis; see `adaptive_max_pool2d`."""
    ...

def adaptive_max_pool1d_with_indices(input: Tensor, output_size: int | None | Sequence[int | None], return_indices: bool = False) -> ValuesIndices:
    """`adaptive_max_pool1d` with `return_indices`, whatever that says."""
    ...

@overload
def adaptive_max_pool2d(input: Tensor, output_size: int | None | Sequence[int | None], return_indices: Literal[False] = False) -> Tensor:
    """Maxima of `output_size` windows over each of the last two axes, with gradients and indices as `max_pool2d`."""
    ...
@overload
def adaptive_max_pool2d(input: Tensor, output_size: int | None | Sequence[int | None], *, return_indices: Literal[True]) -> ValuesIndices:
    """Maxima of `output_size` windows over each of the last two axes, with gradients and indices as `max_pool2d`."""
    ...

def adaptive_max_pool2d_with_indices(input: Tensor, output_size: int | None | Sequence[int | None], return_indices: bool = False) -> ValuesIndices:
    """`adaptive_max_pool2d` with `return_indices`, whatever that says."""
    ...

@overload
def adaptive_max_pool3d(input: Tensor, output_size: int | None | Sequence[int | None], return_indices: Literal[False] = False) -> Tensor:
    """Maxima of `output_size` windows over each of the last three axes; see `adaptive_max_pool2d`."""
    ...
@overload
def adaptive_max_pool3d(input: Tensor, output_size: int | None | Sequence[int | None], *, return_indices: Literal[True]) -> ValuesIndices:
    """Maxima of `output_size` windows over each of the last three axes; see `adaptive_max_pool2d`."""
    ...

def adaptive_max_pool3d_with_indices(input: Tensor, output_size: int | None | Sequence[int | None], return_indices: bool = False) -> ValuesIndices:
    """`adaptive_max_pool3d` with `return_indices`, whatever that says."""
    ...

def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Positions for `grid_sample` by affine maps: `theta` [N, 2, 3] and size (N, C, H, W) to [N, H, W, 2], or
    [N, 3, 4] and (N, C, D, H, W) to [N, D, H, W, 3]."""
    ...

def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False, *, generator: Generator | None = None) -> Tensor:
    """While training, each element takes the limit of `selu` at minus infinity with probability `p`; then all are
    scaled and moved so that mean 0 and variance 1 stay what they are."""
    ...

def avg_pool1d(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, ceil_mode: bool = False, count_include_pad: bool = True) -> Tensor:
    """The mean of every window over the last axis; see `avg_pool2d`."""
    ...

def avg_pool2d(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None) -> Tensor:
    """The mean of every window over the last two axes of [N, C, H, W] or [C, H, W]. The sum is divided by the elements
    that the window covers, padding among them unless `count_include_pad` is False, or by `divisor_override`."""
    ...

def avg_pool3d(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None) -> Tensor:
    """The mean of every window over the last three axes; see `avg_pool2d`."""
    ...

def batch_norm(input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-05) -> Tensor:
    """[N, C, ...] with each channel brought to mean 0 and variance 1, then scaled by `weight` and moved by `bias` [C]."""
    ...

def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y[..., o] = input1[..., i] weight[o, i, j] input2[..., j] + bias[o], summed over i and j."""
    ...

def binary_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean') -> Tensor:
    """-[y log p + (1 - y) log(1 - p)] from probabilities, the logarithms clamped to at least -100."""
    ...

def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean', pos_weight: Tensor | None = None) -> Tensor:
    """-[w y log s(z) + (1 - y) log(1 - s(z))] from logits z, as (1 - y) z + max(-z, 0) + log(1 + e^-|z|)."""
    ...

def capsule_margin_loss(lengths: Tensor, target: Tensor, positive: float = 0.9, negative: float = 0.1, weight: float = 0.5, reduction: str = 'mean') -> Tensor:
    """T max(0, positive - v)^2 + weight (1 - T) max(0, v - negative)^2 summed over classes: lengths v and targets T
    [..., classes]."""
    ...

def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x above 0, alpha * (e^(x / alpha) - 1) below."""
    ...

def celu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """`celu`, in place."""
    ...

def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """The channels of [N, C, ...] dealt out anew: channel (g, i) of `groups` groups goes to (i, g)."""
    ...

def contrastive_loss(x1: Tensor, x2: Tensor, target: Tensor, margin: float = 1.0, reduction: str = 'mean') -> Tensor:
    """(target d^2 + (1 - target) max(0, margin - d)^2) / 2 with d = |x1 - x2| over the last axis; `target` is 1 for
    pairs that belong together and 0 for others. The gradient at d = 0 is 0."""
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

def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean') -> Tensor:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1; `cos` is that of the rows [N, D] (or [D])."""
    ...

def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-08) -> Tensor:
    """x1 . x2 / (max(|x1|, eps) * max(|x2|, eps)) along `dim`; the tensors broadcast."""
    ...

def cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, ignore_index: int = -100, reduce: bool | None = None, reduction: str = 'mean', label_smoothing: float = 0.0) -> Tensor:
    """-log softmax(input)[class]: logits [N, K, ...] (or [K]) with integer labels [N, ...], or with class probabilities
    of the shape of the logits. `weight` [K] scales each class; the mean divides by the weights of the labels used."""
    ...

def ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int] | int, target_lengths: Tensor | Sequence[int] | int, blank: int = 0, reduction: str = 'mean', zero_infinity: bool = False) -> Tensor:
    """The negative logarithm of the probability of each target, summed over its alignments with the time steps."""
    ...

def deform_unfold(input: Tensor, offset: Tensor, mask: Tensor | None = None, kernel_size: int | Sequence[int] = 3, stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1) -> Tensor:
    """The columns of a deformable convolution, [N, C, kh*kw, oh, ow]: `unfold` with every tap moved by its offset."""
    ...

def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, generator: Generator | None = None) -> Tensor:
    """While training, each element 0 with probability `p` (in steps of 2^-16) and otherwise divided by 1 - p."""
    ...

def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, generator: Generator | None = None) -> Tensor:
    """While training, each channel of [N, C, L] or [C, L] 0 with probability `p`, otherwise divided by 1 - p."""
    ...

def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, generator: Generator | None = None) -> Tensor:
    """While training, each channel of [N, C, H, W] 0 with probability `p`, otherwise divided by 1 - p. Three axes are
    [N, C, L], as in PyTorch."""
    ...

def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, generator: Generator | None = None) -> Tensor:
    """While training, each channel of [N, C, D, H, W] or [C, D, H, W] 0 with probability `p`, otherwise divided by
    1 - p."""
    ...

def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x above 0, alpha * (e^x - 1) below."""
    ...

def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """`elu`, in place."""
    ...

def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:
    """Rows of `weight` [count, width] by number: `input` [...] gives [..., width].
    The row `padding_idx` gets no gradient. With `max_norm` the rows that are used are first scaled, in place, to a
    norm of order `norm_type` of at most that. `scale_grad_by_freq` divides the gradient of a row by how often it is
    used in this call. Gradients are dense whatever `sparse` says."""
    ...

def embedding_bag(input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = 'mean', sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None) -> Tensor:
    """The 'sum', 'mean' or 'max' of the rows of `weight` [count, width] in each bag of numbers: [bags, width]."""
    ...

def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False, *, generator: Generator | None = None) -> Tensor:
    """`alpha_dropout` of whole channels of [N, C, ...]."""
    ...

def fold(input: Tensor, output_size: int | Sequence[int], kernel_size: int | Sequence[int], dilation: int | Sequence[int] = 1, padding: int | Sequence[int] = 0, stride: int | Sequence[int] = 1) -> Tensor:
    """Columns of `unfold` added back into a plane: [N, C*kh*kw, patches] to [N, C, H, W]; overlaps are summed."""
    ...

def fractional_max_pool2d(input: Tensor, kernel_size: int | Sequence[int], output_size: int | Sequence[int] | None = None, output_ratio: float | Sequence[float] | None = None, return_indices: bool = False, _random_samples: Tensor | None = None, *, generator: Generator | None = None) -> Any:
    """The maxima of `output_size` windows along each of the last two axes of [N, C, H, W] or [C, H, W], or of
    `output_ratio` times the extents. Windows have the size `kernel_size`; where they start is drawn for each channel,
    or follows from `_random_samples` [N, C, 2] in [0, 1)."""
    ...

def fractional_max_pool2d_with_indices(input: Tensor, kernel_size: int | Sequence[int], output_size: int | Sequence[int] | None = None, output_ratio: float | Sequence[float] | None = None, return_indices: bool = False, _random_samples: Tensor | None = None, *, generator: Generator | None = None) -> ValuesIndices:
    """`fractional_max_pool2d` with the positions of the maxima, whatever `return_indices` says."""
    ...

def fractional_max_pool3d(input: Tensor, kernel_size: int | Sequence[int], output_size: int | Sequence[int] | None = None, output_ratio: float | Sequence[float] | None = None, return_indices: bool = False, _random_samples: Tensor | None = None, *, generator: Generator | None = None) -> Any:
    """The maxima of windows along each of the last three axes; see `fractional_max_pool2d`."""
    ...

def fractional_max_pool3d_with_indices(input: Tensor, kernel_size: int | Sequence[int], output_size: int | Sequence[int] | None = None, output_ratio: float | Sequence[float] | None = None, return_indices: bool = False, _random_samples: Tensor | None = None, *, generator: Generator | None = None) -> ValuesIndices:
    """`fractional_max_pool3d` with the positions of the maxima, whatever `return_indices` says."""
    ...

def gaussian_kl(mean: Tensor, log_variance: Tensor, reduction: str = 'mean') -> Tensor:
    """The divergence of N(mean, e^log_variance) from N(0, 1), summed over the last axis: -(1 + log s2 - m^2 - s2) / 2."""
    ...

def gaussian_nll_loss(input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-06, reduction: str = 'mean') -> Tensor:
    """(log var + (input - target)^2 / var) / 2, the variance at least `eps` (without slope there); `full` adds
    log(2 pi) / 2. `var` is a number, or has the shape of `input`, or has one number for each row of it: that shape with
    a last axis of 1, or without it."""
    ...

def gelu(input: Tensor, approximate: str = 'none') -> Tensor:
    """x * Phi(x) with the normal distribution function; `approximate="tanh"` is the tanh form."""
    ...

def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half along `dim` times the sigmoid of the second."""
    ...

def grid_sample(input: Tensor, grid: Tensor, mode: str = 'bilinear', padding_mode: str = 'zeros', align_corners: bool | None = None) -> Tensor:
    """[N, C, H, W] at the positions of `grid` [N, h, w, 2] (x, y from -1 to 1): [N, C, h, w]; or [N, C, D, H, W] at
    [N, d, h, w, 3] (x, y, z). `mode` is 'bilinear', 'nearest' or 'bicubic' (planes only). Places outside are 0, or with
    `padding_mode` 'border' the edge, with 'reflection' mirrored. -1 and 1 are the outer edges of the outermost
    elements, or their centres with `align_corners`. A position that is NaN counts as outside."""
    ...

def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05) -> Tensor:
    """Each of `num_groups` groups of channels of each sample of [N, C, ...] normalised; `weight` and `bias` [C]."""
    ...

def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 1e-10, dim: int = -1, *, generator: Generator | None = None) -> Tensor:
    """A sample of the classes along `dim`: softmax((logits + g) / tau) with draws g of Gumbel's distribution. With
    `hard` it is 1 at the most likely class and 0 elsewhere, with the gradient of the softmax. `eps` has no effect."""
    ...

def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x outside [-lambd, lambd], 0 inside; NaN stays NaN."""
    ...

def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """(x + 3) / 6 clamped between 0 and 1, with slope 0 from there on and at NaN."""
    ...

def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * clip(x + 3, 0, 6) / 6, with slope 0 up to -3, and 1 from 3 on and at NaN."""
    ...

def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """`input` clamped between two numbers, with slope 0 at and beyond them; NaN stays NaN."""
    ...

def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """`hardtanh`, in place."""
    ...

def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean') -> Tensor:
    """input where the target is 1, max(0, margin - input) where it is -1."""
    ...

def huber_loss(input: Tensor, target: Tensor, reduction: str = 'mean', delta: float = 1.0, weight: Tensor | None = None) -> Tensor:
    """e = |input - target|: e^2 / 2 up to delta, delta * (e - delta / 2) above; times `weight` where one is given. The
    mean divides by the number of elements."""
    ...

def instance_norm(input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-05) -> Tensor:
    """[N, C, ...] with each channel of each sample brought to mean 0 and variance 1; the rest as in `batch_norm`."""
    ...

def interpolate(input: Tensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None, mode: str = 'nearest', align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool = False) -> Tensor:
    """[N, C, ...] with one to three axes behind the channels brought to `size`, or made `scale_factor` times as long
    (rounded down). `mode` is 'nearest', 'nearest-exact', 'linear' (one axis), 'bilinear' or 'bicubic' (two),
    'trilinear' (three) or 'area' (means). With `align_corners` the outermost positions stay where they are."""
    ...

def kl_div(input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean', log_target: bool = False) -> Tensor:
    """target * (log target - input), with `input` (and with `log_target` also the target) given as logarithms; 0 where
    the target is 0. 'batchmean' divides the sum by the first extent."""
    ...

def l1_loss(input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean', weight: Tensor | None = None) -> Tensor:
    """|input - target|, times `weight` where one is given; the mean then divides by the sum of weights."""
    ...

def layer_norm(input: Tensor, normalized_shape: Sequence[int] | int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axes; the variance divides by the count."""
    ...

def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x above 0, negative_slope * x below."""
    ...

def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """`leaky_relu`, in place."""
    ...

def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input [..., K] times the transpose of weight [N, K] plus bias [N]: [..., N]. A weight [K] with a scalar
    bias gives [...]."""
    ...

def linear_cross_entropy(input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None, weight: Tensor | None = None, reduction: str = 'mean', ignore_index: int | None = None, label_smoothing: float = 0.0, options: object = None) -> Tensor:
    """`cross_entropy` of `linear(input, linear_weight, linear_bias)`: input [N, K] (or [K]), linear_weight [C, ..., K],
    target [N, ...]. `options` choose how PyTorch computes it and have no effect."""
    ...

def local_response_norm(input: Tensor, size: int, alpha: float = 0.0001, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha * mean of x^2 over `size` neighbouring channels)^beta; channels beyond the ends count as 0."""
    ...

def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DTypeLike | None = None) -> Tensor:
    """`log_softmax`; without `dim`, along axis 0 of tensors of rank 0, 1 and 3, else along axis 1."""
    ...

def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)) without overflow."""
    ...

def lp_pool1d(input: Tensor, norm_type: float, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, ceil_mode: bool = False) -> Tensor:
    """(sum of x^norm_type)^(1 / norm_type) over every window of the last axis."""
    ...

def lp_pool2d(input: Tensor, norm_type: float, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, ceil_mode: bool = False) -> Tensor:
    """(sum of x^norm_type)^(1 / norm_type) over every window of the last two axes."""
    ...

def lp_pool3d(input: Tensor, norm_type: float, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, ceil_mode: bool = False) -> Tensor:
    """(sum of x^norm_type)^(1 / norm_type) over every window of the last three axes."""
    ...

def margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean') -> Tensor:
    """max(0, -target * (input1 - input2) + margin); `target` is 1 where the first should be larger, -1 else."""
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

def max_pool2d_with_indices(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: bool = False) -> ValuesIndices:
    """`max_pool2d` with `return_indices`, whatever that says."""
    ...

@overload
def max_pool3d(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: Literal[False] = False) -> Tensor:
    """The maximum of every window over the last three axes; see `max_pool2d`."""
    ...
@overload
def max_pool3d(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, *, return_indices: Literal[True]) -> ValuesIndices:
    """The maximum of every window over the last three axes; see `max_pool2d`."""
    ...

def max_pool3d_with_indices(input: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: bool = False) -> ValuesIndices:
    """`max_pool3d` with `return_indices`, whatever that says."""
    ...

def max_unpool1d(input: Tensor, indices: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, output_size: Sequence[int] | None = None) -> Tensor:
    """The inverse of `max_pool1d` with its indices; see `max_unpool2d`."""
    ...

def max_unpool2d(input: Tensor, indices: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, output_size: Sequence[int] | None = None) -> Tensor:
    """Maxima put back where `max_pool2d(..., return_indices=True)` found them, zeros elsewhere. `output_size` chooses
    among the sizes that pool to this one. Of several values for one place the last stays."""
    ...

def max_unpool3d(input: Tensor, indices: Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, output_size: Sequence[int] | None = None) -> Tensor:
    """The inverse of `max_pool3d` with its indices; see `max_unpool2d`."""
    ...

def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x))."""
    ...

def mse_loss(input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean', weight: Tensor | None = None) -> Tensor:
    """(input - target) squared, times `weight` where one is given; the mean then divides by the sum of weights."""
    ...

def multi_head_attention_forward(query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Tensor | None, in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float, out_proj_weight: Tensor, out_proj_bias: Tensor | None, training: bool = True, key_padding_mask: Tensor | None = None, need_weights: bool = True, attn_mask: Tensor | None = None, use_separate_proj_weight: bool = False, q_proj_weight: Tensor | None = None, k_proj_weight: Tensor | None = None, v_proj_weight: Tensor | None = None, static_k: Tensor | None = None, static_v: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False, *, generator: Generator | None = None) -> tuple[Tensor, Tensor | None]:
    """Attention of query [L, N, E] to key and value [S, N, ...] (or without the batch N) in `num_heads` heads between
    input and output projections: [L, N, E], and with `need_weights` the weights [N, L, S], averaged over the heads or
    [N, heads, L, S]."""
    ...

def multi_margin_loss(input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean') -> Tensor:
    """The sum over wrong classes k of max(0, margin - x[y] + x[k])^p over the number of classes, times the weight of
    class y: [N, C] and labels [N], or [C] and one label. A label that is no class raises IndexRangeError when the loss
    is computed."""
    ...

def multilabel_margin_loss(input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean') -> Tensor:
    """The sum over right classes y and wrong ones k of max(0, 1 - x[y] + x[k]), over the number of classes: [N, C] or
    [C]. The target has the shape of the input and lists the right classes of each row, up to the first -1."""
    ...

def multilabel_soft_margin_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean') -> Tensor:
    """The mean over classes [..., C] of binary cross entropy from logits."""
    ...

def native_channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """The channels of [N, C, ...] dealt out anew: channel (g, i) of `groups` groups goes to (i, g)."""
    ...

def nll_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None, ignore_index: int = -100, reduce: bool | None = None, reduction: str = 'mean') -> Tensor:
    """-input[class] from log-probabilities [N, K, ...] and labels [N, ...]; see `cross_entropy`."""
    ...

def normalize(input: Tensor, p: float = 2.0, dim: int | Sequence[int] = 1, eps: float = 1e-12, out: None = None) -> Tensor:
    """x / max(norm of order `p` over `dim`, eps)."""
    ...

def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """[...] integers to [..., num_classes] int64: 1 at the class, 0 elsewhere. A class outside 0 to num_classes - 1
    raises IndexRangeError when the value is computed. With -1 there are as many classes as the largest number asks for;
    that is read, so inside `weft.compile` the number of classes must be given."""
    ...

def pad(input: Tensor, pad: Sequence[int], mode: str = 'constant', value: float | None = None) -> Tensor:
    """Elements of `value` around the last axes: `pad` is (low, high) of the last axis, then of the one before, ...
    Negative numbers cut off. Instead of a value, `mode` takes the tensor's own elements: 'reflect' mirrors them at the
    edge, 'replicate' repeats the edge, 'circular' goes on at the other end; these leave the first axis alone."""
    ...

def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False) -> Tensor:
    """The norm of order `p` of x1 - x2 + eps over the last axis; the tensors broadcast."""
    ...

def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The distances of order `p` between all pairs of rows of [N, M]: (0, 1), (0, 2), ..., (N - 2, N - 1)."""
    ...

def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """[..., C*r*r, H, W] to [..., C, H*r, W*r]: each group of r*r channels becomes an r x r block."""
    ...

def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """[..., C, H*r, W*r] to [..., C*r*r, H, W]: the inverse of `pixel_shuffle`."""
    ...

def poisson_nll_loss(input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, size_average: bool | None = None, eps: float = 1e-08, reduce: bool | None = None, reduction: str = 'mean') -> Tensor:
    """e^input - target * input, or input - target * log(input + eps) if `log_input` is False; `full` adds Stirling's
    target log target - target + log(2 pi target) / 2 for targets above 1."""
    ...

def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x above 0, weight * x below; one weight, or one for each channel (axis 1)."""
    ...

def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0), with slope 0 at 0; NaN stays NaN."""
    ...

def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x, 0), 6)."""
    ...

def relu_(input: Tensor) -> Tensor:
    """`relu`, in place."""
    ...

def rms_norm(input: Tensor, normalized_shape: Sequence[int] | int, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axes; `eps` is the dtype's epsilon unless given."""
    ...

def rrelu(input: Tensor, lower: float = 0.125, upper: float = 0.3333333333333333, training: bool = False, inplace: bool = False, *, generator: Generator | None = None) -> Tensor:
    """x above 0, a * x below: while training `a` is uniform between `lower` and `upper` for each element, otherwise it
    is their mean."""
    ...

def rrelu_(input: Tensor, lower: float = 0.125, upper: float = 0.3333333333333333, training: bool = False, *, generator: Generator | None = None) -> Tensor:
    """`rrelu`, in place."""
    ...

def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *, causal: str | None = None, generator: Generator | None = None) -> Tensor:
    """softmax(scale * query @ keyᵀ + mask) @ value, in memory linear in the number of keys."""
    ...

def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """The scaled `elu` that keeps mean 0 and variance 1."""
    ...

def selu_(input: Tensor) -> Tensor:
    """`selu`, in place."""
    ...

def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + e^-x), from e^-|x| so that nothing overflows."""
    ...

def sigmoid_focal_loss(input: Tensor, target: Tensor, alpha: float = 0.25, gamma: float = 2.0, reduction: str = 'none') -> Tensor:
    """-a (1 - p)^gamma log p from logits: p is the probability of the right answer, a is `alpha` for targets of 1 and
    1 - alpha for 0 (1 for both where `alpha` is negative). Name and meaning are torchvision's."""
    ...

def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x)."""
    ...

def smooth_l1_loss(input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean', beta: float = 1.0) -> Tensor:
    """e = |input - target|: e^2 / (2 beta) below beta, e - beta / 2 above."""
    ...

def soft_margin_loss(input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean') -> Tensor:
    """log(1 + e^(-target * input)) with targets of 1 and -1."""
    ...

def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DTypeLike | None = None) -> Tensor:
    """`softmax`; without `dim`, along axis 0 of tensors of rank 0, 1 and 3, else along axis 1."""
    ...

def softmax_focal_loss(input: Tensor, target: Tensor, alpha: float | Tensor | None = 0.25, gamma: float = 2.0, reduction: str = 'mean', ignore_index: int = -100) -> Tensor:
    """-alpha (1 - p)^gamma log p, where p is the softmax of logits [N, K, ...] (or [K]) at integer labels [N, ...].
    `alpha` is one number for all classes, or one for each class [K]; None is 1. Labels that are `ignore_index` give 0,
    and the mean divides by the number of the others."""
    ...

def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DTypeLike | None = None) -> Tensor:
    """`softmax` of -x."""
    ...

def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + e^(beta x)) / beta; x itself where beta x > threshold."""
    ...

def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd, and 0 where it would pass it; NaN stays NaN."""
    ...

def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    ...

def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    ...

def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x)."""
    ...

def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x above `threshold`, `value` at and below it; NaN stays NaN."""
    ...

def threshold_(input: Tensor, threshold: float, value: float) -> Tensor:
    """`threshold`, in place."""
    ...

def triplet_margin_loss(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2.0, eps: float = 1e-06, swap: bool = False, size_average: bool | None = None, reduce: bool | None = None, reduction: str = 'mean') -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) with the distances of `pairwise_distance`. With `swap`
    the negative's distance is the smaller of those to the anchor and to the positive."""
    ...

def triplet_margin_with_distance_loss(anchor: Tensor, positive: Tensor, negative: Tensor, *, distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0, swap: bool = False, reduction: str = 'mean') -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) with any distance d of two tensors, that of
    `pairwise_distance` unless given. With `swap` the negative's distance is the smaller of those to the anchor and to
    the positive."""
    ...

def unfold(input: Tensor, kernel_size: int | Sequence[int], dilation: int | Sequence[int] = 1, padding: int | Sequence[int] = 0, stride: int | Sequence[int] = 1) -> Tensor:
    """The patches of [N, C, H, W] (or [C, H, W]) as columns: [N, C*kh*kw, patches], rows in the order (c, i, j)."""
    ...

def upsample(input: Tensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None, mode: str = 'nearest', align_corners: bool | None = None) -> Tensor:
    """`interpolate` under its old name."""
    ...

def upsample_bilinear(input: Tensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None) -> Tensor:
    """`interpolate` with mode 'bilinear' and corners aligned."""
    ...

def upsample_nearest(input: Tensor, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None) -> Tensor:
    """`interpolate` with mode 'nearest'."""
    ...
