"""The eight networks that ship with Weft, one per layer type of the dialect; `weft parity` runs them."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from weft.base.errors import RangeError, problem

NAMES = ("dense", "layer_norm", "rms_norm", "softmax", "conv1d", "conv2d", "swiglu", "rnn")


def samples() -> list[str]:
    """The names of the sample networks.

    >>> weft.config.samples()[:3]
    ['dense', 'layer_norm', 'rms_norm']
    """
    return list(NAMES)


def sample(name: str) -> dict[str, Any]:
    """The configuration of a sample network.

    >>> weft.config.sample("rnn")["layers"][1]
    {'type': 'rnn', 'input_size': 64, 'hidden_size': 64, 'seq_length': 8}
    """
    if name not in NAMES:
        raise problem(RangeError, "sample", f"the name {name!r}", f"one of {', '.join(NAMES)}")
    return json.loads(resources.files("weft.config").joinpath(f"sample_files/{name}.json").read_text("utf-8"))
