"""The GPT of `gpt.py` in Weft, in plain tensor code: what a training step is before anybody has written layers.

python benchmarks/gpt_weft.py --device cuda --steps 20       train on random tokens and print losses and times
"""

from __future__ import annotations

import argparse
import time

import weft
import weft.nn.functional as F
from gpt import GPT, TINY_GPT, Gpt


def loss_of(case: Gpt, p: dict[str, weft.Tensor], tokens: weft.Tensor, targets: weft.Tensor) -> weft.Tensor:
    """Mean cross entropy of the next token. tokens and targets are [batch, length]."""
    batch, length = tokens.shape
    width, heads = case.width, case.heads

    def norm(name: str, x: weft.Tensor) -> weft.Tensor:  # float32 [batch, length, width], as is what it returns
        return F.layer_norm(x, (width,), p[name], p[f"{name}.bias"])

    def linear(name: str, x: weft.Tensor) -> weft.Tensor:
        return F.linear(x.bfloat16(), p[name].bfloat16(), p[f"{name}.bias"].bfloat16())

    x = F.embedding(tokens, p["tokens"]) + p["positions"][:length]
    for layer in range(case.layers):
        qkv = linear(f"{layer}.qkv", norm(f"{layer}.norm1", x)).reshape(batch, length, 3, heads, width // heads)
        q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))  # [batch, heads, length, width / heads]
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + linear(f"{layer}.out", seen)
        hidden = F.gelu(linear(f"{layer}.up", norm(f"{layer}.norm2", x)), approximate="tanh")
        x = x + linear(f"{layer}.down", hidden)
    logits = F.linear(norm("norm", x).bfloat16(), p["tokens"].bfloat16())  # [batch, length, vocabulary]
    return F.cross_entropy(logits.reshape(batch * length, -1).float(), targets.reshape(-1))


class GptRunner:
    """Parameters, optimizer and the compiled step. `losses` are those of the first steps, which are compared."""

    def __init__(self, case: Gpt):
        self.case = case
        arrays, inputs = case.arrays()
        self.inputs = [weft.tensor(array) for array in inputs]
        parameters = {name: weft.tensor(array, requires_grad=True) for name, array in arrays.items()}
        for name, parameter in parameters.items():
            parameter.name = name
        optimizer = weft.optim.AdamW(
            list(parameters.values()), lr=case.learning_rate, betas=case.betas, weight_decay=case.weight_decay
        )
        self.losses: list[float] = []

        @weft.compile
        def step(tokens, targets):
            loss = loss_of(case, parameters, tokens, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        self.step = step

    def reset(self) -> None:
        """Training goes on: only the first steps are compared."""

    def run(self, steps: int) -> weft.Tensor:
        for _ in range(steps):
            loss = self.step(*self.inputs)
            if len(self.losses) < self.case.warmup:
                self.losses.append(loss.item())
        return loss

    def values(self, result: weft.Tensor) -> list[float]:
        return self.losses

    def memory(self) -> int:
        """Bytes that the plan needs at once: parameters, state, data and temporaries."""
        return self.step.plan.memory().peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true", help="two layers of 32, for a look without a GPU")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    weft.set_default_device(options.device)
    case = TINY_GPT if options.tiny else GPT
    start = time.perf_counter()
    runner = GptRunner(case)
    for number in range(options.steps):
        loss = runner.run(1).item()
        now = time.perf_counter()
        print(f"step {number:>3}  loss {loss:.4f}  {1e3 * (now - start):8.1f} ms", flush=True)
        start = now


if __name__ == "__main__":
    main()
