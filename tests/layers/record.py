"""What a layer's record holds: a small instance, inputs, an oracle, wrong inputs, and the edge cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# An oracle gets the layer's state_dict (float64 arrays), the inputs (float64 arrays, integers, plain values) and
# whether the layer is training; it returns the outputs in the layer's structure.
Oracle = Callable[[Mapping[str, np.ndarray], tuple[Any, ...], bool], Any]

# The edge cases, and what a layer must have for one to make sense ('' for all layers).
COLUMNS = {
    "batch of one": "batch",
    "sequence of one": "sequence",
    "empty graph": "graph",
    "isolated nodes": "graph",
    "all-masked rows": "mask",
    "odd sizes": "window",  # with stride and dilation, where the layer has them
    "groups == channels": "groups",
    "ties": "order",
    "nan": "",
    "not contiguous": "",
    "eval": "",
}


class Draw:
    """Inputs for records: arrays from a fixed seed, always the same for one record."""

    def __init__(self, seed: int = 0):
        self.random = np.random.default_rng(seed)

    def normal(self, *shape: int) -> np.ndarray:
        return self.random.normal(size=shape)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        return self.random.uniform(low, high, shape)

    def integers(self, high: int, *shape: int) -> np.ndarray:
        return self.random.integers(0, high, shape)

    def bools(self, *shape: int, p: float = 0.5) -> np.ndarray:
        return self.random.random(shape) < p


@dataclass(frozen=True, kw_only=True)
class Case:
    """One edge case: what differs from the record. `check` replaces the comparison with the oracle: it gets the layer
    and its inputs as tensors."""

    make: Callable[[], Any] | None = None
    inputs: Callable[[Draw], tuple[Any, ...]] | None = None
    oracle: Oracle | None = None
    check: Callable[[Any, tuple[Any, ...]], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Bad:
    """Wrong input: `call(layer)` raises an error whose text matches `match`."""

    call: Callable[[Any], Any]
    match: str
    error: type[BaseException] | tuple[type[BaseException], ...] = Exception


@dataclass(frozen=True, kw_only=True)
class LayerRecord:
    """One layer. `make` gives a small instance; parameters are drawn anew by the harness where they start as constants.

    inputs: the positional arguments of `forward`; float64 arrays become float32 tensors, integer and bool arrays
        tensors of their dtype, everything else is passed as it is.
    oracle: see `Oracle`; None only with `random` (what is drawn cannot be foretold) and at least one entry in `checks`.
    traits: which of COLUMNS apply: 'batch', 'sequence', 'graph', 'mask', 'window', 'groups', 'order'.
    edges: a Case, or a sentence that says why there is none, for every column that applies and is not automatic:
        'batch of one' (the first row of every array), 'sequence of one' (one step along `sequence_axis`), 'nan', 'not
        contiguous' and 'eval' are made from the inputs unless an entry says otherwise.
    batch_axes: per input the axis of the batch, None for inputs without one; by default 0 for every array.
    bad: wrong inputs. Every record has at least one, or says in `no_bad` why nothing can be wrong.
    checks: further properties, by name; each gets no argument.
    differentiable: False for layers whose outputs have no gradient.
    constants: positions of inputs that are numbers and have no gradient, such as targets of -1 and 1.
    """

    name: str
    make: Callable[[], Any]
    inputs: Callable[[Draw], tuple[Any, ...]]
    oracle: Oracle | None = None
    random: bool = False
    traits: frozenset[str] = frozenset({"batch"})
    edges: Mapping[str, Case | str] = field(default_factory=dict)
    batch_axes: tuple[int | None, ...] | None = None
    sequence_axis: int = 1
    bad: Sequence[Bad] = ()
    no_bad: str = ""
    checks: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    differentiable: bool = True
    constants: frozenset[int] = frozenset()
    own_gradient: bool = False  # backward is a rule of its own (a surrogate): see `checks` instead of differences
    training: bool = True  # the mode in which forward is compared
    rtol: float = 1e-5
    atol: float = 1e-6
    bf16: float | str = 0.05  # the tolerance in bfloat16, relative to the largest output; or why it makes no sense
    gradient_rtol: float = 1e-6
    learning_rate: float = 0.02  # of the short training
    variant: str = ""  # tells several records of one layer apart

    @property
    def id(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name
