"""Training on a GPU: XOR on a model that was built there, and on one that was moved there, timed beside the CPU.

python examples/gpu_training.py            XOR on the CPU and on the device
python examples/gpu_training.py --sizes    from which sizes on a GPU pays: a table for networks of growing width
"""

import argparse
import time

import weft
import weft.nn.functional as F
from weft import nn

SIZES = [(4, 16), (64, 64), (64, 256), (256, 256), (256, 1024), (1024, 1024), (1024, 2048)]  # (batch, width)


def make_model(inputs=2, width=16):
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def make_step(model):
    """One training step as one compiled function; on a GPU it is one recorded graph."""
    optimizer = weft.optim.Adam(model.parameters(), lr=0.01)

    @weft.compile
    def step(x, y):
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def train(model, x, y, steps):
    """Loss at the beginning and at the end, and microseconds per step in the best of five rounds after a warm-up."""
    step, times = make_step(model), []
    first = step(x, y).item()
    for _ in range(6):
        start = time.perf_counter()
        for _ in range(max(10, steps // 5)):
            loss = step(x, y)
        last = loss.item()  # waits for the device
        times.append((time.perf_counter() - start) / max(10, steps // 5))
    return first, last, min(times[1:]) * 1e6


def xor(device, steps):
    """XOR on the CPU, on a model that is built on the device, and on one that is moved there."""
    x, y = weft.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), weft.tensor([[0.0], [1.0], [1.0], [0.0]])
    results = {}
    for name in ("on the CPU", "built there", "moved there"):
        weft.manual_seed(0)
        target = weft.get_device("cpu" if name == "on the CPU" else device)
        if name == "moved there":
            model = make_model().to(target)
        else:
            with weft.device(target):
                model = make_model()
        first, last, micros = train(model, x.to(target), y.to(target), steps)
        results[name] = last
        print(f"{name:>11} ({target}): loss {first:.4f} -> {last:.2e}, {micros:.1f} us per step")
    return {"first_loss": first, "loss": last, "losses": results}


def sizes(device, steps, table):
    """Print a markdown table: time of a training step on the CPU and on the device, by batch and width."""
    print(f"| batch | width | CPU, us per step | {device}, us per step | speed-up |\n|---|---|---|---|---|")
    for batch, width in table:
        micros = []
        for target in ("cpu", device):
            weft.manual_seed(0)
            with weft.device(target):
                x = weft.randn(batch, width)
                y = (x.sum(1, keepdim=True) > 0).float()
                micros.append(train(make_model(width, width), x, y, steps // (1 + batch * width // 65536))[2])
        print(f"| {batch} | {width} | {micros[0]:,.0f} | {micros[1]:,.0f} | {micros[0] / micros[1]:.2f} |", flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", action="store_true", help="print the table of sizes")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few steps and sizes, for the tests")
    options = parser.parse_args(arguments)
    steps = 150 if options.short else options.steps
    if options.sizes:
        sizes(weft.get_device(options.device), steps, SIZES[:2] if options.short else SIZES)
        return {}
    return xor(options.device, steps)


if __name__ == "__main__":
    main()
