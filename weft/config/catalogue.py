"""Layers of the catalogue by name with their arguments, nested: `{"type": "Linear", "in_features": 4, ...}`.

The keys are the parameters of the constructor; `Kind` is what an annotation of its signature means in a file, and
`weft.nn.bounds` bounds the numbers that constructors do not check themselves. A list is a Sequential, a string a layer
without arguments. A model of several inputs names its nodes:

    {"type": "Model", "inputs": {"image": [1, 8, 8], "age": [1]},
     "nodes": {"flat": {"layer": "Flatten", "from": "image"},
               "both": {"layer": {"type": "Concat"}, "from": ["flat", "age"]},
               "out": {"layer": {"type": "Linear", "in_features": 65, "out_features": 2}, "from": "both"}},
     "outputs": "out"}

`with` gives a call further arguments, `{"from": "rnn", "take": 0}` takes the first of several results, `same_as` calls
the layer of another node.
"""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from weft.base.dtypes import by_name
from weft.base.errors import ConfigError
from weft.config import locations
from weft.config.locations import Location, display, kind_of
from weft.core.creation import tensor
from weft.nn.basic.named_activation import ACTIVATION_NAMES, make_activation
from weft.nn.bounds import bounds
from weft.nn.containers import Sequential
from weft.nn.graph_model import Input, Model
from weft.nn.module import Module
from weft.nn.registry import Layer, layers

