"""Random programs of views and writes, played by PyTorch and by Weft: what `test_views.py` compares.

A program is a list of (operation, numbers). What a step does depends on the numbers and on shapes and dtypes, so both
libraries do the same. PyTorch goes first; what it refuses is left out in both.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import weft

DTYPES = ("float32", "float64", "int64", "int32", "bool", "uint8")
# Views that Weft reads but does not write through.
READ_ONLY = ("expand", "diagonal", "unfold")
VIEWS = (
    "index", "index", "index", "narrow", "select", "split", "chunk", "tensor_split", "unbind", "iterate", "transpose",
    "swapaxes", "movedim", "permute", "T", "mT", "t", "reshape", "reshape", "view", "flatten", "unflatten", "squeeze",
    "unsqueeze", "detach", "contiguous", "tensor_index",
)  # fmt: skip
WRITES = (
    "add_", "mul_", "fill_", "zero_", "copy_", "clamp_", "masked_fill_", "iadd", "imul", "isub", "set", "set_part",
    "set_add", "set_mul", "set_picked", "quiet",
)  # fmt: skip
OTHERS = ("root", "clone", "drop", "double", "read")

numbers = st.lists(st.integers(0, 63), min_size=10, max_size=10)
operations = st.one_of(st.sampled_from(VIEWS), st.sampled_from(WRITES), st.sampled_from(READ_ONLY + OTHERS))
programs = st.lists(st.tuples(operations, numbers), min_size=1, max_size=12)


class Refused(Exception):
    """A step that a library does not take."""


class Diverged(Exception):
    """A step that PyTorch takes and Weft refuses: the rest of the program cannot be compared."""


class Numbers:
    """The numbers of one step, taken one after the other."""

    def __init__(self, numbers: list[int]):
        self._numbers, self._at = numbers, 0

    def below(self, count: int) -> int:
        self._at += 1
        return self._numbers[(self._at - 1) % len(self._numbers)] % max(count, 1)


class Player:
    """Tensors of one library, and the steps of a program on them.

    `read_only` says of each tensor whether it is a view that no write of Weft's goes through. PyTorch knows which
    results share memory, so Weft's player is told.
    """

    def __init__(self, library: Any):
        self.library = library
        self.pool: list[Any] = []
        self.leaves: list[Any] = []
        self.read_only: list[bool] = []

    def copy(self) -> Player:
        """The same tensors, in a list of its own."""
        other = Player(self.library)
        other.pool, other.leaves, other.read_only = list(self.pool), self.leaves, list(self.read_only)
        return other

    def keep(self, tensor: Any, position: int | None = None, is_read_only: bool = False) -> None:
        """Add a tensor to the pool, made of the one at `position`."""
        self.pool.append(tensor)
        if position is not None and self.library is torch:
            shares = tensor.untyped_storage().data_ptr() == self.pool[position].untyped_storage().data_ptr()
            is_read_only = shares and (is_read_only or self.read_only[position])
        self.read_only.append(is_read_only)

    def root(self, n: Numbers, requires_grad: bool = False) -> None:
        shape = tuple([(2, 3, 4, 1, 2, 3, 0)[n.below(7)] for _ in range(n.below(4))])
        dtype = DTYPES[n.below(len(DTYPES))]
        array = (np.arange(math.prod(shape)).reshape(shape) * 3 % 7 - 2).astype(dtype)
        if dtype.startswith("float") and requires_grad:
            leaf = self.library.tensor(array, requires_grad=True)
            self.leaves.append(leaf)
            self.keep(leaf * 2.0)
        else:
            self.keep(self.library.tensor(array))

    def step(self, operation: str, given: list[int]) -> None:
        """One step; raises `Refused` where the library, or the shape, does not allow it."""
        n = Numbers(given)
        if not self.pool or operation == "root":
            self.root(n)
            return
        position = n.below(len(self.pool))
        x = self.pool[position]
        if operation == "drop":
            if len(self.pool) > 1:
                del self.pool[position], self.read_only[position]
        elif operation in ("clone", "double"):  # contiguous in Weft, while PyTorch may keep the strides of x
            self.keep((x.clone() if operation == "clone" else x + x).contiguous())
        elif operation == "read":
            self.value(x)
        elif operation in WRITES:
            self.write(operation, position, n)
        else:
            self.look(operation, position, n)

    def value(self, x: Any) -> None:
        """Compute a value, where that can be: not inside weft.compile."""
        if self.library is torch or weft.base.state.STATE.trace is None:
            x.detach().numpy()

    def key(self, x: Any, n: Numbers) -> Any:
        """A basic index of `x`."""
        items: list[Any] = []
        for extent in tuple(x.shape)[: n.below(x.ndim + 1)]:
            kind = n.below(4)
            if kind == 0 and extent:
                items.append(n.below(2 * extent) - extent)
            elif kind == 1:
                items.append(slice(n.below(extent + 1), None, 1 + n.below(3)))
            elif kind == 2:
                low = n.below(extent + 1)
                items.append(slice(low, low + n.below(extent + 1)))
            else:
                items.append(slice(None))
        if n.below(4) == 0:
            items.insert(n.below(len(items) + 1), None)
        if n.below(4) == 0:
            items.insert(n.below(len(items) + 1), Ellipsis)
        return tuple(items) if len(items) != 1 or n.below(2) else items[0]

    def look(self, operation: str, position: int, n: Numbers) -> None:
        """Make views of a tensor. Long because it is one branch for each operation, with its arguments."""
        x = self.pool[position]
        rank, shape = x.ndim, tuple(x.shape)
        axis, other = n.below(rank), n.below(rank)
        if rank == 0 and operation not in ("index", "reshape", "view", "detach", "contiguous", "unsqueeze", "squeeze"):
            raise Refused
        extent = shape[axis] if rank else 1
        start = n.below(extent + 1)
        parts: Any = None
        if operation == "index":
            made = x[self.key(x, n)]
        elif operation == "tensor_index":
            if not extent:
                raise Refused
            at = self.library.tensor(n.below(extent))
            made = x[(slice(None),) * axis + (at,)]
        elif operation == "narrow":
            made = x.narrow(axis, start, n.below(extent - start + 1))
        elif operation == "select":
            if not extent:
                raise Refused
            made = x.select(axis, n.below(extent))
        elif operation == "split":
            parts = x.split(1 + n.below(3), axis)
        elif operation == "chunk":
            parts = x.chunk(1 + n.below(3), axis)
        elif operation == "tensor_split":
            parts = x.tensor_split(1 + n.below(3) if n.below(2) else [n.below(3), n.below(4)], axis)
        elif operation == "unbind":
            parts = x.unbind(axis)
        elif operation == "iterate":
            parts = list(x)
        elif operation in ("transpose", "swapaxes", "movedim"):
            made = getattr(x, operation)(axis, other)
        elif operation == "permute":
            made = x.permute(sorted(range(rank), key=lambda k: (n.below(5), k)))
        elif operation in ("T", "t"):
            if rank != 2:
                raise Refused
            made = x.T if operation == "T" else x.t()
        elif operation == "mT":
            if rank < 2:
                raise Refused
            made = x.mT
        elif operation in ("reshape", "view"):
            size = math.prod(shape)
            shapes = [(-1,), (1, size), (2, size // 2), (size // 3, 3), (size // 2, 1, 2), shape]
            fitting = [one for one in shapes if -1 in one or math.prod(one) == size]
            if not size:
                raise Refused
            made = getattr(x, operation)(fitting[n.below(len(fitting))])
        elif operation == "flatten":
            made = x.flatten(min(axis, other), max(axis, other))
        elif operation == "unflatten":
            if extent % 2 or not extent:
                raise Refused
            made = x.unflatten(axis, (2, extent // 2))
        elif operation == "squeeze":
            made = x.squeeze() if n.below(2) or not rank else x.squeeze(axis)
        elif operation == "unsqueeze":
            made = x.unsqueeze(n.below(rank + 1))
        elif operation in ("detach", "contiguous"):
            made = getattr(x, operation)()
        elif operation == "expand":
            made = x.unsqueeze(0).expand(3, *[-1] * rank)
        elif operation == "diagonal":
            if axis == other:
                raise Refused
            made = x.diagonal(n.below(3) - 1, axis, other)
        else:
            if not extent:
                raise Refused
            made = x.unfold(axis, 1 + n.below(min(extent, 2)), 1 + n.below(2))
        if parts is not None:
            for part in list(parts)[:3]:
                self.keep(part, position)
        else:
            self.keep(made, position, operation in READ_ONLY)

    def number(self, x: Any, n: Numbers) -> Any:
        number = n.below(5) - 1
        return bool(n.below(2)) if x.dtype is self.library.bool else abs(number) if "uint" in str(x.dtype) else number

    def operand(self, x: Any, n: Numbers) -> Any:
        """A tensor of the shape and dtype of `x` with other elements: a copy of another tensor where one fits."""
        fitting = [y for y in self.pool if y.shape == x.shape and y.dtype is x.dtype]
        if fitting and n.below(2):
            return fitting[n.below(len(fitting))].clone()
        array = np.arange(math.prod(x.shape)).reshape(tuple(x.shape)) % 5
        return self.library.tensor(array.astype(bool) if x.dtype is self.library.bool else array).to(x.dtype)

    def write(self, operation: str, position: int, n: Numbers) -> None:
        """Write to a tensor. Long because it is one branch for each operation, with its arguments."""
        x = self.pool[position]
        number = self.number(x, n)
        if self.read_only[position]:
            if self.library is weft and x.numel():
                try:
                    x.add_(number)
                except weft.GraphError:
                    return
                raise AssertionError("a write to a view that writes do not go through did not raise")
            return
        is_bool = x.dtype is self.library.bool
        if operation == "quiet":
            with self.library.no_grad():
                (x.fill_ if is_bool else x.add_)(number)
        elif operation in ("add_", "mul_", "fill_"):
            (x.fill_ if is_bool else getattr(x, operation))(number)
        elif operation == "zero_":
            x.zero_()
        elif operation == "copy_":
            x.copy_(self.operand(x, n))
        elif operation == "clamp_":
            if is_bool:
                raise Refused
            x.clamp_(min=0, max=3)
        elif operation == "masked_fill_":
            x.masked_fill_(self.operand(x, n) == 1, number)
        elif operation == "iadd":
            if is_bool:
                x |= self.operand(x, n)
            else:
                x += self.operand(x, n)
        elif operation == "imul":
            if is_bool:
                x &= self.operand(x, n)
            else:
                x *= number
        elif operation == "isub":
            if is_bool:
                raise Refused
            x -= self.operand(x, n)
        elif operation == "set":
            x[...] = self.operand(x, n)
        elif operation == "set_part":
            x[self.key(x, n)] = number
        elif operation == "set_add":
            if is_bool:
                raise Refused
            x[self.key(x, n)] += number
        elif operation == "set_mul":
            if is_bool:
                raise Refused
            key = self.key(x, n)
            x[key] *= self.operand(x[key], n)
        else:
            if not x.ndim or not x.shape[0]:
                raise Refused
            x[self.library.tensor([n.below(x.shape[0]), 0])] = number


def play(theirs: Player, ours: Player, program: list[tuple[str, list[int]]]) -> None:
    """A program, step by step in both."""
    for operation, given in program:
        before = len(theirs.pool)
        try:
            theirs.step(operation, given)
        except (Refused, RuntimeError, IndexError, ValueError):
            assert len(theirs.pool) == before
            continue
        try:
            ours.step(operation, given)
        except weft.GraphError as error:
            assert "through which no gradient flows" in str(error)
            raise Diverged from None
        ours.read_only[:] = theirs.read_only


def accepted(player: Player, program: list[tuple[str, list[int]]]) -> list[tuple[str, list[int], list[bool]]]:
    """The steps that a player takes, with what is read-only after each; they are taken."""
    taken = []
    for operation, given in program:
        try:
            player.step(operation, given)
        except (Refused, RuntimeError, IndexError, ValueError):
            continue
        taken.append((operation, given, list(player.read_only)))
    return taken


def compare(theirs: Player, ours: Player) -> None:
    """All tensors of both players are equal, and require gradients alike."""
    assert len(theirs.pool) == len(ours.pool)
    for their, our in zip(theirs.pool, ours.pool, strict=True):
        assert tuple(their.shape) == our.shape and str(their.dtype).removeprefix("torch.") == our.dtype.name
        np.testing.assert_array_equal(our.numpy(), their.detach().numpy())
