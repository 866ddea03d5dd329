"""Attention for tensors: the operation, with its random draws."""

from __future__ import annotations

from weft.core.lift import lift
from weft.core.tensor import Tensor
from weft.ops import attention, creation
from weft.ops.registry import operation
from weft.random.generator import Generator, default_generator

_attention = lift(attention.scaled_dot_product_attention)


@operation("functional", of_tensors=True)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    causal: str | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """softmax(scale * query @ keyᵀ + mask) @ value, in memory linear in the number of keys.

    query [..., H, Tq, D], key [..., H, Tk, D], value [..., H, Tk, Dv] -> [..., H, Tq, Dv]; float16 and bfloat16 are
    computed in float32. `scale` is 1/sqrt(D) unless given. `attn_mask` broadcasts to [..., H, Tq, Tk]: bool (True:
    attend) or added to the scores. With `is_causal`, or `causal="top_left"`, query i sees key j iff j <= i, as in
    PyTorch. With `causal="bottom_right"` it sees key j iff j <= i + (Tk - Tq): the last query sees all keys, as
    decoding with a cache of keys needs it. For Tq = Tk they are the same. A mask may be given, too.

    With `enable_gqa` key and value may have fewer heads Hk: head h reads head h * Hk // H. A query that sees no key
    gives 0 and has no gradient. Weights drop with probability `dropout_p`, also outside of training. The gradient of an
    additive mask, where one is requested, takes memory for all scores.

    >>> x = weft.ones(1, 1, 3, 2)
    >>> weft.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True).shape
    (1, 1, 3, 2)
    """
    creation.check_probability("scaled_dot_product_attention", dropout_p)
    if dropout_p == 1.0:
        return _attention(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa, causal) * 0.0
    state, draw = None, 0
    if dropout_p:
        node, draw = (generator or default_generator).draw(query.device, 1)
        state = Tensor(node)
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, causal, state, draw)
