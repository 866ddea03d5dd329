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
from tests.layers.instances import (
    arrays_of,
    assert_close,
    leaves_of,
    make_layer,
    state_of,
    tensors,
    weighted,
    with_gradients,
)
from tests.layers.parity import learns, make_step, results_and_gradients
from tests.layers.record import Case, Draw, LayerRecord
from weft.base import tree
from weft.plan.device import Slab


class NotApplicable(Exception):
    """A check that says nothing about a layer; the text says why."""


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
    inputs = with_gradients(record, weft.float64)
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


def _restore(layer: Any, buffers: dict[str, weft.Tensor]) -> None:
    with weft.no_grad():
        for name, value in layer.named_buffers():
            value.copy_(buffers[name])


def _can_train(record: LayerRecord) -> Any:
    layer = make_layer(record)
    if not learns(record, layer):
        raise NotApplicable("it has no parameters that learn by gradients")
    return layer


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
            step = make_step(record, layer, make(list(layer.parameters())), compiled)
            weft.manual_seed(17)
            for _ in range(3):
                step()
            states.append(state_of(layer))
        if weft.default_device().kind != "cpu":
            with weft.device("cpu"):
                layer = make_layer(record)
                step = make_step(record, layer, make(list(layer.parameters())), False)
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
    step = make_step(record, layer, optimizer, compiled=True)
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
            found.append(arrays_of(results_and_gradients(record, make_layer(record))))
    for one, other in zip(*found, strict=True):
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
