"""A diffusion U-Net: residual blocks with group norm and a time embedding, attention at the lowest resolution."""

from __future__ import annotations

from typing import Any

import weft
import weft.nn.functional as F

TIME = 64  # width of the time embedding
GROUPS = 8


class UNet:
    """`resolutions` levels of two residual blocks each; channels double from one to the next."""

    def __init__(self, resolutions: int, channels: int = 16):
        self.params: list[Any] = []
        widths = [channels * 2**level for level in range(resolutions)]
        self.first = self.parameter(channels, 3, 3, 3)
        self.time = self.parameter(TIME, 32), self.parameter(TIME, TIME)
        self.down: list[tuple[Any, Any]] = []  # a block, or the weights of a strided convolution
        width, skips = channels, [channels]
        for level, wanted in enumerate(widths):
            for _ in range(2):
                self.down.append((self.block(width, wanted), None))
                width = wanted
                skips.append(width)
            if level < resolutions - 1:
                self.down.append((None, self.parameter(width, width, 3, 3)))
                skips.append(width)
        self.middle = self.block(width, width), self.block(width, width)
        self.qkv, self.out = self.parameter(3 * width, width), self.parameter(width, width)
        self.up: list[tuple[Any, Any]] = []
        for level, wanted in reversed(list(enumerate(widths))):
            for _ in range(3):
                self.up.append((self.block(width + skips.pop(), wanted), None))
                width = wanted
            if level:
                self.up.append((None, self.parameter(width, width, 3, 3)))
        if skips:
            raise AssertionError("every skip connection has a reader")
        self.last = self.parameter(width), self.parameter(width), self.parameter(3, width, 3, 3)

    def parameter(self, *shape: int) -> Any:
        tensor = weft.randn(*shape).mul(0.05).detach().requires_grad_()
        self.params.append(tensor)
        return tensor

    def block(self, inputs: int, outputs: int) -> dict[str, Any]:
        shapes = {
            "gain1": (inputs,), "bias1": (inputs,), "conv1": (outputs, inputs, 3, 3), "conv1_bias": (outputs,),
            "time": (outputs, TIME), "time_bias": (outputs,), "gain2": (outputs,), "bias2": (outputs,),
            "conv2": (outputs, outputs, 3, 3), "conv2_bias": (outputs,),
        }  # fmt: skip
        if inputs != outputs:
            shapes["skip"] = (outputs, inputs, 1, 1)
        return {name: self.parameter(*shape) for name, shape in shapes.items()}

    def residual(self, p: dict[str, Any], x: Any, time: Any) -> Any:
        h = F.conv2d(F.silu(F.group_norm(x, GROUPS, p["gain1"], p["bias1"])), p["conv1"], p["conv1_bias"], padding=1)
        h = h + F.linear(F.silu(time), p["time"], p["time_bias"])[:, :, None, None]
        h = F.conv2d(F.silu(F.group_norm(h, GROUPS, p["gain2"], p["bias2"])), p["conv2"], p["conv2_bias"], padding=1)
        return h + (F.conv2d(x, p["skip"]) if "skip" in p else x)

    def attend(self, x: Any) -> Any:
        batch, width, *space = x.shape
        rows = x.reshape(batch, width, -1).transpose(1, 2)  # [batch, pixels, width]
        q, k, v = (part.unsqueeze(1) for part in F.linear(rows, self.qkv).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v).squeeze(1)
        return x + F.linear(seen, self.out).transpose(1, 2).reshape(batch, width, *space)

    def __call__(self, x: Any, time: Any) -> Any:
        time = F.linear(F.silu(F.linear(time, self.time[0])), self.time[1])
        x = F.conv2d(x, self.first, padding=1)
        seen = [x]
        for block, weight in self.down:
            x = self.residual(block, x, time) if block else F.conv2d(x, weight, stride=2, padding=1)
            seen.append(x)
        x = self.residual(self.middle[1], self.attend(self.residual(self.middle[0], x, time)), time)
        for block, weight in self.up:
            if block:
                x = self.residual(block, weft.cat([x, seen.pop()], 1), time)
            else:
                x = F.conv2d(F.interpolate(x, scale_factor=2, mode="nearest"), weight, padding=1)
        gain, bias, weight = self.last
        return F.conv2d(F.silu(F.group_norm(x, GROUPS, gain, bias)), weight, padding=1)


def step_of(resolutions: int, size: int = 16) -> float:
    """The loss of one compiled training step on random images."""
    network = UNet(resolutions)
    optimizer = weft.optim.AdamW(network.params, lr=1e-3)

    def step(x, time, y):
        optimizer.zero_grad()
        loss = ((network(x, time) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    x = weft.randn(2, 3, size, size)
    return weft.compile(step)(x, weft.randn(2, 32), x).item()