# Layers that a file cannot describe, and why.
REFUSED = {
    "Lambda": "it holds a Python function",
    "ParameterList": "its arguments are the parameters themselves",
    "ParameterDict": "its arguments are the parameters themselves",
}
# Parameters that no file can give.
INFINITE = ("inf", "-inf")  # numbers that JSON does not have, as strings
_HIDDEN = ("process_group",)
NODE = ("layer", "same_as", "take")  # what a node of a model does; it has one of these keys
_MODULE_NAMES = ("Module", "Linear", "Embedding")
_ALIASES = {
    "Sizes": "int | Sequence[int]",
    "OutputSizes": "int | Sequence[int | None] | None",
    "Factors": "float | Sequence[float]",
    "EdgeType": "tuple[str, str, str]",
}
# What `Any` means, by the name of the parameter.
_ANY = {
    "device": "str | None", "dtype": "DType | None", "activation": "Activation | None", "modules": "Module",
    "custom_encoder": "Module | None", "custom_decoder": "Module | None", "deg": "Tensor", "indices": "Tensor",
    "alpha": "float | Sequence[float]", "shape": "int | Sequence[int]",
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """One thing that an argument may be. `items` are the alternatives of the entries of a list or an object, `length`
    the number of entries where it is fixed."""

    form: str  # int, float, bool, str, null, list, object, module, activation, tensor, dtype, any
    items: tuple[Kind, ...] = ()
    length: int | None = None

    def fits(self, value: Any) -> bool:
        """Whether a value of the tree has the right type, entries left aside."""
        if self.form == "int":
            return isinstance(value, int) and not isinstance(value, bool)
        if self.form == "float":
            return (isinstance(value, (int, float)) and not isinstance(value, bool)) or value in INFINITE
        types: dict[str, Any] = {
            "bool": bool, "str": str, "null": type(None), "list": list, "object": dict, "module": (dict, list, str),
            "activation": (str, dict, list), "tensor": (int, float, list), "dtype": str, "any": object,
        }  # fmt: skip
        return isinstance(value, types[self.form])

    def convert(self, location: Location, name: str, value: Any) -> Any:
        """The argument for the constructor."""
        if isinstance(value, str) and self.form == "float":
            value = float(value)
        if self.form in ("int", "float"):
            low, high = bounds(name, self.form)
            return locations.integer(location, value, int(low), int(high)) if self.form == "int" else (
                locations.number(location, value, low, high)
            )  # fmt: skip
        if self.form == "list":
            if self.length is not None and len(value) != self.length:
                location.fail(f"{len(value)} entries", f"{self.length}")
            return tuple(convert(location.at(k), name, one, self.items) for k, one in enumerate(value))
        if self.form == "object":
            return {key: convert(location.at(key), name, one, self.items) for key, one in value.items()}
        if self.form == "module" or (self.form == "activation" and not isinstance(value, str)):
            return build(location, value)
        if self.form == "activation":
            return activation_name(location, value)
        if self.form == "dtype":
            return _dtype(location, value)
        if self.form == "tensor":
            return _tensor(location, value)
        return value

    def __str__(self) -> str:
        names = {
            "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a string", "null": "null",
            "module": "a layer", "activation": "the name of an activation or a layer", "dtype": "the name of a dtype",
            "tensor": "numbers in lists", "any": "any value",
        }  # fmt: skip
        if self.form in ("list", "object"):
            what = "a list" if self.form == "list" else "an object"
            what += f" of {self.length}" if self.length is not None else ""
            return f"{what} ({' or '.join(map(str, self.items))})" if self.items else what
        return names[self.form]


def convert(location: Location, name: str, value: Any, kinds: tuple[Kind, ...]) -> Any:
    """The argument for a constructor, by the first alternative that fits."""
    for kind in kinds:
        if kind.fits(value):
            return kind.convert(location, name, value)
    location.fail(f"{kind_of(value)}, {display(value)}", " or ".join(map(str, kinds)))


@functools.cache
def kinds_of(annotation: str, name: str) -> tuple[Kind, ...]:
    """The alternatives that an annotation means for a parameter of this name."""
    found: list[Kind] = []
    for part in _split(annotation, "|"):
        part = part.replace("os.PathLike[str]", "os.PathLike")
        base, _, rest = part.partition("[")
        inside = _split(rest.removesuffix("]"), ",") if rest else []
        if part == "Any":
            found += kinds_of(_ANY[name], name) if name in _ANY else (Kind("any"),)
        elif part in _ALIASES:
            found += kinds_of(_ALIASES[part], name)
        elif part in ("int", "float", "bool", "str"):
            found.append(Kind(part))
        elif part == "None":
            found.append(Kind("null"))
        elif part in _MODULE_NAMES:
            found.append(Kind("module"))
        elif part == "Activation":
            found.append(Kind("activation"))
        elif base == "Callable":
            found.append(Kind("module"))
        elif part == "Tensor":
            found.append(Kind("tensor"))
        elif part == "DType":
            found.append(Kind("dtype"))
        elif base == "tuple" and inside[-1] != "...":
            found.append(Kind("list", kinds_of(inside[0], name), len(inside)))
        elif base in ("Sequence", "Iterable", "tuple", "list"):
            found.append(Kind("list", kinds_of(inside[0], name)))
        elif base == "Mapping":
            found.append(Kind("object", kinds_of(inside[1], name)))
        elif part == "os.PathLike":
            found.append(Kind("str"))
        else:
            found.append(Kind("any"))  # the constructor checks it
    return tuple(dict.fromkeys(found))


def _split(text: str, sign: str) -> list[str]:
    """Split at a sign outside of brackets."""
    parts, depth, start = [], 0, 0
    for k, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == sign and not depth:
            parts.append(text[start:k].strip())
            start = k + 1
    return [*parts, text[start:].strip()]


def _dtype(location: Location, value: str) -> Any:
    try:
        return by_name(value)
    except Exception as error:
        location.fail(display(value), f"the name of a dtype, such as 'float32' ({error})")


def _tensor(location: Location, value: Any) -> Any:
    try:
        return tensor(value)
    except Exception as error:
        location.fail(display(value), f"numbers in lists ({error})")


def activation_name(location: Location, value: str) -> str:
    """The name of an activation."""
    wanted = value.replace("_", "").lower()
    if wanted not in ACTIVATION_NAMES:
        location.fail(display(value), "the name of an activation", locations.did_you_mean(value, ACTIVATION_NAMES))
    return value


@functools.cache
def _by_name() -> dict[str, Layer]:
    """Layers by their names and aliases, in the form that ignores case and underscores."""
    found: dict[str, Layer] = {}
    for entry in layers().values():
        for name in (entry.name, *entry.aliases):
            found.setdefault(name.replace("_", "").lower(), entry)
    return found


def argument_names(name: str) -> set[str] | None:
    """The arguments that a file can give to a layer of the catalogue; None where there is none of this name."""
    found = _by_name().get(name.replace("_", "").lower())
    return None if found is None else {*parameters_of(found.cls)}


def layer_class(location: Location, name: str, others: Collection[str] = ()) -> Any:
    """The class of a layer by one of its names. `others` are names that mean something at this location, too."""
    found = _by_name().get(name.replace("_", "").lower())
    if found is None:
        known = [*others, *(one for entry in layers().values() for one in (entry.name, *entry.aliases))]
        some = f"one of {', '.join(others)} or a layer of the catalogue" if others else "a layer of the catalogue"
        advice = locations.did_you_mean(name, known)
        location.at("type").fail(display(name), some, f"{advice}; `weft layers` lists all".removeprefix("; "))
    if found.name in REFUSED:
        location.at("type").fail(found.name, f"a layer that a file can describe: {REFUSED[found.name]}")
    return found.cls


def parameters_of(cls: type) -> dict[str, inspect.Parameter]:
    """The parameters of a constructor that a file can give."""
    found = inspect.signature(cls).parameters.values()
    return {
        one.name: one
        for one in found
        if one.name not in _HIDDEN and not one.name.startswith("_") and one.kind is not inspect.Parameter.VAR_KEYWORD
        and not (one.kind is inspect.Parameter.VAR_POSITIONAL and one.name == "args")
    }  # fmt: skip


def is_required(one: inspect.Parameter) -> bool:
    """Whether a file has to give a parameter."""
    return one.default is inspect.Parameter.empty and one.kind is not inspect.Parameter.VAR_POSITIONAL


def build(location: Location, value: Any, others: Collection[str] = ()) -> Module:
    """The module that a tree describes."""
    if isinstance(value, list):
        return Sequential(*[build(location.at(k), one) for k, one in enumerate(value)])
    if isinstance(value, str):
        value = {"type": value}
    given = locations.object_at(location, value, "a layer: an object with a type, a name or a list of layers")
    if "type" not in given:
        location.fail("no 'type'", "the name of a layer", "add 'type', such as 'Linear'")
    cls = layer_class(location, locations.string(location.at("type"), given.pop("type")), others)
    maker = SPECIAL.get(cls)
    if maker is not None:
        return maker(location, given)
    return call(location, cls, given)


def call(
    location: Location,
    cls: Any,
    given: Mapping[str, Any],
    known: dict[str, inspect.Parameter] | None = None,
    first: tuple[Any, ...] = (),
) -> Any:
    """Call a constructor with arguments of a file, after `first`; `known` are its parameters that a file may give."""
    known = parameters_of(cls) if known is None else known
    extra: dict[str, Any] = {}
    if cls.__name__ == "Activation" and isinstance(given.get("name"), str):  # passes the rest on to the class it names
        activation_name(location.at("name"), given["name"])
        below = parameters_of(type(make_activation_class(given["name"])))
        known = {**known, **below}
        extra = {key: given[key] for key in given if key in below and key != "name"}
    locations.check_keys(location, given, list(known), [name for name, one in known.items() if is_required(one)])
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    for name, value in given.items():
        one = known[name]
        at = location.at(name)
        kinds = kinds_of(str(one.annotation), name)
        if one.kind is inspect.Parameter.VAR_POSITIONAL:
            args = tuple(convert(at.at(k), name, part, kinds) for k, part in enumerate(locations.array(at, value)))
        else:
            kwargs[name] = convert(at, name, value, kinds)
    return attempt(location, cls, (*first, *args), {**kwargs, **extra})


def make_activation_class(name: str) -> Any:
    """The module that an activation's name means, with its own defaults where it has any."""
    return make_activation(name) if name.lower() != "threshold" else make_activation(name, threshold=0.0, value=0.0)


def attempt(location: Location, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a constructor; what it refuses is an error at this location."""
    try:
        return function(*args, **kwargs)
    except ConfigError:
        raise
    except Exception as error:
        location.fail(f"arguments that are refused: {str(error).rstrip('.')}")


def _sequential(location: Location, given: dict[str, Any]) -> Module:
    """`modules` is a list, or an object whose keys are the names."""
    locations.check_keys(location, given, ["modules"])
    modules, at = given.get("modules", []), location.at("modules")
    if isinstance(modules, dict):
        made = OrderedDict((name, build(at.at(name), one)) for name, one in modules.items())
        return attempt(at, Sequential, (made,), {})
    return build(at, locations.array(at, modules, "a list of layers"))


def _model(location: Location, given: dict[str, Any]) -> Module:
    """A model of named nodes, each a layer that is called with the results of others."""
    locations.check_keys(location, given, ("inputs", "nodes", "outputs"), ("inputs", "nodes", "outputs"))
    inputs: dict[str, Any] = {}
    for name, form in locations.object_at(
        location.at("inputs"), given["inputs"], "an object with a shape for each"
    ).items():
        at = location.at("inputs").at(name)
        inputs[name] = call(at, Input, form if isinstance(form, dict) else {"shape": form})
    if not inputs:
        location.at("inputs").fail("no inputs", "at least one")
    values = dict(inputs)
    shared: dict[str, Module] = {}
    sources: dict[str, list[str]] = {}
    for name, node in locations.object_at(
        location.at("nodes"), given["nodes"], "an object with a node for each"
    ).items():
        at = location.at("nodes").at(name)
        node = locations.object_at(at, node, "an object with 'layer' and 'from'")
        locations.check_keys(at, node, (*NODE, "from", "with"), ("from",))
        if name in values:
            at.fail("a name that another node or an input has", "another name")
        kinds = [key for key in NODE if key in node]
        if len(kinds) != 1:
            named = " and ".join(map(repr, kinds)) or "neither of them"
            at.fail(named, f"one of {', '.join(NODE)}: a layer, the node whose layer it is, or the number of a result")
        sources[name] = _names(at.at("from"), node["from"], values)
        if "take" in node:
            values[name] = _take(at, node, sources[name], values)
            continue
        if "same_as" in node:
            layer = shared[locations.choice(at.at("same_as"), node["same_as"], shared)]
        else:
            layer = build(at.at("layer"), node["layer"])
        shared[name] = layer
        extra = locations.object_at(at.at("with"), node.get("with", {}), "an object with arguments of the call")
        values[name] = attempt(at, layer, tuple(values[one] for one in sources[name]), extra)
    at = location.at("outputs")
    names = _names(at, given["outputs"], values)
    if any(name in inputs for name in names):
        at.fail(f"the input {next(name for name in names if name in inputs)!r}", "names of nodes")
    needed = set(names)
    for name in reversed(sources):  # a node comes after those that it is computed from
        if name not in needed:
            location.at("nodes").at(name).fail("a node that no output needs", "nodes on the way to the outputs")
        needed.update(sources[name])
    outputs = values[names[0]] if isinstance(given["outputs"], str) else [values[name] for name in names]
    model = attempt(location, Model, (inputs, outputs), {})
    model.node_names = {name: id(values[name]) for name in values}
    return model


def _take(location: Location, node: dict[str, Any], names: list[str], values: dict[str, Any]) -> Any:
    """One of several results."""
    if "with" in node or len(names) != 1:
        location.fail("'with', or several names in 'from', beside 'take'", "one name")
    number = locations.integer(location.at("take"), node["take"], 0)
    result = values[names[0]]
    if not isinstance(result.value, (tuple, list)) or number >= len(result.value):
        location.at("take").fail(f"{number} of {result!r}", "the number of one of several results")
    return result[number]


def _names(location: Location, value: Any, known: Collection[str]) -> list[str]:
    """One name, or a list of names."""
    if isinstance(value, str):
        return [locations.choice(location, value, known)]
    names = [
        locations.choice(location.at(k), one, known) for k, one in enumerate(locations.array(location, value, "names"))
    ]
    if not names:
        location.fail("an empty list", "at least one name")
    return names


SPECIAL: dict[type, Callable[[Location, dict[str, Any]], Module]] = {Sequential: _sequential, Model: _model}
