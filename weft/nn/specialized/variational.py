"""Parts of autoencoders (log-variance, reparameterisation, a decoder), and the measurement of a quantum state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.base.errors import ShapeError, problem
from weft.core.tensor import Tensor
from weft.names.functions import where
from weft.nn.basic.linear import Linear
from weft.nn.module import Module
from weft.nn.registry import layer
from weft.random.generator import randn_like


@layer("L100", aliases=("LogVarianceLayer",), learns="-", oracle="NumPy: log(var(x) + eps)")
class LogVariance(Module):
    """y = log(var(x) + eps) along `dim`, with the population variance (divided by n).

    Shape: input [*, n, *], output [*, *] without the axis `dim`, or with extent 1 there if `keepdim`. `dim` may be a
    tuple of axes.

    >>> layer = weft.nn.LogVariance(dim=1)
    >>> layer(weft.tensor([[0.0, 2.0], [0.0, 4.0]]))
    tensor([0.0000, 1.3863])
    """

    def __init__(self, dim: int | tuple[int, ...], eps: float = 1e-8, keepdim: bool = False):
        super().__init__()
        self.dim, self.eps, self.keepdim = dim, eps, keepdim

    def forward(self, input: Tensor) -> Tensor:
        return (input.var(self.dim, correction=0, keepdim=self.keepdim) + self.eps).log()

    def extra_repr(self) -> str:
        return f"dim={self.dim}, eps={self.eps}, keepdim={self.keepdim}"


@layer("L101", aliases=("MeasurementLayer",), learns="-", oracle="NumPy: |psi|^2 / sum |psi|^2")
class Measurement(Module):
    """p_i = |psi_i|² / Σ_j |psi_j|²: the probabilities of the basis states of a quantum state (Born's rule).

    Shape: input [*, D, 2], the real and imaginary parts of D amplitudes, or [*, D], real amplitudes; output [*, D]. An
    input of at least two axes whose last one is 2 counts as complex, unless `real=True` says that it is not. A state
    that is zero everywhere has the probabilities 0.

    >>> layer = weft.nn.Measurement()
    >>> layer(weft.tensor([[3.0, 0.0], [0.0, 4.0]]))  # 3 and 4i
    tensor([0.3600, 0.6400])
    """

    def __init__(self, real: bool = False):
        super().__init__()
        self.real = real

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim < 1:
            raise problem(ShapeError, "Measurement", f"shape {input.shape}", "[*, D, 2] or [*, D]")
        squares = input * input
        if not self.real and input.ndim >= 2 and input.shape[-1] == 2:
            squares = squares.sum(-1)
        total = squares.sum(-1, keepdim=True)
        return squares / where(total == 0, 1.0, total)

    def extra_repr(self) -> str:
        return "real=True" if self.real else ""


@layer("L102", aliases=("ReconstructionLayer",), oracle="torch.nn.Sequential of three Linears")
class Reconstruction(Module):
    """y = out_act(W3 act(W2 act(W1 x))): three Linears with biases, the decoder of the capsule network (Sabour et al.
    2017).

    Shape: input [*, in_features], output [*, out_features]; fc1, fc2, fc3 are Linears. The activations are names,
    functions of a tensor, or None.

    >>> decoder = weft.nn.Reconstruction(16, 8, 8, 4)
    >>> decoder(weft.ones(2, 16)).shape
    (2, 4)
    """

    def __init__(
        self,
        in_features: int,
        hidden1: int = 512,
        hidden2: int = 1024,
        out_features: int = 784,
        hidden_act: str | Callable[[Tensor], Tensor] | None = "relu",
        out_act: str | Callable[[Tensor], Tensor] | None = "sigmoid",
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.fc1 = Linear(in_features, hidden1, activation=hidden_act, **like)
        self.fc2 = Linear(hidden1, hidden2, activation=hidden_act, **like)
        self.fc3 = Linear(hidden2, out_features, activation=out_act, **like)

    def forward(self, input: Tensor) -> Tensor:
        return self.fc3(self.fc2(self.fc1(input)))


@layer("L103", aliases=("RepParameterizationLayer", "ReparameterizationLayer"), learns="-", oracle="the drawn noise")
class Reparameterize(Module):
    """z = μ + e^{v/2} ε with ε ~ N(0, 1) while training, z = μ in evaluation, where v is the log-variance: the
    reparameterisation trick of the variational autoencoder (Kingma & Welling 2014). dμ = g, dv = ½ g ε e^{v/2}.

    Shape: input [*, 2 L], the halves are μ and v; output [*, L].

    >>> layer = weft.nn.Reparameterize().eval()
    >>> layer(weft.tensor([1.0, 2.0, 0.0, 0.0]))
    tensor([1., 2.])
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim < 1 or input.shape[-1] % 2:
            raise problem(ShapeError, "Reparameterize", f"shape {input.shape}", "[*, 2 L]: means, then log-variances")
        mean, log_variance = input.chunk(2, -1)
        if not self.training:
            return mean
        return mean + (0.5 * log_variance).exp() * randn_like(mean)
