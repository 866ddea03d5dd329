"""The README keeps its word: its Python blocks run, its commands exist, and it names no machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_readme_has_an_example():
    assert BLOCKS


def test_python_blocks_run(tmp_path):
    """All blocks in order in one fresh interpreter, as a reader would paste them; warnings are errors here too."""
    script = tmp_path / "readme.py"
    script.write_text("\n".join(BLOCKS))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "WEFT_CACHE_DIR": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert result.returncode == 0, result.stderr


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    mentioned = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert {"demo", "test", "lint", "bench"} <= mentioned <= targets


def test_linked_files_exist():
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", README)
    assert links and [link for link in links if not (ROOT / link).exists()] == []
