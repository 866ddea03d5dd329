"""Example inputs for a model of a configuration: what shapes it takes, as far as the configuration says so."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from weft.base.dtypes import by_name, float32
from weft.base.errors import ConfigError, problem
from weft.config.dialect import Network
from weft.config.reading import Source, read
from weft.core.creation import as_tensor
from weft.core.tensor import Tensor
from weft.nn.basic.embedding import Embedding
from weft.nn.basic.linear import Linear
from weft.nn.containers import Sequential
from weft.nn.graph_model import Model
from weft.nn.grid import Grid
from weft.nn.module import Module
from weft.nn.spatial.convolution import Conv1d
from weft.random.generator import rand, randint

Form = tuple[tuple[int, ...], Any, int]  # shape without the batch, dtype, and for integers the number of values


def parse_shapes(texts: Sequence[str]) -> list[Form]:
    """The forms that a command line gives: `3,32,32`, or with a dtype and the number of values `16:int64:100`."""
    forms: list[Form] = []
    for text in texts:
        shape, _, rest = text.partition(":")
        name, _, count = rest.partition(":")
        try:
            sizes = tuple(int(size) for size in shape.split(",") if size.strip())
            dtype = by_name(name) if name else float32
            forms.append((sizes, dtype, int(count or 2)))
            if any(size < 1 for size in sizes) or int(count or 2) < 1:
                raise ValueError
        except Exception:
            expected = "sizes without the batch, such as 3,32,32, or 16:int64:100 (shape:dtype:values)"
            raise problem(ConfigError, "--input", repr(text), expected) from None
    return forms


def input_forms(model: Module) -> list[Form]:
    """The forms of a model's inputs, from what its first layers say."""
    if isinstance(model, Network) and model.input_size is not None:
        return [((model.input_size,), float32, 0)]
    if isinstance(model, Model):
        return [
            (tuple(1 if size is None else size for size in one.sizes), one._dtype, 2)
            for one in (symbol.module for symbol in model.inputs)
        ]
    if isinstance(model, (Sequential, Grid)) and len(model):
        return input_forms(next(iter(model)))
    if isinstance(model, Linear) and model.in_features:
        return [((model.in_features,), float32, 0)]
    if isinstance(model, Embedding):
        return [((8,), by_name("int64"), model.num_embeddings)]
    if type(model) is Conv1d:
        return [((model.in_channels, 32), float32, 0)]
    given = f"a model whose first layer ({type(model).__name__}) does not say what shape it takes"
    raise problem(ConfigError, "the configuration", given, "a shape", "give it, such as --input 3,32,32")


def check_count(model: Module, inputs: Sequence[Tensor]) -> None:
    """Refuse more or fewer inputs than the model takes."""
    try:
        inspect.signature(model.forward).bind(*inputs)
    except TypeError as error:
        given = f"{len(inputs)} shape{'s' if len(inputs) != 1 else ''}"
        raise problem(ConfigError, "--input", given, f"the inputs of {type(model).__name__} ({error})") from None


def inputs_for(
    source: Source, model: Module, shapes: Sequence[str] = (), batch_size: int | None = None
) -> list[Tensor]:
    """Inputs for the model of a configuration: random ones, of the shapes of a command line or of what its layers say;
    of a run whose layers do not say it, or whose batches are whole graphs, a batch of its data."""
    rows = int(getattr(model, "batch_size", 1)) if batch_size is None else batch_size
    if shapes:
        inputs = example_inputs(parse_shapes(shapes), rows)
        check_count(model, inputs)
        return inputs
    tree, _ = read(source)
    data = tree.get("data") if isinstance(tree, dict) and "type" not in tree else None
    if not (isinstance(data, dict) and data.get("type") == "graph"):
        try:
            return example_inputs(input_forms(model), rows)
        except ConfigError:
            if data is None:
                raise
    from weft.config.run import load_run

    batch = [as_tensor(one, device="cpu") for one in next(iter(load_run(source).train_loader("cpu")))[:-1]]
    is_graph = isinstance(data, dict) and data.get("type") == "graph"
    return batch if is_graph else [one[:rows] for one in batch]


def example_inputs(forms: Sequence[Form], batch_size: int) -> list[Tensor]:
    """Random inputs of these forms on the CPU: uniform in [0, 1), or whole numbers below the number of values."""
    return [
        rand(batch_size, *shape, device="cpu").to(dtype)
        if dtype.kind == "f"
        else randint(0, count, (batch_size, *shape), dtype=dtype, device="cpu")
        for shape, dtype, count in forms
    ]
