"""Programs that between them make every kind of kernel of this version; each runs on any device.

A program takes a `Make`, which gives it tensors, and returns the tensors that are wanted. `Make` draws the same numbers
for every device, and `small` asks for shapes that an emulator gets through. `results` runs a program.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import weft
import weft.nn.functional as F
from weft.core.tensor import Tensor
from weft.plan.device import Device


def check_an_index_that_moves_on(table: tuple[int, ...]) -> Callable[[], Tensor]:
    """Gather the last row of a table, and move the index on in place in the same step, on the default device. Returns
    the next step, which reads an index outside of the table."""
    position, first = weft.tensor([10]), weft.arange(11)
    rows = weft.tensor(np.arange(np.prod(table), dtype=np.float32).reshape(table))

    @weft.compile
    def step() -> tuple[Tensor, Tensor]:
        found = rows.index_select(0, position), first.index_select(0, position)
        position.add_(1)
        return found

    one, other = step()
    np.testing.assert_array_equal(one.numpy(), rows.numpy()[10:])
    assert other.tolist() == [10] and position.tolist() == [11]
    return lambda: step()[0]


class Make:
    """Makes tensors on one device from one seed."""

    def __init__(self, device: Device | str, small: bool = False):
        self.device, self.small = weft.get_device(device), small
        self.rng = np.random.default_rng(0)
        weft.manual_seed(5)

    def __call__(self, *shape: int, grad: bool = False, dtype: str = "float32") -> Tensor:
        array = self.rng.standard_normal(shape)
        array = array * 10 if "int" in dtype else array
        array = array > 0 if dtype == "bool" else array.astype(weft.base.dtypes.by_name(dtype).numpy)
        return weft.tensor(array, device=self.device, requires_grad=grad)

    def labels(self, count: int, *shape: int) -> Tensor:
        return weft.tensor(self.rng.integers(0, count, shape), device=self.device)

    def size(self, small: int, large: int) -> int:
        return small if self.small else large


def elementwise(make: Make) -> list[Tensor]:
    """Broadcasting, a tail that fills no block, transposed reads, exponentials of both float types."""
    n = make.size(37, 1037)
    x, bias, column = make(3, n), make(n), make(3, 1)
    return [F.gelu(x * bias + column).transpose(0, 1), make(n, dtype="float64").tanh(), (make(5, 1) * make(1, 4)).exp()]


def functions(make: Make) -> list[Tensor]:
    """Every function that kernels.math builds."""
    x = make(make.size(9, 600))
    near = x.abs() + 0.1
    wide = make(7, dtype="float64")
    curved = [x.sin(), x.cos(), x.erf(), x.expm1(), near.log(), near.log1p(), near**x]
    return [*curved, near.sqrt(), x.floor(), wide.erf(), wide.abs().log(), wide.sin(), wide.abs() ** wide]


def random(make: Make) -> list[Tensor]:
    n = make.size(33, 3001)
    x = make(n)
    with weft.device(make.device):
        return [weft.rand(n), F.dropout(x, 0.3, True) * 2, weft.randn(5, 7)]


def softmax_long(make: Make) -> list[Tensor]:
    x = make(3, make.size(70, 1000), grad=True)
    y = x.softmax(-1)
    (y * y).sum().backward()
    return [y, x.grad, x.log_softmax(-1)]


def softmax_short(make: Make) -> list[Tensor]:
    x = make(make.size(5, 500), 10, grad=True)
    y = x.log_softmax(-1)
    (y * x).sum().backward()
    return [y, x.grad, x.softmax(0)]


def layer_norm(make: Make) -> list[Tensor]:
    """The backward pass reduces rows and adds up columns in one kernel."""
    n = make.size(34, 300)
    x, w, b = make(make.size(66, 200), n, grad=True), make(n, grad=True), make(n, grad=True)
    y = F.layer_norm(x, (n,), w, b)
    (y * y * y).sum().backward()
    return [y, x.grad, w.grad, b.grad]


def layer_norm_short(make: Make) -> list[Tensor]:
    x, w, b = make(make.size(70, 400), 6, grad=True), make(6, grad=True), make(6, grad=True)
    y = F.layer_norm(x, (6,), w, b)
    (y * y).sum().backward()
    return [x.grad, w.grad, b.grad]


def cross_entropy(make: Make) -> list[Tensor]:
    rows, classes = make.size(6, 80), make.size(40, 700)
    x, few = make(rows, classes, grad=True), make(rows, 5, grad=True)
    loss = F.cross_entropy(x, make.labels(classes, rows))
    loss = loss + F.cross_entropy(few, make.labels(5, rows), label_smoothing=0.1)
    loss.backward()
    return [loss, x.grad, few.grad]


def sums(make: Make) -> list[Tensor]:
    """Columns, short and long rows, rows of several axes, every kind of reduction."""
    many, cube = make(make.size(70, 900), 13), make(3, 4, make.size(66, 130))
    rows = [many.amin(1), cube.sum(2), cube.sum((0, 2)), cube.amax((0, 2)), make(make.size(4, 400), 2, 40).sum((1, 2))]
    columns = [many.sum(0), many.amax(0), cube.sum((0, 1)), cube.prod(1)]
    others = [make(3, 11).sum(), make(70, dtype="int64").amax(), (many > 0).all(0), (cube > 9).any(2)]
    return [*rows, *columns, *others]


def split_sum(make: Make) -> list[Tensor]:
    """Long enough to be cut into pieces, with one axis and with two."""
    return [make(33000).sum(), make(66, 500).sum()] if make.small else [make(300_000).sum(), make(1000, 200).amax()]


def embedding(make: Make) -> list[Tensor]:
    """A gather, and its gradient: rows added into a table."""
    table = make(make.size(7, 50), make.size(5, 16), grad=True)
    y = F.embedding(make.labels(table.shape[0], 3, 4), table)
    (y * y).sum().backward()
    one = make(6, grad=True)
    (F.embedding(make.labels(6, 9), one.reshape(6, 1)) ** 2).sum().backward()
    return [y, table.grad, one.grad]


def movement(make: Make) -> list[Tensor]:
    x, y = make(4, 6), make(4, 3)
    padded = F.pad(x, (2, 1, 1, 0), value=1.5)
    joined = [weft.cat([x, y], 1), weft.cat([x * 2, x + 1], 0)]
    moved = [x.flip(1) + x, x[1:4:2, ::2].exp(), x.reshape(3, 8).transpose(0, 1) + 1]
    return [padded * 2, F.pad(x.flip(0), (1, 1)).sum(0), *joined, *moved]


def integers(make: Make) -> list[Tensor]:
    """Integer, bool and float64 arithmetic, with wrapping and division by zero."""
    a, b = make(60, dtype="int64"), make(60, dtype="int64")
    small, other = make(60, dtype="int32"), make(60, dtype="int32")
    big = weft.tensor(np.array([2**31 - 1, -(2**31), 7], np.int32), device=make.device)
    odd = weft.tensor(np.array([np.nan, np.inf, -np.inf, 3e9, -1.5]), device=make.device)
    flags = make(60, dtype="bool")
    divided = [a // b, a % b, small // other, small % other, make(60, dtype="float64") % 0.7]
    bits = [a & b, a | b, a ^ ~b, small << other.abs(), small >> 2, flags & (a > b), flags | (small == other), ~flags]
    wrapped = [big + big, big * 3, -big, a * b - a, a.abs(), a.maximum(b)]
    mixed = [flags.to(weft.float32), a.to(weft.float64) / 3, weft.where(a > 0, small, other), make(9) != 0]
    return [*divided, *bits, *wrapped, *mixed, odd.maximum(1.0), odd.amin()]


def casts(make: Make) -> list[Tensor]:
    """Floats that no integer equals; `CASTS` is what they must become."""
    odd = weft.tensor(np.array([np.nan, np.inf, -np.inf, 3e9, -1e19, -1.5]), device=make.device)
    return [odd.to(weft.int32), odd.to(weft.float32).to(weft.int64), odd.to(weft.bool)]


_LOW, _HIGH = -(2**63), 2**63 - 1
CASTS = [
    np.array([0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), -1], np.int32),
    np.array([0, _HIGH, _LOW, 3_000_000_000, _LOW, -1], np.int64),
    np.ones(6, bool),
]


def linear(make: Make) -> list[Tensor]:
    """A matrix product with an epilogue, plain and batched, and its gradients."""
    x, w, b = make(make.size(32, 128), 32, grad=True), make(24, 32, grad=True), make(24, grad=True)
    y = F.gelu(F.linear(x, w, b))
    y.sum().backward()
    batched = (make(2, 17, 33) @ make(2, 33, 18)).relu() * make(18)
    return [y, x.grad, w.grad, b.grad, batched]


def narrow(make: Make) -> list[Tensor]:
    """16-bit floats: chains that round at every node, sums, a product, movement, a function."""
    out = []
    for dtype in ("float16", "bfloat16"):
        x, y = make(6, 40, dtype=dtype), make(40, dtype=dtype)
        out += [x * y + x, (x / 3).sum(0), x.softmax(-1), x @ y.reshape(40, 1), x.transpose(0, 1)[::3], -x, x.exp()]
        out += [x.long(), make(7).to(x.dtype), make(7, dtype="float64").to(x.dtype), x > y]
    return out


def small_integers(make: Make) -> list[Tensor]:
    """Integers of 8, 16 and 64 bits: wrapping arithmetic, division, shifts, sums, casts."""
    out = []
    for dtype in ("int8", "int16", "uint8", "uint16", "uint64"):
        x = make(4, 9, dtype="int32").to(weft.base.dtypes.by_name(dtype))
        out += [x * x * x + x, x - 7, x // 3, x % 5, x << 3, x >> 1, x.sum(), x.amax(1), -x, ~x, x.float(), x < 4]
    return out


def adam(make: Make) -> list[Tensor]:
    """Two compiled steps: clipping by the global norm, then AdamW over one flat slab, written in place."""
    params = [make(9, 7, grad=True), make(7, grad=True), make(3, grad=True)]
    optimizer = weft.optim.AdamW(params, lr=0.1)

    def step(x: Tensor) -> Tensor:
        loss = ((x @ params[0] + params[1]) ** 2).mean() + params[2].exp().sum()
        optimizer.zero_grad()
        loss.backward()
        weft.optim.clip_grad_norm_(params, 0.5)
        optimizer.step()
        return loss

    run = step if make.device.kind == "reference" else weft.compile(step)
    losses = [run(make(5, 9)) for _ in range(2)]
    return [*losses, *params]


def rows(make: Make) -> list[Tensor]:
    """Compiled steps that write the rows of two tables which have a gradient, in place."""
    n = make.size(9, 700)
    tables = make(2100, 8, grad=True), make(2100, 8, grad=True)
    sgd, adagrad = weft.optim.SGD([tables[0]], lr=0.1), weft.optim.Adagrad([tables[1]], lr=0.1)

    def step(index: Tensor, g: Tensor) -> None:
        for table, optimizer in zip(tables, (sgd, adagrad), strict=True):
            (F.embedding(index, table) * g).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    run = step if make.device.kind == "reference" else weft.compile(step)
    for _ in range(2):
        run(make.labels(100, min(n, 500)), make(min(n, 500), 8))
    return [table.detach() for table in tables]


def graphs(make: Make) -> list[Tensor]:
    """Rows reduced by segments and by index, with and without features, and a softmax over edges; gradients too."""
    nodes, count = make.size(6, 300), make.size(20, 2000)
    targets = weft.tensor(np.sort(make.rng.integers(0, nodes - 1, count)), device=make.device)
    pointers = weft.tensor(np.searchsorted(targets.numpy(), np.arange(nodes + 1)), device=make.device)
    sources = make.labels(nodes, count)
    x, scores = make(nodes, 3, 8, grad=True), make(count, 3, grad=True)
    alpha = weft.segment_softmax(scores, pointers)
    y = weft.spmm(pointers, sources, alpha, x)
    (y * y).sum().backward()
    flat = make(count)
    largest = weft.scatter_max(scores.detach(), sources, nodes)
    return [y, x.grad, scores.grad, weft.segment_reduce(flat, pointers, "max"), *largest]


def windows(make: Make) -> list[Tensor]:
    """Convolution, depthwise too, and pooling with their gradients: by windows where there is no template."""
    n = make.size(1, 4)
    x, w, depth = make(n, 2, 7, 7, grad=True), make(4, 2, 3, 3, grad=True), make(4, 1, 3, 3, grad=True)
    y = F.relu(F.conv2d(x, w, stride=2, padding=1))
    y = F.max_pool2d(F.conv2d(y, depth, padding=1, groups=4), 2)
    y.sum().backward()
    return [y, x.grad, w.grad, depth.grad]


def attended(make: Make) -> list[Tensor]:
    """Attention, causal, with its gradients."""
    n = make.size(5, 33)
    q, k, v = (make(1, 2, n, 4, grad=True) for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    (out * out).sum().backward()
    return [out, q.grad, k.grad, v.grad]


PROGRAMS: dict[str, Callable[[Make], list[Tensor]]] = {
    program.__name__: program
    for program in (
        elementwise, functions, random, softmax_long, softmax_short, layer_norm, layer_norm_short, cross_entropy, sums,
        split_sum, embedding, movement, integers, casts, narrow, small_integers, linear, adam, rows, graphs, windows,
        attended,
    )
}  # fmt: skip


def results(program: Callable[[Make], list[Tensor]], device: Device | str, small: bool = False) -> list[np.ndarray]:
    """What a program computes on a device."""
    tensors = program(Make(device, small))
    weft.eval(*tensors)
    return [tensor.detach().numpy() for tensor in tensors]


def expected_results(name: str, small: bool = False) -> list[np.ndarray]:
    """What the NumPy interpreter says, or what is written here where NumPy leaves it open."""
    return CASTS if name == "casts" else results(PROGRAMS[name], "reference", small)


def assert_equal_results(found: list[np.ndarray], expected: list[np.ndarray], rtol: float = 2e-5) -> None:
    """Floats to a few units in the last place of what reductions and functions may lose, everything else exactly."""
    for position, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype.name in ("float16", "bfloat16"):  # one unit in the last place, where a float32 was rounded otherwise
            unit = weft.finfo(weft.base.dtypes.by_name(a.dtype.name)).eps
            np.testing.assert_allclose(a.astype("f"), b.astype("f"), unit, 0.0, err_msg=f"result {position}")
        elif a.dtype.kind == "f":
            scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
            np.testing.assert_allclose(a, b, rtol, rtol * scale, err_msg=f"result {position}")
        else:
            np.testing.assert_array_equal(a, b, err_msg=f"result {position}")
