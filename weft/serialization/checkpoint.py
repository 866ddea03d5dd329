"""CheckpointFolder: the checkpoints of a run, of which the newest complete one can always be loaded.

    checkpoints/
      step-00001200/
        tensors.safetensors    all tensors of the run's state, with a SHA-256 of themselves
        state.json             {"format": 1, "step", "epoch", "metric", "saved", "state", "tensors", "sha256"}

`state` is the rest of the run's state; `tensors` is the digest of the other file and `sha256` that of state.json, so
that files of two checkpoints cannot be mixed up. A checkpoint is written under a temporary name, flushed to the disk
and renamed; one that is taken away is renamed first. So a folder called `step-N` is complete at every moment, whatever
was interrupted; if the disk damaged it later, the digests tell. One process at a time writes to a folder.

Where step N is saved again, the old one is called `step-N.replaced` while the new one takes its name; it counts as long
as that has not happened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import shutil
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.base import files
from weft.base.errors import CheckpointWarning, DTypeError, FileError, FileFormatError, RangeError, problem
from weft.base.files import PathLike, as_path, damaged_file, failed_write
from weft.core.device import get
from weft.core.tensor import Tensor
from weft.serialization.nested import JSON
from weft.serialization.safetensors import TensorFile, open_tensors, write_tensors

FORMAT = 1
TENSORS, STATE = "tensors.safetensors", "state.json"
DEPTH = 200  # levels of nesting in a state
FIELDS = {"format", "step", "epoch", "metric", "saved", "state", "tensors", "sha256"}

_NAME = re.compile(r"step-(\d{8,18})(\.replaced)?")


@dataclass(frozen=True)
class Checkpoint:
    """What `CheckpointFolder.load` returns: all that was saved at a step."""

    step: int
    tensors: dict[str, Tensor] = field(repr=False)
    state: JSON = field(repr=False)
    metric: float | None
    epoch: int | None
    path: Path


class CheckpointFolder:
    """Checkpoints of a run in one folder. `save` keeps the last `keep_last` of them (None: all) and the `keep_best`
    with the best metric, which is the least (`mode="min"`) or the greatest (`mode="max"`).

    >>> import tempfile
    >>> from weft.serialization import CheckpointFolder
    >>> folder = CheckpointFolder(tempfile.mkdtemp(), keep_last=2)
    >>> for step in (10, 20, 30):
    ...     path = folder.save(step, {"w": weft.ones(2) * step}, {"epoch": 1}, metric=1 / step)
    >>> [one.name for one in folder.paths()]
    ['step-00000020', 'step-00000030']
    >>> folder.load().tensors["w"]
    tensor([30., 30.])
    """

    def __init__(self, path: PathLike, keep_last: int | None = 3, keep_best: int = 1, mode: str = "min"):
        who = "CheckpointFolder"
        if keep_last is not None and (type(keep_last) is not int or keep_last < 1):
            raise problem(RangeError, who, f"keep_last={keep_last!r}", "a number of at least 1, or None for all")
        if type(keep_best) is not int or keep_best < 0:
            raise problem(RangeError, who, f"keep_best={keep_best!r}", "a number of at least 0")
        if mode not in ("min", "max"):
            raise problem(RangeError, who, f"mode={mode!r}", "'min' or 'max'")
        self.path = as_path(who, path)
        self.keep_last, self.keep_best, self.mode = keep_last, keep_best, mode
        self._verified: dict[Path, tuple[Any, ...]] = {}  # by the times and sizes of the files

    # ---- writing -----------------------------------------------------------------------------------------------------

    def save(self, step: int, tensors: Mapping[str, Tensor], state: JSON, metric: float | None = None) -> Path:
        """Write a checkpoint, take away those that are no longer to be kept, and return its folder. After an error, a
        full disk for example, everything is as before."""
        if type(step) is not int or not 0 <= step < 10**18:
            raise problem(RangeError, "CheckpointFolder.save", f"step={step!r}", "an int of at least 0")
        metric = None if metric is None else float(metric)
        _check_json(state, "state", 0)
        target = self.path / f"step-{step:08d}"
        temporary = self.path / files.temporary_name()
        try:
            if not self.path.is_dir():
                files.os.makedirs(self.path, exist_ok=True)
                files.sync_folder(self.path.parent)
            self._remove_leftovers()
            files.os.mkdir(temporary)
            try:
                self._write(temporary, step, tensors, state, metric)
                self._put_in_place(temporary, target)
            except BaseException:
                _remove_tree(temporary)
                raise
            self._prune(target)
        except FileError:
            raise
        except OSError as error:
            raise failed_write("CheckpointFolder.save", target, error) from error
        self._verified[target] = _signature(target)
        return target

    def _write(self, folder: Path, step: int, tensors: Mapping[str, Tensor], state: JSON, metric: float | None) -> None:
        with files.create(folder / TENSORS) as handle:
            digest = write_tensors(handle, tensors, {"weft.format": str(FORMAT)})
        epoch = state.get("epoch") if isinstance(state, dict) else None
        content: dict[str, Any] = {
            "format": FORMAT, "step": step, "epoch": epoch if type(epoch) is int else None,
            "metric": metric if metric is None or math.isfinite(metric) else repr(metric),
            "saved": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "state": state, "tensors": digest,
        }  # fmt: skip
        content["sha256"] = _digest(content)
        text = json.dumps(content, indent=1, allow_nan=False)
        with files.create(folder / STATE) as handle:
            files.write_all(handle, text.encode("utf-8"))
        files.sync_folder(folder)

    def _put_in_place(self, temporary: Path, target: Path) -> None:
        replaced = target.with_name(target.name + ".replaced")
        if target.exists():
            _remove(replaced)
            files.os.rename(target, replaced)
        try:
            files.os.rename(temporary, target)
        except OSError:
            if replaced.exists():
                files.os.rename(replaced, target)
            raise
        files.sync_folder(self.path)
        _remove(replaced)

    def _remove_leftovers(self) -> None:
        """Take away what a process that was killed has left behind."""
        for path in self.path.iterdir():
            if path.name.startswith(".weft-") and path.name.endswith(files.TEMPORARY):
                _remove_tree(path)
            elif _NAME.fullmatch(path.name) and path.suffix:  # interrupted while step-N was saved again
                if path.with_suffix("").exists():
                    _remove(path)
                else:
                    files.os.rename(path, path.with_suffix(""))

    def _prune(self, newest: Path) -> None:
        steps = self._steps()
        if self.keep_last is None:
            return
        kept = {newest, *[path for _, path in steps[-self.keep_last :]]}
        kept |= {path for _, path in self._rank()[: self.keep_best]}
        for _, path in steps:
            if path not in kept:
                _remove(path)
                self._verified.pop(path, None)

    # ---- finding -----------------------------------------------------------------------------------------------------

    def paths(self) -> list[Path]:
        """The folders of all checkpoints, from the first step to the last; damaged ones, too."""
        return [path for _, path in self._steps()]

    def latest(self) -> Path | None:
        """The newest complete checkpoint, or None where there is none. Damaged ones are left out with a warning."""
        return next((path for _, path in reversed(self._steps()) if self._is_complete(path)), None)

    def best(self) -> Path | None:
        """The complete checkpoint with the best metric, the newest of equals; None where none has one."""
        return next((path for _, path in self._rank() if self._is_complete(path)), None)

    def _steps(self) -> list[tuple[int, Path]]:
        found: dict[int, Path] = {}
        if self.path.is_dir():
            for path in sorted(self.path.iterdir(), reverse=True):  # step-1.replaced comes before step-1
                match = _NAME.fullmatch(path.name)
                if match and path.is_dir():
                    found[int(match[1])] = path
        return sorted(found.items())

    def _rank(self) -> list[tuple[float, Path]]:
        """Checkpoints that have a metric, the best first, of equals the newest."""
        found = []
        for step, path in self._steps():
            with contextlib.suppress(FileFormatError, OSError):
                metric = _metric(path, _read_state(path)["metric"])
                if metric is not None and not math.isnan(metric):
                    found.append((metric if self.mode == "min" else -metric, -step, path))
        return [(metric, path) for metric, _, path in sorted(found)]

    def _is_complete(self, path: Path) -> bool:
        try:
            self._open(path)
        except (FileFormatError, OSError) as error:
            warnings.warn(f"the checkpoint {path} is left out: {error}", CheckpointWarning, stacklevel=4)
            return False
        return True

    # ---- reading -----------------------------------------------------------------------------------------------------

    def load(self, path: PathLike | None = None, device: Any = None) -> Checkpoint:
        """A checkpoint, the newest complete one unless `path` names another, with its tensors on `device`. One that is
        damaged, or no checkpoint, is an error, and nothing of it is returned."""
        if path is None:
            path = self.latest()
            if path is None:
                given = f"the folder {str(self.path)!r}, which has no complete checkpoint"
                raise problem(FileFormatError, "CheckpointFolder.load", given, "one", "start without resume")
        where = as_path("CheckpointFolder.load", path)
        target = get(device)
        content, opened = self._open(where)
        metric = _metric(where, content["metric"])
        return Checkpoint(content["step"], opened.tensors(target), content["state"], metric, content["epoch"], where)

    def _open(self, path: Path) -> tuple[dict[str, Any], TensorFile]:
        """Read and verify a checkpoint."""
        content = _read_state(path)
        if not (path / TENSORS).is_file():
            raise damaged_file("load", path, f"it has no {TENSORS}", "a checkpoint of CheckpointFolder")
        opened = open_tensors(path / TENSORS)
        if opened.digest != content["tensors"]:
            raise damaged_file("load", path, f"{TENSORS} is not the one that {STATE} was written with")
        signature = _signature(path)
        if self._verified.get(path) != signature:
            opened.verify()
            self._verified[path] = signature
        return content, opened


def _read_state(path: Path) -> dict[str, Any]:
    """The contents of a state.json, which is what was written."""
    who, expected = "load", "a checkpoint of CheckpointFolder"
    if not path.is_dir() or not (path / STATE).is_file():
        raise damaged_file(who, path, f"it is no folder with a {STATE}", expected)
    content = files.parse_json(who, path / STATE, files.read_bytes(path / STATE), "it")
    if not isinstance(content, dict) or type(content.get("format")) is not int:
        raise damaged_file(who, path / STATE, "it has no format version", expected)
    if content["format"] != FORMAT:
        fix = "a newer Weft wrote it: use that to read it"
        raise damaged_file(who, path / STATE, f"it has the format {content['format']}", f"format {FORMAT}", fix)
    if set(content) != FIELDS or content.pop("sha256") != _digest(content):
        raise damaged_file(who, path / STATE, "its contents do not match its SHA-256, so it is damaged")
    if type(content["step"]) is not int or type(content["epoch"]) not in (int, type(None)):
        raise damaged_file(who, path / STATE, "its step or epoch is no number", expected)
    return content


def _check_json(value: Any, where: str, depth: int) -> None:
    """Refuse what would not come back from JSON as it is."""
    if isinstance(value, dict) and all(type(key) is str for key in value) and depth < DEPTH:
        for key, one in value.items():
            _check_json(one, f"{where}[{key!r}]", depth + 1)
    elif type(value) is list and depth < DEPTH:
        for number, one in enumerate(value):
            _check_json(one, f"{where}[{number}]", depth + 1)
    elif not (value is None or type(value) in (bool, str, int) or (isinstance(value, float) and math.isfinite(value))):
        what = "a dict with other keys than texts" if isinstance(value, dict) else f"{value!r:.60}"
        given, fix = f"{what} at {where}", "take tensors, rest = serialization.flatten_state(state)"
        raise problem(DTypeError, "CheckpointFolder.save", given, "what JSON has, as it is", fix)


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _metric(path: Path, value: Any) -> float | None:
    if value is None or type(value) in (int, float):
        return value
    if value in ("nan", "inf", "-inf"):
        return float(value)
    raise damaged_file("load", path / STATE, f"its metric is {value!r:.40}")


def _signature(path: Path) -> tuple[Any, ...]:
    """Changes when one of the files is written again."""
    found = [(path / name).stat() for name in (TENSORS, STATE)]
    return tuple((one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in found)


def _remove(path: Path) -> None:
    """Take a checkpoint away: it loses its name at once, whenever its files go."""
    if path.exists():
        temporary = path.with_name(files.temporary_name())
        files.os.rename(path, temporary)
        _remove_tree(temporary)


def _remove_tree(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
