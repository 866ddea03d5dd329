"""`weft tune` on devices that the CPU emulates: no tile and no value of a field that it tries changes a bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from weft.base import disk
from weft.cli import main
from weft.cli import tune as command_module
from weft.compiler.templates.gemm import tiles_for
from weft.kernels.gpu import product_tiles
from weft.plan import kept_tuning
from weft.plan.device import Device
from weft.profiling import tune_probes
from weft.profiling.tune_probes import DeviceProbe, probes_of, searched_fields

TILES = ("registers 64x64x16/8x4", "registers 128x64x16/8x4", "registers 32x32x16/4x4", "registers 128x256x8/8x16")


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(tune_probes, "SOFTWARE_BYTES", 96 << 12)
    monkeypatch.setattr(tune_probes, "MIN_SECONDS", 0.0)


@pytest.mark.parametrize("tile", TILES)
def test_no_tile_changes_a_bit(tile: str, emulated: Device, monkeypatch):
    monkeypatch.setattr(product_tiles, "SMALL_GPU_PRODUCT", 0)  # else these products are fetched at once
    shape = (40, 70, 36)
    if tile not in tiles_for(emulated, weft.float32, *shape):
        pytest.skip(f"{emulated.name} has no room for {tile}")
    rng = np.random.default_rng(0)
    with emulated:
        a, b = (weft.tensor(rng.standard_normal(pair, dtype=np.float32)) for pair in ((40, 36), (36, 70)))
    probe = DeviceProbe("product", emulated, [a @ b], 1)
    usual = probe.compile(replace(emulated.tuning, product_speeds=(("registers 16x16x16/2x2", 1),)))
    other = probe.compile(replace(emulated.tuning, product_speeds=((tile, 1),)))
    assert other.form != usual.form and other.results() == usual.results()


def test_no_field_that_is_searched_changes_a_bit(emulated: Device, small):
    """All of them lowered at a time."""
    fields = searched_fields(emulated)
    least = {name: min(values) for name, values in fields.items()}
    changed = set()
    for probe in probes_of(emulated, ("elementwise", "softmax of rows", "layer norm", "column sums")):
        usual = probe.compile(emulated.tuning)
        other = probe.compile(replace(emulated.tuning, **least))
        if other.form != usual.form:
            changed.add(probe.name)
            assert other.results() == usual.results(), probe.name
    assert {"elementwise", "layer norm", "column sums"} <= changed


@pytest.mark.parametrize("seconds", ["0", "1e6"])
def test_the_command(seconds: str, emulated: Device, small, tmp_path, monkeypatch, capsys):
    """Without time and with more than enough: neither depends on how fast the device is."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(disk, "_writing", disk._Writing())
    monkeypatch.setattr(command_module, "probes_of", lambda device: probes_of(device, ("elementwise", "column sums")))
    fields = {"workgroup_size": (128, 64), "column_rows_in_flight": (4,)}
    monkeypatch.setattr(command_module, "searched_fields", lambda device: fields)
    assert main(["tune", "--device", emulated.name, "--seconds", seconds]) == 0
    text = " ".join(capsys.readouterr().out.split())  # lines are as wide as the terminal
    assert emulated.description.split()[0] in text and "elementwise" in text
    assert ("3 candidates were not tried" in text) == (seconds == "0")
    assert ("workgroup_size = 128: " in text and "column_rows_in_flight = 4: " in text) == (seconds != "0")
    assert (kept_tuning.read(emulated) is None) == ("nothing is kept" in text)
    assert seconds != "0" or kept_tuning.read(emulated) is None
