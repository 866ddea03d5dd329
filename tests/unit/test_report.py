"""The report of a run: self-contained, complete, readable in a real browser, whatever a killed run left behind."""

from __future__ import annotations

import errno
import json
import math
import re
import shutil
from collections import OrderedDict

import numpy as np
import pytest

import weft
import weft.nn as nn
from tests.unit.browser import load, needs_browser, screenshot
from weft import report
from weft.report.files import read_run
from weft.report.page import is_logarithmic
from weft.train import Trainer
from weft.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.unit

SECTIONS = ("curves", "layers", "network", "kernels", "memory", "config", "environment")


def make_run(folder, epochs=6):
    """A run folder with all files, by the public functions."""
    folder.mkdir()
    rows = [
        f"{k},{2.3 * math.exp(-k):.4f},{2.4 * math.exp(-k / 2):.4f},{1 - 1 / (k + 2):.4f},0.001" for k in range(epochs)
    ]
    (folder / "metrics.csv").write_text("epoch,loss,val_loss,accuracy,lr\n" + "\n".join(rows) + "\n")
    steps = [f"{k},{math.exp(-k / 9):.5f},0.001,{0.01 * k}" for k in range(0, 60, 5)]
    (folder / "steps.csv").write_text("step,loss,lr,seconds\n" + "\n".join(steps) + "\n")
    config = {"model": [{"type": "Linear"}], "note": "<script>alert(1)</script>", "trainer": {"epochs": epochs}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "environment.json").write_text(
        json.dumps({"weft": "0.1.0", "device": "cpu", "started": "2026-01-01T10:00:00"})
    )
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))
    update = weft.optim.Adam(model.parameters(), lr=0.01)

    @weft.compile
    def step(x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        update.zero_grad()
        loss.backward()
        update.step()
        return loss

    with weft.device("cpu"):
        x, y = weft.randn(16, 12), weft.randint(0, 3, (16,))
    step(x, y)
    before = [param.numpy().copy() for param in model.parameters()]
    assert report.describe(folder, model, step, [x]) == []
    for one, other in zip(before, model.parameters(), strict=True):
        np.testing.assert_array_equal(one, other.numpy())
    return model


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    with weft.device("cpu"):
        make_run(folder)
    report.write(folder)
    return folder


def test_everything_is_in_it(run):
    text = (run / "report.html").read_text()
    for anchor in SECTIONS:
        assert f'<section id="{anchor}">' in text
    assert "Loss by epoch" in text and "Loss by step" in text and "Accuracy by epoch" in text
    assert "best val loss, epoch 6" in text  # of 6: people count from 1
    assert "0: Linear" in text and "[16, 32]" in text and "416 parameters" in text and "515 parameters in all" in text
    kernels = json.loads((run / "kernels.json").read_text())
    assert all(kernel["name"] in text for kernel in kernels["kernels"])
    memory = json.loads((run / "memory.json").read_text())
    assert memory["peak"] == memory["inputs"] + memory["outputs"] + memory["arena_bytes"] > 0
    assert "prefers-color-scheme:dark" in text


def test_it_needs_nothing_else(run):
    """No script, no address of anything outside, all text escaped."""
    text = (run / "report.html").read_text()
    assert "<script" not in text and "&lt;script&gt;" in text
    addresses = set(re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]+)""", text))
    assert all(address.startswith("#") for address in addresses)
    assert "http://www.w3.org/2000/svg" in text and not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert len(re.findall(r'id="weft-arrow', text)) == 1


@needs_browser
def test_in_a_browser(run, tmp_path):
    page = load(run / "report.html", tmp_path / "profile")
    assert page.complaints == []
    assert page.document.count("<svg") >= 6 and page.document.rstrip().endswith("</html>")
    for words in ("Curves", "Layers", "Network", "Kernel time", "Memory", "Configuration", "Environment"):
        assert re.search(rf"<h2>{words}</h2>", page.document)
    assert "alert(1)" in page.document and "<script" not in page.document


@needs_browser
def test_light_and_dark(run, tmp_path):
    """The page is drawn on the background of the viewer's preference, with text and curves on it."""
    image = pytest.importorskip("PIL.Image")
    means, inks = [], []
    for dark in (False, True):
        target = tmp_path / f"{dark}.png"
        screenshot(run / "report.html", target, tmp_path / "profile", dark)
        pixels = np.asarray(image.open(target).convert("RGB")).astype(int)
        assert pixels.shape[:2] == (1600, 1340)
        background = pixels[2, 2]
        means.append(int(background.mean()))
        inks.append(float((np.abs(pixels - background).max(-1) > 60).mean()))
    assert means[0] > 240 and means[1] < 40
    assert all(0.01 < ink < 0.5 for ink in inks)


