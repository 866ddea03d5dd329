"""Small launches that become one: one after the other in one workgroup, or each in workgroups of its own."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.unit.fake_cuda import FakeCuda
from tests.unit.lockstep import Lockstep
from weft.backends.cuda import backend as cuda_backend
from weft.base.tuning import Tuning
from weft.kernels.ir.language import shared_bytes
from weft.plan.plan import Launch
from weft.render.clike import module as clike_module
from weft.render.dialects.tables import CUDA

DECLARED = cuda_backend.STATIC_SHARED_BYTES

pytestmark = pytest.mark.unit


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def compiled(device, function, *arrays):
    """(results, names of the steps) of a compiled function."""
    step = weft.compile(function)
    results = step(*[weft.tensor(array, device=device) for array in arrays])
    return [result.numpy() for result in results], [one.name for one in step.plan.plan.steps]


def layer_gradients(x, w, g):
    """Kernels of several workgroups that do not depend on each other: products, column sums, an elementwise map."""
    return x.T @ g, g.sum(0), g @ w.T, x * 2


LAYER = numbers(40, 36), numbers(36, 70), numbers(40, 70)


@pytest.mark.parametrize("workgroups", [None, 1, 3, 50])
def test_what_does_not_depend_on_each_other_is_one_launch(workgroups, monkeypatch):
    found, names = compiled(
        Lockstep(workgroups, shared_bytes=DECLARED, static_shared_bytes=DECLARED).device, layer_gradients, *LAYER
    )
    monkeypatch.setattr("weft.compiler.lowering.batch_launches.join_launches", lambda steps, *_: list(steps))
    alone, several = compiled(
        Lockstep(workgroups, shared_bytes=DECLARED, static_shared_bytes=DECLARED).device, layer_gradients, *LAYER
    )
    assert len(names) == 1 and len(several) == 4, (names, several)
    for one, other in zip(found, alone, strict=True):
        np.testing.assert_array_equal(one, other)
    x, w, g = [array.astype(np.float64) for array in LAYER]
    for one, want in zip(found, (x.T @ g, g.sum(0), g @ w.T, x * 2), strict=True):
        np.testing.assert_allclose(one, want, 1e-5, 1e-4)


def test_a_part_of_one_block_is_run_by_that_block_alone():
    """An axis of one element is no index, so workgroups before it must be kept out by its number."""
    device = Lockstep()
    (_, sums), names = compiled(device.device, lambda x, g: (x * 2, g.sum(0)), numbers(2000), numbers(64, 10))
    np.testing.assert_allclose(sums, numbers(64, 10).astype(np.float64).sum(0), 1e-5, 1e-5)
    assert len(names) == 1 and names[0].startswith("beside_2")
    (kernel,) = device.kernels
    assert "if (true)" not in clike_module.render(kernel, CUDA)


def test_what_depends_on_another_waits_for_it():
    x = numbers(40, 300)
    (columns, centred), names = compiled(Lockstep().device, lambda x: (x.sum(0), x - x.sum(0)), x)
    np.testing.assert_allclose(columns, x.astype(np.float64).sum(0), 1e-5, 1e-5)
    np.testing.assert_allclose(centred, x - columns, 1e-6)
    assert not any(name.startswith("beside") for name in names), names


def test_memory_that_is_reused_keeps_launches_separate():
    """The second product of `x` reads what lies where the first one of `y` will lie."""
    arrays = numbers(48, 48), numbers(48, 48, seed=1)
    found, names = compiled(Lockstep().device, lambda x, y: (x @ x @ x, y @ y @ y), *arrays)
    for one, array in zip(found, arrays, strict=True):
        np.testing.assert_allclose(one, np.linalg.matrix_power(array.astype(np.float64), 3), 1e-4, 1e-3)
    assert names == ["product_48x48"] * 4


def test_training_with_joined_launches(monkeypatch):
    def losses() -> list[float]:
        device = Lockstep().device
        shapes = ((12, 40), (40,), (40, 10), (10,))
        ps = [weft.tensor(numbers(*shape) / 4, device=device, requires_grad=True) for shape in shapes]
        optimizer = weft.optim.Adam(ps, lr=0.02)

        @weft.compile
        def step(x, y):
            loss = F.cross_entropy((x @ ps[0] + ps[1]).relu() @ ps[2] + ps[3], y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        x = weft.tensor(numbers(40, 12), device=device)
        y = weft.tensor(np.arange(40) % 10, device=device)
        found = [step(x, y).item() for _ in range(4)]
        names.append([one.name for one in step.plan.plan.steps])
        return found

    names: list[list[str]] = []
    together = losses()
    monkeypatch.setattr("weft.compiler.lowering.batch_launches.join_launches", lambda steps, *_: list(steps))
    assert together == losses() and together[-1] < together[0]
    assert any(name.startswith("beside") for name in names[0]) and len(names[0]) < len(names[1]), names


def test_arrays_of_joined_kernels_fit_together():
    """Sorts in one block each take 36 KiB: no kernel may declare more than 48."""
    device = FakeCuda()
    compiled(
        device.device, lambda *xs: tuple([weft.argsort(x)[:200] + 1 for x in xs]), *map(numbers, (4000, 3900, 3000))
    )
    sizes = [shared_bytes(kernel) for kernel in device.kernels().values()]
    assert sizes and max(sizes) <= DECLARED, sizes


def test_a_launch_that_keeps_a_gpu_busy_stands_alone():
    _, names = compiled(FakeCuda().device, lambda x, y: (x * 2, y.sum(0)), numbers(1 << 22), numbers(64, 100))
    assert len(names) == 2, names


def test_numbers_of_workgroups_follow_each_other():
    device = FakeCuda()
    step = weft.compile(layer_gradients)
    step(*[weft.tensor(array, device=device.device) for array in LAYER])
    (launch,) = step.plan.plan.steps
    assert isinstance(launch, Launch) and launch.extent <= 4 * Tuning().max_concurrent_workgroups
    assert launch.kernel.geometry.workgroups(launch.extent) == launch.extent


def test_memory_is_shown_by_the_steps_before_they_were_joined(tmp_path):
    """The arena is planned for those: the plan's two steps would put its boxes far outside of the picture."""
    step = weft.compile(lambda x, w: ((x @ w).softmax(-1).sum(0), (x @ w).cumsum(1)))
    with FakeCuda().device:
        report = step.memory(weft.tensor(numbers(8, 16)), weft.tensor(numbers(16, 16)))
    last = max(one.last for one in report.arena)
    assert report.plan_steps <= last < report.steps
    assert f"{report.steps} steps, of which some are one: the plan has {report.plan_steps}" in str(report)
    report.plot(tmp_path / "arena.svg")
    boxes = [one for one in ET.parse(tmp_path / "arena.svg").getroot().iter() if one.find("{*}title") is not None]
    assert len(boxes) == len(report.arena)
    for box in boxes:
        assert float(box.get("x")) + float(box.get("width")) <= 940.1


def test_short_sums_load_all_their_terms_at_once():
    """With a length that only the launch knows, iterations after the last unrolled group wait for each other."""
    device = FakeCuda()
    for rows in (14, 31, 40):
        compiled(device.device, lambda x: (x.sum(0),), numbers(rows, 3000))
    known = {rows: f"< {rows};" in text for rows, text in zip((14, 31, 40), texts(device), strict=True)}
    assert known == {14: True, 31: True, 40: False}


def texts(device: FakeCuda) -> list[str]:
    return [clike_module.render(kernel, CUDA) for kernel in device.kernels().values()]


def test_names_of_a_part_stay_its_own():
    """Sums of columns have a value called 'first', where a chunk begins; beside others, a part has a first block."""
    x, y = numbers(130, 34), numbers(2000)
    found, names = compiled(
        Lockstep(shared_bytes=DECLARED, static_shared_bytes=DECLARED).device, lambda x, y: (-y, (x * x).amax(0)), x, y
    )
    assert any(name.startswith("beside_2") for name in names), names
    np.testing.assert_array_equal(found[0], -y)
    np.testing.assert_array_equal(found[1], (x * x).max(0))
