"""The inverse of `from_config`: what a model would look like in a file."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from weft.base.dtypes import DType
from weft.base.errors import ConfigError, GraphError, problem
from weft.config.catalogue import REFUSED, parameters_of
from weft.config.dialect import FlatLayer, Network
from weft.core.tensor import Tensor
from weft.nn.basic.named_activation import ACTIVATION_NAMES
from weft.nn.basic.utility import Add, Identity, Multiply
from weft.nn.containers import ModuleDict, ModuleList, Sequential
from weft.nn.graph_model import Input, Model
from weft.nn.grid import Grid
from weft.nn.module import Module
from weft.nn.module.arguments import constructor_arguments
from weft.nn.module.differences import difference
from weft.nn.module.symbolic import Symbol, symbols_in
from weft.nn.registry import LAYERS
from weft.random.generator import default_generator

MAX_ELEMENTS = 65_536  # of a tensor that is written as numbers


def to_config(model: Module) -> dict[str, Any]:
    """The tree of a model. It is built once more to see that the tree describes it: parts of a model may have been
    replaced or changed after it was made, or be shared."""
    tree = describe(model, "")
    _check(model, tree)
    return tree


def _check(model: Module, tree: dict[str, Any]) -> None:
    """Refuse a model that is not what its tree makes: layers or parameters that are shared or were replaced, settings
    that were changed. The random stream stays where it is."""
    from weft.config.model import from_config

    state = default_generator.get_state()
    try:
        found = difference(model, from_config(tree), _is_arithmetic)
    finally:
        default_generator.set_state(state)
    if found is not None:
        fix = "give constructors what was changed; nn.Model describes layers that are called several times"
        refuse(model, "", f"its {found}", "a model as its constructors made it", fix)


def describe(model: Module, path: str) -> dict[str, Any]:
    """The tree of a module; `path` is that of the module within the model, for errors."""
    if isinstance(model, Network):
        return _network(model, path)
    cls = type(model)
    entry = LAYERS.get(cls.__name__)
    if entry is None or entry.cls is not cls:
        refuse(model, path, "a class of its own", "layers of the catalogue", "build it from nn.Sequential or nn.Model")
    if cls.__name__ in REFUSED:
        refuse(model, path, REFUSED[cls.__name__], "a layer that a file can describe")
    describer = DESCRIBERS.get(cls)
    if describer is not None:
        return {"type": cls.__name__, **describer(model, path)}
    found: dict[str, Any] = {"type": cls.__name__}
    known = inspect.signature(cls).parameters
    try:
        arguments = constructor_arguments(model)
    except GraphError as error:
        refuse(model, path, str(error).rstrip("."), "a layer whose arguments are known")
    for name, value in arguments.items():
        param = known.get(name)
        default = inspect.Parameter.empty if param is None else param.default
        if name == "device" or _is_default(value, default):
            continue
        if param is not None and name not in parameters_of(cls):
            refuse(model, path, f"the argument {name!r}", "arguments that a file can give")
        found[name] = plain_value(model, value, f"{path}.{name}" if path else name)
    return found


def _is_default(value: Any, default: Any) -> bool:
    """Whether an argument may be left out."""
    if value is default:
        return True
    return type(value) is type(default) and isinstance(value, (bool, int, float, str, tuple)) and value == default


def plain_value(model: Module, value: Any, path: str) -> Any:
    """An argument as a value of the tree."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            refuse(model, path, "the number nan", "numbers that JSON has")
        return value if math.isfinite(value) else str(value)  # 'inf'
    if isinstance(value, (list, tuple)):
        return [plain_value(model, one, f"{path}[{k}]") for k, one in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): plain_value(model, one, f"{path}.{key}") for key, one in value.items()}
    if isinstance(value, Module):
        return describe(value, path)
    if isinstance(value, DType):
        return value.name
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        count = math.prod(value.shape)
        if count > MAX_ELEMENTS:
            refuse(model, path, f"a tensor of {count:,} elements", f"at most {MAX_ELEMENTS:,}")
        return plain_value(model, value.tolist(), path)
    name = getattr(value, "__name__", "")
    if callable(value) and name.replace("_", "").lower() in ACTIVATION_NAMES:
        return name
    refuse(model, path, f"a {type(value).__name__}", "values that JSON has, layers, or activations by name")


def refuse(model: Module, path: str, given: str, expected: str, fix: str = "") -> NoReturn:
    """Raise the error for a model that no file can describe."""
    where = f"{type(model).__name__} at {path}" if path else type(model).__name__
    raise problem(ConfigError, "to_config", f"{where}: {given}", expected, fix)


