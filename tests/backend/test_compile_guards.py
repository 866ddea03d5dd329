"""`weft.compile`: which calls replay a plan, and which are traced anew."""

import importlib
import sys

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.backend.compiling import counted, full, kernels_made, numbers, ones, parameter
from weft.compiler.passes.library_calls import library_of

pytestmark = pytest.mark.usefixtures("on_each_device")


def test_keywords_and_defaults():
    @weft.compile
    def step(x, *, scale=2.0, add=None):
        return x * scale if add is None else x * scale + add

    x = ones(2)
    assert step(x).tolist() == [2.0, 2.0]
    assert step(x, scale=3.0).tolist() == [3.0, 3.0]
    assert step(x=x, scale=4.0).tolist() == [4.0, 4.0]
    assert step(x, add=ones(2)).tolist() == [3.0, 3.0]
    assert counted("traces", lambda: step(x, scale=7.0)) == 0


def test_numpy_arguments():
    step = weft.compile(lambda x, y: (x * y).sum())
    for iteration in range(3):
        assert step(np.full(3, iteration, np.float32), np.ones(3, np.float32)).item() == 3.0 * iteration
    assert step(np.arange(3), ones(3, dtype=weft.int64)).item() == 3


def test_numpy_numbers_are_arguments_too():
    step = weft.compile(lambda x, rate: x * rate)
    for rate in (np.float64(0.5), np.float32(0.25)):
        assert step(ones(1), rate).item() == rate


def test_floats_are_dynamic():
    step = weft.compile(lambda x, rate, shift: x * rate + shift)
    x = ones(2)
    step(x, 0.5, 1.0)
    for rate in (0.25, 0.0, -1.0, 1e30, float("inf")):
        assert counted("traces", lambda rate=rate: step(x, rate, 2.0)) == 0
        assert step(x, rate, 2.0).tolist() == [np.float32(rate) + 2.0] * 2


def test_a_float_takes_the_dtype_of_its_partner():
    step = weft.compile(lambda x, rate: x * rate)
    double = ones(2, dtype=weft.float64)
    assert step(double, 0.1).dtype is weft.float64
    np.testing.assert_array_equal(step(double, 0.1).numpy(), [0.1, 0.1])  # not the float32 nearest to 0.1
    assert step(ones(2, dtype=weft.int32), 0.5).dtype is weft.float32


@pytest.mark.parametrize(("first", "second"), [(2, 3), (True, False), ("sum", "mean"), (1, True), (None, 1), (1, 1.0)])
def test_other_arguments_are_static(first, second):
    def describe(x, what):
        return (
            x.sum() if what in ("sum", 1) and what is not True else x * (3 if what is None else float(len(str(what))))
        )

    step = weft.compile(lambda x, what: describe(x, what) if not isinstance(what, weft.Tensor) else x * what * 5)
    x = ones(2)
    step(x, first)
    assert counted("traces", lambda: step(x, second)) == 1
    assert counted("traces", lambda: (step(x, first), step(x, second))) == 0
    np.testing.assert_array_equal(step(x, first).numpy(), describe(x, first).numpy())


def test_integers_choose_the_branch():
    @weft.compile
    def power(x, n):
        for _ in range(n):
            x = x * 2.0
        return x

    assert [power(ones(1), n).item() for n in (0, 3, 1, 3, 0)] == [1.0, 8.0, 2.0, 8.0, 1.0]


def test_shapes_and_dtypes_are_guarded():
    step = weft.compile(lambda x: x.sum())
    given = [
        ones(3),
        ones(4),
        ones(3, 1),
        ones(3, dtype=weft.float64),
        ones(3, dtype=weft.int32),
    ]
    for number, x in enumerate(given):
        assert counted("traces", lambda x=x: step(x)) == 1, number
    for x in given:
        assert step(x).item() == x.numel()
        assert step(x).dtype is x.sum().dtype
    assert counted("traces", lambda: [step(x) for x in given]) == 0


def test_devices_are_guarded():
    step = weft.compile(lambda x: x + 1.0)
    here, elsewhere = ones(3), ones(3, device="reference")
    weft.eval(here)
    weft.eval(elsewhere)
    for _ in range(2):
        assert step(here).tolist() == [2.0] * 3
    with pytest.raises(weft.GraphError, match="reference backend"):  # it interprets; it compiles nothing
        step(elsewhere)
    assert step(here).tolist() == [2.0] * 3


