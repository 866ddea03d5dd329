"""Python floats in eager code: a new value needs no new plan, and changes no bit."""

import subprocess
import sys
import threading

import numpy as np
import pytest

import weft
from weft.nn import functional as F

pytestmark = pytest.mark.backend


def built(function, values):
    """How many plans were built for calls with different floats, and the results."""
    before = weft.counters()["plans_built"] + weft.counters()["plans_from_disk"]
    results = [function(value) for value in values]
    return weft.counters()["plans_built"] + weft.counters()["plans_from_disk"] - before, results


VALUES = [0.1 + 0.013 * k for k in range(12)]


def test_one_plan_for_all_values():
    x = weft.tensor(np.linspace(-1, 1, 37, dtype="float32"))
    plans, results = built(lambda rate: ((x * rate + 3.7).exp() - rate).numpy(), VALUES)
    assert plans == 1
    for rate, result in zip(VALUES, results, strict=True):
        compiled = weft.compile(lambda y, r=rate: (y * r + 3.7).exp() - r)
        np.testing.assert_array_equal(result, compiled(x).numpy())


def test_a_training_loop_with_a_schedule():
    w = weft.ones(4, requires_grad=True)
    ours, theirs = [], np.ones(4, "float32")

    def step(rate):
        nonlocal theirs
        w.grad = None
        ((w * 2.0 - 1.5) ** 2).mean().backward()
        with weft.no_grad():
            w.sub_(w.grad * rate)
        ours.append(w.numpy())
        theirs = theirs - (theirs * 2 - 1.5) * np.float32(rate)
        np.testing.assert_allclose(ours[-1], theirs, rtol=1e-5)

    assert built(step, VALUES)[0] <= 3


def test_values_that_rules_look_at_have_plans_of_their_own():
    x = weft.tensor([1.0, -2.0, 3.0])
    for value in (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, float("inf"), float("-inf"), float("nan"), 0.3, 1.7):
        with np.errstate(all="ignore"):
            expected = np.array([1.0, -2.0, 3.0], "float32") * np.float32(value)
        np.testing.assert_array_equal((x * value).numpy(), expected)
        assert np.array_equal(np.signbit((x * value).numpy()), np.signbit(expected)) or np.isnan(value)


def test_equal_and_unequal_values_are_not_confused():
    x = weft.tensor([1.0, 2.0])
    for a, b in ((0.3, 0.3), (0.3, 0.7), (0.7, 0.3), (0.7, 0.7)):
        np.testing.assert_allclose((x * a + b).numpy(), np.array([1, 2]) * a + b, rtol=1e-6)
        double = x.double() * a + (x * b).double()
        np.testing.assert_allclose(double.numpy(), np.array([1, 2]) * (a + b), rtol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, v: weft.full((3, 4), v) @ x,
        lambda x, v: weft.full((5,), v)[weft.tensor([0, 4, 4])] * x[0, 0],
        lambda x, v: F.pad(x * v, (1, 2), value=v).sum(1),
        lambda x, v: weft.cat([x, weft.full((1, 3), v)]),
        lambda x, v: (x @ x.T + v).softmax(1) * v,
        lambda x, v: weft.where(x > v, v, x).cumsum(0),
        lambda x, v: weft.full((7,), v) * v + weft.full((7,), v).sum(),
        lambda x, v: F.conv1d(x.reshape(1, 4, 3), weft.full((2, 4, 2), v)) + v,
        lambda x, v: (x * v).to(weft.float16) * v,
    ],
)
def test_wherever_a_constant_may_stand(function):
    array = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    for value in VALUES[:3]:
        ours = function(weft.tensor(array), value).numpy()
        with weft.device("reference"):
            expected = function(weft.tensor(array), value).numpy()
        np.testing.assert_allclose(ours, expected, rtol=2e-3 if ours.dtype == np.float16 else 2e-6, atol=1e-6)


def test_threads_do_not_see_each_others_numbers():
    x = weft.tensor(np.ones(200_000, "float32"))
    wrong = []

    def work(value):
        for _ in range(30):
            result = (x * value).numpy()
            if not (result == np.float32(value)).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in (0.3, 0.7, 1.3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_plans_with_numbers_are_found_on_disk(tmp_path):
    program = (
        "import sys, weft; r = float(sys.argv[1]);"
        "print((weft.ones(3) * r + weft.arange(3).float()).tolist(), weft.counters()['plans_built'])"
    )
    answers = []
    for rate in ("0.3", "0.7"):
        run = [sys.executable, "-c", program, rate]
        environment = {"WEFT_CACHE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path), "PATH": ""}
        answers.append(
            subprocess.run(run, capture_output=True, text=True, check=True, env=environment).stdout.split("]")
        )
    first, second = (np.array(eval(text + "]")) for text, _ in answers)
    np.testing.assert_allclose(first, np.arange(3) + 0.3, rtol=1e-6)
    np.testing.assert_allclose(second, np.arange(3) + 0.7, rtol=1e-6)
    assert int(answers[0][1]) > 0 and int(answers[1][1]) == 0


@pytest.mark.parametrize("power", [3.0, 2.5, 1.5, -1.0])
def test_gradients_of_powers_have_the_bits_of_compiled_ones(power):
    x = np.random.default_rng(0).uniform(0.1, 2.0, (7, 9)).astype(np.float32)

    def gradient(x: weft.Tensor) -> weft.Tensor:
        x = x.detach().requires_grad_()
        (x**power).sum().backward()
        return x.grad

    eager, compiled = gradient(weft.tensor(x)), weft.compile(gradient)(weft.tensor(x))
    assert eager.numpy().tobytes() == compiled.numpy().tobytes()
    np.testing.assert_allclose(eager.numpy(), power * x.astype(np.float64) ** (power - 1), rtol=1e-5)
