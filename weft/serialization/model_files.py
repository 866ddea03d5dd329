"""`Module.save` and `nn.load`: a model, its layers and its weights, in one file without code.

The file is a safetensors file with the tensors of `state_dict()` under their names, so that `weft.load`, `Module.load`
and other programs read the weights. In the metadata is the architecture (`weft.model`): `{"type": name, arguments...}`,
nested, from `nn.module.arguments`. Before writing, the model is made again from it and compared: what was changed after
the constructors ran, and would be lost, is an error when the model is saved and not a surprise when it is loaded.

`nn.load` imports nothing that a file names. A class is one of the catalogue, or one that exists in the process already.
"""

from __future__ import annotations

import contextlib
import json
import math
import operator
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from weft.autograd import no_grad
from weft.base import files
from weft.base.errors import FileFormatError, GraphError, StateDictError, WeftError, problem
from weft.base.files import PathLike, as_path, damaged_file
from weft.core.boundary import entry_point
from weft.core.device import Device, get
from weft.core.tensor import Tensor
from weft.nn import functional
from weft.nn.bounds import RANGES
from weft.nn.containers import ModuleDict, ModuleList, ParameterDict, ParameterList, Sequential
from weft.nn.graph_model import Lambda, Model
from weft.nn.module import Module, symbolic
from weft.nn.module.arguments import constructor_arguments
from weft.nn.module.differences import difference
from weft.nn.module.symbolic import Symbol
from weft.nn.parameter import Parameter, is_lazy, stop_waiting
from weft.nn.registry import LAYERS, layers
from weft.random.generator import default_generator
from weft.serialization.nested import flatten_state, unflatten_state
from weft.serialization.safetensors import TensorFile, open_tensors, save_tensors
from weft.serialization.saving import check_format, state_metadata, state_of

MODEL_KEY = "weft.model"
FUNCTION, ITEM, SLICE, SYMBOL = "$function", "$item", "$slice", "$symbol"  # what stands for no module and no number
OPERATORS = ("add", "sub", "mul", "truediv", "matmul", "pow", "neg")  # of symbols

Tree = dict[str, Any]


# ---- saving ----------------------------------------------------------------------------------------------------------


@entry_point
def save(module: Module, path: PathLike) -> None:
    """See `Module.save`."""
    where = as_path("save", path)
    about = {
        "architecture": describe(module),
        "frozen": [name for name, param in module.named_parameters() if not param.requires_grad],
        "eval": [name for name, part in module.named_modules() if not part.training],
    }
    weights, rest = flatten_state(module.state_dict())
    others, model = flatten_state({MODEL_KEY: about})
    if set(weights) & set(others):
        raise problem(GraphError, "save", f"a parameter called {next(iter(set(weights) & set(others)))!r}", "another")
    text = json.dumps(model, separators=(",", ":"), allow_nan=False)
    save_tensors(where, {**weights, **others}, {**state_metadata(rest), MODEL_KEY: text})


@entry_point
def describe(module: Module) -> Tree:
    """A tree from which `build` makes an equal model; an error with the reason where there is none."""
    reasons = []
    for way in (_by_arguments, _by_config):
        try:
            with _random_state_kept():
                tree = way(module)
                _compare(module, build(tree))
            return tree
        except WeftError as error:
            reasons.append(error)
        except Exception as error:  # a constructor of the user's
            reasons.append(_refusal(module, f"whose constructor fails when it is called again ({error})"))
    raise reasons[0]


def _refusal(module: Module, why: str, fix: str = "") -> WeftError:
    fix = fix or "save its weights: weft.save(model.state_dict(), path), and make the model in code"
    given, expected = f"a {type(module).__name__} {why}", "a model that its constructor's arguments describe"
    return problem(GraphError, "Module.save", given, expected, fix)


def _by_config(module: Module) -> Tree:
    """Models that are put together after their constructor has run: their configuration."""
    return {"config": module.to_config()}


