"""The dicts in which a module keeps its parameters, buffers and submodules. Compiled functions see every change."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from weft.base.state import MODULES, STATE

Value = TypeVar("Value")


def _note(value: Any) -> Any:
    """While a function is traced, let it know of a module that it takes from here."""
    trace = STATE.trace
    if trace is not None and hasattr(type(value), "_is_weft_module"):
        trace.modules[id(value)] = value
    return value


def _note_all(registered: dict[str, Any]) -> None:
    if STATE.trace is not None:
        for value in dict.values(registered):
            _note(value)


class Registered(dict[str, Value], Generic[Value]):
    """A dict that bumps the version of all modules whenever it is changed."""

    def __getitem__(self, key: str) -> Value:
        return _note(super().__getitem__(key))

    def get(self, key: str, default: Any = None) -> Any:
        return _note(super().get(key, default))

    def values(self) -> Any:
        _note_all(self)
        return super().values()

    def items(self) -> Any:
        _note_all(self)
        return super().items()

    def __setitem__(self, key: str, value: Value) -> None:
        MODULES.bump()
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        MODULES.bump()
        super().__delitem__(key)

    def pop(self, *args: Any) -> Any:
        MODULES.bump()
        return super().pop(*args)

    def popitem(self) -> tuple[str, Value]:
        MODULES.bump()
        return super().popitem()

    def clear(self) -> None:
        MODULES.bump()
        super().clear()

    def update(self, *args: Any, **kwargs: Any) -> None:
        MODULES.bump()
        super().update(*args, **kwargs)

    def setdefault(self, *args: Any) -> Any:
        MODULES.bump()
        return super().setdefault(*args)

    def move_to_end(self, key: str, last: bool = True) -> None:
        """As in an OrderedDict."""
        items = [(name, value) for name, value in self.items() if name != key]
        moved = (key, self[key])
        self.clear()
        super().update([*items, moved] if last else [moved, *items])
