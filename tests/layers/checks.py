"""What every layer passes: `CHECKS` maps the name of a check to a function of a record.

They run on the default device. Numbers are compared with the record's oracle; where a GPU is the default device, they
are also compared with those of the CPU.
"""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from tests.layers.record import COLUMNS, Case, Draw, LayerRecord
from weft import tree
from weft.backends.base import Slab


class NotApplicable(Exception):
    """A check that says nothing about a layer; the text says why."""


# ---- layers and inputs ----------------------------------------------------------------------------------------------


def make_layer(record: LayerRecord, make: Callable[[], Any] | None = None, seed: int = 1) -> Any:
    """An instance whose parameters are all random: a scale that starts as 1 would hide a missing factor."""
    weft.manual_seed(seed)
    layer = (make or record.make)().train(record.training)
    random = np.random.default_rng(seed)
    with weft.no_grad():
        for param in layer.parameters():
            if param.dtype.kind == "f":
                noise = random.normal(size=tuple(param.shape)) * 0.1
                param.add_(weft.tensor(noise, dtype=param.dtype))
    return layer


def tensors(values: Any, dtype: Any = weft.float32, requires_grad: bool = False) -> Any:
    """Arrays in nested containers as tensors; floats in `dtype`."""
    leaves, structure = tree.flatten(values)
    made = []
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            is_float = leaf.dtype.kind == "f"
            leaf = weft.tensor(leaf, dtype=dtype) if is_float else weft.tensor(leaf)
            if is_float and requires_grad:
                leaf.requires_grad_()
        made.append(leaf)
    return tree.unflatten(structure, made)


def leaves_of(value: Any) -> list[Any]:
    """The arrays and tensors in a result, in order; sequences that are objects are taken apart."""
    found = []
    for leaf in tree.flatten(value)[0]:
        if leaf is None:
            continue
        if hasattr(leaf, "data") and hasattr(leaf, "batch_sizes"):  # a packed sequence
            leaf = leaf.data
        found.append(leaf)
    return found


def arrays_of(value: Any) -> list[np.ndarray]:
    """The numbers in a result of Weft, torch or NumPy, as arrays."""
    found = []
    for leaf in leaves_of(value):
        if hasattr(leaf, "detach"):
            leaf = leaf.detach()
        if isinstance(leaf, weft.Tensor) and leaf.dtype.is_narrow:
            leaf = leaf.float()
        found.append(leaf.numpy() if hasattr(leaf, "numpy") else np.asarray(leaf))
    return found


def state_of(layer: Any) -> dict[str, np.ndarray]:
    """The state_dict as arrays; floats in float64."""
    found = {}
    for key, value in layer.state_dict().items():
        array = np.array(value.float() if value.dtype.is_narrow else value)
        found[key] = array.astype(np.float64) if array.dtype.kind == "f" else array
    return found


def assert_close(given: Any, expected: Any, rtol: float, atol: float, what: str) -> None:
    ours, theirs = arrays_of(given), arrays_of(expected)
    assert len(ours) == len(theirs), f"{what}: {len(ours)} results, the oracle has {len(theirs)}"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one.shape == other.shape, f"{what}: result {number} has shape {one.shape}, the oracle's {other.shape}"
        if one.dtype.kind in "iub":
            np.testing.assert_array_equal(one, other, err_msg=f"{what}: result {number}")
        else:
            scale = float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
            np.testing.assert_allclose(
                one, other, rtol=rtol, atol=max(atol, rtol * 0.1 * scale), err_msg=f"{what}: result {number}"
            )


def floats_of(result: Any) -> list[weft.Tensor]:
    """The results that have a gradient."""
    return [leaf for leaf in leaves_of(result) if isinstance(leaf, weft.Tensor) and leaf.dtype.kind == "f"]


