"""weft.autocast: where it is on, what compiled functions make of it, and how it converges."""

import threading

import numpy as np
import pytest
import torch

import weft
import weft.nn as nn
import weft.nn.functional as F


def product(x, w):
    return (x @ w).dtype


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_as_a_context_and_a_decorator(dtype, on_each_device):
    kind = on_each_device
    x, w = weft.ones(2, 3), weft.ones(3, 3)
    with weft.autocast(kind, dtype=dtype):
        assert product(x, w).name == dtype
        with weft.autocast(kind, enabled=False):
            assert product(x, w) is weft.float32
        assert product(x, w).name == dtype
    assert product(x, w) is weft.float32

    @weft.autocast(kind, dtype=dtype)
    def decorated(x):
        return decorated(x - 1) if x else product(weft.ones(2, 3), w)

    assert decorated(3).name == dtype
    assert not weft.is_autocast_enabled()


def test_dtypes_by_device():
    assert weft.get_autocast_dtype("cpu") is weft.bfloat16 and weft.get_autocast_dtype("cuda") is weft.float16
    x = weft.ones(2, 2)
    with weft.autocast("cuda"):
        assert product(x, x) is weft.float32  # nothing of it is for the CPU
        assert weft.is_autocast_enabled("cuda") and not weft.is_autocast_enabled("cpu")
        with weft.autocast("cpu", dtype="float16"):
            assert product(x, x) is weft.float16 and weft.get_autocast_dtype("cuda") is weft.float16
    with weft.autocast():
        assert product(x, x) is weft.bfloat16 and weft.get_autocast_dtype("cuda") is weft.float16
        with weft.autocast("cpu", enabled=False):
            assert product(x, x) is weft.float32 and weft.is_autocast_enabled("cuda")
            with weft.autocast(enabled=False):
                assert not weft.is_autocast_enabled()


def test_other_threads_are_not_concerned():
    found = []
    with weft.autocast("cpu"):
        thread = threading.Thread(target=lambda: found.append(product(weft.ones(2, 2), weft.ones(2, 2))))
        thread.start()
        thread.join()
    assert found == [weft.float32]


def test_errors():
    for name, fix in (("opencl:1", "write the kind without a number: 'opencl'"), ("vulkan", "leave it out")):
        with pytest.raises(weft.DeviceError, match=f"autocast: given device_type '{name}'.* Fix: {fix}"):
            weft.autocast(name)
    with pytest.raises(weft.DTypeError, match=r"autocast: given dtype float32; expected float16 or bfloat16"):
        weft.autocast("cpu", dtype=weft.float32)
    with pytest.raises(weft.DeviceError, match="without a number"):
        weft.autocast("cuda:0")
    with pytest.raises(weft.GraphError, match="generator"):
        weft.autocast("cpu")(lambda: (yield))


def test_a_device_without_the_dtype_says_so():
    from weft.backends.null import NullBackend
    from weft.plan.device import Device

    backend = NullBackend()
    few = frozenset({weft.float32, weft.int32, weft.bool})
    backend._device = Device("null", 0, backend, "", few, frozenset({"templates"}))
    with weft.device(backend._device):
        x = weft.zeros(2, 2)
        with weft.autocast("null"), pytest.raises(weft.DTypeError, match=r"which has no bfloat16; expected .*float32"):
            x @ x


def test_names_of_torch():
    import weft.cuda.amp as cuda_amp
    from weft.amp import GradScaler, autocast, custom_bwd, custom_fwd

    assert autocast is weft.autocast and issubclass(cuda_amp.autocast, autocast)
    assert issubclass(cuda_amp.GradScaler, GradScaler) and cuda_amp.custom_fwd is custom_fwd is not custom_bwd
    with cuda_amp.autocast():
        assert weft.get_autocast_dtype("cuda") is weft.float16 and weft.is_autocast_enabled("cuda")
    assert weft.amp.is_autocast_available("cpu") and not weft.amp.is_autocast_available("tpu")


