"""What `Trainer.fit` costs per step over a hand-written compiled loop: `python benchmarks/fit.py`.

Both train the same digits network on data that lives on the device. Short rounds of one and the other alternate in one
process, and the best round of each counts: whatever else the machine does only ever adds to one. An epoch has 22 steps,
so what `fit` does once per epoch (one reading, one reset) is in the number. The promise is under 50 us.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import weft
import weft.nn as nn
from weft.data import ResidentData, digits
from weft.train import Trainer

PROMISED = 50e-6  # seconds per step


def make(device: str) -> tuple[Any, Any, Any]:
    weft.manual_seed(0)
    x, y = (weft.tensor(array, device=device) for array in digits.load("train"))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    return model, weft.optim.AdamW(model.parameters(), lr=2e-3), ResidentData([x, y], 64, seed=0, last="drop")


def by_hand(device: str) -> Any:
    """One epoch of a loop that a user would write."""
    model, optimizer, data = make(device)
    criterion = nn.CrossEntropyLoss()
    epoch = 0

    @weft.compile
    def step() -> Any:
        x, y = data.next()
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def run(epochs: int) -> int:
        nonlocal epoch
        for _ in range(epochs):
            data.start_epoch(epoch)
            epoch += 1
            for _ in range(data.batches):
                loss = step()
        loss.item()
        return epochs * data.batches

    return run


def by_trainer(device: str, metrics: tuple[str, ...]) -> Any:
    """The same by the Trainer."""
    model, optimizer, data = make(device)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, metrics, device=device, clip_norm=1.0)

    def run(epochs: int) -> int:
        before = trainer.step_count
        trainer.fit(data, epochs=trainer.epoch + epochs)
        return trainer.step_count - before

    return run


def measure(device: str = "cpu", rounds: int = 200, epochs: int = 1) -> dict[str, float]:
    """Seconds per step of each form, in its best round."""
    forms = {
        "by hand": by_hand(device),
        "fit": by_trainer(device, ()),
        "fit with accuracy": by_trainer(device, ("accuracy",)),
    }
    times: dict[str, list[float]] = {name: [] for name in forms}
    for run in forms.values():
        run(2)  # compiled, and the first epochs done
    for _ in range(rounds):
        for name, run in forms.items():
            began = time.perf_counter()
            steps = run(epochs)
            times[name].append((time.perf_counter() - began) / steps)
    return {name: min(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    found = measure(options.device, options.rounds)
    for name, seconds in found.items():
        over = seconds - found["by hand"]
        print(f"{name:20} {seconds * 1e6:8.1f} us a step, {over * 1e6:+7.1f} us (promised: under {PROMISED * 1e6:.0f})")


if __name__ == "__main__":
    main()
