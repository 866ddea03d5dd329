"""Tunings on disk: found again by the same model of device alone, applied when it is opened, and `weft tune`."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends.cpu.backend import CpuBackend
from weft.base import disk
from weft.base.capabilities import Limits
from weft.base.errors import DeviceError
from weft.base.tuning import Tuning
from weft.cli import doctor, main
from weft.cli import tune as command_module
from weft.plan import kept_tuning
from weft.plan.device import Device
from weft.plan.kept_tuning import KeptTuning
from weft.profiling import rates, tune_probes
from weft.profiling.tune import KEPT, WRONG, Found, Trial
from weft.profiling.tune_probes import DeviceProbe, probes_of, searched_fields

pytestmark = pytest.mark.unit

CHANGES = {"max_tasks": 7, "product_speeds": (("registers 64x64x16/4x4", 1000), ("registers 16x16x16/2x2", 90))}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("WEFT_CACHE_LIMIT", raising=False)
    monkeypatch.setattr(disk, "_writing", disk._Writing())
    return tmp_path / "cache"


def described(identity: str | None = "driver 1", **fields: Any) -> Device:
    """A device that is only described."""
    backend: Any = SimpleNamespace(identity=lambda: identity)
    return Device(**{"kind": "opencl", "index": 0, "backend": backend, "description": "a GPU", **fields})


# --- files -----------------------------------------------------------------------------------------------------------


def test_what_was_kept_is_applied():
    device = described(tuning=Tuning(merge_window=3))
    assert kept_tuning.apply_kept_tuning(device) is device and kept_tuning.read(device) is None
    kept = KeptTuning(CHANGES, {"map": 1.5}, "2026-11-18")
    path = kept_tuning.write(device, kept)
    assert kept_tuning.read(device) == kept and kept_tuning.file_of(device) == path
    tuned = kept_tuning.apply_kept_tuning(device)
    assert tuned.tuning == Tuning(merge_window=3, **CHANGES) and tuned.class_tuning == device.tuning
    assert kept_tuning.class_tuning(tuned) == kept_tuning.class_tuning(device) == device.tuning
    assert kept_tuning.changes_of(tuned.tuning, device.tuning) == CHANGES
    assert kept_tuning.read(tuned) == kept  # the key is that of the class, not of what was found
    assert kept_tuning.remove(tuned) and not kept_tuning.remove(device)
    assert kept_tuning.apply_kept_tuning(device) is device


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "webgpu"},
        {"description": "another GPU"},
        {"identity": "driver 2"},
        {"limits": Limits(processors=3)},
        {"features": replace(described().features, async_copies=True)},
        {"tuning": Tuning(max_tasks=63)},  # another default: the numbers were measured beside the old one
    ],
)
def test_another_device_does_not_read_it(other):
    kept_tuning.write(described(), KeptTuning(CHANGES))
    assert kept_tuning.read(described(**other)) is None


def test_another_gpu_of_the_same_model_reads_it():
    kept_tuning.write(described(), KeptTuning(CHANGES))
    assert kept_tuning.read(described(index=3)) == KeptTuning(CHANGES)


def test_another_amount_of_memory_reads_it():
    """PoCL, and drivers of GPUs without memory of their own, report what depends on what is free."""
    limits = Limits(processors=4, allocation_bytes=2 << 30)
    kept_tuning.write(described(limits=limits), KeptTuning(CHANGES))
    more = described(limits=replace(limits, allocation_bytes=4 << 30))
    assert kept_tuning.read(more) == KeptTuning(CHANGES)
    assert rates._key(more, "copy") == rates._key(described(limits=limits), "copy")


def test_a_tuning_with_another_field_is_another_file(monkeypatch):
    """As after an update of Weft."""
    kept_tuning.write(described(), KeptTuning(CHANGES))
    newer = dataclasses.make_dataclass("Tuning", [("new", int, 1)], bases=(Tuning,), frozen=True)
    assert kept_tuning.read(described(tuning=newer())) is None


def spoil(path: str) -> None:
    data = bytearray(Path(path).read_bytes())
    data[-3] ^= 1
    Path(path).write_bytes(bytes(data))


def test_a_damaged_file_is_ignored_with_a_warning_that_names_it():
    device = described()
    path = kept_tuning.write(device, KeptTuning(CHANGES))
    spoil(path)
    with pytest.warns(RuntimeWarning, match="is ignored: it is damaged") as seen:
        assert kept_tuning.apply_kept_tuning(device) is device
    assert path in str(seen[0].message) and "weft tune" in str(seen[0].message)
    kept_tuning.write(device, KeptTuning(CHANGES))
    assert kept_tuning.apply_kept_tuning(device).tuning.max_tasks == 7


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_a_file_that_others_may_write_is_ignored():
    device = described()
    os.chmod(kept_tuning.write(device, KeptTuning(CHANGES)), 0o666)
    with pytest.warns(RuntimeWarning, match="another user may have written it"):
        assert kept_tuning.read(device) is None


@pytest.mark.parametrize("change", ["written", "removed"])
def test_a_file_that_another_process_changes_meanwhile_is_not_damaged(change, monkeypatch):
    """Written after it was looked for, or removed before it is read."""
    device, read = described(), disk.read
    if change == "removed":
        kept_tuning.write(device, KeptTuning(CHANGES))

    def read_meanwhile(kind: str, key: str) -> bytes | None:
        if change == "removed":
            disk.remove(kind, key)
        data = read(kind, key)
        if change == "written":
            disk.write(kind, key, b"{}")
        return data

    monkeypatch.setattr(disk, "read", read_meanwhile)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept_tuning.read(device) is None


@pytest.mark.parametrize(
    "payload, said",
    [
        (b"[]", "TypeError"),
        (b"not JSON", "JSONDecodeError"),
        (b'{"changes": {"max_task": 7}, "gains": {}, "made": ""}', "'max_task' is no field"),
        (b'{"changes": {"max_tasks": "7"}, "gains": {}, "made": ""}', "max_tasks is '7', not a number"),
        (b'{"changes": {"max_tasks": true}, "gains": {}, "made": ""}', "max_tasks is True, not a number"),
        (b'{"changes": {"max_tasks": -7}, "gains": {}, "made": ""}', "max_tasks is -7, not a number"),
        (b'{"changes": {"product_speeds": [["a", 0]]}, "gains": {}, "made": ""}', "pairs"),
        (b'{"changes": {"product_speeds": 5}, "gains": {}, "made": ""}', "TypeError"),
    ],
)
def test_content_that_is_no_tuning_is_ignored_with_a_warning(payload, said):
    device = described()
    disk.write(disk.TUNING, kept_tuning._key(device), payload)
    with pytest.warns(RuntimeWarning, match=said):
        assert kept_tuning.read(device) is None


def test_nothing_is_kept_where_nothing_can_be(monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_LIMIT", "0")
    with pytest.raises(DeviceError, match="in which nothing can be kept"):
        kept_tuning.write(described(), KeptTuning(CHANGES))
    with pytest.raises(DeviceError, match="which keeps nothing"):
        kept_tuning.write(described(None), KeptTuning(CHANGES))
    assert kept_tuning.read(described(None)) is None


def test_a_backend_opens_its_device_with_what_was_kept():
    usual = CpuBackend().device
    kept_tuning.write(usual, KeptTuning({"max_tasks": 7}))
    opened = CpuBackend().device
    assert opened.tuning == replace(usual.tuning, max_tasks=7) and opened.class_tuning == usual.tuning
    assert opened.backend.device is opened


def test_a_new_process_computes_the_same_bits_with_it():
    code = (
        "import weft, numpy as np; x = weft.tensor(np.linspace(-3, 3, 70000, dtype='float32').reshape(70, 1000));"
        "print(weft.get_device('cpu').tuning.max_tasks, x.softmax(-1).sum(0).numpy().tobytes().hex())"
    )

    def run() -> list[str]:
        where = Path(__file__).parents[2]
        done = subprocess.run([sys.executable, "-c", code], cwd=where, capture_output=True, text=True, check=True)
        return done.stdout.split()

    usual = run()
    kept_tuning.write(weft.get_device("cpu"), KeptTuning({"max_tasks": 7, "min_task_bytes": 1024}))
    tuned = run()
    assert (usual[0], tuned[0]) == (str(Tuning().max_tasks), "7") and usual[1] == tuned[1]


# --- probes ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(tune_probes, "ARRAY_BYTES", {"cpu": 1 << 17})
    monkeypatch.setattr(tune_probes, "MIN_SECONDS", 0.0)


def test_searched_fields_are_fields_that_decide_no_fusion():
    """Those are above the part 'Fusion' of `Tuning`."""
    names = [field.name for field in dataclasses.fields(Tuning)]
    fusing = set(names[names.index("max_candidates") :])
    for fields in (tune_probes.GPU_FIELDS, tune_probes.CPU_FIELDS):
        assert set(fields) <= set(names) - fusing
        assert all(getattr(Tuning(), name) not in values for name, values in fields.items())


def test_probes_run_with_any_tuning_and_keep_their_bits(small):
    """With the CPU's own tuning as it was: no plan of a candidate is left."""
    device = weft.get_device("cpu")
    before = device.tuning
    for probe in probes_of(device):
        usual = probe.compile(before)
        assert usual.form == probe.compile(before).form
        changes = {**{name: values[-1] for name, values in searched_fields(device).items()}, "min_task_bytes": 1}
        other = probe.compile(replace(before, **changes))
        assert other.results() == usual.results() and other.seconds() > 0, probe.name
    assert device.tuning is before


