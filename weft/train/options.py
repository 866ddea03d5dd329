"""Options of a Trainer that its compiled steps were traced with: to change one is seen by the next step.

A step reads them while it is traced and never again, so a replayed step pays nothing for them. Instead an assignment
checks the value, derives what depends on it (`Trainer.change_option`), and forgets what was traced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.errors import GraphError, problem

if TYPE_CHECKING:
    from weft.train.trainer import Trainer


class Option:
    """An attribute that may be assigned at any time; inside `__init__` without consequences."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, trainer: Trainer | None, owner: type | None = None) -> Any:
        return self if trainer is None else trainer.__dict__[self.name]

    def __set__(self, trainer: Trainer, value: Any) -> None:
        if not trainer.is_complete:
            trainer.__dict__[self.name] = value
        elif trainer.__dict__[self.name] is not value:
            trainer.change_option(self.name, value)


class Fixed(Option):
    """An attribute that stays what `__init__` made it."""

    def __set__(self, trainer: Trainer, value: Any) -> None:
        if trainer.is_complete and trainer.__dict__[self.name] is not value:
            given = f"another {self.name} for a Trainer that was made"
            fix = "make a Trainer with it; load_state_dict(other.state_dict()) takes over the rest"
            raise problem(GraphError, "Trainer", given, "the one that it was made with", fix)
        trainer.__dict__[self.name] = value
