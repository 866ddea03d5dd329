"""A real browser for tests of pages: headless Chromium as Debian packages it. Tests skip where there is none."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")


class Page:
    """What the browser made of a file: its document after loading, and what it logged."""

    def __init__(self, document: str, log: str):
        self.document, self.log = document, log

    @property
    def complaints(self) -> list[str]:
        """Messages of the console, and what could not be loaded."""
        return [line for line in self.log.splitlines() if re.search(r":CONSOLE[:(\]]|ERR_[A-Z_]+|net_error", line)]


def load(path: Path, profile: Path, dark: bool = False) -> Page:
    """Open a file and return its document. `profile` is a folder for the browser's own files."""
    done = _run(["--dump-dom", "--enable-logging=stderr", "--v=0", path.as_uri()], profile, dark)
    return Page(done.stdout, done.stderr)


def screenshot(
    path: Path, target: Path, profile: Path, dark: bool = False, size: tuple[int, int] = (1340, 1600)
) -> None:
    """Draw a file into a PNG picture."""
    width, height = size
    _run([f"--screenshot={target}", f"--window-size={width},{height}", path.as_uri()], profile, dark)


def _run(arguments: list[str], profile: Path, dark: bool) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    scheme = 0 if dark else 1
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
        "--disable-dev-shm-usage",  # containers have 64 MB there
        "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND",  # there is no network
        f"--blink-settings=preferredColorScheme={scheme}", f"--user-data-dir={profile}", *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done