def _by_arguments(module: Module) -> Tree:
    cls = type(module)
    if cls is Model and isinstance(module, Model):
        return _model_tree(module)
    children = {name: child for name, child in module._modules.items() if child is not None}
    if cls.__init__ in (Sequential.__init__, ModuleList.__init__) and list(children) == _numbers(len(children)):
        arguments: Tree = {"modules": list(children.values())}
    elif cls.__init__ in (Sequential.__init__, ModuleDict.__init__):
        arguments = {"modules": OrderedDict(children) if issubclass(cls, Sequential) else children}
    elif cls is Lambda:
        arguments = {"function": module.function}
    elif cls in (ParameterList, ParameterDict):
        forms = {name: _form(value) for name, value in module._parameters.items()}
        arguments = {"values": list(forms.values())} if cls is ParameterList else {"parameters": forms}
    else:
        try:
            arguments = constructor_arguments(module)
        except GraphError as error:
            raise _refusal(module, f"({error})") from None
    if "type" in arguments:
        raise _refusal(module, "whose constructor has an argument called 'type'")
    return {
        "type": _class_name(cls),
        **{name: _encode(module, name, value) for name, value in arguments.items() if name != "device"},
    }


def _numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _form(value: Any) -> Any:
    """A parameter of the same form: its values are among the weights."""
    return value if value is None else {"$parameter": list(value.shape), "dtype": value.dtype.name}


