"""What the commands of runs share: the folder of a run, its configuration, its checkpoints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from weft.base.errors import ConfigError, problem
from weft.config import sources
from weft.config.locations import check_keys
from weft.config.model import build
from weft.config.reading import Source, read
from weft.config.run import KEYS, Run, load_run
from weft.nn.module import Module
from weft.train import saving
from weft.train.loggers import write_text

CONFIG = "config.json"  # in the folder of a run
DATA = "data.json"  # beside it: what was derived from the data, such as classes


def network(source: Source) -> Module:
    """The model of a file: a network, or that of a run, which may be in a file of its own beside it."""
    tree, location = read(source)
    named = tree.get("model") if is_run(tree) else None
    if is_run(tree):
        check_keys(location, tree, KEYS)
    if isinstance(named, str) and named.lower().endswith((".json", ".toml")):
        tree, location = read(Path(str(source)).parent / named)
    return build(location, tree)


def is_run(tree: Any) -> bool:
    """Whether a tree describes a run, and not a network alone."""
    return isinstance(tree, dict) and "model" in tree and "type" not in tree


def is_graph(run: Run) -> bool:
    """Whether the batches of a run are whole graphs, whose tensors have no rows in common."""
    return bool(run.tree["data"].get("type") == "graph")


def add_options(parser: argparse.ArgumentParser, example: str = "data.batch_size=64") -> None:
    """Options that change what the configuration says."""
    parser.add_argument("--device", help="where to compute (default: what the file says, or auto)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=f"change a value, as {example}")


def open_run(folder: str, changes: list[str]) -> tuple[Run, Path]:
    """The run in a folder, with changes of its configuration."""
    path = Path(folder)
    if path.is_file():
        raise problem(ConfigError, folder, "a file", "the folder of a run", "`weft train` makes one from a file")
    if not (path / CONFIG).is_file():
        raise problem(
            ConfigError, folder, f"a folder without {CONFIG}", "the folder of a run, as `weft train` makes it"
        )
    run = load_run(path / CONFIG, changes)
    if (path / DATA).is_file():
        known, location = read(path / DATA)
        run.known.update(sources.check_known(location, known))
    return run, path


def save_config(run: Run, folder: Path) -> None:
    """Keep the configuration with the run, and what was derived from its data, which are read."""
    run.parts()
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / DATA, json.dumps(run.known, indent=2) + "\n")
    write_text(folder / CONFIG, json.dumps(run.to_config(), indent=2) + "\n")


def checkpoints(folder: Path) -> Any:
    """The checkpoints of a run."""
    from weft.serialization import CheckpointFolder

    return CheckpointFolder(folder / "checkpoints")


def load_weights(trainer: Any, folder: Path, which: str) -> str:
    """Give the model and the loss the weights of the best or the last checkpoint, or of one at a path, and callbacks
    their averages of weights, with which a run was validated; returns its name."""
    from weft.serialization import unflatten_state

    kept = checkpoints(folder)
    path = kept.best() or kept.latest() if which == "best" else kept.latest() if which == "last" else Path(which)
    if path is None:
        raise problem(ConfigError, str(folder), "a run without a complete checkpoint", "one that was trained")
    found = kept.load(path, device=trainer.device)
    state = unflatten_state(found.tensors, found.state)
    saving.load_weights(trainer, state)
    return path.name


def print_metrics(metrics: dict[str, Any], console: Console) -> None:
    """Names and values, a line each."""
    width = max(map(len, metrics), default=0)
    for name, value in metrics.items():
        text = f"{value:.6g}" if isinstance(value, float) else json.dumps(value, default=str)
        console.print(f"  {name:<{width}}  {text}", markup=False)
