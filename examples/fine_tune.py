"""Fine-tuning from torch weights: a network that torch trained to read digits learns from few examples which are odd.

python examples/fine_tune.py --weights body.pt      a file of torch.save(model.state_dict(), ...); read without pickle
python examples/fine_tune.py                        trains such a network first, for which torch must be installed
"""

import argparse
import tempfile

import numpy as np

import weft
from weft import nn
from weft.data import DataLoader, TensorDataset, digits
from weft.train import Trainer


def make_model(library, classes):
    """The network in Weft or in torch: the names of layers and parameters are the same."""
    body = library.Sequential(library.Linear(64, 128), library.ReLU(), library.Linear(128, 64), library.ReLU())
    return library.ModuleDict({"body": body, "head": library.Linear(64, classes)})


def pretrain(path, epochs):
    """Learn to read digits in torch, and save the weights."""
    try:
        import torch
    except ImportError:
        raise SystemExit("torch is not installed. Fix: pip install torch, or pass weights with --weights") from None

    torch.manual_seed(0)
    images, labels = (torch.tensor(part) for part in digits.load("train"))
    model = make_model(torch.nn, classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(64):
            loss = torch.nn.functional.cross_entropy(model["head"](model["body"](images[rows])), labels[rows])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.save(model.state_dict(), path)
    return path


def few_examples(part, per_digit):
    """Images, and whether the digit is odd; at most `per_digit` images of each digit."""
    images, labels = digits.load(part)
    rows = np.concatenate([np.flatnonzero(labels == digit)[:per_digit] for digit in range(10)])
    return TensorDataset(weft.tensor(images[rows]), weft.tensor(labels[rows] % 2))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", help="a .pt file with the weights of `make_model`")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few epochs, for the tests")
    options = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory() as folder:
        found = weft.load(options.weights or pretrain(f"{folder}/body.pt", epochs=20))
    body = {name.removeprefix("body."): value for name, value in found.items() if name.startswith("body.")}

    train, test = (
        DataLoader(few_examples("train", 3), 10, shuffle=True, seed=0),
        DataLoader(few_examples("test", 99), 99),
    )
    results = {}
    for name in ("from scratch", "fine-tuned"):
        weft.manual_seed(0)
        parts = make_model(nn, classes=2)  # with a new head
        if name == "fine-tuned":
            parts["body"].load_state_dict(body)
        model = nn.Sequential(parts["body"], parts["head"])
        groups = [{"params": parts["body"].parameters(), "lr": 3e-4}, {"params": parts["head"].parameters()}]
        optimizer = weft.optim.AdamW(groups, lr=3e-3)
        trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, ["accuracy"], device=options.device)
        history = trainer.fit(train, test, epochs=10 if options.short else options.epochs)
        results[name] = history["val_accuracy"][-1]
        print(f"{name:>12}: accuracy on the test part {results[name]:.1%}")
    return {"first_loss": history["loss"][0], "loss": history["loss"][-1], **results}


if __name__ == "__main__":
    main()
