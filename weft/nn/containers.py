"""Containers of modules and parameters, as in PyTorch."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from weft.autograd.function import run_checkpointed
from weft.base.errors import DTypeError, IndexRangeError, RangeError, problem
from weft.core.tensor import Tensor
from weft.nn.module import Module
from weft.nn.module.module import indent
from weft.nn.module.traversal import note_module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer


class _Numbered(Module):
    """Modules under the names '0', '1', ..."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        for module in list(self._modules.values()):
            note_module(module)
            yield module

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._of(list(self._modules.items())[index])
        module = self._modules[self._name(index)]
        note_module(module)
        return module

    def __setitem__(self, index: Any, module: Module) -> None:
        setattr(self, self._name(index), module)

    def __delitem__(self, index: Any) -> None:
        names = list(self._modules)[index] if isinstance(index, slice) else [self._name(index)]
        for name in names:
            del self._modules[name]
        self._renumber()

    def __contains__(self, module: object) -> bool:
        return any(one is module for one in self._modules.values())

    def _name(self, index: Any) -> str:
        number, count = operator.index(index), len(self)
        if not -count <= number < count:
            given = f"index {number} into {count} modules"
            raise problem(IndexRangeError, type(self).__name__, given, f"an index from {-count} to {count - 1}")
        return list(self._modules)[number]

    def _of(self, items: list[tuple[str, Any]]) -> Any:
        return type(self)(module for _, module in items)  # type: ignore[call-arg]

    def _renumber(self) -> None:
        modules = list(self._modules.values())
        self._modules.clear()
        for number, module in enumerate(modules):
            self._modules[str(number)] = module

    def append(self, module: Module) -> Any:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Any:
        """Put a module before the one at `index`."""
        if not isinstance(module, Module):
            raise problem(DTypeError, f"{type(self).__name__}.insert", f"a {type(module).__name__}", "a Module")
        count = len(self)
        if not -count <= index <= count:
            given = f"index {index} into {count} modules"
            raise problem(IndexRangeError, f"{type(self).__name__}.insert", given, f"an index from {-count} to {count}")
        if not all(name.isdigit() for name in self._modules):
            given = f"modules with names of their own: {', '.join(self._modules)}"
            raise problem(RangeError, f"{type(self).__name__}.insert", given, "modules that are numbered")
        modules = list(self._modules.values())
        modules.insert(index, module)
        self._modules.clear()
        for number, one in enumerate(modules):
            self._modules[str(number)] = one
        return self

    def pop(self, index: int = -1) -> Any:
        """Take a module out."""
        module = self[index]
        del self[index]
        return module


