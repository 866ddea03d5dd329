"""Attention in torch's and NumPy's terms, for the records of layers."""

import torch
import torch.nn.functional as TF

from tests.layers.oracles import of_torch, to_torch
from tests.layers.records.rotary import rotation


def grouped(state, x, mask, is_causal=False, base=None):
    """torch's attention with shared heads between projections: 4 heads, 2 of keys."""
    state, x = {key: to_torch(value) for key, value in state.items()}, torch.tensor(x)
    batch, length, _ = x.shape
    q, k, v = TF.linear(x, state["in_proj_weight"], state.get("in_proj_bias")).split([8, 4, 4], -1)
    q, k, v = (one.reshape(batch, length, -1, 2).transpose(1, 2) for one in (q, k, v))
    if base is not None:
        q, k = (torch.tensor(rotation({}, one.numpy())) for one in (q, k))
    mask = None if mask is None else torch.tensor(mask)
    y = TF.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, enable_gqa=True)
    return TF.linear(y.transpose(1, 2).reshape(batch, length, 8), state["out_proj.weight"], state.get("out_proj.bias"))


def of_self(need_weights=False, key_mask=False):
    """torch's layer behind our own masks, in which True may be seen."""

    def call(module, x, mask=None, *more):
        padding = ~more[0] if key_mask else None
        if key_mask and mask.dtype != torch.bool:
            padding = torch.zeros(padding.shape, dtype=mask.dtype).masked_fill(padding, -torch.inf)
        left_out = None if mask is None else ~mask if mask.dtype == torch.bool else mask
        y, weights = module(
            x, x, x, attn_mask=left_out, key_padding_mask=padding, need_weights=need_weights, average_attn_weights=False
        )
        return (y, weights) if need_weights else y

    return of_torch(lambda: torch.nn.MultiheadAttention(4, 2, batch_first=True), call=call)


def one_head(state, x, context=None, mask=None):
    def project(name, value):
        y = value @ state[f"{name}.weight"].T
        return y + state[f"{name}.bias"] if f"{name}.bias" in state else y

    context = x if context is None else context
    q, k, v = (project(f"{n}_proj", a) for n, a in (("q", x), ("k", context), ("v", context)))
    mask = None if mask is None else torch.tensor(mask)
    mixed = TF.scaled_dot_product_attention(torch.tensor(q), torch.tensor(k), torch.tensor(v), mask).numpy()
    return project("out_proj", mixed)
