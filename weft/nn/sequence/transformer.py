"""Transformers: encoder and decoder layers, stacks of them, and what comes before them: patches and positions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from weft.base.dtypes import float32, float64
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import arange, full
from weft.core.tensor import Tensor
from weft.names.functions import stack
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.dropout import Dropout
from weft.nn.basic.linear import Linear
from weft.nn.basic.named_activation import make_activation
from weft.nn.basic.normalization import LayerNorm
from weft.nn.containers import ModuleList
from weft.nn.module import Module
from weft.nn.registry import layer
from weft.nn.sequence.attention import Attention, MultiheadAttention
from weft.nn.spatial.convolution import Conv2d

Activation = str | Callable[[Tensor], Tensor]


@layer("L053", aliases=("FeedForwardLayer",), oracle="two torch Linears with torch's activation between them")
class FeedForward(Module):
    """y = W₂ drop(act(W₁ x + b₁)) + b₂, the same for every position.

    Shape: x and y [*, d_model]; linear1 [d_ff, d_model], linear2 [d_model, d_ff]; d_ff is 4·d_model unless given. After
    Vaswani et al. (2017).

    >>> weft.nn.FeedForward(4)(weft.ones(2, 3, 4)).shape
    (2, 3, 4)
    """

    def __init__(
        self, d_model: int, d_ff: int | None = None, activation: Activation = "gelu", dropout: float = 0.0,
        bias: bool = True, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        width = 4 * d_model if d_ff is None else d_ff
        self.linear1 = Linear(d_model, width, bias=bias, device=device, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(width, d_model, bias=bias, device=device, dtype=dtype)
        self.activation: Any = make_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class _Layer(Module):
    """What encoder and decoder layers share: self-attention, the two linear maps, and the positions of the norms."""

    def __init__(
        self, norms: int, d_model: int, nhead: int, dim_feedforward: int, dropout: float, activation: Activation,
        layer_norm_eps: float, batch_first: bool, norm_first: bool, bias: bool, device: Any, dtype: Any,
    ):  # fmt: skip
        super().__init__()
        like: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=batch_first, **like)
        if norms == 3:
            self.multihead_attn = MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=batch_first, **like)
        self.linear1 = Linear(d_model, dim_feedforward, **like)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **like)
        self.norm_first = norm_first
        for number in range(1, norms + 1):
            self.add_module(f"norm{number}", LayerNorm(d_model, eps=layer_norm_eps, **like))
        for number in range(1, norms + 1):
            self.add_module(f"dropout{number}", Dropout(dropout))
        self.activation: Any = make_activation(activation)

    def _sublayer(self, number: int, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """x + drop(change(norm(x))), or norm(x + drop(change(x)))."""
        norm, drop = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        return x + drop(change(norm(x))) if self.norm_first else norm(x + drop(change(x)))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


@layer("L057")
class TransformerEncoderLayer(_Layer):
    """x = norm₁(x + SA(x)); y = norm₂(x + W₂ act(W₁ x)); with `norm_first` x = x + SA(norm₁(x)); y = x + W₂ act(W₁
    norm₂(x)). Dropout after attention, inside and after the linear maps.

    Shape: src and the result [T, N, d_model], [N, T, d_model] with `batch_first`, or [T, d_model]. Masks as in
    `MultiheadAttention` (True is left out): src_mask [T, T] or [N·nhead, T, T], src_key_padding_mask [N, T];
    `is_causal` says that src_mask is the causal mask. After Vaswani et al. (2017); `norm_first` after Xiong et al.
    (2020).

    >>> layer = weft.nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, batch_first=True)
    >>> layer(weft.ones(2, 3, 4)).shape
    (2, 3, 4)
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = F.relu, layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__(
            2, d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias,
            device, dtype,
        )  # fmt: skip

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        def attend(x: Tensor) -> Tensor:
            return self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal)[0]

        return self._sublayer(2, self._sublayer(1, src, attend), self._feed_forward)


