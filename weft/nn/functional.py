"""Functions of tensors under PyTorch's `torch.nn.functional` names."""

from __future__ import annotations

from weft.ops import activation, indexing, linalg, loss, movement, norm
from weft.random import dropout
from weft.tensor import Tensor, lift

linear = lift(linalg.linear)
embedding = lift(indexing.embedding)
one_hot = lift(indexing.one_hot)
pad = lift(movement.pad)

relu = Tensor.relu
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
sigmoid = Tensor.sigmoid
logsigmoid = lift(activation.logsigmoid)
tanh = Tensor.tanh
softmax = Tensor.softmax
log_softmax = Tensor.log_softmax

layer_norm = lift(norm.layer_norm)
rms_norm = lift(norm.rms_norm)

cross_entropy = lift(loss.cross_entropy)
nll_loss = lift(loss.nll_loss)
mse_loss = lift(loss.mse_loss)
l1_loss = lift(loss.l1_loss)
smooth_l1_loss = lift(loss.smooth_l1_loss)
huber_loss = lift(loss.huber_loss)
binary_cross_entropy = lift(loss.binary_cross_entropy)
binary_cross_entropy_with_logits = lift(loss.binary_cross_entropy_with_logits)

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "dropout", "elu", "embedding",
    "gelu", "hardsigmoid", "hardswish", "hardtanh", "huber_loss", "l1_loss", "layer_norm", "leaky_relu", "linear",
    "log_softmax", "logsigmoid", "mish", "mse_loss", "nll_loss", "one_hot", "pad", "relu", "relu6", "rms_norm",
    "selu", "sigmoid", "silu", "smooth_l1_loss", "softmax", "softplus", "softsign", "tanh",
]  # fmt: skip
