"""Stop a run and go on with it: a run that was interrupted ends with the same bits as one that was not.

python examples/resume.py --run runs/resume        train; stop it with Ctrl-C, and call it again to go on
python examples/resume.py --compare                train once in one go and once with a break, and compare
"""

import argparse
import tempfile
from pathlib import Path

import weft
from weft import nn
from weft.data import ArrayDataset, DataLoader, digits
from weft.train import Trainer


def make_trainer(folder, device):
    """A Trainer that saves to a run folder after each epoch, and when it is stopped."""
    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    optimizer = weft.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = weft.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return Trainer(
        model, nn.CrossEntropyLoss(), optimizer, ["accuracy"], device=device, scheduler=scheduler, run=folder
    )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="runs/resume", help="the folder of the run")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--compare", action="store_true", help="compare a run in one go with one in two parts")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="compare short runs, for the tests")
    options = parser.parse_args(arguments)
    epochs = 4 if options.short else options.epochs
    train = DataLoader(ArrayDataset(*digits.load("train")), 64, shuffle=True, seed=0)

    if not (options.compare or options.short):
        trainer = make_trainer(options.run, options.device)
        history = trainer.fit(train, epochs=epochs)  # goes on where the folder's newest checkpoint is
        print(f"loss {history['loss'][-1]:.4f} after {trainer.step_count} steps; the run is in {trainer.run}")
        return {"first_loss": history["loss"][0], "loss": history["loss"][-1]}

    with tempfile.TemporaryDirectory() as folder:
        whole = make_trainer(Path(folder, "whole"), options.device)
        history = whole.fit(train, epochs=epochs)

        first = make_trainer(Path(folder, "parts"), options.device)
        first.fit(train, epochs=epochs, max_steps=whole.step_count // 3)  # stops in the middle of an epoch
        second = make_trainer(Path(folder, "parts"), options.device)  # as a new process would make it
        second.fit(train, epochs=epochs)

    pairs = zip(whole.model.parameters(), second.model.parameters(), strict=True)
    is_same = all(bool((one == other).all()) for one, other in pairs)
    print(f"stopped after step {first.step_count} of {second.step_count}; same bits at the end: {is_same}")
    return {"first_loss": history["loss"][0], "loss": history["loss"][-1], "same": is_same}


if __name__ == "__main__":
    main()
