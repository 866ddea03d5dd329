"""`weft.profile`: times by kernel and by layer, without an effect on what is profiled."""

from __future__ import annotations

import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

import weft
import weft.nn as nn
from weft.profiling.profile import OUTSIDE, PHASES

pytestmark = pytest.mark.backend


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up = nn.Linear(size, 2 * size)
        self.down = nn.Linear(2 * size, size)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


def training(optimizer=weft.optim.AdamW, dropout=0.0):
    model = nn.Sequential(nn.Linear(24, 32), Block(32), nn.Dropout(dropout), nn.Linear(32, 5))
    update, loss_of = optimizer(model.parameters(), lr=0.01), nn.CrossEntropyLoss()

    def step(x, y):
        loss = loss_of(model(x), y)
        update.zero_grad()
        loss.backward()
        update.step()
        return loss

    return model, step, (weft.randn(40, 24), weft.randint(0, 5, (40,)))


def test_layers_and_kernels(on_each_device):
    _, step, args = training()
    compiled = weft.compile(step)
    compiled(*args)
    found = weft.profile(compiled, *args)
    assert [kernel.name for kernel in found.kernels] == [one.name for one in compiled.plan.kernels()]
    assert [kernel.bytes for kernel in found.kernels] == [one.bytes * one.times for one in compiled.plan.kernels()]
    assert [kernel.flops for kernel in found.kernels] == [one.flops * one.times for one in compiled.plan.kernels()]
    layers = {layer.layer: layer for layer in found.layers}
    assert list(layers) == [
        name for name in ("0", "1", "1.norm", "1.up", "1.down", "3", "CrossEntropyLoss", "AdamW") if name in layers
    ]
    assert {"0", "1.norm", "1.up", "1.down", "3", "CrossEntropyLoss", "AdamW"} <= set(layers)
    assert layers["1.up"].kind == "Linear" and layers["1.norm"].kind == "LayerNorm"
    assert layers["AdamW"].update > 0 == layers["AdamW"].forward
    for name in ("0", "1.up", "1.down", "3"):
        assert layers[name].kernels >= 2 and layers[name].update == 0


def test_the_shares_of_a_kernel_are_one_and_layers_add_up(on_each_device):
    _, step, args = training()
    found = weft.profile(step, *args)
    for kernel in found.kernels:
        assert sum(part.share for part in kernel.layers) == pytest.approx(1)
        assert all(part.phase in PHASES and 0 < part.share <= 1 for part in kernel.layers)
        assert kernel.seconds >= 0 and kernel.copy_share >= 0 and kernel.multiply_share >= 0
    assert sum(layer.seconds for layer in found.layers) == pytest.approx(found.kernel_seconds)


def test_products_belong_to_their_layers(on_each_device):
    """The three products of a layer, forward and for both gradients, are in its name alone."""
    layer = nn.Linear(300, 200, bias=False)

    def step(x):
        gradients = weft.grad(layer(x).sum(), [x, layer.weight])
        return gradients

    x = weft.randn(100, 300, requires_grad=True)
    found = weft.profile(lambda: step(x))
    products = [kernel for kernel in found.kernels if kernel.flops >= 2 * 100 * 200 * 300]
    assert all([part.layer for part in kernel.layers] == ["Linear"] for kernel in products)
    assert any(part.phase == "backward" for kernel in products for part in kernel.layers)


def test_profiling_changes_nothing(on_each_device):
    weft.manual_seed(3)
    model, step, args = training(dropout=0.5)
    twin, twin_step, _ = training(dropout=0.5)
    twin.load_state_dict(model.state_dict())
    compiled, twin_compiled = weft.compile(step), weft.compile(twin_step)
    weft.manual_seed(7)
    expected = [twin_compiled(*args).item() for _ in range(4)]
    weft.manual_seed(7)
    losses = [compiled(*args).item() for _ in range(2)]
    before = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    weft.profile(compiled, *args)
    weft.profile(step, *args)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    losses += [compiled(*args).item() for _ in range(2)]
    assert losses == expected


def test_a_function_without_modules(on_each_device):
    found = weft.profile(lambda x: x.softmax(-1), weft.randn(8, 64))
    assert [layer.layer for layer in found.layers] == [OUTSIDE]
    assert len(found.kernels) == 1 and found.kernels[0].bytes == 2 * 8 * 64 * 4


def test_loops_belong_to_their_layer(on_each_device):
    layer = nn.LSTM(8, 16)
    update = weft.optim.SGD(layer.parameters(), lr=0.1)

    def step(x):
        loss = layer(x)[0].square().mean()
        update.zero_grad()
        loss.backward()
        update.step()
        return loss

    found = weft.profile(step, weft.randn(70, 4, 8))
    repeated = [kernel for kernel in found.kernels if kernel.times == 70]
    assert len(repeated) >= 3
    assert all([part.layer for part in kernel.layers] == ["LSTM"] for kernel in repeated)
    assert {part.phase for kernel in repeated for part in kernel.layers} == {"forward", "backward"}


