"""copy, deepcopy, pickle and reload: dtypes and devices stay one object each, tensors become tensors of their own."""

import copy
import dataclasses
import pickle
import pickletools
import pydoc
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import weft
import weft.nn.functional as F
from tests.unit.fake_cuda import FakeCuda
from weft.backends.registry import _loaded
from weft.base import dtypes
from weft.core.copying import rebuild_tensor

pytestmark = pytest.mark.unit
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
ARTIFACTS = Path(__file__).parents[1] / "artifacts"


def pickled(value, protocol=pickle.HIGHEST_PROTOCOL):
    return pickle.loads(pickle.dumps(value, protocol))


WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{f"pickle{number}": lambda x, number=number: pickled(x, number) for number in PROTOCOLS},
}


@pytest.fixture(params=WAYS.values(), ids=WAYS.keys())
def again(request):
    return request.param


@pytest.fixture(
    params=[way for name, way in WAYS.items() if name != "copy"], ids=[name for name in WAYS if name != "copy"]
)
def full_copy(request):
    """Ways to a copy with elements of its own: `copy.copy` shares them, as in PyTorch."""
    return request.param


# --- singletons ------------------------------------------------------------------------------------------------------


def test_there_is_one_object_for_a_dtype(again):
    for dtype in dtypes.ALL:
        assert again(dtype) is dtype
        assert again({"dtype": [dtype]})["dtype"][0] is dtype
        assert dataclasses.replace(dtype) is dtype
    with pytest.raises(weft.DTypeError, match="the dtype that exists"):
        dataclasses.replace(weft.float16, kind="i")


@pytest.mark.parametrize("name", ["cpu", "reference", "null"])
def test_there_is_one_object_for_a_device(again, name):
    assert again(weft.get_device(name)) is weft.get_device(name)
    assert again([weft.get_device(name)])[0] is weft.get_device(name)


def test_a_device_that_is_not_here_is_an_error_on_its_own():
    gone = pickle.dumps(weft.get_device("cpu")).replace(b"cpu", b"gpu")
    with pytest.raises(weft.DeviceError, match="device: given 'gpu'"):
        pickle.loads(gone)


RELOAD = """
import importlib, pickle, sys
import weft
from weft.base import dtypes, singletons
from weft.backends.cpu import backend as cpu
from weft.plan import device as base

modules = [singletons, dtypes, base, cpu, sys.modules["weft.core.device"]]
kinds, before = (dtypes.DType, base.Device), dtypes.ALL
devices = [weft.get_device(name) for name in ("cpu", "reference")]
weft.set_default_device("reference")
x = weft.tensor([1.0, 0.0, 3.0], device="cpu").half()
for module in [*modules, *modules]:
    importlib.reload(module)
assert (dtypes.DType, base.Device) == kinds
assert all(one is two for one, two in zip(before, dtypes.ALL, strict=True))
device = sys.modules["weft.core.device"]
assert [device.get("cpu"), device.get("reference")] == devices and device.get(devices[0]) is devices[0]
assert device.default_device() is devices[1] and weft.ones(1).device is devices[1]
y = weft.tensor([1.0, 1.0, 1.0], dtype=dtypes.float16, device=device.get("cpu"))
print((x + y).tolist(), pickle.loads(pickle.dumps(x)).device is devices[0])
"""


def test_reload_keeps_both():
    done = subprocess.run([sys.executable, "-c", RELOAD], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.stdout, done.stderr) == ("[2.0, 1.0, 4.0] True\n", "")


# --- tensors ---------------------------------------------------------------------------------------------------------

FORMS = {
    "vector": lambda dtype: weft.tensor([1, 0, 3]).to(dtype),
    "scalar": lambda dtype: weft.tensor(1).to(dtype),
    "empty": lambda dtype: weft.zeros(0, 3, dtype=dtype),
    "transposed": lambda dtype: weft.tensor([[1, 0, 2], [2, 1, 1]]).to(dtype).T,
    "strided": lambda dtype: weft.tensor([1, 2, 3, 4]).to(dtype)[1::2],
    "lazy": lambda dtype: weft.ones(3, dtype=dtype),
    "large": lambda dtype: (weft.arange(5000) % 100).to(dtype),
}


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_values_of_every_dtype_and_form(dtype, form, device):
    with weft.device(device):
        x = form(dtype)
    for name, way in WAYS.items():
        y = way(x)
        assert (y.dtype, y.device, y.shape, y.requires_grad) == (dtype, x.device, x.shape, False), name
        np.testing.assert_array_equal(y.numpy(), x.numpy(), strict=True)
        assert (y + y).dtype is (x + x).dtype
        np.testing.assert_array_equal((y == x).numpy(), np.ones(x.shape, bool))


