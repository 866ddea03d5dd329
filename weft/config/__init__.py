"""Networks and training runs from JSON or TOML.

What flows: a text, a file or a dict becomes a tree of dicts, lists, strings, numbers, booleans and None
(`reading.read`). A `Location` (`locations.py`) goes with every value of the tree and knows its path in the file, so
that each error names it. A network is either a list of layers in the dialect of an older system (`dialect.py`: no
`type` at the top; layers exchange flat vectors; the result is an `nn.Grid`), or a layer of the catalogue by name with
its arguments, nested (`catalogue.py`: the arguments are those of the constructors' signatures). `model.from_config`
chooses between them; `model.to_config` is the inverse. A run is a network with its data, loss, optimizer, scheduler and
trainer (`run.py`); `json_schema.py` writes a JSON Schema of all of it from the same tables.
"""

from __future__ import annotations

from weft.base.lazy_modules import load_lazily as _load_lazily

CONTENTS: dict[str, tuple[str, ...]] = {
    "weft.base.errors": ("ConfigError",),
    "reading": ("read",),
    "describe": ("to_config",),
    "model": ("from_config",),
    "run": ("Run", "check", "load_run"),
    "sample_networks": ("sample", "samples"),
    "json_schema": ("schema",),
}
__getattr__, __dir__, __all__ = _load_lazily(__name__, CONTENTS)
