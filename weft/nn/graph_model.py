"""Models put together by calling layers on symbols: `x = nn.Input((3, 32, 32)); model = nn.Model(x, layers(x))`."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

from weft.base.dtypes import DType, float32
from weft.base.errors import GraphError, ShapeError, problem
from weft.core.creation import zeros
from weft.core.tensor import Tensor
from weft.nn.module import Module, symbolic
from weft.nn.module.symbolic import Symbol
from weft.nn.registry import layer

BATCH = 2  # the size of the batch with which shapes are found


@layer("L008", aliases=("InputLayer",), learns="-", oracle="identity, and the error for another shape")
class Input(Module, Symbol):
    """y = x, where `x.shape[1:]` is `shape`; None stands for any extent. The entry of a model of symbols.

    >>> x = weft.nn.Input((4,))
    >>> model = weft.nn.Model(x, x + x)
    >>> model(weft.ones(1, 4))
    tensor([[2., 2., 2., 2.]])
    """

    def __init__(self, shape: Sequence[int | None], dtype: DType = float32, device: Any = None):
        Module.__init__(self)
        is_list = isinstance(shape, (tuple, list))
        if not is_list or any(size is not None and not isinstance(size, numbers.Integral) for size in shape):
            fix = f"nn.Input(({shape},))" if isinstance(shape, int) else ""
            raise problem(ShapeError, "Input", f"shape={shape!r}", "a tuple of sizes without the batch, or None", fix)
        self.sizes = tuple(shape)
        self._dtype = dtype
        value = zeros(BATCH, *[1 if size is None else size for size in self.sizes], dtype=dtype, device=device)
        symbolic.in_use = True
        self.args, self.kwargs, self.value = (), {}, value

    @property
    def module(self) -> Input:  # type: ignore[override]
        return self

    @property
    def shape(self) -> tuple[int | None, ...]:
        return (None, *self.sizes)

    def forward(self, input: Tensor) -> Tensor:
        given = tuple(input.shape)[1:]
        if len(given) != len(self.sizes) or any(
            size is not None and size != one for size, one in zip(self.sizes, given, strict=True)
        ):
            expected = f"[batch, {', '.join('any' if size is None else str(size) for size in self.sizes)}]"
            raise problem(ShapeError, "Input", f"shape {list(input.shape)}", expected)
        return input

    def extra_repr(self) -> str:
        return f"{self.sizes}"

    __repr__ = Module.__repr__
    __iter__ = None  # type: ignore[assignment]


@layer(learns="-", oracle="the function itself")
class Lambda(Module):
    """y = function(*inputs): any function of tensors as a layer.

    >>> weft.nn.Lambda(lambda x: x * 2)(weft.ones(2))
    tensor([2., 2.])
    """

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.function(*inputs, **kwargs)

    def extra_repr(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


@layer("", aliases=("Functional",), learns="G", oracle="the same layers called by hand")
class Model(Module):
    """The module that computes symbols from symbols. Inputs and outputs are symbols, or lists or dicts of them; a model
    with several inputs is called with as many arguments. A layer that is called twice is shared.

    >>> x = weft.nn.Input((4,))
    >>> y = weft.nn.Linear(4, 3)(x)
    >>> model = weft.nn.Model(x, [y, y * 2])
    >>> [tuple(z.shape) for z in model(weft.ones(5, 4))]
    [(5, 3), (5, 3)]
    """

    def __init__(self, inputs: Any, outputs: Any):
        super().__init__()
        self.inputs = [inputs] if isinstance(inputs, Symbol) else list(symbolic.symbols_in(inputs))
        self.outputs = outputs
        self._input_names = tuple(inputs) if isinstance(inputs, dict) else ()
        self._steps = _in_order(self.inputs, list(symbolic.symbols_in(outputs)))
        names: dict[int, str] = {}
        for symbol in (*self.inputs, *self._steps):
            if id(symbol.module) not in names:
                name = names[id(symbol.module)] = f"{type(symbol.module).__name__.lower()}_{len(names)}"
                self.add_module(name, symbol.module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and len(self.inputs) > 1 and isinstance(args[0], (list, tuple, dict)):
            given = args[0]
            args, kwargs = ((), given) if isinstance(given, dict) else (tuple(given), {})
        names = self._input_names
        wrong = [name for name in kwargs if name not in names[len(args) :]]
        if wrong:
            expected = f"inputs by name among {', '.join(names)}, each once" if names else "inputs by position"
            raise problem(GraphError, "Model", f"the inputs {', '.join(wrong)}", expected)
        args = (*args, *[kwargs[name] for name in names[len(args) :] if name in kwargs])
        if len(args) != len(self.inputs):
            raise problem(GraphError, "Model", f"{len(args)} inputs", f"{len(self.inputs)}")
        values = {id(symbol): symbol.module(value) for symbol, value in zip(self.inputs, args, strict=True)}

        def value_of(symbol: Symbol) -> Any:
            return values[id(symbol)]

        for symbol in self._steps:
            given_args, given_kwargs = symbolic.replace_symbols((symbol.args, symbol.kwargs), value_of)
            values[id(symbol)] = symbol.module(*given_args, **given_kwargs)
        return symbolic.replace_symbols(self.outputs, value_of)


def display_paths(model: Module) -> dict[str, str]:
    """The path of every module, as people read it: nodes of a Model that a configuration names have those names."""
    shown = {"": ""}
    labels: dict[str, dict[str, str]] = {}  # by the path of a Model: names of nodes by those of submodules
    for path, module in model.named_modules():
        if path:
            above, _, name = path.rpartition(".")
            label = labels.get(above, {}).get(name, name)
            above = shown.get(above, above)
            shown[path] = f"{above}.{label}" if above else label
        if isinstance(module, Model):
            labels[path] = _labels(module)
    return shown


def _labels(model: Model) -> dict[str, str]:
    names = {number: name for name, number in getattr(model, "node_names", {}).items()}
    names.update({id(symbol): name for symbol, name in zip(model.inputs, model._input_names, strict=False)})
    children = {id(module): name for name, module in model.named_children()}
    found: dict[str, str] = {}
    for symbol in (*model.inputs, *model._steps):
        if id(symbol) in names:
            found.setdefault(children[id(symbol.module)], names[id(symbol)])  # the first call names a shared layer
    return found


def _in_order(inputs: list[Any], outputs: list[Symbol]) -> list[Symbol]:
    """The symbols between inputs and outputs, each after those that it is computed from."""
    order: list[Symbol] = []
    done = {id(symbol) for symbol in inputs}
    waiting: list[tuple[Symbol, bool]] = [(symbol, False) for symbol in reversed(outputs)]
    while waiting:
        symbol, ready = waiting.pop()
        if id(symbol) in done:
            continue
        if ready:
            done.add(id(symbol))
            order.append(symbol)
            continue
        if isinstance(symbol, Input):
            given = f"an output that depends on {symbol!r}, which is not among the inputs"
            raise problem(GraphError, "Model", given, "every Input it is computed from", "add it to the inputs")
        waiting.append((symbol, True))
        waiting += [(below, False) for below in symbol.inputs()]
    return order
