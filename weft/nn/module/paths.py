"""Where in a model an error happened: the path of the module that raised it is part of the message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft.base.errors import DTypeError, WeftError, is_raised_inside, problem
from weft.core.tensor import Tensor

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


def check_input(module: Module, args: tuple[Any, ...], error: BaseException) -> None:
    """Raise an error that names the input where a layer of Weft's has failed because it was called with a list, an
    array or a number; else do nothing. `error` has left `forward` without a frame of the user's in between."""
    entry = error.__traceback__
    if (
        isinstance(error, WeftError)
        or not args
        or isinstance(args[0], Tensor)
        or entry is None
        or entry.tb_next is None
    ):
        return
    if not type(module).__module__.startswith("weft.") or not is_raised_inside(error):
        return
    for kind in (list, np.ndarray, bool, int, float, str, dict, type(None)):
        if not isinstance(args[0], kind):
            continue
        given = f"an input of type {kind.__name__}"  # not that of a number whose value a trace does not know
        fix = "convert it with weft.tensor"
        raise problem(DTypeError, type(module).__name__, given, "a tensor", fix) from None
