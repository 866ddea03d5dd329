"""The table of templates: how the kernels of some primitives are made. `Device.features` says which a device has."""

from __future__ import annotations

from weft.compiler.passes import gpu_sorting, library_calls, library_products
from weft.compiler.templates import attention, gpu_attention
from weft.compiler.templates import convolution as templates_convolution
from weft.compiler.templates import gemm as templates_gemm
from weft.compiler.templates.custom import custom
from weft.compiler.templates.template import MakeTemplate

TEMPLATES: dict[str, MakeTemplate] = {
    "attention": attention.forward,
    "attention_backward": attention.backward,
    "conv_tiles": templates_convolution.template,
    "conv_weight_tiles": templates_convolution.template,
    "library": library_calls.template,
    "product": library_products.template,
    "product_pair": library_products.template,
    "custom": custom,
    "merge_runs": gpu_sorting.template,
    "block_product": templates_gemm.template,
    "block_attention": gpu_attention.forward,
    "block_attention_backward": gpu_attention.backward,
}