@layer("X05", learns="-")
class Sequential(_Numbered):
    """Modules one after the other: y = fₙ(... f₂(f₁(x))). Takes modules, a list of them, or an OrderedDict with names.

    >>> model = weft.nn.Sequential(weft.nn.Identity(), weft.nn.Identity())
    >>> model.add(weft.nn.Identity())
    Sequential(
      (0): Identity()
      (1): Identity()
      (2): Identity()
    )
    >>> model(weft.ones(2))
    tensor([1., 1.])
    """

    def __init__(self, *modules: Any):
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], OrderedDict):
            for name, module in modules[0].items():
                self.add_module(name, module)
            return
        if len(modules) == 1 and isinstance(modules[0], Iterable) and not isinstance(modules[0], Module):
            modules = tuple(modules[0])
        for number, module in enumerate(modules):
            self.add_module(str(number), module)

    def forward(self, input: Any) -> Any:
        modules = list(self._modules.values())
        segments = self._recomputes()
        if type(segments) is not int or segments < 1:
            return _in_turn(modules, input)
        bounds = [len(modules) * k // segments for k in range(segments + 1)]
        for start, stop in itertools.pairwise(bounds):
            if start < stop:
                input = run_checkpointed(functools.partial(_in_turn, modules[start:stop]), (input,), {})
        return input

    def add(self, module: Module) -> Sequential:
        """The same as `append`."""
        return self.append(module)

    def _of(self, items: list[tuple[str, Any]]) -> Sequential:
        return type(self)(OrderedDict(items))

    def _renumber(self) -> None:
        if all(name.isdigit() for name in self._modules):
            super()._renumber()

    def __add__(self, other: Sequential) -> Sequential:
        return Sequential(*self, *other)

    def __iadd__(self, other: Sequential) -> Sequential:
        return self.extend(other)

    def __mul__(self, count: int) -> Sequential:
        return Sequential(*[module for _ in range(count) for module in self])

    __rmul__ = __mul__


def _in_turn(modules: Iterable[Any], input: Any) -> Any:
    for module in modules:
        input = module(input)
    return input


@layer(learns="-")
class ModuleList(_Numbered):
    """A list of modules that are registered under their numbers.

    >>> layers = weft.nn.ModuleList([weft.nn.Identity() for _ in range(2)])
    >>> len(layers), [name for name, _ in layers.named_children()]
    (2, ['0', '1'])
    """

    def __init__(self, modules: Iterable[Module] | None = None):
        super().__init__()
        self.extend(modules or ())

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __repr__(self) -> str:
        """As other modules, with neighbours that look the same on one line: `(0-3): 4 x Linear(...)`."""
        lines, start = [], 0
        for text, group in itertools.groupby(map(repr, self)):
            count = len(list(group))
            label = f"({start}): " if count == 1 else f"({start}-{start + count - 1}): {count} x "
            lines.append(f"  {label}{indent(text)}\n")
            start += count
        return f"{self._get_name()}(" + ("\n" + "".join(lines) if lines else "") + ")"

    def __iadd__(self, other: Iterable[Module]) -> ModuleList:
        return self.extend(other)


@layer(learns="-")
class ModuleDict(Module):
    """A dict of modules that are registered under their keys.

    >>> heads = weft.nn.ModuleDict({"a": weft.nn.Identity()})
    >>> heads["a"](weft.ones(1))
    tensor([1.])
    """

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None):
        super().__init__()
        self.update(modules or {})

    def __getitem__(self, key: str) -> Any:
        module = self._modules[key]
        note_module(module)
        return module

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._modules))

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def keys(self) -> list[str]:
        """The names."""
        return list(self._modules)

    def values(self) -> list[Any]:
        """The modules."""
        return [self[key] for key in self]

    def items(self) -> list[tuple[str, Any]]:
        """Names and modules."""
        return [(key, self[key]) for key in self]

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add or replace modules."""
        for key, module in modules.items() if isinstance(modules, Mapping | ModuleDict) else modules:
            self[key] = module

    def pop(self, key: str) -> Any:
        """Take a module out."""
        return self._modules.pop(key)

    def clear(self) -> None:
        """Take all modules out."""
        self._modules.clear()


@layer(learns="-")
class ParameterList(Module):
    """A list of parameters that are registered under their numbers. Tensors become parameters.

    >>> weights = weft.nn.ParameterList([weft.ones(2), weft.zeros(3)])
    >>> [(name, tuple(w.shape)) for name, w in weights.named_parameters()]
    [('0', (2,)), ('1', (3,))]
    """

    def __init__(self, values: Iterable[Any] | None = None):
        super().__init__()
        self._size = 0
        self.extend(values or ())

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter([self[number] for number in range(len(self))])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ParameterList([self[number] for number in range(*index.indices(len(self)))])
        return getattr(self, str(self._number(index)))

    def __setitem__(self, index: int, value: Any) -> None:
        setattr(self, str(self._number(index)), _as_parameter(value))

    def _number(self, index: int) -> int:
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            given = f"index {number} into {len(self)} parameters"
            raise problem(IndexRangeError, "ParameterList", given, f"an index from {-len(self)} to {len(self) - 1}")
        return number % len(self)

    def append(self, value: Any) -> ParameterList:
        """Add a parameter at the end."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Add parameters at the end."""
        for value in values:
            self.append(value)
        return self

    def __iadd__(self, values: Iterable[Any]) -> ParameterList:
        return self.extend(values)

    def extra_repr(self) -> str:
        return "\n".join(f"({number}): {_describe(value)}" for number, value in enumerate(self))


@layer(learns="-")
class ParameterDict(Module):
    """A dict of parameters that are registered under their keys. Tensors become parameters.

    >>> weights = weft.nn.ParameterDict({"a": weft.ones(2)})
    >>> list(weights.state_dict())
    ['a']
    """

    def __init__(self, parameters: Any = None):
        super().__init__()
        self._keys: tuple[str, ...] = ()
        self.update(parameters or {})

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self._keys:
            self._keys = (*self._keys, key)
        setattr(self, key, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        self._keys = tuple(one for one in self._keys if one != key)
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def keys(self) -> list[str]:
        """The names."""
        return list(self._keys)

    def values(self) -> list[Any]:
        """The parameters."""
        return [self[key] for key in self]

    def items(self) -> list[tuple[str, Any]]:
        """Names and parameters."""
        return [(key, self[key]) for key in self]

    def update(self, values: Any) -> None:
        """Add or replace parameters."""
        for key, value in values.items() if hasattr(values, "items") else values:
            self[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        """The parameter under a key, or `default`."""
        return getattr(self, key) if key in self._keys else default

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The parameter under a key; `default` is put there if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> ParameterDict:
        """Another dict with the same parameters."""
        return ParameterDict(dict(self.items()))

    def clear(self) -> None:
        """Take all parameters out."""
        for key in self:
            del self[key]

    def pop(self, key: str) -> Any:
        """Take a parameter out."""
        value = self[key]
        del self[key]
        return value

    def extra_repr(self) -> str:
        return "\n".join(f"({key}): {_describe(value)}" for key, value in self.items())


def _as_parameter(value: Any) -> Any:
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    sizes = "x".join(map(str, value.shape))
    return f"{type(value).__name__} containing: [{value.dtype} of size {sizes}]"
