"""Operations that read the same in Weft and in PyTorch: functions of `F` (either `nn.functional`) and tensors."""

from __future__ import annotations

from typing import Any


def layer_norm(F: Any, x, weight, bias, classes):
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def softmax(F: Any, x, weight, bias, classes):
    return F.softmax(x, dim=-1)


def gelu(F: Any, x, weight, bias, classes):
    return F.dropout(F.gelu(x + bias, approximate="tanh"), 0.1)


def cross_entropy(F: Any, x, weight, bias, classes):
    return F.cross_entropy(x, classes)


# What is called, and which of (x, weight, bias) get gradients.
OPERATIONS = {
    "layer_norm": (layer_norm, (0, 1, 2)),
    "softmax": (softmax, (0,)),
    "gelu": (gelu, (0, 2)),
    "cross_entropy": (cross_entropy, (0,)),
}
