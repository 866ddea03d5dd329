"""A custom step: adversarial training (Goodfellow et al. 2015). Each batch is first moved by a small step in the
direction that increases its loss, and the network learns from what comes out.

python examples/custom_step.py --epochs 20 --size 0.1
"""

import argparse

import weft
import weft.nn.functional as F
from weft import nn
from weft.data import ArrayDataset, DataLoader, digits
from weft.train import Trainer


def attack(model, images, labels, size):
    """The images, each pixel moved by `size` up or down, whichever makes the loss larger."""
    with weft.enable_grad():
        moved = images.detach().requires_grad_()
        (slope,) = weft.grad(F.cross_entropy(model(moved), labels), [moved])
    return images + size * slope.sign()


def make_step(size):
    def step(trainer, images, labels):
        """What replaces model and loss; backward, update and metrics stay the trainer's work."""
        logits = trainer.model(attack(trainer.model, images, labels, size))
        return F.cross_entropy(logits, labels), logits, labels

    return step


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--size", type=float, default=0.1, help="of the attack; pixels are from 0 to 1")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few epochs, for the tests")
    options = parser.parse_args(arguments)

    train = DataLoader(ArrayDataset(*digits.load("train")), 64, shuffle=True, seed=0)
    test = DataLoader(ArrayDataset(*digits.load("test")), 355)
    results = {}
    for name, size in (("plain", 0.0), ("adversarial", options.size)):
        weft.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        optimizer = weft.optim.Adam(model.parameters(), lr=3e-3)
        trainer = Trainer(model, None, optimizer, ["accuracy"], device=options.device, step=make_step(size))
        history = trainer.fit(train, epochs=6 if options.short else options.epochs)
        judge = Trainer(model, None, optimizer, ["accuracy"], device=options.device, step=make_step(options.size))
        results[name] = judge.evaluate(test)["accuracy"]
        print(f"{name:>11}: loss {history['loss'][-1]:.3f}, accuracy under attack {results[name]:.1%}")
    return {"first_loss": history["loss"][0], "loss": history["loss"][-1], **results}


if __name__ == "__main__":
    main()