def test_a_probe_computes_what_it_says(small):
    device = weft.get_device("cpu")
    x = weft.tensor(np.arange(6, dtype=np.float32))
    one, same, other = (DeviceProbe("p", device, [x * number], 48) for number in (2.0, 2.0, 3.0))
    results = [probe.compile(device.tuning).results() for probe in (one, same, other)]
    assert results[0] == results[1] != results[2]


def test_a_device_that_runs_nothing_has_no_times():
    device = weft.get_device("null")
    run = DeviceProbe("p", device, [weft.ones(3, device=device) + 1], 1).compile(device.tuning)
    with pytest.raises(DeviceError, match="a device that runs plans"):
        run.seconds()


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["tune", *arguments])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def finding(monkeypatch, *trials: Trial, is_interrupted: bool = False, **changes: Any) -> list[Any]:
    """Searches find these changes, at once; returns what they are given."""
    given: list[Any] = []

    class Fake:
        def __init__(self, probes, usual, fields, seconds, earlier=None, report=None):
            given.append((seconds, earlier))
            self.times = {probe.name: (2.0, 1.0 if changes else 2.0) for probe in probes}
            self.found = Found(replace(usual, **changes), list(trials), self.times, 3, is_interrupted)
            for trial in trials:
                report(trial)

        def run(self) -> Found:
            return self.found

    monkeypatch.setattr(command_module, "Search", Fake)
    return given


