"""Mixed precision: products and convolutions in bfloat16 or float16, parameters in float32. float16 needs its loss
scaled so that small gradients do not vanish, which the Trainer does.

python examples/mixed_precision.py --epochs 8
"""

import argparse

import weft
from weft import nn
from weft.data import DataLoader, TensorDataset, digits
from weft.train import Trainer


def load(part):
    """Images [N, 1, 8, 8] and labels [N]."""
    images, labels = digits.load(part)
    return TensorDataset(weft.tensor(images).reshape(-1, 1, 8, 8), weft.tensor(labels))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few epochs, for the tests")
    options = parser.parse_args(arguments)

    train, test = DataLoader(load("train"), 64, shuffle=True, seed=0, last="drop"), DataLoader(load("test"), 355)
    results = {}
    for precision in ("fp32", "bf16", "fp16"):
        weft.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(32 * 16, 10),
        )  # fmt: skip
        optimizer = weft.optim.AdamW(model.parameters(), lr=2e-3)
        trainer = Trainer(
            model, nn.CrossEntropyLoss(), optimizer, ["accuracy"], device=options.device, precision=precision
        )
        history = trainer.fit(train, test, epochs=2 if options.short else options.epochs)
        loss, accuracy, seconds = (history[name][-1] for name in ("loss", "val_accuracy", "seconds"))
        kept = {parameter.dtype.name for parameter in model.parameters()}
        scale = "" if trainer.scaler is None else f", loss scale {trainer.scaler.get_scale():.0f}"
        print(
            f"{precision}: loss {loss:.4f}, accuracy {accuracy:.1%}, {seconds:.2f} s an epoch, parameters {kept}{scale}"
        )
        results[precision] = loss
    return {"first_loss": history["loss"][0], "loss": loss, "accuracy": accuracy, "losses": results}


if __name__ == "__main__":
    main()
