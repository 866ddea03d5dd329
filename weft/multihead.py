"""Attention with several heads and the projections around it, as PyTorch's layer calls it."""

from __future__ import annotations

import math

from weft.attention import scaled_dot_product_attention
from weft.dtypes import bool_
from weft.errors import DTypeError, RangeError, ShapeError, problem
from weft.graph import build
from weft.ops.activation import softmax
from weft.ops.linalg import linear, matmul
from weft.ops.movement import cat, pad
from weft.ops.registry import operation
from weft.random import Generator, dropout
from weft.tensor import Tensor, lift

WHO = "multi_head_attention_forward"
_linear, _cat, _pad, _softmax, _matmul = lift(linear), lift(cat), lift(pad), lift(softmax), lift(matmul)


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
    `is_causal` says that `attn_mask` is the causal mask. Without `need_weights` memory is linear in S.

    >>> x, weight = weft.ones(3, 1, 2), weft.ones(6, 2)
    >>> forward = weft.nn.functional.multi_head_attention_forward
    >>> y, weights = forward(x, x, x, 2, 1, weight, None, None, None, False, 0.0, weft.ones(2, 2), None)
    >>> y.shape, weights.shape
    ((3, 1, 2), (1, 3, 3))
    """
    single = _check_ranks(query, key, value, key_padding_mask, attn_mask, num_heads)
    if single:
        query, key, value = (x.unsqueeze(1) for x in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    targets, batch, width = query.shape
    if width != embed_dim_to_check or width % num_heads:
        given = f"a query of width {width} with embed_dim_to_check={embed_dim_to_check} and num_heads={num_heads}"
        raise problem(ShapeError, WHO, given, "the width that is checked for, divisible by the number of heads")
    if key.shape[:2] != value.shape[:2] or (not use_separate_proj_weight and key.shape != value.shape):
        raise problem(ShapeError, WHO, f"key {key.shape} and value {value.shape}", "the same length and batch")
    sources = key.shape[0]
    if is_causal and attn_mask is None:
        raise problem(RangeError, WHO, "is_causal=True without attn_mask", "the causal mask as attn_mask, too")
    if is_causal and key_padding_mask is None and not need_weights:
        attn_mask = None  # the flag says it
    else:
        is_causal = is_causal and key_padding_mask is None
    padding = _additive("key_padding_mask", key_padding_mask, query)
    mask = _shaped_mask(_additive("attn_mask", attn_mask, query), batch * num_heads, targets, sources)
    if padding is not None and padding.shape != (batch, sources):
        raise problem(ShapeError, WHO, f"a key_padding_mask of shape {padding.shape}", f"{(batch, sources)}")

    weights = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight
    q, k, v = _projected((query, key, value), weights, in_proj_bias)
    more = 0
    if (bias_k is None) != (bias_v is None) or (bias_k is not None and (static_k is not None or static_v is not None)):
        raise problem(RangeError, WHO, "bias_k, bias_v and static_k or static_v", "both biases, or none of them")
    if bias_k is not None and bias_v is not None:
        k = _cat([k, bias_k.reshape(1, 1, width).expand(1, batch, width)], 0)
        v = _cat([v, bias_v.reshape(1, 1, width).expand(1, batch, width)], 0)
        more += 1
    depth = width // num_heads
    q = q.reshape(targets, batch, num_heads, depth).permute(1, 2, 0, 3)  # [N, heads, L, D]
    k = _heads("static_k", k, static_k, batch, num_heads, depth)
    v = _heads("static_v", v, static_v, batch, num_heads, depth)
    if add_zero_attn:
        zero = Tensor(build.full((batch, num_heads, 1, depth), 0.0, q.dtype, q.device))
        k, v = _cat([k, zero], 2), _cat([v, zero], 2)
        more += 1
    total = _merged(mask, padding, batch, num_heads, more)
    rate = dropout_p if training else 0.0
    if need_weights:
        scores = _matmul(q * math.sqrt(1.0 / depth), k.transpose(-2, -1))
        shares = dropout(_softmax(scores if total is None else scores + total, -1), rate, generator=generator)
        attended = _matmul(shares, v)
    else:
        shares = None
        attended = scaled_dot_product_attention(q, k, v, total, rate, is_causal, generator=generator)
    out = _linear(attended.permute(2, 0, 1, 3).reshape(targets, batch, width), out_proj_weight, out_proj_bias)
    out = out.squeeze(1) if single else out
    if shares is None:
        return out, None
    shares = shares.mean(1) if average_attn_weights else shares
    return out, shares.squeeze(0) if single else shares


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


def _additive(name: str, mask: Tensor | None, like: Tensor) -> Tensor | None:
    """A mask as numbers to add to scores."""
    if mask is None:
        return None
    if mask.dtype is bool_:
        zeros = Tensor(build.full(mask.shape, 0.0, like.dtype, like.device))
        return zeros.masked_fill(mask, -math.inf)
    if mask.dtype.kind != "f":
        raise problem(DTypeError, WHO, f"{name} of {mask.dtype.name}", "bool or float")
    return mask.to(like.dtype)


def _shaped_mask(mask: Tensor | None, rows: int, targets: int, sources: int) -> Tensor | None:
    if mask is not None and mask.shape not in ((targets, sources), (rows, targets, sources)):
        expected = f"{(targets, sources)} or {(rows, targets, sources)}"
        raise problem(ShapeError, WHO, f"an attn_mask of shape {mask.shape}", expected)
    return mask


def _projected(
    inputs: tuple[Tensor, Tensor, Tensor],
    weights: tuple[Tensor | None, Tensor | None, Tensor | None] | Tensor | None,
    bias: Tensor | None,
) -> list[Tensor]:
    """Query, key and value after their projections; one product for all that are the same tensor."""
    query, key, value = inputs
    width = query.shape[-1]
    if weights is None or (isinstance(weights, tuple) and any(weight is None for weight in weights)):
        raise problem(RangeError, WHO, "no weight for a projection", "in_proj_weight, or all of q_, k_, v_proj_weight")
    biases = [None] * 3 if bias is None else [bias[k * width : (k + 1) * width] for k in range(3)]
    if isinstance(weights, tuple):
        return [_linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]
    if query is key and key is value:
        packed = _linear(query, weights, bias)
        return [packed[..., k * width : (k + 1) * width] for k in range(3)]
    parts = [weights[k * width : (k + 1) * width] for k in range(3)]
    return [_linear(x, w, b) for x, w, b in zip(inputs, parts, biases, strict=True)]


def _heads(name: str, own: Tensor, given: Tensor | None, batch: int, heads: int, depth: int) -> Tensor:
    """[S, N, E] as [N, heads, S, D], or what was given instead, [N * heads, S, D]."""
    if given is None:
        return own.reshape(own.shape[0], batch, heads, depth).permute(1, 2, 0, 3)
    if given.ndim != 3 or given.shape[0] != batch * heads or given.shape[2] != depth:
        raise problem(ShapeError, WHO, f"{name} of shape {given.shape}", f"[{batch * heads}, S, {depth}]")
    return given.reshape(batch, heads, given.shape[1], depth)


def _merged(mask: Tensor | None, padding: Tensor | None, batch: int, heads: int, more: int) -> Tensor | None:
    """Both masks as one that broadcasts to [N, heads, L, S + more]; keys that were added are not masked."""
    if mask is not None:
        mask = mask if mask.ndim == 2 else mask.reshape(batch, heads, *mask.shape[1:])
        mask = _pad(mask, (0, more)) if more else mask
    if padding is not None:
        padding = _pad(padding, (0, more)) if more else padding
        padding = padding.reshape(batch, 1, 1, padding.shape[1])
        mask = padding if mask is None else mask + padding
    return mask
