"""Records of the simulated quantum circuit."""

import numpy as np

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy
from tests.layers.record import Bad, LayerRecord


def _circuit(entangle, qubits):
    """The circuit as a matrix, made of Kronecker products."""
    size = 2**qubits

    def probabilities(state, x):
        padded = np.zeros((*x.shape[:-1], size))
        padded[..., : min(size, x.shape[-1])] = x[..., :size]
        norm = np.linalg.norm(padded, axis=-1, keepdims=True)
        psi = np.where(norm == 0, np.eye(size)[0], padded / np.where(norm == 0, 1.0, norm))
        for angles in state["theta"]:
            matrix = np.eye(1)
            for angle in angles:  # qubit 0 is the least significant bit: the last factor
                c, s = np.cos(angle / 2), np.sin(angle / 2)
                matrix = np.kron([[c, -s], [s, c]], matrix)
            psi = psi @ matrix.T
            for control in range(qubits if entangle and qubits > 1 else 0):
                target = (control + 1) % qubits
                flip = np.zeros((size, size))
                for index in range(size):
                    flip[index ^ (((index >> control) & 1) << target), index] = 1.0
                psi = psi @ flip.T
        return psi**2

    return of_numpy(probabilities)


def _parameter_shift():
    layer = nn.QuantumLayer(3, 2, entangle=True).double()
    random = np.random.default_rng(0)
    x, weights = weft.tensor(random.normal(size=(2, 8))), weft.tensor(random.normal(size=(2, 8)))
    value = weft.compile(lambda: (layer(x) * weights).sum())
    (layer(x) * weights).sum().backward()
    start, gradient = layer.theta.detach().numpy().copy(), layer.theta.grad.numpy()
    for index in np.ndindex(2, 3):
        shifted = []
        for sign in (1.0, -1.0):
            moved = start.copy()
            moved[index] += sign * np.pi / 2
            with weft.no_grad():
                layer.theta.copy_(weft.tensor(moved))
                shifted.append(value().item())
        assert abs(gradient[index] - 0.5 * (shifted[0] - shifted[1])) < 1e-12


def _sums_to_one():
    x = weft.tensor(np.random.default_rng(0).normal(size=(5, 11)) * np.float32(1e25), dtype=weft.float32)
    p = nn.QuantumLayer(4, 3, entangle=True)(x)  # squares of the inputs are above the largest float32
    np.testing.assert_allclose(p.sum(-1).detach().numpy(), np.ones(5), rtol=1e-5)


def _zero_vector():
    layer = nn.QuantumLayer(2)
    x = weft.zeros(1, 4, requires_grad=True)
    p = layer(x)
    p.sum().backward()
    c, s = np.cos(layer.theta.detach().numpy()[0] / 2) ** 2, np.sin(layer.theta.detach().numpy()[0] / 2) ** 2
    np.testing.assert_allclose(p.detach().numpy()[0], [c[0] * c[1], s[0] * c[1], c[0] * s[1], s[0] * s[1]], rtol=1e-5)
    assert np.isfinite(x.grad.numpy()).all()


RECORDS = [
    LayerRecord(
        name="QuantumLayer",
        make=lambda: nn.QuantumLayer(3, 2),
        inputs=lambda draw: (draw.normal(4, 8),),
        oracle=_circuit(False, 3),
        bad=[
            Bad(call=lambda layer: layer(weft.tensor(1.0)), match=r"\[\*, F\]", error=weft.ShapeError),
            Bad(call=lambda layer: nn.QuantumLayer(0), match="num_qubits=0", error=weft.RangeError),
        ],
        checks={"sums to one": _sums_to_one, "zero vector": _zero_vector},
    ),
    LayerRecord(
        name="QuantumLayer",
        variant="entangled",
        make=lambda: nn.QuantumLayer(3, 3, entangle=True),
        inputs=lambda draw: (draw.normal(2, 5),),  # filled with zeros
        oracle=_circuit(True, 3),
        no_bad="as without",
        checks={"parameter shift": _parameter_shift},
    ),
    LayerRecord(
        name="QuantumLayer",
        variant="two qubits",
        make=lambda: nn.QuantumLayer(2, 2, entangle=True),
        inputs=lambda draw: (draw.normal(2, 2, 7),),  # cut
        oracle=_circuit(True, 2),
        edges={"nan": "a NaN in what is cut off changes nothing: the other records have it"},
        no_bad="as with three",
    ),
]
