"""A JSON Schema (draft 2020-12) of configurations, from the tables and signatures by which they are read."""

from __future__ import annotations

import inspect
from typing import Any

from weft.config import catalogue, dialect
from weft.config.catalogue import Kind, is_required, kinds_of, parameters_of
from weft.config.locations import LARGEST_SIZE
from weft.nn.basic.named_activation import ACTIVATION_NAMES
from weft.nn.bounds import bounds
from weft.nn.registry import layers

DRAFT = "https://json-schema.org/draft/2020-12/schema"
LAYER: dict[str, Any] = {"$ref": "#/$defs/layer"}
_POSITIVE = {"type": "integer", "minimum": 1, "maximum": LARGEST_SIZE}
_NATURAL = {"type": "integer", "minimum": 0, "maximum": LARGEST_SIZE}
# Keys of the dialect that are no positive whole numbers.
_DIALECT_KEYS: dict[str, dict[str, Any]] = {
    "activation": {"enum": list(dialect.ACTIVATIONS)},
    "padding": _NATURAL,
    "conv1d_padding": _NATURAL,
    "epsilon": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "temperature": {"type": "number", "exclusiveMinimum": 0},
    "softmax_variant": {"enum": list(dialect.VARIANTS)},
    "mask": {"type": "array", "items": {"enum": [True, False, 0, 1]}},
}


def schema() -> dict[str, Any]:
    """The schema of networks and runs.

    >>> weft.config.schema()["$schema"]
    'https://json-schema.org/draft/2020-12/schema'
    """
    return {
        "$schema": DRAFT,
        "title": "A network or a training run of Weft",
        "if": {"type": "object", "required": ["model"], "not": {"required": ["type"]}},
        "then": {"$ref": "#/$defs/run"},
        "else": {"$ref": "#/$defs/network"},
        "$defs": {
            "network": _network(),
            "run": run_schema(),
            "scheduler": _scheduler(),
            "layer": _layer(),
            "dialect_layer": _dialect_layer(),
            "activation": _activation(),
            **{f"layer_{name}": _layer_object(name, entry.cls) for name, entry in _describable_layers().items()},
        },
    }


def _activation() -> dict[str, Any]:
    """Names of activations, in which neither case nor underscores count."""
    words = "|".join(sorted("_*".join(f"[{sign}{sign.upper()}]" for sign in one) for one in ACTIVATION_NAMES))
    return {"type": "string", "pattern": f"^_*(?:{words})_*$", "description": "the name of an activation"}


def _describable_layers() -> dict[str, Any]:
    return {name: entry for name, entry in layers().items() if name not in catalogue.REFUSED}


def _network() -> dict[str, Any]:
    """A layer of the catalogue, or the list of layers of the dialect."""
    sizes = ("batch_size", "grid_rows", "grid_cols", "layers_per_cell")
    properties = {
        "id": {"type": ["string", "null"]},
        **{key: dict(_POSITIVE) for key in sizes},
        "layers": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/dialect_layer"}},
    }
    listed = _object(properties, ["layers"])
    return {"if": {"type": "object", "required": ["layers"], "not": {"required": ["type"]}}, "then": listed,
            "else": LAYER}  # fmt: skip


def _dialect_layer() -> dict[str, Any]:
    cases = []
    for name, form in dialect.FORMS.items():
        keys = ("activation", *form.required, *form.optional)
        properties = {"type": {"const": name}, **{key: _DIALECT_KEYS.get(key, _POSITIVE) for key in keys}}
        cases.append((name, _object(properties, ["type", *form.required])))
    conditions = [{"if": _has_type([name]), "then": one} for name, one in cases]
    other = {"if": _has_type(list(dialect.FORMS)), "else": LAYER}
    return {"type": "object", "required": ["type"], "allOf": [*conditions, other]}


def _has_type(names: list[str]) -> dict[str, Any]:
    return {"properties": {"type": {"enum": names}}, "required": ["type"]}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _names(name: str, aliases: tuple[str, ...]) -> list[str]:
    """The spellings of a layer's names that the schema knows; files may use others in case and underscores."""
    spelled = [form for one in (name, *aliases) for form in (one, one.lower())]
    return list(dict.fromkeys(spelled))


def _layer() -> dict[str, Any]:
    found = _describable_layers()
    taken: dict[str, str] = {}
    for name, entry in found.items():
        for one in _names(name, entry.aliases):
            taken.setdefault(one, name)
    cases = [
        {"if": _has_type([one for one, owner in taken.items() if owner == name]),
         "then": {"$ref": f"#/$defs/layer_{name}"}}
        for name in found
    ]  # fmt: skip
    described = {"type": "object", "required": ["type"], "properties": {"type": {"enum": list(taken)}}, "allOf": cases}
    forms = {"string": {"enum": list(taken)}, "array": {"items": LAYER}, "object": described}
    return {"type": list(forms), "allOf": [{"if": {"type": one}, "then": then} for one, then in forms.items()]}


