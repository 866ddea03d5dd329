"""README and docs keep their word: Python blocks run, commands and files exist, tables and maps agree with the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from weft.cli.main import COMMANDS, parser
from weft.graph.primitives import PRIMITIVES

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
PAGES = {path.name: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
BLOCKS = {
    name: re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL) for name, text in PAGES.items()
}


def test_pages_have_examples():
    assert {"README.md", "loops.md", "memory.md", "caching.md", "custom-kernels.md", "dtypes.md", "data.md"} <= {
        name for name, blocks in BLOCKS.items() if blocks
    }


@pytest.mark.parametrize("name", [name for name, blocks in BLOCKS.items() if blocks])
def test_python_blocks_run(name, tmp_path):
    """All blocks of a page in one fresh interpreter, as a reader would paste them; warnings are errors here too."""
    script = tmp_path / "page.py"
    script.write_text("\n".join(BLOCKS[name]))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "WEFT_CACHE_DIR": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert result.returncode == 0, result.stderr


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    mentioned = set(re.findall(r"\bmake ([a-z-]+)", README))
    assert {"demo", "test", "lint", "bench"} <= mentioned <= targets


@pytest.mark.parametrize("name", PAGES)
def test_commands_exist(name):
    """`weft cache clear` and its like; a line of code that begins with `weft.` is no command."""
    for command in re.findall(r"(?:^|`)weft ([a-z][a-z ]*?)(?=`|  |$)", PAGES[name], flags=re.MULTILINE):
        words = command.split()
        assert words[0] in COMMANDS, command
        if len(words) > 1:
            parser(words[0]).parse_args(words)


@pytest.mark.parametrize("name", PAGES)
def test_linked_files_exist(name):
    folder = ROOT if name == "README.md" else ROOT / "docs"
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", PAGES[name])
    assert [link for link in links if not (folder / link).exists()] == []


def test_every_page_is_linked_from_the_readme():
    assert [name for name in PAGES if name != "README.md" and f"(docs/{name})" not in README] == []


def section(title: str) -> str:
    return ARCHITECTURE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_table_of_primitives_has_each_once():
    text = section("Primitives")
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    listed = Counter(name for cell in cells for names in re.findall(r"`([^`]+)`", cell) for name in names.split())
    own = {
        "block_attention",
        "block_attention_backward",
        "block_product",
        "conv_tiles",
        "conv_weight_tiles",
        "copy",
        "bucket_rows",
        "fold_terms",
        "library",
        "merge_runs",
        "number",
        "product",
        "product_pair",
        "put_rows",
        "scatter_parts",
        "scratch",
        "segment_prod",
        "sort_rows",
        "sort_runs",
        "write_rows",
    }
    made = {
        name for name in PRIMITIVES if name in own or name.startswith("partial_")
    }  # by the compiler, if it is loaded
    assert set(listed) == set(PRIMITIVES) - made and set(listed.values()) == {1}
    assert [name for name in own if f"`{name}`" not in text] == []


def test_the_map_of_the_house_names_every_file():
    """Each module stands in the line of its folder (an `__init__` needs none), and nothing else does."""
    listed: dict[str, set[str]] = {}
    folder = ""
    for line in re.search(r"^```\nweft/\n(.*?)^```", ARCHITECTURE, flags=re.MULTILINE | re.DOTALL)[1].splitlines():
        head = re.match(r"  ([a-z/]+/)? *\S", line)
        if head and line[2] != " ":
            folder = head[1] or ""
        listed.setdefault(folder, set()).update(re.findall(r"\b(?:vendor/|held/|utils/)?\w+\.py\b", line))
    found: dict[str, set[str]] = {}
    for path in (ROOT / "weft").rglob("*.py"):
        room, *rest = path.relative_to(ROOT / "weft").parts
        if path.name != "__init__.py":
            found.setdefault(f"{room}/" if rest else "", set()).add("/".join(rest) or room)
    assert listed == found
