"""Bad inputs are refused at the call, with a message that says who, what was given and how to mend it."""

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.records import RECORDS

pytestmark = pytest.mark.unit
BY_RECORD = [
    pytest.param(*error, id=f"{record.name}-{number}")
    for record in RECORDS
    for number, error in enumerate(record.errors)
]


@pytest.fixture(autouse=True)
def on_reference():
    with weft.device("reference"):
        yield


@pytest.mark.parametrize(("call", "kind", "message"), BY_RECORD)
def test_operations(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def leaf(*shape):
    return weft.ones(*shape, requires_grad=True)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: weft.ones(1) + "x", weft.DTypeError, "add: given a str; expected a tensor or a Python number"),
        (lambda: weft.tensor([1], dtype=weft.int32) + 2**40, weft.DTypeError, "add: given the number 1099511627776"),
        (lambda: weft.ones(2)[2], weft.IndexRangeError, "index: given 2 on axis 0 of extent 2; expected -2 to 1"),
        (
            lambda: weft.ones(2)[0, 0],
            weft.IndexRangeError,
            r"index: given 2 indices for shape \(2,\)",
        ),
        (lambda: weft.ones(2)[::0], weft.IndexRangeError, "a slice with step 0"),
        (lambda: weft.ones(2)["x"], weft.DTypeError, "index: given 'x' for the index"),
        (lambda: weft.ones(2)[True], weft.DTypeError, "index: given True"),
        (lambda: weft.tensor([[1, 2], [3]]), weft.ShapeError, "tensor: given nested lists of unequal length"),
        (
            lambda: weft.from_numpy(np.zeros(2, np.complex64)),
            weft.DTypeError,
            "from_numpy: given an array of complex64",
        ),
        (lambda: weft.tensor("x"), weft.DTypeError, "tensor: given an array of <U1"),
        (lambda: weft.exp([1.0]), weft.DTypeError, "exp: given x of type list; expected a tensor. To mend it: convert"),
        (lambda: F.linear(weft.ones(3), weight=None), weft.DTypeError, "linear: given weight of type NoneType"),
        (
            lambda: weft.cat(weft.ones(3)),
            weft.DTypeError,
            "cat: given tensors of type tensor; expected a list",
        ),
        (lambda: weft.compile(3), weft.GraphError, "weft.compile: given a int; expected a function"),
        (lambda: weft.adjacency([[0.0], [1.0]], 2), weft.DTypeError, "adjacency: given an index of float64"),
        (lambda: weft.ones(2).item(), weft.ShapeError, r"item\(\): given shape \(2,\)"),
        (lambda: bool(weft.ones(2)), weft.ShapeError, r"use .any\(\) or .all\(\)"),
        (lambda: len(weft.tensor(1.0)), weft.ShapeError, "len: given a scalar tensor"),
        (lambda: weft.ones(1, device="hip"), weft.DeviceError, "'hip', for which this version has no backend yet"),
        (lambda: weft.ones(1, device="tpu"), weft.DeviceError, r"device: given 'tpu'; expected one of \['cpu'"),
        (lambda: weft.ones(1, device="reference:3"), weft.DeviceError, "device: given 'reference:3'"),
        (lambda: F.dropout(weft.ones(1), 2.0), weft.RangeError, "dropout: given p=2.0"),
        (lambda: weft.randint(5, 5, (1,)), weft.ShapeError, "randint: given low=5 and high=5"),
        (lambda: weft.bernoulli(weft.arange(2)), weft.DTypeError, "bernoulli: given a int64 tensor"),
        (lambda: weft.ones(2, 3).backward(), weft.GraphError, "does not require grad and has no history"),
        (lambda: leaf(2).backward(), weft.ShapeError, r"backward\(\): given a tensor of shape \(2,\) and no gradient"),
        (lambda: leaf(2).backward(weft.ones(3)), weft.ShapeError, r"a gradient of shape \(3,\)"),
        (lambda: weft.arange(3).sum().backward(), weft.DTypeError, r"backward\(\): given a int64 tensor"),
        (lambda: weft.arange(3).requires_grad_(), weft.DTypeError, "requires_grad_: given a int64 tensor"),
        (lambda: (leaf(2) * 2).requires_grad_(False), weft.GraphError, "the result of an operation"),
        (lambda: leaf(2).add_(1), weft.GraphError, r"add_: given a leaf that requires grad.*no_grad"),
        (
            lambda: weft.ones(2, 1).expand(2, 3).add_(1),
            weft.GraphError,
            r"add_: given the result of expand\(\).*before",
        ),
        (
            lambda: weft.ones(3, 3).diagonal().zero_(),
            weft.GraphError,
            r"fill_: given the result of diagonal\(\).*x\[i, i",
        ),
        (lambda: weft.ones(3).unfold(0, 2, 1).mul_(2), weft.GraphError, r"mul_: given the result of unfold\(\).*clone"),
        (
            lambda: [w[0].add_(1) for w in [leaf(2)]],
            weft.GraphError,
            "add_: given a view of a leaf that requires grad.*no_grad",
        ),
        (lambda: weft.ones(2).add_(weft.ones(3, 2)), weft.ShapeError, r"add_: given a result of shape \(3, 2\)"),
        (lambda: weft.arange(2).add_(0.5), weft.DTypeError, "add_: given a result of float32 for a int64 tensor"),
        (lambda: setattr(leaf(2), "grad", weft.ones(3)), weft.ShapeError, r"grad: given float32\[3\]"),
        (lambda: weft.grad(lambda x: x)(weft.ones(2)), weft.ShapeError, r"grad: given shape \(2,\) from the function"),
        (lambda: weft.grad(lambda x: x.sum())(weft.arange(2)), weft.DTypeError, "grad: given a int64 tensor"),
        (lambda: weft.testing.gradcheck(lambda x: x, [weft.ones(2)]), weft.DTypeError, "gradcheck: given"),
    ],
)
def test_tensors(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_errors_are_also_the_usual_python_ones():
    for kind, usual in [
        (weft.ShapeError, ValueError),
        (weft.DTypeError, TypeError),
        (weft.IndexRangeError, IndexError),
    ]:
        assert issubclass(kind, usual)
        assert issubclass(kind, weft.WeftError)


def test_an_index_out_of_range_names_the_users_line():
    wrong = weft.ones(3)[weft.tensor([0, 5])]
    with pytest.raises(weft.IndexRangeError, match=r"test_errors\.py:\d+: given the index 5; expected 0 to 2"):
        wrong.numpy()


def test_two_tensor_indices_are_checked_each():
    wrong = weft.ones(2, 3)[weft.tensor([0]), weft.tensor([4])]
    with pytest.raises(weft.IndexRangeError):
        wrong.numpy()


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_an_index_into_a_constant_is_looked_at(device):
    with weft.device(device):
        for wrong in (
            weft.zeros(3)[weft.tensor([5])],
            F.embedding(weft.tensor([3]), weft.ones(3, 2)),
            weft.gather(weft.ones(3, 3), 1, weft.tensor([[-1]])),
            F.one_hot(weft.tensor([3]), 3),
        ):
            with pytest.raises(weft.IndexRangeError, match=r"test_errors\.py:\d+"):
                wrong.numpy()


def test_a_label_outside_the_classes():
    with pytest.raises(
        weft.IndexRangeError, match=r"a label at .*test_errors.py:\d+: given the index 3; expected 0 to 2"
    ):
        F.cross_entropy(weft.ones(2, 3), weft.tensor([0, 3])).item()
