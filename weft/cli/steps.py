"""What the commands `kernels`, `graph` and `profile` look at: a network or a run from a file, and its training
step with a batch. A run brings its data, loss and optimizer; a network alone gets random inputs, the mean squared error
from random targets, and AdamW."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import weft
from weft import nn
from weft.cli.arguments import parse_positive
from weft.cli.runs import is_graph, is_run, network
from weft.config.inputs import check_count, example_inputs, input_forms, parse_shapes
from weft.config.reading import read
from weft.core.tensor import Tensor
from weft.train.batches import Streamed, as_arguments
from weft.train.step import present_numbers
from weft.train.trainer import Trainer


@dataclass(frozen=True)
class Case:
    """A model, a batch for it (inputs alone), and a function with its arguments to compile."""

    model: nn.Module
    inputs: list[Tensor]
    step: Callable[..., Any]
    args: tuple[Any, ...]
    trainer: Trainer | None = None  # whose step it is: the step does not keep it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file and how it is used."""
    parser.add_argument("config", type=Path, help="a network or a run, in JSON or TOML")
    parser.add_argument("--input", action="append", default=[], help="shape of an input without the batch, as 3,32,32")
    parser.add_argument("--batch", type=parse_positive, help="rows of the batch (default: what the file says, or 32)")
    parser.add_argument("--device", help="where to compute (default: what the file says, or auto)")
    parser.add_argument("--forward", action="store_true", help="the forward pass alone, in evaluation mode")


def load(options: argparse.Namespace) -> Case:
    """What the file describes, on the device."""
    tree, _ = read(options.config)
    if is_run(tree) and "data" in tree and not options.input:
        return _of_run(options)
    return _of_network(options)


def _of_run(options: argparse.Namespace) -> Case:
    from weft.config import load_run

    changes = ["trainer.run=null"]  # it is looked at, not trained
    found = load_run(options.config, changes)
    if options.batch and not is_graph(found):
        found = load_run(options.config, [*changes, f"data.batch_size={options.batch}"])
    trainer = found.trainer(device=options.device)
    batch = as_arguments(next(iter(found.train_loader(trainer.device))), trainer.device)
    inputs = [one for one in batch[:-1] if isinstance(one, Tensor)]
    if options.forward:
        return _forward(trainer.model, inputs)
    numbers = present_numbers(trainer.optimizers) if trainer.schedules_steps else []
    step = trainer._steps_for(Streamed((), trainer.device)).streamed
    return Case(trainer.model, inputs, step, (*batch, *numbers), trainer)


def _of_network(options: argparse.Namespace) -> Case:
    device = weft.get_device(options.device or "auto")
    weft.manual_seed(0)
    with weft.device("cpu"):
        model = network(options.config)
    forms = parse_shapes(options.input) if options.input else input_forms(model)
    batch = options.batch or getattr(model, "batch_size", None) or 32
    inputs = [one.to(device) for one in example_inputs(forms, batch)]
    check_count(model, inputs)
    model = model.to(device)
    if options.forward:
        return _forward(model, inputs)
    with weft.no_grad():
        target = weft.rand_like(_first(model(*inputs)))
    weft.eval(target)
    optimizer = weft.optim.AdamW(model.parameters(), lr=1e-3)

    def step(*batch: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(_first(model(*batch[:-1])), batch[-1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Case(model, inputs, step, (*inputs, target))


def _forward(model: nn.Module, inputs: list[Tensor]) -> Case:
    model.eval()

    def forward(*inputs: Tensor) -> Any:
        with weft.no_grad():
            return model(*inputs)

    return Case(model, inputs, forward, tuple(inputs))


def _first(result: Any) -> Any:
    """The first tensor of a result: that of an RNN is (outputs, states)."""
    return _first(result[0]) if isinstance(result, (tuple, list)) else result
