"""Functions of tensors under PyTorch's `torch.nn.functional` names."""

from weft.functions import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    elu,
    embedding,
    gelu,
    hardsigmoid,
    hardswish,
    hardtanh,
    huber_loss,
    l1_loss,
    layer_norm,
    leaky_relu,
    linear,
    log_softmax,
    logsigmoid,
    mish,
    mse_loss,
    nll_loss,
    one_hot,
    pad,
    relu,
    relu6,
    rms_norm,
    selu,
    sigmoid,
    silu,
    smooth_l1_loss,
    softmax,
    softplus,
    softsign,
    tanh,
)  # fmt: skip
from weft.random import dropout

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "dropout", "elu", "embedding",
    "gelu", "hardsigmoid", "hardswish", "hardtanh", "huber_loss", "l1_loss", "layer_norm", "leaky_relu", "linear",
    "log_softmax", "logsigmoid", "mish", "mse_loss", "nll_loss", "one_hot", "pad", "relu", "relu6", "rms_norm",
    "selu", "sigmoid", "silu", "smooth_l1_loss", "softmax", "softplus", "softsign", "tanh",
]  # fmt: skip