def test_compiled_functions_have_it_among_their_guards(on_each_device):
    w = weft.ones(3, 3)

    @weft.compile
    def step(x):
        return x @ w

    x, names = weft.ones(2, 3), []
    for kind in ("off", "bfloat16", "off", "float16", "bfloat16", "off"):
        before = weft.counters()["traces"]
        with weft.autocast(dtype=None if kind == "off" else kind, enabled=kind != "off"):
            names.append(step(x).dtype.name)
            again = weft.counters()["traces"]
            assert step(x).dtype.name == names[-1] and weft.counters()["traces"] == again
        assert again - before <= 1
    assert names == ["float32", "bfloat16", "float32", "float16", "bfloat16", "float32"]
    assert len(step.variants) == 3 and "autocast" in step.retraces[0]


def test_inside_a_compiled_function(on_each_device):
    w = weft.ones(3, 3, requires_grad=True)

    @weft.compile
    def step(x):
        with weft.autocast(dtype=weft.bfloat16):
            y = x @ w
        w.grad = None
        y.float().sum().backward()
        return y, x @ w

    low, wide = step(weft.ones(2, 3))
    assert low.dtype is weft.bfloat16 and wide.dtype is weft.float32 and w.grad.dtype is weft.float32
    assert not weft.is_autocast_enabled()


def test_weights_are_cast_once_in_a_step():
    """Three uses of a weight, in the forward and the backward pass, read one cast of it."""
    w = weft.randn(64, 64, requires_grad=True)

    @weft.compile
    def step(x):
        with weft.autocast("cpu"):
            loss = ((x @ w).tanh() @ w).tanh() @ w
        w.grad = None
        loss.sum().backward()
        return w.grad

    step(weft.randn(32, 64))
    reading = [kernel.name for kernel in step.plan.kernels() if "cast_64x64" in kernel.name]
    assert len(reading) == 1


def test_functions_of_the_user():
    seen = []

    class Product(weft.autograd.Function):
        @staticmethod
        @weft.amp.custom_fwd(device_type="cpu")
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            seen.append((x @ y).dtype)
            return x @ y

        @staticmethod
        @weft.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            seen.append((g @ y.t()).dtype)
            return (g @ y.t()).float(), (x.t() @ g).float()

    x = weft.ones(2, 2, requires_grad=True)
    with weft.autocast("cpu"):
        y = Product.apply(x, x)
    y.sum().backward()
    assert seen == [weft.bfloat16, weft.bfloat16] and x.grad.dtype is weft.float32


def test_outputs_are_torchs(on_each_device):
    """A small network: dtypes on the way, and numbers to the rounding of bfloat16."""
    x = np.random.default_rng(0).normal(size=(8, 16)).astype("f")
    theirs = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    ours = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    with weft.no_grad():
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.copy_(weft.tensor(other.detach().numpy()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = theirs(torch.tensor(x))
        expected_loss = torch.nn.functional.mse_loss(expected, torch.zeros_like(expected))
    with weft.autocast(dtype=weft.bfloat16):
        found = ours(weft.tensor(x))
        loss = F.mse_loss(found, weft.zeros_like(found))
    assert found.dtype is weft.bfloat16 and loss.dtype is weft.float32 and expected_loss.dtype is torch.float32
    np.testing.assert_allclose(found.detach().float().numpy(), expected.detach().float().numpy(), 2e-2, 2e-2)
    loss.backward()
    expected_loss.backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=0.05, atol=5e-3)


def spirals(count=96):
    random = np.random.default_rng(1)
    turn = np.sqrt(random.random(count)) * 3.0
    label = np.arange(count) % 2
    angle = turn + np.pi * label
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], 1) + random.normal(size=(count, 2)) * 0.1
    return weft.tensor(points.astype("f")), weft.tensor(label)


def train(dtype, steps=150):
    """The losses of a small network in one precision; float16 with loss scaling."""
    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = weft.optim.AdamW(model.parameters(), lr=0.01)
    scaler = weft.amp.GradScaler(enabled=dtype == "float16")
    x, y = spirals()

    @weft.compile
    def step():
        with weft.autocast(dtype=None if dtype == "float32" else dtype, enabled=dtype != "float32"):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return [step().item() for _ in range(steps)], scaler


def test_convergence(on_each_device):
    wide, _ = train("float32")
    assert wide[-1] < 0.1 < 0.5 < wide[0]
    for dtype in ("bfloat16", "float16"):
        losses, scaler = train(dtype)
        assert abs(losses[0] - wide[0]) < 0.01
        assert losses[-1] < 0.1 and abs(losses[-1] - wide[-1]) < 0.03
        assert scaler.skipped_steps() <= 5