def test_two_devices_are_refused():
    step = weft.compile(lambda x, y: (x + 1.0, y + 1.0))
    both = r"(\S+, null|null, \S+)"  # in the order of their names
    with pytest.raises(weft.DeviceError, match=rf"weft\.compile\(.*lambda.*\): given tensors on {both}; expected"):
        step(ones(1), ones(1, device="null"))


def test_the_last_short_batch_compiles_no_kernels():
    """The outermost extent is a kernel argument. A product by a kernel of our own on a GPU knows how long its sums are,
    though: those of the gradient of `w` have a term for each row. A library computes it where the device has one (with
    an even number of columns, small products are our own there, too); elsewhere it is one kernel more."""
    w, b = parameter(16, 25), parameter(16, seed=1)
    optimizer = weft.optim.AdamW([w, b], lr=1e-2)

    @weft.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(x, w, b).relu(), y)
        loss.backward()
        optimizer.step()
        return loss

    def run(rows):
        x, y = weft.tensor(numbers(rows, 25)), weft.tensor(np.arange(rows) % 16)
        weft.eval(x, y)
        return lambda: step(x, y)

    run(128)()
    short = run(100)
    compiled = kernels_made()
    assert counted("traces", short) == 1
    device = weft.default_device()
    assert kernels_made() - compiled == (device.kind != "cpu" and library_of(device) is None)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.relu() * 2.0 + 1.0,
        lambda x: x.softmax(-1),
        lambda x: F.layer_norm(x, (x.shape[-1],)),
        lambda x: (x * x).sum(1),
        lambda x: (x * x).mean(0),
        lambda x: (x * x).mean(),
        lambda x: x[:, :5] @ x[:5, :6],
        lambda x: x[:, :5].mT @ x[:, :6],
    ],
    ids=["elementwise", "softmax", "layer_norm", "row sum", "column sum", "sum", "small product", "small gradient"],
)
def test_another_number_of_rows_compiles_no_kernels(function):
    step = weft.compile(function)
    step(ones(96, 40))
    short = ones(70, 40)
    weft.eval(short)
    compiled = kernels_made()
    step(short)
    assert kernels_made() == compiled


def test_what_a_driver_does_during_a_trace_is_not_guarded():
    """The values are uploaded while the function is traced. A driver that is written in Python (wgpu) then changes
    attributes of its own, which are none of the user's."""
    w = parameter(3)
    step = weft.compile(lambda x: (w * x + weft.tensor([1.0, 2.0, 3.0])).sum())
    x = ones(3)
    weft.eval(x)
    assert counted("traces", lambda: [step(x) for _ in range(4)]) == 1
    assert step.retraces == []


