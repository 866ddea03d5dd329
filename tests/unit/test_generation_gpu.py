"""Decoding on emulated GPUs: the tokens of the CPU, with and without a cache; no downloads between tokens."""

from __future__ import annotations

import pytest

import weft
import weft.nn as nn
from tests.unit.fake_driver import FakeGpu
from tests.unit.lockstep import Lockstep
from weft.generation import generate

pytestmark = pytest.mark.unit


class Decoder(nn.Module):
    """One causal layer with a cache."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.attention = nn.SelfAttention(8, 2, rope_base=100.0)
        self.head = nn.Linear(8, 7)

    def forward(self, tokens, cache=None):
        x = self.embedding(tokens)
        return self.head(x + self.attention(x, is_causal=cache is None, cache=cache)) * 3.0

    def make_cache(self, batch, max_len):
        return self.attention.make_cache(batch, max_len)


def run(device, **options):
    weft.manual_seed(0)
    model = Decoder().to(device)
    prompt = weft.tensor([[1, 2], [3, 4]], device=device)
    return generate(model, prompt, 5, 0.8, top_k=5, top_p=0.9, generator=weft.Generator(3), **options).tolist()


def test_tokens_are_the_cpus():
    expected = run("cpu")
    for cache in (None, False):
        assert run(Lockstep().device, cache=cache) == expected


def test_the_host_reads_nothing_between_tokens():
    device = FakeGpu().device
    weft.manual_seed(0)
    model = Decoder().to(device)
    prompt = weft.tensor([[1, 2], [3, 4]], device=device)
    spent = []
    for new in (5, 25):
        before = weft.counters()["downloads"]
        generate(model, prompt, new, 0.8, top_k=5)
        spent.append(weft.counters()["downloads"] - before)
    assert spent[0] == spent[1] <= 1
