"""Which dtype operations compute in under `weft.autocast`: the table, and what applies it where an operation is called.

    user's call -> `lift(op)` -> `with_policy(name, op)` -> op

`with_policy` wraps an operation that the table names, once, when `lift` makes a function of tensors of it (or
`namespaces.function_of`, where it is one already): outside of autocast the wrapper reads one attribute of the thread's
state, and operations that the table does not name have no wrapper at all.
Inside, operands are cast by nodes that are part of the graph: equal casts are one node, so a weight that several
operations read is cast once in a program, and its gradient comes back through the cast in the weight's own dtype. What
an operation calls by itself is not cast again.

As in PyTorch, only float operands on a device that autocast is switched on for are cast, float64 is left alone, and a
call with an explicit `dtype` is left as it is. The table follows PyTorch's lists for GPUs on every device;
docs/precision.md, which `tools/precision_table.py` writes, shows them in one table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

from weft.base.dtypes import DType, float32, float64
from weft.base.errors import DTypeError, problem
from weft.base.state import STATE
from weft.graph import build
from weft.graph.node import Node

LOW, FLOAT32, WIDEST = "low", "float32", "widest"
POLICIES = {
    LOW: "operands are cast to the dtype of autocast",
    FLOAT32: "operands are cast to float32",
    WIDEST: "operands are cast to the widest dtype among them: float32 if one is float32, else that of autocast",
}
_NAMES = {
    LOW: """
        matmul rmatmul mm bmm mv linear einsum addmm addmv addr addbmm baddbmm chain_matmul multi_dot
        vecdot conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d prelu
        scaled_dot_product_attention
    """,
    FLOAT32: """
        exp expm1 log log2 log10 log1p pow rpow reciprocal rdiv rsqrt asin acos sinh cosh tan erfinv softplus
        sum prod cumsum cumprod logsumexp softmax log_softmax softmin segment_softmax edge_softmax
        layer_norm rms_norm group_norm local_response_norm lp_pool1d lp_pool2d lp_pool3d
        norm dist cdist pdist renorm normalize cosine_similarity pairwise_distance
        interpolate upsample upsample_nearest upsample_bilinear
        mse_loss l1_loss smooth_l1_loss huber_loss cross_entropy nll_loss kl_div binary_cross_entropy
        binary_cross_entropy_with_logits ctc_loss poisson_nll_loss gaussian_nll_loss hinge_embedding_loss
        cosine_embedding_loss margin_ranking_loss multi_margin_loss multilabel_margin_loss soft_margin_loss
        multilabel_soft_margin_loss triplet_margin_loss
        sigmoid_focal_loss softmax_focal_loss contrastive_loss gaussian_kl capsule_margin_loss
        vector_norm matrix_norm quantile nanquantile matrix_exp
        det logdet slogdet inv inverse pinv pinverse cholesky eigh eigvalsh svd svdvals qr lstsq solve
        solve_triangular matrix_rank cond tensorinv tensorsolve
    """,
    WIDEST: """
        addcmul addcdiv atan2 bilinear cross dot vdot inner tensordot grid_sample index_put scatter_add aggregate spmm
    """,
}
POLICY: dict[str, str] = {name: policy for policy, names in _NAMES.items() for name in names.split()}


class AutocastState:
    """What autocast is switched on for: dtypes by kind of device, "" for all others; None is off. One object for each
    meaning, so that compiled functions compare it by identity."""

    __slots__ = ("dtypes",)
    _made: ClassVar[dict[tuple[tuple[str, DType | None], ...], AutocastState]] = {}

    def __init__(self, dtypes: dict[str, DType | None]):
        self.dtypes = dtypes

    @classmethod
    def of(cls, dtypes: dict[str, DType | None]) -> AutocastState | None:
        """The state with these dtypes; None where all are off."""
        rest = dtypes.get("")
        changed = {kind: dtype for kind, dtype in dtypes.items() if kind and dtype is not rest}
        if rest is not None:
            changed[""] = rest
        if not changed:
            return None
        key = tuple(sorted(changed.items(), key=lambda item: item[0]))
        return cls._made.setdefault(key, cls(changed))

    def dtype_on(self, device: Any) -> DType | None:
        """The dtype that operands on a device are cast to, or None."""
        return self.dtypes.get(device.kind, self.dtypes.get(""))

    def __repr__(self) -> str:
        parts = [f"{dtype.name if dtype else 'off'} on {kind or 'all devices'}" for kind, dtype in self.dtypes.items()]
        return "autocast to " + ", ".join(parts)


def with_policy(
    name: str, op: Callable[..., Any], kind: Any = Node, cast: Callable[[Any, DType], Any] = build.cast
) -> Callable[..., Any]:
    """`op`, with its operands cast as the table says for `name`; `op` itself where it says nothing. `kind` is the type
    of operands, nodes or tensors, and `cast` how one is cast."""
    policy = POLICY.get(name)
    if policy is None:
        return op

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        state = STATE.autocast
        if state is None or kwargs.get("dtype") is not None:
            return op(*args, **kwargs)
        found: list[Any] = []
        _collect(args, kind, state, found)
        _collect(tuple(kwargs.values()), kind, state, found)
        if not found:
            return op(*args, **kwargs)
        target = _target(name, policy, found, state)
        args = _convert(args, kind, state, cast, target)
        kwargs = {key: _convert(value, kind, state, cast, target) for key, value in kwargs.items()}
        STATE.autocast = None  # what the operation is made of is not cast once more
        try:
            return op(*args, **kwargs)
        finally:
            STATE.autocast = state

    return call


def _is_cast(value: Any, kind: Any, state: AutocastState) -> bool:
    """Whether an argument is an operand that autocast casts: a float of at most 32 bits on a device it is on for."""
    if not isinstance(value, kind):
        return False
    dtype = value.dtype
    return dtype.kind == "f" and dtype is not float64 and state.dtype_on(value.device) is not None


def _collect(values: Any, kind: Any, state: AutocastState, found: list[Any]) -> None:
    for value in values:
        if type(value) in (tuple, list):
            _collect(value, kind, state, found)
        elif _is_cast(value, kind, state):
            found.append(value)


def _target(name: str, policy: str, operands: list[Any], state: AutocastState) -> DType:
    """The dtype that operands are cast to."""
    device = operands[0].device
    low = state.dtype_on(device)
    assert low is not None
    if policy == FLOAT32 or (policy == WIDEST and any(operand.dtype is float32 for operand in operands)):
        return float32
    if low not in device.dtypes:
        expected = f"one of {', '.join(sorted(dtype.name for dtype in device.dtypes if dtype.kind == 'f'))}"
        fix = f'autocast("{device.kind}", enabled=False), or another dtype'
        raise problem(DTypeError, name, f"autocast to {low.name} on {device}, which has no {low.name}", expected, fix)
    return low


def _convert(value: Any, kind: Any, state: AutocastState, cast: Callable[..., Any], target: DType) -> Any:
    if type(value) in (tuple, list):
        return type(value)([_convert(one, kind, state, cast, target) for one in value])
    if _is_cast(value, kind, state) and value.dtype is not target:
        return cast(value, target)
    return value