def test_a_checkpoint_computes_again_for_its_own_layers(on_each_device):
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    both = nn.Sequential(first, second)

    def step(x):
        loss = weft.checkpoint(lambda x: both(x).exp(), x).sum()
        return weft.grad(loss, list(both.parameters()))

    found = weft.profile(step, weft.randn(64, 64, requires_grad=True))
    layers = {layer.layer for layer in found.layers}
    assert {"0", "1"} <= layers
    products = [kernel for kernel in found.kernels if kernel.flops >= 2 * 64**3]
    backward = [kernel for kernel in products if kernel.layers[0].phase == "backward"]
    assert {kernel.layers[0].layer for kernel in backward} == {"0", "1"}


def test_names_of_several_models(on_each_device):
    left, right = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8))
    found = weft.profile(lambda x: left(x) * right(x), weft.randn(4, 8))
    assert {layer.layer for layer in found.layers} >= {"Sequential.0", "Sequential 2.0"}


def test_indices_out_of_range_raise(on_each_device):
    table = nn.Embedding(10, 4)
    with pytest.raises(weft.IndexRangeError):
        weft.profile(lambda index: table(index), weft.tensor([1, 12]))


def test_an_index_is_a_copy_of_its_own(on_each_device):
    """A step that counts on in place runs many times in a profile and has counted no further afterwards."""
    position, data = weft.tensor(0), weft.arange(10)

    def step():
        value = data[position]
        position.add_(1)
        return value

    compiled = weft.compile(step)
    assert compiled().item() == 0
    weft.profile(lambda: (position.add_(0), data.sum())[1])
    assert compiled().item() == 1 and position.item() == 2


def test_chrome_trace(on_each_device, tmp_path):
    _, step, args = training()
    found = weft.profile(step, *args)
    found.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert {"kernels", "layers"} <= names and trace["displayTimeUnit"] == "ms"
    assert all({"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"} <= set(event) for event in events)
    kernels = [event for event in events if event["cat"] == "kernel"]
    assert [event["name"] for event in kernels] == [kernel.name for kernel in found.kernels]
    for row in {event["tid"] for event in events}:  # events of a row do not overlap
        ordered = [event for event in events if event["tid"] == row]
        for one, other in itertools.pairwise(ordered):
            assert other["ts"] >= one["ts"] + one["dur"] - 1e-6
    assert sum(event["dur"] for event in kernels) == pytest.approx(found.kernel_seconds * 1e6)
    with pytest.raises(weft.RangeError, match=r"ends in \.json"):
        found.save(tmp_path / "trace.txt")


def test_as_text_and_as_data(on_each_device):
    _, step, args = training()
    found = weft.profile(step, *args)
    text = str(found)
    assert "1.up" in text and "CrossEntropyLoss" in text and "peak" in text and found.device in text
    data = json.loads(json.dumps(found.to_dict()))
    assert data["seconds"] == found.seconds and len(data["kernels"]) == len(found.kernels)
    assert data["layers"][0]["seconds"] == pytest.approx(found.layers[0].seconds)
    assert "more" in found.table(most=1)


@pytest.mark.serial
def test_kernels_add_up_to_the_whole(on_each_device):
    """Within the stated limits, in one of forty tries: a busy machine only ever adds to one or the other."""
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
    x = weft.randn(256, 256)

    def step(x):
        loss = model(x).square().mean()
        return weft.grad(loss, list(model.parameters()))

    assert any(weft.profile(step, x).is_consistent for _ in range(40))


def test_not_on_devices_that_do_not_run_plans():
    with pytest.raises(weft.DeviceError, match="runs plans"):
        weft.profile(lambda x: x + 1, weft.ones(3, device="null"))
    with pytest.raises(weft.GraphError, match=r"weft\.profile"):
        weft.profile(3)

    @weft.compile
    def outer(x):
        return weft.profile(lambda x: x + 1, x)

    with pytest.raises(weft.GraphError, match=r"inside weft\.compile"):
        outer(weft.ones(3))


def test_rates_are_measured_once_and_kept(on_each_device, monkeypatch, tmp_path):
    from weft.profiling import rates

    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(rates, "_known", {})
    measured = []
    device = weft.default_device()

    def measure(device, dtype):
        measured.append(dtype)
        return 5e9

    monkeypatch.setattr(rates, "_measure", measure)
    assert rates.rates(device) == rates.rates(device) == rates.Rates(5e9, 5e9)
    assert measured == [None, weft.float32]
    monkeypatch.setattr(rates, "_known", {})  # as in another process
    assert rates.rates(device).copy == 5e9 and len(measured) == 2
    rates.raise_rate(device, weft.float32, 4e9)
    assert rates.rates(device).multiply == 5e9
    rates.raise_rate(device, weft.float32, 7e9)
    monkeypatch.setattr(rates, "_known", {})
    assert rates.rates(device).multiply == 7e9 and len(measured) == 2


COPIES, MULTIPLIES = 1e9, 4e9  # of the machine below