def test_special_values_keep_their_bits(again):
    bits = np.array([0x7F800001, 0x80000000, 0xFF800000, 1], np.uint32)
    x = weft.tensor(bits.view(np.float32))
    assert again(x).numpy().view(np.uint32).tolist() == bits.tolist()


def test_writing_to_a_copy_leaves_the_source_alone(full_copy):
    x = weft.tensor([1.0, 2.0])
    y = full_copy(x)
    y += 1
    y[0] = 9.0
    assert x.tolist() == [1.0, 2.0] and y.tolist() == [9.0, 3.0]
    x.mul_(10)
    assert y.tolist() == [9.0, 3.0]


def test_a_deep_copy_of_shared_memory_is_its_own():
    array = np.ones(5000, np.float32)
    x = weft.from_numpy(array)
    y = copy.deepcopy(x)
    array[:] = 2
    assert y.numpy().sum() == 5000


def leaves():
    w = weft.tensor([1.0, 2.0], requires_grad=True)
    (w * w).sum().backward()
    t = torch.tensor([1.0, 2.0], requires_grad=True)
    (t * t).sum().backward()
    return w, t


def test_leaves_are_copied_as_in_torch(again):
    w, t = leaves()
    y, expected = again(w), again(t)
    assert (y.requires_grad, y.is_leaf) == (expected.requires_grad, expected.is_leaf) == (True, True)
    assert (y.grad is None) == (expected.grad is None)
    if y.grad is not None:
        assert y.grad is not w.grad and y.grad.tolist() == expected.grad.tolist() == [2.0, 4.0]
        y.grad.add_(1)
    y.grad = None
    (y * 3).sum().backward()
    assert y.grad.tolist() == [3.0, 3.0] and w.grad.tolist() == [2.0, 4.0]
    with weft.no_grad(), torch.no_grad():
        y.add_(1)
        expected.add_(1)
    assert w.tolist() == t.tolist()


def test_results_of_operations_as_in_torch():
    w, t = leaves()
    for x in (w * 2, t * 2):
        with pytest.raises(RuntimeError):
            copy.deepcopy(x)
        for y in (copy.copy(x), pickled(x)):
            assert (y.is_leaf, y.requires_grad, y.tolist()) == (True, True, [2.0, 4.0])
        assert copy.deepcopy(x.detach()).requires_grad is False
    with pytest.raises(weft.GraphError, match=r"copy.deepcopy: given the result of an operation .* Fix: copy x.detach"):
        copy.deepcopy([w * 2])
    with weft.no_grad():
        assert copy.deepcopy(w * 2).tolist() == [2.0, 4.0]


def test_what_is_shared_stays_shared():
    w, _ = leaves()
    for one in (copy.deepcopy({"a": w, "b": [w, w.grad]}), pickled({"a": w, "b": [w, w.grad]})):
        assert one["a"] is one["b"][0] and one["a"] is not w
    deep = copy.deepcopy({"a": w, "b": [w, w.grad]})
    assert deep["a"].grad is deep["b"][1]
    memo = {}
    assert copy.deepcopy(w, memo) is copy.deepcopy(w, memo) and w.__deepcopy__(memo) is copy.deepcopy(w, memo)


def test_names_are_kept(again):
    w = weft.ones(2)
    w.name = "weight"
    assert again(w).name == "weight"


def test_copies_beside_a_compiled_function_that_writes_in_place(full_copy):
    w = weft.zeros(3)

    @weft.compile
    def step():
        w.add_(1.0)
        return w.sum()

    kept = []
    for _ in range(4):
        step()
        kept.append(full_copy(w))
    assert [x.tolist() for x in kept] == [[1.0] * 3, [2.0] * 3, [3.0] * 3, [4.0] * 3]
    kept[0].add_(10)
    assert step().item() == 15.0 and w.tolist() == [5.0] * 3


def test_a_shallow_copy_beside_a_compiled_function_that_writes_in_place():
    w = weft.zeros(3)
    other = copy.copy(w)

    @weft.compile
    def step():
        w.add_(1.0)
        return w.sum()

    for count in range(1, 4):
        assert step().item() == 3.0 * count and other.tolist() == w.tolist() == [float(count)] * 3
    other.add_(10)
    assert step().item() == 42.0 and other.tolist() == [14.0] * 3


def test_copies_inside_a_compiled_function():
    w = weft.tensor([1.0, 2.0], requires_grad=True)

    def function(x):
        y = copy.deepcopy(x)
        y += 1
        v = copy.deepcopy(w)
        (v * v * y).sum().backward()
        return y + copy.copy(x), v.grad

    for _ in range(3):
        for one, two in zip(weft.compile(function)(weft.ones(2)), function(weft.ones(2)), strict=True):
            assert one.tolist() == two.tolist()
    assert function(weft.ones(2))[1].tolist() == [4.0, 8.0] and w.grad is None
    with pytest.raises(weft.GraphError, match=r"pickle: given a tensor inside weft\.compile"):
        weft.compile(lambda x: pickled(x))(weft.ones(2))