def test_tune_keeps_what_is_found(command, monkeypatch, small):
    device = weft.get_device("cpu")
    given = finding(monkeypatch, Trial("max_tasks = 7", KEPT, 2.0), **CHANGES)
    code, text = command("--device", "cpu", "--seconds", "5")
    assert code == 0 and "2.00 x  max_tasks = 7: kept" in text and "3 candidates were not tried" in text
    kept = kept_tuning.read(device)
    assert kept is not None and kept.changes == CHANGES and kept.gains["elementwise"] == 2.0
    assert kept_tuning.file_of(device) in text and "speed 0.09" in text
    code, text = command("--device", "cpu", "--show")
    assert code == 0 and "max_tasks" in text and "elementwise: 2.00 times as fast" in text
    finding(monkeypatch)
    given += finding(monkeypatch)
    code, text = command("--device", "cpu")
    assert code == 0 and "nothing is kept" in text and kept_tuning.read(device) is None
    assert given[0] == (5.0, None)
    code, text = command("--device", "cpu", "--show")
    assert code == 0 and "Not tuned" in text


def test_tune_starts_at_what_was_kept_and_resets_it(command, monkeypatch, small):
    device = weft.get_device("cpu")
    kept_tuning.write(device, KeptTuning(CHANGES))
    given = finding(monkeypatch, **CHANGES)
    assert command("--device", "cpu")[0] == 0
    assert given == [(command_module.SECONDS, replace(device.tuning, **CHANGES))]
    code, text = command("--device", "cpu", "--reset")
    assert code == 0 and "removed" in text and kept_tuning.read(device) is None
    code, text = command("--device", "cpu", "--reset")
    assert code == 0 and "nothing was kept" in text


