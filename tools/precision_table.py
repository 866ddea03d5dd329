"""Write the table of autocast's policies into docs/precision.md: `python tools/precision_table.py`.

Beside Weft's policy stands what PyTorch does on GPUs, read from the lists in its header, and on the CPU, measured by
calling the operation under `torch.autocast("cpu", torch.bfloat16)` with the samples of tests/records.
"""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import weft  # noqa: E402
from tests.records import RECORDS, Inputs, flat  # noqa: E402
from weft.ops.policy import FLOAT32, LOW, POLICIES, POLICY, WIDEST  # noqa: E402

PAGE = ROOT / "docs" / "precision.md"
BEGIN, END = "<!-- table of policies: begin -->\n", "<!-- table of policies: end -->\n"
LISTS = {"LOWER_PRECISION_FP": LOW, "FP32": FLOAT32, "FP32_SET_OPT_DTYPE": FLOAT32, "PROMOTE": WIDEST}
# What an operation is called in PyTorch's lists, or which entry it is made of there.
ENTRIES = {
    "rmatmul": "matmul", "rpow": "pow", "rdiv": "reciprocal", "softmin": "softmax", "grid_sample": "grid_sampler",
    "interpolate": "upsample_bilinear2d", "upsample": "upsample_bilinear2d", "upsample_nearest": "upsample_nearest2d",
    "upsample_bilinear": "upsample_bilinear2d", "normalize": "linalg_vector_norm", "cross_entropy": "nll_loss",
    "pairwise_distance": "linalg_vector_norm", "norm": "linalg_vector_norm", "inner": "tensordot",
    "gaussian_nll_loss": "log", "vecdot": "linalg_vecdot", "vector_norm": "linalg_vector_norm",
    "matrix_norm": "linalg_matrix_norm", "multi_dot": "linalg_multi_dot", "local_response_norm": "pow",
    "lp_pool1d": "pow", "lp_pool2d": "pow", "lp_pool3d": "pow",
}  # fmt: skip
# Operations that PyTorch's lists for GPUs do not have, and why they are in ours.
REASONS = {
    "binary_cross_entropy": "PyTorch refuses it on GPUs",
    "ctc_loss": "a loss; float32 on PyTorch's CPU list",
    "multilabel_soft_margin_loss": "a loss",
    "sigmoid_focal_loss": "a loss; not in PyTorch",
    "softmax_focal_loss": "a loss; not in PyTorch",
    "contrastive_loss": "a loss; not in PyTorch",
    "gaussian_kl": "a loss; not in PyTorch",
    "capsule_margin_loss": "a loss; not in PyTorch",
    "segment_softmax": "a softmax; not in PyTorch",
    "edge_softmax": "a softmax; not in PyTorch",
    "quantile": "float32 on PyTorch's CPU list",
    "nanquantile": "float32 on PyTorch's CPU list",
    "matrix_exp": "sums of powers; no 16-bit form on GPUs",
    "aggregate": "weights of edges in float32, features in 16 bits",
    "spmm": "weights of edges in float32, features in 16 bits",
}

