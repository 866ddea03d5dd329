"""What `gpu.py` times: single operations at the speed of memory, matrix products, many small kernels, and training.

Every case knows the least that it must do: `bytes` to move (inputs and outputs once) or `flops`. Data are NumPy arrays,
the same for every framework; large ones are a block of rows that each framework repeats on its device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from cases import BY_NAME, Training
from gpt import GPT, TINY_GPT, Gpt
from networks import NETWORKS, Network, resnet18, resnet50

BLOCK = 251  # rows of which large arrays are made, again and again
SIZES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Copy:
    """A device-to-device copy of `nbytes`: the yardstick. Weft negates instead, one kernel that reads and writes."""

    name: str = "copy"
    title: str = "copy of 2 GiB"
    aim: str = "-"
    nbytes: int = 2 << 30
    tolerance: float = 1e-6

    @property
    def bytes(self) -> int:
        return 2 * self.nbytes


@dataclass(frozen=True)
class Rows:
    """An operation of `gpu_common.py` on x [rows, columns], by `part`: forward, backward or both in one step."""

    name: str
    title: str
    aim: str
    operation: str
    part: str
    rows: int
    columns: int
    dtype: str = "float32"
    tolerance: float = 1e-3

    @property
    def bytes(self) -> int:
        """x; for the backward pass (but of a loss) the gradient of the result; and what is computed."""
        whole = self.rows * self.columns * SIZES[self.dtype]
        if self.operation == "cross_entropy":
            return whole * {"forward": 1, "backward": 2, "both": 2}[self.part]
        return whole * {"forward": 2, "backward": 3, "both": 4}[self.part]

    def arrays(self) -> tuple[np.ndarray, ...]:
        """Blocks of x and of its result's gradient [BLOCK, columns], weight and bias [columns], classes [rows]."""
        rng = np.random.default_rng(11)
        block = (min(BLOCK, self.rows), self.columns)
        x, gradient = (rng.standard_normal(block, dtype=np.float32) for _ in range(2))
        weight = rng.uniform(0.5, 1.5, self.columns).astype(np.float32)
        bias = rng.uniform(-0.5, 0.5, self.columns).astype(np.float32)
        return x, gradient, weight, bias, rng.integers(0, self.columns, self.rows)


@dataclass(frozen=True)
class Product:
    """A bfloat16 matrix product [m, k] x [k, n]. `form` says how the operands lie: 'nn' as written, 'nt' the right one
    transposed (a linear layer), 'tn' the left one (its weight gradient)."""

    name: str
    title: str
    aim: str
    m: int
    n: int
    k: int
    form: str = "nn"
    tolerance: float = 1e-2

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(13)
        left = (self.k, self.m) if self.form == "tn" else (self.m, self.k)
        right = (self.n, self.k) if self.form == "nt" else (self.k, self.n)
        blocks = (rng.standard_normal(1_000_003, dtype=np.float32) for _ in range(2))
        a, b = (np.resize(block, shape) for block, shape in zip(blocks, (left, right), strict=True))
        return a, b


@dataclass(frozen=True)
class Update:
    """One AdamW step over the parameters of `gpt`, all float32, with gradients given."""

    name: str = "adamw"
    title: str = "AdamW, 124M parameters"
    aim: str = "85 % of the copy"
    gpt: Gpt = GPT
    tolerance: float = 1e-3

    @property
    def bytes(self) -> int:
        """Parameter, gradient and two moments are read, three of them written."""
        return 7 * 4 * self.count

    @property
    def count(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.gpt.shapes().values())

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """All parameters and all gradients, one after the other."""
        rng = np.random.default_rng(19)
        blocks = (rng.standard_normal(length, dtype=np.float32) for length in (1_000_003, 999_983))
        values, gradients = (np.resize(block, self.count) for block in blocks)
        return values, gradients


@dataclass(frozen=True)
class Iterations:
    """A loop of `count` iterations that scale an array: small kernels, of which each waits for the one before."""

    name: str = "turns"  # as recorded results have it
    title: str = "a loop of 500 small kernels, each waiting for the last: per kernel"
    aim: str = "under 1.5 us"
    count: int = 500
    shape: tuple[int, int] = (512, 32)
    factor: float = 0.999
    tolerance: float = 1e-3

    def array(self) -> np.ndarray:
        return np.random.default_rng(17).standard_normal(self.shape, dtype=np.float32)


Case = Copy | Rows | Product | Update | Iterations | Training | Network | Gpt


