"""Files of tensors and state: safetensors, `weft.save` and `weft.load`, checkpoints, models, torch's files, shards.

Data flows in one direction: a nested state becomes tensors by name and JSON (`nested`), these become one safetensors
file (`safetensors`), and files are written so that they are whole or not there (`files`). `saving`, `checkpoint` and
`model_files` differ in what they put in; `torch_files` and `sharded` read what others wrote. Nothing here runs code
that a file names, and no file is trusted: what is read is checked first, and damaged files are errors.
"""

from weft.base.lazy_modules import load_lazily as _load_lazily

# Files of this package and the names that they export; a file is loaded when one of its names is first used.
CONTENTS: dict[str, tuple[str, ...]] = {
    "saving": ("load", "save"),
    "nested": ("flatten_state", "unflatten_state"),
    "safetensors": ("load_tensors", "read_metadata", "save_tensors"),
    "checkpoint": ("Checkpoint", "CheckpointFolder"),
    "sharded": ("load_into", "load_sharded"),
}
__getattr__, __dir__, __all__ = _load_lazily(__name__, CONTENTS)
