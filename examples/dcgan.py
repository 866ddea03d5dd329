"""A deep convolutional GAN of handwritten digits: two networks, two optimizers, and a step that updates both itself.

python examples/dcgan.py --epochs 60
"""

import argparse

import weft
import weft.nn.functional as F
from weft import nn
from weft.data import DataLoader, TensorDataset, digits
from weft.train import ProgressBar, Trainer

LATENT = 32


def make_generator(width=32):  # noise [N, LATENT, 1, 1] -> images [N, 1, 8, 8] in [-1, 1]
    return nn.Sequential(
        nn.ConvTranspose2d(LATENT, 2 * width, 4, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(),  # [N, 64, 4, 4]
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 1, 3, padding=1), nn.Tanh(),
    )  # fmt: skip


def make_discriminator(width=32):  # images [N, 1, 8, 8] -> logits [N, 1], above 0 for real ones
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(2 * width * 16, 1),
    )  # fmt: skip


def draw(generator, count, device):
    return generator(weft.randn(count, LATENT, 1, 1, device=device))


def loss_of(logits, is_real):
    return F.binary_cross_entropy_with_logits(logits, weft.full_like(logits, float(is_real)))


def step(trainer, images):
    """The discriminator learns to tell real from generated images, then the generator to be taken for real."""
    generator, discriminator = trainer.model["generator"], trainer.model["discriminator"]
    fake = draw(generator, len(images), images.device)

    judged = loss_of(discriminator(images), True) + loss_of(discriminator(fake.detach()), False)
    judged.backward()
    trainer.optimizers[0].step()
    trainer.model.zero_grad()

    fooled = loss_of(discriminator(fake), True)
    fooled.backward()
    trainer.optimizers[1].step()
    trainer.model.zero_grad()
    return {"loss": judged.detach(), "generator_loss": fooled.detach()}


def show(images):
    """Images [N, 1, 8, 8] next to each other, as characters."""
    shades = " .:-=+*#%@"
    for row in range(8):
        pixels = images[:, 0, row].add(1).mul(5).clamp(0, 9.99).long().tolist()
        print("  ".join("".join(shades[value] * 2 for value in image) for image in pixels))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--short", action="store_true", help="few epochs, for the tests")
    options = parser.parse_args(arguments)

    weft.manual_seed(0)
    images = weft.tensor(digits.load("train")[0]).reshape(-1, 1, 8, 8) * 2 - 1
    model = nn.ModuleDict({"generator": make_generator(), "discriminator": make_discriminator()})
    optimizers = [
        weft.optim.Adam(model[name].parameters(), lr=1e-3, betas=(0.5, 0.999))
        for name in ("discriminator", "generator")
    ]
    trainer = Trainer(model, None, optimizers, step=step, device=options.device, callbacks=[ProgressBar()])

    @weft.no_grad()
    def distance():
        """How far the mean generated image is from the mean real one: 0 is the same."""
        return (draw(model["generator"], 512, trainer.device).mean(0).cpu() - images.mean(0)).square().mean().item()

    before = distance()
    history = trainer.fit(DataLoader(TensorDataset(images), 64, shuffle=True, seed=0, last="drop"),
                          epochs=4 if options.short else options.epochs)  # fmt: skip
    show(draw(model["generator"], 5, trainer.device).detach().cpu())
    return {"first_distance": before, "distance": distance(), "loss": history["loss"][-1]}


if __name__ == "__main__":
    main()
