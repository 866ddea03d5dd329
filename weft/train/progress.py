"""The progress bar: a line per epoch, with loss, metrics, samples per second, the time that steps waited for data,
device memory and the estimated end. Without a terminal, one line of text per epoch."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import weft
from weft.base.errors import size_text
from weft.train.callbacks import Callback
from weft.train.monitor import Metrics

if TYPE_CHECKING:
    from weft.train.trainer import Trainer

__all__ = ["ProgressBar"]

WIDE = 100  # columns from which the bar is 20 long
LEFT_OUT = ("epoch", "step", "seconds", "wait_seconds", "batch_loss")


class ProgressBar(Callback):
    """Shows a run on the terminal. `every` is the number of steps from one reading of the loss to the next;
    `lines=False` leaves out the line that stays of each epoch."""

    def __init__(self, every: int = 20, console: Any = None, lines: bool = True):
        self.every, self._console, self.lines = every, console, lines
        self._bar: Any = None
        self._task: Any = None
        self._began = 0.0
        self._steps_before = self._epoch_steps_before = 0

    def on_train_begin(self, trainer: Trainer) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = self._console or Console()
        self._shown = console
        self._began, self._steps_before = time.perf_counter(), trainer.step_count
        if console.is_terminal:
            width = 20 if console.width >= WIDE else 10
            columns = [TextColumn("{task.description}"), BarColumn(bar_width=width), MofNCompleteColumn()]
            self._bar = Progress(
                *columns, TextColumn("{task.fields[text]}", markup=False), console=console, transient=True
            )
            self._bar.start()

        if trainer.position:  # an epoch is continued
            self.on_epoch_begin(trainer, trainer.epoch, {})

    def on_epoch_begin(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        self._epoch_began, self._epoch_steps_before = time.perf_counter(), trainer.step_count
        if self._bar is not None:
            total = trainer.planned["batches"]
            self._task = self._bar.add_task(title(trainer, epoch), total=total, completed=trainer.position, text="")

    def on_batch_end(self, trainer: Trainer, batch: int, metrics: Metrics) -> None:
        if self._bar is not None:
            seconds = time.perf_counter() - self._epoch_began
            text = describe(trainer, metrics, seconds, trainer.step_count - self._epoch_steps_before)
            left = self._seconds_left(trainer)
            text = text if left is None else f"{clock(left)} left  {text}"
            self._bar.update(self._task, completed=trainer.position, text=shorten(text, self._width_left(trainer)))

    def _width_left(self, trainer: Trainer) -> int:
        """The columns that title, bar and count leave for the text."""
        width, total = self._shown.width, trainer.planned["batches"]
        count = 2 * len(str(total)) + 1 if total is not None else len(f"{trainer.position}/?")
        return width - len(title(trainer, trainer.epoch)) - (20 if width >= WIDE else 10) - count - 3

    def _seconds_left(self, trainer: Trainer) -> float | None:
        """Until the last planned step, at the pace so far."""
        batches, steps = trainer.planned["batches"], trainer.planned["max_steps"]
        limits = [steps] if steps is not None else []
        if batches is not None:
            limits.append(trainer.planned["epochs"] * batches)
        done = trainer.step_count - self._steps_before
        if not limits or not done:
            return None
        return (time.perf_counter() - self._began) / done * max(min(limits) - trainer.step_count, 0)

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        if self._bar is not None:
            self._bar.remove_task(self._task)
        if self.lines:
            self._print_epoch(trainer, epoch, metrics)

    def _print_epoch(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        steps = trainer.step_count - self._epoch_steps_before
        line = f"{title(trainer, epoch)}  {describe(trainer, metrics, metrics['seconds'], steps)}"
        self._print(wrap(line, self._shown.width) if self._shown.is_terminal else line)

    def _print(self, text: str) -> None:
        """Lines of their own; in a file or a pipe, which have no width, they are never broken."""
        self._shown.print(text, highlight=False, markup=False, soft_wrap=True)

    def on_train_abort(self, trainer: Trainer) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_train_end(self, trainer: Trainer) -> None:
        self.on_train_abort(trainer)
        limit, last = trainer.planned["max_steps"], trainer.history.last
        if self.lines and trainer.position and last.get("epoch") == trainer.epoch:  # it ended inside of an epoch
            self._print_epoch(trainer, trainer.epoch, last)
        if trainer.stopped is not None:
            self._print(f"stopped: {trainer.stopped}")
        elif trainer.position and limit is not None and trainer.step_count >= limit:
            self._print(f"stopped: max_steps={limit} was reached in epoch {trainer.epoch + 1}")


def title(trainer: Trainer, epoch: int) -> str:
    """Which epoch of how many, counted from 1; `max_steps` may end a run in an earlier one than `epochs`."""
    epochs, steps, batches = (trainer.planned[name] for name in ("epochs", "max_steps", "batches"))
    if steps is not None and batches:
        epochs = min(epochs, -(-steps // batches))
    return f"epoch {epoch + 1}/{max(epochs, epoch + 1)}"


def describe(trainer: Trainer, metrics: Metrics, seconds: float, steps: int) -> str:
    """The metrics and the pace as one line."""
    parts = [
        f"{name} {value:.4g}"
        for name, value in metrics.items()
        if name not in LEFT_OUT
        and isinstance(value, (int, float))
        and not (isinstance(value, float) and math.isnan(value))
    ]
    rows = getattr(getattr(trainer._source, "data", None), "batch_size", None) or getattr(
        getattr(trainer._source, "source", None), "batch_size", None
    )
    if seconds > 0 and steps > 0:
        parts.append(f"{steps * rows / seconds:,.0f} samples/s" if rows else f"{steps / seconds:,.1f} steps/s")
    parts.append(f"waited {trainer.wait_seconds:.1f} s")
    if hasattr(weft, "memory_stats"):
        used = weft.memory_stats(trainer.device).get("allocated_bytes.all.current")
        parts += [f"memory {size_text(int(used))}"] if used is not None else []
    return "  ".join(parts)


def shorten(line: str, width: int) -> str:
    """As many pairs of a line as fit into `width` columns, from the left; no pair is cut.

    >>> shorten("0:12 left  loss 0.5  accuracy 0.9", 22)
    '0:12 left  loss 0.5'
    """
    while len(line) > width and line:
        line = line.rpartition("  ")[0]
    return line


def wrap(line: str, width: int) -> str:
    """A line of pairs in lines of at most `width` columns, if each pair fits; no pair is cut.

    >>> print(wrap("epoch 1/2  loss 0.5  accuracy 0.9", 22))
    epoch 1/2  loss 0.5
      accuracy 0.9
    """
    lines: list[str] = []
    for pair in line.split("  "):
        if lines and len(lines[-1]) + 2 + len(pair) <= width:
            lines[-1] += "  " + pair
        else:
            lines.append("  " + pair if lines else pair)
    return "\n".join(lines)


def clock(seconds: float) -> str:
    """A duration as hours, minutes and seconds.

    >>> clock(59.4), clock(3671)
    ('0:59', '1:01:11')
    """
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
