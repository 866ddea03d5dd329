"""Models that are written once and made with torch's or with Weft's layers: their names and arguments are the same."""

import numpy as np


def digits_cnn(lib):
    """(N, 64) pixels to (N, 10) logits."""
    nn = lib.nn
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )


def char_gpt(lib, vocabulary=32, width=32, heads=4, layers=2, length=24):
    """(N, T) characters to (N, vocabulary, T) logits of the next one."""
    nn, F = lib.nn, lib.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, steps, _ = x.shape
            qkv = self.qkv(self.norm1(x)).reshape(batch, steps, 3, heads, width // heads)
            q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(batch, steps, width))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

        def forward(self, tokens):
            x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)).transpose(1, 2)

    return Gpt()


def gcn(lib, adjacency, features, hidden=16, classes=4):
    """Kipf and Welling's network over a fixed graph: features of all nodes to logits of all nodes."""
    nn = lib.nn

    class Gcn(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(features, hidden, bias=False), nn.Linear(hidden, classes, bias=False)
            self.register_buffer("adjacency", adjacency)

        def forward(self, x):
            x = (self.adjacency @ self.first(x)).relu()
            return self.adjacency @ self.second(x)

    return Gcn()


def text_windows(count, length, seed=0, vocabulary=32):
    """(count, length + 1) characters of a text with structure, as numbers."""
    text = "the quick brown fox jumps over the lazy dog and runs away from it again "
    codes = np.array([(ord(one) * 7) % vocabulary for one in text * 20])
    starts = np.random.default_rng(seed).integers(0, len(codes) - length - 1, count)
    return np.stack([codes[start : start + length + 1] for start in starts]).astype(np.int64)


def karate():
    """Zachary's karate club (34 members, 78 ties): its normalised adjacency with loops, and four communities."""
    ties = (
        "0-1 0-2 0-3 0-4 0-5 0-6 0-7 0-8 0-10 0-11 0-12 0-13 0-17 0-19 0-21 0-31 1-2 1-3 1-7 1-13 1-17 1-19 1-21 1-30 "
        "2-3 2-7 2-8 2-9 2-13 2-27 2-28 2-32 3-7 3-12 3-13 4-6 4-10 5-6 5-10 5-16 6-16 8-30 8-32 8-33 9-33 13-33 14-32 "
        "14-33 15-32 15-33 18-32 18-33 19-33 20-32 20-33 22-32 22-33 23-25 23-27 23-29 23-32 23-33 24-25 24-27 24-31 "
        "25-31 26-29 26-33 27-33 28-31 28-33 29-32 29-33 30-32 30-33 31-32 31-33 32-33"
    )
    matrix = np.eye(34)
    for tie in ties.split():
        first, second = map(int, tie.split("-"))
        matrix[first, second] = matrix[second, first] = 1.0
    scale = 1.0 / np.sqrt(matrix.sum(1))
    labels = [1, 1, 1, 1, 3, 3, 3, 1, 0, 1, 3, 1, 1, 1, 0, 0, 3, 1, 0, 1, 0, 1, 0, 0, 2, 2, 0, 0, 2, 0, 0, 2, 0, 0]
    return matrix * scale[:, None] * scale[None, :], np.array(labels)
