"""Tables of rows: `embedding` and `embedding_bag`, which may shorten rows of the table that they are given."""

from __future__ import annotations

from weft.autograd import no_grad
from weft.base.errors import RangeError, problem
from weft.core.lift import lift
from weft.core.tensor import Tensor
from weft.ops import embedding as ops
from weft.ops.registry import operation

_embedding = lift(ops.embedding)
_embedding_bag = lift(ops.embedding_bag)
_with_bounded_norms = lift(ops.with_bounded_norms)


@operation("functional", of_tensors=True)
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of `weight` [count, width] by number: `input` [...] gives [..., width].
    The row `padding_idx` gets no gradient. With `max_norm` the rows that are used are first scaled, in place, to a
    norm of order `norm_type` of at most that. `scale_grad_by_freq` divides the gradient of a row by how often it is
    used in this call. Gradients are dense whatever `sparse` says.

    >>> weft.nn.functional.embedding(weft.tensor([1, 0]), weft.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.],
            [1., 2.]])
    """
    if max_norm is not None:
        _bound_norms(weight, input, max_norm, norm_type)
    return _embedding(input, weight, padding_idx, scale_grad_by_freq)


@operation("functional", of_tensors=True)
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The 'sum', 'mean' or 'max' of the rows of `weight` [count, width] in each bag of numbers: [bags, width].

    `input` [bags, length] has one bag in each row; or it is a vector, and `offsets` says where each bag begins (with
    `include_last_offset` also where the last one ends). Numbers equal to `padding_idx` do not count. A bag without
    numbers gives 0. `per_sample_weights`, of the shape of `input`, scale the rows before a sum. The rest is as in
    `embedding`.

    >>> table = weft.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> weft.nn.functional.embedding_bag(weft.tensor([0, 1, 2]), table, weft.tensor([0, 2]), mode="sum")
    tensor([[4., 6.],
            [5., 6.]])
    """
    if sparse and mode == "max":
        raise problem(RangeError, "embedding_bag", "sparse=True with mode='max'", "mode 'sum' or 'mean'")
    if max_norm is not None:
        _bound_norms(weight, input, max_norm, norm_type)
    return _embedding_bag(
        input, weight, offsets, scale_grad_by_freq, mode, per_sample_weights, include_last_offset, padding_idx
    )


def _bound_norms(weight: Tensor, input: Tensor, max_norm: float, norm_type: float) -> None:
    with no_grad():
        weight.copy_(_with_bounded_norms(weight, input, max_norm, norm_type))
