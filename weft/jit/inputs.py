"""Inputs: the numbers that the host computes and writes before each run of a plan."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.base.dtypes import DType, bits_of
from weft.graph.build import round_to_dtype
from weft.graph.numbers import HostNumber, Ref, Tape
from weft.jit.guards import Guards, freeze

_WORDS = {
    "bool": ctypes.c_bool, "uint8": ctypes.c_uint8, "uint16": ctypes.c_uint16, "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64, "int8": ctypes.c_int8, "int16": ctypes.c_int16, "int32": ctypes.c_int32,
    "int64": ctypes.c_int64, "float16": ctypes.c_uint16, "bfloat16": ctypes.c_uint16, "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}  # fmt: skip


class Inputs:
    """A tape made ready for running: its sources, the operations that anything depends on, guards, and the plan's
    inputs. `arguments` holds (entry, position) of numbers among the arguments, `entries` those of captured ones;
    `results` are further entries whose values are wanted: those that the function returns or assigns."""

    def __init__(
        self,
        tape: Tape,
        arguments: Sequence[tuple[int, int]],
        entries: Sequence[int],
        captured: Guards,
        results: Sequence[HostNumber],
    ):
        wanted = [*tape.guards, *[index for index, _, _ in tape.inputs], *[number._index for number in results]]
        needed = tape.find_needed(wanted)
        self.values = list(tape.values)
        self._kinds = {index: type(tape.values[index]) for index in needed}
        self._positions = [position for _, position in arguments]
        self._captured = captured
        self._sources = [*[index for index, _ in arguments], *entries]
        self._steps: list[tuple[int, Callable[..., Any], tuple[Any, ...]]] = []
        for index in needed:
            operation = tape.operations[index]
            if operation is not None:
                self._steps.append((index, *operation))
        self._guards = [(index, freeze(tape.values[index])) for index in sorted(tape.guards)]
        self.nodes = list(tape.inputs.values())
        self._dtypes = [(index, dtype) for index, dtype, _ in tape.inputs]
        self._words: list[tuple[Any, int, DType]] = []
        self._last: list[Any] | None = None  # the numbers given, if what is computed from them is written
        self._first = [tape.values[index] for index in self._sources]

    def __bool__(self) -> bool:
        return bool(self._kinds)

    @property
    def is_general(self) -> bool:
        """Whether any values of the right types will do."""
        return not self._guards

    def assign_memory(self, array: np.ndarray, starts: Sequence[int]) -> None:
        """Where the host keeps the plan's inputs: `array` holds bytes, input k from `starts[k]` on."""
        for (index, dtype), start in zip(self._dtypes, starts, strict=False):
            self._words.append((_WORDS[dtype.name].from_buffer(array.data, start), index, dtype))

    def update(self, flat: Sequence[Any]) -> bool:
        """Compute all numbers from the arguments and from what is captured, and write the plan's inputs. False if the
        function would have done something else with these numbers."""
        captured = self._captured.numbers()
        if captured is None:
            return False
        given = [*[flat[position] for position in self._positions], *captured]
        last = self._last
        if last is not None and all(map(operator.is_, given, last)):
            return True
        self._last = None
        values = self.values
        for index, value in zip(self._sources, given, strict=True):
            if index in self._kinds and type(value) is not self._kinds[index]:
                return False
            values[index] = value
        try:
            for index, function, operands in self._steps:
                value = function(*[values[one.index] if type(one) is Ref else one for one in operands])
                if type(value) is not self._kinds[index]:
                    return False
                values[index] = value
        except ArithmeticError:
            return False  # the function itself has to raise it
        for index, form in self._guards:
            if freeze(values[index]) != form:
                return False
        self.write()
        self._last = given
        return True

    def write(self) -> None:
        """Put the numbers where the plan reads them: those of the last update, or of the trace if there was none."""
        for word, index, dtype in self._words:
            value = self.values[index]
            word.value = bits_of(value, dtype) if dtype.is_16_bit else round_to_dtype(value, dtype)

    def difference(self, flat: Sequence[Any]) -> str:
        """In words, which numbers are not those that the function was traced with."""
        names = [f"argument {position}" for position in self._positions]
        names += [guard.name() for guard in self._captured.guards if guard.kind == "number"]
        given = [*[flat[position] for position in self._positions], *(self._captured.numbers() or ())]
        changes = [
            f"{name} was {old!r} and is {new!r}"
            for name, new, old in zip(names, given, self._first, strict=False)
            if freeze(old) != freeze(new)
        ]
        return ", ".join(changes) + " (used as itself: in a branch, a shape, an index, ...)"

    def value_of(self, value: Any) -> Any:
        """The present value of a number of the tape; anything else is itself."""
        return self.values[value._index] if type(value) is HostNumber else value
