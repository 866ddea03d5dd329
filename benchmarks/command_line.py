"""Command lines as reports show them: without the paths of the machine."""

from __future__ import annotations

from collections.abc import Sequence


def without(words: Sequence[str], *options: str) -> list[str]:
    """A command line less `options`, each of which has one value.

    >>> without(["--cases", "xor", "--json", "there/x.json", "--tiny"], "--json", "--log")
    ['--cases', 'xor', '--tiny']
    """
    skipped = {place + more for place, word in enumerate(words) if word in options for more in (0, 1)}
    return [word for place, word in enumerate(words) if place not in skipped]
