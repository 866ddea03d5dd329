"""The table of README.md, which `benchmarks/same_training.py` prints, on PoCL and lavapipe."""

import functools
import sys
from pathlib import Path

import pytest

from weft.plan.device import Device

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import same_training

sys.path.pop(0)

DIFFERENCE = 1e-5  # of a loss; the command allows 1e-4, here 5e-7 were seen


@functools.cache
def on_the_cpu(name: str) -> same_training.Outcome:
    return same_training.train(name, "cpu")


@pytest.mark.parametrize("name", same_training.NETWORKS)
def test_training_is_that_of_the_cpu(name: str, emulated: Device):
    row = same_training.compare(name, emulated, on_the_cpu(name))
    assert row.is_good() and row.difference <= DIFFERENCE, row
    assert row.last_loss < row.first_loss
