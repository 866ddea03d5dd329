"""What a module contains: its parameters, buffers and submodules by their paths, each once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from weft.base.errors import GraphError, problem
from weft.base.state import STATE
from weft.core.tensor import Tensor
from weft.nn.module.attributes import ModuleAttributes
from weft.nn.parameter import Parameter

if TYPE_CHECKING:
    from weft.nn.module.module import Module


class ModuleTraversal(ModuleAttributes):
    """The iterators of `Module` and what looks up a path."""

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it with their paths; each once, where it is found first."""
        memo = set() if memo is None else memo
        module: Any = self
        if remove_duplicate and module in memo:
            return
        memo.add(module)
        note_module(module)
        yield prefix, module
        for name, child in self._modules.items():
            if child is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield from child.named_modules(memo, path, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The submodules with their names; each once."""
        seen: set[Module] = set()
        note_module(self)
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                note_module(child)
                yield name, child

    def children(self) -> Iterator[Module]:
        """The submodules."""
        return (child for _, child in self.named_children())

    def _iterate_named(
        self, kind: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        note_module(self)
        owners = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else iter([(prefix, self)])
        )
        for path, module in owners:
            for name, value in module.__dict__[kind].items():
                if value is None or (remove_duplicate and id(value) in seen):
                    continue
                seen.add(id(value))
                yield f"{path}.{name}" if path else name, value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters with their paths; shared ones once."""
        return self._iterate_named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters; shared ones once."""
        return (param for _, param in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers with their paths."""
        return self._iterate_named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """The module at a path such as 'encoder.layers.0'; '' is this one."""
        module: Any = self
        for name in target.split(".") if target else ():
            found = module._modules.get(name) if isinstance(module, ModuleAttributes) else None
            if found is None:
                known = ", ".join(module._modules) or "no submodules"
                given = f"the path {target!r}, of which {type(module).__name__} has no {name!r}"
                raise AttributeError(str(problem(GraphError, "get_submodule", given, f"one of {known}")))
            module = found
            note_module(module)
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Replace the module at a path. With `strict` there must be one."""
        path, _, name = target.rpartition(".")
        if not target:
            raise ValueError("set_submodule: given an empty path; expected the path of a submodule.")
        parent = self.get_submodule(path)
        if strict and name not in parent._modules:
            raise AttributeError(f"set_submodule: {type(parent).__name__} has no submodule {name!r}")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a path."""
        return self._get("_parameters", target, "parameter")

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at a path."""
        return self._get("_buffers", target, "buffer")

    def _get(self, kind: str, target: str, what: str) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        note_module(module)
        if name not in module.__dict__[kind]:
            raise AttributeError(f"{type(module).__name__} has no {what} {name!r}")
        return module.__dict__[kind][name]


def note_module(module: Any) -> None:
    """While a function is traced, let it know of a module that it looks at."""
    if STATE.trace is not None and module is not None:
        STATE.trace.modules[id(module)] = module