def _describe_child(model: Module, path: str) -> dict[str, Any]:
    return {
        name: describe(one, f"{path}.{name}" if path else name)
        for name, one in model._modules.items()
        if one is not None
    }


def _describe_children(model: Module, path: str) -> dict[str, Any]:
    below = _describe_child(model, path)
    in_order = list(below) == [str(k) for k in range(len(below))]
    return {"modules": list(below.values()) if in_order else below}


def _grid(grid: Grid, path: str) -> dict[str, Any]:
    below = [None if one is None else describe(one, f"{path}[{k}]") for k, one in enumerate(grid)]
    return {"rows": grid.rows, "cols": grid.cols, "layers_per_cell": grid.layers_per_cell, "layers": below}


def _model(model: Model, path: str) -> dict[str, Any]:
    """Names of nodes are those of the file, where the model came from one, else those of the submodules."""
    names: dict[int, str] = {}
    by_symbol = {number: name for name, number in getattr(model, "node_names", {}).items()}
    input_names = model._input_names or [f"input_{k}" for k in range(len(model.inputs))]
    inputs: dict[str, Any] = {}
    for name, symbol in zip(input_names, model.inputs, strict=True):
        names[id(symbol)] = name
        form = describe(symbol.module, path)
        inputs[name] = {key: value for key, value in form.items() if key != "type"}
    nodes: dict[str, Any] = {}
    owners: dict[int, str] = {}
    for number, symbol in enumerate(model._steps):
        name = by_symbol.get(id(symbol), f"node_{number}")
        nodes[name] = _node(model, symbol, names, owners, name, path)
        names[id(symbol)] = name
    if isinstance(model.outputs, Symbol):
        outputs: Any = names[id(model.outputs)]
    elif isinstance(model.outputs, (list, tuple)) and all(isinstance(one, Symbol) for one in model.outputs):
        outputs = [names[id(one)] for one in model.outputs]
    else:
        refuse(model, path, "outputs in a structure of their own", "one output or a list of them")
    return {"inputs": inputs, "nodes": nodes, "outputs": outputs}


def _node(
    model: Model, symbol: Symbol, names: dict[int, str], owners: dict[int, str], name: str, path: str
) -> dict[str, Any]:
    """One node; `owners` has the nodes whose layers may be called again."""
    here = f"{path}.{name}" if path else name
    if not all(isinstance(one, Symbol) for one in symbol.args) or any(symbols_in(list(symbol.kwargs.values()))):
        given = f"a call of {type(symbol.module).__name__} with arguments that are no results of layers"
        refuse(model, path, given, "results of other layers, and numbers by keyword")
    sources = [names[id(one)] for one in symbol.args]
    source: dict[str, Any] = {"from": sources[0] if len(sources) == 1 else sources}
    extra = {"with": plain_value(model, symbol.kwargs, here)} if symbol.kwargs else {}
    function = getattr(symbol.module, "function", None)
    if isinstance(function, operator.itemgetter) and isinstance(key := function.__reduce__()[1][0], int) and key >= 0:
        return {**source, "take": key}
    if id(symbol.module) in owners:
        return {"same_as": owners[id(symbol.module)], **source, **extra}
    owners[id(symbol.module)] = name
    module = _ARITHMETIC[function]() if function in _ARITHMETIC else symbol.module
    return {"layer": describe(module, here), **source, **extra}


def _input(symbol: Input, path: str) -> dict[str, Any]:
    form: dict[str, Any] = {"shape": list(symbol.sizes)}
    return form if symbol._dtype.name == "float32" else {**form, "dtype": symbol._dtype.name}


def _network(network: Network, path: str) -> dict[str, Any]:
    entries = [
        dict(one.entry) if isinstance(one, FlatLayer) else describe(one, f"{path}layers[{k}]")
        for k, one in enumerate(network)
    ]
    sizes = {"grid_rows": network.rows, "grid_cols": network.cols, "layers_per_cell": network.layers_per_cell}
    head = {} if network.id is None else {"id": network.id}
    return {**head, "batch_size": network.batch_size, **sizes, "layers": entries}


# Layers for the operators of symbols.
_ARITHMETIC: dict[Any, type[Module]] = {operator.add: Add, operator.mul: Multiply}


def _is_arithmetic(module: Module) -> bool:
    """Operators of symbols, and the layers that stand for them in a file."""
    return type(module) in _ARITHMETIC.values() or getattr(module, "function", None) in _ARITHMETIC


DESCRIBERS: dict[type, Callable[[Any, str], dict[str, Any]]] = {
    Sequential: _describe_children,
    ModuleList: _describe_children,
    ModuleDict: lambda model, path: {"modules": _describe_child(model, path)},
    Grid: _grid,
    Model: _model,
    Input: _input,
    Identity: lambda model, path: {},
}