DECOMPOSITIONS = (
    "det", "logdet", "slogdet", "inv", "inverse", "pinv", "pinverse", "cholesky", "eigh", "eigvalsh", "svd", "svdvals",
    "qr", "lstsq", "solve", "solve_triangular", "matrix_rank", "cond", "tensorinv", "tensorsolve",
)  # fmt: skip
REASONS |= dict.fromkeys(DECOMPOSITIONS, "there are no 16-bit decompositions")
# Operations of PyTorch that no record calls: a call for operands of a dtype.
CALLS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "rmatmul": lambda dtype: torch.Tensor.__rmatmul__(_ones(dtype), _ones(dtype)),
    "chain_matmul": lambda dtype: torch.linalg.multi_dot([_ones(dtype), _ones(dtype), _ones(dtype)]),
    "multi_dot": lambda dtype: torch.linalg.multi_dot([_ones(dtype), _ones(dtype), _ones(dtype)]),
    "interpolate": lambda dtype: torch.nn.functional.interpolate(_ones(dtype)[None, None], scale_factor=2),
    "grid_sample": lambda dtype: torch.nn.functional.grid_sample(
        _ones(dtype)[None, None], torch.zeros(1, 2, 2, 2, dtype=dtype), align_corners=False
    ),
    "quantile": lambda dtype: torch.quantile(_ones(dtype), 0.5),
    "nanquantile": lambda dtype: torch.nanquantile(_ones(dtype), 0.5),
    "det": lambda dtype: torch.det(_ones(dtype)),
    "logdet": lambda dtype: torch.logdet(_ones(dtype)),
    "slogdet": lambda dtype: torch.slogdet(_ones(dtype))[1],
    "inverse": lambda dtype: torch.inverse(_eye(dtype)),
    "inv": lambda dtype: torch.linalg.inv(_eye(dtype)),
    "pinv": lambda dtype: torch.linalg.pinv(_eye(dtype)),
    "cholesky": lambda dtype: torch.linalg.cholesky(_eye(dtype)),
    "eigh": lambda dtype: torch.linalg.eigh(_eye(dtype))[0],
    "eigvalsh": lambda dtype: torch.linalg.eigvalsh(_eye(dtype)),
    "svd": lambda dtype: torch.linalg.svd(_eye(dtype))[0],
    "svdvals": lambda dtype: torch.linalg.svdvals(_eye(dtype)),
    "qr": lambda dtype: torch.linalg.qr(_eye(dtype))[0],
    "lstsq": lambda dtype: torch.linalg.lstsq(_eye(dtype), _ones(dtype))[0],
    "solve": lambda dtype: torch.linalg.solve(_eye(dtype), _ones(dtype)),
    "solve_triangular": lambda dtype: torch.linalg.solve_triangular(_eye(dtype), _ones(dtype), upper=True),
    "cond": lambda dtype: torch.linalg.cond(_eye(dtype)),
    "tensorinv": lambda dtype: torch.linalg.tensorinv(_eye(dtype), ind=1),
    "tensorsolve": lambda dtype: torch.linalg.tensorsolve(_eye(dtype), _ones(dtype)[0]),
    "vecdot": lambda dtype: torch.linalg.vecdot(_ones(dtype), _ones(dtype)),
    "vector_norm": lambda dtype: torch.linalg.vector_norm(_ones(dtype)),
    "matrix_norm": lambda dtype: torch.linalg.matrix_norm(_ones(dtype)),
    "pinverse": lambda dtype: torch.pinverse(_ones(dtype)),
    "vdot": lambda dtype: torch.vdot(_ones(dtype)[0], _ones(dtype)[0]),
}


def _ones(dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(2, 2, dtype=dtype)


def _eye(dtype: torch.dtype) -> torch.Tensor:
    return torch.eye(2, dtype=dtype)


def torch_lists() -> dict[str, str]:
    """PyTorch's policies on GPUs by operation, from its header."""
    text = (Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h").read_text()
    found: dict[str, str] = {}
    for name, policy in LISTS.items():
        body = re.search(rf"#define AT_FORALL_{name}\(_\)((?:.*\\\n)*.*)", text)
        assert body is not None, f"PyTorch's header has no list {name}"
        found |= dict.fromkeys(re.findall(r"_\((\w+)", body[1]), policy)
    return found


def on_gpus(name: str, lists: dict[str, str]) -> str:
    """PyTorch's policy for an operation on GPUs; '' where there is none."""
    return lists.get(name) or lists.get(ENTRIES.get(name, ""), "")


def calls(name: str) -> Iterator[tuple[Any, Any]]:
    """The records of an operation with one sample each that has float tensors."""
    for record in RECORDS:
        if record.name.split()[0].split(".")[-1].split("(")[0] == name and "dtype" not in record.name:
            for sample in record.samples[:2]:
                yield record, sample


def measured(name: str, dtype: str) -> set[str]:
    """The dtypes of the results of an operation in PyTorch, on the CPU under autocast, for operands of `dtype`."""
    found = set()
    if name in CALLS:
        with torch.autocast("cpu", dtype=torch.bfloat16), contextlib.suppress(RuntimeError, NotImplementedError):
            found.add(str(CALLS[name](getattr(torch, dtype)).dtype).removeprefix("torch."))
    for record, sample in calls(name):
        with torch.autocast("cpu", dtype=torch.bfloat16), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                results = record.torch_fn(*Inputs(sample, dtype).torch_args, **sample.kwargs)
            except (RuntimeError, NotImplementedError, TypeError):
                continue
        found |= {str(one.dtype).removeprefix("torch.") for one in flat(results) if hasattr(one, "dtype")}
    return found & {"float32", "bfloat16"}


def on_the_cpu(name: str) -> str:
    """PyTorch's policy for an operation on the CPU, as far as dtypes of results show it; '' where it has none."""
    wide, narrow = measured(name, "float32"), measured(name, "bfloat16")
    if wide == {"bfloat16"}:
        return LOW
    return FLOAT32 if narrow == {"float32"} else ""


def table() -> str:
    """The page's table."""
    lists = torch_lists()
    lines = ["| operation | Weft | PyTorch, GPUs | PyTorch, CPU | |", "|---|---|---|---|---|"]
    for policy in POLICIES:
        for name in sorted(name for name, own in POLICY.items() if own == policy):
            lines.append(
                f"| `{name}` | {policy} | {on_gpus(name, lists) or '-'} | {on_the_cpu(name) or '-'} | "
                f"{REASONS.get(name, '')} |"
            )
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with the present table."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    print(f"{PAGE.name}: {len(POLICY)} operations, {weft.__version__}")
