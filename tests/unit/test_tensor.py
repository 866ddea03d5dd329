"""The tensor as a thing to hold: printing, reading, converting, devices."""

import numpy as np
import pytest

import weft
from weft.backends.reference import ReferenceBackend
from weft.graph import build

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def on_reference():
    with weft.device("reference"):
        yield


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: weft.tensor([[1.0, 2.0]], requires_grad=True), "tensor([[1., 2.]], requires_grad=True)"),
        (lambda: weft.tensor([0.5, -1.25]), "tensor([ 0.5000, -1.2500])"),
        (lambda: weft.tensor([1, 2]), "tensor([1, 2])"),
        (lambda: weft.tensor([1, 2], dtype=weft.int32), "tensor([1, 2], dtype=weft.int32)"),
        (lambda: weft.tensor(True), "tensor(True)"),
        (lambda: weft.zeros(0, 3), "tensor([], size=(0, 3))"),
        (lambda: weft.tensor([float("nan"), float("inf")]), "tensor([nan, inf])"),
    ],
)
def test_repr_reads_like_pytorch(make, text):
    assert repr(make()) == text


def test_python_numbers_choose_their_dtype():
    assert weft.tensor(1.5).dtype is weft.float32
    assert weft.tensor(1).dtype is weft.int64
    assert weft.tensor(True).dtype is weft.bool
    assert weft.tensor(np.ones(2)).dtype is weft.float64
    assert weft.tensor([1, 2], dtype=weft.float64).dtype is weft.float64


def test_data_is_copied():
    array = np.ones(2, np.float32)
    x = weft.tensor(array)
    array[0] = 5
    out = np.array(x)
    out[1] = 7
    assert x.tolist() == [1.0, 1.0]
    y = weft.tensor(x)
    y += 1
    assert x.tolist() == [1.0, 1.0]


def test_numpy_mixes_in():
    x = weft.tensor([1.0, 2.0])
    assert (np.ones(2, np.float32) + x).tolist() == [2.0, 3.0]
    assert (x * np.float64(2.0)).dtype is weft.float32
    assert np.asarray(x).tolist() == [1.0, 2.0]
    assert np.sum(np.asarray(x, dtype=np.float64)) == 3.0


def test_python_protocols():
    x = weft.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert len(x) == 2
    assert [row.tolist() for row in x] == [[1.0, 2.0], [3.0, 4.0]]
    assert float(x[0, 1]) == 2.0 and int(x[1, 0]) == 3 and bool(x[0, 0])
    assert [10, 20, 30][weft.tensor(1)] == 20
    assert x in [x] and x != None  # noqa: E711
    assert (x.size(), x.size(-1), x.dim(), x.numel()) == ((2, 2), 2, 2, 4)
    assert len({x, x}) == 1


def test_conversions():
    x = weft.tensor([0.0, 1.7, -1.7])
    assert x.int().tolist() == [0, 1, -1]
    assert x.bool().tolist() == [False, True, True]
    assert x.double().dtype is weft.float64 and x.long().dtype is weft.int64
    assert x.to(weft.float32) is x
    assert x.type_as(weft.arange(1)).dtype is weft.int64


def test_devices():
    x = weft.ones(2)
    assert x.device.name == "reference"
    assert x.to("reference") is x
    assert "reference" in [device.name for device in weft.devices()]
    moved = x.to("cpu")
    assert moved.device.name == "cpu" and moved.tolist() == [1.0, 1.0]
    with pytest.raises(weft.DeviceError, match="add: given tensors on reference and cpu"):
        x + moved


def test_copy_and_fill():
    x = weft.zeros(2, 2)
    x.copy_(weft.tensor([1, 2]))
    assert x.tolist() == [[1.0, 2.0], [1.0, 2.0]]
    assert x.fill_(3).sum().item() == 12.0
    assert x.zero_().sum().item() == 0.0
    assert x.add_(2).mul_(3).clamp_(max=5).tolist() == [[5.0, 5.0], [5.0, 5.0]]


def test_the_interpreter_computes_in_float64_when_asked():
    backend = ReferenceBackend()
    device = backend.devices()[0]
    third = build.div(build.const(1.0, weft.float32, device), 3.0)
    assert backend.run_nodes([third], float64=True)[0] == 1.0 / 3.0
    assert backend.run_nodes([third])[0] == np.float32(1.0) / np.float32(3.0)


def test_computed_values_are_kept():
    x = weft.rand(3)
    y = x.exp()
    weft.eval(x, y)
    assert x._node.op == y._node.op == "buffer"