def weighted(result: Any, seed: int = 5) -> weft.Tensor:
    """A number that depends on every element of the results, each with a weight of its own."""
    random = np.random.default_rng(seed)
    total = None
    for leaf in floats_of(result):
        weights = weft.tensor(random.uniform(0.5, 1.5, tuple(leaf.shape)), dtype=leaf.dtype)
        part = (leaf * weights).sum()
        total = part if total is None else total + part
    assert total is not None, "no floating-point result"
    return total


# ---- the checks -----------------------------------------------------------------------------------------------------


def check_forward(record: LayerRecord) -> None:
    """The results are those of the oracle."""
    _compare(record, Case(), record.training)


def _compare(record: LayerRecord, case: Case, training: bool) -> None:
    layer = make_layer(record, case.make).train(training)
    inputs = (case.inputs or record.inputs)(Draw())
    if case.check is not None:
        case.check(layer, tensors(inputs))
        return
    oracle = case.oracle or record.oracle
    if oracle is None:
        raise NotApplicable("its results are random: see its own checks")
    state = state_of(layer)
    result = layer(*tensors(inputs))
    expected = oracle(state, _in_float32(inputs), training)
    assert_close(result, expected, record.rtol, record.atol, record.id)


def _in_float32(inputs: Any) -> Any:
    """The numbers that float32 tensors hold, in float64."""
    leaves, structure = tree.flatten(inputs)
    rounded = [
        leaf.astype(np.float32).astype(np.float64) if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" else leaf
        for leaf in leaves
    ]
    return tree.unflatten(structure, rounded)


def check_gradient(record: LayerRecord) -> None:
    """The gradient in all inputs and parameters is that of central differences in float64, along random directions;
    and that of torch, where torch has the layer."""
    if not record.differentiable:
        raise NotApplicable("its results have no gradient")
    if record.own_gradient:
        raise NotApplicable("its gradient is a rule of its own: see its own checks")
    layer = make_layer(record).double()
    inputs = _with_gradients(record, weft.float64)
    points = [leaf for leaf in tree.flatten(inputs)[0] if isinstance(leaf, weft.Tensor) and leaf.requires_grad]
    points += [param for param in layer.parameters() if param.requires_grad]
    if not points:
        raise NotApplicable("nothing has a gradient")
    buffers = {name: value.clone() for name, value in layer.named_buffers()}

    def value() -> float:
        _restore(layer, buffers)
        weft.manual_seed(3)
        with weft.no_grad():
            return weighted(layer(*inputs)).item()

    _restore(layer, buffers)
    weft.manual_seed(3)
    weighted(layer(*inputs)).backward()
    _restore(layer, buffers)
    grads = [np.zeros(tuple(point.shape)) if point.grad is None else np.array(point.grad) for point in points]
    random, step = np.random.default_rng(7), 1e-6
    start = [np.array(point.detach()) for point in points]
    for _ in range(2):
        directions = [random.normal(size=one.shape) for one in start]
        values = []
        for sign in (1.0, -1.0):
            with weft.no_grad():
                for point, at, direction in zip(points, start, directions, strict=True):
                    point.copy_(weft.tensor(at + sign * step * direction))
            values.append(value())
        with weft.no_grad():
            for point, at in zip(points, start, strict=True):
                point.copy_(weft.tensor(at))
        numeric = (values[0] - values[1]) / (2 * step)
        analytic = sum(float((grad * direction).sum()) for grad, direction in zip(grads, directions, strict=True))
        size = sum(float(np.abs(grad * direction).sum()) for grad, direction in zip(grads, directions, strict=True))
        assert abs(numeric - analytic) <= record.gradient_rtol * max(size, 1.0) * 10, (
            f"{record.id}: the gradient along a direction is {analytic}, by differences {numeric}"
        )


def _with_gradients(record: LayerRecord, dtype: Any) -> tuple[Any, ...]:
    """The inputs as tensors; those that are no constants require grad."""
    return tuple(
        tensors(value, dtype, requires_grad=number not in record.constants)
        for number, value in enumerate(record.inputs(Draw()))
    )


