"""Attention: softmax(Q Kᵀ / √D) V between linear projections, in several heads; rotary positions; caches of keys."""

from __future__ import annotations

from typing import Any

from weft.autograd import no_grad
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import arange, empty, full, zeros
from weft.core.tensor import Tensor
from weft.functional.multihead_attention import attend
from weft.names.functions import where
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.linear import Linear
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import export, layer
from weft.nn.sequence.rotary import RotaryEmbedding


@export
class KeyValueCache(Module):
    """Keys and values of earlier calls, for decoding token by token: buffers for `max_len` positions, and how many are
    filled. `append` writes the new ones behind them. The shapes stay, so one compiled step serves all positions; each
    step reads and writes the whole buffers, and attention masks what is empty. The cache has no gradient.

    Shape: keys and values [batch, heads, max_len, depth], length a number. See `make_cache` of attention layers.

    >>> cache = weft.nn.KeyValueCache(1, 2, 8, 4)
    >>> keys, values, positions = cache.append(weft.ones(1, 2, 3, 4), weft.ones(1, 2, 3, 4))
    >>> keys.shape, positions, cache.length
    ((1, 2, 8, 4), tensor([0, 1, 2]), tensor(3))
    """

    keys: Tensor
    values: Tensor
    length: Tensor

    def __init__(self, batch: int, num_heads: int, max_len: int, head_dim: int, device: Any = None, dtype: Any = None):
        super().__init__()
        self.max_len = max_len
        for name in ("keys", "values"):
            empty_buffer = zeros(batch, num_heads, max_len, head_dim, device=device, dtype=dtype)
            self.register_buffer(name, empty_buffer, persistent=False)
        self.register_buffer("length", full((), 0, device=device), persistent=False)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Write keys and values [batch, heads, L, depth]; returns all keys and values, and the positions [L]."""
        expected = (*self.keys.shape[:2], self.keys.shape[3])
        if keys.shape != values.shape or (*keys.shape[:2], keys.shape[3]) != expected or keys.shape[2] > self.max_len:
            given = f"keys {keys.shape} and values {values.shape}"
            form = f"[{expected[0]}, {expected[1]}, at most {self.max_len}, {expected[2]}]"
            raise problem(ShapeError, "KeyValueCache", given, form, "make the cache for this batch, and long enough")
        positions = self.length + arange(keys.shape[2], device=keys.device)
        end = self.length + keys.shape[2]
        fits = end <= self.max_len  # else that is an error of index_copy, and a compiled step changes nothing
        self.keys = where(fits, self.keys.index_copy(2, positions, keys.detach()), self.keys)
        self.values = where(fits, self.values.index_copy(2, positions, values.detach()), self.values)
        self.length = where(fits, end, self.length)
        return self.keys, self.values, positions

    def reset(self) -> None:
        """Forget everything."""
        with no_grad():
            self.length.zero_()

    def extra_repr(self) -> str:
        return f"max_len={self.max_len}"


class _Projected(Module):
    """What the layers with several heads share: the packed or separate projections, and the call of attention."""

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float, bias: bool, add_bias_kv: bool, add_zero_attn: bool,
        kdim: int | None, vdim: int | None, num_kv_heads: int | None, rope_base: float | None, device: Any, dtype: Any,
    ):  # fmt: skip
        super().__init__()
        who = type(self).__name__
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            given = f"embed_dim={embed_dim} and num_heads={num_heads}"
            raise problem(RangeError, who, given, "positive numbers, embed_dim divisible by num_heads")
        groups = num_heads if num_kv_heads is None else num_kv_heads
        if groups < 1 or num_heads % groups:
            given = f"num_kv_heads={groups} for num_heads={num_heads}"
            raise problem(RangeError, who, given, "a divisor of num_heads")
        if not 0.0 <= dropout <= 1.0:
            raise problem(RangeError, who, f"dropout={dropout}", "a probability from 0 to 1")
        self.embed_dim, self.num_heads, self.num_kv_heads, self.dropout = embed_dim, num_heads, groups, dropout
        self.kdim, self.vdim = embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim
        self.head_dim, self.add_zero_attn = embed_dim // num_heads, add_zero_attn
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        kept: dict[str, Any] = {"device": device, "dtype": dtype}
        width = groups * self.head_dim
        shapes: dict[str, tuple[int, ...] | None] = {
            "q_proj_weight": (embed_dim, embed_dim), "k_proj_weight": (width, self.kdim),
            "v_proj_weight": (width, self.vdim), "in_proj_weight": None,
        }  # fmt: skip
        if self._qkv_same_embed_dim:
            shapes = {"in_proj_weight": (embed_dim + 2 * width, embed_dim)}
            shapes |= dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight"))
        shapes["in_proj_bias"] = (embed_dim + 2 * width,) if bias else None
        for name, shape in shapes.items():
            self.register_parameter(name, None if shape is None else Parameter(empty(*shape, **kept)))
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, **kept)
        for name in ("bias_k", "bias_v"):
            self.register_parameter(name, Parameter(empty(1, 1, width, **kept)) if add_bias_kv else None)
        self.rotary = None if rope_base is None else RotaryEmbedding(self.head_dim, rope_base, device=device)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again: weights by `xavier_uniform_`, biases 0, `out_proj.weight` as in Linear."""
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if getattr(self, name) is not None:
                init.xavier_uniform_(getattr(self, name))
        self.out_proj.reset_parameters()
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        if self.bias_k is not None:
            init.xavier_normal_(self.bias_k)
            init.xavier_normal_(self.bias_v)

    def make_cache(self, batch: int, max_len: int) -> KeyValueCache:
        """An empty cache for decoding: pass it as `cache=` with the tokens that are new."""
        like = self.out_proj.weight
        return KeyValueCache(batch, self.num_kv_heads, max_len, self.head_dim, device=like.device, dtype=like.dtype)

    def _check(self, query: Tensor, key: Tensor, value: Tensor, single: bool = False) -> None:
        """All three have a batch (with `single`, or none has) and the features that the layer was made for."""
        inputs, widths = (query, key, value), (self.embed_dim, self.kdim, self.vdim)
        ranks = {x.ndim for x in inputs}
        if ranks not in ({3}, {2} if single else {3}) or tuple(x.shape[-1] for x in inputs) != widths:
            given = f"query {query.shape}, key {key.shape}, value {value.shape}"
            axes = "three axes, or two without a batch," if single else "three axes"
            expected = f"{axes} and {widths[0]}, {widths[1]} and {widths[2]} features"
            raise problem(ShapeError, type(self).__name__, given, expected)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor | None, is_causal: bool,
        need_weights: bool, key_padding_mask: Tensor | None = None, cache: KeyValueCache | None = None,
        batch_first: bool = True,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """[N, L, E] ([L, N, E] without `batch_first`) and the weights [N, heads, L, S] or None; masks with True for
        what is left out."""
        who = type(self).__name__
        change = None
        if cache is not None:
            if attn_mask is not None or key_padding_mask is not None or self.bias_k is not None or self.add_zero_attn:
                expected = "a cache alone: its queries see all positions up to their own"
                raise problem(RangeError, who, "a cache with a mask, add_bias_kv or add_zero_attn", expected)
            axis = 1 if batch_first else 0
            if key.shape[axis] != query.shape[axis]:
                given = f"a cache with {query.shape[axis]} queries and {key.shape[axis]} keys"
                raise problem(ShapeError, who, given, "as many keys as queries: those of the new tokens")
            positions = cache.length + arange(query.shape[axis], device=query.device)
            every = arange(cache.max_len, device=query.device)
            attn_mask, is_causal = every > positions.unsqueeze(1), False  # [L, max_len]

        def with_positions(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            if self.rotary is not None:
                at = None if cache is None else positions
                q, k = self.rotary(q, at), self.rotary(k, at)
            if cache is not None:
                k, v, _ = cache.append(k, v)
            return q, k, v

        if self.rotary is not None or cache is not None:
            change = with_positions
        separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        return attend(
            query, key, value, self.num_heads, self.in_proj_weight if self._qkv_same_embed_dim else separate,
            self.in_proj_bias, self.out_proj.weight, self.out_proj.bias, num_kv_heads=self.num_kv_heads,
            bias_k=self.bias_k, bias_v=self.bias_v, add_zero_attn=self.add_zero_attn,
            dropout_p=self.dropout if self.training else 0.0, key_padding_mask=key_padding_mask, attn_mask=attn_mask,
            is_causal=is_causal, need_weights=need_weights, change=change, batch_first=batch_first,
        )  # fmt: skip

    def extra_repr(self) -> str:
        shared = "" if self.num_kv_heads == self.num_heads else f", num_kv_heads={self.num_kv_heads}"
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}{shared}, dropout={self.dropout}"


