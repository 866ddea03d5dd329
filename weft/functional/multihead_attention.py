"""Attention with several heads and the projections around it, as PyTorch's layer calls it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from weft.base.dtypes import bool_
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.core.lift import lift
from weft.core.tensor import Tensor
from weft.functional.attention import scaled_dot_product_attention
from weft.graph import build
from weft.ops.activation import softmax
from weft.ops.elementwise import where
from weft.ops.linalg import linear, matmul
from weft.ops.movement import cat, pad
from weft.ops.registry import operation
from weft.random.generator import Generator, dropout

WHO = "multi_head_attention_forward"
_linear, _cat, _pad, _softmax, _matmul = lift(linear), lift(cat), lift(pad), lift(softmax), lift(matmul)
_where = lift(where)


@operation("functional", of_tensors=True)
def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention of query [L, N, E] to key and value [S, N, ...] (or without the batch N) in `num_heads` heads between
    input and output projections: [L, N, E], and with `need_weights` the weights [N, L, S], averaged over the heads or
    [N, heads, L, S].

    `in_proj_weight` [3 E, E] projects all three; with `use_separate_proj_weight` there is one weight for each.
    `bias_k` and `bias_v` [1, 1, E] are a key and a value more, `add_zero_attn` adds one of zeros. Masks are bool (True:
    do not attend) or added to the scores: `attn_mask` [L, S] or [N * heads, L, S], `key_padding_mask` [N, S].
    `is_causal` says that `attn_mask` is the causal mask. A query that may see no key has weights of 0. Without
    `need_weights` memory is linear in S. Long because PyTorch's function has 26 parameters.

    >>> x, weight = weft.ones(3, 1, 2), weft.ones(6, 2)
    >>> forward = weft.nn.functional.multi_head_attention_forward
    >>> y, weights = forward(x, x, x, 2, 1, weight, None, None, None, False, 0.0, weft.ones(2, 2), None)
    >>> y.shape, weights.shape
    ((3, 1, 2), (1, 3, 3))
    """
    single = _check_ranks(query, key, value, key_padding_mask, attn_mask, num_heads)
    width = query.shape[-1]
    if width != embed_dim_to_check or width % num_heads:
        given = f"a query of width {width} with embed_dim_to_check={embed_dim_to_check} and num_heads={num_heads}"
        raise problem(ShapeError, WHO, given, "the width that is checked for, divisible by the number of heads")
    if is_causal and attn_mask is None:
        raise problem(RangeError, WHO, "is_causal=True without attn_mask", "the causal mask as attn_mask, too")
    if single:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    out, shares = attend(
        query, key, value, num_heads,
        (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight, in_proj_bias,
        out_proj_weight, out_proj_bias, bias_k=bias_k, bias_v=bias_v, add_zero_attn=add_zero_attn,
        dropout_p=dropout_p if training else 0.0, key_padding_mask=key_padding_mask, attn_mask=attn_mask,
        is_causal=is_causal, need_weights=need_weights, static_k=static_k, static_v=static_v, generator=generator,
        batch_first=False,
    )  # fmt: skip
    out = out.squeeze(1) if single else out
    if shares is None:
        return out, None
    shares = shares.mean(1) if average_attn_weights else shares
    return out, shares.squeeze(0) if single else shares


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    num_heads: int,
    weights: tuple[Tensor | None, Tensor | None, Tensor | None] | Tensor | None,
    bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor | None,
    *,
    batch_first: bool = True,
    num_kv_heads: int | None = None,
    bias_k: Tensor | None = None,
    bias_v: Tensor | None = None,
    add_zero_attn: bool = False,
    dropout_p: float = 0.0,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    need_weights: bool = False,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    change: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]] | None = None,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Attention of query [N, L, E] to key and value [N, S, ...] between its projections: [N, L, E], and with
    `need_weights` the weights [N, heads, L, S], else None. Without `batch_first` inputs and output are [L, N, ...].

    `num_kv_heads` G < heads shares keys and values: head h reads head h * G // heads. `change` gets query, key and
    value [N, heads or G, length, D] and returns others: rotary embeddings, or keys of earlier calls. `is_causal` is
    used instead of `attn_mask` where the attention kernel takes it, and is enough on its own. Masks as in
    `multi_head_attention_forward`; a query that sees no key gets 0 from attention. Long because it has the parameters
    of that function and of the layers around it.
    """
    axis = 1 if batch_first else 0  # of the sequence
    batch, targets, width = query.shape[1 - axis], query.shape[axis], query.shape[2]
    groups, depth = num_kv_heads or num_heads, width // num_heads
    if key.shape[:2] != value.shape[:2] or (not isinstance(weights, tuple) and key.shape != value.shape):
        raise problem(ShapeError, WHO, f"key {key.shape} and value {value.shape}", "the same length and batch")
    if key.shape[1 - axis] != batch:
        raise problem(ShapeError, WHO, f"a query for a batch of {batch}, keys for {key.shape[1 - axis]}", "one batch")
    if (bias_k is None) != (bias_v is None) or (bias_k is not None and (static_k is not None or static_v is not None)):
        raise problem(RangeError, WHO, "bias_k, bias_v and static_k or static_v", "both biases, or none of them")
    q, k, v = _project((query, key, value), weights, bias, (width, groups * depth, groups * depth))
    if bias_k is not None and bias_v is not None:
        more_shape = (batch, 1, groups * depth) if batch_first else (1, batch, groups * depth)
        k = _cat([k, bias_k.reshape(1, 1, groups * depth).expand(*more_shape)], axis)
        v = _cat([v, bias_v.reshape(1, 1, groups * depth).expand(*more_shape)], axis)
    q = _split_heads(q, axis, num_heads, depth)  # [N, heads, L, D]
    k = (
        _split_heads(k, axis, groups, depth)
        if static_k is None
        else _check_static("static_k", static_k, batch, groups, depth)
    )
    v = (
        _split_heads(v, axis, groups, depth)
        if static_v is None
        else _check_static("static_v", static_v, batch, groups, depth)
    )
    if change is not None:
        q, k, v = change(q, k, v)
    if add_zero_attn:
        zero = Tensor(build.full((batch, groups, 1, depth), 0.0, q.dtype, q.device))
        k, v = _cat([k, zero], 2), _cat([v, zero], 2)
    more = (bias_k is not None) + add_zero_attn
    sources = k.shape[2] - more
    if is_causal and not need_weights and not more:
        attn_mask = None  # the flag says it
    elif is_causal:
        is_causal = False
        attn_mask = _causal(targets, sources, query) if attn_mask is None else attn_mask
    total = _merge_masks(attn_mask, key_padding_mask, (batch, num_heads, targets, sources), more, q)
    if need_weights:
        attended, shares = _attend_with_weights(q, k, v, total, dropout_p, generator)
    else:
        shares, shared = None, groups != num_heads
        attended = scaled_dot_product_attention(
            q, k, v, total, dropout_p, is_causal, enable_gqa=shared, generator=generator
        )
    merged = attended.permute(0, 2, 1, 3) if batch_first else attended.permute(2, 0, 1, 3)
    return _linear(merged.reshape(*query.shape), out_weight, out_bias), shares


def _attend_with_weights(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, generator: Generator | None
) -> tuple[Tensor, Tensor]:
    """Attention [N, heads, L, D] and its weights [N, heads, L, S], which are computed as such."""
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
    shares = _shares(_matmul(q * math.sqrt(1.0 / q.shape[-1]), k.transpose(-2, -1)), mask)
    shares = dropout(shares, dropout_p, generator=generator)
    return _matmul(shares, v), shares


def _shares(scores: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(scores + mask); 0 where nothing may be seen."""
    if mask is None:
        return _softmax(scores, -1)
    allowed = mask if mask.dtype is bool_ else mask > -math.inf
    seen = allowed.any(-1, keepdim=True)
    scores = _where(mask, scores, -math.inf) if mask.dtype is bool_ else scores + mask
    return _where(seen, _softmax(_where(seen, scores, 0.0), -1), 0.0)