def _restore(layer: Any, buffers: dict[str, weft.Tensor]) -> None:
    with weft.no_grad():
        for name, value in layer.named_buffers():
            value.copy_(buffers[name])


def _can_train(record: LayerRecord) -> Any:
    layer = make_layer(record)
    if not record.differentiable or not any(param.requires_grad for param in layer.parameters()):
        raise NotApplicable("it has no parameters that learn by gradients")
    return layer


def _training(record: LayerRecord, layer: Any, optimizer: Any, compiled: bool) -> Callable[[], weft.Tensor]:
    """One step that draws the results towards fixed random targets."""
    inputs = tensors(record.inputs(Draw()))
    weft.manual_seed(11)
    random = np.random.default_rng(13)
    with weft.no_grad():
        twin = copy.deepcopy(layer)
        shapes = [tuple(leaf.shape) for leaf in floats_of(twin(*inputs))]
    targets = [weft.tensor(random.normal(size=shape) * 0.1, dtype=weft.float32) for shape in shapes]

    def step() -> weft.Tensor:
        results = floats_of(layer(*inputs))
        losses = [((one - target) ** 2).mean() for one, target in zip(results, targets, strict=True)]
        loss = sum(losses[1:], losses[0])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return weft.compile(step) if compiled else step


def check_update(record: LayerRecord) -> None:
    """Three steps with SGD and with Adam, compiled, leave the weights and buffers of three steps that are not; and on a
    GPU those of the CPU."""
    _can_train(record)
    # A large eps: Adam would make full steps of the rounding errors where a gradient is zero, as of the bias of keys.
    makes = (
        lambda params: weft.optim.SGD(params, lr=0.05, momentum=0.9),
        lambda params: weft.optim.Adam(params, eps=1e-3),
    )
    for make in makes:
        states = []
        for compiled in (True, False):
            layer = make_layer(record)
            step = _training(record, layer, make(list(layer.parameters())), compiled)
            weft.manual_seed(17)
            for _ in range(3):
                step()
            states.append(state_of(layer))
        if weft.default_device().kind != "cpu":
            with weft.device("cpu"):
                layer = make_layer(record)
                step = _training(record, layer, make(list(layer.parameters())), False)
                weft.manual_seed(17)
                for _ in range(3):
                    step()
                states.append(state_of(layer))
        for other in states[1:]:
            for key, value in states[0].items():
                size = float(np.max(np.abs(other[key]), initial=0.0)) if value.dtype.kind == "f" else 0.0
                np.testing.assert_allclose(value, other[key], rtol=1e-4, atol=1e-5 * max(size, 1.0), err_msg=key)


def check_training(record: LayerRecord) -> None:
    """The layer learns: the loss of a compiled step falls. 1000 steps take no memory, or 100 of variants."""
    layer = _can_train(record)
    optimizer = weft.optim.Adam(layer.parameters(), lr=record.learning_rate)
    step = _training(record, layer, optimizer, compiled=True)
    first = step().item()
    for _ in range(40):
        last = step()
    if not record.random:
        assert last.item() < 0.95 * first or first < 1e-6, f"{record.id}: the loss was {first} and is {last.item()}"
    step()
    last = repeat_step(step, (100 if record.variant else 1000) - 42, record.id)
    assert np.isfinite(last.item()), f"{record.id}: the loss is not finite in the end"


def repeat_step(step: Any, count: int, what: str) -> Any:
    """Run a compiled function that has run before `count` times more, without a trace, a transfer or more memory; its
    last result."""
    last = step()  # a result is held before and after
    counted = weft.counters()
    with _Allocations() as allocations:
        for _ in range(count - 1):
            last = step()
        grown = allocations.bytes_held()
    after = weft.counters()
    for name in ("traces", "plans_built", "uploads", "downloads"):
        assert after[name] == counted[name], f"{what}: {after[name] - counted[name]} {name} in {count} steps"
    assert grown <= 2 * sum(leaf.numel() * leaf.dtype.itemsize for leaf in leaves_of(last)), f"{what}: memory grew"
    assert step.retraces == [], step.retraces
    return last


