"""Handwritten digits with a spiking network: pixels are currents, neurons integrate them over time and fire, and the
class whose output neuron fires most often is the answer.

python examples/spiking.py --epochs 10
"""

import argparse

import weft
from weft import nn
from weft.data import ArrayDataset, DataLoader, digits
from weft.train import ProgressBar, Trainer


class SpikingNet(nn.Module):
    """Two layers of leaky integrate-and-fire neurons, driven by the same image for a number of time steps."""

    def __init__(self, times, hidden=128):
        super().__init__()
        self.times = times
        self.hidden = nn.Spiking(64, hidden, tau=5.0)
        self.output = nn.Spiking(hidden, 10, tau=5.0)

    def forward(self, images):  # [N, 64] -> [N, 10]
        currents = images.unsqueeze(1).expand(-1, self.times, -1)  # [N, T, 64]
        spikes, _ = self.hidden(currents)
        spikes, _ = self.output(spikes)
        return spikes.mean(1) * 5.0  # firing rates as logits


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--times", type=int, default=20, help="time steps per image")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few epochs, for the tests")
    options = parser.parse_args(arguments)

    weft.manual_seed(0)
    train = DataLoader(ArrayDataset(*digits.load("train")), 64, shuffle=True, seed=0)
    test = DataLoader(ArrayDataset(*digits.load("test")), 355)
    model = SpikingNet(10 if options.short else options.times)
    optimizer = weft.optim.Adam(model.parameters(), lr=2e-3)
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), optimizer, metrics=["accuracy"], device=options.device, callbacks=[ProgressBar()]
    )
    history = trainer.fit(train, test, epochs=3 if options.short else options.epochs)

    accuracy = history["val_accuracy"][-1]
    print(f"test accuracy {accuracy:.2%}")
    return {"first_loss": history["loss"][0], "loss": history["loss"][-1], "accuracy": accuracy}


if __name__ == "__main__":
    main()
