"""Weights in several files with an index, as Hugging Face has them, and weights of any file into a module.

An index is JSON: `{"metadata": {...}, "weight_map": {name: file}}`. Files are named without folders and lie beside it.
They are mapped into memory, so a model larger than memory is read a tensor at a time, as its parameters take values.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.base import files
from weft.base.errors import DTypeError, FileFormatError, GraphError, problem
from weft.base.files import PathLike, as_path, damaged_file
from weft.core.device import get
from weft.core.tensor import Tensor
from weft.serialization.safetensors import parse_tensors
from weft.serialization.saving import is_torch_file, load_weights

if TYPE_CHECKING:
    from weft.nn.module import Module
    from weft.nn.module.loading import LoadResult

# The files of a folder that hold its weights, in the order in which they are looked for.
NAMES = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin")

KeyMap = Mapping[str, str | None] | Callable[[str], str | None]


def load_sharded(path: PathLike, device: Any = None) -> dict[str, Tensor]:
    """The tensors of sharded weights by name: of an `.index.json`, or of the folder that it lies in. A tensor that is
    named in the index and not in its file is an error, as is a file that is missing."""
    where, target = as_path("load_sharded", path), get(device)
    if where.is_dir():
        where = _weights_in(where)
    if not where.name.endswith(".json"):
        return dict(load_weights(where, target))
    content = files.parse_json("load", where, files.read_bytes(where), "it")
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise damaged_file("load", where, "it has no 'weight_map'", "the index of sharded weights")
    found: dict[str, Tensor] = {}
    for file in sorted(set(names.values())):
        if Path(file).name != file or file in (".", ".."):
            raise damaged_file(
                "load", where, f"it refers to the path {file!r:.100}", "names of files in the same folder"
            )
        wanted = [name for name, one in names.items() if one == file]
        found |= _from_shard(where, file, wanted, target)
    return {name: found[name] for name in names}


def _weights_in(folder: Path) -> Path:
    for name in NAMES:
        if (folder / name).is_file():
            return folder / name
    others = sorted(folder.glob("*.index.json"))
    if len(others) == 1:
        return others[0]
    if (folder / "state.json").is_file() or any(folder.glob("step-*")):
        fix = "use weft.serialization.CheckpointFolder(folder).load()"
        raise damaged_file("load", folder, "it is a folder of checkpoints", "a file, or a folder of weights", fix)
    raise damaged_file("load", folder, "it is a folder", f"one with {', '.join(NAMES)}", "name the file")


def _from_shard(index: Path, file: str, wanted: list[str], device: Any) -> dict[str, Tensor]:
    path = index.parent / file
    if not path.is_file():
        raise damaged_file("load", index, f"its file {file!r:.100} is missing", "all files of the index beside it")
    content = files.read_bytes(path)
    if is_torch_file(content):
        from weft.serialization.torch_files import parse_torch

        loaded = parse_torch(path, content, device)
        have: Mapping[str, Any] = loaded if isinstance(loaded, Mapping) else {}
        missing = [name for name in wanted if not isinstance(have.get(name), Tensor)]
    else:
        opened = parse_tensors(path, content)
        opened.verify()
        have, missing = opened.entries, [name for name in wanted if name not in opened.entries]
    if missing:
        raise damaged_file("load", path, f"it has no tensor {missing[0]!r:.100}, which {index.name} has in it")
    return {name: have[name] if is_torch_file(content) else opened.tensor(name, device) for name in wanted}


# ---- into a module ---------------------------------------------------------------------------------------------------


def load_into(
    module: Module, path: PathLike, key_map: KeyMap | None = None, strict: bool = True, assign: bool = False
) -> LoadResult:
    """Load the weights of a file (safetensors, `weft.save`, `Module.save`, torch) or of sharded weights into a module.

    `key_map` says what the file's names are called in the module: a dict (names that it does not have stay), or a
    function of a name; None leaves a tensor out. With `strict`, names and shapes must fit exactly, and the error
    lists what is missing and what is left over; nothing is changed then. Without, the result does.

    >>> import tempfile
    >>> from weft.serialization import load_into, save_tensors
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> digest = save_tensors(path, {"dense.kernel": weft.ones(1, 2), "dense.bias": weft.zeros(1)})
    >>> layer = weft.nn.Linear(2, 1)
    >>> load_into(layer, path, key_map={"dense.kernel": "weight", "dense.bias": "bias"})
    <All keys matched successfully>
    """
    where = as_path("load", path)
    found = rename_keys(load_weights(where, "cpu"), key_map)
    if strict:
        _check_names(module, where, list(found))
    return module.load_state_dict(found, strict=strict, assign=assign)


def rename_keys(tensors: Mapping[str, Any], key_map: KeyMap | None) -> Mapping[str, Any]:
    """The same tensors under other names."""
    if key_map is None:
        return tensors
    if not isinstance(key_map, Mapping) and not callable(key_map):
        raise problem(DTypeError, "load", f"a {type(key_map).__name__} as key_map", "a dict or a function")
    if isinstance(key_map, Mapping):
        unknown = [name for name in key_map if name not in tensors]
        if unknown:
            near = difflib.get_close_matches(str(unknown[0]), list(tensors), 1)
            fix = f"did you mean {near[0]!r}" if near else ""
            given = f"a key_map with {unknown[0]!r}, which the file does not have"
            raise problem(GraphError, "load", given, "names of the file's tensors", fix)
    found: dict[str, Any] = {}
    for name, value in tensors.items():
        new = key_map.get(name, name) if isinstance(key_map, Mapping) else key_map(name)
        if new is None:
            continue
        if not isinstance(new, str) or new in found:
            given = f"a key_map that makes {new!r} of {name!r}"
            raise problem(GraphError, "load", given, "a text for each name that no other has, or None")
        found[new] = value
    return found


def _check_names(module: Module, path: Path, given: list[str]) -> None:
    """Where no name at all fits because of a prefix, say so: a list of all names would hide it."""
    wanted = list(module.state_dict())
    if not wanted or not given or set(wanted) & set(given):
        return
    for name in given:
        for own in wanted:
            if name.endswith("." + own) or own.endswith("." + name):
                longer, shorter = (name, own) if len(name) > len(own) else (own, name)
                prefix = longer[: -len(shorter)]
                removal = longer == name
                rule = f"name.removeprefix({prefix!r})" if removal else f"{prefix!r} + name"
                why = f"its names {'begin' if removal else 'do not begin'} with {prefix!r}: {name!r} for {own!r}"
                expected = f"the names of {type(module).__name__}"
                fix = f"load it with key_map=lambda name: {rule}"
                raise problem(FileFormatError, "load", f"the file {str(path)!r}: {why}", expected, fix)
