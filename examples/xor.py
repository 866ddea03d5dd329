"""XOR, the smallest network that needs a hidden layer: model, loss, optimizer, Trainer.

python examples/xor.py --steps 500
"""

import argparse

import weft
from weft import nn
from weft.train import Trainer


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few steps, for the tests")
    options = parser.parse_args(arguments)

    weft.manual_seed(0)
    x = weft.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    y = weft.tensor([[0.0], [1.0], [1.0], [0.0]])

    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = weft.optim.Adam(model.parameters(), lr=0.05)
    trainer = Trainer(model, nn.BCEWithLogitsLoss(), optimizer, device=options.device)
    history = trainer.fit([(x, y)], epochs=200 if options.short else options.steps)

    guesses = trainer.predict(x).sigmoid().cpu()
    for inputs, guess in zip(x.tolist(), guesses.flatten().tolist(), strict=True):
        print(f"{inputs[0]:.0f} xor {inputs[1]:.0f} = {guess:.3f}")
    correct = ((guesses > 0.5) == (y > 0.5)).float().mean().item()
    return {"first_loss": history["loss"][0], "loss": history["loss"][-1], "accuracy": correct}


if __name__ == "__main__":
    main()
