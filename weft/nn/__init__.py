"""Layers, losses and models, made of tensor operations only. `CONTENTS` is the table of contents: file by file."""

from __future__ import annotations

import importlib
from typing import Any

from weft.nn import functional  # noqa: F401

# Files of this package and the names that they export; a file is loaded when one of its names is first used.
CONTENTS: dict[str, tuple[str, ...]] = {
    "containers": ("ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"),
    "graph_model": ("Input", "Lambda", "Model"),
    "activation": (
        "CELU",
        "ELU",
        "GELU",
        "GLU",
        "Activation",
        "Hardshrink",
        "Hardsigmoid",
        "Hardswish",
        "Hardtanh",
        "LeakyReLU",
        "LogSigmoid",
        "Mish",
        "PReLU",
        "RReLU",
        "ReLU",
        "ReLU6",
        "SELU",
        "SiLU",
        "Sigmoid",
        "Softplus",
        "Softshrink",
        "Softsign",
        "Swish",
        "Tanh",
        "Tanhshrink",
        "Threshold",
    ),
    "softmax": (
        "AdaptiveLogSoftmaxWithLoss",
        "Entmax15",
        "GridSoftmax",
        "GumbelSoftmax",
        "LogSoftmax",
        "MaskedSoftmax",
        "Softmax",
        "Softmax2d",
        "Softmin",
        "Sparsemax",
    ),
    "dropout": (
        "AlphaDropout",
        "Dropout",
        "Dropout1d",
        "Dropout2d",
        "Dropout3d",
        "FeatureAlphaDropout",
        "GaussianNoise",
    ),
    "utility": (
        "Add",
        "Concat",
        "Crop",
        "Crop2d",
        "Flatten",
        "Identity",
        "Masking",
        "Mean",
        "Multiply",
        "Pad",
        "Reshape",
        "SequenceLast",
        "Split",
        "Unflatten",
    ),
    "padding": (
        "CircularPad1d",
        "CircularPad2d",
        "CircularPad3d",
        "ConstantPad1d",
        "ConstantPad2d",
        "ConstantPad3d",
        "ReflectionPad1d",
        "ReflectionPad2d",
        "ReflectionPad3d",
        "ReplicationPad1d",
        "ReplicationPad2d",
        "ReplicationPad3d",
        "ZeroPad1d",
        "ZeroPad2d",
        "ZeroPad3d",
    ),
    "linear": (
        "Bilinear",
        "Dense",
        "FullyConnected",
        "HyperbolicLinear",
        "LazyLinear",
        "Linear",
        "LocallyConnected2d",
        "OctonionLinear",
    ),
    "pooling": (
        "AdaptiveAvgPool1d",
        "AdaptiveAvgPool2d",
        "AdaptiveAvgPool3d",
        "AdaptiveMaxPool1d",
        "AdaptiveMaxPool2d",
        "AdaptiveMaxPool3d",
        "AvgPool1d",
        "AvgPool2d",
        "AvgPool3d",
        "FractionalMaxPool2d",
        "FractionalMaxPool3d",
        "GlobalAvgPool2d",
        "GlobalMaxPool2d",
        "GlobalPool",
        "LPPool1d",
        "LPPool2d",
        "LPPool3d",
        "MaxPool1d",
        "MaxPool2d",
        "MaxPool3d",
        "MaxUnpool1d",
        "MaxUnpool2d",
        "MaxUnpool3d",
    ),
    "upsampling": (
        "ChannelShuffle",
        "Fold",
        "PixelShuffle",
        "PixelUnshuffle",
        "SubpixelConv2d",
        "Unfold",
        "Upsample",
        "Upsample3d",
        "UpsamplingBilinear2d",
        "UpsamplingNearest2d",
    ),
    "distance": (
        "CosineSimilarity",
        "PairwiseDistance",
    ),
    "convolution": (),
    "normalization": (),
    "residual": (),
    "recurrent": (),
    "attention": (),
    "transformer": (),
    "embedding": (),
    "gating": (),
    "experts": (),
    "memory": (),
    "lora": (),
    "graph": (),
    "mesh": (),
    "capsule": (),
    "structured": (),
    "reservoir": (),
    "spiking": (),
    "htm": (),
    "vision": (),
    "loss": (
        "BCELoss",
        "BCEWithLogitsLoss",
        "CTCLoss",
        "CrossEntropyLoss",
        "FocalLoss",
        "GaussianKL",
        "GaussianNLLLoss",
        "HuberLoss",
        "KLDivLoss",
        "L1Loss",
        "MSELoss",
        "MultiLabelSoftMarginLoss",
        "NLLLoss",
        "NLLLoss2d",
        "PoissonNLLLoss",
        "SmoothL1Loss",
        "SoftMarginLoss",
    ),
    "margin_loss": (
        "CapsuleMarginLoss",
        "ContrastiveLoss",
        "CosineEmbeddingLoss",
        "HingeEmbeddingLoss",
        "MarginRankingLoss",
        "MultiLabelMarginLoss",
        "MultiMarginLoss",
        "TripletMarginLoss",
        "TripletMarginWithDistanceLoss",
    ),
}
# What is no layer.
_OTHERS = {
    "module": ("Module",),
    "lazy": ("LazyModuleMixin",),
    "parameter": ("Buffer", "Parameter", "UninitializedBuffer", "UninitializedParameter"),
    "registry": ("get", "layers"),
    "summary": ("summary",),
    "support": ("supports",),
}
_SUBMODULES = ("functional", "init", "utils")
_WHERE = {name: file for table in (_OTHERS, CONTENTS) for file, names in table.items() for name in names}

__all__ = sorted([*_WHERE, *_SUBMODULES])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(f"weft.nn.{_WHERE[name]}"), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"weft.nn.{name}")
    else:
        raise AttributeError(f"module 'weft.nn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
