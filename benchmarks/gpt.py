"""GPT-2's small model (12 layers, 768 wide, 12 heads): sizes, initial parameters and data, the same for all frameworks.

The vocabulary of 50,257 tokens is padded to 50,304, a multiple of 128, in both: rows of an odd length suit no matrix
unit. Parameters are float32 and are cast to bfloat16 for every matrix product; the residual stream, the norms and the
loss are float32, as in torch's autocast. Embedding and output projection share their weights. No dropout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

DRAWN = 1_000_003  # random numbers, at most, that a parameter is made of: drawing all of them would take a second


@dataclass(frozen=True)
class Gpt:
    """Sizes, and how the training step is timed: `steps` at a time, after `warmup` steps whose losses are compared."""

    name: str = "gpt"
    title: str = "GPT, 124M parameters, bf16, 16 x 1024 tokens: one step"
    aim: str = "no slower than torch.compile"
    layers: int = 12
    width: int = 768
    heads: int = 12
    words: int = 50257
    vocabulary: int = 50304
    length: int = 1024
    batch: int = 16
    learning_rate: float = 6e-4
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    steps: int = 5
    unit: int = 1
    samples: int = 1
    warmup: int = 5
    tolerance: float = 2e-3

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    @property
    def flops(self) -> int:
        """Of a step: six for each token and weight of a product, and twelve for each pair of causal positions."""
        matrices = 12 * self.layers * self.width**2 + self.vocabulary * self.width
        return 6 * self.tokens * matrices + 6 * self.layers * self.width * self.length * self.tokens

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameters by name; the weights of linear layers are [out, in]."""
        width = self.width
        shapes: dict[str, tuple[int, ...]] = {"tokens": (self.vocabulary, width), "positions": (self.length, width)}
        for layer in range(self.layers):
            for name, outside, inside in (("qkv", 3, 1), ("out", 1, 1), ("up", 4, 1), ("down", 1, 4)):
                shapes[f"{layer}.{name}"] = (outside * width, inside * width)
                shapes[f"{layer}.{name}.bias"] = (outside * width,)
            for name in ("norm1", "norm2"):
                shapes[f"{layer}.{name}"] = shapes[f"{layer}.{name}.bias"] = (width,)
        return shapes | {"norm": (width,), "norm.bias": (width,)}

    def arrays(self) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Initial parameters as GPT-2 draws them, and (tokens, targets) [batch, length], from a fixed seed."""
        rng = np.random.default_rng(7)
        parameters: dict[str, np.ndarray] = {}
        for name, shape in self.shapes().items():
            if "norm" in name or name.endswith("bias"):
                parameters[name] = np.full(shape, float("bias" not in name), np.float32)
                continue
            deep = name.endswith((".out", ".down"))  # what is added to the residual stream, once for each block
            scale = np.float32(0.02 / np.sqrt(2 * self.layers) if deep else 0.02)
            drawn = rng.standard_normal(min(math.prod(shape), DRAWN), dtype=np.float32)
            parameters[name] = np.resize(scale * drawn, shape)
        text = rng.integers(0, self.words, (self.batch, self.length + 1))
        return parameters, (text[:, :-1].copy(), text[:, 1:].copy())


GPT = Gpt()
TINY_GPT = Gpt(layers=2, width=32, heads=2, words=90, vocabulary=96, length=16, batch=2)
