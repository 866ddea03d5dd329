"""`weft.kernel`: kernels that users write. See docs/custom-kernels.md.

`weft.kernels` is loaded by the first of them, not by `import weft`.
"""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from weft.autograd.function import Function
from weft.base.dtypes import DType, as_dtype, float32
from weft.base.errors import DeviceError, DTypeError, GraphError, ShapeError, problem
from weft.core.tensor import Tensor, wrap_results
from weft.graph import build
from weft.graph.node import Node
from weft.graph.numbers import HostNumber
from weft.graph.primitives import make_node

if TYPE_CHECKING:
    from weft.kernels.custom.definition import Definition

MAX_DEFINITIONS = 256  # traces that a kernel keeps; the least recently used goes first


class Kernel:
    """A function of tensors whose elements are computed by a kernel of the user's. Made by `weft.kernel`."""

    def __init__(self, function: Callable, out: Callable | None, over: Callable | None, backward: Callable | None):
        self.function, self.out, self.over, self.backward = function, out, over, backward
        self.name = function.__name__
        self._definitions: OrderedDict[tuple, Definition] = OrderedDict()
        functools.update_wrapper(self, function)
        for label, parameter in inspect.signature(function).parameters.items():
            if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                raise self._kernel_error(GraphError, f"the parameter {parameter}", "plain positional parameters")
            if parameter.default is not parameter.empty:
                raise self._kernel_error(GraphError, f"a default for {label!r}", "parameters without defaults")

    def _kernel_error(self, kind: type[Any], given: str, expected: str, fix: str = "") -> Exception:
        return problem(kind, f"kernel {self.name}", given, expected, fix)

    def __call__(self, *args: Any) -> Any:
        return self._run(args) if self.backward is None else _Differentiable.apply(self, *args)

    def _run(self, args: tuple) -> Any:
        from weft.kernels.custom.definition import Array, Number, Static

        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if not tensors:
            raise self._kernel_error(GraphError, "no tensor among the arguments", "at least one")
        device = tensors[0].device
        if any(tensor.device is not device for tensor in tensors):
            given = "tensors on " + " and ".join(dict.fromkeys(str(tensor.device) for tensor in tensors))
            raise self._kernel_error(DeviceError, given, "one device", "move them with .to(device)")
        forms = self._outputs(args)
        main = forms[0][1]
        nodes: list[Node] = []
        numbers: list[str] = []
        arguments: list[Any] = []
        for arg in args:
            if isinstance(arg, Tensor):
                nodes.append(build.cast(arg.node, main) if arg.weak and main.kind == "f" else arg.node)
                arguments.append(Array(nodes[-1].shape, nodes[-1].dtype))
            elif type(arg) is HostNumber and isinstance(arg, float):
                nodes.append(build.const(arg, float32 if main.is_16_bit else main, device))
                arguments.append(Array((), nodes[-1].dtype))
            elif isinstance(arg, float):
                numbers.append(arg.hex())
                arguments.append(Number(float32 if main.is_16_bit else main))
            else:
                arguments.append(Static(arg._read() if type(arg) is HostNumber else arg))
        domain = self._domain(args, forms)
        definition = self._definition(domain, tuple(arguments), tuple(forms), device.features.workgroups)
        node = make_node("custom", tuple(nodes), (definition, definition.digest, tuple(numbers)))
        return wrap_results(node if len(forms) == 1 else tuple(_parts(node, definition)), tensors)

    def _definition(self, domain: tuple, arguments: tuple, forms: tuple, blocks: bool) -> Definition:
        from weft.kernels.custom.definition import define

        key = (domain, arguments, forms, blocks)
        try:
            found = self._definitions.get(key)
        except TypeError:
            given = "an argument that is neither a tensor, a number nor hashable"
            raise self._kernel_error(GraphError, given, "tensors, numbers, strings and tuples of these") from None
        if found is None:
            found = self._definitions[key] = define(self.function, domain, arguments, forms, blocks)
            if len(self._definitions) > MAX_DEFINITIONS:
                self._definitions.popitem(last=False)
        else:
            self._definitions.move_to_end(key)
        return found

    def _outputs(self, args: tuple) -> list[tuple[tuple[int, ...], DType]]:
        if self.out is None:
            first = next(arg for arg in args if isinstance(arg, Tensor))
            return [(first.shape, first.dtype)]
        declared = self.out(*args)
        forms = [self._form(one) for one in (declared if isinstance(declared, list) else [declared])]
        if len({dtype for _, dtype in forms}) > 1:
            given = "outputs of " + " and ".join(dict.fromkeys(dtype.name for _, dtype in forms))
            raise self._kernel_error(DTypeError, given, "one dtype for all outputs", "write two kernels")
        return forms

    def _form(self, declared: Any) -> tuple[tuple[int, ...], DType]:
        if isinstance(declared, Tensor):
            return declared.shape, declared.dtype
        if isinstance(declared, tuple) and len(declared) == 2 and not isinstance(declared[1], (int, tuple, list)):
            return self._shape("out", declared[0]), as_dtype(f"kernel {self.name}", declared[1])
        raise self._kernel_error(
            GraphError, f"{declared!r} from out=", "a tensor to be like, (shape, dtype), or a list of these"
        )

    def _domain(self, args: tuple, forms: list) -> tuple[int, ...]:
        return forms[0][0] if self.over is None else self._shape("over", self.over(*args))

    def _shape(self, who: str, shape: Any) -> tuple[int, ...]:
        shape = (shape,) if isinstance(shape, int) else shape
        if not isinstance(shape, (tuple, list)) or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise self._kernel_error(ShapeError, f"{shape!r} from {who}=", "a tuple of extents")
        return tuple([int(n) for n in shape])


