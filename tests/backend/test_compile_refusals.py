"""What compiled functions refuse, and their counters."""

import numpy as np
import pytest

import weft
from tests.backend.compiling import full, ones, parameter

pytestmark = pytest.mark.usefixtures("on_each_device")


def test_a_function_that_raises_changes_nothing():
    w = parameter(3)
    total, generator = ones(3), weft.Generator(5)
    before = w.numpy()

    @weft.compile
    def step(x, fail):
        w.grad = None
        loss = (w * x + weft.rand(3, generator=generator)).sum()
        loss.backward()
        with weft.no_grad():
            w.sub_(w.grad)
            total.add_(1.0)
        if fail:
            raise RuntimeError("half-way")
        return loss

    def check(grad):
        np.testing.assert_array_equal(w.numpy(), before)
        assert total.tolist() == [1.0] * 3
        assert generator.get_state() == (5, 0)
        assert w.grad is grad

    with pytest.raises(RuntimeError, match="half-way"):
        step(ones(3), True)
    check(None)
    w.grad = kept = full((3,), 9.0)
    with pytest.raises(RuntimeError, match="half-way"):
        step(ones(3), True)
    check(kept)
    assert kept.tolist() == [9.0] * 3
    step(ones(3), False)
    np.testing.assert_array_equal(w.numpy(), before - 1.0)
    with pytest.raises(RuntimeError, match="half-way"):
        step(ones(3), True)
    np.testing.assert_array_equal(w.numpy(), before - 1.0)
    assert (total.tolist(), w.grad.tolist()) == ([2.0] * 3, [1.0] * 3)
    step(ones(3), False)
    np.testing.assert_array_equal(w.numpy(), before - 2.0)


def test_a_tensor_in_an_outer_list_is_refused():
    outside = []

    @weft.compile
    def step(x):
        outside.append(x * 2.0)
        return x

    expected = (
        r"weft\.compile\(.*step\): given a tensor of shape \(3,\).*still held outside.*by a list.*return it, or keep"
    )
    with pytest.raises(weft.GraphError, match=expected):
        step(ones(3))


def test_a_tensor_in_an_attribute_is_refused():
    class Holder:
        pass

    holder, w = Holder(), parameter(2)

    @weft.compile
    def step(x):
        w.grad = None
        holder.last = (w * x).sum()
        holder.last.backward()
        return x

    with pytest.raises(weft.GraphError, match="still held outside"):
        step(ones(2))
    assert w.grad is None
    holder.last = None


def test_an_argument_kept_outside_is_refused():
    outside = []

    @weft.compile
    def step(x):
        outside.append(x)
        return x * 2.0

    with pytest.raises(weft.GraphError, match="still held outside"):
        step(ones(2))


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.item(), lambda x: float(x), lambda x: int(x), lambda x: bool(x), lambda x: x.numpy(),
        lambda x: x.tolist(), lambda x: weft.eval(x), lambda x: np.asarray(x),
    ],
    ids=["item", "float", "int", "bool", "numpy", "tolist", "eval", "asarray"],
)  # fmt: skip
def test_reading_a_value_inside_is_refused(read):
    w = ones(1)
    for target in ("argument", "cell", "result"):

        @weft.compile
        def step(x, target=target):
            read({"argument": x, "cell": w, "result": x * w}[target])
            return x

        with pytest.raises(weft.GraphError, match=r"inside weft.compile, where values are not known yet"):
            step(ones(1))
    assert w.item() == 1.0


def test_printing_inside_shows_the_form():
    texts = []

    @weft.compile
    def step(x):
        texts.append(repr(x * 2.0))
        return x

    step(ones(3))
    assert texts == ["tensor(<traced>, shape=(3,), dtype=weft.float32)"]


def test_a_donated_argument_is_gone():
    def scale(x, y):
        return x * y

    step = weft.compile(scale, donate=(0,))
    y = full((3,), 2.0)
    for _ in range(3):  # the first call traces, the others replay
        x = ones(3)
        weft.eval(x)
        assert step(x, y).tolist() == [2.0] * 3
        with pytest.raises(weft.StorageError, match=r"donated to .*scale"):
            x.numpy()
        with pytest.raises(weft.StorageError, match=r"donated to .*scale"):
            step(x, y)
        with pytest.raises(weft.StorageError, match=r"donated to .*scale"):
            (x + 1.0).numpy()
        assert y.tolist() == [2.0] * 3


def test_a_donated_argument_leaves_equal_tensors_alone():
    step = weft.compile(lambda x: x * 2.0, donate=(0,))
    x, other = weft.ones(3), weft.ones(3)  # one node
    assert step(x).tolist() == [2.0] * 3
    assert other.tolist() == [1.0] * 3 and (weft.ones(3) + 1.0).tolist() == [2.0] * 3


def test_a_donated_argument_that_was_not_computed_yet():
    step = weft.compile(lambda x: x * 2.0, donate=(0,))
    x = ones(3) + 1.0
    assert step(x).tolist() == [4.0] * 3
    with pytest.raises(weft.StorageError, match="donated to"):
        x.numpy()


def test_an_index_out_of_range_is_reported_by_every_replay():
    table = weft.arange(5).float()
    step = weft.compile(lambda i: table[i].sum())
    assert step(weft.tensor([1, 2])).item() == 3.0
    for _ in range(2):
        with pytest.raises(weft.IndexRangeError, match=r"test_compile_refusals\.py:\d+"):
            step(weft.tensor([1, 5]))
            weft.default_device().backend.synchronise()  # where a run may still be under way
        assert step(weft.tensor([1, 4])).item() == 5.0
