"""A GPT over characters: trained with the Trainer, then sampled token by token with a key-value cache.

python examples/char_gpt.py --prompt "ROMEO:" --temperature 0.8 --text my.txt
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import weft
from weft import nn
from weft.data import CharTokenizer, DataLoader, pack_tokens
from weft.generation import generate
from weft.train import ProgressBar, Trainer


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


def next_token_loss(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a file to learn; without one, the help pages of Python")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--prompt", default="The ")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few steps, for the tests")
    options = parser.parse_args(arguments)

    text = Path(options.text).read_text() if options.text else "\n".join(topics.values())[:300_000]
    tokenizer = CharTokenizer(text)
    prompt = weft.tensor(tokenizer.encode(options.prompt)).expand(3, -1)  # three texts that begin with it
    length, batch, steps = (32, 16, 60) if options.short else (128, 16, options.steps)
    windows = pack_tokens(tokenizer.encode(text), length)  # inputs [T], and targets [T] one position on

    weft.manual_seed(0)
    model = CharGPT(tokenizer.vocab_size)
    trainer = Trainer(
        model, next_token_loss, weft.optim.AdamW(model.parameters(), lr=3e-3), device=options.device, clip_norm=1.0,
        callbacks=[ProgressBar()],
    )  # fmt: skip
    loader = DataLoader(windows, batch, shuffle=True, seed=0, last="drop")
    history = trainer.fit(loader, epochs=1000, max_steps=steps)

    new = length - prompt.shape[1]  # further positions were not learned
    written = generate(model, prompt.to(trainer.device), new, options.temperature, top_k=40, top_p=0.95)
    for row in written.tolist():
        print("-" * 80, tokenizer.decode(row), sep="\n")
    return {"loss": history["loss"][-1], "classes": tokenizer.vocab_size, "shape": written.shape}


if __name__ == "__main__":
    main()
