"""The dtypes that kernels read under autocast, in plans for a GPU and for the CPU; training on an emulated GPU."""

import numpy as np
import pytest

import weft
import weft.nn as nn
import weft.nn.functional as F
from tests.unit.fake_cuda import HOPPER
from tests.unit.fake_driver import FakeGpu
from weft.backends.cuda import backend as cuda_backend
from weft.backends.null import NullBackend
from weft.base import dtypes
from weft.base.capabilities import Features, Limits
from weft.kernels.ir.language import Kernel
from weft.plan.device import Device
from weft.plan.plan import Gemm, LibraryCall, iterate_steps, launch_of


class Products:
    """A library that computes every product, as cuBLASLt does."""

    name, version = "products", "1"

    def offer(self, node, srcs):
        """Nothing but products."""

    def can_multiply(self, *product):
        return True

    def epilogues(self, dtype):
        return frozenset()

    def configure_product(self, product):
        return product.config, 0


class Planner(NullBackend):
    """A device that runs nothing and keeps its kernels as they were scheduled."""

    def __init__(self, features, limits, libraries):
        super().__init__()
        self._device = Device("null", 0, self, "", frozenset(dtypes.ALL), features, limits, libraries)

    def render(self, kernel):
        return kernel


def gpu(libraries):
    return Planner(cuda_backend.FEATURES, HOPPER, libraries).devices()[0]


DEVICES = {
    "gpu": lambda: gpu({}),
    "gpu with a library": lambda: gpu({"products": Products()}),
    "cpu": lambda: Planner(Features(cpu_templates=True), Limits(cpu_threads=2), {}).devices()[0],
}


def reads(device, function, *shapes, low=weft.bfloat16, joined=False):
    """For each step of the plan of `function`, under autocast: (name, dtypes that it reads, dtypes that it writes)."""
    with pytest.MonkeyPatch.context() as patch, weft.device(device):
        if not joined:
            patch.setattr(
                "weft.compiler.lowering.batch_launches.join_launches", lambda steps, *_: list(steps)
            )  # each kernel for itself
        args = [weft.zeros(*shape, requires_grad=True) for shape in shapes]
        weft.eval(*args)

        @weft.compile
        def step(*args):
            with weft.autocast("null", dtype=low):
                return function(*args)

        step(*args)
        found = []
        for one, _ in iterate_steps(step.plan.plan.steps):
            if isinstance(one, LibraryCall):
                operand, result = one.config[:2]
                found.append((one.name, {_name(operand)}, {_name(result)}))
                continue
            launch = launch_of(one)
            kernel = launch.kernel if launch is not None else None
            assert kernel is None or isinstance(kernel, Kernel)
            buffers = kernel.buffers if kernel is not None else ()
            inputs = {buffer.dtype.name for buffer in buffers if not buffer.written}
            outputs = {buffer.dtype.name for buffer in buffers if buffer.written}
            if isinstance(one, Gemm):
                inputs |= {one.dtype.name}
            found.append((one.name, inputs, outputs))
        return found


def _name(value):
    return getattr(value, "name", str(value))


def test_products_read_16_bits_on_a_gpu():
    for kind in ("gpu", "gpu with a library"):
        for low in (weft.bfloat16, weft.float16):
            steps = reads(DEVICES[kind](), lambda x, w: x @ w, (256, 128), (128, 192), low=low)
            casts, products = [one for one in steps if "cast" in one[0]], [one for one in steps if "cast" not in one[0]]
            assert len(products) == 1 and products[0][1] == {low.name} and low.name in products[0][2], (kind, steps)
            assert all(inputs == {"float32"} and outputs == {low.name} for _, inputs, outputs in casts) and casts


def test_a_weight_is_read_in_float32_by_one_kernel_only():
    def net(x, w):
        return ((x @ w).relu() @ w).relu() @ w

    steps = reads(DEVICES["gpu with a library"](), net, (256, 128), (128, 128))
    assert [name for name, inputs, _ in steps if "float32" in inputs] == [
        name for name, _, _ in steps if "cast" in name
    ]
    assert sum("128x128" in name and "cast" in name for name, _, _ in steps) <= 1


