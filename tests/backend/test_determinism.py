"""Same seed, same bits: run to run, for any number of threads, compiled or not, with values read between or not."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
import weft.nn.functional as F

ROOT = Path(__file__).parents[2]
STEPS, BATCH, WIDE, CLASSES = 20, 300, 200, 11


def train(compiled, read="never", steps=STEPS, seed=7, dtype=weft.float32):
    """A network with dropout, layer norm, clipping and AdamW; what its parameters, losses and gradients hash to.

    Large enough that products are tiled, sums are split and several threads have work.
    """
    weft.manual_seed(seed)
    rng = np.random.default_rng(seed)
    shapes = [(WIDE, WIDE), (WIDE,), (WIDE,), (WIDE,), (WIDE, WIDE), (WIDE,), (CLASSES, WIDE), (CLASSES,)]
    params = [
        weft.tensor(rng.normal(0, 0.1, shape).astype(dtype.numpy), dtype=dtype, requires_grad=True) for shape in shapes
    ]
    optimizer = weft.optim.AdamW(params, lr=1e-2)

    def step(x, y):
        w1, b1, scale, shift, w2, b2, w3, b3 = params
        optimizer.zero_grad()
        hidden = F.dropout(F.gelu(F.linear(x, w1, b1)), 0.2)
        hidden = F.layer_norm(hidden, (WIDE,), scale, shift)
        hidden = F.dropout(F.relu(F.linear(hidden, w2, b2)), 0.1)
        loss = F.cross_entropy(F.linear(hidden, w3, b3), y)
        loss.backward()
        norm = weft.optim.clip_grad_norm_(params, 1.0)
        optimizer.step()
        return loss, norm

    step = weft.compile(step) if compiled else step
    losses = []
    for number in range(steps):
        batch = rng.normal(size=(BATCH, WIDE)).astype(dtype.numpy)
        x, y = weft.tensor(batch), weft.tensor(batch[:, :CLASSES].argmax(1))
        loss, norm = step(x, y)
        if read == "always" or (read == "sometimes" and number % 3 == 0):
            assert np.isfinite(loss.item()) and np.isfinite(norm.item())
            params[number % len(params)].numpy()
        losses.append(loss)
    digest = hashlib.sha256()
    for tensor in (*params, *[param.grad for param in params], *losses):
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest(), [loss.item() for loss in losses]


def in_process(threads, compiled, cache):
    environment = {**os.environ, "WEFT_NUM_THREADS": str(threads), "WEFT_CACHE_DIR": str(cache)}
    code = f"from tests.backend.test_determinism import train; print(train({compiled})[0])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def compiled_run():
    return train(compiled=True)


def test_it_learns(compiled_run):
    """The digest below is of numbers that mean something."""
    losses = compiled_run[1]
    assert losses[-1] < 0.9 * losses[0]


def test_runs_in_one_process(compiled_run):
    assert train(compiled=True) == compiled_run


def test_another_seed_gives_other_bits(compiled_run):
    assert train(compiled=True, seed=8, steps=2)[1] != compiled_run[1][:2]


@pytest.mark.parametrize("read", ["never", "sometimes", "always"])
def test_eager_runs(compiled_run, read):
    assert train(compiled=False, read=read) == compiled_run


@pytest.mark.parametrize("read", ["sometimes", "always"])
def test_values_read_between_compiled_steps(compiled_run, read):
    assert train(compiled=True, read=read) == compiled_run


def test_double_precision():
    assert train(compiled=False, steps=4, dtype=weft.float64) == train(compiled=True, steps=4, dtype=weft.float64)


def test_processes_and_threads(compiled_run, tmp_path):
    """One thread twice (run to run, the second from the disk cache), then more threads than there are processors."""
    for threads in (1, 1, 2, 3, 4):
        assert in_process(threads, True, tmp_path) == compiled_run[0], f"{threads} threads"


@pytest.mark.parametrize("threads", [1, 3])
def test_processes_and_threads_without_compile(compiled_run, threads, tmp_path):
    assert in_process(threads, False, tmp_path) == compiled_run[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(), lambda x: x.sum(0), lambda x: x.sum(1), lambda x: (x * x).mean((0, 1)), lambda x: x.T @ x,
        lambda x: x.softmax(0), lambda x: x.prod(0), lambda x: x[:40, :50] @ x[:50, :30], lambda x: x.flip(0).sum(0),
    ],
    ids=["sum", "columns", "rows", "mean", "product", "softmax", "prod", "small product", "flipped"],
)  # fmt: skip
@pytest.mark.parametrize("rows", [100, 3001])
def test_a_result_does_not_depend_on_its_fusion_context(function, rows):
    """Computed alone, with others, or inside something larger, a value has the same bits."""
    x = weft.tensor(np.random.default_rng(0).normal(size=(rows, 100)).astype(np.float32))
    alone = function(x).numpy()
    inside, others = weft.compile(lambda x: (function(x * 1.0) + 0.0, x.sum(1), x.exp(), (x * x).sum(0), x.amax()))(x)[
        :2
    ]
    np.testing.assert_array_equal(inside.numpy(), alone)
    together = function(x) * 2.0
    weft.eval(together, x.exp(), x.sum(1), (x + 1.0).sum(0))
    np.testing.assert_array_equal(together.numpy(), alone * 2.0)
    np.testing.assert_array_equal(others.numpy(), x.sum(1).numpy())


@pytest.mark.parametrize("name", ["exp", "log", "sin", "cos", "tanh", "erf", "log1p", "expm1", "sqrt", "sigmoid"])
def test_a_folded_constant_has_the_bits_of_a_computed_one(name):
    """Constants are folded by the compiler where it sees them, and computed by a kernel where they lie in memory."""
    for number in (1.0, 0.3, 2.5):
        x = weft.tensor(np.full(5, number, np.float32))
        computed = getattr(x, name)().numpy()
        folded = weft.compile(lambda x, number=number: getattr(weft.full((5,), number), name)() + x)(weft.zeros(5))
        np.testing.assert_array_equal(folded.numpy(), computed, err_msg=str(number))


@pytest.mark.parametrize(("m", "n", "k"), [(16, 32, 128), (128, 32, 16), (64, 64, 64), (200, 120, 300), (7, 5, 3)])
def test_a_product_has_one_result_whichever_way_it_is_read(m, n, k):
    """The libraries of CPUs add in another order where they compute the transpose."""
    rng = np.random.default_rng(0)
    a, b = (weft.tensor(rng.standard_normal(shape, dtype=np.float32)) for shape in ((m, k), (k, n)))
    c = weft.tensor(rng.standard_normal((m, 9), dtype=np.float32))
    product = a @ b
    weft.eval(product)
    stored = [product.mT.contiguous(), product.mT @ c, (product * 2.0).mT @ c]
    fused = weft.compile(lambda a, b, c: ((a @ b).mT.contiguous(), (a @ b).mT @ c, ((a @ b) * 2.0).mT @ c))(a, b, c)
    for one, other in zip(stored, fused, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()


@pytest.mark.parametrize("way", ["weight", "input"])
def test_gradients_of_a_product_are_the_same_alone_and_together(way):
    weight, x = (weft.randn(96, 40, requires_grad=True) for _ in range(2))
    wanted = weight if way == "weight" else x

    def gradients():
        for tensor in (weight, x):
            tensor.grad = None
        F.gelu(F.linear(x, weight)).square().sum().backward()

    gradients()
    alone = wanted.grad.numpy()
    gradients()
    weft.eval(weight.grad, x.grad)
    assert wanted.grad.numpy().tobytes() == alone.tobytes()
