"""A grid of cells that run one after the other: the container of networks in the layer-list form of `weft.config`."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any

from weft.base.errors import DTypeError, GraphError, IndexRangeError, RangeError, problem
from weft.nn.module import Module
from weft.nn.module.traversal import note_module
from weft.nn.registry import layer

MAX_LAYERS = 1_000_000  # of one grid


@layer(learns="-", oracle="the same layers called one after the other")
class Grid(Module):
    """y = fₙ(... f₂(f₁(x))): rows · cols cells of `layers_per_cell` layers each. Cells run row by row, the layers of a
    cell in their order; each layer gets the result of the one before it.

    Shape: what the layers take and give. `layers` gives all of them in the order in which they run; without, they are
    set one by one. A grid with a place that no layer was set for cannot be called.

    >>> grid = weft.nn.Grid(1, 2, 1)
    >>> grid.set_layer(0, 0, 0, weft.nn.Linear(4, 8))
    >>> grid.set_layer(0, 1, 0, weft.nn.ReLU())
    >>> grid(weft.ones(3, 4)).shape
    (3, 8)
    """

    def __init__(self, rows: int, cols: int, layers_per_cell: int, layers: Iterable[Module | None] | None = None):
        super().__init__()
        for name, size in (("rows", rows), ("cols", cols), ("layers_per_cell", layers_per_cell)):
            if isinstance(size, bool) or not isinstance(size, int):
                raise problem(DTypeError, "Grid", f"{name}={size!r}", "a whole number")
            if size < 1:
                raise problem(RangeError, "Grid", f"{name}={size}", "at least 1")
        if rows * cols * layers_per_cell > MAX_LAYERS:
            given = f"{rows} x {cols} cells of {layers_per_cell} layers"
            raise problem(RangeError, "Grid", given, f"at most {MAX_LAYERS:,} layers")
        self.rows, self.cols, self.layers_per_cell = rows, cols, layers_per_cell
        if layers is None:
            return
        given_layers = list(layers)
        if len(given_layers) != len(self):
            expected = f"{len(self)}: {rows} x {cols} cells of {layers_per_cell}"
            raise problem(RangeError, "Grid", f"{len(given_layers)} layers", expected)
        for place, one in zip(self.places(), given_layers, strict=True):
            if one is not None:
                self.set_layer(*place, one)

    def __len__(self) -> int:
        """The number of places for layers."""
        return self.rows * self.cols * self.layers_per_cell

    def places(self) -> Iterator[tuple[int, int, int]]:
        """(row, col, index) of every place, in the order in which their layers run."""
        for row in range(self.rows):
            for col in range(self.cols):
                for index in range(self.layers_per_cell):
                    yield row, col, index

    def set_layer(self, row: int, col: int, index: int, layer: Module) -> None:
        """Put a layer at a place of a cell; one that was there is replaced."""
        if not isinstance(layer, Module):
            raise problem(DTypeError, "Grid.set_layer", f"a {type(layer).__name__}", "a Module")
        setattr(self, self._name("Grid.set_layer", row, col, index), layer)

    def get_layer(self, row: int, col: int, index: int) -> Any:
        """The layer at a place of a cell; None where none was set."""
        found = self._modules.get(self._name("Grid.get_layer", row, col, index))
        note_module(found)
        return found

    def __iter__(self) -> Iterator[Any]:
        """The layers in the order in which they run; None where none was set."""
        return (self.get_layer(*place) for place in self.places())

    def _name(self, who: str, row: int, col: int, index: int) -> str:
        extents = {"row": (row, self.rows), "col": (col, self.cols), "index": (index, self.layers_per_cell)}
        for name, (number, extent) in extents.items():
            if isinstance(number, bool) or not hasattr(number, "__index__"):
                raise problem(DTypeError, who, f"{name}={number!r:.60}", "a whole number")
            if not 0 <= operator.index(number) < extent:
                raise problem(IndexRangeError, who, f"{name}={number}", f"a number from 0 to {extent - 1}")
        return "_".join(str(operator.index(number)) for number in (row, col, index))

    def forward(self, input: Any) -> Any:
        for row, col, index in self.places():
            one = self._modules.get(f"{row}_{col}_{index}")
            if one is None:
                given = f"no layer at row {row}, col {col}, index {index}"
                fix = f"set_layer({row}, {col}, {index}, layer)"
                raise problem(GraphError, "Grid", given, "a layer at every place", fix)
            input = one(input)
        return input

    def extra_repr(self) -> str:
        return f"rows={self.rows}, cols={self.cols}, layers_per_cell={self.layers_per_cell}"
