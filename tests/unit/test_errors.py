"""Bad inputs are refused at the call, with a message that says who, what was given and how to fix it."""

import re

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.records import RECORDS
from weft.base import host_memory

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
        (
            lambda: weft.tensor([1], dtype=weft.int32) % 2**40,
            weft.DTypeError,
            "remainder: given the number 1099511627776",
        ),
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
        (
            lambda: F.softmax(weft.ones(2), dims=0),
            weft.DTypeError,
            r"^softmax: given other arguments \(got an unexpected keyword argument 'dims'\); "
            r"expected softmax\(input: Tensor, dim: int \| None = None",
        ),
        (lambda: F.linear(weft.ones(2)), weft.DTypeError, "^linear: given other .*'weight'.*weight: Tensor, bias"),
        (lambda: weft.exp(weft.ones(2), 1, 2), weft.DTypeError, r"^exp: .*\(too many positional arguments\)"),
        (lambda: weft.exp([1.0]), weft.DTypeError, "exp: given input of type list; expected a tensor. Fix: convert"),
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
        (lambda: weft.ones(1, device="hip:99"), weft.DeviceError, "device: given 'hip:99'"),
        (lambda: weft.ones(1, device="tpu"), weft.DeviceError, r"device: given 'tpu'; expected one of \['auto', 'cpu'"),
        (lambda: weft.ones(1, device="reference:3"), weft.DeviceError, "device: given 'reference:3'"),
        (lambda: F.dropout(weft.ones(1), 2.0), weft.RangeError, "dropout: given p=2.0"),
        (lambda: weft.randint(5, 5, (1,)), weft.RangeError, "randint: given low=5 and high=5"),
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


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: weft.zeros(2, dtype="float33"),
            weft.DTypeError,
            r"^zeros: given 'float33' for the dtype; expected one of bool, .*, float64\. Fix: use weft\.float32\.$",
        ),
        (lambda: weft.ones(2).to("flaot32"), weft.DeviceError, "^device: given 'flaot32'"),
        (lambda: weft.ones(2).to("float33"), weft.DTypeError, "^to: given 'float33' for the dtype"),
        (lambda: weft.ones(2).sum(dtype="f"), weft.DTypeError, "^sum: given 'f' for the dtype"),
        (lambda: weft.tensor([1], dtype=3), weft.DTypeError, "^tensor: given a int for the dtype"),
        (lambda: weft.tensor([1], dtype=complex), weft.DTypeError, "^tensor: given the type complex for the dtype"),
        (lambda: weft.arange(3, dtype=np.complex64), weft.DTypeError, r"^arange: given the type numpy\.complex64"),
        (lambda: weft.rand(3, dtype=[1]), weft.DTypeError, "^rand: given a list for the dtype"),
        (lambda: weft.asarray([1], dtype="int"), weft.DTypeError, "^asarray: given 'int' for the dtype"),  # 32 or 64?
        (lambda: weft.finfo("float33"), weft.DTypeError, "^finfo: given 'float33'"),
        (
            lambda: F.cross_entropy(weft.ones(3, 4), weft.ones(3)),
            weft.DTypeError,
            r"^cross_entropy: given a target of float32 with the shape of labels, \(3,\), for input \(3, 4\); "
            r"expected integer class labels of shape \(3,\), or class probabilities of shape \(3, 4\)\. Fix: convert",
        ),
        (lambda: F.cross_entropy(weft.ones(4), weft.tensor(1.0)), weft.DTypeError, "with the shape of labels"),
        (lambda: F.cross_entropy(weft.ones(3, 4), weft.ones(3, 5)), weft.ShapeError, "given input .* and target"),
        (lambda: F.nll_loss(weft.ones(3, 4), weft.ones(3)), weft.DTypeError, "a target of float32; expected integer"),
        (
            lambda: np.cbrt(weft.ones(2, requires_grad=True)),
            weft.GraphError,
            r"^numpy\.cbrt: given a tensor that requires grad; expected one that does not\. Fix: use x\.detach",
        ),
        (lambda: np.sin(np.ones(2), out=weft.ones(2)), weft.DTypeError, r"^numpy\.sin: given a weft\.Tensor as out="),
    ],
)
def test_who_given_expected_and_fix(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.float32, weft.float32), (np.dtype("int8"), weft.int8), (np.bool_, weft.bool), ("bfloat16", weft.bfloat16),
        ("half", weft.float16), ("weft.uint8", weft.uint8), (float, weft.float64), (int, weft.int64), (bool, weft.bool),
        (np.dtype(np.float64), weft.float64), (weft.bfloat16.numpy, weft.bfloat16), (weft.int16, weft.int16),
    ],
)  # fmt: skip
def test_dtypes_of_numpy_and_python(given, dtype):
    like = weft.ones(2)
    made = [
        weft.zeros(2, dtype=given), weft.ones(2, dtype=given), weft.full((2,), 1, dtype=given), like.to(given),
        like.to(dtype=given), like.cast(given), weft.tensor([1, 0], dtype=given),
        weft.eye(2, dtype=given), weft.zeros_like(like, dtype=given), like.sum(dtype=given), weft.asarray([1], given),
        weft.as_tensor(like, given),
        like.cumsum(0, dtype=given), weft.empty(1, dtype=given), weft.randint(0, 2, (2,), dtype=given),
    ]  # fmt: skip
    if dtype is not weft.bool:
        made += [weft.arange(2, dtype=given), weft.linspace(0, 1, 2, dtype=given), weft.logspace(0, 1, 2, dtype=given)]
    if dtype.kind in "iu":
        made.append(weft.tril_indices(2, 2, dtype=given))
    assert {x.dtype for x in made} == {dtype}


