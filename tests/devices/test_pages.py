"""Pages that a new user follows from top to bottom, where `auto` is a GPU: a Trainer moves its model there, and what
the page does next has to be there, too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.core import device as selection

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/gpu.md"])
def test_blocks_run_where_auto_is_a_gpu(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    try:
        device = weft.get_device("opencl")
    except weft.DeviceError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(selection, "_real_gpus", lambda most=None: [device])
    monkeypatch.chdir(tmp_path)
    assert weft.get_device("auto") is device
    names: dict[str, Any] = {"__name__": "page"}
    text = (ROOT / page).read_text().partition("## Other networks")[0]  # which need no device, and minutes to compile
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
