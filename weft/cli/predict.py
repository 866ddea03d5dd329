"""`weft predict RUN`: the results of a trained run, for its validation data or for other data of the same kind."""

from __future__ import annotations

import argparse
import io
from typing import Any

import numpy as np
from rich.console import Console

from weft.base import files
from weft.base.tree import flatten
from weft.cli.arguments import check_output_file
from weft.cli.runs import add_options, load_weights, open_run
from weft.profiling.tables import shorten

SHOWN = 10  # rows
MIN_WIDTH = 16  # columns for the values of a row
WIDE = 10**6  # columns: no row is broken into lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("run", help="the folder of the run")
    parser.add_argument("--input", help="a .npy file, or a .npz with the inputs by name (default: validation data)")
    parser.add_argument("--output", help="write the results to this .npy, .npz or .csv file instead of showing some")
    parser.add_argument("--checkpoint", default="best", help="best (default), last, or the path of one")
    add_options(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    """Compute the results, and write or show them."""
    check_output_file("--output", options.output, ".npy", ".npz", ".csv")
    found, folder = open_run(options.run, options.set)
    trainer = found.trainer(False, options.device)
    name = load_weights(trainer, folder, options.checkpoint)
    results = flatten(trainer.predict(_data(found, options, trainer)))[0]
    arrays = [result.numpy() for result in results]
    values = arrays[0]
    if options.output is not None:
        written = arrays if options.output.endswith(".npz") else arrays[:1]
        _write(options.output, written)
        what = ", ".join(f"{list(one.shape)} of {one.dtype}" for one in written)
        console.print(
            f"{what} written to {options.output}{_describe_omitted(len(arrays) - len(written))}", markup=False
        )
        return 0
    console.print(
        f"{folder}, {name}: results {list(values.shape)}{_describe_omitted(len(arrays) - 1)}, the first of them",
        markup=False,
        soft_wrap=True,
    )
    scores = type(found.loss()).__name__ == "CrossEntropyLoss" and values.ndim == 2
    for number, row in enumerate(values[:SHOWN]):
        label = f"class {_class(found, int(row.argmax()))}  " if scores else ""
        start = f"  {number:>4}  {label}"
        text = shorten(row_text(np.asarray(row)), max(console.width - len(start), MIN_WIDTH))
        console.print(start + text, markup=False, no_wrap=True, crop=True)
    return 0


def row_text(row: np.ndarray) -> str:
    """The values of a row in one line, with `...` in the place of most of many.

    >>> row_text(np.zeros((2, 2)))
    '[[0. 0.] [0. 0.]]'
    """
    edges = 3 if row.ndim < 2 else 1
    text = np.array2string(row, precision=4, threshold=8, edgeitems=edges, max_line_width=WIDE)
    return " ".join(text.split()).replace("[ ", "[")


def _class(found: Any, number: int) -> Any:
    """The name of a class, where the run knows one."""
    names = found.known.get("classes", ())
    return names[number] if number < len(names) else number


def _data(found: Any, options: argparse.Namespace, trainer: Any) -> Any:
    if options.input is None:
        return found.validation_loader(trainer.device) or found.train_loader(trainer.device, is_training=False)
    from weft.data import load_arrays

    return found.input_loader(load_arrays(options.input), trainer.model, trainer.device)


def _describe_omitted(count: int) -> str:
    """What is said of results that are left out."""
    return f" (the first of {count + 1} results: --output x.npz has all)" if count else ""


def _write(path: str, arrays: list[np.ndarray]) -> None:
    content = io.BytesIO()
    if path.endswith(".csv"):
        np.savetxt(content, arrays[0].reshape(len(arrays[0]), -1), delimiter=",", fmt="%.9g")
    elif path.endswith(".npy"):
        np.save(content, arrays[0])
    else:
        np.savez(content, *arrays)
    files.write("--output", path, content.getbuffer())
