"""Records of scaled-dot-product attention: masks, cross lengths, grouped heads, and queries that see nothing."""

import weft
import weft.nn.functional as F
from tests.records.oracle import TF, torch
from tests.records.record import Record, T, sample


def masked(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, causal=None):
    """torch's attention, with causal masks written out: torch takes none beside another mask, and none that let the
    last query see all keys."""
    if is_causal and attn_mask is None and query.dtype.itemsize >= 4:
        return TF.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa)
    if is_causal or causal is not None:
        queries, keys = query.shape[-2], key.shape[-2]
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries if causal == "bottom_right" else 0)
        if attn_mask is None:
            attn_mask = seen
        elif attn_mask.dtype is torch.bool:
            attn_mask = attn_mask & seen
        else:
            attn_mask = attn_mask.masked_fill(~seen, -torch.inf)
    dtype = query.dtype
    if dtype.itemsize < 4:  # torch would round between the steps
        query, key, value = query.float(), key.float(), value.float()
        attn_mask = attn_mask if attn_mask is None or attn_mask.dtype is torch.bool else attn_mask.float()
    out = TF.scaled_dot_product_attention(query, key, value, attn_mask, scale=scale, enable_gqa=enable_gqa)
    return out.to(dtype)


def qkv(batch, heads, queries, keys, width, value_width=None, kv_heads=None):
    """Tensors of query, key and value."""
    kv_heads = kv_heads or heads
    shapes = [(queries, width), (keys, width), (keys, value_width or width)]
    counts = [heads, kv_heads, kv_heads]
    return [T((*batch, count, *shape)) for count, shape in zip(counts, shapes, strict=True)]


def holes(*shape):
    return T(shape, dtype="bool")


NOTHING_SEEN = T(dtype="bool", values=[[True, False, True], [False, False, False]])

RECORDS = [
    Record(
        "scaled_dot_product_attention",
        F.scaled_dot_product_attention,
        masked,
        [
            sample(*qkv((1,), 1, 2, 3, 2)),
            sample(*qkv((2,), 3, 5, 7, 4), scale=0.3),
            sample(*qkv((2,), 2, 64, 64, 16)),
            sample(*qkv((1,), 2, 70, 130, 8, 40), is_causal=True),
            sample(*qkv((1,), 2, 130, 70, 8, 3), is_causal=True),
            sample(*qkv((1,), 1, 1, 200, 33), is_causal=True),
            sample(*qkv((1,), 2, 70, 130, 8, 40), causal="bottom_right"),
            sample(*qkv((1,), 2, 130, 70, 8, 3), causal="bottom_right"),
            sample(*qkv((1,), 1, 1, 200, 33), causal="bottom_right"),
            sample(*qkv((1,), 2, 3, 5, 2), causal="top_left"),
            sample(*qkv((3,), 1, 1, 1, 1)),
            sample(*qkv((1,), 4, 9, 65, 4, kv_heads=2), enable_gqa=True),
            sample(*qkv((2,), 6, 3, 4, 2, 3, kv_heads=1), is_causal=True, enable_gqa=True),
            sample(*qkv((2,), 2, 5, 66, 4), holes(2, 1, 5, 66)),
            sample(*qkv((2,), 2, 5, 66, 4), holes(2, 1, 1, 66), is_causal=True),
            sample(*qkv((2,), 2, 5, 66, 4), holes(2, 1, 1, 66), causal="bottom_right"),
            sample(*qkv((2,), 2, 5, 66, 4), holes(1, 66)),
            sample(*qkv((1,), 2, 2, 3, 2), NOTHING_SEEN),
            sample(*qkv((1,), 2, 2, 3, 2), NOTHING_SEEN, is_causal=True),
            sample(*qkv((2,), 2, 3, 2, 2), is_causal=True),
            sample(*qkv((2,), 2, 3, 2, 2), causal="bottom_right"),
            sample(*qkv((2,), 2, 5, 66, 4), T((2, 5, 66))),
            sample(*qkv((1,), 2, 2, 3, 2), T((2, 1)), is_causal=True),
            sample(*qkv((2, 3), 2, 3, 2, 2)),
            sample(*qkv((), 2, 3, 5, 2)),
            sample(T((3, 2)), T((5, 2)), T((5, 4)), holes(3, 5)),
            sample(T((2, 4, 9), layout="transposed"), T((2, 5, 9), layout="sliced"), T((2, 5, 3))),
            sample(T((1, 2, 3, 4)), T((5, 2, 6, 4)), T((5, 1, 6, 4))),
            sample(T((2, 2, 3, 0)), T((2, 2, 5, 0)), T((2, 2, 5, 3)), scale=1.0),
            sample(T((0, 2, 3, 4)), T((0, 2, 5, 4)), T((0, 2, 5, 4))),
            sample(*qkv((1,), 2, 0, 5, 3)),
        ],
        tolerance={"float32": (2e-5, 1e-5), "float64": (1e-10, 1e-12)},
        errors=[
            (
                lambda: F.scaled_dot_product_attention(weft.ones(2, 3), weft.ones(2, 4), weft.ones(2, 4)),
                weft.ShapeError,
                r"scaled_dot_product_attention: given query \(2, 3\), key \(2, 4\) and value \(2, 4\)",
            ),
            (
                lambda: F.scaled_dot_product_attention(weft.ones(3), weft.ones(1, 2, 3), weft.ones(2, 3)),
                weft.ShapeError,
                "of one rank",
            ),
            (
                lambda: F.scaled_dot_product_attention(weft.ones(4, 2, 3), weft.ones(2, 2, 3), weft.ones(2, 2, 3)),
                weft.ShapeError,
                "as many heads .* pass enable_gqa=True",
            ),
            (
                lambda: F.scaled_dot_product_attention(
                    weft.ones(4, 2, 3), weft.ones(3, 2, 3), weft.ones(3, 2, 3), enable_gqa=True
                ),
                weft.ShapeError,
                "divide those of query",
            ),
            (
                lambda: F.scaled_dot_product_attention(
                    weft.ones(2, 3), weft.ones(2, 3), weft.ones(2, 3), weft.ones(3, 2)
                ),
                weft.ShapeError,
                r"attn_mask of shape \(3, 2\)|shapes that broadcast",
            ),
            (
                lambda: F.scaled_dot_product_attention(
                    weft.ones(2, 3), weft.ones(2, 3), weft.ones(2, 3), weft.ones(2, 2, dtype=weft.int64)
                ),
                weft.DTypeError,
                "attn_mask of int64",
            ),
            (
                lambda: F.scaled_dot_product_attention(weft.ones(2, 3), weft.ones(2, 3), weft.ones(2, 3), None, 1.5),
                weft.RangeError,
                "p=1.5",
            ),
            (
                lambda: F.scaled_dot_product_attention(
                    weft.ones(2, 3), weft.ones(2, 3).double(), weft.ones(2, 3).double()
                ),
                weft.DTypeError,
                "float32, float64, float64",
            ),
        ],
    ),
    Record(
        "attention_over_no_keys",
        F.scaled_dot_product_attention,
        lambda q, k, v, **_: torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype) + 0 * (q.sum() + k.sum() + v.sum()),
        [sample(*qkv((2,), 2, 3, 0, 4)), sample(*qkv((1,), 4, 3, 0, 2, 5, kv_heads=2), enable_gqa=True)],
    ),
]
