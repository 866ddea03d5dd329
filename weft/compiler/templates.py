"""The table of templates: how the kernels of some primitives are made. `Device.features` names those a device has."""

from __future__ import annotations

from weft.compiler import attention, block_attention, block_product, convolve, libraries, order_blocks, products
from weft.compiler.custom import custom
from weft.compiler.template import MakeTemplate

TEMPLATES: dict[str, MakeTemplate] = {
    "attention": attention.forward,
    "attention_backward": attention.backward,
    "conv_tiles": convolve.template,
    "conv_weight_tiles": convolve.template,
    "library": libraries.template,
    "product": products.template,
    "product_pair": products.template,
    "custom": custom,
    "merge_runs": order_blocks.merging,
    "block_product": block_product.template,
    "block_attention": block_attention.forward,
    "block_attention_backward": block_attention.backward,
}
