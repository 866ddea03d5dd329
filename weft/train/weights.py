"""The weights that a Trainer trains: those of the model, of a loss that is a module, and of what a custom step uses.

A custom step may train modules that are no part of `model`, as the discriminator of a GAN, or update them itself, as a
moving target network. They are found where the step refers to them (closure, defaults, attributes of its object, names
of its module) and are kept under the names that they have there. Parameters of the optimizers that belong to no module
that is known are kept in their order.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import weft
from weft import nn
from weft.base.errors import GraphError, problem
from weft.core.tensor import Tensor

if TYPE_CHECKING:
    from weft.train.trainer import Trainer


def modules_of(function: Any) -> dict[str, nn.Module]:
    """The modules that a function refers to, by the names that they have there; also through functions of its own
    module that it calls."""
    found: dict[str, nn.Module] = {}
    _collect(function, found, set())
    return found


def _collect(value: Any, found: dict[str, nn.Module], seen: set[int], name: str = "") -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        found.setdefault(name or type(value).__name__, value)
    elif isinstance(value, functools.partial):
        named = {**dict(zip(map(str, range(len(value.args))), value.args, strict=True)), **value.keywords}
        for key, one in [("", value.func), *named.items()]:
            _collect(one, found, seen, key)
    elif isinstance(value, types.MethodType):
        _collect(value.__func__, found, seen)
        if isinstance(value.__self__, nn.Module):
            _collect(value.__self__, found, seen, "self")
            return
        for key, one in getattr(value.__self__, "__dict__", {}).items():
            _collect_values(one, found, seen, key)
    elif isinstance(value, types.FunctionType):
        for key, one in _references(value).items():
            is_own = isinstance(one, types.FunctionType) and one.__module__ == value.__module__
            if is_own or not isinstance(one, types.FunctionType):
                _collect_values(one, found, seen, key)
    elif not name and callable(value) and hasattr(value, "__dict__"):  # an object that is the step
        _collect(types.MethodType(type(value).__call__, value), found, seen)


def _collect_values(value: Any, found: dict[str, nn.Module], seen: set[int], name: str) -> None:
    """As above for a value that a function refers to: modules, functions, and lists, tuples and dicts of them."""
    if isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            _collect_values(one, found, seen, f"{name}.{number}")
    elif isinstance(value, dict) and len(value) < 1000:
        for key, one in list(value.items()):
            _collect_values(one, found, seen, f"{name}.{key}")
    elif isinstance(value, (nn.Module, functools.partial, types.MethodType, types.FunctionType)):
        _collect(value, found, seen, name)


def _references(function: types.FunctionType) -> dict[str, Any]:
    """What the variables of a function that are not its own refer to, by name."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable without a value
            found[name] = cell.cell_contents
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    found.update(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    found.update(function.__kwdefaults__ or {})
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            found[name] = function.__globals__[name]
    return found


def _global_names(code: types.CodeType) -> set[str]:
    inner = [_global_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return set(code.co_names).union(*inner)


# ---- of a Trainer --------------------------------------------------------------------------------------------------


def other_modules(trainer: Trainer) -> dict[str, nn.Module]:
    """Modules of a custom step that are no part of the model or of the loss."""
    if trainer.step is None:
        return {}
    own = {id(module) for one in _own_modules(trainer) for module in one.modules()}
    return {name: one for name, one in modules_of(trainer.step).items() if id(one) not in own}


def _own_modules(trainer: Trainer) -> list[nn.Module]:
    return [one for one in (trainer.model, trainer.loss) if isinstance(one, nn.Module)]


def all_modules(trainer: Trainer) -> list[nn.Module]:
    """Every module that a step may change, each once."""
    found = [module for one in [*_own_modules(trainer), *other_modules(trainer).values()] for module in one.modules()]
    return list({id(module): module for module in found}.values())


def other_parameters(trainer: Trainer) -> list[Tensor]:
    """Parameters of the optimizers that belong to no known module."""
    known = {id(param) for module in all_modules(trainer) for param in module._parameters.values()}
    return list({id(param): param for param in trainer.parameters() if id(param) not in known}.values())


def state_of(trainer: Trainer, everything: bool = False) -> dict[str, Any]:
    """All weights as one nested dict: "model", "loss", "modules" (of a custom step, by name) and "parameters". Of the
    modules of a step those count that it has changed or that an optimizer has parameters of; `everything` takes all."""
    trained = {*map(id, trainer.parameters()), *trainer.written}
    state: dict[str, Any] = {"model": trainer.model.state_dict()}
    if isinstance(trainer.loss, nn.Module):
        state["loss"] = trainer.loss.state_dict()
    others = other_modules(trainer)
    state["modules"] = {
        name: module.state_dict()
        for name, module in others.items()
        if everything or name in trainer.loaded_modules or not trained.isdisjoint(_identities(module))
    }
    state["parameters"] = [param.detach() for param in other_parameters(trainer)]
    return state


def _identities(module: nn.Module) -> Iterator[int]:
    """Of its parameters and buffers, and of the tables that buffers are assigned in."""
    for one in module.modules():
        yield from map(id, [*one._parameters.values(), *one._buffers.values(), one._buffers])


def copy_of(trainer: Trainer, everything: bool = False) -> dict[str, Any]:
    """Copies of all weights, as `state_of` has them."""
    from weft.base import tree

    leaves, structure = tree.flatten(weft.snapshot(state_of(trainer, everything)))
    copies = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    weft.eval(*[one for one in copies if isinstance(one, Tensor)])
    return tree.unflatten(structure, copies)


def check(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Refuse weights of modules or parameters that this trainer does not have, before anything is changed."""
    who, others, rest = "Trainer.load_state_dict", other_modules(trainer), other_parameters(trainer)
    for name in state.get("modules", {}):
        if name not in others:
            given = f"the weights of {name!r}, a module that a step used"
            fix = "use the same names in the step, or make the module a part of the model"
            raise problem(GraphError, who, given, f"one of {', '.join(others) or 'none'}, as this step uses", fix)
    saved = [tuple(one.shape) for one in state.get("parameters", [])]
    if "parameters" in state and saved != [tuple(one.shape) for one in rest]:
        given, expected = f"{len(saved)} parameters beside those of the model", f"the {len(rest)} of the optimizers"
        raise problem(GraphError, who, given, f"{expected}, with their shapes")


def load(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Take over what `state_of` returned; what it does not have stays as it is."""
    check(trainer, state)
    trainer.model.load_state_dict(state["model"])
    if isinstance(trainer.loss, nn.Module) and state.get("loss") is not None:
        trainer.loss.load_state_dict(state["loss"])
    others = other_modules(trainer)
    for name, saved in state.get("modules", {}).items():
        others[name].load_state_dict(saved)
        trainer.loaded_modules.add(name)
    with weft.no_grad():
        for param, value in zip(other_parameters(trainer), state.get("parameters", []), strict=False):
            param.copy_(weft.as_tensor(value, device=param.device))


# ---- weights that are replaced at the end of a run -----------------------------------------------------------------


@contextlib.contextmanager
def replace_weights(trainer: Trainer) -> Iterator[None]:
    """Inside, a callback gives the model other weights at the end of `fit`: the best, or averages. The last ones are
    kept for a `fit` that is called again."""
    before = copy_of(trainer) if trainer.replaced is None else trainer.replaced[0]
    yield
    trainer.replaced = before, copy_of(trainer)


def put_back(trainer: Trainer) -> None:
    """Continue with the weights before they were replaced, unless they have been changed since."""
    if trainer.replaced is None:
        return
    from weft.base import tree

    (before, after), trainer.replaced = trainer.replaced, None
    present, given = tree.flatten(state_of(trainer))[0], tree.flatten(after)[0]
    pairs = [(a, b) for a, b in zip(present, given, strict=False) if isinstance(a, Tensor)]
    if len(present) == len(given) and all(a.shape == b.shape and bool((a == b).all()) for a, b in pairs):
        load(trainer, before)