@pytest.mark.parametrize("name", ["concatenate", "frexp", "where", "cbrt", "sort"])
def test_functions_of_numpy_inside_compile(name):
    arguments = {"concatenate": lambda x: ([x, x],)}.get(name, lambda x: (x,))
    own = {"concatenate": "cat", "cbrt": None}.get(name, name)
    fix = f"use weft.{own}, or compute it before the call" if own else "compute it before the call"
    expected = f"numpy.{name}: given a weft.Tensor inside weft.compile, where values are not known yet"
    with weft.device("cpu"), pytest.raises(weft.DTypeError) as caught:
        weft.compile(lambda x: getattr(np, name)(*arguments(x)))(weft.ones(2))
    assert str(caught.value) == f"{expected}; expected NumPy arrays. Fix: {fix}."


def test_functions_of_numpy_outside_compile():
    x, a = weft.tensor([1.0, 2.0]), np.array([1.0, 2.0], np.float32)
    assert np.sum(x) == 3.0 and np.allclose(x, a) and np.concatenate([x, x]).tolist() == [1.0, 2.0, 1.0, 2.0]
    assert np.shape(x) == (2,) and np.ndim(x) == 1 and np.size(x) == 2
    with weft.device("cpu"):
        assert weft.compile(lambda y: y * np.shape(y)[0] + np.ndim(y) + np.size(y))(weft.ones(3)).tolist() == [7.0] * 3


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.array])
def test_operators_with_numpy_on_the_left_give_tensors(kind):
    x, two = weft.tensor([1.0, 2.0, 4.0]), kind(2)
    results = {
        "+": two + x, "-": two - x, "*": two * x, "/": two / x, "//": two // x, "%": two % x, "**": two**x,
        "<": two < x, "==": two == x, ">=": two >= x,
    }  # fmt: skip
    for name, result in results.items():
        assert isinstance(result, weft.Tensor), name
        expected = eval(f"two {name} a", {"two": two, "a": x.numpy()})
        np.testing.assert_allclose(result.numpy().astype(float), np.asarray(expected, float), rtol=1e-6)
    assert isinstance(np.ones((2, 3), np.float32) @ x, weft.Tensor)


TERABYTE = r"[12]\.00 TiB.*expected at most 900\.0+ MiB, which are available of 1\.00 GiB\. Fix: use smaller"


TERABYTES = {
    "constant": ("reference", lambda: weft.ones(1 << 38).numpy()),
    "interpreted": ("reference", lambda: (weft.ones(1 << 19, 1) * weft.arange(1 << 19)).sum().item()),
    "computed": ("cpu", lambda: (weft.arange(1 << 37) + 1).numpy()),
    "outer": ("cpu", lambda: weft.eval(weft.ones(1 << 19, 1) * weft.arange(1 << 19))),
    "printed": ("cpu", lambda: str(weft.ones(1 << 38))),
    "compiled": ("cpu", lambda: weft.compile(lambda x: x + weft.ones(1 << 38))(weft.ones(1))),
}


@pytest.mark.parametrize(("device", "call"), TERABYTES.values(), ids=TERABYTES.keys())
def test_a_terabyte(device, call, monkeypatch):
    """Refused before it is touched, on machines that have it, too."""
    monkeypatch.setattr(host_memory, "memory", lambda: (900 << 20, 1 << 30))
    with weft.device(device), pytest.raises(weft.OutOfMemoryError, match=TERABYTE):
        call()


def test_more_than_addresses_can_tell_apart():
    with weft.device("cpu"), pytest.raises(MemoryError, match="TiB"):
        (weft.arange(1 << 60) * 2).tolist()