def _layer_object(name: str, cls: type) -> dict[str, Any]:
    if name == "Sequential":
        named = {"type": "object", "additionalProperties": LAYER}
        return _object({"type": True, "modules": {"anyOf": [{"type": "array", "items": LAYER}, named]}}, ["type"])
    if name == "Model":
        return _model_object()
    known = parameters_of(cls)
    made = _object(
        {"type": True, **{key: _parameter(one) for key, one in known.items()}},
        ["type", *(key for key, one in known.items() if is_required(one))],
    )
    if name == "Activation":  # passes the rest on to the class that it names
        made["additionalProperties"] = {"type": ["number", "boolean", "string"]}
    summary = (inspect.getdoc(cls) or "").split("\n")[0]
    return {"description": summary, **made} if summary else made


def _model_object() -> dict[str, Any]:
    shape = {"type": "array", "items": {"type": ["integer", "null"]}}
    entry = _object({"shape": shape, "dtype": {"type": "string"}, "device": {"type": ["string", "null"]}}, ["shape"])
    names = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    keys = {"layer": LAYER, "same_as": {"type": "string"}, "take": _NATURAL, "from": names, "with": {"type": "object"}}
    node = {**_object(keys, ["from"]), "oneOf": [{"required": [key]} for key in catalogue.NODE]}
    return _object(
        {
            "type": True,
            "inputs": {"type": "object", "minProperties": 1, "additionalProperties": {"anyOf": [shape, entry]}},
            "nodes": {"type": "object", "additionalProperties": node},
            "outputs": names,
        },
        ["type", "inputs", "nodes", "outputs"],
    )


def _parameter(one: inspect.Parameter) -> dict[str, Any]:
    """The schema of one argument of a constructor."""
    kinds = kinds_of(str(one.annotation), one.name)
    if one.kind is inspect.Parameter.VAR_POSITIONAL:
        return {"type": "array", "items": _any_of(one.name, kinds)}
    made = _any_of(one.name, kinds)
    default = one.default
    if default is None or isinstance(default, (bool, int, float, str)):
        return {**made, "default": default}
    return made


def _any_of(name: str, kinds: tuple[Kind, ...]) -> dict[str, Any]:
    if any(kind.form == "any" for kind in kinds):
        return {}
    found = [_kind(name, kind) for kind in kinds]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _kind(name: str, kind: Kind) -> dict[str, Any]:
    """The schema of one alternative."""
    if kind.form == "int":
        low, high = bounds(name, "int")
        return {"type": "integer", "minimum": int(low), "maximum": int(high)}
    if kind.form == "float":
        low, high = bounds(name, "float")
        limits = {"minimum": low, "maximum": high} if low > -float("inf") else {}
        return {"anyOf": [{"type": "number", **limits}, {"enum": list(catalogue.INFINITE)}]}
    if kind.form == "list":
        size = {} if kind.length is None else {"minItems": kind.length, "maxItems": kind.length}
        return {"type": "array", "items": _any_of(name, kind.items), **size}
    if kind.form == "object":
        return {"type": "object", "additionalProperties": _any_of(name, kind.items)}
    if kind.form == "module":
        return LAYER
    if kind.form == "activation":
        return {"anyOf": [{"$ref": "#/$defs/activation"}, {"type": ["object", "array"], **LAYER}]}
    if kind.form == "tensor":
        return {"anyOf": [{"type": "number"}, {"type": "array"}]}
    return {"type": {"bool": "boolean", "str": "string", "null": "null", "dtype": "string"}[kind.form]}


def run_schema() -> dict[str, Any]:
    """The schema of a training run."""
    from weft.config import named_classes, run, sources

    file = {"type": "string", "pattern": r"\.(json|toml|JSON|TOML)$", "description": "a file with the network"}
    network = {"if": {"type": "string"}, "then": {"anyOf": [file, LAYER]}, "else": {"$ref": "#/$defs/network"}}
    losses = {name: _loss(entry.cls) for name, entry in layers().items() if entry.family in run.LOSSES}
    metrics = {name: _class_schema(one) for name, one in _of_train(named_classes.METRICS).items()}
    properties = {
        "model": network,
        "data": _one_by_type({name: _source(name, one) for name, one in sources.SOURCES.items()}),
        "loss": {"anyOf": [{"enum": _plain_names(losses)}, _one_by_type(losses)]},
        "optimizer": _one_by_name(named_classes.optimizers(), ("params",)),
        "scheduler": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/scheduler"}]},
        "metrics": {"type": "array", "items": {"anyOf": [_metric_names(), _one_by_type(metrics)]}},
        "callbacks": {"type": "array", "items": _one_by_name(_of_train(run.CALLBACKS))},
        "trainer": _object({key: dict(_TRAINER[key]) for key in (*run.TRAINER, *run.FIT)}, []),
    }
    return _object(properties, ["model", "data", "loss", "optimizer"])