def _rows() -> list[Rows]:
    made = []
    for operation, title in (
        ("layer_norm", "layer norm"),
        ("softmax", "softmax"),
        ("gelu", "bias + GELU + dropout"),
        ("cross_entropy", "cross entropy"),
    ):
        rows, columns = 16384, 50257 if operation == "cross_entropy" else 4096
        for dtype, short in (("float32", "fp32"), ("bfloat16", "bf16")):
            for part, words in (("forward", "forward"), ("backward", "backward"), ("both", "forward + backward")):
                share = 75 if (operation, part) == ("layer_norm", "backward") else 85
                # Each framework drops other elements of 67 million, and the last bits of bfloat16 differ.
                tolerance = 5e-3 if operation == "gelu" or dtype == "bfloat16" else 1e-3
                made.append(
                    Rows(
                        f"{operation}_{short}_{part}",
                        f"{title}, {rows} x {columns} {short}, {words}",
                        f"{share} % of the copy",
                        operation,
                        part,
                        rows,
                        columns,
                        dtype,
                        tolerance,
                    )
                )
    return made


def _products() -> list[Product]:
    shapes = (
        ("4096", 4096, 4096, 4096, "nn"),
        ("8192", 8192, 8192, 8192, "nn"),
        ("qkv", 16384, 2304, 768, "nt"),
        ("up", 16384, 3072, 768, "nt"),
        ("down", 16384, 768, 3072, "nt"),
        ("head", 16384, 50304, 768, "nt"),
        ("up_weight", 3072, 768, 16384, "tn"),
        ("head_weight", 50304, 768, 16384, "tn"),
    )
    return [
        Product(f"gemm_{name}", f"bf16 product {m} x {n} x {k} ({form})", "95 % of torch", m, n, k, form)
        for name, m, n, k, form in shapes
    ]


WARM = 20  # steps after which everything that repeats was recorded, in all frameworks
# Large networks learn one batch by heart within steps, and what is left of the loss is rounding: so that it can be
# compared, they learn slowly.
SLOWLY: dict[str, Any] = {"learning_rate": 1e-5, "steps": 5, "warmup": WARM, "tolerance": 1e-3}
_networks = {network.name: network for network in NETWORKS}
TRAINING: tuple[Training | Network, ...] = (
    replace(BY_NAME["xor"], aim="under 3 ms", warmup=WARM),
    replace(BY_NAME["mlp"], aim="under 33 us", steps=200, warmup=WARM),
    replace(_networks["cnn"], aim="-", steps=50, warmup=WARM),
    Network("resnet18", "ResNet-18, 32 x 32, batch 256: one step", "-", partial(resnet18, batch=256), **SLOWLY),
    Network(
        "resnet50", "ResNet-50, 224 x 224, batch 64, bf16: one step", "-", resnet50, **SLOWLY | {"tolerance": 2e-2}
    ),
    replace(_networks["lstm"], aim="-", steps=10, warmup=WARM),
    replace(_networks["gcn"], aim="-", steps=20, warmup=WARM),
    replace(_networks["gat"], aim="-", steps=20, warmup=WARM),
)
CASES: dict[str, Case] = {
    case.name: case for case in (Copy(), *_rows(), *_products(), Update(), Iterations(), *TRAINING, GPT)
}
GROUPS = {
    "rows": [case.name for case in _rows()],
    "products": [case.name for case in _products()],
    "training": [case.name for case in TRAINING],
    "short": [  # what has an aim, in about three minutes
        "copy",
        *[case.name for case in _rows() if case.part == "both"],
        "layer_norm_fp32_backward",
        "adamw",
        *["gemm_4096", "gemm_8192", "gemm_up", "gemm_head"],
        *["turns", "xor", "mlp", "gpt"],
    ],
}


def shrink(case: Case) -> Case:
    """The same case in a size that a CPU does in a moment."""
    match case:
        case Copy():
            return replace(case, nbytes=1 << 16)
        case Rows():
            return replace(case, rows=24, columns=40, tolerance=0.5 if case.operation == "gelu" else 2e-2)
        case Product():
            return replace(case, m=max(case.m // 512, 8), n=max(case.n // 512, 8), k=max(case.k // 512, 8))
        case Update():
            return replace(case, gpt=TINY_GPT)
        case Iterations():
            return replace(case, count=10, shape=(16, 8))
        case Gpt():
            return TINY_GPT
        case Network(name="resnet18"):
            return replace(case, build=partial(resnet18, batch=2), steps=1)
        case Network(name="resnet50"):
            return replace(case, build=partial(resnet50, batch=2, size=32), steps=1, tolerance=1.0)
    return replace(case, steps=2)