def _to_torch_mask(mask: Tensor | None) -> Tensor | None:
    """A mask of this library's own layers (bool: True may be seen, or numbers to add) as PyTorch's layer has it."""
    return ~mask if mask is not None and mask.dtype.kind == "b" else mask


@layer("L050", aliases=("MultiHeadAttentionLayer", "MultiHeadAttention", "MHA"))
class MultiheadAttention(_Projected):
    """headₕ = softmax(Qₕ Kₕᵀ / √D) Vₕ with Q = q W_qᵀ + b_q and so on; y = [head₁ ... head_H] W_oᵀ + b_o.

    Shape: query [L, N, E], key [S, N, kdim], value [S, N, vdim]; y [L, N, E] and the weights [N, L, S], averaged over
    heads, [N, H, L, S] with `average_attn_weights=False`, None with `need_weights=False`. `batch_first` puts N first;
    N may be left out. Parameters: in_proj_weight [3E, E] (q_, k_, v_proj_weight where kdim or vdim differ),
    in_proj_bias [3E], out_proj. Masks: bool, True is left out, or numbers that are added: attn_mask [L, S] or
    [N·H, L, S], key_padding_mask [N, S]. A query that sees no key gets 0 from attention. `is_causal` says that
    attn_mask is causal.
    Without `need_weights` no [L, S] matrix is stored.

    Beyond PyTorch: `num_kv_heads` G (grouped-query attention: head h uses key head ⌊h·G/H⌋), `rope_base` (queries and
    keys pass a `RotaryEmbedding`), and `cache=` with only the new tokens as input (see `make_cache`); then queries see
    the positions up to their own. After Vaswani et al., "Attention is all you need" (2017).

    >>> attention = weft.nn.MultiheadAttention(4, 2, batch_first=True)
    >>> x = weft.ones(5, 3, 4)
    >>> y, weights = attention(x, x, x)
    >>> y.shape, weights.shape
    ((5, 3, 4), (5, 3, 3))
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: Any = None, dtype: Any = None, *, num_kv_heads: int | None = None, rope_base: float | None = None,
    ):  # fmt: skip
        super().__init__(
            embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, num_kv_heads, rope_base,
            device, dtype,
        )  # fmt: skip
        self.batch_first = batch_first

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None,
        key_padding_mask: Tensor | None = None, need_weights: bool = True, attn_mask: Tensor | None = None,
        average_attn_weights: bool = True, is_causal: bool = False, *, cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        key = query if key is None else key
        value = key if value is None else value
        self._check(query, key, value, single=True)
        single = query.ndim == 2
        if is_causal and attn_mask is None and cache is None:
            given, expected = "is_causal=True without attn_mask", "the causal mask as attn_mask, too"
            raise problem(RangeError, "MultiheadAttention", given, expected)
        if single:
            query, key, value = _alike(query, key, value, lambda x: x.unsqueeze(0))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        y, weights = self._attend(
            query, key, value, attn_mask=attn_mask, key_padding_mask=key_padding_mask, is_causal=is_causal,
            need_weights=need_weights, cache=cache, batch_first=single or self.batch_first,
        )  # fmt: skip
        y = y.squeeze(0) if single else y
        if weights is None:
            return y, None
        weights = weights.mean(1) if average_attn_weights else weights
        return y, weights.squeeze(0) if single else weights


MultiHeadAttention = MultiheadAttention


def _alike(query: Tensor, key: Tensor, value: Tensor, change: Any) -> tuple[Tensor, Tensor, Tensor]:
    """`change` of each; what is one tensor stays one, so that it is projected at once."""
    q = change(query)
    k = q if key is query else change(key)
    return q, k, q if value is query else k if value is key else change(value)


@layer("L051", aliases=("SelfAttentionLayer",), oracle="torch.nn.MultiheadAttention with query = key = value")
class SelfAttention(_Projected):
    """Multi-head attention of a sequence to itself: y = MHA(x, x, x), output projection included.

    Shape: x and y [B, T, embed_dim]; with `need_weights` also the weights [B, heads, T, T]. `mask` [T, T] or
    [B·heads, T, T]: bool, True may be seen, or numbers that are added; `key_mask` [B, T] says which steps are there.
    Parameters as in `MultiheadAttention`; `num_kv_heads`, `rope_base` and `cache` too.

    >>> weft.nn.SelfAttention(8, 2)(weft.ones(1, 3, 8), is_causal=True).shape
    (1, 3, 8)
    """

    def __init__(
        self, embed_dim: int, num_heads: int = 8, dropout: float = 0.0, bias: bool = True,
        num_kv_heads: int | None = None, rope_base: float | None = None, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__(
            embed_dim, num_heads, dropout, bias, False, False, None, None, num_kv_heads, rope_base, device, dtype
        )

    def forward(
        self, x: Tensor, mask: Tensor | None = None, key_mask: Tensor | None = None, is_causal: bool = False,
        need_weights: bool = False, cache: KeyValueCache | None = None,
    ) -> Any:  # fmt: skip
        self._check(x, x, x)
        y, weights = self._attend(
            x, x, x, attn_mask=_with_causal(_to_torch_mask(mask), is_causal), key_padding_mask=_to_torch_mask(key_mask),
            is_causal=is_causal and mask is None, need_weights=need_weights, cache=cache,
        )  # fmt: skip
        return (y, weights) if need_weights else y


def _with_causal(mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """A mask (True: left out) that also leaves out later keys, where there is a mask."""
    if mask is None or not is_causal:
        return mask
    rows, columns = (arange(extent, device=mask.device) for extent in mask.shape[-2:])
    later = columns > rows.unsqueeze(1)
    return mask | later if mask.dtype.kind == "b" else mask.masked_fill(later, float("-inf"))


@layer("", aliases=("GQA",), oracle="torch scaled_dot_product_attention(enable_gqa=True) between torch Linears")
class GroupedQueryAttention(_Projected):
    """Self-attention in which groups of query heads share keys and values: query head h reads key head ⌊h·G/H⌋.
    G = 1 is multi-query attention, G = H is `SelfAttention`.

    Shape: x and y [B, T, embed_dim]; the rest as in `SelfAttention`. in_proj_weight is [(H + 2G)·D, embed_dim] with D =
    embed_dim / H: the queries' rows first, then keys', then values'. After Ainslie et al., "GQA" (2023).

    >>> layer = weft.nn.GroupedQueryAttention(8, num_heads=4, num_kv_heads=2)
    >>> layer(weft.ones(1, 3, 8), is_causal=True).shape, layer.in_proj_weight.shape
    ((1, 3, 8), (16, 8))
    """

    def __init__(
        self, embed_dim: int, num_heads: int, num_kv_heads: int, dropout: float = 0.0, bias: bool = True,
        rope_base: float | None = None, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__(
            embed_dim, num_heads, dropout, bias, False, False, None, None, num_kv_heads, rope_base, device, dtype
        )

    forward = SelfAttention.forward


@layer("L049", aliases=("CrossAttentionLayer",), oracle="torch.nn.MultiheadAttention with kdim = vdim")
class CrossAttention(_Projected):
    """Attention of one sequence to another: queries from x, keys and values from the context.

    Shape: x and y [B, Tq, query_dim], context [B, Tk, context_dim]; with `need_weights` also the weights
    [B, heads, Tq, Tk]. `mask` [Tq, Tk] or [B·heads, Tq, Tk]: bool, True may be seen, or numbers that are added;
    `key_mask` [B, Tk] says which steps of the context are there. Parameters as in `MultiheadAttention` with kdim =
    vdim = context_dim.

    >>> weft.nn.CrossAttention(8, 6, num_heads=2)(weft.ones(1, 3, 8), weft.ones(1, 5, 6)).shape
    (1, 3, 8)
    """

    def __init__(
        self, query_dim: int, context_dim: int, num_heads: int = 8, dropout: float = 0.0, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__(
            query_dim, num_heads, dropout, bias, False, False, context_dim, context_dim, None, None, device, dtype
        )

    def forward(
        self, x: Tensor, context: Tensor, mask: Tensor | None = None, key_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> Any:  # fmt: skip
        self._check(x, context, context)
        y, weights = self._attend(
            x, context, context, attn_mask=_to_torch_mask(mask), key_padding_mask=_to_torch_mask(key_mask),
            is_causal=False, need_weights=need_weights,
        )  # fmt: skip
        return (y, weights) if need_weights else y


@layer("L048", aliases=("AttentionLayer",), oracle="torch scaled_dot_product_attention between torch Linears")
class Attention(Module):
    """One head: y = softmax(Q Kᵀ / √a) V W_oᵀ with Q = x W_qᵀ, K = c W_kᵀ, V = c W_vᵀ; c is the context, x itself
    without one.

    Shape: x and y [B, Tq, embed_dim], context [B, Tk, embed_dim]; weights of q_proj, k_proj and v_proj
    [attention_dim, embed_dim], of out_proj [embed_dim, attention_dim], all Xavier-uniform. `mask` broadcasts to
    [B, Tq, Tk]: bool, True may be seen, or numbers that are added.

    >>> weft.nn.Attention(4, 3)(weft.ones(2, 5, 4)).shape
    (2, 5, 4)
    """

    def __init__(
        self, embed_dim: int, attention_dim: int | None = None, bias: bool = False, device: Any = None,
        dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        self.embed_dim, self.attention_dim = embed_dim, embed_dim if attention_dim is None else attention_dim
        if embed_dim < 1 or self.attention_dim < 1:
            given = f"embed_dim={embed_dim} and attention_dim={self.attention_dim}"
            raise problem(RangeError, "Attention", given, "positive numbers")
        kept: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        for name in ("q_proj", "k_proj", "v_proj"):
            self.add_module(name, Linear(embed_dim, self.attention_dim, **kept))
        self.out_proj = Linear(self.attention_dim, embed_dim, **kept)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                init.zeros_(linear.bias)

    def forward(
        self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        context = x if context is None else context
        for name, value in (("x", x), ("the context", context)):
            if value.ndim != 3 or value.shape[2] != self.embed_dim:
                raise problem(ShapeError, "Attention", f"{name} of shape {value.shape}", f"[B, T, {self.embed_dim}]")
        q, k, v = self.q_proj(x), self.k_proj(context), self.v_proj(context)  # [B, T, a]
        return self.out_proj(F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal))
