"""`weft.save` and `weft.load`: nested state in one file, and tensors out of the files of others.

A file of `weft.save` is a safetensors file: the tensors under their paths in the state, so that other programs find
them, and in the metadata the format's version (`weft.format`) and the rest of the state as JSON (`weft.state`). What
kind a file is that is loaded follows from its first bytes, not from its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.base import files
from weft.base.errors import DTypeError, problem
from weft.base.files import PathLike, as_path, damaged_file
from weft.core.boundary import entry_point
from weft.core.device import get
from weft.core.tensor import Tensor
from weft.serialization.nested import flatten_state, unflatten_state
from weft.serialization.safetensors import TensorFile, parse_tensors, save_tensors

FORMAT = 1
FORMAT_KEY, STATE_KEY = "weft.format", "weft.state"


@entry_point
def save(obj: Any, path: PathLike) -> None:
    """Write nested dicts, lists and tuples of tensors, arrays, numbers, texts and None (the state_dicts of models,
    optimizers and schedulers) as one safetensors file, atomically. `weft.load` gives the same back, bit for bit.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/state.safetensors"
    >>> weft.save({"w": weft.ones(2), "step": 3, "betas": (0.9, 0.999)}, path)
    >>> weft.load(path)
    {'w': tensor([1., 1.]), 'step': 3, 'betas': (0.9, 0.999)}
    """
    where = as_path("save", path)
    if hasattr(obj, "_is_weft_module"):
        fix = "use model.save(path) for layers and weights, or weft.save(model.state_dict(), path) for the weights"
        raise problem(DTypeError, "save", f"a {type(obj).__name__}, which is a module", "its state", fix)
    tensors, rest = flatten_state(obj)
    save_tensors(where, tensors, state_metadata(rest))


@entry_point
def state_metadata(rest: Any) -> dict[str, str]:
    """The metadata of a file that holds the JSON of a state."""
    return {FORMAT_KEY: str(FORMAT), STATE_KEY: json.dumps(rest, separators=(",", ":"), allow_nan=False)}


@entry_point
def load(path: PathLike, device: Any = None) -> Any:
    """What `weft.save` wrote, on `device`. Of a safetensors file of another program, and of sharded weights (a folder
    or its `.index.json`), the tensors by name. Of a file of `torch.save` (`.pt`, `.pth`, `.bin`), the tensors and plain
    data in it; no code of the file is run, and what would need that is refused."""
    where = as_path("load", path)
    target = get(device)
    if where.is_dir() or where.name.endswith(".index.json"):
        from weft.serialization.sharded import load_sharded

        return load_sharded(where, target)
    content = files.read_bytes(where)
    if is_torch_file(content):
        from weft.serialization.torch_files import parse_torch

        return parse_torch(where, content, target)
    return state_of(parse_tensors(where, content), target)


@entry_point
def load_weights(path: Path, device: Any = None) -> Mapping[str, Any]:
    """What is to be loaded into a module: the tensors of a file of any kind by name."""
    found = load(path, device)
    if not isinstance(found, Mapping):
        given = f"the file {str(path)!r}, which holds a {type(found).__name__}"
        raise problem(DTypeError, "load", given, "tensors by name", "load it with weft.load and take the state_dict")
    for key in ("state_dict", "model_state_dict", "model"):  # a checkpoint with more beside the weights
        inner = found.get(key)
        if isinstance(inner, Mapping) and not any(isinstance(value, Tensor) for value in found.values()):
            return inner
    return found


@entry_point
def is_torch_file(content: np.ndarray) -> bool:
    """Whether bytes begin as a zip archive or a pickle, and not as a safetensors file does."""
    start = content[:16].tobytes()
    return start.startswith((b"PK\x03\x04", b"PK\x05\x06")) or (start[:1] == b"\x80" and start[8:9] != b"{")


@entry_point
def state_of(opened: TensorFile, device: Any) -> Any:
    """The state in a safetensors file: what `save` wrote, else its tensors by name."""
    check_format(opened)
    opened.verify()
    if STATE_KEY not in opened.metadata:
        return opened.tensors(device)
    rest = files.parse_json("load", opened.path, opened.metadata[STATE_KEY].encode("utf-8", "replace"), "its state")
    return unflatten_state(opened.tensors(device), rest)


@entry_point
def check_format(opened: TensorFile) -> None:
    """Refuse what a later version of Weft wrote."""
    version = opened.metadata.get(FORMAT_KEY, str(FORMAT))
    if version != str(FORMAT):
        why = f"it has the format {version!r:.40}"
        raise damaged_file("load", opened.path, why, f"format {FORMAT}", "a newer Weft wrote it: use that to read it")