class _Allocations:
    """What the default device allocates while a block runs, and how much of it is still held."""

    def __enter__(self) -> _Allocations:
        self.backend = weft.default_device().backend
        self.slabs: list[weakref.ref[Slab]] = []
        self.methods = {name: getattr(self.backend, name) for name in ("allocate", "arena")}
        for name, method in self.methods.items():
            setattr(self.backend, name, functools.partial(self._note, method))
        return self

    def __exit__(self, *_: Any) -> None:
        for name in self.methods:
            delattr(self.backend, name)  # the class's own is seen again

    def _note(self, method: Callable[[int], Slab], nbytes: int) -> Slab:
        slab = method(nbytes)
        self.slabs.append(weakref.ref(slab))
        return slab

    def bytes_held(self) -> int:
        """Bytes allocated in the block that are not free again."""
        gc.collect(1)  # cycles made in the block
        return sum(slab.nbytes for reference in self.slabs if (slab := reference()) is not None)


def check_rule(make: Callable[[], Any], *inputs: np.ndarray, **options: Any) -> Callable[[], None]:
    """A check of layers that learn by a rule of their own: 1000 compiled steps of `learn` take no memory."""

    def check() -> None:
        layer = make()
        given = tensors(inputs)
        step = weft.compile(lambda: layer.learn(*given, **options))
        for _ in range(3):
            step()
        repeat_step(step, 997, type(layer).__name__)
        assert all(np.isfinite(value).all() for value in arrays_of(list(layer.state_dict().values())))

    return check


def check_compiled(record: LayerRecord) -> None:
    """Compiled, results and gradients are those of plain calls."""
    inputs = tensors(record.inputs(Draw()))
    plain, other = make_layer(record), make_layer(record)
    weft.manual_seed(3)
    expected = plain(*inputs)
    arguments, structure = tree.flatten(inputs)
    fixed = [leaf for leaf in arguments if isinstance(leaf, weft.Tensor)]

    def call(*given: weft.Tensor) -> Any:
        values = iter(given)
        filled = [next(values) if isinstance(leaf, weft.Tensor) else leaf for leaf in arguments]
        return tree.flatten(other(*tree.unflatten(structure, filled)))[0]

    compiled = weft.compile(call)
    weft.manual_seed(3)
    result = compiled(*fixed)
    assert_close(result, tree.flatten(expected)[0], 1e-6, 1e-6, f"{record.id} compiled")
    for name, value in state_of(other).items():
        np.testing.assert_allclose(value, state_of(plain)[name], rtol=1e-5, atol=1e-6, err_msg=name)


def check_state(record: LayerRecord) -> None:
    """A state_dict, a copy, a pickle and the way to another dtype and back keep the results, to the bit."""
    layer = make_layer(record).eval()
    inputs = tensors(record.inputs(Draw()))

    def results(module: Any) -> list[np.ndarray]:
        weft.manual_seed(3)
        return arrays_of(module(*inputs))

    state = {key: value.clone() for key, value in layer.state_dict().items()}
    expected = results(layer)
    fresh = make_layer(record, seed=99).eval()
    assert str(fresh.load_state_dict(state)) == "<All keys matched successfully>"
    twins = {"load_state_dict": fresh}
    for name, twin in (("deepcopy", copy.deepcopy), ("pickle", lambda one: pickle.loads(pickle.dumps(one)))):
        source = make_layer(record, seed=99).eval()
        source.load_state_dict(state)
        if name == "pickle" and not _can_pickle(source):
            continue
        twins[name] = twin(source)
    moved = make_layer(record, seed=99).eval()
    moved.load_state_dict(state)
    kept = [id(param) for param in moved.parameters()]
    twins["to"] = moved.double().float()
    assert [id(param) for param in moved.parameters()] == kept, "to() made other parameters"
    for name, twin in twins.items():
        for one, other in zip(results(twin), expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"{record.id} after {name}")
    oracle = getattr(record.oracle, "torch_module", None)
    if oracle is not None:
        theirs = oracle().state_dict()
        assert list(theirs) == list(layer.state_dict()), "the keys of its state_dict are not torch's"
        back = make_layer(record, seed=99)
        back.load_state_dict(theirs)
        for key, value in back.state_dict().items():
            np.testing.assert_array_equal(value.numpy(), theirs[key].numpy())