def test_products_of_the_cpu_are_rounded_to_16_bits():
    """The CPU multiplies in float32 what was rounded to 16 bits, and rounds the result."""
    steps = reads(DEVICES["cpu"](), lambda x, w: (x @ w) @ w, (64, 128), (128, 128))
    products = [one for one in steps if "gemm" in one[0]]
    assert len(products) == 2 and all("float32" in inputs for _, inputs, _ in products)
    assert {"bfloat16"} == products[-1][2] or "bfloat16" in {name for one in steps for name in one[2]}


def test_convolutions_read_16_bits_on_a_gpu():
    steps = reads(DEVICES["gpu"](), lambda x, w: F.conv2d(x, w, padding=1), (4, 32, 16, 16), (32, 32, 3, 3))
    (product,) = [inputs for name, inputs, _ in steps if name.startswith("product")]
    assert product == {"bfloat16"} and steps[-1][2] == {"bfloat16"}


def test_attention_reads_16_bits_on_a_gpu():
    shape = (2, 4, 64, 32)
    steps = reads(DEVICES["gpu"](), F.scaled_dot_product_attention, shape, shape, shape)
    attention = [one for one in steps if "cast" not in one[0]]
    assert attention and all(inputs <= {"bfloat16"} for _, inputs, _ in attention), steps


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("softmax", lambda y: y.softmax(-1)),
        ("log_softmax", lambda y: y.log_softmax(-1)),
        ("layer_norm", lambda y: F.layer_norm(y, (192,))),
        ("rms_norm", lambda y: F.rms_norm(y, (192,))),
        ("sum", lambda y: y.sum(-1)),
        ("exp", lambda y: y.exp()),
        ("mse_loss", lambda y: F.mse_loss(y, y.detach() * 0.5)),
        ("cross_entropy", lambda y: F.cross_entropy(y, weft.zeros(256, dtype=weft.int64))),
    ],
)
def test_what_follows_a_product_reads_16_bits_and_writes_float32(name, after):
    """The cast to float32 is part of the kernel: memory is read in 16 bits."""
    steps = reads(DEVICES["gpu with a library"](), lambda x, w: after(x @ w), (256, 128), (128, 192))
    position = max(k for k, one in enumerate(steps) if one[1] == {"bfloat16"} and one[2] == {"bfloat16"})  # the product
    following = steps[position + 1 :]
    assert following and "bfloat16" in following[0][1], steps
    assert "float32" in following[-1][2] and not any("bfloat16" in outputs for _, _, outputs in following)


def test_losses_keep_float32_without_autocast_in_front():
    steps = reads(DEVICES["gpu"](), lambda x, y: F.mse_loss(x, y), (256, 128), (256, 128))
    assert {name for _, inputs, outputs in steps for name in inputs | outputs} == {"float32"}


def trained(device, dtype):
    """Losses, weights, scale and skipped steps of three steps on a device; the second has a NaN in its input."""
    with weft.device(device):
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
        random = np.random.default_rng(0)
        with weft.no_grad():
            for param in model.parameters():
                param.copy_(weft.tensor(random.normal(size=tuple(param.shape)).astype("f") * 0.5))
        optimizer = weft.optim.AdamW(model.parameters(), lr=0.01)
        scaler = weft.amp.GradScaler(init_scale=256.0)

        @weft.compile
        def step(x, y):
            with weft.autocast(dtype=dtype):
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        losses = []
        for number in range(3):
            x = np.random.default_rng(number).normal(size=(6, 4)).astype("f")
            x[0, 0] = np.nan if number == 1 else x[0, 0]
            losses.append(step(weft.tensor(x), weft.tensor(np.arange(6) % 3)).item())
        weights = [np.array(param.detach().to("cpu")) for param in model.parameters()]
        return losses, weights, scaler.get_scale(), scaler.skipped_steps()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_training_on_an_emulated_gpu(dtype):
    """A compiled step with autocast, loss scaling and AdamW, beside the CPU; one of the steps is skipped."""
    losses, weights, *counts = trained(FakeGpu().device, dtype)
    others, expected, *theirs = trained(weft.get_device("cpu"), dtype)
    assert counts == theirs == [128.0, 1] and np.isnan(losses[1])
    np.testing.assert_allclose([losses[0], losses[2]], [others[0], others[2]], rtol=0.02)
    for one, other in zip(weights, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=0.025)  # Adam's first steps have the size of the learning rate