def _causal(targets: int, sources: int, like: Tensor) -> Tensor:
    """True where key j lies after query i."""
    rows, columns = (build.iota((targets, sources), axis, like.device) for axis in (0, 1))
    return Tensor(build.lt(rows, columns))


def _check_ranks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    num_heads: int,
) -> bool:
    """Whether there is no batch."""
    ranks = {query.ndim, key.ndim, value.ndim}
    if ranks not in ({2}, {3}) or num_heads < 1:
        given = f"query {query.shape}, key {key.shape}, value {value.shape} and {num_heads} heads"
        raise problem(ShapeError, WHO, given, "[L, N, E] and [S, N, ...], or [L, E] and [S, ...]; at least one head")
    single = ranks == {2}
    if key_padding_mask is not None and key_padding_mask.ndim != (1 if single else 2):
        raise problem(ShapeError, WHO, f"a key_padding_mask of shape {key_padding_mask.shape}", "[N, S], or [S]")
    if attn_mask is not None and attn_mask.ndim not in (2, 3):
        raise problem(ShapeError, WHO, f"an attn_mask of shape {attn_mask.shape}", "[L, S] or [N * heads, L, S]")
    return single


def _project(
    inputs: tuple[Tensor, Tensor, Tensor],
    weights: tuple[Tensor | None, Tensor | None, Tensor | None] | Tensor | None,
    bias: Tensor | None,
    widths: tuple[int, int, int],
) -> list[Tensor]:
    """Query, key and value after their projections; one product for all that are the same tensor."""
    query, key, value = inputs
    if weights is None or (isinstance(weights, tuple) and any(weight is None for weight in weights)):
        raise problem(RangeError, WHO, "no weight for a projection", "in_proj_weight, or all of q_, k_, v_proj_weight")
    ends = list(itertools.accumulate(widths))
    parts = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
    if not isinstance(weights, tuple) and query is key and key is value:
        packed = _linear(query, weights, bias)
        return [packed[..., part] for part in parts]
    if not isinstance(weights, tuple):
        weights = (weights[parts[0]], weights[parts[1]], weights[parts[2]])
    biases = [None if bias is None else bias[part] for part in parts]
    return [_linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]


