"""from_config and to_config: a configuration to a model and back."""

from __future__ import annotations

from typing import Any

from weft.config import catalogue, dialect
from weft.config.locations import Location, did_you_mean, kind_of
from weft.config.reading import Source, read
from weft.nn.module import Module

FIRST = ("type", "model", *dialect.TOP)


def from_config(source: Source) -> Module:
    """The model that a configuration describes: a text in JSON or TOML, a dict, a list of layers, or a path.

    >>> model = weft.nn.from_config('[{"type": "Linear", "in_features": 4, "out_features": 2}, "ReLU"]')
    >>> model
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
      (1): ReLU()
    )
    >>> weft.nn.from_config(model.to_config())(weft.ones(3, 4)).shape
    (3, 2)
    """
    tree, location = read(source)
    return build(location, tree)


def build(location: Location, tree: Any) -> Module:
    """The model at a location of a tree. Of a run, it is what is under `model`."""
    if isinstance(tree, dict) and "type" not in tree:
        if "model" in tree:
            return build(location.at("model"), tree["model"])
        if "layers" in tree or set(tree) & set(dialect.TOP):
            return dialect.build(location, tree)
        given = f"an object with {', '.join(map(repr, list(tree)[:4])) or 'no keys'}"
        expected = "a 'type' (a layer of the catalogue), 'layers' (a list of layers) or a 'model' (a run)"
        location.fail(given, expected, next(filter(None, (did_you_mean(key, FIRST) for key in tree)), ""))
    if not isinstance(tree, (dict, list, str)):
        location.fail(kind_of(tree), "an object or a list of layers")
    return catalogue.build(location, tree)
