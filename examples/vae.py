"""A variational autoencoder of handwritten digits, with a custom step that reports both parts of its loss.

python examples/vae.py --epochs 60
"""

import argparse

import weft
import weft.nn.functional as F
from weft import nn
from weft.data import DataLoader, TensorDataset, digits
from weft.train import ProgressBar, Trainer


class VAE(nn.Module):
    def __init__(self, latent=8, hidden=128):
        super().__init__()
        self.latent = latent
        self.encoder = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.draw = nn.Reparameterize()  # mean + exp(log_variance / 2) * noise
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, 64))

    def forward(self, x):
        code = self.encoder(x)  # [N, 2 * latent]: means and log-variances
        return self.decoder(self.draw(code)), code


def step(trainer, images):
    """The negative evidence lower bound of a batch; backward and update are the trainer's."""
    logits, code = trainer.model(images)
    mean, log_variance = code.chunk(2, -1)
    reconstruction = F.binary_cross_entropy_with_logits(logits, images, reduction="none").sum(1).mean()
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
    return {"loss": reconstruction + divergence, "reconstruction": reconstruction, "divergence": divergence}


def show(images):
    """Images [N, 64] next to each other, as characters."""
    shades = " .:-=+*#%@"
    for row in range(8):
        pixels = images.reshape(-1, 8, 8)[:, row].clamp(0, 0.999).mul(10).long().tolist()
        print("  ".join("".join(shades[value] * 2 for value in image) for image in pixels))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few epochs, for the tests")
    options = parser.parse_args(arguments)

    weft.manual_seed(0)
    data = DataLoader(TensorDataset(weft.tensor(digits.load("train")[0])), 64, shuffle=True, seed=0)
    model = VAE()
    optimizer = weft.optim.Adam(model.parameters(), lr=2e-3)
    trainer = Trainer(model, None, optimizer, step=step, device=options.device, callbacks=[ProgressBar()])
    history = trainer.fit(data, epochs=8 if options.short else options.epochs)

    with weft.no_grad():
        show(model.decoder(weft.randn(5, model.latent, device=trainer.device)).sigmoid().cpu())
    return {name: history[name][-1] for name in ("loss", "reconstruction", "divergence")} | {
        "first_loss": history["loss"][0]
    }


if __name__ == "__main__":
    main()