@pytest.fixture
def simulated(monkeypatch, tmp_path):
    """A machine whose clock is ours. `load` has the factors by which it is slower in its measurements, one after
    the other; kernels take `slow` times as long as their bytes and operations need at the least."""
    from weft.plan.plan import iterate_steps
    from weft.profiling import rates
    from weft.profiling.isolated_run import IsolatedRun

    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(rates, "_known", {})

    def simulate(load, slow):
        factors = itertools.cycle(load)

        def time_steps(self):
            least = [
                max(one.bytes / COPIES, one.flops / MULTIPLIES) * times for one, times in iterate_steps(self.plan.steps)
            ]
            factor = next(factors)
            return [seconds * slow * factor for seconds in least], [0.0 for _ in least]

        def benchmark(device, dtype):
            work = 1e6
            return SimpleNamespace(
                work=work, seconds=lambda: work / (COPIES if dtype is None else MULTIPLIES) * next(factors)
            )

        monkeypatch.setattr(IsolatedRun, "time_runs", lambda self, count: 1e-3 * next(factors))
        monkeypatch.setattr(IsolatedRun, "time_steps", time_steps)
        monkeypatch.setattr(rates, "Benchmark", benchmark)
        return weft.profile(lambda a, b: (a @ b).relu().sum(), weft.ones(64, 64), weft.ones(64, 64))

    return simulate


@pytest.mark.parametrize("load", [(1.0,), (7.0, 3.0, 1.0), (1.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0)])
def test_load_gives_no_share_above_all(on_each_device, simulated, load):
    """Rates that were measured on a busy machine, and a machine that is busy now and then."""
    from weft.profiling import rates

    for dtype in (None, weft.float32):
        rates.raise_rate(weft.default_device(), dtype, 1e8)  # as on a machine that was ten times slower
    found = simulated(load, slow=1.25)
    assert (found.copy_rate, found.multiply_rate) == (pytest.approx(COPIES), pytest.approx(MULTIPLIES))
    shares = [max(kernel.copy_share, kernel.multiply_share) for kernel in found.kernels]
    assert shares == pytest.approx([0.8] * len(shares)) and not any(kernel.limit for kernel in found.kernels)
    assert "at limit" not in str(found)


def test_what_cannot_be_is_at_the_limit(on_each_device, simulated):
    """Bytes that a cache holds are read faster than memory is copied: that is no 200 %."""
    found = simulated((1.0,), slow=0.5)
    assert all(max(kernel.copy_share, kernel.multiply_share) == 1.0 for kernel in found.kernels)
    assert all("a cache holds them" in kernel.limit or "faster than large" in kernel.limit for kernel in found.kernels)
    assert "200%" not in str(found) and "a cache holds them" in str(found)
    assert re.search(r"at limit: (1 kernel that|\d+ kernels, each of which) (moves|computes) ", str(found))
    assert max(event["args"].get("share of copy rate", 0) for event in found.chrome_trace()["traceEvents"]) == 1.0


def test_rates_without_memory_are_those_from_before(on_each_device, monkeypatch):
    from weft.profiling import rates

    def full(device, dtype):
        raise weft.OutOfMemoryError("full")

    monkeypatch.setattr(rates, "_known", {})
    monkeypatch.setattr(rates, "Benchmark", full)
    for dtype in (None, weft.float32):
        rates.raise_rate(weft.default_device(), dtype, 1e15)
    found = weft.profile(lambda x: x + 1, weft.ones(1000))
    assert found.copy_rate == 1e15 and 0 < found.kernels[0].copy_share < 1


def test_rates_of_the_device_itself(on_each_device, monkeypatch):
    from weft.profiling import rates

    monkeypatch.setattr(rates, "ROUNDS", 1)
    monkeypatch.setattr(rates, "COPIED_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(rates, "MULTIPLIED", {"cpu": 64})
    device = weft.default_device()
    assert rates._measure(device, None) > 1e6
    assert rates._measure(device, weft.float32) > 1e6


def test_a_module_and_keyword_arguments(on_each_device):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x, factor=1.0):
            return self.inner(x) * factor

    for model in (Scaled(), weft.compile(Scaled())):
        found = weft.profile(model, weft.randn(4, 8), factor=2.0)
        assert [layer.layer for layer in found.layers] == ["Scaled", "inner"]


def test_mixed_precision(on_each_device):
    layer = nn.Linear(64, 64)

    def step(x):
        with weft.autocast(x.device.type, weft.bfloat16):
            return layer(x).float().sum()

    found = weft.profile(step, weft.randn(32, 64))
    assert found.kernels and any(part.layer == "Linear" for kernel in found.kernels for part in kernel.layers)


def test_errors_end_at_the_users_line():
    import traceback

    with pytest.raises(weft.ShapeError) as caught:
        weft.profile(lambda x: x @ x, weft.ones(3, 4, device="cpu"))
    frames = [frame.filename for frame in traceback.extract_tb(caught.tb)]
    assert all("profiling" not in name for name in frames)


def test_a_convolution_counts_for_more_than_what_is_fused_to_it(on_each_device):
    model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
    found = weft.profile(lambda x: model(x), weft.randn(4, 16, 12, 12))
    largest = max(found.kernels, key=lambda kernel: kernel.flops)
    shares = {part.layer: part.share for part in largest.layers}
    assert shares["0"] > 0.9 and shares.get("1", 0.0) < 0.1
