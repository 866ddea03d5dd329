"""What arguments of commands may be, checked before any work is done: numbers as types of argparse, and where results
are written to."""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from pathlib import Path

from weft.base.errors import ConfigError, problem


def parse_positive(text: str) -> int:
    """A number that counts something: a whole number of at least 1."""
    return _parse_integer(text, 1)


def depth(text: str) -> int:
    """A number of levels: a whole number of at least 0."""
    return _parse_integer(text, 0)


def _parse_integer(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{text} is not {least} or more")
    return number


def amount(text: str) -> float:
    """A number of seconds, or a tolerance: finite, and not negative."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not math.isfinite(number) or number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return number


def check_output_file(option: str, path: str | None, *endings: str) -> None:
    """Refuse a file that cannot be written, or whose name has none of the endings."""
    if path is None:
        return
    if endings and not path.endswith(endings):
        raise problem(ConfigError, option, repr(path), f"a name that ends in {' or '.join(endings)}")
    _check_name(option, path)
    folder = Path(path).parent
    if not folder.is_dir():
        given = f"{path!r} in {str(folder)!r}, which is no folder"
        raise problem(ConfigError, option, given, "a file in a folder that exists", "make the folder first")
    if Path(path).is_dir():
        raise problem(ConfigError, option, f"{path!r}, a folder", "the name of a file")
    if Path(path).exists() and not os.access(path, os.W_OK):
        raise problem(ConfigError, option, f"{path!r}, which may not be written to", "a file that may")
    _check_writing(option, path, folder)


def check_output_folder(option: str, path: str | os.PathLike[str] | None) -> None:
    """Refuse a folder that is not there and cannot be made, or in which no file can be written."""
    if path is None:
        return
    _check_name(option, str(path))
    existing = next(one for one in (Path(path), *Path(path).absolute().parents) if os.path.lexists(one))
    if not existing.is_dir():
        raise problem(ConfigError, option, f"{str(path)!r}: {str(existing)!r} is a file", "a folder, which may be new")
    _check_writing(option, str(path), existing)


def _check_name(option: str, path: str) -> None:
    if not path or "\0" in path:
        raise problem(ConfigError, option, repr(path), "a name")


def _check_writing(option: str, path: str, folder: Path) -> None:
    """Make a file without a name in a folder: file systems that are read-only refuse it to the administrator, too."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        given = f"{path!r}, but {str(folder)!r} may not be written to ({error.strerror})"
        raise problem(ConfigError, option, given, "a folder that may") from None
