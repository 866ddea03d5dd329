"""Handwritten digits with a convolutional network, batch normalisation and a one-cycle schedule of the learning rate.

python examples/digits_cnn.py --epochs 15
"""

import argparse

import weft
from weft import nn
from weft.data import DataLoader, TensorDataset, digits
from weft.train import ProgressBar, Trainer


def load(part):
    """Images [N, 1, 8, 8] and labels [N]."""
    images, labels = digits.load(part)
    return TensorDataset(weft.tensor(images).reshape(-1, 1, 8, 8), weft.tensor(labels))


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few epochs, for the tests")
    options = parser.parse_args(arguments)
    epochs = 2 if options.short else options.epochs

    weft.manual_seed(0)
    train, test = DataLoader(load("train"), 64, shuffle=True, seed=0), DataLoader(load("test"), 355)
    model = nn.Sequential(
        block(1, 16), block(16, 32), nn.MaxPool2d(2),  # [N, 32, 4, 4]
        block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(),  # [N, 64]
        nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = weft.optim.AdamW(model.parameters(), lr=1e-2)
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), optimizer, metrics=["accuracy"], device=options.device,
        scheduler=weft.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=epochs * len(train)),
        callbacks=[ProgressBar()],
    )  # fmt: skip
    history = trainer.fit(train, test, epochs=epochs)

    accuracy = history["val_accuracy"][-1]
    print(f"test accuracy {accuracy:.2%} after {trainer.step_count} steps")
    return {"first_loss": history["loss"][0], "loss": history["loss"][-1], "accuracy": accuracy}


if __name__ == "__main__":
    main()
