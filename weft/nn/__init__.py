"""Layers, losses and models, made of tensor operations only. `CONTENTS` is the table of contents: file by file."""

from __future__ import annotations

import importlib
from typing import Any

from weft.nn import functional

# Files of this package and the names that they export; a file is loaded when one of its names is first used.
CONTENTS: dict[str, tuple[str, ...]] = {
    "containers": ("ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"),
    "graph_model": ("Input", "Lambda", "Model"),
    "activation": (),
    "softmax": (),
    "dropout": (),
    "utility": (),
    "padding": (),
    "linear": ("Linear",),
    "pooling": (),
    "upsampling": (),
    "distance": (),
    "convolution": (),
    "normalization": (),
    "residual": (),
    "recurrent": (),
    "attention": (
        "Attention",
        "CrossAttention",
        "GroupedQueryAttention",
        "KeyValueCache",
        "MultiHeadAttention",
        "MultiheadAttention",
        "RotaryEmbedding",
        "SelfAttention",
    ),
    "transformer": (
        "DecoderLayer",
        "FeedForward",
        "PatchEmbed",
        "PositionalEncoding",
        "Transformer",
        "TransformerDecoder",
        "TransformerDecoderLayer",
        "TransformerEncoder",
        "TransformerEncoderLayer",
    ),
    "embedding": ("Embedding", "EmbeddingBag", "TimeEmbedding"),
    "gating": ("GatedLinearUnit", "SqueezeExcitation", "SwiGLU"),
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
    "loss": (),
}
# What is no layer.
_OTHERS = {
    "module": ("Module",),
    "parameter": ("Buffer", "Parameter"),
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