def test_a_tensor_of_a_device_that_is_not_here_comes_on_the_cpu():
    with pytest.warns(UserWarning, match="a tensor was saved on 'cuda:0' and is loaded on the CPU"):
        x = rebuild_tensor(np.ones(2, np.float32).tobytes(), (2,), "float32", "cuda:0", True, None)
    assert x.device is weft.get_device("cpu") and x.tolist() == [1.0, 1.0] and x.requires_grad


def test_a_tensor_of_a_gpu_comes_back_there(again, monkeypatch):
    monkeypatch.setitem(_loaded, "cuda", FakeCuda(runs=True))
    x = weft.tensor([1.0, 0.0, 3.0], device="cuda").half()
    y = again(x)
    assert y.device is x.device and y.dtype is weft.float16 and y.tolist() == [1.0, 0.0, 3.0]
    assert (y + x).tolist() == [2.0, 0.0, 6.0]


def test_out_of_band_buffers_are_not_copied_into_the_pickle():
    x, buffers = weft.arange(10_000.0), []
    data = pickle.dumps(x, 5, buffer_callback=buffers.append)
    assert len(data) < 1000 and len(buffers) == 1
    np.testing.assert_array_equal(pickle.loads(data, buffers=buffers).numpy(), x.numpy())


def test_old_files_can_be_read():
    """`tests/artifacts/tensors-1.pickle` was written by version 0.1.0."""
    with open(ARTIFACTS / "tensors-1.pickle", "rb") as file:
        found = pickle.load(file)
    assert set(found) == {dtype.name for dtype in dtypes.ALL}
    for name, (vector, scalar, empty) in found.items():
        assert vector.dtype is dtypes.by_name(name) is scalar.dtype is empty.dtype
        assert vector.tolist() == [1, 0, 1] and scalar.shape == () and empty.shape == (0, 2)
        assert vector.requires_grad == vector.dtype.is_floating_point


def test_objects_of_the_former_layout_can_be_read():
    """`tests/artifacts/objects-1.pickle` was written when most modules lay directly in `weft/`."""
    with open(ARTIFACTS / "objects-1.pickle", "rb") as file:
        found = pickle.load(file)
    assert found["dtypes"] == [weft.float32, weft.bool, weft.bfloat16] and found["device"] is weft.get_device("cpu")
    assert type(found["size"]) is weft.Size and found["size"] == (2, 3)
    assert found["generator"].get_state() == (7, 1)
    assert found["tensor"].tolist() == [1.0, 2.0] and found["tensor"].requires_grad
    assert type(found["parameter"]) is weft.nn.Parameter
    assert found["linear"](weft.tensor([1.0, 1.0])).tolist() == [3.5]
    assert found["optimizer"].param_groups[0]["lr"] == 0.25
    found["linear"](weft.ones(2)).sum().backward()
    found["optimizer"].step()  # of the layer that was pickled with it
    assert found["linear"].weight.tolist() == [[0.75, 1.75]]
    assert type(found["adjacency"]) is weft.Adjacency and found["limits"].bits == 16
    assert found["functions"] == [weft.zeros, weft.from_numpy] and found["compiled"].function is len
    assert found["classes"] == [weft.Tensor, weft.Generator, weft.Size, weft.dtype, weft.autocast, weft.no_grad]


def globals_of(value):
    """The names that a pickle of `value` imports."""
    operations = pickletools.genops(pickle.dumps(value, 2))
    names = {argument.replace(" ", ".") for code, argument, _ in operations if code.name == "GLOBAL"}
    return names - {"copyreg.__newobj__", "_codecs.encode"}


def test_pickles_name_public_paths():
    assert globals_of([weft.float32, weft.bool]) == {"weft.float32", "weft.bool"}
    assert globals_of(weft.ones(2)) == {"weft.copying.rebuild_tensor", "weft.Size"}
    assert globals_of(weft.device("cpu")) == {"weft.get_device"}
    assert globals_of(weft.Generator(1)) == {"weft.random._restored"}
    assert "weft.jit.Compiled" in globals_of(weft.compile(len))
    assert globals_of([weft.Tensor, weft.Generator, weft.dtype]) == {"weft.Tensor", "weft.Generator", "weft.dtype"}
    assert globals_of([weft.relu, F.relu, weft.linalg.cross]) == {
        "weft.relu", "weft.nn.functional.relu", "weft.linalg.cross",
    }  # fmt: skip