def _can_pickle(module: Any) -> bool:
    try:
        pickle.dumps(module)
    except (AttributeError, TypeError, pickle.PicklingError):  # a lambda among its attributes
        return False
    return True


def check_bfloat16(record: LayerRecord) -> None:
    """In bfloat16 the results are near those in float32."""
    if isinstance(record.bf16, str):
        raise NotApplicable(record.bf16)
    if record.random:
        raise NotApplicable("its results are random")
    layer = make_layer(record).bfloat16()
    inputs = tensors(record.inputs(Draw()), weft.bfloat16)
    exact = copy.deepcopy(layer).float()
    wide = tree.unflatten(tree.flatten(inputs)[1], [
        leaf.float() if isinstance(leaf, weft.Tensor) and leaf.dtype.kind == "f" else leaf
        for leaf in tree.flatten(inputs)[0]
    ])  # fmt: skip
    for one, other in zip(arrays_of(layer(*inputs)), arrays_of(exact(*wide)), strict=True):
        scale = max(float(np.max(np.abs(other), initial=0.0)), 1e-3)
        np.testing.assert_allclose(one, other, rtol=0, atol=record.bf16 * scale, err_msg=record.id)


def check_bad_input(record: LayerRecord) -> None:
    """Wrong input raises, and the message says what was wrong and where."""
    assert record.bad or record.no_bad, f"{record.id}: no wrong input, and no reason"
    for bad in record.bad:
        layer = make_layer(record)
        try:
            value = bad.call(layer)
            for leaf in leaves_of(value):
                if isinstance(leaf, weft.Tensor):
                    leaf.numpy()
        except bad.error as error:
            assert re.search(bad.match, str(error)), f"{record.id}: the message was {error}"
        else:
            raise AssertionError(f"{record.id}: no error matching {bad.match!r}")


def check_gpu(record: LayerRecord) -> None:
    """Results and gradients on a GPU are those of the CPU."""
    if weft.default_device().kind == "cpu":
        raise NotApplicable("the default device is the CPU")
    found = []
    for device in (weft.default_device(), weft.get_device("cpu")):
        with weft.device(device):
            layer = make_layer(record)
            inputs = _with_gradients(record, weft.float32) if record.differentiable else tensors(record.inputs(Draw()))
            weft.manual_seed(3)
            result = layer(*inputs)
            grads: list[Any] = []
            if record.differentiable and any(leaf.requires_grad for leaf in floats_of(result)):
                weighted(result).backward()
                points = [leaf for leaf in tree.flatten(inputs)[0] if isinstance(leaf, weft.Tensor)]
                grads = [one.grad for one in (*points, *layer.parameters()) if one.grad is not None]
            found.append((arrays_of(result), arrays_of(grads)))
    for ours, theirs in zip(*found, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            scale = max(float(np.max(np.abs(other), initial=0.0)), 1.0) if other.dtype.kind == "f" else 1.0
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5 * scale, err_msg=record.id)


CHECKS: dict[str, Callable[[LayerRecord], None]] = {
    "forward": check_forward,
    "gradient": check_gradient,
    "update": check_update,
    "training": check_training,
    "compiled": check_compiled,
    "state": check_state,
    "bfloat16": check_bfloat16,
    "bad input": check_bad_input,
    "gpu": check_gpu,
}


