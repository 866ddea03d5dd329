"""Hooks of MkDocs (mkdocs.yml): the README as the first page, the API reference, and files outside of docs/ as pages.

Pages link to files of the repository by relative paths, so that links work in a checkout; here a link that leaves docs/
becomes one to a copy of that file in the site. Nothing in docs/ is changed. `make docs` builds with --strict: a link
that leads nowhere is an error.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

LINK = re.compile(r"(\]\(|src=\")(?!https?:|#|mailto:)([^)#\"]+)")
OUTSIDE = "repository"  # the folder of the site that has copies of files outside of docs/


def source_of(page: str) -> str:
    """The path in the repository of the page with that path in the site."""
    if page == "index.md":
        return "README.md"
    return page.removeprefix(f"{OUTSIDE}/") if page.startswith(f"{OUTSIDE}/") else f"docs/{page}"


def site_path(source: str) -> str:
    """The path in the site of a file of the repository.

    >>> site_path("docs/gpu.md"), site_path("README.md"), site_path("examples/xor.py")
    ('gpu.md', 'index.md', 'repository/examples/xor.py')
    """
    if source == "README.md":
        return "index.md"
    return source.removeprefix("docs/") if source.startswith("docs/") else f"{OUTSIDE}/{source}"


def links(page: str, text: str) -> list[tuple[str, str]]:
    """The relative links of a page: what is written, and the path in the repository that it means."""
    folder = posixpath.dirname(source_of(page))
    return [(link, posixpath.normpath(posixpath.join(folder, link))) for _, link in LINK.findall(text)]


def rewrite(page: str, text: str) -> str:
    """The text with links that work in the site.

    >>> rewrite("gpu.md", "[numbers](../benchmarks/results/a.md) [memory](memory.md)")
    '[numbers](repository/benchmarks/results/a.md) [memory](memory.md)'
    """
    folder = posixpath.dirname(source_of(page))

    def renewed(match: re.Match[str]) -> str:
        target = site_path(posixpath.normpath(posixpath.join(folder, match[2])))
        return match[1] + posixpath.relpath(target, posixpath.dirname(page) or ".")

    return LINK.sub(renewed, text)


def repository_files() -> list[str]:
    """Files outside of docs/ that pages link to, directly or through another such page."""
    waiting = ["README.md", *(f"docs/{path.relative_to(ROOT / 'docs')}" for path in (ROOT / "docs").rglob("*.md"))]
    found = set(waiting)
    while waiting:
        source = waiting.pop()
        if not source.endswith(".md"):
            continue
        for _, target in links(site_path(source), (ROOT / source).read_text()):
            if target not in found and (ROOT / target).is_file():
                found.add(target)
                waiting.append(target)
    return sorted(source for source in found if not source.startswith("docs/"))


def on_files(files: Any, config: Any) -> Any:
    """Adds pages that are not in docs/."""
    sys.path.insert(0, str(ROOT / "tools"))
    import reference
    from mkdocs.structure.files import File

    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    for source in repository_files():
        files.append(File.generated(config, site_path(source), abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Makes the links of a page those of the site."""
    path = page.file.src_uri
    return markdown if path.startswith("api/") else rewrite(path, markdown)
