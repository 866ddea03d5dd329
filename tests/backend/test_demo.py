"""The demo is a promise of the README: it trains to 96 % and downloads nothing inside its steps."""

import pytest

from weft import demo

pytestmark = [pytest.mark.backend, pytest.mark.smoke]


@pytest.fixture(scope="module")
def report():
    losses = []
    result = demo.train(epochs=60, batch=64, seed=0, on_epoch=losses.append)
    assert len(losses) == 60 and losses[-1] < losses[0]
    return result


def test_accuracy(report):
    assert report.accuracy >= 0.96


def test_nothing_is_downloaded_in_a_replayed_step(report):
    assert report.downloads_per_step == 0
    assert report.uploads_per_step == 1
    assert report.upload_bytes_per_step == 64 * 8  # one int64 row number for each sample of the batch


def test_same_seed_same_bits():
    first, second = (demo.train(epochs=2, seed=3) for _ in range(2))
    assert (first.loss, first.accuracy) == (second.loss, second.accuracy)


def test_command_line(capsys):
    demo.main(["--epochs", "2", "--batch", "128"])
    text = capsys.readouterr().out
    for word in ("device", "kernels compiled", "compile time", "step time", "downloads per step", "test accuracy"):
        assert word in text
    with pytest.raises(SystemExit):
        demo.main(["--epochs", "0"])
