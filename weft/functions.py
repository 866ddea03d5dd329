"""Operations as functions of tensors: what `weft` and `weft.nn.functional` re-export.

Those that are methods too are taken from `Tensor`, so each is lifted from its nodes in one place.
"""

from __future__ import annotations

from weft.cell import evaluate
from weft.ops import (
    activation,
    adaptive,
    arrange,
    batchnorm,
    conv,
    elementwise,
    graphs,
    indexing,
    linalg,
    loss,
    losses,
    movement,
    pool,
    products,
    resample,
    sample,
    similarity,
    sorting,
    windows,
)
from weft.ops import norm as norm_ops
from weft.ops.einsum import einsum as _einsum
from weft.tensor import Tensor, lift

where = lift(elementwise.where)
cat = concat = lift(movement.cat)
stack = lift(movement.stack)

searchsorted = lift(sorting.searchsorted)
bucketize = lift(sorting.bucketize)
meshgrid = lift(arrange.meshgrid)
hstack = lift(arrange.hstack)
vstack = lift(arrange.vstack)
dstack = lift(arrange.dstack)
column_stack = lift(arrange.column_stack)
cdist = lift(products.cdist)
einsum = lift(_einsum)
linear = lift(linalg.linear)
conv1d = lift(conv.conv1d)
conv2d = lift(conv.conv2d)
conv3d = lift(conv.conv3d)
conv_transpose1d = lift(conv.conv_transpose1d)
conv_transpose2d = lift(conv.conv_transpose2d)
conv_transpose3d = lift(conv.conv_transpose3d)
embedding = lift(indexing.embedding)
one_hot = lift(indexing.one_hot)
scatter_sum = lift(graphs.scatter_sum)
scatter_mean = lift(graphs.scatter_mean)
scatter_max = lift(graphs.scatter_max)
scatter_min = lift(graphs.scatter_min)
edge_softmax = lift(graphs.edge_softmax)
segment_reduce = lift(graphs.segment_reduce)
segment_rows = lift(graphs.segment_rows)
segment_softmax = lift(graphs.segment_softmax)
spmm = lift(graphs.spmm)
pad = lift(movement.pad)
relu6 = lift(activation.relu6)
leaky_relu = lift(activation.leaky_relu)
elu = lift(activation.elu)
selu = lift(activation.selu)
gelu = lift(activation.gelu)
silu = lift(activation.silu)
mish = lift(activation.mish)
softplus = lift(activation.softplus)
softsign = lift(activation.softsign)
hardswish = lift(activation.hardswish)
hardsigmoid = lift(activation.hardsigmoid)
hardtanh = lift(activation.hardtanh)
logsigmoid = lift(activation.logsigmoid)
layer_norm = lift(norm_ops.layer_norm)
rms_norm = lift(norm_ops.rms_norm)
cross_entropy = lift(loss.cross_entropy)
nll_loss = lift(loss.nll_loss)
mse_loss = lift(loss.mse_loss)
l1_loss = lift(loss.l1_loss)
smooth_l1_loss = lift(loss.smooth_l1_loss)
huber_loss = lift(loss.huber_loss)
binary_cross_entropy = lift(loss.binary_cross_entropy)
binary_cross_entropy_with_logits = lift(loss.binary_cross_entropy_with_logits)
max_pool1d = lift(pool.max_pool1d)
max_pool2d = lift(pool.max_pool2d)
max_pool3d = lift(pool.max_pool3d)
avg_pool1d = lift(pool.avg_pool1d)
avg_pool2d = lift(pool.avg_pool2d)
avg_pool3d = lift(pool.avg_pool3d)
lp_pool1d = lift(pool.lp_pool1d)
lp_pool2d = lift(pool.lp_pool2d)
lp_pool3d = lift(pool.lp_pool3d)
adaptive_avg_pool1d = lift(adaptive.adaptive_avg_pool1d)
adaptive_avg_pool2d = lift(adaptive.adaptive_avg_pool2d)
adaptive_avg_pool3d = lift(adaptive.adaptive_avg_pool3d)
adaptive_max_pool1d = lift(adaptive.adaptive_max_pool1d)
adaptive_max_pool2d = lift(adaptive.adaptive_max_pool2d)
adaptive_max_pool3d = lift(adaptive.adaptive_max_pool3d)
interpolate = lift(resample.interpolate)
upsample = lift(resample.upsample)
upsample_nearest = lift(resample.upsample_nearest)
upsample_bilinear = lift(resample.upsample_bilinear)
grid_sample = lift(sample.grid_sample)
affine_grid = lift(sample.affine_grid)
deform_unfold = lift(sample.deform_unfold)
unfold = lift(windows.unfold)
fold = lift(windows.fold)
pixel_shuffle = lift(windows.pixel_shuffle)
pixel_unshuffle = lift(windows.pixel_unshuffle)
channel_shuffle = lift(windows.channel_shuffle)
group_norm = lift(batchnorm.group_norm)
local_response_norm = lift(batchnorm.local_response_norm)
normalize = lift(similarity.normalize)
cosine_similarity = lift(similarity.cosine_similarity)
pairwise_distance = lift(similarity.pairwise_distance)
sigmoid_focal_loss = lift(losses.sigmoid_focal_loss)
triplet_margin_loss = lift(losses.triplet_margin_loss)
contrastive_loss = lift(losses.contrastive_loss)
gaussian_kl = lift(losses.gaussian_kl)
kl_div = lift(losses.kl_div)
gaussian_nll_loss = lift(losses.gaussian_nll_loss)
poisson_nll_loss = lift(losses.poisson_nll_loss)
margin_ranking_loss = lift(losses.margin_ranking_loss)
hinge_embedding_loss = lift(losses.hinge_embedding_loss)
cosine_embedding_loss = lift(losses.cosine_embedding_loss)
soft_margin_loss = lift(losses.soft_margin_loss)
multilabel_soft_margin_loss = lift(losses.multilabel_soft_margin_loss)
multi_margin_loss = lift(losses.multi_margin_loss)
capsule_margin_loss = lift(losses.capsule_margin_loss)
max_unpool1d = lift(adaptive.max_unpool1d)
max_unpool2d = lift(adaptive.max_unpool2d)
max_unpool3d = lift(adaptive.max_unpool3d)
celu = lift(activation.celu)
threshold = lift(activation.threshold)
hardshrink = lift(activation.hardshrink)
softshrink = lift(activation.softshrink)
tanhshrink = lift(activation.tanhshrink)
softmin = lift(activation.softmin)
glu = lift(activation.glu)
prelu = lift(activation.prelu)