@pytest.mark.parametrize("name", ["hip", "cuda", "rocm", "nn_parts"])
def test_packages_of_the_user_are_guarded_whatever_they_are_called(name, tmp_path, monkeypatch):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "own_scale.py").write_text("FACTOR = 2.0\n\n\ndef scale(x):\n    return x * FACTOR\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in (name, f"{name}.own_scale"):  # what was there comes back
        monkeypatch.setitem(sys.modules, module, None)
        del sys.modules[module]
    own = importlib.import_module(f"{name}.own_scale")
    step = weft.compile(lambda x: own.scale(x))
    assert step(ones(1)).tolist() == [2.0]
    own.FACTOR = 3.0
    assert step(ones(1)).tolist() == [3.0]


def test_gradient_mode_is_guarded():
    w = parameter(2)

    @weft.compile
    def step(x):
        y = (w * x).sum()
        return y if y.requires_grad else y * 100.0

    x = ones(2)
    plain = step(x).item()
    with weft.no_grad():
        np.testing.assert_allclose(step(x).item(), plain * 100.0, rtol=1e-6)
    assert step(x).item() == plain


def test_requires_grad_of_an_argument_is_guarded():
    @weft.compile
    def step(x):
        return x.sum() * 2.0 if x.requires_grad else x.sum()

    x = ones(2)
    assert [step(x).item(), step(x).item()] == [2.0, 2.0]
    leaf = ones(2, requires_grad=True)
    weft.eval(leaf)
    assert step(leaf).item() == 4.0
    assert step(x).item() == 2.0


def test_requires_grad_of_a_cell_is_guarded():
    w, frozen = parameter(2), parameter(2, seed=1)

    @weft.compile
    def step():
        w.grad = frozen.grad = None
        (w * frozen).sum().backward()

    step()
    assert frozen.grad is not None
    frozen.requires_grad_(False)
    step()
    assert frozen.grad is None
    np.testing.assert_array_equal(w.grad.numpy(), frozen.numpy())


def test_a_retrace_tells_its_cause():
    w = parameter(2)

    @weft.compile
    def step(x, count):
        (w * x).sum().backward()
        return x.sum() * count

    step(ones(2), 1)
    assert step.retraces == []
    step(ones(2), 1)
    w.grad = None
    step(ones(2, dtype=weft.float64).float(), 2)
    with weft.no_grad():
        weft.compile(lambda x: x)(ones(1))
    assert len(step.retraces) == 2
    assert ".grad that was None" in step.retraces[0]
    assert "argument 1" in step.retraces[1]


def test_other_arguments_are_refused_by_name():
    step = weft.compile(lambda x: x)
    with pytest.raises(weft.GraphError, match=r"weft.compile: given an argument of type object"):
        step(object())


def test_the_same_tensor_twice():
    step = weft.compile(lambda a, b: a * 2.0 + b)
    x, y = ones(3), full((3,), 5.0)
    assert step(x, x).tolist() == [3.0] * 3
    assert step(x, y).tolist() == [7.0] * 3
    assert step(y, y).tolist() == [15.0] * 3


def test_a_captured_cell_as_an_argument():
    w = ones(3)

    @weft.compile
    def step(x):
        w.add_(x)
        return x * 10.0

    assert step(w).tolist() == [10.0] * 3
    assert w.tolist() == [2.0] * 3
    assert step(w).tolist() == [20.0] * 3
    assert w.tolist() == [4.0] * 3
    assert step(ones(3)).tolist() == [10.0] * 3
    assert w.tolist() == [5.0] * 3


def test_a_cell_assigned_from_outside_as_an_argument():
    """What the argument reads must not be handed out as memory for a result."""
    cell = weft.zeros(6)

    @weft.compile
    def step(x):
        cell.add_(1.0)
        return cell.amax(), x * 1.0

    kept = [step(weft.zeros(6)) for _ in range(2)]
    for iteration in range(3):
        cell.copy_(full((6,), 3.0) + float(iteration))
        kept.append(step(cell))
        assert kept[-1][1].tolist() == [3.0 + iteration] * 6
        assert cell.tolist() == [4.0 + iteration] * 6


def test_lazy_arguments_are_computed_first():
    step = weft.compile(lambda x: x + 1.0)
    for iteration in range(3):
        assert step(full((2,), 1.0) * float(iteration) + 1.0).tolist() == [iteration + 2.0] * 2


def test_an_argument_assigned_inside_changes_nothing_outside():
    @weft.compile
    def step(x):
        x.add_(1.0)
        return x * 2.0

    x = ones(2)
    for _ in range(3):
        assert step(x).tolist() == [4.0, 4.0]
        assert x.tolist() == [1.0, 1.0]


def test_nested_compiled_functions():
    w = weft.zeros(2)

    @weft.compile
    def inner(x, scale):
        w.add_(1.0)
        return x * scale

    @weft.compile
    def outer(x):
        return inner(x, 2.0) + inner(x, 3.0)

    for iteration in range(1, 4):
        assert outer(ones(2)).tolist() == [5.0, 5.0]
        assert w.tolist() == [2.0 * iteration] * 2
    assert inner(ones(2), 4.0).tolist() == [4.0, 4.0]
    assert w.tolist() == [7.0, 7.0]
    assert outer(ones(2)).tolist() == [5.0, 5.0]
    assert w.tolist() == [9.0, 9.0]


def test_a_method_and_its_name():
    class Model:
        def __init__(self):
            self.w = full((2,), 2.0)
            self.call = weft.compile(self.forward)

        def forward(self, x):
            """Twice."""
            return self.w * x

    model = Model()
    assert model.call(ones(2)).tolist() == [2.0, 2.0]
    assert model.call.__doc__ == "Twice."
    assert "Model.forward" in model.call.name
