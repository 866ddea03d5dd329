"""`weft.cuda` and the names of GPUs, on an emulated one."""

import pytest

import weft
from tests.unit.fake_cuda import FakeCuda
from weft.backends.registry import _loaded

pytestmark = pytest.mark.unit


@pytest.fixture
def gpu(monkeypatch):
    """An emulated GPU as the only one of this machine."""
    made = FakeCuda(runs=True)
    monkeypatch.setitem(_loaded, "cuda", made)
    return made


def test_a_gpu_is_found(gpu):
    assert weft.cuda.is_available() and weft.cuda.device_count() == 1 and weft.cuda.current_device() == 0
    assert weft.cuda.get_device_name() == "no hardware" and weft.cuda.is_bf16_supported()
    available, total = weft.cuda.mem_get_info()
    assert 0 < available <= total
    assert weft.device("cuda") is weft.device("cuda:0") is weft.device("cuda", 0) is weft.device(0) is gpu.device


def test_tensors_move(gpu):
    x = weft.tensor([1.0, 2.0], requires_grad=True)
    for y in (x.cuda(), x.cuda(0), x.cuda("cuda:0", non_blocking=True), x.to(0), x.to("cuda", weft.float32)):
        assert y.is_cuda and not y.is_cpu and y.get_device() == 0 and y.device.type == "cuda"
    assert x.cuda().cpu().tolist() == [1.0, 2.0]
    (x.cuda() * 3).sum().backward()
    assert x.grad.tolist() == [3.0, 3.0] and x.grad.get_device() == -1
    assert x.to(y).is_cuda and x.to("cuda", weft.int32).dtype is weft.int32
    assert weft.zeros_like(x, device="cuda").is_cuda and y.new_zeros(2).is_cuda and y.new_ones(1, device="cpu").is_cpu


def test_waiting_and_giving_back(gpu):
    x = weft.ones(1000, device="cuda") + 1
    weft.eval(x)
    weft.cuda.synchronize()
    weft.synchronize("cuda")
    before = gpu.memory_counts.allocated
    del x
    weft.cuda.empty_cache()
    assert gpu.memory_counts.allocated < before and not gpu.dropped


def test_hooks_on_a_gpu(gpu):
    with weft.device("cuda"):
        w = weft.tensor([1.0, 2.0], requires_grad=True)
        w.register_hook(lambda g: g * 10)
        step = weft.compile(lambda x: weft.grad((x * w).sum(), w)[0])
        assert step(weft.tensor([3.0, 4.0])).tolist() == [30.0, 40.0]
        state = weft.get_rng_state()
        assert state.is_cpu
        first = weft.rand(3).tolist()
        weft.set_rng_state(state)
        assert weft.rand(3).tolist() == first