# ---- edge cases -----------------------------------------------------------------------------------------------------


def applies(record: LayerRecord, column: str) -> bool:
    """Whether a column of the edge cases makes sense for a layer."""
    return not COLUMNS[column] or COLUMNS[column] in record.traits


def check_edge(record: LayerRecord, column: str) -> None:
    """One edge case. A column that applies has a case, is made from the inputs, or has a sentence why not."""
    given = record.edges.get(column)
    if isinstance(given, str):
        assert len(given) > 10, f"{record.id}: {column}: a reason, please"
        raise NotApplicable(given)
    if given is not None:
        _compare(record, given, record.training if column != "eval" else False)
        return
    automatic = {
        "batch of one": _batch_of_one,
        "sequence of one": _sequence_of_one,
        "nan": _nan,
        "not contiguous": _not_contiguous,
        "eval": _eval,
    }
    assert column in automatic, f"{record.id}: the column {column!r} is empty"
    automatic[column](record)


def _per_array(inputs: tuple[Any, ...], change: Callable[[int, np.ndarray], np.ndarray]) -> tuple[Any, ...]:
    return tuple(
        change(number, value) if isinstance(value, np.ndarray) else value for number, value in enumerate(inputs)
    )


def _batch_of_one(record: LayerRecord) -> None:
    def first(number: int, array: np.ndarray) -> np.ndarray:
        axis = 0 if record.batch_axes is None else record.batch_axes[number]
        return array if axis is None or not array.ndim else array.take([0], axis)

    _compare(record, Case(inputs=lambda draw: _per_array(record.inputs(draw), first)), record.training)


def _sequence_of_one(record: LayerRecord) -> None:
    def first(number: int, array: np.ndarray) -> np.ndarray:
        return array.take([0], record.sequence_axis) if array.ndim > record.sequence_axis else array

    _compare(record, Case(inputs=lambda draw: _per_array(record.inputs(draw), first)), record.training)


def _nan(record: LayerRecord) -> None:
    """A NaN in the input is a NaN in the same results as in the oracle's."""
    if record.oracle is None:
        raise NotApplicable("its results are random")
    inputs = record.inputs(Draw())
    floats = [k for k, value in enumerate(inputs) if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
    if not floats:
        raise NotApplicable("no input is floating-point")
    spoiled = inputs[floats[0]].copy()
    spoiled.reshape(-1)[spoiled.size // 2] = np.nan
    inputs = (*inputs[: floats[0]], spoiled, *inputs[floats[0] + 1 :])
    layer = make_layer(record)
    state = state_of(layer)
    ours, theirs = arrays_of(layer(*tensors(inputs))), arrays_of(record.oracle(state, inputs, record.training))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other), err_msg=f"{record.id}: where NaN is")


def _not_contiguous(record: LayerRecord) -> None:
    """Transposed views and strided slices give the results of plain tensors."""
    inputs = tensors(record.inputs(Draw()))

    def view(tensor: weft.Tensor) -> weft.Tensor:
        if tensor.ndim >= 2:
            return tensor.transpose(0, -1).contiguous().transpose(0, -1)
        return weft.stack([tensor, tensor], -1)[..., 0] if tensor.ndim else tensor

    leaves, structure = tree.flatten(inputs)
    views = tree.unflatten(structure, [view(leaf) if isinstance(leaf, weft.Tensor) else leaf for leaf in leaves])
    layer, other = make_layer(record), make_layer(record)
    weft.manual_seed(3)
    expected = layer(*inputs)
    weft.manual_seed(3)
    assert_close(other(*views), expected, 1e-6, 1e-6, f"{record.id} on views")


def _eval(record: LayerRecord) -> None:
    if record.oracle is None:
        raise NotApplicable("its results are random: see its own checks")
    _compare(record, Case(), False)