@pytest.mark.parametrize("space", [weft, F, weft.linalg, weft.special], ids=lambda space: space.__name__)
def test_public_functions_and_classes_are_found_again(space):
    names = getattr(space, "__all__", None) or [name for name in vars(space) if not name.startswith("_")]
    values = [value for name in names if isinstance(value := getattr(space, name), (types.FunctionType, type))]
    assert len(values) > 10 and all(pickled(value) is value for value in values)


def test_classes_show_their_public_paths():
    shown = [weft.Tensor, weft.Generator, weft.Size, weft.dtype, type(weft.device("cpu")), type(weft.compile(len))]
    names = ["weft.Tensor", "weft.Generator", "weft.Size", "weft.dtype", "weft.device", "weft.jit.Compiled"]
    assert [repr(kind) for kind in shown] == [f"<class '{name}'>" for name in names]
    text = pydoc.render_doc(weft.softmax, renderer=pydoc.plaintext)
    assert (
        "function softmax in module weft\n" in text and "softmax(input: Tensor, dim: int" in text and "Node" not in text
    )
    assert pydoc.render_doc(weft.Tensor, renderer=pydoc.plaintext).startswith(
        "Python Library Documentation: class Tensor in module weft"
    )


# --- what holds tensors ----------------------------------------------------------------------------------------------


def network(seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((6, 8), (8,), (8, 3))
    return [weft.tensor(rng.normal(0, 0.3, shape).astype(np.float32), requires_grad=True) for shape in shapes]


def train(parameters, optimizer, steps=3):
    w, b, v = parameters
    x, y = weft.tensor(np.linspace(-1, 1, 30).reshape(5, 6).astype(np.float32)), weft.tensor([0, 1, 2, 1, 0])
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy((x @ w + b).tanh() @ v, y).backward()
        optimizer.step()
    return [parameter.numpy().copy() for parameter in parameters]


@pytest.mark.parametrize("kind", [weft.optim.SGD, weft.optim.Adam, weft.optim.AdamW])
@pytest.mark.parametrize("way", [copy.deepcopy, pickled])
def test_a_copied_optimizer_goes_on_as_the_original(kind, way):
    parameters = network()
    optimizer = kind(parameters, lr=0.05)
    train(parameters, optimizer)
    others, other = way((parameters, optimizer))
    assert all(one is two for one, two in zip(others, other.param_groups[0]["params"], strict=True))
    before = parameters[0].numpy().copy()
    moved = train(others, other)
    np.testing.assert_array_equal(parameters[0].numpy(), before)
    for one, two in zip(train(parameters, optimizer), moved, strict=True):
        np.testing.assert_array_equal(one, two)
    optimizer.param_groups[0]["lr"] = other.param_groups[0]["lr"] = 0.01
    for one, two in zip(train(parameters, optimizer), train(others, other), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("way", [copy.deepcopy, pickled])
def test_state_dicts(way):
    parameters = network()
    optimizer = weft.optim.Adam(parameters, lr=0.05)
    train(parameters, optimizer)
    saved = way({"optimizer": optimizer.state_dict(), "model": {str(k): p for k, p in enumerate(parameters)}})
    restored = list(saved["model"].values())
    again = weft.optim.Adam(restored, lr=0.1)
    again.load_state_dict(saved["optimizer"])
    for one, two in zip(train(parameters, optimizer), train(restored, again), strict=True):
        np.testing.assert_array_equal(one, two)


def test_generators(again):
    generator = weft.Generator(7)
    weft.rand(5, generator=generator)
    other = again(generator)
    assert other is not generator and other.get_state() == generator.get_state()
    assert weft.rand(3, generator=other).tolist() == weft.rand(3, generator=generator).tolist()


class Model:
    def __init__(self):
        self.weight = weft.ones(2)
        self.step = weft.compile(self.run)

    def run(self, x):
        self.weight.add_(x)
        return self.weight.sum()


@weft.compile
def compiled(x):
    return x + 1


@pytest.mark.parametrize("way", [copy.deepcopy, pickled])
def test_a_model_with_a_compiled_method(way):
    model = Model()
    assert model.step(weft.ones(2)).item() == 4.0
    other = way(model)
    assert other.step.function.__self__ is other and other.step(weft.ones(2)).item() == 6.0
    assert model.step(weft.ones(2)).item() == 6.0 and model.weight.tolist() == [3.0, 3.0]
    assert pickled(compiled) is compiled


def test_threads_copy_at_once():
    w, found = weft.tensor([1.0, 2.0], requires_grad=True), []

    def work():
        found.extend(copy.deepcopy(w).tolist() == [1.0, 2.0] for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 200
