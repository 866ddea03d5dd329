"""Attention as a primitive: its shape rules and its meaning in NumPy.

`attention` takes q [B, H, Tq, D], k [B, Hk, Tk, D], v [B, Hk, Tk, Dv], then a mask or bias [B, H, Tq, Tk] if `masked`,
then a random state if `dropout` > 0. It has two results: the value, laid out as [B, Tq, H, Dv], and the logarithm of
each query's sum of exponentials, [B, H, Tq] (plus infinity where a query sees no key), in float32 at least.
`attention_backward` takes the same sources, both results and the gradient of the value [B, H, Tq, Dv]; its results are
the gradients of q, k and v, as [B, T, heads, width] each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.base.dtypes import DType, bool_, float32, uint32
from weft.graph.attributes import Attention
from weft.graph.evaluations import random_bits
from weft.graph.node import Node


def keep_threshold(dropout: float) -> int:
    """What 16 random bits must be below for a value to stay: probabilities in steps of 2^-16."""
    return round((1.0 - dropout) * 2.0**16)


Shaped = tuple[tuple[int, ...], DType]


def results(srcs: tuple[Node, ...], attrs: Attention) -> tuple[Shaped, ...]:
    """Shape and dtype of the value and of the logarithms."""
    q, k, v = srcs[:3]
    batch, heads, queries, width = q.shape
    kv_heads, keys = k.shape[1:3]
    assert k.shape == (batch, kv_heads, keys, width) and v.shape[:3] == k.shape[:3], srcs
    assert heads % kv_heads == 0 and min(keys, width) > 0 and q.dtype.kind == "f", srcs
    assert q.dtype is k.dtype is v.dtype and len(srcs) == 3 + attrs.masked + (attrs.dropout > 0), srcs
    if attrs.masked:
        assert srcs[3].shape == (batch, heads, queries, keys) and srcs[3].dtype in (bool_, q.dtype), srcs
    if attrs.dropout:
        assert srcs[-1].shape == (2,) and srcs[-1].dtype is uint32, srcs
    return ((batch, queries, heads, v.shape[3]), q.dtype), (q.shape[:3], float32 if q.dtype.is_16_bit else q.dtype)


def backward_results(srcs: tuple[Node, ...], attrs: Attention) -> tuple[Shaped, ...]:
    """Shape and dtype of the gradients of q, k and v."""
    *forward, out, logs, g = srcs
    q, k, v = srcs[:3]
    assert ((out.shape, out.dtype), (logs.shape, logs.dtype)) == results(tuple(forward), attrs), srcs
    assert g.shape == (*q.shape[:3], v.shape[3]) and g.dtype is q.dtype, srcs
    return tuple([((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), x.dtype) for x in (q, k, v)])


def _weights(node: Node, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Attention weights before dropout, [B, H, Tq, Tk], and the log of the sum of exponentials."""
    form: Attention = node.attrs
    q, k = arrays[:2]
    queries, keys = q.shape[2], k.shape[2]
    scores = form.scale * (q @ _repeat(k, q).swapaxes(-1, -2))
    if form.masked:
        mask = arrays[3]
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if form.diagonal is not None:
        seen = np.arange(keys) <= np.arange(queries)[:, None] + form.diagonal
        scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    top = np.where(top == -np.inf, 0, top)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    logs = np.where(total == 0, np.inf, top + np.log(total))
    return weights / np.where(total == 0, 1, total), logs[..., 0]


def _repeat(x: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Keys or values with one head for each head of `q`."""
    return np.repeat(x, q.shape[1] // x.shape[1], axis=1)


def _keep(node: Node, state: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | float:
    """What dropout multiplies each weight by."""
    form: Attention = node.attrs
    if not form.dropout:
        return 1.0
    bits = random_bits(state, form.draw, shape, 16)
    return np.where(bits < keep_threshold(form.dropout), 1.0 / (1.0 - form.dropout), 0.0)


def evaluate_attention(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> tuple[np.ndarray, ...]:
    weights, logs = _weights(node, arrays)
    dropped = weights * _keep(node, arrays[-1], weights.shape)
    out = dropped.astype(arrays[2].dtype) @ _repeat(arrays[2], arrays[0])
    return out.transpose(0, 2, 1, 3), logs


def evaluate_backward(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> tuple[np.ndarray, ...]:
    *forward, _, _, g = arrays
    q, k, v = arrays[:3]
    weights, _ = _weights(node, forward)
    kept = _keep(node, forward[-1], weights.shape)
    in_values = (weights * kept).swapaxes(-1, -2) @ g
    in_weights = (g @ _repeat(v, q).swapaxes(-1, -2)) * kept
    in_scores = weights * (in_weights - (weights * in_weights).sum(-1, keepdims=True)) * node.attrs.scale
    parts = (in_scores @ _repeat(k, q), in_scores.swapaxes(-1, -2) @ q, in_values)
    gradients = []
    for part, source in zip(parts, (q, k, v), strict=True):
        batch, heads, length, width = source.shape
        summed = part.reshape(batch, heads, -1, length, width).sum(2)
        gradients.append(summed.transpose(0, 2, 1, 3))
    return tuple(gradients)
