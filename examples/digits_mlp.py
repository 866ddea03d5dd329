"""Handwritten digits with a multilayer perceptron. The data lives on the device; a step uploads nothing.

python examples/digits_mlp.py --epochs 40
"""

import argparse

import weft
from weft import nn
from weft.data import ArrayDataset, DataLoader, digits
from weft.train import ProgressBar, Trainer


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few epochs, for the tests")
    options = parser.parse_args(arguments)

    weft.manual_seed(0)
    train = DataLoader(ArrayDataset(*digits.load("train")), 64, shuffle=True, seed=0)
    test = DataLoader(ArrayDataset(*digits.load("test")), 355)

    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(128, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = weft.optim.AdamW(model.parameters(), lr=2e-3)
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), optimizer, metrics=["accuracy"], device=options.device, callbacks=[ProgressBar()]
    )
    history = trainer.fit(train, test, epochs=5 if options.short else options.epochs)

    accuracy = history["val_accuracy"][-1]
    print(f"test accuracy {accuracy:.2%} after {trainer.step_count} steps")
    return {"first_loss": history["loss"][0], "loss": history["loss"][-1], "accuracy": accuracy}


if __name__ == "__main__":
    main()
