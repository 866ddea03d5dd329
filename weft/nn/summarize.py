"""The layers of a model as a table, with shapes, parameters and memory. Nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.base import tree
from weft.base.dtypes import float32
from weft.base.errors import ShapeError, problem, size_text
from weft.core.creation import zeros
from weft.core.tensor import Tensor
from weft.jit.recording import record_result
from weft.nn.graph_model import display_paths
from weft.nn.module import Module
from weft.nn.parameter import Parameter


@dataclass
class Row:
    """One module: its path and kind, the shapes of its results, its own parameters and the memory of its state."""

    path: str
    kind: str
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    calls: int = 0
    parameters: int = 0
    trainable: int = 0
    nbytes: int = 0
    output_nbytes: int = 0

    @property
    def depth(self) -> int:
        return self.path.count(".") + 1 if self.path else 0

    def cells(self) -> tuple[str, str, str, str]:
        """The row of a table: layer, shapes of results, parameters and memory."""
        name = self.path.rpartition(".")[2]
        label = "  " * self.depth + (f"{name}: {self.kind}" if name else self.kind)
        shapes = " ".join(str(list(shape)) for shape in self.shapes) if self.calls else "not called"
        shapes += f" x{self.calls}" if self.calls > 1 else ""
        counts = (f"{self.parameters:,}", size_text(self.nbytes)) if self.nbytes else ("", "")
        return label, shapes, *counts


@dataclass
class Summary:
    """What `summary` found; `print` shows it as a table."""

    rows: list[Row]

    @property
    def parameters(self) -> int:
        return sum(row.parameters for row in self.rows)

    @property
    def trainable(self) -> int:
        return sum(row.trainable for row in self.rows)

    @property
    def nbytes(self) -> int:
        """Of parameters and buffers."""
        return sum(row.nbytes for row in self.rows)

    @property
    def output_nbytes(self) -> int:
        """Of the results of all layers that have no layers below them."""
        return sum(row.output_nbytes for row in self.rows)

    def __str__(self) -> str:
        lines = [("layer", "output shape", "parameters", "memory")]
        lines += [row.cells() for row in self.rows]
        widths = [max(len(line[k]) for line in lines) for k in range(4)]
        table = [
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip() for a, b, c, d in lines
        ]
        rule = "-" * max(map(len, table))
        frozen = self.parameters - self.trainable
        total = f"{self.parameters:,} parameters ({self.trainable:,} trainable, {frozen:,} frozen)"
        memory = f"{size_text(self.nbytes)} of parameters and buffers, {size_text(self.output_nbytes)} of results"
        return "\n".join([table[0], rule, *table[1:], rule, total, memory])

    __repr__ = __str__


def summary(model: Module, *inputs: Any, batch_size: int = 1, dtypes: Sequence[Any] | None = None) -> Summary:
    """The layers of `model`, called with inputs of these shapes (of one sample, without the batch) or with these
    tensors. Nothing is computed, assigned or drawn.

    >>> model = weft.nn.Sequential(weft.nn.Linear(4, 8), weft.nn.Linear(8, 2))
    >>> print(weft.nn.summary(model, (4,)))
    layer        output shape  parameters  memory
    ---------------------------------------------
    Sequential   [1, 2]
      0: Linear  [1, 8]                40   160 B
      1: Linear  [1, 2]                18    72 B
    ---------------------------------------------
    58 parameters (58 trainable, 0 frozen)
    232 B of parameters and buffers, 40 B of results
    """
    kinds = list(dtypes or [])
    like = next((param for param in model.parameters() if param.dtype.kind == "f"), None)
    given = tuple(
        value
        if isinstance(value, Tensor)
        else _placeholder(value, batch_size, kinds[k] if k < len(kinds) else None, like)
        for k, value in enumerate(inputs)
    )
    modules = dict(model.named_modules())
    shown = display_paths(model)
    rows = [Row(shown.get(path, path), "") for path in modules]
    by_module = {id(module): row for row, module in zip(rows, modules.values(), strict=True)}
    handles = []
    for module in model.modules():
        handles.append(module.register_forward_hook(lambda one, _, result: _note(by_module[id(one)], one, result)))
    training = [module for module in model.modules() if module.training]
    model.eval()  # a batch of one has no statistics
    try:
        record_result(model, given, {})
    finally:
        for module in training:
            module.training = True
        for handle in handles:
            handle.remove()
    _count(rows, list(modules.values()))  # now that lazy modules have shapes
    return Summary(rows)


def _placeholder(shape: Any, batch_size: int, dtype: Any, like: Tensor | None) -> Tensor:
    """Zeros of a shape, in the dtype and on the device of the model's parameters unless a dtype is given."""
    if not isinstance(shape, (tuple, list)) or not all(isinstance(size, int) for size in shape):
        raise problem(
            ShapeError, "summary", f"{shape!r}", "a shape without the batch, such as (3, 32, 32), or a tensor"
        )
    dtype = dtype or (float32 if like is None else like.dtype)
    return zeros(batch_size, *shape, dtype=dtype, device=None if like is None else like.device)


def _count(rows: list[Row], modules: list[Module]) -> None:
    """What every module is, and the parameters and buffers that no module before it has."""
    seen: set[int] = set()
    for row, module in zip(rows, modules, strict=True):
        row.kind = type(module).__name__
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is None or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            row.nbytes += tensor.numel() * tensor.dtype.itemsize
            if isinstance(tensor, Parameter):
                row.parameters += tensor.numel()
                row.trainable += tensor.numel() * tensor.requires_grad


def _note(row: Row, module: Module, result: Any) -> None:
    tensors = [leaf for leaf in tree.flatten(result)[0] if isinstance(leaf, Tensor)]
    row.calls += 1
    row.shapes = [tuple(tensor.shape) for tensor in tensors]
    if not module._modules:
        row.output_nbytes += sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors)
