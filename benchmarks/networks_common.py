"""The networks that read the same in Weft and in PyTorch: `losses(F)` with either `nn.functional` gives their losses.

A loss is a function of parameters (a dict) and inputs; `dense` makes one for a stack of dense layers.
"""

from __future__ import annotations

from typing import Any

from networks import BOTTLENECKS, HEADS, LAYERS, RESNET_STAGES, WIDTH


def losses(F: Any) -> dict[str, Any]:
    """The networks by name. Long because each is a function of the library `F` that it is written with."""

    def cnn(p, x, y):
        x = F.max_pool2d(F.relu(F.conv2d(x, p["conv1"], p["bias1"], padding=1)), 2)
        x = F.max_pool2d(F.relu(F.conv2d(x, p["conv2"], p["bias2"], padding=1)), 2)
        return F.cross_entropy(F.linear(x.flatten(1), p["linear"], p["bias3"]), y)

    def conv3d(p, x, y):
        x = F.relu(F.conv3d(x, p["conv1"], p["bias1"], padding=1))
        x = F.relu(F.conv3d(x, p["conv2"], p["bias2"], padding=1))
        return F.cross_entropy(F.linear(x.mean((2, 3, 4)), p["linear"], p["bias3"]), y)

    def resnet18(p, x, y):
        def unit(name, x, stride=1):
            size = p[f"{name}.conv"].shape[-1]
            x = F.conv2d(x, p[f"{name}.conv"], stride=stride, padding=size // 2)
            return F.batch_norm(x, None, None, p[f"{name}.scale"], p[f"{name}.shift"], training=True)

        x = F.relu(unit("stem", x))
        for number, (_, stride) in enumerate(RESNET_STAGES):
            name = f"block{number}"
            skip = x if stride == 1 else unit(f"{name}.skip", x, stride)
            x = F.relu(unit(f"{name}.2", F.relu(unit(f"{name}.1", x, stride))) + skip)
        return F.cross_entropy(F.linear(x.mean((2, 3)), p["linear"], p["bias"]), y)

    def resnet50(p, x, y):
        """Convolutions in bfloat16 with float32 weights behind them, as in mixed precision training."""

        def unit(name, x, stride=1):
            weight = p[f"{name}.conv"].bfloat16()
            x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
            return F.batch_norm(x, None, None, p[f"{name}.scale"], p[f"{name}.shift"], training=True)

        x = F.max_pool2d(F.relu(unit("stem", x.bfloat16(), 2)), 3, 2, 1)
        for stage, (_, blocks, first) in enumerate(BOTTLENECKS):
            for number in range(blocks):
                name, stride = f"stage{stage}.{number}", first if number == 0 else 1
                skip = x if number else unit(f"{name}.skip", x, stride)
                inner = F.relu(unit(f"{name}.2", F.relu(unit(f"{name}.1", x)), stride))
                x = F.relu(unit(f"{name}.3", inner) + skip)
        features = x.mean((2, 3)).float()
        return F.cross_entropy(F.linear(features, p["linear"], p["bias"]), y)

    def transformer(p, x, y):
        batch, length = x.shape

        def norm(name, x):
            return F.layer_norm(x, (WIDTH,), p[name], p[f"{name}.bias"])

        def linear(name, x):
            return F.linear(x, p[name], p[f"{name}.bias"])

        x = F.embedding(x, p["tokens"]) + p["positions"]
        for layer in range(LAYERS):
            qkv = linear(f"{layer}.qkv", norm(f"{layer}.norm1", x)).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
            q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, WIDTH)
            x = x + linear(f"{layer}.out", seen)
            x = x + linear(f"{layer}.down", F.gelu(linear(f"{layer}.up", norm(f"{layer}.norm2", x))))
        logits = F.linear(norm("norm", x), p["head"])
        return F.cross_entropy(logits.reshape(batch * length, -1), y.reshape(-1))

    return {"cnn": cnn, "conv3d": conv3d, "resnet18": resnet18, "resnet50": resnet50, "transformer": transformer}


def dense(case: Any, F: Any):
    """The loss of a stack of dense layers."""
    activation = {"tanh": F.tanh, "relu": F.relu}[case.hidden]
    measure = F.cross_entropy if case.loss == "cross_entropy" else F.mse_loss
    last = len(case.sizes) - 2

    def loss(p, x, y):
        for layer in range(last + 1):
            x = F.linear(x, p[f"weight{layer}"], p[f"bias{layer}"])
            if layer != last:
                x = activation(x)
        return measure(x, y)

    return loss