def _parts(node: Node, definition: Definition) -> Iterator[Node]:
    """The outputs, which lie one after the other."""
    at = 0
    for (shape, _), size in zip(definition.outputs, definition.sizes, strict=True):
        yield build.reshape(build.slice_(node, (at,), (at + size,)), shape)
        at += size


class _Differentiable(Function):
    """A kernel with a gradient: `backward(*gradients of outputs, *arguments)`."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, *args: Any) -> Any:
        ctx.kernel, ctx.plain = kernel, [None if isinstance(arg, Tensor) else (arg,) for arg in args]
        ctx.save_for_backward(*[arg for arg in args if isinstance(arg, Tensor)])
        return kernel._run(args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        args = [next(saved) if plain is None else plain[0] for plain in ctx.plain]
        answer = ctx.kernel.backward(*grads, *args)
        parts = answer if isinstance(answer, (tuple, list)) else (answer,)
        if len(parts) != len(args):
            given, expected = f"{len(parts)} gradients from backward=", f"{len(args)}: one for each argument, or None"
            raise ctx.kernel._kernel_error(GraphError, given, expected)
        return (None, *parts)


class _Decorator:
    """`weft.kernel`: make a kernel of a Python function; its attributes are the words such a function may use.

    The function describes one point: its parameters are the indices of the point, then the arguments, then the outputs.
    `out(*args)` says what the outputs are: a tensor to be like, or (shape, dtype), or a list of these for several; left
    out, it is like the first tensor. `over(*args)` gives the domain, left out the shape of the first output. Each
    element of an output is assigned by one point at most; those that are not are undefined. `backward(*grads, *args)`
    gives the gradients of the arguments; without it, differentiating raises.

    >>> @weft.kernel
    ... def scale_add(i, x, y, out):
    ...     out[i] = 2.0 * x[i] + y[i]
    >>> scale_add(weft.tensor([1.0, 2.0]), weft.tensor([0.5, 0.5]))
    tensor([2.5000, 4.5000])
    """

    def __call__(
        self,
        function: Callable | None = None,
        *,
        out: Callable | None = None,
        over: Callable | None = None,
        backward: Callable | None = None,
    ) -> Any:
        if function is None:
            return lambda function: Kernel(function, out, over, backward)
        if not callable(function):
            raise problem(GraphError, "weft.kernel", f"a {type(function).__name__}", "a function")
        return Kernel(function, out, over, backward)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        words = _words()
        if name not in words:
            raise AttributeError(f"weft.kernel has no word {name!r}; it has {', '.join(words)}")
        return words[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_words()]


def _words() -> dict[str, Any]:
    from weft.kernels.custom.trace import WORDS

    return WORDS


kernel = _Decorator()