_OPTIONAL_NUMBER: dict[str, Any] = {"type": ["number", "null"], "exclusiveMinimum": 0}
_TRAINER: dict[str, dict[str, Any]] = {
    "device": {"type": "string"},
    "precision": {"enum": ["fp32", "bf16", "fp16"]},
    "accumulate": _POSITIVE,
    "clip_norm": _OPTIONAL_NUMBER,
    "clip_value": _OPTIONAL_NUMBER,
    "checkpoint": {"anyOf": [{"type": ["boolean", "null"]}, {"type": "array", "items": {"type": "string"}}]},
    "memory_budget": {"anyOf": [{"type": ["string", "null"]}, {"type": "integer", "minimum": 1}]},
    "on_nan": {"enum": ["stop", "skip", "ignore"]},
    "seed": _NATURAL,
    "run": {"type": ["string", "null"]},
    "epochs": _POSITIVE,
    "max_steps": {"anyOf": [{"type": "null"}, _POSITIVE]},
    "validate_every": _POSITIVE,
}
_STRINGS = {"type": "array", "items": {"type": "string"}}
_DATA: dict[str, dict[str, Any]] = {
    "batch_size": _POSITIVE,
    "shuffle": {"type": "boolean"},
    "validation": {"type": "number", "minimum": 0, "maximum": 0.9},
    "seed": _NATURAL,
    "num_workers": {"type": "integer", "minimum": 0, "maximum": 256},
    "last": {"enum": ["keep", "drop", "pad"]},
    "shape": {"type": "array", "items": _POSITIVE},
    "features": _STRINGS,
    "inputs": _STRINGS,
    "standardize": {"type": "boolean"},
    "size": {"anyOf": [_POSITIVE, {"type": "array", "items": _POSITIVE}]},
    "mode": {"enum": ["RGB", "L"]},
    "length": _POSITIVE,
    "stride": _POSITIVE,
    "tokenizer": {"enum": ["char", "byte"]},
    **{key: {"type": "string"} for key in ("path", "folder", "target", "delimiter")},
}


def _source(name: str, source: Any) -> dict[str, Any]:
    from weft.config.sources import transforms_by_name

    known = {**_DATA, "transform": {"type": "array", "items": _one_by_name(transforms_by_name())}}
    keys = [key for key in source.checks() if key != "type"]
    return _object({"type": {"const": name}, **{key: known[key] for key in keys}}, ["type", *source.required])


def _loss(cls: type) -> dict[str, Any]:
    made = _layer_object(cls.__name__, cls)
    made["properties"] = {**made["properties"], "classes_last": {"type": "boolean"}}
    return made


def _one_by_type(cases: dict[str, Any]) -> dict[str, Any]:
    """An object that is one of some, by its type."""
    conditions = [{"if": _has_type([name]), "then": one} for name, one in cases.items()]
    return {"type": "object", "required": ["type"], "properties": {"type": {"enum": list(cases)}}, "allOf": conditions}


def _of_train(names: tuple[str, ...]) -> dict[str, Any]:
    import weft.train

    return {name: getattr(weft.train, name) for name in names}


def _metric_names() -> dict[str, Any]:
    from weft.train.metrics import BY_NAME

    return {"enum": list(BY_NAME)}


def _one_by_name(classes: dict[str, Any], without: tuple[str, ...] = ()) -> dict[str, Any]:
    """A class by its name alone, or with its arguments."""
    made = {name: _class_schema(one, without) for name, one in classes.items()}
    return {"anyOf": [{"enum": _plain_names(made)}, _one_by_type(made)]}


def _plain_names(made: dict[str, dict[str, Any]]) -> list[str]:
    """Names without arguments: of what needs no arguments."""
    return [name for name, one in made.items() if set(one["required"]) <= {"type"}]


def _class_schema(cls: type, without: tuple[str, ...] = ()) -> dict[str, Any]:
    from weft.config.named_classes import arguments_of

    known = arguments_of(cls, without)
    return _object(
        {"type": True, **{key: _parameter(one) for key, one in known.items()}},
        ["type", *(key for key, one in known.items() if is_required(one))],
    )


def _scheduler() -> dict[str, Any]:
    """Schedulers, of which some take others."""
    from weft.config.named_classes import schedulers

    other = {"$ref": "#/$defs/scheduler"}
    cases = {}
    for name, cls in schedulers().items():
        made = _class_schema(cls)
        made["properties"] = {**made["properties"], "each": {"enum": ["step", "epoch"]}}
        for key, form in (
            ("schedulers", {"type": "array", "items": other}),
            ("after", {"anyOf": [{"type": "null"}, other]}),
        ):
            if key in made["properties"]:
                made["properties"][key] = form
        cases[name] = made
    return _one_by_type(cases)
