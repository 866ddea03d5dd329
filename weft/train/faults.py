"""What can go wrong in a run, and the exit code that a command ends with for it. `docs/training.md` has the table."""

from __future__ import annotations

import builtins
import errno
import signal
import sys
from collections.abc import Callable
from typing import Any

from weft.base.errors import FileFormatError, IndexRangeError, OutOfMemoryError, WeftError
from weft.data.faults import DataError

__all__ = ["Interrupted", "NotFiniteError"]


class NotFiniteError(WeftError, ArithmeticError):
    """A loss that is infinite or no number."""


class Interrupted(BaseException):
    """A run that was requested to stop (Ctrl-C, SIGTERM), has finished its step and has saved what it can.

    `except KeyboardInterrupt` catches Ctrl-C. Unless it is caught, a script ends with the exit code that shells expect,
    128 + the number of the signal (`code`); a Python prompt and a notebook stay, with the model as it is.
    """

    code: Any  # an integer, also where it is that of a SystemExit

    def __init__(self, code: int, message: str):
        super().__init__(code)
        self.code, self.message = code, message

    def __str__(self) -> str:
        return self.message


class InterruptedByUser(Interrupted, SystemExit, KeyboardInterrupt):
    """By Ctrl-C."""


class InterruptedAtPrompt(Interrupted, KeyboardInterrupt):
    """By Ctrl-C at a Python prompt or in a notebook, which a SystemExit would end."""


class InterruptedBySystem(Interrupted, SystemExit):
    """By SIGTERM."""


def interruption(number: int, message: str) -> Interrupted:
    """What to raise after a signal. A prompt shows the message itself."""
    kind: type[Interrupted] = InterruptedBySystem
    if number == signal.SIGINT:
        kind = InterruptedAtPrompt if is_interactive() else InterruptedByUser
        _end_as_system_exit()
    return kind(128 + number, message)


def _end_as_system_exit() -> None:
    """From Python 3.14 on, what is a KeyboardInterrupt and a SystemExit ends a script as the first, with a traceback;
    until then, as the second. Make it the second."""
    before = sys.excepthook
    if sys.version_info < (3, 14) or getattr(before, "ends_interrupted", False):
        return

    def hook(kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, InterruptedByUser):
            raise SystemExit(error.code)
        before(kind, error, traceback)

    hook.ends_interrupted = True
    sys.excepthook = hook


def is_interactive() -> bool:
    """Whether this is an interactive Python prompt or a notebook."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or hasattr(builtins, "__IPYTHON__")


OTHER, NOT_FINITE, LABELS, MISSING, UNREADABLE, DISK_FULL, MEMORY = 1, 3, 4, 5, 6, 7, 8
# The first that fits counts. 2 is that of arguments and configurations that are refused, as for argparse.
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (NotFiniteError, NOT_FINITE),
    (IndexRangeError, LABELS),
    (FileNotFoundError, MISSING),
    (OutOfMemoryError, MEMORY),
    (FileFormatError, UNREADABLE),
    (DataError, UNREADABLE),
)


def exit_code(error: BaseException) -> int:
    """The exit code for an error that ends a run.

    >>> exit_code(FileNotFoundError("no such folder")), exit_code(ValueError("anything"))
    (5, 1)
    """
    if isinstance(error, (SystemExit, Interrupted)):
        return error.code if isinstance(error.code, int) else OTHER
    for one in _chain(error):
        if isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT):
            return DISK_FULL
        for kind, code in EXIT_CODES:
            if isinstance(one, kind):
                return code
    return OTHER


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error and what caused it."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def run_guarded(function: Callable[[], Any]) -> int:
    """Call a function as a command does: what ends a run on purpose is a message and an exit code, not a traceback.
    Errors of which the user cannot know the reason keep their traceback."""
    try:
        function()
    except Interrupted as stop:
        return exit_code(stop)  # its message was shown when it was raised
    except Exception as error:
        code = exit_code(error)
        if code == OTHER and not isinstance(error, WeftError):
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return code
    return 0