@layer("L056")
class TransformerDecoderLayer(_Layer):
    """Three sublayers: self-attention of tgt, attention of tgt to memory, and two linear maps; each with a residual and
    a norm, as in `TransformerEncoderLayer`.

    Shape: tgt and the result [T, N, d_model], memory [S, N, d_model], [N, ...] with `batch_first`, or without N. Masks
    (True is left out): tgt_mask [T, T], memory_mask [T, S], tgt_key_padding_mask [N, T], memory_key_padding_mask
    [N, S]. After Vaswani et al. (2017).

    >>> layer = weft.nn.TransformerDecoderLayer(4, 2, dim_feedforward=8)
    >>> layer(weft.ones(3, 1, 4), weft.ones(5, 1, 4)).shape
    (3, 1, 4)
    """

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = F.relu, layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__(
            3, d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias,
            device, dtype,
        )  # fmt: skip

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        def attend(x: Tensor) -> Tensor:
            return self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal)[0]

        def read(x: Tensor) -> Tensor:
            return self.multihead_attn(
                x, memory, memory, memory_key_padding_mask, False, memory_mask, is_causal=memory_is_causal
            )[0]

        return self._sublayer(3, self._sublayer(2, self._sublayer(1, tgt, attend), read), self._feed_forward)


def _copies(module: Module, count: int) -> ModuleList:
    return ModuleList([copy.deepcopy(module) for _ in range(count)])


