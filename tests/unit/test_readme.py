"""README and docs keep their word: Python blocks run, commands and files exist, tables and maps agree with the code."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from weft.cli.main import COMMANDS, parser
from weft.compiler.primitives import COMPILER_PRIMITIVES
from weft.graph.primitives import PRIMITIVES

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]


def script(path: str):
    """A script of the repository, imported."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


module_map = script("tools/module_map.py")

README = (ROOT / "README.md").read_text()
PRIMITIVES_PAGE = (ROOT / "docs" / "primitives.md").read_text()
SITE = (ROOT / "mkdocs.yml").read_text()
PAGES = {
    path.relative_to(ROOT).as_posix().removeprefix("docs/"): path.read_text()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}
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
    page = folder_of(name) / name
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", PAGES[name])
    assert [link for link in links if not (page.parent / link).exists()] == []


def folder_of(name: str) -> Path:
    return ROOT if name in ("README.md", "CONTRIBUTING.md") else ROOT / "docs"


def anchors(text: str) -> set[str]:
    """The anchors that headings of a page have, as GitHub and the site make them."""
    titles = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", PAGES)
def test_linked_sections_exist(name):
    missing = []
    for page, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", PAGES[name]):
        target = (folder_of(name) / name).parent / page if page else folder_of(name) / name
        if target.suffix == ".md" and anchor not in anchors(target.read_text()):
            missing.append(f"{page}#{anchor}")
    assert missing == []


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ("modules.md", "history.md")])
def test_named_files_exist(name):
    """`graph/primitives.py` and its like: paths in the repository, or the ends of such paths."""
    files = {path.relative_to(ROOT).as_posix() for folder in ("weft", "tests", "tools", "benchmarks", "examples", ".ci")
             for path in (ROOT / folder).rglob("*") if path.is_file()}  # fmt: skip
    named = re.findall(r"`((?:[\w.]+/)+\w+\.(?:pyi?|json|txt))`", PAGES[name])
    assert [path for path in named if not any(f"/{one}".endswith(f"/{path}") for one in files)] == []


STAGES = ("backends", "compiler", "core", "jit", "kernels", "render")
KEYS_IN_FILES = {"weft.format", "weft.model", "weft.sha256", "weft.state"}  # metadata of safetensors files


