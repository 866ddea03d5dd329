"""Errors about data files, and the packages that readers need: who, which file, where in it, what was expected."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from weft.base.errors import WeftError, problem

__all__ = ["DataError", "MissingDataError", "MissingPackageError"]

Source = str | os.PathLike[str]


class DataError(WeftError, ValueError):
    """A data file that is damaged, truncated or of another format, or data that do not make sense."""


class MissingDataError(DataError, FileNotFoundError):
    """A data file or folder that is not there."""

    def __str__(self) -> str:
        return str(self.args[0])


class MissingPackageError(WeftError, ImportError):
    """An optional package that a reader needs."""


def find_file(who: str, path: Source) -> Path:
    """A path that is a file, or an error."""
    found = Path(path)
    if not found.is_file():
        what = "a folder" if found.is_dir() else "which does not exist"
        raise problem(MissingDataError, who, f"{str(found)!r}, {what}", "a file", "check the path")
    return found


def find_folder(who: str, path: Source) -> Path:
    """A path that is a folder, or an error."""
    found = Path(path)
    if not found.is_dir():
        what = "a file" if found.exists() else "which does not exist"
        raise problem(MissingDataError, who, f"{str(found)!r}, {what}", "a folder", "check the path")
    return found


def read_bytes(who: str, path: Source) -> bytes:
    """The bytes of a file, or an error of ours."""
    found = find_file(who, path)
    try:
        return found.read_bytes()
    except OSError as error:
        raise problem(DataError, who, f"{str(found)!r}, which cannot be read ({error})", "a readable file") from None


def need_package(who: str, module: str, package: str) -> Any:
    """Import an optional package, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        given = f"no package {package!r}"
        raise problem(
            MissingPackageError, who, given, "it to be installed", f"pip install {package}, or weft[data] for all"
        ) from None


def check_labels(who: str, path: Any, labels: Any, classes: int) -> None:
    """Labels must be numbers below `classes`."""
    if len(labels) and not (0 <= int(labels.min()) and int(labels.max()) < classes):
        wrong = next(k for k, label in enumerate(labels.tolist()) if not 0 <= label < classes)
        given = f"{str(path)!r} with label {labels[wrong]} at sample {wrong}"
        raise problem(DataError, who, given, f"labels from 0 to {classes - 1}")
