"""Where in a model an error happened: the path of the module that raised it is part of the message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.errors import WeftError

if TYPE_CHECKING:
    from weft.nn.module import Module


def add_path(error: WeftError, module: Module) -> None:
    """Let an error that comes out of `module` say in which of its layers it was raised.

    Called by every module on the way out: the innermost one leaves itself, each outer one the path to it.
    """
    known: Any = getattr(error, "_module", None)
    if known is None:
        error._module = module  # type: ignore[attr-defined]
        error._text = str(error)  # type: ignore[attr-defined]
        error._layer = _short(module)  # type: ignore[attr-defined]
        return
    path = next((name for name, one in module.named_modules() if one is known), None)
    if path:
        text, layer = error._text, error._layer  # type: ignore[attr-defined]
        error.args = (f"{path} ({layer}): {text}", *error.args[1:])


def _short(module: Module) -> str:
    """A module in one line."""
    return repr(module).split("\n")[0].rstrip("(")
