"""Numbers that a compiled function captures or is given become inputs; what it assigns is assigned by each replay."""

import json
import math

import numpy as np
import pytest

import weft
from tests.backend.captures import ONES, Counted, Frozen, Plain
from weft.base.counters import COUNTERS

# ---- numbers become inputs ----------------------------------------------------------------------------------------

RATE = 0.1
STEP = 0


def test_a_learning_rate_in_a_global_is_traced_twice(monkeypatch):
    w = weft.ones(4)

    @weft.compile
    def step(x):
        w.sub_(RATE * x)
        return (w * RATE).sum()

    expected, before = np.ones(4, np.float32), COUNTERS.traces
    for number in range(100):
        monkeypatch.setitem(globals(), "RATE", 0.1 * 0.97**number)
        found = step(weft.ones(4))
        expected = expected - np.float32(RATE)
        np.testing.assert_array_equal(w.numpy(), expected)
        np.testing.assert_allclose(found.item(), (expected * np.float32(RATE)).sum(), rtol=1e-6)
    assert COUNTERS.traces - before == 2
    assert "the global RATE was 0.1 and is 0.097" in step.retraces[0]
    assert len(step.variants) == 1  # the first, with the number in it, is not needed any more


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x * n,
        lambda x, n: x + n,
        lambda x, n: x / n,
        lambda x, n: n / x,
        lambda x, n: n - x,
        lambda x, n: x // n,
        lambda x, n: x % n,
        lambda x, n: x * 0.5**n,
        lambda x, n: x * (1.0 - 0.999**n) / (1 + n),
        lambda x, n: x * (n % 7) - (-n) ** 2 + abs(n - 50) + round(n / 3) + (n >> 1) + divmod(n, 5)[1],
        lambda x, n: weft.where(x > n, x, n),
        lambda x, n: x.clamp(max=n),
        lambda x, n: weft.add(x, x, alpha=n),
        lambda x, n: x.lerp(x * 2.0, 1.0 / n) if x.dtype.kind == "f" else x,
        lambda x, n: weft.full((2,), n) + weft.tensor(n),
        lambda x, n: x + weft.arange(3) * n,
        lambda x, n: (x == n) | (x > n),
        lambda x, n: weft.maximum(x, weft.full_like(x, n)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"])
def test_an_int_that_is_only_a_number_is_traced_twice(function, dtype):
    step = Counted(function)
    x = weft.tensor([1, 2, 3]).to(getattr(weft, dtype))
    for number in range(1, 14):
        found = step(x, number)
        assert found.dtype is function(x, number).dtype
    assert step.traces <= 3


def test_an_int_step_counter_over_100_calls():
    step = Counted(lambda x, t: x * t + t)
    for number in range(100):
        step(ONES, number)
    assert step.traces == 2
    for number in range(100):
        step(x=ONES, t=number)  # by name: another structure of arguments
    assert step.traces <= 4


@pytest.mark.parametrize("number", [2**24 + 1, 2**53 + 1, 2**60 + 1, -(2**62) - 1, 2**31 - 1])
def test_large_ints_round_as_constants_do(number):
    step = Counted(lambda x, n: x * n)
    for dtype in (weft.float32, weft.float64, weft.int64):
        for value in (1, 2, number, number - 2):
            step(ONES.to(dtype), value)


def test_floats_round_as_constants_do():
    step = Counted(lambda x, s: (x * s, x + s)[1])
    for dtype in (weft.float32, weft.float64, weft.float16, weft.bfloat16):
        for value in (0.1, -0.0, 1e-45, 1e300, 65519.9, 65520.0, math.pi, math.inf, math.nan, 1.00390625, 3.3895e38):
            step(ONES.to(dtype), value)
    assert step.traces == 4


def test_an_int_that_does_not_fit_raises_as_without_compile():
    step = Counted(lambda x, n: x // n)
    x = weft.tensor([1, 2]).to(weft.int8)
    for number in (1, 2, 127):
        step(x, number)
    for _ in range(2):
        with pytest.raises(weft.DTypeError, match="the number 128"):
            step.step(x, 128)
    step(x, 5)


def test_an_int_that_wraps_wraps_as_without_compile():
    step = Counted(lambda x, n: x + n)
    x = weft.tensor([1, 2]).to(weft.int8)
    for number in (1, 2, 127, 128, 1000, -129):
        step(x, number)


def test_division_by_zero_raises_as_without_compile():
    step = Counted(lambda x, n: x * (1.0 / n))
    for number in (1, 2, 4):
        step(ONES, number)
    with pytest.raises(ZeroDivisionError):
        step.step(ONES, 0)
    step(ONES, 8)
    assert step.traces <= 3


def test_a_number_that_decides_a_shape_retraces():
    step = Counted(lambda x, n: x.reshape(-1, n).sum(0) * n)
    x = weft.arange(12).float()
    for number in (2, 3, 4, 2, 3, 4):
        step(x, number)
    assert 3 <= step.traces <= 4


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x[: n + 1] * n,
        lambda x, n: weft.arange(0, n * 2, n).float() * 2.0,
        lambda x, n: weft.zeros(n, n + 1) + n,
        lambda x, n: x.expand(n, 12) * n,
        lambda x, n: weft.nn.functional.pad(x, (n, n - 1), value=float(n)),
        lambda x, n: weft.nn.functional.pad(x, (1, 1), value=n * 0.5),
        lambda x, n: x.roll(n) + x[n] + x[n:].sum() + x[-n],
        lambda x, n: x.unflatten(0, (n, 12 // n)),
        lambda x, n: weft.cat([x] * n),
        lambda x, n: weft.stack([x * k for k in range(n)]),
        lambda x, n: weft.linspace(0.0, 1.0 * n, n + 2),
        lambda x, n: x.repeat(n).cumsum(0),
        lambda x, n: x.topk(n)[0],
        lambda x, n: weft.nn.functional.one_hot(x.long() % n, n),
        lambda x, n: weft.eye(n) * n,
        lambda x, n: x**n,
        lambda x, n: weft.loop(lambda s, _: (s * n, s[: n - 1]), x, length=n)[1],
    ],
)
def test_numbers_that_decide_shapes(function):
    step = Counted(function)
    x = weft.arange(12).float()
    for number in (2, 3, 4, 2, 3, 4, 6):
        step(x, number)
        step(x, number)
    for node in weft.graph.node.toposort([(x * 2.0).node]):
        assert all(type(extent) is int for extent in node.shape)


def test_a_number_that_decides_a_shape_does_not_count_twice():
    held = Plain(0)

    def function(x, n):
        held.value += 1
        return weft.zeros(n + 1) + held.value

    step = weft.compile(function)
    for count, number in enumerate((2, 3, 4, 4, 5), 1):
        assert step(ONES, number).tolist() == [float(count)] * (number + 1)
        assert held.value == count


def test_a_number_that_decides_a_branch_has_a_trace_for_each():
    step = Counted(lambda x, n: x * n if n % 10 == 0 else x - n)
    for number in range(100):
        step(ONES, number)
    assert step.traces <= 4


def test_a_float_argument_may_decide_a_branch():
    step = Counted(lambda x, s: x * s if s > 0.5 else x - math.sqrt(4.0) * s)
    for number in (0.1, 0.2, 0.9, 0.3, 0.8):
        step(ONES, number)
    assert step.traces == 2


def test_math_functions_get_the_number_itself():
    step = Counted(lambda x, s: x * math.exp(s))
    for number in (0.1, 0.2, 0.3, 0.1, 0.2, 0.3):
        step(ONES, number)
    assert step.traces == 3


def test_what_takes_only_true_numbers_gets_them():
    step = Counted(lambda x, s, n: x * len(json.dumps([s, n])) + n)
    for s, n in ((0.5, 1), (0.25, 2), (0.125, 3), (0.5, 1)):
        step(ONES, s, n)
    assert json.dumps([0.5]) == "[0.5]"


def test_a_mistake_does_not_turn_inputs_into_constants():
    scale = 1.0

    def function(x, s, name):
        return x * s * scale + len(name)

    step = Counted(function)
    with pytest.raises(TypeError, match="len"):
        step.step(ONES, 0.5, 5)
    for number in range(10):
        scale = 1.0 + number
        step(ONES, 0.5 + number, "a")
    assert step.traces == 2


def test_numpy_gets_the_number_itself():
    def function(x, s, n):
        weights = np.ones(3, np.float32) * s
        assert weights.dtype == np.float32
        return x * weights + np.arange(3)[n] + np.full(3, s, np.float32)

    step = Counted(function)
    for s, n in ((0.5, 1), (0.25, 2), (0.125, 0), (0.5, 1)):
        step(ONES, s, n)


def test_uses_that_need_the_value():
    def function(x, n):
        table = {1: 10.0, 2: 20.0, 3: 30.0}
        text = f"{n}|{n:03d}|{n!r}|{n!s}|%d" % n
        items = [1.0, 2.0, 3.0, 4.0]
        return x * table[n] + len(text) + items[n] + sum(range(n)) + len("a" * n) + float(n) + int(n) + max(n, 2)

    step = Counted(function)
    for number in (1, 2, 3, 1, 2, 3):
        step(ONES, number)
    assert step.traces <= 4


def test_a_number_that_comes_back_is_computed_at_each_call():
    compiled = weft.compile(lambda x, n, s: (x * s, n + 1, {"rate": s * 0.5, "text": "a"}))
    for number in range(5):
        _, count, more = compiled(ONES, number, 0.5 + number)
        assert type(count) is int and count == number + 1
        assert type(more["rate"]) is float and more == {"rate": (0.5 + number) * 0.5, "text": "a"}


def test_a_captured_number_that_is_only_returned_or_passed_on():
    held, copy = Plain(1.0), Plain(0.0)

    def function(x):
        copy.value, old = held.value, copy.value
        return x * 2.0, held.value, old

    step, before = weft.compile(function), COUNTERS.traces
    last = 0.0
    for number in range(6):
        held.value = 1.0 + number
        assert step(ONES)[1:] == (1.0 + number, last)
        last = copy.value
        assert last == 1.0 + number and type(last) is float
    assert COUNTERS.traces - before <= 3


def test_numbers_in_lists_dicts_attributes_and_defaults_become_inputs():
    class Schedule:
        def __init__(self):
            self.rate, self.options, self.betas, self.pair = 0.5, {"momentum": 0.9}, [0.9, 0.99], (1.0, 2)

    schedule = Schedule()

    def function(x, decay=0.5, *, scale=1.0):
        x = x * schedule.rate + schedule.options["momentum"] * schedule.betas[1]
        return x * schedule.pair[0] + schedule.pair[1] + decay * scale

    step = Counted(function)
    for number in range(10):
        schedule.rate = 0.5 / (number + 1)
        schedule.options["momentum"] = 0.9 + number
        schedule.betas[1] = 0.99 - number
        schedule.pair = (1.0 + number, 2 + number)
        function.__defaults__ = (0.5 * number,)
        function.__kwdefaults__["scale"] = 1.0 + number
        step(ONES)
        assert type(schedule.rate) is float and type(schedule.pair[1]) is int
        assert type(function.__defaults__[0]) is float and type(function.__kwdefaults__["scale"]) is float
    assert step.traces == 2


def test_a_config_that_is_made_anew_is_the_same_config():
    config = Frozen(0.5)
    step = Counted(lambda x: x * config.value)
    for number in range(10):
        config = Frozen(0.5 + number)
        step(ONES)
    for _ in range(10):
        config = Frozen(config.value)
        step(ONES)
    assert step.traces == 2


def test_one_object_in_two_places():
    first = Plain(1.0)
    held = [first, first]
    step = Counted(lambda x: x * held[0].value + held[1].value)
    step(ONES)
    held[1] = Plain(2.0)
    step(ONES)
    held[0] = held[1]
    step(ONES)
    first.value = 5.0
    step(ONES)
    held[1].value = 7.0
    step(ONES)


def test_a_schedule_over_numbers_of_the_loop_with_gradients():
    w = weft.ones(3, requires_grad=True)
    rate = 0.5

    @weft.compile
    def step(x, t):
        w.grad = None
        (w * x * t).sum().backward()
        with weft.no_grad():
            w.sub_(w.grad * (rate / (1 + t)))
        return w.sum()

    theirs, before = np.ones(3, np.float32), COUNTERS.traces
    for number in range(1, 20):
        rate = 0.5 / number
        step(ONES, number)
        theirs = theirs - np.float32(number) * np.float32(rate / (1 + number))
        np.testing.assert_array_equal(w.numpy(), theirs)
    assert COUNTERS.traces - before == 2


def test_numbers_in_a_loop():
    rate = 0.5

    def function(x, n):
        last, _ = weft.loop(lambda state, now: (state * rate + now * n, None), weft.zeros(3), x)
        return last

    step = Counted(function)
    for number in range(1, 8):
        rate = 0.5 / number
        step(weft.ones(4, 3), number)
    assert step.traces == 2


def test_numbers_in_a_custom_kernel():
    @weft.kernel
    def scaled(i, x, s, out):
        out[i] = x[i] * s

    step = Counted(lambda x, s: scaled(x, s))
    for number in (0.5, 0.25, 0.75):
        step(ONES, number)
    assert step.traces == 1