@layer()
class TransformerEncoder(Module):
    """`num_layers` copies of an encoder layer one after the other, then `norm` where one is given.

    Shape: as the layer. The copies start with equal weights, as in PyTorch. `enable_nested_tensor` and `mask_check` are
    accepted and change nothing: padded positions are computed like others. `is_causal` None counts as False: the mask
    says it all; True lets the attention kernel skip later keys.

    >>> layer = weft.nn.TransformerEncoderLayer(4, 2, dim_feedforward=8)
    >>> weft.nn.TransformerEncoder(layer, num_layers=2)(weft.ones(3, 1, 4)).shape
    (3, 1, 4)
    """

    def __init__(
        self, encoder_layer: Module, num_layers: int, norm: Module | None = None, enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.layers, self.num_layers, self.norm = _copies(encoder_layer, num_layers), num_layers, norm
        self.enable_nested_tensor, self.mask_check = enable_nested_tensor, mask_check

    def forward(
        self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:  # fmt: skip
        for encoder in self.layers:
            src = encoder(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
        return src if self.norm is None else self.norm(src)


@layer()
class TransformerDecoder(Module):
    """`num_layers` copies of a decoder layer one after the other, all with the same memory, then `norm` where one is
    given.

    Shape: as the layer. The copies start with equal weights, as in PyTorch; `tgt_is_causal` None counts as False.

    >>> layer = weft.nn.TransformerDecoderLayer(4, 2, dim_feedforward=8)
    >>> weft.nn.TransformerDecoder(layer, num_layers=2)(weft.ones(3, 1, 4), weft.ones(5, 1, 4)).shape
    (3, 1, 4)
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None):
        super().__init__()
        self.layers, self.num_layers, self.norm = _copies(decoder_layer, num_layers), num_layers, norm

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        for decoder in self.layers:
            tgt = decoder(
                tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=bool(tgt_is_causal),
                memory_is_causal=memory_is_causal,
            )  # fmt: skip
        return tgt if self.norm is None else self.norm(tgt)


@layer()
class Transformer(Module):
    """Encoder and decoder: y = decoder(tgt, encoder(src)), both stacks of layers with a norm at the end.

    Shape: src [S, N, d_model], tgt and the result [T, N, d_model], [N, ...] with `batch_first`, or without N. Masks as
    in the layers. All matrices start Xavier-uniform. After Vaswani et al., "Attention is all you need" (2017).

    >>> model = weft.nn.Transformer(4, 2, 1, 1, dim_feedforward=8)
    >>> mask = model.generate_square_subsequent_mask(3)
    >>> model(weft.ones(5, 1, 4), weft.ones(3, 1, 4), tgt_mask=mask).shape
    (3, 1, 4)
    """

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
        dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = F.relu, custom_encoder: Any = None,
        custom_decoder: Any = None, layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False,
        bias: bool = True, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        given = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias, device,
            dtype,
        )  # fmt: skip

        def norm() -> LayerNorm:
            return LayerNorm(d_model, eps=layer_norm_eps, bias=bias, device=device, dtype=dtype)

        if custom_encoder is None:
            custom_encoder = TransformerEncoder(TransformerEncoderLayer(*given), num_encoder_layers, norm())
        if custom_decoder is None:
            custom_decoder = TransformerDecoder(TransformerDecoderLayer(*given), num_decoder_layers, norm())
        self.encoder, self.decoder = custom_encoder, custom_decoder
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for param in self.parameters():
            if param.ndim > 1:
                init.xavier_uniform_(param)

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None, tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        batch = 0 if self.batch_first else 1
        if src.ndim == 3 and tgt.ndim == 3 and src.shape[batch] != tgt.shape[batch]:
            given = f"src {src.shape} and tgt {tgt.shape}"
            raise problem(ShapeError, "Transformer", given, f"the same batch (axis {batch})")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            given = f"src {src.shape} and tgt {tgt.shape}"
            raise problem(ShapeError, "Transformer", given, f"{self.d_model} features in both")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        return self.decoder(
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )  # fmt: skip

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """The causal mask [sz, sz] as numbers to add: -inf where key j lies after query i.

        >>> weft.nn.Transformer.generate_square_subsequent_mask(2)
        tensor([[0., -inf],
                [0., 0.]])
        """
        return full((sz, sz), -math.inf, device=device, dtype=dtype).triu(1)


@layer("L052", oracle="torch.nn.TransformerDecoderLayer(nhead=1) with zero biases in its attention")
class DecoderLayer(Module):
    """The decoder layer with one head: x = norm₁(x + A(x)); x = norm₂(x + A(x, memory)); y = norm₃(x + W₂ act(W₁ x)),
    A as in `Attention` (softmax attention, no biases).

    Shape: x and y [B, T, d_model], memory [B, S, d_model]. `mask` broadcasts to [B, T, T] and `memory_mask` to
    [B, T, S]: bool, True may be seen, or numbers that are added.

    >>> weft.nn.DecoderLayer(4, attention_dim=3, d_ff=8)(weft.ones(1, 3, 4), weft.ones(1, 5, 4)).shape
    (1, 3, 4)
    """

    def __init__(
        self, d_model: int, attention_dim: int | None = None, d_ff: int | None = None, activation: Activation = "relu",
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.self_attn = Attention(d_model, attention_dim, **like)
        self.cross_attn = Attention(d_model, attention_dim, **like)
        self.feed_forward = FeedForward(d_model, d_ff, activation, **like)
        self.norm1, self.norm2, self.norm3 = (LayerNorm(d_model, **like) for _ in range(3))

    def forward(
        self, x: Tensor, memory: Tensor, mask: Tensor | None = None, memory_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        x = self.norm1(x + self.self_attn(x, mask=mask, is_causal=is_causal))
        x = self.norm2(x + self.cross_attn(x, memory, memory_mask))
        return self.norm3(x + self.feed_forward(x))


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


@layer("L054", aliases=("PatchEmbeddingLayer", "PatchEmbedding"), oracle="torch Conv2d, flatten, transpose")
class PatchEmbed(Module):
    """An image as a sequence: each patch of P x P pixels is one linear map of it, a convolution with kernel and stride
    P; patches are in rows from the top left.

    Shape: input [B, in_chans, H, W], output [B, (H/P)·(W/P), embed_dim]; proj.weight [embed_dim, in_chans, P, P]. H and
    W are `img_size` (None: any multiples of P). After Dosovitskiy et al., "An image is worth 16x16 words" (2021).

    >>> weft.nn.PatchEmbed(8, 4, in_chans=1, embed_dim=6)(weft.ones(2, 1, 8, 8)).shape
    (2, 4, 6)
    """

    def __init__(
        self, img_size: int | tuple[int, int] | None = 224, patch_size: int | tuple[int, int] = 16, in_chans: int = 3,
        embed_dim: int = 768, bias: bool = True, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        self.patch_size = _pair(patch_size)
        self.img_size = None if img_size is None else _pair(img_size)
        rows, columns = self.patch_size
        if self.img_size is not None and (self.img_size[0] % rows or self.img_size[1] % columns):
            given = f"img_size={self.img_size} and patch_size={self.patch_size}"
            raise problem(RangeError, "PatchEmbed", given, "an image that patches fill")
        self.num_patches = None if self.img_size is None else self.img_size[0] // rows * (self.img_size[1] // columns)
        self.proj = Conv2d(
            in_chans, embed_dim, kernel_size=self.patch_size, stride=self.patch_size, bias=bias, device=device,
            dtype=dtype,
        )  # fmt: skip

    def forward(self, input: Tensor) -> Tensor:
        rows, columns = self.patch_size
        size = tuple(input.shape[-2:]) if input.ndim == 4 else None
        if size is None or (self.img_size is not None and size != self.img_size):
            expected = "[B, C, H, W]" if self.img_size is None else f"[B, C, {self.img_size[0]}, {self.img_size[1]}]"
            raise problem(ShapeError, "PatchEmbed", f"an input of shape {input.shape}", expected)
        if size[0] % rows or size[1] % columns:
            given = f"an image of {size[0]} x {size[1]}"
            raise problem(ShapeError, "PatchEmbed", given, f"multiples of the patch, {rows} x {columns}")
        return self.proj(input).flatten(2).transpose(1, 2)  # [B, D, h, w] -> [B, h·w, D]


@layer("L055", aliases=("PositionalEncodingLayer",), learns="-", oracle="the table in float64 NumPy")
class PositionalEncoding(Module):
    """y = drop(x + PE[:T]) with PE[t, 2i] = sin(t·10000^(-2i/d)) and PE[t, 2i+1] = cos of the same.

    Shape: x and y [B, T, d_model]; the table is the buffer pe [max_len, d_model]. After Vaswani et al. (2017).

    >>> weft.nn.PositionalEncoding(2, max_len=8)(weft.zeros(1, 2, 2))
    tensor([[[0.0000, 1.0000],
             [0.8415, 0.5403]]])
    """

    def __init__(self, d_model: int, max_len: int = 5000, dropout: float = 0.0, device: Any = None, dtype: Any = None):
        super().__init__()
        if d_model < 1 or max_len < 1:
            raise problem(RangeError, "PositionalEncoding", f"d_model={d_model}, max_len={max_len}", "positive numbers")
        self.d_model, self.max_len = d_model, max_len
        self.dropout = Dropout(dropout)
        exact = float64 if dtype is float64 else float32
        rates = 10000.0 ** (arange(0, d_model, 2, device=device).to(exact) * (-1.0 / d_model))
        angles = arange(max_len, device=device).to(exact).unsqueeze(1) * rates  # [max_len, ⌈d/2⌉]
        table = stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :d_model]
        self.register_buffer("pe", table if dtype is None else table.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[-1] != self.d_model or x.shape[-2] > self.max_len:
            expected = f"[B, at most {self.max_len}, {self.d_model}]"
            raise problem(ShapeError, "PositionalEncoding", f"an input of shape {x.shape}", expected)
        return self.dropout(x + self.pe[: x.shape[-2]])

    def extra_repr(self) -> str:
        return f"{self.d_model}, max_len={self.max_len}"
