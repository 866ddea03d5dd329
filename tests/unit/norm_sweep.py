"""Normalisations of many shapes with all their gradients: alone, and behind an embedding with a residual.

`run` computes a case on the default device. The sweep on hardware compares it with an oracle; the one without looks at
what kernels ask of a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import weft
import weft.nn.functional as F
from weft.core.tensor import Tensor

POWERS = tuple([1 << power for power in range(4, 15)])  # 16 to 16,384
ODD = (17, 33, 65, 129, 251, 513, 767, 769, 1025, 1537, 2047, 4099, 8193, 16383)
BETWEEN = (48, 96, 384, 768, 1536, 3072, 5120, 12288)  # what models have
WIDTHS = tuple(sorted((*POWERS, *ODD, *BETWEEN)))
ROWS = (1, 7, 64, 1000, 8192)
NORMS = ("layer_norm", "rms_norm")
CONTEXTS = ("alone", "embedded")
DTYPES = ("float32", "bfloat16", "float16")
WORDS = 61  # in the table of an embedding
EPS = 1e-5


@dataclass(frozen=True)
class Case:
    rows: int
    width: int
    norm: str
    context: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.norm}-{self.rows}x{self.width}-{self.context}-{self.dtype}"


def cases(rows: tuple[int, ...], widths: tuple[int, ...], dtypes: tuple[str, ...] = DTYPES) -> Iterator[Case]:
    for width in widths:
        for norm in NORMS:
            for context in CONTEXTS:
                for dtype in dtypes:
                    for count in rows:
                        yield Case(count, width, norm, context, dtype)


def arrays(case: Case) -> dict[str, np.ndarray]:
    """Inputs in float32: [rows, width] or a table and its indices, the parameters, and the gradient of the result."""
    rng = np.random.default_rng(case.rows + case.width)
    shape = (case.rows, case.width)
    block = rng.standard_normal((min(case.rows, 251), case.width), dtype=np.float32)  # again and again: quickly made
    large = np.resize(block, shape)
    made = {"x": large * 1.5 + 0.25, "slope": np.roll(large, 3, 1)}
    if case.context == "embedded":
        made |= {"index": rng.integers(0, WORDS, case.rows), "table": rng.standard_normal((WORDS, case.width))}
    made["weight"] = rng.uniform(0.5, 1.5, case.width)
    if case.norm == "layer_norm":
        made["bias"] = rng.uniform(-0.5, 0.5, case.width)
    return {name: array if name == "index" else array.astype(np.float32) for name, array in made.items()}


def loss(p: dict[str, Tensor], case: Case) -> tuple[Tensor, Tensor]:
    """The sum of the result weighed by `slope`, whose gradient is `slope`, and the result."""
    x = p["x"]
    if case.context == "embedded":
        x = x + F.embedding(p["index"], p["table"])
    if case.norm == "layer_norm":
        y = F.layer_norm(x, (case.width,), p["weight"], p["bias"], EPS)
    else:
        y = F.rms_norm(x, (case.width,), p["weight"], EPS)
    y = x + y if case.context == "embedded" else y
    return (y.float() * p["slope"].float()).sum(), y


def run(case: Case, given: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """The result ('y') and the gradients of all inputs by name, as one compiled function computes them."""
    dtype = weft.base.dtypes.by_name(case.dtype)
    inputs = {name: weft.tensor(a) if name == "index" else weft.tensor(a).to(dtype) for name, a in given.items()}
    names = [name for name in inputs if name not in ("index", "slope")]

    @weft.compile
    def step(*leaves: Tensor) -> tuple[Tensor, ...]:
        def weighed(*leaves: Tensor) -> tuple[Tensor, Tensor]:
            return loss({**inputs, **dict(zip(names, leaves, strict=True))}, case)

        (_, y), slopes = weft.value_and_grad(weighed, argnums=tuple(range(len(names))), has_aux=True)(*leaves)
        return y.detach(), *slopes

    y, *slopes = step(*[inputs[name] for name in names])
    return {"y": y, **dict(zip(names, slopes, strict=True))}
