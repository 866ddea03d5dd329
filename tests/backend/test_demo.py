"""The demo is a promise of the README: it trains to 96 %, moves nothing inside its steps, and leaves a report."""

import pytest

from weft import demo
from weft.train import Callback

pytestmark = [pytest.mark.backend, pytest.mark.smoke]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    losses = Losses()
    result = demo.train(epochs=60, batch=64, seed=0, callbacks=[losses], run=tmp_path_factory.mktemp("demo"))
    assert len(losses.values) == 60 and losses.values[-1] < losses.values[0]
    return result


class Losses(Callback):
    def __init__(self):
        self.values = []

    def on_epoch_end(self, trainer, epoch, metrics):
        self.values.append(metrics["loss"])


def test_accuracy(report):
    assert report.accuracy >= 0.96


def test_nothing_is_moved_in_a_replayed_step(report):
    assert report.uploads_per_step == 0
    assert report.downloads_per_step <= 1 / 44  # a line of steps.csv every 50 steps, and never two in an epoch of 22
    assert demo.train(epochs=3).downloads_per_step == 0


def test_it_leaves_a_report(report):
    page = report.page.read_text()
    assert "<svg" in page and "Linear" in page and "last val accuracy" in page  # what the terminal says, too
    assert len((report.page.parent / "metrics.csv").read_text().splitlines()) == 61


def test_same_seed_same_bits():
    first, second = (demo.train(epochs=2, seed=3) for _ in range(2))
    assert (first.loss, first.accuracy) == (second.loss, second.accuracy)


def test_command_line(capsys, tmp_path):
    demo.main(["--epochs", "2", "--batch", "128", "--run", str(tmp_path)])
    text = capsys.readouterr().out
    assert "report:" in text and (tmp_path / "report.html").exists()
    for word in ("device", "kernels compiled", "compile time", "step time", "downloads per step", "test accuracy"):
        assert word in text
    with pytest.raises(SystemExit):
        demo.main(["--epochs", "0"])