def test_a_run_of_the_trainer_has_all_of_it(tmp_path):
    with weft.device("cpu"):
        weft.manual_seed(0)
        x = weft.randn(24, 4)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = weft.optim.SGD(model.parameters(), lr=0.1)
        folder = tmp_path / "run"
        trainer = Trainer(model, nn.MSELoss(), optimizer, device="cpu", run=folder)
        trainer.fit([(x[:12], x[:12, :1]), (x[12:], x[12:, :1])], epochs=2)
    text = (folder / "report.html").read_text()
    for anchor in ("curves", "layers", "network", "kernels", "memory", "config", "environment"):
        assert f'<section id="{anchor}">' in text
    assert "[12, 8]" in text and "0: Linear" in text


def test_resident_data_has_shapes_too(tmp_path):
    with weft.device("cpu"):
        x = weft.randn(20, 4)
        model = nn.Linear(4, 1)
        optimizer = weft.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(model, nn.MSELoss(), optimizer, device="cpu", run=tmp_path / "run")
        data = TensorDataset(x, x[:, :1])
        trainer.fit(DataLoader(data, batch_size=10, shuffle=True), epochs=2)
    layers = json.loads((tmp_path / "run" / "layers.json").read_text())
    assert layers[0]["shapes"] == [[10, 1]] and (tmp_path / "run" / "kernels.json").exists()