def is_defined(name: str) -> bool:
    """Whether a dotted name is a module of Weft, or something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def test_named_modules_exist():
    """`weft.plan.protocols.Backend` and `kernels.cpu.schedule` and their like, in pages and in the text of modules."""
    pages = {name: text for name, text in PAGES.items() if name not in ("history.md", "modules.md")}
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "weft").rglob("*.py"))}
    dotted = re.compile(rf"`((?:weft|{'|'.join(STAGES)})(?:\.\w+)+)(?:\([^`]*\))?`")
    named = {(file, name) for file, text in (pages | sources).items() for name in dotted.findall(text)}
    named = {(file, name) for file, name in named if name not in KEYS_IN_FILES and not name.endswith((".py", ".json"))}
    assert len(named) > 500
    assert [one for one in sorted(named) if not is_defined(f"weft.{one[1].removeprefix('weft.')}")] == []


def test_every_page_is_in_the_menu_of_the_site_and_linked_from_the_readme():
    nav = set(re.findall(r": ([\w./-]+\.md)$", SITE.split("\nnav:\n")[1], flags=re.MULTILINE))
    pages = {name for name in PAGES if name not in ("README.md", "CONTRIBUTING.md")}
    written = {name for name in nav if not name.startswith(("api/", "repository/")) and name != "index.md"}
    assert written == pages
    assert [name for name in pages if f"(docs/{name})" not in README and name != "habits.md"] == []
    assert {name for name in nav if name.startswith("api/")} == {
        f"api/{name}.md" for name in script("tools/reference.py").MODULES
    }


def test_ten_lines_train():
    lines = [line for line in BLOCKS["README.md"][0].splitlines() if line.strip()]
    assert len(lines) == 10 and "fit(" in lines[-2]


def test_the_reference_has_every_public_name():
    """The pages of the API, which the site makes: each name of `__all__` can be loaded and has its entry."""
    reference = script("tools/reference.py")
    for name in reference.MODULES:
        text = reference.page(name)
        assert f"# {name}\n" in text
        for member in reference.public_names(reference.resolve(name)):
            assert f"`{member}`" in text or inspect.ismodule(getattr(reference.resolve(name), member)), (name, member)


@pytest.mark.parametrize("path", ["tools/site_hooks.py", "tools/reference.py", "tools/module_map.py"])
def test_examples_of_tools(path):
    module = script(path)
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_files_of_the_site_are_found():
    """Files outside of docs/ that pages link to become pages of the site."""
    hooks = script("tools/site_hooks.py")
    found = hooks.repository_files()
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "examples/xor.py"} <= set(found)
    assert hooks.rewrite("index.md", PAGES["README.md"]).count("(docs/") == 0


def test_pictures_are_fresh():
    pictures = script("tools/pictures.py")
    for name, draw in pictures.PICTURES.items():  # `make pictures` writes them
        assert (pictures.FOLDER / name).read_text() == draw(), name
    names = [file for _, stages in pictures.ROWS for _, _, files in stages for file in files]
    files = [path.as_posix() for path in (ROOT / "weft").rglob("*.py")]
    assert [name for name in names if not any(file.endswith(f"/{name}") for file in files)] == []


def test_every_advice_is_measured():
    """The table of the performance page is what `make advice` measures, with the ratios of the recorded run."""
    page, advice = PAGES["performance.md"], script("benchmarks/advice.py")
    (file,) = re.findall(r"\(\.\./(benchmarks/results/[\w.-]+-advice\.json)\)", page)
    measured = json.loads((ROOT / file).read_text())["advice"]
    assert measured.keys() == advice.ADVICE.keys() | advice.MEMORY.keys()
    rows = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+) \|$", page, flags=re.MULTILINE))
    assert rows == {words: f"{one['ratio']:.1f}" for words, one in measured.items()}
    assert all(one["ratio"] > 1.1 for one in measured.values())


def test_the_comparison_is_what_was_measured():
    (file,) = re.findall(r"\((benchmarks/results/[\w.-]+-comparison\.json)\)", README)
    found = json.loads((ROOT / file).read_text())["frameworks"]
    for one in found.values():
        assert f"{one['installed_megabytes']:.0f} MB, {len(one['packages'])} package" in README
    row = next(line for line in README.splitlines() if line.startswith("| compiled result has the bits"))
    answers = [
        {True: "yes", False: "no"}[found[name]["compiled_has_the_bits_of_eager"]] for name in ("weft", "torch", "jax")
    ]
    assert [cell.strip() for cell in row.split("|")[2:5]] == answers


def test_the_table_of_primitives_has_each_once():
    text = PRIMITIVES_PAGE
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    listed = Counter(name for cell in cells for names in re.findall(r"`([^`]+)`", cell) for name in names.split())
    assert set(listed) <= set(PRIMITIVES) and set(listed.values()) == {1}
    others = [PRIMITIVES[name] for name in set(PRIMITIVES) - set(listed)]  # their rows say all there is to say
    assert all(row.kind == "elementwise" and row.attributes is tuple for row in others)
    own = {"partial_*" if name.startswith("partial_") else name for name in COMPILER_PRIMITIVES}
    assert [name for name in own if f"`{name}`" not in text] == []


def test_the_page_of_modules_is_fresh():
    assert module_map.PAGE.read_text() == module_map.page()  # `make modules` writes it


@pytest.mark.parametrize("path", sorted((ROOT / "weft").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_each_module_says_what_it_is_for(path):
    assert module_map.summary(path) or path.name in ("__init__.py", "__main__.py")