def eval(*tensors: Tensor) -> None:
    """Compute the values of these tensors now, as one program.

    >>> x = weft.ones(2) + 1
    >>> weft.eval(x)
    """
    evaluate(tensors)


add = Tensor.add
sub = Tensor.sub
mul = Tensor.mul
div = Tensor.div
floor_divide = Tensor.floor_divide
remainder = Tensor.remainder
fmod = Tensor.fmod
pow = Tensor.pow
maximum = Tensor.maximum
minimum = Tensor.minimum

addcmul = Tensor.addcmul
addcdiv = Tensor.addcdiv
lerp = Tensor.lerp
neg = Tensor.neg
abs = Tensor.abs
sign = Tensor.sign
square = Tensor.square
reciprocal = Tensor.reciprocal

exp = Tensor.exp
exp2 = Tensor.exp2
expm1 = Tensor.expm1
log = Tensor.log
log2 = Tensor.log2
log10 = Tensor.log10
log1p = Tensor.log1p
sqrt = Tensor.sqrt
rsqrt = Tensor.rsqrt
erf = Tensor.erf

sin = Tensor.sin
cos = Tensor.cos
tan = Tensor.tan
tanh = Tensor.tanh
floor = Tensor.floor
ceil = Tensor.ceil
trunc = Tensor.trunc
round = Tensor.round