def _encode(module: Module, name: str, value: Any) -> Any:
    """An argument as part of the tree; `flatten_state` takes numbers, texts, tensors and dtypes as they are."""
    if isinstance(value, Module):
        return _by_arguments(value)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_encode(module, name, one) for one in value)
    if isinstance(value, dict):
        if "$parameter" not in value and ("type" in value or FUNCTION in value):
            raise _refusal(module, f"whose argument {name!r} is a dict with the key 'type'")
        return type(value)((key, _encode(module, name, one)) for key, one in value.items())
    if isinstance(value, slice):
        return {SLICE: [_encode(module, name, one) for one in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {SLICE: None}
    if isinstance(value, Symbol):
        raise _refusal(module, f"whose argument {name!r} is a symbol")
    if isinstance(value, Device):
        raise _refusal(module, f"whose argument {name!r} is a device")
    if callable(value):
        known = getattr(value, "__name__", "")
        if getattr(functional, known, None) is value:
            return {FUNCTION: known}
        if isinstance(value, operator.itemgetter):
            return {ITEM: _encode(module, name, value.__reduce__()[1][0])}
        if known in OPERATORS and getattr(operator, known) is value:
            return {FUNCTION: f"operator.{known}"}
        raise _refusal(module, f"whose argument {name!r} is a function, {known or type(value).__name__}")
    return value


def _model_tree(model: Model) -> Tree:
    """A model of symbols: its layers, and the calls of them in order; results are numbered, those of inputs first."""
    numbers: dict[int, int] = {}
    layers_of: dict[int, int] = {}
    trees: list[Tree] = []
    calls: list[Any] = []

    def number_symbols(value: Any) -> Any:
        return symbolic.replace_symbols(value, lambda symbol: {SYMBOL: numbers[id(symbol)]})

    for symbol in (*model.inputs, *model._steps):
        module = symbol.module
        if id(module) not in layers_of:
            layers_of[id(module)] = len(trees)
            trees.append(_by_arguments(module))
        call = [layers_of[id(module)], number_symbols(symbol.args), number_symbols(symbol.kwargs)]
        calls.append(_encode(model, "call", call))
        numbers[id(symbol)] = len(numbers)
    outputs = _encode(model, "outputs", number_symbols(model.outputs))
    names = list(model._input_names) or len(model.inputs)
    return {"type": "Model", "inputs": names, "layers": trees, "calls": calls, "outputs": outputs}


def _class_name(cls: type) -> str:
    entry = LAYERS.get(cls.__name__)
    return cls.__name__ if entry is not None and entry.cls is cls else f"{cls.__module__}.{cls.__qualname__}"


def _compare(module: Module, made: Module) -> None:
    """Refuse a model that differs from what its tree makes."""
    fix = "make it so in its constructor, or save its weights with weft.save(model.state_dict(), path)"
    found = difference(module, made)
    if found is not None:
        raise _refusal(module, f"whose {found}", fix)


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    """Let models be made without a trace in the streams of random numbers."""
    own, python, array = default_generator.get_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        default_generator.set_state(own)
        random.setstate(python)
        np.random.set_state(array)  # noqa: NPY002


# ---- loading ---------------------------------------------------------------------------------------------------------


@entry_point
def load(path: PathLike, device: Any = None, classes: Iterable[type] = ()) -> Module:
    """The model that `Module.save` wrote, on `device`. Classes that are not Weft's must exist in the process: import
    the module that defines them before, or give them as `classes`. No code of the file is run."""
    where = as_path("nn.load", path)
    opened = open_tensors(where)
    check_format(opened)
    if MODEL_KEY not in opened.metadata:
        fix = "make the model, and call model.load(path)"
        raise damaged_file("nn.load", where, "it has weights and no architecture", "a file of Module.save", fix)
    target = get(device)
    weights = state_of(opened, target)
    about = _read_header(opened, target)
    with _random_state_kept():
        try:
            module = build(about["architecture"], tuple(classes))
        except FileFormatError:
            raise
        except Exception as error:
            why = f"its architecture cannot be made ({type(error).__name__}: {error})"
            raise damaged_file("nn.load", where, why) from error
    try:
        return _fill(opened, module, weights, about, target)
    except BaseException:
        stop_waiting(module.parameters())  # the traceback holds the module, and its sizes are the file's
        raise


def _read_header(opened: TensorFile, device: Any) -> Tree:
    rest = files.parse_json("nn.load", opened.path, opened.metadata[MODEL_KEY].encode(), "its architecture")
    about = unflatten_state(opened.tensors(device), rest)
    found = about.get(MODEL_KEY) if isinstance(about, dict) else None
    lists = [found.get(key) for key in ("frozen", "eval")] if isinstance(found, dict) else []
    if not isinstance(found, dict) or set(found) != {"architecture", "frozen", "eval"} or not _are_names(lists):
        raise damaged_file("nn.load", opened.path, "its architecture is not described as Module.save does")
    return found


def _are_names(lists: list[Any]) -> bool:
    return all(isinstance(one, list) and all(isinstance(name, str) for name in one) for one in lists)


def _fill(opened: TensorFile, module: Module, weights: Mapping[str, Any], about: Tree, device: Any) -> Module:
    """Give a model that was just made its weights, in their dtypes."""
    module.to(device)
    with no_grad():
        for name, own in [*module.named_parameters(), *module.named_buffers()]:
            value = weights.get(name)
            if not isinstance(value, Tensor) or is_lazy(own) or tuple(own.shape) != tuple(value.shape):
                continue  # what does not fit is reported below
            own._assign(value.node)  # its dtype, too; and what the constructor drew is never computed
    missing = [name for name, param in module.named_parameters(remove_duplicate=False) if name not in weights]
    wrong = [
        f"{name} of shape {list(weights[name].shape)} for {list(param.shape)}"
        for name, param in module.named_parameters()
        if isinstance(weights.get(name), Tensor) and not is_lazy(param) and param.shape != weights[name].shape
    ]
    if missing or wrong:
        raise damaged_file("nn.load", opened.path, f"its weights do not fit its architecture: {(missing + wrong)[0]}")
    try:
        module.load_state_dict(weights)
    except StateDictError as error:  # weights that no layer has
        raise damaged_file("nn.load", opened.path, f"its weights do not fit its architecture: {error}") from None
    for name in about["frozen"]:
        module.get_parameter(name).requires_grad_(False)
    for name in about["eval"]:
        module.get_submodule(name).training = False
    return module


@entry_point
def build(tree: Any, classes: tuple[type, ...] = ()) -> Module:
    """The module that a tree describes."""
    if isinstance(tree, dict) and set(tree) == {"config"}:
        from weft import nn

        if not isinstance(tree["config"], (dict, list)):  # a text could be the path of another file
            raise problem(
                FileFormatError, "nn.load", f"a {type(tree['config']).__name__} as configuration", "an object"
            )
        return nn.from_config(tree["config"])  # type: ignore[no-any-return, attr-defined, unused-ignore]
    if not isinstance(tree, dict) or not isinstance(tree.get("type"), str):
        raise problem(FileFormatError, "nn.load", f"{tree!r:.100} for a layer", "a dict with its type")
    if tree["type"] == "Model":
        return _build_model(tree, classes)
    cls: Any = _find_class(tree["type"], classes)
    arguments = {name: _decode(value, classes) for name, value in tree.items() if name != "type"}
    if "." not in tree["type"]:  # a layer of the catalogue
        for name, value in arguments.items():
            _check_numbers(tree["type"], name, value)
    return _call(cls, arguments)


def _check_numbers(kind: str, name: str, value: Any) -> None:
    """Refuse numbers with which a constructor would not end."""
    if isinstance(value, (list, tuple)):
        for one in value:
            _check_numbers(kind, name, one)
    elif type(value) in (int, float):
        smallest, largest = RANGES.get(
            name, (-math.inf, math.inf) if isinstance(value, float) else (-(2**63), 2**63 - 1)
        )
        if value < smallest or value > largest:
            given = f"{kind} with {name} = {value!r:.40}"
            raise problem(FileFormatError, "nn.load", given, f"a number from {smallest:g} to {largest:g}")


def _build_model(tree: Tree, classes: tuple[type, ...]) -> Module:
    layers_of = [build(one, classes) for one in tree["layers"]]
    names = tree["inputs"]
    count = len(names) if isinstance(names, list) else names
    values: list[Any] = []

    def replace_symbols(value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {SYMBOL}:
            return values[value[SYMBOL]]
        if isinstance(value, (list, tuple)):
            return type(value)(replace_symbols(one) for one in value)
        return {key: replace_symbols(one) for key, one in value.items()} if isinstance(value, dict) else value

    for layer, args, kwargs in tree["calls"]:
        module: Any = layers_of[layer]
        given = replace_symbols(_decode(args, classes)), replace_symbols(_decode(kwargs, classes))
        if len(values) >= count and not symbolic.has_symbol(*given):
            raise problem(FileFormatError, "nn.load", f"a call of {type(module).__name__} without a symbol", "one")
        values.append(module if len(values) < count else module(*given[0], **given[1]))
    inputs = dict(zip(names, values, strict=False)) if isinstance(names, list) else values[:count]
    if isinstance(names, int) and count == 1:
        inputs = values[0]
    return Model(inputs, replace_symbols(_decode(tree["outputs"], classes)))


def _call(cls: Any, arguments: dict[str, Any]) -> Module:
    """Call a constructor with arguments by name; what `*args` takes is a list among them."""
    import inspect

    parameters = inspect.signature(cls).parameters
    several = next((p.name for p in parameters.values() if p.kind is p.VAR_POSITIONAL), None)
    if several is None or several not in arguments:
        return cls(**arguments)
    rest = dict(arguments)
    given = rest.pop(several)
    before = [rest.pop(p.name) for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD and p.name in rest]
    return cls(*before, *(given if isinstance(given, (list, tuple)) else [given]), **rest)


def _decode(value: Any, classes: tuple[type, ...]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_decode(one, classes) for one in value)
    if not isinstance(value, dict):
        return value
    if "type" in value:
        return build(value, classes)
    if FUNCTION in value:
        name = value[FUNCTION]
        if isinstance(name, str) and name.removeprefix("operator.") in OPERATORS:
            return getattr(operator, name.removeprefix("operator."))
        if not isinstance(name, str) or name.startswith("_") or name not in functional.__all__:
            raise problem(FileFormatError, "nn.load", f"the function {name!r:.60}", "one of nn.functional")
        return getattr(functional, name)
    if ITEM in value:
        return operator.itemgetter(_decode(value[ITEM], classes))
    if SLICE in value:
        return ... if value[SLICE] is None else slice(*_decode(value[SLICE], classes))
    if "$parameter" in value:
        from weft.base.dtypes import as_dtype
        from weft.core.creation import zeros

        return Parameter(zeros(value["$parameter"], dtype=as_dtype("nn.load", value.get("dtype"))))
    return type(value)((key, _decode(one, classes)) for key, one in value.items())


def _find_class(name: str, classes: tuple[type, ...]) -> type:
    """A class by the name that a file has for it, among those that exist."""
    for cls in classes:
        if name in (_class_name(cls), cls.__qualname__) or name.rpartition(".")[2] == cls.__qualname__:
            return cls
    if "." not in name:
        entry = layers().get(name)
        if entry is not None:
            return entry.cls
    found = {cls for cls in _subclasses(Module) if f"{cls.__module__}.{cls.__qualname__}" == name}
    if len(found) == 1:
        return found.pop()
    given = f"a model with the class {name!r:.200}, of which there are {len(found)} here"
    fix = "import the module that defines it, or give it: nn.load(path, classes=[TheClass])"
    raise problem(FileFormatError, "nn.load", given, "one", fix)


def _subclasses(cls: type) -> Iterator[type]:
    one: type
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)