@pytest.mark.parametrize("changes", [{"max_tasks": 9}, {}], ids=["something found", "nothing found"])
def test_an_interrupted_search_keeps_what_it_found_and_removes_nothing(changes, command, monkeypatch, small):
    device = weft.get_device("cpu")
    kept_tuning.write(device, KeptTuning(CHANGES))
    finding(monkeypatch, is_interrupted=True, **changes)
    code, text = command("--device", "cpu", "--device", "cpu")
    kept = kept_tuning.read(device)
    assert code == 130 and "interrupted" in text and text.count("softmax of rows") == 1
    assert kept is not None and kept.changes == (changes or CHANGES)


def test_what_cannot_be_removed_is_not_called_removed(command):
    """A folder in place of the file stands for one in a folder that the user may not write to."""
    path = Path(kept_tuning.write(weft.get_device("cpu"), KeptTuning(CHANGES)))
    path.unlink()
    path.mkdir()
    code, text = command("--device", "cpu", "--reset")
    assert code != 0 and str(path) in text and "nothing was kept" not in text


def test_tune_reports_a_candidate_that_changes_results(command, monkeypatch, small):
    finding(monkeypatch, Trial("max_tasks = 3", WRONG, reason="of sum"))
    code, text = command("--device", "cpu")
    assert code == 1 and "max_tasks = 3 changes the results of sum" in text and "report" in text


def test_tune_on_the_cpu(command, small):
    code, text = command("--device", "cpu", "--seconds", "0.3")
    assert code == 0 and "softmax of rows" in text and "GB/s" in text and "convolution" in text


def test_a_search_without_time_says_nothing_of_speeds(command, small):
    code, text = command("--device", "cpu", "--seconds", "0")
    assert code == 0 and f"{sum(map(len, tune_probes.CPU_FIELDS.values()))} candidates were not tried" in text
    assert "Nothing was found that is clearly faster" in text and "as fast" not in text


def test_arguments_that_are_refused(command, monkeypatch):
    code, text = command("--device", "null")
    assert code == 2 and "given 'null'; expected a device that runs kernels" in text
    monkeypatch.setattr(weft, "devices", lambda: [weft.get_device("cpu")])
    code, text = command()
    assert code == 2 and "without a real GPU" in text and "--device cpu" in text
    for arguments in (["--seconds", "-1"], ["--seconds", "soon"], ["--show", "--reset"]):
        with pytest.raises(SystemExit) as stopped:
            command(*arguments)
        assert stopped.value.code == 2


@pytest.mark.parametrize("setting", ["no limit", "small limit", "no folder", "a file"])
def test_tune_searches_nothing_where_nothing_can_be_kept(setting, command, folder, monkeypatch):
    match setting:
        case "no limit":
            monkeypatch.setenv("WEFT_CACHE_LIMIT", "0")
        case "small limit":
            monkeypatch.setenv("WEFT_CACHE_LIMIT", "100")
        case "no folder":
            monkeypatch.setattr(disk, "folder", lambda: None)
        case "a file":
            folder.write_text("")
    given = finding(monkeypatch, **CHANGES)
    code, text = command("--device", "cpu")
    assert code != 0 and "in which nothing can be kept" in text and not given


def test_a_folder_that_can_be_written_is_left_as_it_was(folder):
    kept_tuning.write(described(), KeptTuning(CHANGES))
    before = sorted(path.name for path in folder.rglob("*.*"))
    kept_tuning.check_writable(described())
    assert sorted(path.name for path in folder.rglob("*.*")) == before and kept_tuning.read(described()) is not None
    with pytest.raises(DeviceError, match="which keeps nothing"):
        kept_tuning.check_writable(described(None))


def test_doctor_says_whether_a_device_is_tuned():
    device = described()
    assert "the defaults of its class; weft tune --device opencl:0" in doctor._tuning(device)
    path = kept_tuning.write(device, KeptTuning(CHANGES))
    said = doctor._tuning(kept_tuning.apply_kept_tuning(device))
    assert said == "found by weft tune (max_tasks, product_speeds)"
    spoil(path)
    assert doctor._tuning(device).startswith(f"{path} is ignored: it is damaged")


def test_the_cache_counts_tunings(capsys):
    kept_tuning.write(described(), KeptTuning(CHANGES))
    assert main(["cache"]) == 0 and "tunings" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0 and kept_tuning.read(described()) is None