class Odd(nn.Module):
    """A model that is called with what no batch has."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x, names):
        return self.inner(x)


def test_a_model_that_cannot_be_drawn_still_has_a_table(tmp_path):
    missing = report.describe(tmp_path, Odd(), None, [weft.zeros(3, 2)])
    assert len(missing) == 1 and "TypeError" in missing[0]
    rows = json.loads((tmp_path / "layers.json").read_text())
    assert [row["kind"] for row in rows] == ["Odd", "Linear"] and rows[1]["parameters"] == 6


@pytest.mark.parametrize(
    "name",
    [
        "metrics.csv",
        "steps.csv",
        "config.json",
        "environment.json",
        "layers.json",
        "memory.json",
        "kernels.json",
        "network.svg",
    ],
)
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "other"])
def test_damaged_files(run, tmp_path, name, damage):
    """What a killed run leaves is left out; the rest is there."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in run.iterdir():
        if path.name != "report.html":
            (folder / path.name).write_bytes(path.read_bytes())
    content = (folder / name).read_bytes()
    if damage == "missing":
        (folder / name).unlink()
    else:
        other = {"empty": b"", "cut": content[: len(content) // 2], "other": b'[1, {"a": null}, "\x00\xff"]\n"x'}
        (folder / name).write_bytes(other[damage])
    text = report.write(folder).read_text()
    assert text.rstrip().endswith("</html>") and "<h1>copy</h1>" in text
    assert not list(folder.glob(".*.part"))


def test_rows_that_are_not_finite(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,loss\n0,1.5\n1,nan\n2,inf\n3,\n4,0.5\n5\nx,2\n")
    text = report.write(tmp_path).read_text()
    assert "Loss by epoch" in text and "nan" not in re.sub(r"<title>.*?</title>", "", text)


def test_no_run(tmp_path):
    with pytest.raises(weft.RangeError, match="the folder of a run"):
        report.write(tmp_path / "nothing")
    with pytest.raises(weft.RangeError, match="without any file of a run"):
        report.write(tmp_path)


def test_a_loss_that_falls_far_has_a_logarithmic_axis():
    assert is_logarithmic("loss", {"loss": [(0, 1.0), (1, 0.001)]})
    assert not is_logarithmic("loss", {"loss": [(0, 1.0), (1, 0.1)]})
    assert not is_logarithmic("loss", {"loss": [(0, 1.0), (1, 0.0)]})
    assert not is_logarithmic("accuracy", {"accuracy": [(0, 1.0), (1, 0.001)]})
    assert not is_logarithmic("loss", {"loss": [(0, math.nan)]})


def test_series(tmp_path):
    (tmp_path / "metrics.csv").write_text(
        'epoch,loss,matrix,seconds\n0,1,"[[1, 2], [3, 4]]",3\n1,0.5,"[[1, 2], [3, 4]]",4\n'
    )
    found = read_run(tmp_path).metrics
    assert found.series("epoch", ("seconds",)) == {"loss": [(0.0, 1.0), (1.0, 0.5)]}
    assert found.last("seconds") == 4


def test_constants_are_numbers_not_curves(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,loss,lr,step\n0,2,0.25,7\n1,2,0.25,14\n")
    text = report.write(tmp_path).read_text()
    assert "Loss by epoch" in text and "Learning rate by epoch" not in text
    assert "<b>0.25</b><span>last learning rate</span>" in text and "<b>14</b><span>steps</span>" in text


@pytest.mark.parametrize(
    "text",
    [
        '<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>',
        '<svg xmlns="http://www.w3.org/2000/svg"><image href="http://x/y.png"/></svg>',
        '<svg xmlns="http://www.w3.org/2000/svg"><g xmlns:x="http://www.w3.org/1999/xlink" x:href="y"/></svg>',
        '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        '<svg xmlns="http://www.w3.org/2000/svg"><style>@import "http://x"</style></svg>',
        '<svg xmlns="http://www.w3.org/2000/svg"><rect fill="url(http://x)"/></svg>',
        '<svg xmlns="http://www.w3.org/2000/svg" style="background:image-set(&quot;http://x&quot; 1x)"/>',
        '<svg xmlns="http://www.w3.org/2000/svg"><rect fill="\\75rl(http://x)"/></svg>',
        '<!DOCTYPE svg [<!ENTITY a "b">]><svg/>',
        "<svg><g>",
    ],
)
def test_pictures_of_others_are_not_shown(run, tmp_path, text):
    """Code in a picture, or anything from elsewhere, would run when somebody opens the report."""
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "network.svg").write_text(text)
    found = report.write(folder).read_text(encoding="utf-8")
    assert text not in found and "http://x" not in found and "network.svg could not be read" in found


def test_pictures_of_weft_are_shown(run):
    from weft.report.files import is_picture

    assert is_picture((run / "network.svg").read_text(encoding="utf-8"))
    named = nn.Sequential(OrderedDict(image_encoder=nn.Linear(2, 2), act=nn.ReLU()))
    assert is_picture(nn.plot(named, input_shape=(2,)))


@pytest.mark.parametrize(
    "value", [None, True, -1, 1e999, float("nan"), 2**61, 3e7, 10**200, "x", [], {}, [[]], [{}]], ids=repr
)
def test_any_values_in_the_files_of_a_run(run, tmp_path, value):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    for name in ("memory.json", "kernels.json", "layers.json"):
        tree = json.loads((run / name).read_text())
        rows = tree if isinstance(tree, list) else [tree, *[one for one in tree.values() if isinstance(one, list)]]
        for row in rows:
            inner = row[0] if isinstance(row, list) and row else row
            for key in list(inner) if isinstance(inner, dict) else range(len(inner)):
                before, inner[key] = inner[key], value
                (folder / name).write_text(json.dumps(tree))
                report.write(folder)
                inner[key] = before
        shutil.copy(run / name, folder / name)


def test_backslashes_of_a_configuration_stay(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    (folder / "config.json").write_text(json.dumps({"path": "C:\\new", "text": "a\nb"}))
    found = report.write(folder).read_text(encoding="utf-8")
    assert "C:\\\\new" in found and "a\n    b" in found


def test_what_is_alive_is_drawn_where_it_changes():
    from weft.drawing.memory import _live_ranges, memory_map

    intervals = [("a", 0, 8, 0, 2), ("b", 8, 4, 2, 5)]
    assert _live_ranges(intervals, 6) == [(0, 2, 8), (2, 3, 12), (3, 6, 4)]
    assert len(memory_map(intervals, 2**60, 10**9, "x")) < 20_000


def test_a_report_that_cannot_be_written_lets_the_run_be(tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("weft.report.files.put", full)
    monkeypatch.setattr("weft.report.details.put", full)
    model = nn.Linear(3, 2)
    trainer = weft.train.Trainer(
        model, nn.MSELoss(), weft.optim.SGD(model.parameters(), 0.1), run=tmp_path, device="cpu"
    )
    with pytest.warns(UserWarning, match="the report of .* could not be written"):
        trainer.fit([(weft.ones(4, 3), weft.ones(4, 2))], epochs=1)
    assert trainer.step_count == 1