def _split_heads(x: Tensor, axis: int, heads: int, depth: int) -> Tensor:
    """[N, S, heads * D], or with the sequence on axis 0, as [N, heads, S, D]."""
    split = x.reshape(*x.shape[:2], heads, depth)
    return split.permute(0, 2, 1, 3) if axis == 1 else split.permute(1, 2, 0, 3)


def _check_static(name: str, given: Tensor, batch: int, heads: int, depth: int) -> Tensor:
    """Keys or values [N * heads, S, D] that were given instead, as [N, heads, S, D]."""
    if given.ndim != 3 or given.shape[0] != batch * heads or given.shape[2] != depth:
        raise problem(ShapeError, WHO, f"{name} of shape {given.shape}", f"[{batch * heads}, S, {depth}]")
    return given.reshape(batch, heads, given.shape[1], depth)


def _merge_masks(
    mask: Tensor | None, padding: Tensor | None, shape: tuple[int, int, int, int], more: int, like: Tensor
) -> Tensor | None:
    """Both masks as one that broadcasts to [N, heads, L, S + more]: bool (True: attend) where both are, else numbers
    to add. Keys that were added are not masked."""
    batch, heads, targets, sources = shape
    masks = []
    if mask is not None:
        if mask.shape not in ((targets, sources), (batch * heads, targets, sources)):
            expected = f"{(targets, sources)} or {(batch * heads, targets, sources)}"
            raise problem(ShapeError, WHO, f"an attn_mask of shape {mask.shape}", expected)
        masks.append(("attn_mask", mask if mask.ndim == 2 else mask.reshape(shape)))
    if padding is not None:
        if padding.shape != (batch, sources):
            raise problem(ShapeError, WHO, f"a key_padding_mask of shape {padding.shape}", f"{(batch, sources)}")
        masks.append(("key_padding_mask", padding.reshape(batch, 1, 1, sources)))
    if not masks:
        return None
    for name, one in masks:
        if one.dtype is not bool_ and one.dtype.kind != "f":
            raise problem(DTypeError, WHO, f"{name} of {one.dtype.name}", "bool or float")
    padded = [_pad(one, (0, more)) if more else one for _, one in masks]
    if all(one.dtype is bool_ for one in padded):
        return ~(padded[0] if len(padded) == 1 else padded[0] | padded[1])
    filled = [_where(one, -math.inf, 0.0) if one.dtype is bool_ else one for one in padded]
    numbers = [one.to(like.dtype) for one in filled]
    return numbers[0] if len(numbers) == 1 else numbers[0] + numbers[1]
