"""A GPT over characters: trained with the Trainer, then sampled token by token with a key-value cache.

python examples/char_gpt.py --prompt "ROMEO:" --temperature 0.8 --text my.txt
"""

import argparse
import inspect

import weft
from weft import nn
from weft.data import DataLoader, TensorDataset
from weft.generation import generate
from weft.train import Perplexity, Trainer


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); positions are rotary."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.SelfAttention(width, heads, rope_base=10000.0)
        self.mlp = nn.FeedForward(width)

    def forward(self, x, cache=None):
        x = x + self.attention(self.norm1(x), is_causal=cache is None, cache=cache)
        return x + self.mlp(self.norm2(x))


class CharGPT(nn.Module):
    def __init__(self, vocabulary, width=64, heads=4, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens, cache=None):  # [B, T] -> [B, T, vocabulary]
        x = self.embedding(tokens)
        for k, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache[k])
        return self.head(self.norm(x))

    def make_cache(self, batch, max_len):
        """What `generate` asks for: the keys and values of each block."""
        return [block.attention.make_cache(batch, max_len) for block in self.blocks]