lt = Tensor.lt
le = Tensor.le
gt = Tensor.gt
ge = Tensor.ge
eq = Tensor.eq
ne = Tensor.ne
isnan = Tensor.isnan
isinf = Tensor.isinf
isfinite = Tensor.isfinite

logical_and = Tensor.logical_and
logical_or = Tensor.logical_or
logical_xor = Tensor.logical_xor
logical_not = Tensor.logical_not

bitwise_and = Tensor.bitwise_and
bitwise_or = Tensor.bitwise_or
bitwise_xor = Tensor.bitwise_xor
bitwise_not = Tensor.bitwise_not
bitwise_left_shift = Tensor.bitwise_left_shift
bitwise_right_shift = Tensor.bitwise_right_shift

masked_fill = Tensor.masked_fill
clamp = Tensor.clamp
relu = Tensor.relu
sigmoid = Tensor.sigmoid
softmax = Tensor.softmax
log_softmax = Tensor.log_softmax

sum = Tensor.sum
mean = Tensor.mean
prod = Tensor.prod
var = Tensor.var
std = Tensor.std
logsumexp = Tensor.logsumexp

max = Tensor.max
min = Tensor.min
amax = Tensor.amax
amin = Tensor.amin
argmax = Tensor.argmax
argmin = Tensor.argmin
any = Tensor.any
all = Tensor.all
count_nonzero = Tensor.count_nonzero

cumsum = Tensor.cumsum
cumprod = Tensor.cumprod
cummax = Tensor.cummax
cummin = Tensor.cummin
logcumsumexp = Tensor.logcumsumexp
diff = Tensor.diff
sort = Tensor.sort
argsort = Tensor.argsort
msort = Tensor.msort
topk = Tensor.topk
kthvalue = Tensor.kthvalue
median = Tensor.median
histc = Tensor.histc

reshape = Tensor.reshape
permute = Tensor.permute
transpose = Tensor.transpose
t = Tensor.t
movedim = Tensor.movedim
broadcast_to = Tensor.broadcast_to
squeeze = Tensor.squeeze
unsqueeze = Tensor.unsqueeze
flatten = Tensor.flatten
unflatten = Tensor.unflatten

split = Tensor.split
chunk = Tensor.chunk
unbind = Tensor.unbind
flip = Tensor.flip
roll = Tensor.roll
tile = Tensor.tile
tril = Tensor.tril
triu = Tensor.triu
index_select = Tensor.index_select
index_put = Tensor.index_put
take = Tensor.take
masked_scatter = Tensor.masked_scatter
gather = Tensor.gather
take_along_dim = Tensor.take_along_dim
scatter = Tensor.scatter
scatter_add = Tensor.scatter_add
scatter_reduce = Tensor.scatter_reduce
index_add = Tensor.index_add
index_copy = Tensor.index_copy
index_fill = Tensor.index_fill

matmul = Tensor.matmul
mm = Tensor.mm
bmm = Tensor.bmm
mv = Tensor.mv
dot = Tensor.dot
outer = Tensor.outer
clone = Tensor.clone
numel = Tensor.numel

diagonal = Tensor.diagonal
diag_embed = Tensor.diag_embed
diag = Tensor.diag
trace = Tensor.trace
rot90 = Tensor.rot90
swapaxes = Tensor.swapaxes
narrow = Tensor.narrow
select = Tensor.select
fliplr = Tensor.fliplr
flipud = Tensor.flipud
tensor_split = Tensor.tensor_split
tensordot = Tensor.tensordot
inner = Tensor.inner
kron = Tensor.kron
cross = Tensor.cross
addmm = Tensor.addmm
addmv = Tensor.addmv
addr = Tensor.addr
baddbmm = Tensor.baddbmm
addbmm = Tensor.addbmm
matrix_power = Tensor.matrix_power
norm = Tensor.norm
vander = Tensor.vander
