"""A variational autoencoder (Kingma & Welling 2014); the noise is passed as data."""

import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4, 8, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        self.fc_mu = nn.Linear(8 * 3 * 3, 4)
        self.fc_logvar = nn.Linear(8 * 3 * 3, 4)
        self.decoder_input = nn.Linear(4, 8 * 3 * 3)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1),
            nn.GroupNorm(2, 4),
            nn.SiLU(),
            nn.ConvTranspose2d(4, 1, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def encode(self, x):
        h = self.encoder(x)
        return self.fc_mu(h), self.fc_logvar(h)

    def reparameterize(self, mu, logvar, eps):
        std = torch.exp(0.5 * logvar)
        return mu + eps * std

    def decode(self, z):
        h = self.decoder_input(z).view(-1, 8, 3, 3)
        return self.decoder(h)

    def forward(self, x, eps):
        mu, logvar = self.encode(x)
        z = self.reparameterize(mu, logvar, eps)
        return self.decode(z), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x, reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def make_model():
    torch.manual_seed(2)
    return VAE().to(torch.float64)


def train(model, steps):
    rng = np.random.RandomState(0)
    optimizer = optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.99))
    losses = []
    for _ in range(steps):
        data = torch.from_numpy(rng.rand(6, 1, 12, 12))
        eps = torch.from_numpy(rng.randn(6, 4))
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data, eps)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        optimizer.step()
        losses.append(loss.item() / len(data))
    return losses