def test_what_does_not_fit_is_refused_before_it_is_touched(monkeypatch):
    """Linux would hand it out and end the process when it is touched."""
    monkeypatch.setattr(host_memory, "memory", lambda: (300 << 20, 1 << 30))
    with weft.device("cpu"):
        weft.eval(weft.arange(1 << 25).float())  # 128 MiB
        with pytest.raises(
            weft.OutOfMemoryError, match=r"needs 320.0 MiB .*; expected at most .*, which are available"
        ):
            weft.eval(weft.arange(80 << 20).float())
        parts = [weft.arange(50 << 20).float() + number for number in range(2)]  # 200 MiB each
        with pytest.raises(weft.OutOfMemoryError, match=r"needs 400\.0 MiB"):
            weft.eval(*parts)


def test_the_limit_of_a_control_group(tmp_path, monkeypatch):
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text("1000\n")
    (tmp_path / "a" / "memory.current").write_text("900\n")
    (tmp_path / "a" / "memory.stat").write_text("anon 5\ninactive_file 300\nactive_file 20\n")
    (group / "memory.max").write_text("max\n")
    monkeypatch.setattr(host_memory, "_group_path", lambda: "a/b")
    assert host_memory._of_group_v2(str(tmp_path)) == (900, 1000, 320)
    monkeypatch.setattr(host_memory, "_of_machine", lambda: (5000, 8000))
    monkeypatch.setattr(host_memory, "_of_group_v2", lambda: (900, 1000, 300))
    assert host_memory.memory() == (400, 1000)
    monkeypatch.setattr(host_memory, "_of_group_v2", lambda: (0, 1 << 62, 0))
    assert host_memory.memory() == (5000, 8000)


def test_each_run_names_its_own_line():
    """A plan that was made at another line is found by its form."""
    with weft.device("cpu"):
        table, lines = weft.ones(3), []
        for call in (
            lambda: table[weft.tensor([5])].tolist(),
            lambda: weft.take(table, weft.tensor([6])).tolist(),
        ):
            with pytest.raises(weft.IndexRangeError) as caught:
                call()
            lines.append(str(caught.value))
    assert "given the index 5 at position 0" in lines[0] and "given the index 6 at position 0" in lines[1]
    numbers = [int(re.search(r"test_errors\.py:(\d+)", line)[1]) for line in lines]
    assert numbers[1] == numbers[0] + 1 and lines[0].startswith("index at ") and lines[1].startswith("take at ")


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_indices_are_named_as_they_were_given(device):
    with weft.device(device):
        for call, message in (
            (
                lambda: weft.ones(3)[weft.tensor([[0, 1], [-7, 1]])],
                r"the index -7 at position \(1, 0\), .* expected -3 to 2",
            ),
            (
                lambda: weft.ones(3, 4)[weft.tensor([0, 1]), weft.tensor([0, 5])],
                "the index 5 at position 1, .* -4 to 3",
            ),
            (lambda: weft.ones(3)[weft.tensor(4)], "the index 4, for an axis of extent 3; expected -3 to 2"),
            (
                lambda: F.embedding(weft.tensor([1, 9]), weft.ones(5, 2)),
                "embedding at .*the index 9 at position 1, .* 0 to 4",
            ),
            (lambda: F.one_hot(weft.tensor([3, 5]), 4), "one_hot at .*the index 5 at position 1"),
            (lambda: F.nll_loss(weft.ones(2, 3), weft.tensor([0, -3])), "nll_loss at .*the label -3 at position 1"),
            (
                lambda: F.cross_entropy(weft.ones(2, 3, 2), weft.tensor([[0, 1], [2, 3]])),
                r"cross_entropy at .*the label 3 at position \(1, 1\), for 3 classes; expected 0 to 2",
            ),
            (
                lambda: weft.zeros(3).scatter_add(0, weft.tensor([0, 3]), weft.ones(2)),
                "scatter_add at .*the index 3 at",
            ),
        ):
            with pytest.raises(weft.IndexRangeError, match=message):
                call().numpy()


def test_an_index_out_of_range_names_the_users_line():
    wrong = weft.ones(3)[weft.tensor([0, 5])]
    with pytest.raises(
        weft.IndexRangeError,
        match=r"index at .*test_errors\.py:\d+: given the index 5 at position 1, for .* 3; expected -3 to 2",
    ):
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


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_label_outside_the_classes(device):
    where = r"cross_entropy at .*test_errors.py:\d+: given the label 3 at position 1, for 3 classes; expected 0 to 2"
    with weft.device(device), pytest.raises(weft.IndexRangeError, match=where):
        F.cross_entropy(weft.ones(2, 3), weft.tensor([0, 3])).item()
