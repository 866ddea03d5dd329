"""`weft init`: write a configuration to start from, by a few questions or for a task, with example data beside it where
none is given. What it writes trains as it is: `weft train config.json`."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.prompt import Prompt

from weft.base import files as files_on_disk
from weft.base.errors import ConfigError, problem
from weft.cli.arguments import check_output_file, check_output_folder
from weft.config import samples_of_data as examples
from weft.config.run import load_run
from weft.config.sources import refuse_missing, tokenizer_of

TASKS = {
    "image": "classes of images",
    "text": "the next character of a text",
    "tabular": "a column of a table",
    "graph": "classes of the nodes of a graph",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("path", nargs="?", default="config.json", help="the file to write (default: config.json)")
    parser.add_argument("--task", choices=list(TASKS), help="ask nothing; write the configuration of this task")
    parser.add_argument(
        "--data", help="your data: a folder of images by class, a text, a CSV file, or a .npz of a graph"
    )
    parser.add_argument("--target", help="the column to predict, of a table")
    parser.add_argument("--force", action="store_true", help="replace files that are there")


def run(options: argparse.Namespace, console: Console) -> int:
    """Write the file, and read it once to see that it is right."""
    path = Path(options.path)
    if path.suffix != ".json":
        raise problem(ConfigError, "weft init", str(path), "a name that ends in .json")
    check_output_folder("weft init", path.parent)
    if path.parent.is_dir():
        check_output_file("weft init", str(path), ".json")
    task, data, target = options.task, options.data, options.target
    if task is None:
        task, data, target = _ask(console, data, target)
    files: dict[str, Any] = {}
    tree = MAKERS[task](data, target, files)
    for name in (path.name, *files):
        if (path.parent / name).exists() and not options.force:
            raise problem(
                ConfigError, "weft init", f"{path.parent / name}, which exists", "a new file", "--force replaces it"
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        _write(path.parent / name, content)
    files_on_disk.write("weft init", path, json.dumps(tree, indent=2) + "\n")
    load_run(path)
    written = ", ".join([path.name, *files])
    console.print(f"written: {written}; it predicts {TASKS[task]}", markup=False, soft_wrap=True)
    console.print(f"`weft train {path}` trains it", markup=False, soft_wrap=True)
    console.print(f"`weft summary {path}` shows the network", markup=False, soft_wrap=True)
    return 0


def _ask(console: Console, data: str | None, target: str | None) -> tuple[str, str | None, str | None]:
    """Task, data and target, from prompts at the terminal."""
    if not sys.stdin.isatty():
        given, expected = "no terminal to ask at", "--task image, text, tabular or graph"
        raise problem(ConfigError, "weft init", given, expected)
    for name, about in TASKS.items():
        console.print(f"  {name:<8} predicts {about}", markup=False)
    task = Prompt.ask("Which task", choices=list(TASKS), default="image", console=console)
    if data is None:
        kind = {"image": "folder of images", "text": "text file", "tabular": "CSV file", "graph": ".npz file"}[task]
        data = Prompt.ask(f"Your {kind} (empty: an example)", default="", show_default=False, console=console) or None
    if task == "tabular" and data is not None and target is None:
        target = Prompt.ask("The column to predict", console=console)
    return task, data, target


def _write(path: Path, content: Any) -> None:
    if not isinstance(content, str):
        arrays, content = content, io.BytesIO()
        np.savez(content, **arrays)
        content = content.getbuffer()
    files_on_disk.write("weft init", path, content)


def _run(model: Any, data: dict[str, Any], loss: Any, metrics: list[Any], epochs: int, lr: float) -> dict[str, Any]:
    return {
        "model": model,
        "data": data,
        "loss": loss,
        "optimizer": {"type": "AdamW", "lr": lr},
        "metrics": metrics,
        "trainer": {"epochs": epochs, "device": "auto", "seed": 0},
    }


def _image(data: str | None, target: str | None, files: dict[str, Any]) -> dict[str, Any]:
    channels, classes, size = 1, 10, 8
    source: dict[str, Any] = {"type": "digits", "shape": [1, 8, 8], "batch_size": 64}
    if data is not None:
        found = sorted(one.name for one in Path(data).iterdir() if one.is_dir()) if Path(data).is_dir() else []
        if len(found) < 2:
            raise problem(ConfigError, "weft init", repr(data), "a folder with one folder of images for each class")
        channels, classes, size = 3, len(found), 64
        source = {
            "type": "images",
            "folder": str(Path(data).resolve()),
            "size": size,
            "batch_size": 32,
            "validation": 0.2,
        }
        source["transform"] = ["ToFloat"]
    conv = {"type": "Conv2d", "kernel_size": 3, "padding": 1, "activation": "relu"}
    model = [
        {**conv, "in_channels": channels, "out_channels": 16},
        {"type": "MaxPool2d", "kernel_size": 2},
        {**conv, "in_channels": 16, "out_channels": 32},
        {"type": "GlobalAvgPool2d"} if size > 8 else {"type": "MaxPool2d", "kernel_size": 2},
        *([] if size > 8 else ["Flatten"]),
        {"type": "Linear", "in_features": 32 if size > 8 else 128, "out_features": classes},
    ]
    return _run(model, source, "CrossEntropyLoss", ["accuracy"], 10, 0.003)


def _text(data: str | None, target: str | None, files: dict[str, Any]) -> dict[str, Any]:
    if data is None:
        data, files["text.txt"] = "text.txt", examples.TEXT
        count = len({*examples.TEXT})
    else:
        data = str(Path(data).resolve())
        count = tokenizer_of({"path": data}, Path())[0].vocab_size
    width, hidden = 32, 128
    embedding = {"type": "Embedding", "num_embeddings": count, "embedding_dim": width}
    rnn = {"type": "LSTM", "input_size": width, "hidden_size": hidden, "batch_first": True}
    model = {
        "type": "Model",
        "inputs": {"tokens": {"shape": [None], "dtype": "int64"}},
        "nodes": {
            "embedded": {"layer": embedding, "from": "tokens"},
            "rnn": {"layer": rnn, "from": "embedded"},
            "steps": {"from": "rnn", "take": 0},
            "scores": {"layer": {"type": "Linear", "in_features": hidden, "out_features": count}, "from": "steps"},
        },
        "outputs": "scores",
    }
    source = {"type": "text", "path": data, "length": 32, "stride": 8, "batch_size": 32, "validation": 0.1}
    loss = {"type": "CrossEntropyLoss", "classes_last": True}
    return _run(model, source, loss, ["accuracy", "perplexity"], 10, 0.01)


def _describe_table(data: str | None, target: str | None, files: dict[str, Any]) -> dict[str, Any]:
    from weft.data import read_csv
    from weft.data.csv_files import parse_csv

    if data is None:
        data, target = "table.csv", "species"
        files[data] = examples.make_table()
        table = parse_csv(files[data].encode())
    else:
        table, data = read_csv(data), str(Path(data).resolve())
    if target not in list(table):
        names = ", ".join(table)
        raise problem(ConfigError, "weft init", f"the target {target!r}", f"one of {names}", "give it with --target")
    features = [name for name in table if name != target and table[name].dtype.kind in "biuf"]
    refuse_missing(table, [*features, target])
    is_number = table[target].dtype.kind == "f"
    outputs = 1 if is_number else len({*table[target].tolist()})
    model = [
        {"type": "Linear", "in_features": len(features), "out_features": 32, "activation": "relu"},
        {"type": "Linear", "in_features": 32, "out_features": 32, "activation": "relu"},
        {"type": "Linear", "in_features": 32, "out_features": outputs},
    ]
    source = {"type": "csv", "path": data, "target": target, "features": features, "standardize": True}
    source.update(batch_size=16, validation=0.2)
    loss, metrics = ("MSELoss", ["mae", "r2"]) if is_number else ("CrossEntropyLoss", ["accuracy"])
    return _run(model, source, loss, metrics, 20, 0.01)


def _graph(data: str | None, target: str | None, files: dict[str, Any]) -> dict[str, Any]:
    if data is None:
        data, arrays = "karate.npz", examples.make_karate_club()
        files[data] = arrays
    else:
        from weft.data import load_arrays

        arrays, data = load_arrays(data), str(Path(data).resolve())
        missing = [name for name in ("x", "edge_index", "y", "train") if name not in arrays]
        if missing:
            raise problem(
                ConfigError, "weft init", f"a file without {', '.join(missing)}", "x, edge_index, y and train"
            )
    width, classes = arrays["x"].shape[1], int(arrays["y"].max()) + 1
    first = {"type": "GCNConv", "in_channels": width, "out_channels": 16, "activation": "relu"}
    model = {
        "type": "Model",
        "inputs": {"x": [width], "edges": {"shape": [None], "dtype": "int64"}},
        "nodes": {
            "hidden": {"layer": first, "from": ["x", "edges"]},
            "scores": {
                "layer": {"type": "GCNConv", "in_channels": 16, "out_channels": classes},
                "from": ["hidden", "edges"],
            },
        },
        "outputs": "scores",
    }
    return _run(model, {"type": "graph", "path": data}, "CrossEntropyLoss", ["accuracy"], 100, 0.01)


MAKERS = {"image": _image, "text": _text, "tabular": _describe_table, "graph": _graph}
