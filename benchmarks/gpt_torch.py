"""The GPT of `gpt.py` in PyTorch, as its users write it: autocast to bfloat16, `scaled_dot_product_attention`, fused
AdamW; compiled, it is the loss that goes through `torch.compile`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from gpt import Gpt
from torch_modes import Mode


def loss_of(case: Gpt, p: dict[str, torch.Tensor], tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    batch, length = tokens.shape
    width, heads = case.width, case.heads

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (width,), p[name], p[f"{name}.bias"])

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, p[name], p[f"{name}.bias"])

    with torch.autocast(tokens.device.type, torch.bfloat16):
        x = F.embedding(tokens, p["tokens"]) + p["positions"][:length]
        for layer in range(case.layers):
            qkv = linear(f"{layer}.qkv", norm(f"{layer}.norm1", x)).view(batch, length, 3, heads, width // heads)
            q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
            x = x + linear(f"{layer}.out", seen)
            hidden = F.gelu(linear(f"{layer}.up", norm(f"{layer}.norm2", x)), approximate="tanh")
            x = x + linear(f"{layer}.down", hidden)
        logits = F.linear(norm("norm", x), p["tokens"])
        return F.cross_entropy(logits.view(batch * length, -1), targets.view(-1))


class GptRunner:
    def __init__(self, case: Gpt, mode: Mode):
        self.case = case
        arrays, inputs = case.arrays()
        inputs = [torch.tensor(array) for array in inputs]
        parameters = {name: torch.tensor(array).requires_grad_() for name, array in arrays.items()}
        optimizer = torch.optim.AdamW(
            list(parameters.values()),
            lr=case.learning_rate,
            betas=case.betas,
            weight_decay=case.weight_decay,
            fused=True,
            capturable=mode.graph,
        )
        loss_in_mode = mode.compiled(lambda tokens, targets: loss_of(case, parameters, tokens, targets))
        self.losses: list[float] = []

        def step() -> torch.Tensor:
            loss = loss_in_mode(*inputs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        initial = [parameter.detach().clone() for parameter in parameters.values()] if mode.graph else []

        def restore() -> None:
            with torch.no_grad():
                for parameter, value in zip(parameters.values(), initial, strict=True):
                    parameter.copy_(value)
                for state in optimizer.state.values():
                    for value in state.values():
                        value.zero_()

        self.step = mode.captured(step, restore)

    def reset(self) -> None:
        """Training goes on: only the first steps are compared."""

    def run(self, steps: int) -> torch.Tensor:
        for _ in range(steps):
            loss = self.step()
            if len(self.losses) < self.case.warmup:
                self.losses.append(loss.item())
        return loss

    def values(self, result: torch.Tensor) -> list[float]:
        return self.losses

    def memory(self) -> int:
        """The most bytes that tensors took at once."""
        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
